//! What is built and what is refused. Whether another implementation agrees is in `tests/process_parser.rs`.

use model::{Content, Envelope, Secret, Timestamp};
use testkit::{START, a_company, an_address, an_email};

use super::*;
use crate::{message_id, read_envelope, render};

/// The email of the tests; each changes what it is about.
fn outgoing(change: impl FnOnce(&mut Outgoing)) -> Outgoing {
    let email = an_email(a_company("acme").id);
    let mut outgoing = Outgoing {
        id: "019b76da-a800-7000-8000-0123456789ab".parse().expect("an id"),
        company: email.company,
        attempt: 1,
        series: 0,
        is_last_attempt: false,
        created_at: START,
        from: Mailbox::parse("Acme <shop@acme.com>").expect("a mailbox"),
        envelope: email.envelope,
        content: email.content,
    };
    change(&mut outgoing);
    outgoing
}

fn attachment(filename: &str, content_type: &str, content_id: Option<&str>) -> Attachment {
    Attachment {
        filename: filename.into(),
        content_type: content_type.into(),
        content_id: content_id.map(Into::into),
        bytes: Secret::new(b"bytes".to_vec()),
    }
}

fn composed(html: &str, text: Option<&str>, attachments: Vec<Attachment>) -> Content {
    Content::Composed { html: html.into(), text: text.map(Into::into), attachments }
}

fn text_of(email: &Outgoing) -> String {
    let eml = render(email).expect("renders");
    assert_sound(&eml);
    String::from_utf8(eml).expect("ASCII")
}

/// What every composed message keeps: ASCII, CRLF alone, lines of at most 998 bytes.
fn assert_sound(eml: &[u8]) {
    assert!(eml.is_ascii(), "bytes outside ASCII");
    assert!(!eml.contains(&0), "a zero byte");
    assert!(matches!(lines::normalised(eml), Cow::Borrowed(_)), "a bare line end");
    assert!(lines::lines(eml).all(|line| line.len() <= 1000), "a line of more than 998 bytes");
}

#[test]
fn the_plainest_message() {
    let expected = "X-Posthaste-Id: 019b76da-a800-7000-8000-0123456789ab\r\n\
        From: \"Acme\" <shop@acme.com>\r\n\
        To: <ana@example.com>\r\n\
        Subject: Hello\r\n\
        Date: Thu, 1 Jan 2026 00:00:00 +0000\r\n\
        Message-ID: <019b76da-a800-7000-8000-0123456789ab@acme.com>\r\n\
        MIME-Version: 1.0\r\n\
        Content-Type: text/html; charset=\"utf-8\"\r\n\
        Content-Transfer-Encoding: 7bit\r\n\r\n\
        <p>Hello</p>\r\n";
    assert_eq!(text_of(&outgoing(|_| ())), expected);
}

#[test]
fn every_attempt_gives_the_same_bytes() {
    let files =
        vec![attachment("a.pdf", "application/pdf", None), attachment("l.png", "image/png", Some("l"))];
    let email = outgoing(|email| email.content = composed("<p>é</p>", Some("é"), files));
    let again = Outgoing { attempt: 2, ..email.clone() };
    assert_eq!(text_of(&email), text_of(&again));
    assert_eq!(message_id(&email).as_deref(), Some("<019b76da-a800-7000-8000-0123456789ab@acme.com>"));
}

#[test]
fn copies_are_shown_but_blind_ones_are_not() {
    let eml = text_of(&outgoing(|email| {
        email.envelope.cc = vec![an_address("cc1@example.com"), an_address("cc2@example.com")];
        email.envelope.bcc = vec![an_address("hidden@example.org")];
        email.envelope.reply_to = Some(Mailbox::parse("Help <help@acme.com>").expect("a mailbox"));
        email.envelope.tags = vec!["tag-of-theirs".into()];
    }));
    assert!(eml.contains("\r\nCc: <cc1@example.com>, <cc2@example.com>\r\n"), "{eml}");
    assert!(eml.contains("\r\nReply-To: \"Help\" <help@acme.com>\r\n"), "{eml}");
    assert!(!eml.to_lowercase().contains("bcc") && !eml.contains("hidden"), "{eml}");
    assert!(!eml.contains("tag-of-theirs"), "{eml}");
}

#[test]
fn custom_headers_go_as_they_are() {
    let url = format!("<mailto:leave@acme.com?subject=x>, <https://acme.com/u?token={}>", "t".repeat(500));
    let eml = text_of(&outgoing(|email| {
        let header = |name: &str, value: &str| (name.to_owned(), Secret::new(value.to_owned()));
        email.envelope.headers = vec![
            header("List-Unsubscribe", &url),
            header("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
            header("X-Name", "João"),
            header("X-Long", &"x".repeat(5000)),
        ];
    }));
    let unfolded = eml.replace("\r\n ", " ");
    assert!(unfolded.contains(&format!("\r\nList-Unsubscribe: {url}\r\n")), "{eml}");
    assert!(eml.contains("\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"), "{eml}");
    assert!(eml.contains("\r\nX-Name: =?utf-8?"), "{eml}");
}

#[test]
fn nothing_can_grow_into_a_header() {
    let inject = "a\r\nBcc: evil@example.org";
    type Change = Box<dyn FnOnce(&mut Outgoing)>;
    let file = |name: &str, kind: &str, id: Option<&str>| -> Change {
        let content = composed("<p>", None, vec![attachment(name, kind, id)]);
        Box::new(|email| email.content = content)
    };
    let cases: Vec<(&str, Change)> = vec![
        ("subject", Box::new(|email| email.envelope.subject = Secret::new(inject.into()))),
        ("name of from", Box::new(|email| email.from.name = Some(Secret::new(inject.into())))),
        (
            "name of reply-to",
            Box::new(|email| {
                let name = Some(Secret::new("a\u{0}b".into()));
                email.envelope.reply_to = Some(Mailbox { name, address: an_address("a@b.com") });
            }),
        ),
        (
            "header value",
            Box::new(|email| email.envelope.headers = vec![("X-A".into(), Secret::new(inject.into()))]),
        ),
        (
            "header name",
            Box::new(|email| email.envelope.headers = vec![("X-A: 1\r\nBcc".into(), Secret::new("".into()))]),
        ),
        (
            "structural header",
            Box::new(|email| email.envelope.headers = vec![("Bcc".into(), Secret::new("a@b.com".into()))]),
        ),
        ("file name", file(inject, "image/png", None)),
        ("content type", file("a.png", "image/png\r\nBcc: evil@example.org", None)),
        ("content type without a slash", file("a.png", "png", None)),
        ("content type with a loose quote", file("a.png", "text/csv; charset=\"x", None)),
        ("content id", file("a.png", "image/png", Some("a>\r\nBcc: evil@example.org"))),
        ("content id with brackets inside", file("a.png", "image/png", Some("a><b"))),
    ];
    for (case, change) in cases {
        let error = render(&outgoing(change)).expect_err(case);
        assert!(!error.to_string().contains("evil"), "{case}: the error tells the value: {error}");
    }
}

#[test]
fn the_whole_tree() {
    let files = vec![
        attachment("contrato nº 5.pdf", "application/pdf", None),
        attachment("logo.png", "image/png", Some("<logo>")),
        attachment("forwarded.eml", "message/rfc822", None),
    ];
    let eml = text_of(&outgoing(|email| email.content = composed("<img src=cid:logo>", Some("hi"), files)));
    let types: Vec<&str> = eml
        .split("Content-Type: ")
        .skip(1)
        .map(|rest| rest.split([';', '\r']).next().unwrap_or_default())
        .collect();
    let expected = [
        "multipart/mixed",
        "multipart/alternative",
        "text/plain",
        "multipart/related",
        "text/html",
        "image/png",
        "application/pdf",
        "application/octet-stream",
    ];
    assert_eq!(types, expected, "a message may not be in base64, so it is sent as a file");
    assert!(eml.contains("\r\nContent-ID: <logo>\r\n"), "{eml}");
    assert!(eml.contains("type=\"text/html\""), "{eml}");
}

#[test]
fn odd_bytes_in_bodies_travel_encoded() {
    let long = "x".repeat(10 * 1024);
    let cases = [
        ("a bare return", "a\rb"),
        ("a zero byte", "a\0b"),
        ("an escape", "a\x1bb"),
        ("a long line", long.as_str()),
        ("dots", ".\n..\n.a"),
        ("a blank at the end", "a \n b\t"),
        ("letters", "João — 安"),
        ("nothing", ""),
        ("line feeds", "a\n\nb\n"),
    ];
    for (case, text) in cases {
        let email = outgoing(|email| email.content = composed(text, None, vec![]));
        let eml = render(&email).expect(case);
        assert_sound(&eml);
        let expected = text.replace('\n', "\r\n").replace("a\rb", "a\r\nb");
        let found = crate::html_of(&eml).expect("html");
        assert_eq!(found.trim_end_matches("\r\n"), expected.trim_end_matches("\r\n"), "{case}");
    }
}

#[test]
fn a_subject_is_shown_as_it_was_written() {
    let cases = [
        "Olá, João — seu pedido chegou",
        "=?utf-8?Q?a=0D=0ABcc:_evil@example.org?=",
        "a =? b ?= c",
        "😀😀😀",
        "a  b",
        "x",
    ];
    for subject in cases {
        let email = outgoing(|email| email.envelope.subject = Secret::new(subject.into()));
        let envelope = read_envelope(text_of(&email).as_bytes()).expect("readable");
        assert_eq!(envelope.subject.expose(), subject);
    }
}

#[test]
fn a_clock_before_1970_is_no_trouble() {
    let early = outgoing(|email| email.created_at = Timestamp::from_millis(-1));
    assert!(text_of(&early).contains("\r\nDate: Wed, 31 Dec 1969 23:59:59 +0000\r\n"));
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    fn envelope(subject: String, name: String, value: String) -> Envelope {
        let mut envelope = an_email(a_company("acme").id).envelope;
        envelope.subject = Secret::new(subject);
        envelope.headers = vec![(name, Secret::new(value))];
        envelope
    }

    /// The headers of a message, unfolded.
    fn headers(eml: &str) -> usize {
        let block = eml.split("\r\n\r\n").next().unwrap_or_default();
        block.split("\r\n").filter(|line| !line.starts_with([' ', '\t'])).count()
    }

    proptest! {
        /// Whatever the values, what is built is sound and has the headers that were meant and no more.
        #[test]
        fn no_value_adds_a_header(
            subject in ".{0,150}", name in "[ -~]{1,20}", value in "(?s).{0,300}", sender in ".{0,40}",
            html in "(?s).{0,2000}", file in ".{0,60}", kind in "[ -~]{0,30}",
        ) {
            let email = outgoing(|email| {
                email.from.name = Some(Secret::new(sender));
                email.envelope = envelope(subject, name, value);
                email.content = composed(&html, None, vec![]);
            });
            if let Ok(eml) = render(&email) {
                assert_sound(&eml);
                prop_assert_eq!(headers(&String::from_utf8_lossy(&eml)), 10);
            }
            let with_file = outgoing(|email| {
                email.content = composed(&html, None, vec![attachment(&file, &kind, None)]);
            });
            if let Ok(eml) = render(&with_file) {
                assert_sound(&eml);
                prop_assert_eq!(headers(&String::from_utf8_lossy(&eml)), 8);
            }
        }

        /// A subject without control characters arrives as it was.
        #[test]
        fn subjects_survive(subject in "\\PC{1,150}") {
            let email = outgoing(|email| email.envelope.subject = Secret::new(subject.clone()));
            if let Ok(eml) = render(&email) {
                let envelope = read_envelope(&eml).expect("readable");
                prop_assert_eq!(envelope.subject.expose().trim(), subject.trim());
            }
        }
    }
}
