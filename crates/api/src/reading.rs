//! Emails read as the API reads them, for commands that hand in many without a network between: the same fields, the same
//! limits, the same words for what is wrong. What is read goes to `gateway::accept`, as from a handler.

use gateway::accept::draft::{Draft, Fault, OnSuppressed, When};
use model::email::Wishes;
use model::{KeyMode, Timestamp};
use serde_json::{Value, json};

use crate::error::{self, Problem};
use crate::json as json_body;
use crate::state::ApiSettings;
use crate::v1::draft::Options;
use crate::v1::{draft, raw};

/// An email that could be read.
#[derive(Debug)]
pub struct Reading {
    pub draft: Draft,
    /// What belongs to its idempotency key.
    pub body_hash: [u8; 32],
    /// What names it by what it says.
    pub digest: [u8; 32],
}

/// Why an email is refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    pub code: &'static str,
    /// One sentence a person understands; it never quotes the email.
    pub detail: String,
    pub faults: Vec<Fault>,
}

impl Refusal {
    pub fn new(code: &'static str, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), faults: Vec::new() }
    }

    /// As in an answer of the API.
    pub fn errors_json(&self) -> Value {
        Value::from(self.faults.iter().map(error::fault_json).collect::<Vec<_>>())
    }

    pub fn to_json(&self) -> Value {
        json!({ "code": self.code, "detail": self.detail, "errors": self.errors_json() })
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self { code: problem.code, detail: problem.detail.into_owned(), faults: problem.errors }
    }
}

impl From<Vec<Fault>> for Refusal {
    fn from(faults: Vec<Fault>) -> Self {
        Problem::from(faults).into()
    }
}

/// The longest body of one email.
pub fn body_bytes_max(attachments_bytes_max: usize) -> usize {
    ApiSettings { attachments_bytes_max, ..ApiSettings::default() }.send_body_bytes_max()
}

/// The body of a send.
pub fn read_send(
    body: &[u8],
    mode: KeyMode,
    attachments_bytes_max: usize,
    now: Timestamp,
) -> Result<Reading, Refusal> {
    let body = json_body::read(body)?;
    let context = ["send", mode.as_str()];
    let body_hash = json_body::canonical_hash(&context, &body);
    let digest = json_body::canonical_digest(&context, &body);
    let draft = draft::read(body, attachments_bytes_max, now)?;
    Ok(Reading { draft, body_hash, digest })
}

/// An .eml, sent now and treated like any other email.
pub fn read_eml(eml: &[u8], mode: KeyMode) -> Result<Reading, Refusal> {
    let plain = Options {
        external_id: None,
        priority: None,
        when: When::Now,
        ttl: None,
        wishes: Wishes::default(),
        on_suppressed: OnSuppressed::default(),
    };
    let context = ["raw", mode.as_str(), ""];
    let body_hash = json_body::bytes_hash(&context, eml);
    let digest = json_body::bytes_digest(&context, eml);
    Ok(Reading { draft: raw::draft_of(eml, plain)?, body_hash, digest })
}

#[cfg(test)]
mod tests {
    use testkit::START;

    use super::*;

    #[test]
    fn a_send_is_read_or_refused_in_the_words_of_the_api() {
        type Refusal = (&'static str, &'static str);
        let cases: &[(&str, Result<(), Refusal>)] = &[
            (r#"{"to":"ana@example.com","subject":"Hi","html":"<p>x</p>"}"#, Ok(())),
            ("{", Err(("INVALID_JSON", "the body is not the JSON expected"))),
            ("[]", Err(("INVALID_TYPE", ""))),
            (r#"{"subject":"Hi","html":"<p>x</p>"}"#, Err(("REQUIRED", "to is required"))),
            (
                r#"{"to":"ana@example.com","subject":"Hi","html":"<p>x</p>","sujet":1}"#,
                Err(("UNKNOWN_FIELD", "sujet")),
            ),
        ];
        for (body, expected) in cases {
            let read = read_send(body.as_bytes(), KeyMode::Live, 1024, START);
            match (read, expected) {
                (Ok(_), Ok(())) => {}
                (Err(refusal), Err((code, detail))) => {
                    assert!(
                        refusal.code == *code && refusal.detail.starts_with(detail),
                        "{body}: {refusal:?}"
                    );
                }
                (read, _) => panic!("{body}: {read:?}"),
            }
        }
    }

    #[test]
    fn the_same_email_has_the_same_hash_however_it_is_written() {
        let hash = |body: &str, mode| {
            let reading = read_send(body.as_bytes(), mode, 1024, START).expect("read");
            (reading.body_hash, reading.digest)
        };
        let one = r#"{"to":"ana@example.com","subject":"Hi","html":"<p>x</p>"}"#;
        let same = r#" {"html":"<p>x</p>", "subject":"Hi", "to":"ana@example.com"} "#;
        let other = r#"{"to":"bob@example.com","subject":"Hi","html":"<p>x</p>"}"#;
        assert_eq!(hash(one, KeyMode::Live), hash(same, KeyMode::Live));
        assert_ne!(hash(one, KeyMode::Live), hash(other, KeyMode::Live));
        assert_ne!(hash(one, KeyMode::Live), hash(one, KeyMode::Test));
    }

    #[test]
    fn an_eml_names_its_envelope_itself() {
        let eml = b"From: a@acme.com\r\nTo: ana@example.com\r\nSubject: Hi\r\n\r\nHello\r\n";
        let reading = read_eml(eml, KeyMode::Live).expect("read");
        assert_eq!(reading.draft.envelope.to.expose(), "ana@example.com");
        let refusal =
            read_eml(b"Subject: Hi\r\n\r\nHello\r\n", KeyMode::Live).expect_err("nobody to send it to");
        assert_eq!(refusal.code, "INVALID_MESSAGE");
    }
}
