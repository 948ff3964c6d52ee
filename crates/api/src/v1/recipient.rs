//! The recipient of a send: at least one identifier, its address that of `to`, its document never in clear
//! anywhere but in its own field.

use gateway::accept::draft::{DraftDocument, DraftRecipient};
use model::document::Document;
use model::{Address, RecipientId, Secret};

use super::draft::own_text;
use crate::form::{At, Form};
use crate::limits::{ID_LENGTH_MAX, NAME_LENGTH_MAX};

pub const FIELDS: &[&str] =
    &["recipientId", "externalId", "cpfCnpj", "cpfCnpjHash", "razaoSocial", "nome", "email"];

const IDENTIFIERS: [&str; 4] = ["recipientId", "externalId", "cpfCnpj", "cpfCnpjHash"];

pub fn read(form: &mut Form<'_>, to: Option<&Address>) -> Option<DraftRecipient> {
    let value = form.take("recipient")?;
    let root = At::Root;
    let mut inner = Form::open(value, At::Field(&root, "recipient"), FIELDS, form.faults())?;
    if !IDENTIFIERS.iter().any(|name| inner.has(name)) {
        form.fault(
            "recipient",
            "RECIPIENT_IDENTIFIER_REQUIRED",
            "needs at least one of recipientId, externalId, cpfCnpj and cpfCnpjHash",
        );
    }
    if let (Some(email), Some(to)) = (inner.address("email"), to)
        && !email.same_mailbox(to)
    {
        inner.fault("email", "RECIPIENT_EMAIL_MISMATCH", "must be the same address as to");
    }
    let recipient = DraftRecipient {
        id: recipient_id(&mut inner),
        external_id: own_text(&mut inner, "externalId", ID_LENGTH_MAX),
        document: document(&mut inner),
        legal_name: own_text(&mut inner, "razaoSocial", NAME_LENGTH_MAX).map(Secret::new),
        name: own_text(&mut inner, "nome", NAME_LENGTH_MAX).map(Secret::new),
    };
    inner.finish();
    Some(recipient)
}

fn recipient_id(form: &mut Form<'_>) -> Option<RecipientId> {
    let text = form.text("recipientId")?;
    text.parse().map_err(|_| form.fault("recipientId", "INVALID_ID", "must be a UUID with its hyphens")).ok()
}

fn document(form: &mut Form<'_>) -> Option<DraftDocument> {
    let number = form.text("cpfCnpj");
    let hash = form.text("cpfCnpjHash").and_then(|hash| {
        let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash {
            form.fault("cpfCnpjHash", "INVALID_HASH", "must be a SHA-256 as 64 hexadecimal digits");
        }
        is_hash.then(|| hash.to_ascii_lowercase())
    });
    let Some(number) = number else {
        return hash.map(|hash| DraftDocument::Hash(Secret::new(hash)));
    };
    let document = Document::parse(&number)
        .map_err(|reason| form.fault("cpfCnpj", "INVALID_DOCUMENT", format!("is {reason}")))
        .ok()?;
    if hash.is_some_and(|hash| hash != document.sha256_hex()) {
        form.fault("cpfCnpjHash", "CONFLICTING_FIELDS", "is not the hash of cpfCnpj; give one of them");
    }
    Some(DraftDocument::Number(document))
}
