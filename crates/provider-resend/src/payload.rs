//! An email as the JSON of `POST /emails`. The same email gives the same bytes at every attempt: Resend knows a request
//! again by its key and refuses the key with another payload.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use message::{ID_HEADER, mailbox_in_utf8};
use model::email::Outgoing;
use model::{Address, Attachment, Content, Envelope};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::eml;
use crate::errors::Mishap;

#[derive(Debug, Serialize)]
pub struct Payload<'x> {
    pub from: String,
    pub to: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bcc: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<Vec<String>>,
    pub subject: &'x str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    pub headers: Map<String, Value>,
    pub tags: Vec<Tag>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<File>,
}

#[derive(Debug, Serialize)]
pub struct Tag {
    name: String,
    value: String,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct File {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// In base64.
    pub content: String,
    pub content_type: String,
    /// Makes it an inline image that the html names by `cid:`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_id: Option<String>,
}

/// The body of the request.
pub fn payload(email: &Outgoing) -> Result<Vec<u8>, Mishap> {
    let payload = match &email.content {
        Content::Composed { html, text, attachments } => {
            let mut payload = addressed(email)?;
            payload.html = Some(html.clone());
            payload.text.clone_from(text);
            payload.attachments = attachments.iter().map(file).collect::<Result<_, _>>()?;
            payload
        }
        Content::Raw(_) => eml::fill(addressed(email)?, email)?,
    };
    serde_json::to_vec(&payload).map_err(|error| Mishap::Unfit(error.to_string()))
}

/// The key by which Resend knows a request again: the email, and after a replay the series of attempts too.
pub fn idempotency_key(email: &Outgoing) -> String {
    match email.series {
        0 => email.id.to_string(),
        series => format!("{}-{series}", email.id),
    }
}

/// Everything but the content. Nobody is named twice, so that nobody gets it twice.
fn addressed(email: &Outgoing) -> Result<Payload<'_>, Mishap> {
    let envelope = &email.envelope;
    let (cc, bcc) = copies(envelope);
    let mut headers = Map::new();
    headers.insert(ID_HEADER.into(), email.id.to_string().into());
    for (name, value) in &envelope.headers {
        message::check_header(name, value.expose()).map_err(|error| Mishap::Unfit(error.to_string()))?;
        add_header(&mut headers, name, value.expose());
    }
    let tags = provider::tags(email).into_iter().map(|(name, value)| Tag { name, value }).collect();
    Ok(Payload {
        from: mailbox_in_utf8(&email.from),
        to: vec![text(&envelope.to)],
        cc: cc.into_iter().map(text).collect(),
        bcc: bcc.into_iter().map(text).collect(),
        reply_to: envelope.reply_to.as_ref().map(|mailbox| vec![mailbox_in_utf8(mailbox)]),
        subject: envelope.subject.expose(),
        html: None,
        text: None,
        headers,
        tags,
        attachments: vec![],
    })
}

/// Who else gets it: openly, and hidden.
pub fn copies(envelope: &Envelope) -> (Vec<&Address>, Vec<&Address>) {
    let mut known = vec![&envelope.to];
    let cc = only_new(&mut known, &envelope.cc);
    (cc, only_new(&mut known, &envelope.bcc))
}

fn only_new<'x>(known: &mut Vec<&'x Address>, addresses: &'x [Address]) -> Vec<&'x Address> {
    let mut new = Vec::new();
    for address in addresses {
        if !known.iter().any(|known| known.same_mailbox(address)) {
            known.push(address);
            new.push(address);
        }
    }
    new
}

fn text(address: &Address) -> String {
    address.expose().to_owned()
}

/// Resend takes each header once: the values of one that comes twice are joined, as in a list.
pub fn add_header(headers: &mut Map<String, Value>, name: &str, value: &str) {
    let value = value.trim();
    let known = headers.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name));
    match known {
        Some((_, Value::String(first))) => {
            first.push_str(", ");
            first.push_str(value);
        }
        _ => {
            headers.insert(name.to_owned(), value.into());
        }
    }
}

fn file(attachment: &Attachment) -> Result<File, Mishap> {
    message::check_attachment(attachment).map_err(|error| Mishap::Unfit(error.to_string()))?;
    let bare = |id: &String| {
        id.strip_prefix('<').and_then(|id| id.strip_suffix('>')).unwrap_or(id.as_str()).to_owned()
    };
    Ok(File {
        filename: (!attachment.filename.is_empty()).then(|| attachment.filename.clone()),
        content: STANDARD.encode(attachment.bytes.expose()),
        content_type: attachment.content_type.clone(),
        content_id: attachment.content_id.as_ref().map(bare),
    })
}
