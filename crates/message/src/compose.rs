//! An email composed of html, text and attachments, made into MIME:
//!
//!     mixed( alternative( text, related( html, inline images ) ), attachments )
//!
//! with every layer left out that has nothing to hold. The builder encodes; what it would pass through is checked or
//! normalised here first, so that no value can become a header and no line is too long or holds a bare CR.

use std::borrow::Cow;

use mail_builder::MessageBuilder;
use mail_builder::headers::HeaderType;
use mail_builder::headers::address::Address;
use mail_builder::headers::content_type::ContentType;
use mail_builder::headers::date::Date;
use mail_builder::headers::message_id::MessageId;
use mail_builder::headers::raw::Raw;
use mail_builder::mime::{BodyPart, MimePart};
use model::email::Outgoing;
use model::{Attachment, Mailbox};

use crate::header::{self, InvalidHeader, check_header};
use crate::{ID_HEADER, lines};

const CONTENT_TYPE_LENGTH_MAX: usize = 200;
const CONTENT_ID_LENGTH_MAX: usize = 200;

/// Why an email cannot be made into a message. The edge checks all of this; it is checked again because what is
/// wrong here would be somebody else's header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    #[error(transparent)]
    Header(#[from] InvalidHeader),
    #[error("{0} holds a line break or a control character")]
    ControlCharacter(&'static str),
    #[error("an attachment's content type must be such as image/png or text/csv; charset=utf-8")]
    ContentType,
    #[error("an attachment's content id must be printable ASCII without blanks and angle brackets")]
    ContentId,
}

pub fn render(
    email: &Outgoing,
    html: &str,
    text: Option<&str>,
    attachments: &[Attachment],
) -> Result<Vec<u8>, RenderError> {
    let body = body(email, html, text, attachments)?;
    let mut eml = Vec::new();
    with_headers(email)?.body(body).serialize(&mut eml);
    if !eml.ends_with(b"\r\n") {
        eml.extend_from_slice(b"\r\n");
    }
    Ok(eml)
}

/// Whether an attachment can go into a message.
pub fn check_attachment(attachment: &Attachment) -> Result<(), RenderError> {
    no_control("an attachment's file name", &attachment.filename)?;
    content_type(&attachment.content_type)?;
    attachment.content_id.as_deref().map_or(Ok(()), |id| content_id(id).map(drop))
}

/// Without brackets. Made of the email's id alone, so that it is the same at every attempt.
pub fn message_id(email: &Outgoing) -> String {
    format!("{}@{}", email.id, email.from.address.domain())
}

fn with_headers(email: &Outgoing) -> Result<MessageBuilder<'_>, RenderError> {
    let envelope = &email.envelope;
    let subject = envelope.subject.expose();
    no_control("the subject", subject)?;
    let mut message = MessageBuilder::new()
        .header(ID_HEADER, Raw::new(email.id.to_string()))
        .from(address("the sender's name", &email.from)?)
        .to(plain(&envelope.to));
    if !envelope.cc.is_empty() {
        message = message.cc(Address::new_list(envelope.cc.iter().map(plain).collect()));
    }
    if let Some(reply_to) = &envelope.reply_to {
        message = message.reply_to(address("the reply-to name", reply_to)?);
    }
    message = message
        .header("Subject", header::subject(subject))
        .date(Date::new(email.created_at.millis().div_euclid(1000)))
        .header("Message-ID", MessageId::new(message_id(email)));
    for (name, value) in &envelope.headers {
        check_header(name, value.expose())?;
        message = message.header(name.as_str(), header::custom(value.expose()));
    }
    Ok(message)
}

fn body<'x>(
    email: &Outgoing,
    html: &'x str,
    text: Option<&'x str>,
    attachments: &'x [Attachment],
) -> Result<MimePart<'x>, RenderError> {
    let (inline, attached): (Vec<_>, Vec<_>) =
        attachments.iter().partition(|attachment| attachment.content_id.is_some());
    let mut body = text_part("text/html", html);
    if !inline.is_empty() {
        let images = inline.into_iter().map(attachment_part).collect::<Result<Vec<_>, _>>()?;
        let related = multipart(email, "related").attribute("type", "text/html");
        body = MimePart::new(related, [vec![body], images].concat());
    }
    if let Some(text) = text {
        body = MimePart::new(multipart(email, "alternative"), vec![text_part("text/plain", text), body]);
    }
    if !attached.is_empty() {
        let files = attached.into_iter().map(attachment_part).collect::<Result<Vec<_>, _>>()?;
        body = MimePart::new(multipart(email, "mixed"), [vec![body], files].concat());
    }
    Ok(body)
}

/// The boundary is the email's own: the same at every attempt, and `=_` is in no quoted-printable or base64 text.
fn multipart(email: &Outgoing, kind: &str) -> ContentType<'static> {
    ContentType::new(format!("multipart/{kind}"))
        .attribute("boundary", format!("=_{kind}_{}", email.id.uuid().simple()))
}

/// Text in the cheapest encoding that survives, or base64 where it holds bytes that mail servers stumble over and
/// that the builder would pass through.
fn text_part<'x>(content_type: &'static str, text: &'x str) -> MimePart<'x> {
    if text.bytes().any(|byte| byte.is_ascii_control() && !matches!(byte, b'\t' | b'\r' | b'\n')) {
        return base64_part(format!("{content_type}; charset=\"utf-8\""), text.as_bytes());
    }
    let text = match lines::normalised(text.as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => {
            let normal = String::from_utf8_lossy(&bytes);
            let ended = text.ends_with(['\r', '\n']);
            Cow::Owned(normal[..normal.len() - if ended { 0 } else { 2 }].to_owned())
        }
    };
    MimePart::new(content_type, BodyPart::Text(text))
}

fn attachment_part(attachment: &Attachment) -> Result<MimePart<'_>, RenderError> {
    check_attachment(attachment)?;
    let bytes = attachment.bytes.expose();
    let mut content_type = content_type(&attachment.content_type)?;
    if content_type.starts_with("text/") && !content_type.contains(';') && !bytes.is_ascii() {
        // Text that does not say so is ASCII to whoever opens it.
        let charset = std::str::from_utf8(bytes).map_or("", |_| "; charset=utf-8");
        content_type.push_str(charset);
    }
    let mut part = base64_part(content_type, bytes);
    let kind = if attachment.content_id.is_some() { "inline" } else { "attachment" };
    let mut disposition = ContentType::new(kind);
    if !attachment.filename.is_empty() {
        disposition = disposition.attribute("filename", attachment.filename.as_str());
    }
    part = part.header("Content-Disposition", disposition);
    if let Some(id) = &attachment.content_id {
        part = part.cid(content_id(id)?);
    }
    Ok(part)
}

/// A part in base64, byte for byte. Its type is written as a raw header because the builder takes a part whose type
/// it knows as text for text, and may then send it as it is, bare CR and all.
fn base64_part(content_type: String, bytes: &[u8]) -> MimePart<'_> {
    MimePart {
        headers: vec![("Content-Type".into(), HeaderType::Raw(Raw::new(content_type)))],
        contents: BodyPart::Binary(bytes.into()),
    }
}

/// The content type to declare. Multiparts and messages may not be in base64 (RFC 2046), so they travel as files.
fn content_type(text: &str) -> Result<String, RenderError> {
    let mut pieces = text.split(';').map(str::trim);
    let kind = pieces.next().and_then(|kind| kind.split_once('/'));
    let (kind, subtype) = kind.ok_or(RenderError::ContentType)?;
    let is_fine = text.len() <= CONTENT_TYPE_LENGTH_MAX
        && is_token(kind)
        && is_token(subtype)
        && pieces.clone().all(is_parameter);
    if !is_fine {
        return Err(RenderError::ContentType);
    }
    let kind = kind.to_ascii_lowercase();
    if kind == "multipart" || kind == "message" {
        return Ok("application/octet-stream".into());
    }
    Ok(pieces.fold(format!("{kind}/{subtype}"), |full, parameter| format!("{full}; {parameter}")))
}

fn is_parameter(text: &str) -> bool {
    let Some((name, value)) = text.split_once('=') else {
        return false;
    };
    let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    let is_quotable = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    is_token(name) && quoted.map_or_else(|| is_token(value), |value| value.bytes().all(is_quotable))
}

/// A word as RFC 2045 has it.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&byte))
}

/// The id without the brackets some callers put around it.
fn content_id(id: &str) -> Result<&str, RenderError> {
    let id = id.strip_prefix('<').and_then(|id| id.strip_suffix('>')).unwrap_or(id);
    let is_fine = |byte: u8| byte.is_ascii_graphic() && !b"<>\"()".contains(&byte);
    if id.is_empty() || id.len() > CONTENT_ID_LENGTH_MAX || !id.bytes().all(is_fine) {
        return Err(RenderError::ContentId);
    }
    Ok(id)
}

fn address<'x>(what: &'static str, mailbox: &'x Mailbox) -> Result<Address<'x>, RenderError> {
    let name = mailbox.name.as_ref().map(|name| name.expose().as_str());
    no_control(what, name.unwrap_or_default())?;
    Ok(Address::new_address(name, mailbox.address.expose()))
}

fn plain(address: &model::Address) -> Address<'_> {
    Address::new_address(None::<&str>, address.expose())
}

fn no_control(what: &'static str, text: &str) -> Result<(), RenderError> {
    if text.chars().any(char::is_control) { Err(RenderError::ControlCharacter(what)) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
