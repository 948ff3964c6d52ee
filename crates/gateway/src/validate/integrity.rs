//! INTEGRITY: the claim is whole and within its limits. Not here: whether the html is fit to be sent (`template`)
//! and whether the recipient is who we think (`recipient`).

use model::address::ADDRESS_LENGTH_MAX;
use model::email::{COPIES_MAX, TAGS_MAX};
use model::{Address, Claim, Content, ErrorCode, Failure, Recipient};

use super::refusal;

pub fn check(claim: &Claim) -> Result<(), Failure> {
    match first_flaw(claim) {
        Some(flaw) => Err(refusal(ErrorCode::INVALID_PAYLOAD, flaw)),
        None => Ok(()),
    }
}

fn first_flaw(claim: &Claim) -> Option<String> {
    let envelope = &claim.envelope;
    if claim.attempt == 0 || claim.attempt_in_series == 0 {
        return Some("attempt must be 1 or more".into());
    }
    if !is_whole(&envelope.to) {
        return Some("to must be an address".into());
    }
    if !envelope.cc.iter().chain(&envelope.bcc).all(is_whole) {
        return Some("cc and bcc must be addresses".into());
    }
    if let Some((name, _)) = envelope.headers.iter().find(|(name, value)| {
        name.is_empty() || name.contains(':') || has_line_break(name) || has_line_break(value.expose())
    }) {
        return Some(format!("header {:?} is not one line", name.chars().take(64).collect::<String>()));
    }
    if claim.recipient.as_ref().is_some_and(|recipient| !is_identified(recipient)) {
        return Some("recipient must have an identifier".into());
    }
    over_limit(claim)
}

/// What an .eml holds was taken as it is; the limits are those of emails that we compose.
fn over_limit(claim: &Claim) -> Option<String> {
    let envelope = &claim.envelope;
    if matches!(claim.content, Some(Content::Raw(_))) {
        return None;
    }
    if envelope.subject.expose().is_empty() {
        return Some("subject must not be empty".into());
    }
    if has_line_break(envelope.subject.expose()) {
        return Some("subject must be one line".into());
    }
    let counts = [
        ("cc", envelope.cc.len(), COPIES_MAX),
        ("bcc", envelope.bcc.len(), COPIES_MAX),
        ("tags", envelope.tags.len(), TAGS_MAX),
    ];
    let (name, count, max) = counts.into_iter().find(|(_, count, max)| count > max)?;
    Some(format!("{name} has {count} entries, at most {max} are allowed"))
}

/// Addresses were parsed when the email was accepted; this notices a row that something else wrote.
fn is_whole(address: &Address) -> bool {
    let text = address.expose();
    text.len() <= ADDRESS_LENGTH_MAX
        && text.rsplit_once('@').is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty())
        && !text.chars().any(|c| c.is_control() || c == ' ')
}

fn is_identified(recipient: &Recipient) -> bool {
    recipient.id.is_some() || recipient.external_id.is_some() || recipient.document_hmac.is_some()
}

fn has_line_break(text: &str) -> bool {
    text.contains(['\r', '\n', '\0'])
}
