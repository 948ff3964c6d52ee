//! TEMPLATE: there is html, it is not blank, it and the subject are within their limits, and it carries no script
//! (`html`). An .eml may do without html; what it has must carry no script either.

use model::email::{HTML_BYTES_MAX, SUBJECT_LENGTH_MAX};
use model::{Claim, Content, ErrorCode, Failure};

use super::{html, refusal};

pub fn check(claim: &Claim) -> Result<(), Failure> {
    match &claim.content {
        None => Err(invalid("the content is gone")),
        Some(Content::Composed { html, .. }) => {
            check_subject(claim.envelope.subject.expose())?;
            check_html(html)
        }
        Some(Content::Raw(eml)) => check_raw(eml),
    }
}

/// Html that was composed by us or for us.
pub fn check_html(html: &str) -> Result<(), Failure> {
    if html.trim().is_empty() {
        return Err(invalid("the html is empty"));
    }
    if html.len() > HTML_BYTES_MAX {
        return Err(invalid(format!(
            "the html has {} bytes, at most {HTML_BYTES_MAX} are allowed",
            html.len()
        )));
    }
    check_policy(html)
}

/// The html inside an .eml, if it has any.
pub fn check_raw(eml: &[u8]) -> Result<(), Failure> {
    match message::html_of(eml) {
        Some(html) => check_policy(&html),
        None => Ok(()),
    }
}

fn check_subject(subject: &str) -> Result<(), Failure> {
    let length = subject.chars().count();
    if length > SUBJECT_LENGTH_MAX {
        let words = format!("the subject has {length} characters, at most {SUBJECT_LENGTH_MAX} are allowed");
        return Err(invalid(words));
    }
    Ok(())
}

fn check_policy(html: &str) -> Result<(), Failure> {
    html::check(html).map_err(|unsafe_html| invalid(unsafe_html.to_string()))
}

fn invalid(message: impl Into<String>) -> Failure {
    refusal(ErrorCode::INVALID_TEMPLATE, message)
}
