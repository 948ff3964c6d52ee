//! The four validations of the pipeline, in their order: integrity, outbox, recipient, template. An email was checked
//! once when it was accepted; it is checked again before every attempt, since the world may have moved on and since
//! not everything in the store was put there by us. What fails here fails for good.

pub mod html;
pub mod integrity;
pub mod outbox;
pub mod recipient;
pub mod template;

use model::{Category, Claim, Company, ErrorCode, Failure};

use crate::addressees::Addressees;

/// Which of the four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validation {
    Integrity,
    Outbox,
    Recipient,
    Template,
}

impl Validation {
    pub const ALL: [Self; 4] = [Self::Integrity, Self::Outbox, Self::Recipient, Self::Template];

    /// The name users see, in events and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Integrity => "INTEGRITY",
            Self::Outbox => "OUTBOX",
            Self::Recipient => "RECIPIENT",
            Self::Template => "TEMPLATE",
        }
    }
}

/// An email that must not be sent, and the validation that said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    pub validation: Validation,
    pub failure: Failure,
}

/// All four, in order; the first that refuses decides.
pub fn all(company: Option<&Company>, claim: &Claim, addressees: &Addressees) -> Result<(), Invalid> {
    let refused_by = |validation| move |failure| Invalid { validation, failure };
    integrity::check(claim).map_err(refused_by(Validation::Integrity))?;
    outbox::check(company, claim).map_err(refused_by(Validation::Outbox))?;
    recipient::check(claim, addressees).map_err(refused_by(Validation::Recipient))?;
    template::check(claim).map_err(refused_by(Validation::Template))
}

/// A validation's refusal.
pub(crate) fn refusal(code: ErrorCode, message: impl Into<String>) -> Failure {
    Failure {
        code,
        category: Category::Validation,
        message: message.into(),
        original_code: None,
        retry_after: None,
        refused: None,
    }
}

#[cfg(test)]
mod tests;
