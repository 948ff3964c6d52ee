//! An .eml that was handed in, mapped onto what Resend takes: text, html, attachments and headers.
//!
//! Resend builds a message of its own, so this is not the .eml byte for byte, but a reader sees the same. The
//! alternative, to refuse every .eml, would fail those that come here because the provider before is down. What would
//! lose its meaning is refused with the reason: signed, encrypted and attached messages, invitations, several texts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mail_parser::{Addr, Address as Listed, Message, MessageParser, MessagePart, MimeHeaders, PartType};
use message::mailbox_in_utf8;
use model::email::Outgoing;
use model::{Address, Mailbox, Secret};

use crate::errors::Mishap;
use crate::payload::{File, Payload, add_header, copies};

/// Intake takes no message that is deeper.
const DEPTH_MAX: usize = message::DEPTH_MAX + 1;
/// Parts that may not be taken out of their message, whatever holds them.
const SEALED: &[&str] = &["application/pkcs7-mime", "application/x-pkcs7-mime", "application/pgp-encrypted"];

pub fn fill<'x>(mut payload: Payload<'x>, email: &'x Outgoing) -> Result<Payload<'x>, Mishap> {
    let eml = message::render(email).map_err(|error| Mishap::Unfit(error.to_string()))?;
    let parsed = MessageParser::new().parse(&eml).ok_or_else(|| unfit("it cannot be read"))?;
    let mut content = Content::default();
    content.walk(&parsed, 0, 0, "mixed")?;
    // What was checked when the email was accepted is what is sent: two readers must agree on it.
    if content.html.as_deref().map(str::trim) != message::html_of(&eml).as_deref().map(str::trim) {
        return Err(unfit("its html can be read in more than one way"));
    }
    if content.html.is_none() && content.text.is_none() {
        return Err(unfit("it has neither text nor html"));
    }
    for (name, value) in parsed.headers_raw() {
        let value: String = value.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        // Headers that say who, when and what are not passed on: Resend writes its own.
        if message::check_header(name, value.trim()).is_ok() {
            add_header(&mut payload.headers, name, &value);
        }
    }
    place(&mut payload, email, &parsed);
    let html = content.html.as_deref().unwrap_or_default();
    for file in &mut content.files {
        file.content_id = file.content_id.take().filter(|id| html.contains(&format!("cid:{id}")));
    }
    Ok(Payload { html: content.html, text: content.text, attachments: content.files, ..payload })
}

/// Who gets it stands in the envelope; the message says who is shown where, and under which name.
fn place(payload: &mut Payload<'_>, email: &Outgoing, parsed: &Message<'_>) {
    let envelope = &email.envelope;
    (payload.to, payload.cc) = (vec![], vec![]);
    for address in std::iter::once(&envelope.to).chain(copies(envelope).0) {
        let in_to = listed(parsed.to(), address);
        let in_cc = listed(parsed.cc(), address);
        let name = in_to.or(in_cc).and_then(|addr| addr.name.as_deref()).unwrap_or_default();
        let name = (!name.is_empty()).then(|| Secret::new(name.to_owned()));
        let mailbox = mailbox_in_utf8(&Mailbox { name, address: address.clone() });
        let is_first = *address == envelope.to;
        let place = if in_to.is_some() || is_first { &mut payload.to } else { &mut payload.cc };
        place.push(mailbox);
    }
}

fn listed<'x>(list: Option<&'x Listed<'x>>, address: &Address) -> Option<&'x Addr<'x>> {
    let is_same = |addr: &&Addr<'_>| {
        addr.address.as_deref().is_some_and(|text| text.eq_ignore_ascii_case(address.expose()))
    };
    list?.iter().find(is_same)
}

fn unfit(reason: &str) -> Mishap {
    Mishap::Unfit(reason.into())
}

#[derive(Debug, Default)]
struct Content {
    text: Option<String>,
    html: Option<String>,
    files: Vec<File>,
}

impl Content {
    fn walk(&mut self, parsed: &Message<'_>, part: usize, depth: usize, within: &str) -> Result<(), Mishap> {
        let part = parsed.parts.get(part).ok_or_else(|| unfit("it cannot be read"))?;
        let kind = kind(part);
        if part.is_encoding_problem {
            return Err(unfit("a part of it is not encoded as it says"));
        }
        if SEALED.contains(&kind.as_str()) {
            return Err(unfit("it is signed or encrypted"));
        }
        match &part.body {
            PartType::Multipart(children) => {
                let subtype = kind.strip_prefix("multipart/").unwrap_or_default();
                if !matches!(subtype, "mixed" | "alternative" | "related") || depth > DEPTH_MAX {
                    return Err(Mishap::Unfit(format!("it is or holds a {kind}")));
                }
                for child in children {
                    let child = usize::try_from(*child).unwrap_or(usize::MAX);
                    self.walk(parsed, child, depth + 1, subtype)?;
                }
                Ok(())
            }
            PartType::Message(_) => Err(unfit("a message is attached to it")),
            PartType::Html(html) if !is_file(part) => set(&mut self.html, html, "html"),
            PartType::Text(text) if !is_file(part) && kind == "text/plain" => {
                set(&mut self.text, text, "text")
            }
            _ if within == "alternative" => Err(Mishap::Unfit(format!("it offers {kind} beside its text"))),
            _ => {
                self.files.push(file(part, kind));
                Ok(())
            }
        }
    }
}

fn set(body: &mut Option<String>, text: &str, what: &str) -> Result<(), Mishap> {
    if body.is_some() {
        return Err(Mishap::Unfit(format!("it has more than one {what} part")));
    }
    *body = Some(text.to_owned());
    Ok(())
}

/// Such as `text/plain`, which is what a part is that does not say.
fn kind(part: &MessagePart<'_>) -> String {
    part.content_type().map_or_else(
        || "text/plain".into(),
        |kind| format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or("plain")).to_ascii_lowercase(),
    )
}

fn is_file(part: &MessagePart<'_>) -> bool {
    part.content_disposition().is_some_and(mail_parser::ContentType::is_attachment)
        || part.attachment_name().is_some()
}

fn file(part: &MessagePart<'_>, kind: String) -> File {
    // Text comes decoded: whatever charset it was in, it is UTF-8 now.
    let content_type = if part.is_text() { format!("{kind}; charset=utf-8") } else { kind };
    File {
        filename: part.attachment_name().map(str::to_owned),
        content: STANDARD.encode(part.contents()),
        content_type,
        content_id: part.content_id().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests;
