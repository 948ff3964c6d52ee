//! The four validations of the pipeline, in their order: integrity, outbox, recipient, template. An email was checked
//! once when it was accepted; it is checked again before every attempt, since the world may have moved on and since
//! not everything in the store was put there by us. What fails here fails for good.

pub mod html;
pub mod integrity;
pub mod outbox;
pub mod recipient;
pub mod template;

use model::{Address, Category, Claim, Company, ErrorCode, Failure};
use store::{Store, StoreError};

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

/// Why an email did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotPassed {
    Invalid(Invalid),
    /// Nobody knows: the store could not be asked.
    Unknown(StoreError),
}

/// All four, in order; the first that refuses decides. `suppressed` are those of its recipients that the company does not
/// write to.
pub async fn all(
    store: &dyn Store,
    company: Option<&Company>,
    claim: &Claim,
    suppressed: &[Address],
) -> Result<(), NotPassed> {
    let refused_by = |validation| move |failure| NotPassed::Invalid(Invalid { validation, failure });
    integrity::check(claim).map_err(refused_by(Validation::Integrity))?;
    outbox::check(company, claim).map_err(refused_by(Validation::Outbox))?;
    let known = recipient::look_up(store, claim).await.map_err(NotPassed::Unknown)?;
    recipient::check(claim, &known, suppressed).map_err(refused_by(Validation::Recipient))?;
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
    }
}

#[cfg(test)]
mod tests;
