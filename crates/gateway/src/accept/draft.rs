//! An email as it is handed in: well-formed, but not yet found acceptable. And how faults and warnings about
//! it are told.

use std::fmt::Write as _;
use std::time::Duration;

use model::document::Document;
use model::email::Wishes;
use model::{Content, Entity, Envelope, RecipientId, Secret, Timestamp};
use serde_json::Value;

use crate::templates::TemplateName;

/// Every field was read and has the right shape; `accept` decides whether it may be sent.
#[derive(Debug)]
pub struct Draft {
    pub envelope: Envelope,
    pub recipient: Option<DraftRecipient>,
    pub external_id: Option<String>,
    pub entity: Option<Entity>,
    pub priority: Option<u8>,
    pub when: When,
    pub ttl: Option<Duration>,
    pub wishes: Wishes,
    /// An .eml is checked later, by the intake. Without its html where a template makes it.
    pub content: Content,
    pub template: Option<DraftTemplate>,
    pub on_suppressed: OnSuppressed,
    /// What was mended while reading.
    pub notes: Vec<Note>,
}

/// The template that makes html and text, and the subject if none was given.
#[derive(Debug)]
pub struct DraftTemplate {
    pub name: TemplateName,
    pub variables: Value,
}

/// What to do with an email to somebody the company does not write to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnSuppressed {
    /// Take it, say so, and do not send it.
    #[default]
    Warn,
    Reject,
}

impl OnSuppressed {
    pub fn parse(text: &str) -> Option<Self> {
        [("warn", Self::Warn), ("reject", Self::Reject)]
            .into_iter()
            .find_map(|(name, choice)| (name == text).then_some(choice))
    }
}

/// When it is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Now,
    After(Duration),
    At(Timestamp),
}

/// The recipient, with a document that is not yet hashed or sealed.
#[derive(Debug)]
pub struct DraftRecipient {
    pub id: Option<RecipientId>,
    pub external_id: Option<String>,
    pub document: Option<DraftDocument>,
    pub legal_name: Option<Secret<String>>,
    pub name: Option<Secret<String>>,
}

#[derive(Debug)]
pub enum DraftDocument {
    Number(Document),
    /// SHA-256 of the number, 64 lower-case hexadecimal digits.
    Hash(Secret<String>),
}

/// How bad a fault is, and so with which status the API answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A field is wrong.
    Wrong,
    /// A field is too large.
    TooLarge,
    /// Well-formed, but not acceptable here and now.
    Unacceptable,
}

/// What is wrong with one field. The message never quotes the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    pub field: String,
    pub code: &'static str,
    /// A predicate: it reads on from the field's name.
    pub message: String,
}

impl Fault {
    pub fn wrong(field: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Wrong, field: field.into(), code, message: message.into() }
    }

    pub fn too_large(field: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: FaultKind::TooLarge, ..Self::wrong(field, code, message) }
    }

    pub fn unacceptable(field: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Unacceptable, ..Self::wrong(field, code, message) }
    }
}

/// Something that was mended or is worth knowing; the email is taken all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub field: String,
    pub code: &'static str,
    pub message: String,
}

/// The code of a refusal whose faults have different codes.
pub const VALIDATION_FAILED: &str = "VALIDATION_FAILED";

/// Several faults in one: what the refusal as a whole is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub kind: FaultKind,
    pub code: &'static str,
    pub detail: String,
}

/// A refusal has the code of its faults when they agree, so that one fault can be told by the code alone.
pub fn sum_up(faults: &[Fault]) -> Verdict {
    let Some(first) = faults.first() else {
        return Verdict {
            kind: FaultKind::Wrong,
            code: VALIDATION_FAILED,
            detail: "the request is wrong".into(),
        };
    };
    let same_code = faults.iter().all(|fault| fault.code == first.code);
    let same_kind = faults.iter().all(|fault| fault.kind == first.kind);
    let mut detail = if first.field.is_empty() {
        first.message.clone()
    } else {
        format!("{} {}", first.field, first.message)
    };
    match faults.len() - 1 {
        0 => {}
        1 => detail.push_str(" (and one more fault, see errors)"),
        more => {
            let _ = write!(detail, " (and {more} more faults, see errors)");
        }
    }
    Verdict {
        kind: if same_kind { first.kind } else { FaultKind::Wrong },
        code: if same_code { first.code } else { VALIDATION_FAILED },
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_summed_up() {
        let subject = || Fault::wrong("subject", "INVALID_SUBJECT", "is empty");
        let html = || Fault::too_large("html", "HTML_TOO_LARGE", "is too large");
        let cases = [
            ("one", vec![subject()], FaultKind::Wrong, "INVALID_SUBJECT", "subject is empty"),
            ("too large", vec![html()], FaultKind::TooLarge, "HTML_TOO_LARGE", "html is too large"),
            (
                "mixed",
                vec![html(), subject()],
                FaultKind::Wrong,
                VALIDATION_FAILED,
                "html is too large (and one more fault, see errors)",
            ),
        ];
        for (case, faults, kind, code, detail) in cases {
            assert_eq!(sum_up(&faults), Verdict { kind, code, detail: detail.into() }, "{case}");
        }
    }
}
