//! An email as SES takes it: as subject and bodies where that says it all, else as a message of our own making.

use aws_sdk_sesv2::error::BuildError;
use aws_sdk_sesv2::primitives::Blob;
use aws_sdk_sesv2::types::{
    Body, Content, Destination, EmailContent, Message, MessageHeader, MessageTag, RawMessage,
};
use message::ID_HEADER;
use model::email::Outgoing;
use model::{Address, Content as EmailContentOf, Envelope};

use crate::errors::Mishap;

/// SES's own limits on headers beside subject and bodies; one is ours.
const HEADERS_MAX: usize = 15 - 1;
const HEADER_VALUE_LENGTH_MAX: usize = 995;
const HEADER_LENGTH_MAX: usize = 996;

/// Everybody who gets it. Nobody is named twice, so that nobody gets it twice.
pub fn destination(envelope: &Envelope) -> Destination {
    let mut known = vec![&envelope.to];
    let cc = only_new(&mut known, &envelope.cc);
    let bcc = only_new(&mut known, &envelope.bcc);
    Destination::builder()
        .to_addresses(envelope.to.expose())
        .set_cc_addresses((!cc.is_empty()).then_some(cc))
        .set_bcc_addresses((!bcc.is_empty()).then_some(bcc))
        .build()
}

fn only_new<'x>(known: &mut Vec<&'x Address>, addresses: &'x [Address]) -> Vec<String> {
    let mut new = Vec::new();
    for address in addresses {
        if !known.iter().any(|known| known.same_mailbox(address)) {
            known.push(address);
            new.push(address.expose().to_owned());
        }
    }
    new
}

pub fn tags(email: &Outgoing) -> Result<Vec<MessageTag>, Mishap> {
    let tag = |(name, value)| MessageTag::builder().name(name).value(value).build().map_err(unfit);
    provider::tags(email).into_iter().map(tag).collect()
}

/// The reply-to address travels beside a simple message and inside a raw one.
pub fn reply_to(email: &Outgoing) -> Option<Vec<String>> {
    let mailbox = email.envelope.reply_to.as_ref().filter(|_| simple(email).is_some())?;
    Some(vec![message::mailbox_in_ascii(mailbox)])
}

pub fn content(email: &Outgoing) -> Result<EmailContent, Mishap> {
    if let Some((html, text)) = simple(email) {
        return simple_content(email, html, text).map_err(unfit);
    }
    let eml = message::render(email).map_err(|error| Mishap::Unfit(error.to_string()))?;
    let raw = RawMessage::builder().data(Blob::new(eml)).build().map_err(unfit)?;
    Ok(EmailContent::builder().raw(raw).build())
}

/// The bodies of an email that needs no message of our own making.
fn simple(email: &Outgoing) -> Option<(&str, Option<&str>)> {
    match &email.content {
        EmailContentOf::Composed { html, text, attachments }
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

fn simple_content(email: &Outgoing, html: &str, text: Option<&str>) -> Result<EmailContent, BuildError> {
    let utf8 = |data: &str| Content::builder().data(data).charset("UTF-8").build();
    let mut body = Body::builder().html(utf8(html)?);
    if let Some(text) = text {
        body = body.text(utf8(text)?);
    }
    let id = email.id.to_string();
    let mut message = Message::builder()
        .subject(utf8(email.envelope.subject.expose())?)
        .body(body.build())
        .headers(MessageHeader::builder().name(ID_HEADER).value(id).build()?);
    for (name, value) in &email.envelope.headers {
        message = message.headers(MessageHeader::builder().name(name).value(value.expose()).build()?);
    }
    Ok(EmailContent::builder().simple(message.build()).build())
}

fn unfit(error: BuildError) -> Mishap {
    Mishap::Unfit(error.to_string())
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
            email.content = EmailContentOf::Composed { html: "x".into(), text: None, attachments };
            email
        };
        let eml = Outgoing { content: EmailContentOf::Raw(b"To: a@b.com\r\n\r\n".to_vec()), ..outgoing() };
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
            assert_eq!(
                (content.simple().is_some(), content.raw().is_some()),
                (is_simple, !is_simple),
                "{case}"
            );
        }
    }

    #[test]
    fn a_header_of_ours_cannot_be_given() {
        let email = with_headers(&[("Bcc", "eva@example.com")]);
        assert!(matches!(content(&email), Err(Mishap::Unfit(_))));
    }
}
