//! An email as SES takes it: as subject and bodies where that says it all, else as a message of our own making.

use std::borrow::Cow;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use message::ID_HEADER;
use model::email::Outgoing;
use model::{Address, Content as EmailContent, Envelope};
use serde::{Serialize, Serializer};

use crate::errors::Mishap;

/// SES's own limits on headers beside subject and bodies; one is ours.
const HEADERS_MAX: usize = 15 - 1;
const HEADER_VALUE_LENGTH_MAX: usize = 995;
const HEADER_LENGTH_MAX: usize = 996;
/// Room for everything but the content. Too little is no harm.
const REST_BYTES: usize = 2 * 1024;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SendEmail<'x> {
    from_email_address: String,
    destination: Destination<'x>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reply_to_addresses: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration_set_name: Option<&'x str>,
    email_tags: Vec<Pair<'x>>,
    content: Content<'x>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Destination<'x> {
    to_addresses: [&'x str; 1],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cc_addresses: Vec<&'x str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bcc_addresses: Vec<&'x str>,
}

/// A tag or a header.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Pair<'x> {
    name: Cow<'x, str>,
    value: Cow<'x, str>,
}

#[derive(Serialize)]
enum Content<'x> {
    Simple(Simple<'x>),
    Raw(Raw),
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Simple<'x> {
    subject: Text<'x>,
    body: Body<'x>,
    headers: Vec<Pair<'x>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Body<'x> {
    html: Text<'x>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Text<'x>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Text<'x> {
    data: &'x str,
    charset: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Raw {
    #[serde(serialize_with = "in_base64")]
    data: Vec<u8>,
}

/// What SendEmail is told, in JSON. The bodies are copied once, from the email into this.
pub fn body(email: &Outgoing, configuration_set: Option<&str>) -> Result<Vec<u8>, Mishap> {
    let content = content(email)?;
    let mut json = Vec::with_capacity(content.bytes() + REST_BYTES);
    let call = SendEmail {
        from_email_address: message::mailbox_in_ascii(&email.from),
        destination: destination(&email.envelope),
        reply_to_addresses: reply_to(email),
        configuration_set_name: configuration_set,
        email_tags: tags(email),
        content,
    };
    serde_json::to_writer(&mut json, &call).map_err(|error| Mishap::Unfit(error.to_string()))?;
    Ok(json)
}

/// Everybody who gets it. Nobody is named twice, so that nobody gets it twice.
fn destination(envelope: &Envelope) -> Destination<'_> {
    let mut known = vec![&envelope.to];
    let cc_addresses = only_new(&mut known, &envelope.cc);
    let bcc_addresses = only_new(&mut known, &envelope.bcc);
    Destination { to_addresses: [envelope.to.expose()], cc_addresses, bcc_addresses }
}

fn only_new<'x>(known: &mut Vec<&'x Address>, addresses: &'x [Address]) -> Vec<&'x str> {
    let mut new = Vec::new();
    for address in addresses {
        if !known.iter().any(|known| known.same_mailbox(address)) {
            known.push(address);
            new.push(address.expose());
        }
    }
    new
}

fn tags(email: &Outgoing) -> Vec<Pair<'_>> {
    let tag = |(name, value): (String, String)| Pair { name: name.into(), value: value.into() };
    provider::tags(email).into_iter().map(tag).collect()
}

/// The reply-to address travels beside a simple message and inside a raw one.
fn reply_to(email: &Outgoing) -> Vec<String> {
    let mailbox = email.envelope.reply_to.as_ref().filter(|_| simple(email).is_some());
    mailbox.map(message::mailbox_in_ascii).into_iter().collect()
}

fn content(email: &Outgoing) -> Result<Content<'_>, Mishap> {
    if let Some((html, text)) = simple(email) {
        return Ok(Content::Simple(simple_content(email, html, text)));
    }
    let eml = message::render(email).map_err(|error| Mishap::Unfit(error.to_string()))?;
    Ok(Content::Raw(Raw { data: eml }))
}

impl Content<'_> {
    /// About how many bytes it becomes, if nothing has to be escaped.
    fn bytes(&self) -> usize {
        match self {
            Self::Simple(simple) => {
                let text = simple.body.text.as_ref().map_or(0, |text| text.data.len());
                // An eighth more: attributes have quotes.
                (simple.body.html.data.len() + text) / 8 * 9
            }
            Self::Raw(raw) => raw.data.len() / 3 * 4,
        }
    }
}

fn in_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Base64Display::new(bytes, &STANDARD))
}

/// The bodies of an email that needs no message of our own making.
fn simple(email: &Outgoing) -> Option<(&str, Option<&str>)> {
    match &email.content {
        EmailContent::Composed { html, text, attachments }
            if attachments.is_empty() && headers_are_simple(&email.envelope) =>
        {
            Some((html, text.as_deref()))
        }
        _ => None,
    }
}

/// Whether SES takes the headers as they are: printable ASCII, not too long, not too many, each once.
fn headers_are_simple(envelope: &Envelope) -> bool {
    let headers = &envelope.headers;
    let is_simple = |name: &str, value: &str| {
        message::check_header(name, value).is_ok()
            && !value.is_empty()
            && value.bytes().all(|byte| matches!(byte, b' '..=b'~'))
            && value.len() <= HEADER_VALUE_LENGTH_MAX
            && name.len() + value.len() <= HEADER_LENGTH_MAX
            && headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name)).count() == 1
    };
    headers.len() <= HEADERS_MAX && headers.iter().all(|(name, value)| is_simple(name, value.expose()))
}

fn simple_content<'x>(email: &'x Outgoing, html: &'x str, text: Option<&'x str>) -> Simple<'x> {
    let utf8 = |data| Text { data, charset: "UTF-8" };
    let ours = Pair { name: ID_HEADER.into(), value: email.id.to_string().into() };
    let given = email.envelope.headers.iter();
    let given = given.map(|(name, value)| Pair { name: name.into(), value: value.expose().into() });
    Simple {
        subject: utf8(email.envelope.subject.expose()),
        body: Body { html: utf8(html), text: text.map(utf8) },
        headers: std::iter::once(ours).chain(given).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Secret;
    use testkit::{a_company, an_attachment, an_email, an_outgoing};

    fn outgoing() -> Outgoing {
        an_outgoing(an_email(a_company("acme").id), "shop@acme.test")
    }

    fn with_headers(headers: &[(&str, &str)]) -> Outgoing {
        let mut email = outgoing();
        let header = |(name, value): &(&str, &str)| ((*name).to_owned(), Secret::new((*value).to_owned()));
        email.envelope.headers = headers.iter().map(header).collect();
        email
    }

    #[test]
    fn simple_where_that_says_it_all() {
        let long = "x".repeat(HEADER_VALUE_LENGTH_MAX);
        let names: Vec<String> = (0..=HEADERS_MAX).map(|n| format!("X-{n}")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
        let attached = {
            let mut email = outgoing();
            let attachments = vec![an_attachment("a.pdf", None)];
            email.content = EmailContent::Composed { html: "x".into(), text: None, attachments };
            email
        };
        let eml = Outgoing { content: EmailContent::Raw(b"To: a@b.com\r\n\r\n".to_vec()), ..outgoing() };
        let cases = [
            ("no headers", outgoing(), true),
            ("a header", with_headers(&[("X-Order", "42")]), true),
            ("a header twice", with_headers(&[("X-Order", "42"), ("x-order", "43")]), false),
            ("a header outside ASCII", with_headers(&[("X-Name", "João")]), false),
            ("a header with a tab", with_headers(&[("X-Name", "a\tb")]), false),
            ("an empty header", with_headers(&[("X-Name", "")]), false),
            ("a header that fits", with_headers(&[("X", &long)]), true),
            ("a header that does not fit", with_headers(&[("X-", &long)]), false),
            ("as many headers as fit", with_headers(&many[1..]), true),
            ("one header too many", with_headers(&many), false),
            ("an attachment", attached, false),
            ("an .eml", eml, false),
        ];
        for (case, email, is_simple) in cases {
            let content = content(&email).expect("content");
            assert_eq!(matches!(content, Content::Simple(_)), is_simple, "{case}");
        }
    }

    #[test]
    fn a_header_of_ours_cannot_be_given() {
        let email = with_headers(&[("Bcc", "eva@example.com")]);
        assert!(matches!(content(&email), Err(Mishap::Unfit(_))));
    }
}
