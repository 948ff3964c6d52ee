//! Whatever is handed in as an address, a document number, a time or a trace: taken or refused, never a panic, and what
//! is taken is what it says it is.

use model::address::{ADDRESS_LENGTH_MAX, NAME_LENGTH_MAX};
use model::document::{Document, DocumentKind, looks_like_document};
use model::privacy::{mask_address, mask_text};
use model::{Address, Mailbox, Timestamp, TraceContext};
use proptest::prelude::*;

/// Pieces that addresses are made of, whole and broken.
const PIECES: &str = "a¦Ana¦b.c¦.¦..¦@¦@@¦+x¦\"¦\\¦(¦)¦<¦>¦[¦]¦127.0.0.1¦example¦.com¦.test¦xn--¦xn--mnchen-3ya¦é¦ß¦日本¦\u{202e}¦\0¦\r\n¦ ¦\
    \t¦,¦;¦:¦_¦-¦%¦!¦😀¦\u{301}¦。¦aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn any_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(PIECES.split('¦').collect::<Vec<_>>()).prop_map(str::to_owned);
    let piece = prop_oneof![4 => piece, 1 => "\\PC{0,5}", 1 => any::<char>().prop_map(String::from)];
    let near = "[A-Za-z0-9.+_-]{1,20}@[a-z0-9-]{1,12}(\\.[a-z0-9é-]{1,8}){0,3}";
    prop_oneof![2 => prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat()), 1 => near]
}

fn any_number() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{9,16}",
        "[0-9]{3}\\.[0-9]{3}\\.[0-9]{3}-[0-9]{2}",
        "[0-9A-Za-z]{2}\\.[0-9A-Za-z]{3}\\.[0-9A-Za-z]{3}/[0-9A-Za-z]{4}-[0-9]{2}",
        "[0-9A-Z./ -]{0,24}",
        "(cpf|CNPJ|é|) ?[0-9./-]{9,20}",
        "\\PC{0,30}",
    ]
}

/// The text and a number whose check digits are right: nine or twelve signs, completed.
fn good_number() -> impl Strategy<Value = String> {
    prop_oneof!["[0-9]{9}", "[0-9A-Z]{12}"]
        .prop_filter_map("all alike, or a check digit that is none", |start| {
            (0..100).map(|end| format!("{start}{end:02}")).find(|number| Document::parse(number).is_ok())
        })
}

proptest! {
    #[test]
    fn addresses(text in any_text()) {
        if let Ok(address) = Address::parse(&text) {
            let plain = address.expose();
            prop_assert!(plain.is_ascii() && plain.len() <= ADDRESS_LENGTH_MAX, "{plain}");
            prop_assert!(!plain.bytes().any(|byte| byte.is_ascii_control() || b" <>\"".contains(&byte)), "{plain}");
            prop_assert_eq!(plain.matches('@').count(), 1);
            prop_assert!(address.domain().contains('.'), "{plain}");
            let again = Address::parse(plain);
            prop_assert_eq!(again.as_ref(), Ok(&address), "it is its own address");
            prop_assert!(!format!("{address} {address:?}").contains(plain), "{plain} is printed");
        }
        if let Ok(mailbox) = Mailbox::parse(&text) {
            prop_assert!(Address::parse(mailbox.address.expose()).is_ok());
            let name = mailbox.name.map(model::Secret::into_inner).unwrap_or_default();
            prop_assert!(name.chars().count() <= NAME_LENGTH_MAX && !name.contains(['\r', '\n', '<', '>', '\0']));
        }
    }

    #[test]
    fn masks(text in any_text()) {
        // Masking what holds no address changes nothing of it; what it makes is never longer by much.
        let (masked, address) = (mask_text(&text), mask_address(&text));
        prop_assert!(masked.len() <= text.len() * 4 + 16 && address.len() <= text.len() + 32, "{text:?}");
    }

    #[test]
    fn documents(text in any_number()) {
        let noticed = looks_like_document(&text);
        let Ok(document) = Document::parse(&text) else { return Ok(()) };
        let number = document.expose();
        let length = match document.kind() {
            DocumentKind::Cpf => 11,
            DocumentKind::Cnpj => 14,
        };
        prop_assert_eq!(number.len(), length);
        prop_assert!(number.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase()), "{number}");
        let again = Document::parse(number);
        prop_assert_eq!(again.as_ref(), Ok(&document));
        prop_assert!(!noticed || text != number, "bare digits are an order's number");
    }

    #[test]
    fn documents_in_clear_are_noticed(number in good_number(), before in "[a-z ]{0,8}", after in "[a-z ,.]{0,8}") {
        let (body, end) = number.split_at(number.len() - 2);
        let punctuated = match body.len() {
            9 => format!("{}.{}.{}-{end}", &body[..3], &body[3..6], &body[6..]),
            _ => format!("{}.{}.{}/{}-{end}", &body[..2], &body[2..5], &body[5..8], &body[8..]),
        };
        let text = format!("{before} {punctuated} {after}");
        prop_assert!(looks_like_document(&text), "{text}");
        if number.bytes().all(|byte| byte.is_ascii_digit()) {
            let (named, bare) = (format!("cpf/cnpj {number}"), format!("order {number}"));
            prop_assert!(looks_like_document(&named) && !looks_like_document(&bare), "{number}");
        }
    }

    #[test]
    fn times(text in prop_oneof![
        "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,12})?(Z|[+-][0-9]{2}:[0-9]{2})",
        "[+-]?[0-9]{1,9}-[0-9]{2}-[0-9]{2}T.{0,12}",
        "\\PC{0,40}",
    ]) {
        if let Some(time) = Timestamp::parse(&text) {
            prop_assert_eq!(Timestamp::parse(&time.to_rfc3339()), Some(time), "{}", text);
        }
    }

    #[test]
    fn traces(text in prop_oneof!["[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,8})?", "\\PC{0,60}", "[0-9a-fé-]{40,60}"]) {
        if let Some(context) = TraceContext::parse(&text) {
            prop_assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
        }
    }
}
