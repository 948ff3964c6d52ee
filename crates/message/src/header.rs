//! Which headers a company may add, and how their values are written so that none can grow into a second header.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mail_builder::headers::HeaderType;
use mail_builder::headers::raw::Raw;
use mail_builder::headers::text::Text;
use model::Mailbox;

/// The longest header name we take; RFC 5322 folds only after it.
pub const NAME_LENGTH_MAX: usize = 76;
/// A word longer than this cannot be folded within the 998 bytes a line may have.
const WORD_BYTES_MAX: usize = 900;
/// Bytes of text in one encoded word, whose whole length may be 75.
const ENCODED_WORD_BYTES: usize = 45;

/// Headers that say who, when and what: set by the gateway alone.
const STRUCTURAL: &[&str] = &[
    "authentication-results",
    "bcc",
    "cc",
    "date",
    "from",
    "message-id",
    "mime-version",
    "received",
    "received-spf",
    "reply-to",
    "return-path",
    "sender",
    "subject",
    "to",
];
/// Among them those by which SES is told what to do with a message: that is the operator's to say.
const STRUCTURAL_PREFIXES: &[&str] = &["arc-", "content-", "dkim-", "resent-", "x-posthaste-", "x-ses-"];

/// Why a header cannot be added. Never tells the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeader {
    #[error(
        "a header name must have 1 to {NAME_LENGTH_MAX} printable ASCII characters and no colon or space"
    )]
    Name,
    #[error("the header {0} is set by the gateway and cannot be given")]
    Structural(String),
    #[error("the header {0} holds a line break or a control character")]
    Value(String),
}

/// Whether a header of a company's own may go into a message.
pub fn check_header(name: &str, value: &str) -> Result<(), InvalidHeader> {
    let is_printable = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    if name.is_empty() || name.len() > NAME_LENGTH_MAX || !name.bytes().all(is_printable) {
        return Err(InvalidHeader::Name);
    }
    let lower = name.to_ascii_lowercase();
    let prefixed = || STRUCTURAL_PREFIXES.iter().any(|prefix| lower.starts_with(prefix));
    if STRUCTURAL.contains(&lower.as_str()) || prefixed() {
        return Err(InvalidHeader::Structural(name.to_owned()));
    }
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return Err(InvalidHeader::Value(name.to_owned()));
    }
    Ok(())
}

/// A company's header. ASCII goes as it is, folded at spaces, since an encoded word inside a URL or an address list
/// (List-Unsubscribe) would break it; the builder would encode everything over 77 characters.
pub fn custom(value: &str) -> HeaderType<'_> {
    let value = value.trim();
    let foldable = value.split([' ', '\t']).all(|word| word.len() <= WORD_BYTES_MAX);
    if value.is_ascii() && foldable { Raw::new(value).into() } else { Text::new(value).into() }
}

/// A subject. One that looks like an encoded word is encoded itself, so that the reader sees what was written and
/// not what it would decode to.
pub fn subject(subject: &str) -> HeaderType<'_> {
    if subject.contains("=?") { Raw::new(encoded_words(subject)).into() } else { Text::new(subject).into() }
}

/// A mailbox in UTF-8, for interfaces that make a header of it themselves: `"Acme, Inc." <shop@acme.com>`.
pub fn mailbox_in_utf8(mailbox: &Mailbox) -> String {
    written(mailbox, |name| quoted(name).into())
}

/// A mailbox in ASCII, as it stands in a header but on one line: a name that needs it becomes encoded words.
pub fn mailbox_in_ascii(mailbox: &Mailbox) -> String {
    written(mailbox, |name| {
        if name.is_ascii() && !name.contains("=?") { quoted(name).into() } else { encoded_words(name) }
    })
}

fn written<'x>(mailbox: &'x Mailbox, write_name: impl Fn(&'x str) -> Cow<'x, str>) -> String {
    let address = mailbox.address.expose();
    match mailbox.name.as_ref().map(|name| name.expose().trim()).filter(|name| !name.is_empty()) {
        Some(name) => format!("{} <{address}>", write_name(name)),
        None => address.to_owned(),
    }
}

/// The name as it is, or in quotes when it has characters that mean something in a list of mailboxes.
fn quoted(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if !name.contains(|c: char| "()<>[]:;@\\,.\"".contains(c)) {
        return name;
    }
    let escaped: String =
        name.chars().flat_map(|c| matches!(c, '"' | '\\').then_some('\\').into_iter().chain([c])).collect();
    format!("\"{escaped}\"")
}

fn encoded_words(text: &str) -> Cow<'static, str> {
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (word, tail) = rest.split_at(rest.floor_char_boundary(ENCODED_WORD_BYTES));
        words.push(format!("=?utf-8?B?{}?=", STANDARD.encode(word)));
        rest = tail;
    }
    words.join(" ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_company() {
        use InvalidHeader::{Name, Structural, Value};
        let structural = |name: &str| Err(Structural(name.to_owned()));
        let value = |name: &str| Err(Value(name.to_owned()));
        let cases = [
            ("X-Order", "12", Ok(())),
            ("List-Unsubscribe", "<https://example.com/u?t=1>", Ok(())),
            ("X-Name", "João\tda Silva", Ok(())),
            ("X-A:B", "1", Err(Name)),
            ("X A", "1", Err(Name)),
            ("", "1", Err(Name)),
            ("X-\u{e9}", "1", Err(Name)),
            ("X-A\r\nBcc", "1", Err(Name)),
            ("Bcc", "a@b.com", structural("Bcc")),
            ("bCC", "a@b.com", structural("bCC")),
            ("Content-Type", "text/plain", structural("Content-Type")),
            ("DKIM-Signature", "v=1", structural("DKIM-Signature")),
            ("Return-Path", "<>", structural("Return-Path")),
            ("X-SES-Configuration-Set", "other", structural("X-SES-Configuration-Set")),
            ("Resent-Bcc", "a@b.com", structural("Resent-Bcc")),
            ("Resent-From", "a@b.com", structural("Resent-From")),
            ("Resent-Sender", "a@b.com", structural("Resent-Sender")),
            ("Sender", "a@b.com", structural("Sender")),
            ("X-Posthaste-Id", "1", structural("X-Posthaste-Id")),
            ("X-A", "1\r\nBcc: a@b.com", value("X-A")),
            ("X-A", "1\n", value("X-A")),
            ("X-A", "1\rb", value("X-A")),
            ("X-A", "1\0", value("X-A")),
            ("X-A", "1\u{85}", value("X-A")),
        ];
        for (name, given, expected) in cases {
            assert_eq!(check_header(name, given), expected, "{name:?}: {given:?}");
        }
        assert_eq!(check_header(&"x".repeat(77), "1"), Err(Name));
    }

    #[test]
    fn mailboxes() {
        let cases = [
            // name                    in UTF-8                                   in ASCII
            ("", "a@b.com", "a@b.com"),
            ("Acme", "Acme <a@b.com>", "Acme <a@b.com>"),
            ("Acme Shop", "Acme Shop <a@b.com>", "Acme Shop <a@b.com>"),
            ("Acme, Inc.", "\"Acme, Inc.\" <a@b.com>", "\"Acme, Inc.\" <a@b.com>"),
            ("a\\\"b", "\"a\\\\\\\"b\" <a@b.com>", "\"a\\\\\\\"b\" <a@b.com>"),
            ("João", "João <a@b.com>", "=?utf-8?B?Sm/Do28=?= <a@b.com>"),
            ("=?x?=", "=?x?= <a@b.com>", "=?utf-8?B?PT94Pz0=?= <a@b.com>"),
            ("a\r\nBcc: x@y.com", "\"a  Bcc: x@y.com\" <a@b.com>", "\"a  Bcc: x@y.com\" <a@b.com>"),
        ];
        for (name, in_utf8, in_ascii) in cases {
            let address = model::Address::parse("a@b.com").expect("an address");
            let name = (!name.is_empty()).then(|| model::Secret::new(name.to_owned()));
            let mailbox = Mailbox { name, address };
            assert_eq!(mailbox_in_utf8(&mailbox), in_utf8);
            assert_eq!(mailbox_in_ascii(&mailbox), in_ascii);
        }
    }

    #[test]
    fn words_are_cut_between_characters() {
        let text = format!("=?{}", "ã".repeat(100));
        let decoded: Vec<u8> = encoded_words(&text)
            .split(' ')
            .flat_map(|word| {
                assert!(word.len() <= 75, "{word}");
                let inner = word.strip_prefix("=?utf-8?B?").and_then(|word| word.strip_suffix("?="));
                let bytes = STANDARD.decode(inner.expect("an encoded word")).expect("base64");
                assert!(std::str::from_utf8(&bytes).is_ok(), "a character was cut");
                bytes
            })
            .collect();
        assert_eq!(String::from_utf8(decoded).as_deref(), Ok(text.as_str()));
    }
}
