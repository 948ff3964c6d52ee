//! What a send may say, as tables.

use serde_json::{Value, json};

use super::*;
use crate::limits::ATTACHMENTS_BYTES_MAX;

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

fn base() -> Value {
    json!({ "to": "ana@example.com", "subject": "Hi", "html": "<p>Hi</p>" })
}

fn with(changes: Value) -> Value {
    let mut body = base();
    for (name, value) in changes.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn faults(body: Value) -> Vec<(String, &'static str)> {
    match read(body, ATTACHMENTS_BYTES_MAX, NOW) {
        Ok(_) => Vec::new(),
        Err(faults) => faults.into_iter().map(|fault| (fault.field, fault.code)).collect(),
    }
}

/// A case in words, what is changed, and the faults with their fields.
type Case<'a> = (&'a str, Value, &'a [(&'a str, &'a str)]);

fn check(cases: Vec<Case<'_>>) {
    for (case, changes, expected) in cases {
        let found = faults(with(changes));
        let found: Vec<(&str, &str)> = found.iter().map(|(field, code)| (field.as_str(), *code)).collect();
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn a_whole_email_is_read() {
    let body = json!({
        "to": "cliente@example.com",
        "subject": "Seu pedido foi confirmado",
        "html": "<p>olá</p>",
        "text": "olá",
        "from": "Loja <loja@example.com>",
        "cc": ["a@example.com"],
        "bcc": ["b@example.com"],
        "replyTo": "suporte@example.com",
        "headers": { "X-Order": "12345" },
        "tags": ["order-confirmation"],
        "attachments": [{ "filename": "a.txt", "contentType": "text/plain", "content": "aGk=" }],
        "recipient": { "externalId": "customer-67890", "nome": "João Silva", "email": "Cliente@example.com" },
        "externalId": "order-12345",
        "entity": { "id": "club-1", "name": "Club" },
        "priority": 1,
        "delay": 1000,
        "ttl": 60000,
        "callbackUrl": "https://example.com/hook",
        "provider": "capture",
        "retryPolicy": "patient",
        "onUnknown": "hold",
        "template": null,
    });
    let draft = read(body, ATTACHMENTS_BYTES_MAX, NOW).expect("a good email");
    assert_eq!(draft.envelope.to.expose(), "cliente@example.com");
    assert_eq!(draft.envelope.subject.expose(), "Seu pedido foi confirmado");
    assert_eq!(draft.envelope.from.map(|from| from.expose()).as_deref(), Some("Loja <loja@example.com>"));
    assert_eq!(draft.when, When::After(Duration::from_secs(1)));
    assert_eq!(draft.ttl, Some(Duration::from_secs(60)));
    assert_eq!(draft.priority, Some(1));
    assert_eq!(draft.wishes.on_unknown, Some(OnUnknown::Hold));
    let Content::Composed { html, text, attachments } = draft.content else { panic!("composed") };
    assert_eq!((html.as_str(), text.as_deref()), ("<p>olá</p>", Some("olá")));
    assert_eq!(attachments[0].bytes.expose(), b"hi");
    let notes: Vec<&str> = draft.notes.iter().map(|note| note.code).collect();
    assert_eq!(notes, ["NOT_AVAILABLE_YET"], "its callbackUrl");
}

#[test]
fn every_fault_is_told_at_once() {
    let body = json!({
        "to": "nobody", "subject": "", "cc": ["x"], "priority": 11, "recipient": { "nome": "J" }, "satus": 1,
    });
    let found = faults(body);
    let expected = [
        ("to", "INVALID_EMAIL"),
        ("subject", "INVALID_SUBJECT"),
        ("html", "REQUIRED"),
        ("cc[0]", "INVALID_EMAIL"),
        ("recipient", "RECIPIENT_IDENTIFIER_REQUIRED"),
        ("priority", "OUT_OF_RANGE"),
        ("satus", "UNKNOWN_FIELD"),
    ];
    let found: Vec<(&str, &str)> = found.iter().map(|(field, code)| (field.as_str(), *code)).collect();
    assert_eq!(found, expected);
}

#[test]
fn html_and_text() {
    let size = |bytes: usize| "x".repeat(bytes);
    check(vec![
        ("empty", json!({ "html": "" }), &[("html", "INVALID_HTML")]),
        ("blank", json!({ "html": " \n" }), &[("html", "INVALID_HTML")]),
        ("512 KB", json!({ "html": size(HTML_BYTES_MAX) }), &[]),
        ("512 KB and one", json!({ "html": size(HTML_BYTES_MAX + 1) }), &[("html", "HTML_TOO_LARGE")]),
        ("byte order mark", json!({ "html": "\u{feff}<p>x</p>" }), &[("html", "INVALID_ENCODING")]),
        ("not a text", json!({ "html": 5 }), &[("html", "INVALID_TYPE")]),
        ("text too large", json!({ "text": size(TEXT_BYTES_MAX + 1) }), &[("text", "TEXT_TOO_LARGE")]),
        ("both", json!({ "template": "welcome" }), &[("template", "CONFLICTING_FIELDS")]),
        ("variables alone", json!({ "variables": {} }), &[("variables", "CONFLICTING_FIELDS")]),
        (
            "template version",
            json!({ "html": null, "template": "welcome@x" }),
            &[("template", "INVALID_VALUE")],
        ),
    ]);
}

#[test]
fn addresses_and_lists() {
    let six: Vec<String> = (0..6).map(|n| format!("a{n}@example.com")).collect();
    check(vec![
        ("no address", json!({ "to": "a@b@c.com" }), &[("to", "INVALID_EMAIL")]),
        ("idn", json!({ "to": "ana@exämple.com" }), &[]),
        ("six cc", json!({ "cc": six }), &[("cc", "TOO_MANY_CC")]),
        ("six bcc", json!({ "bcc": six }), &[("bcc", "TOO_MANY_BCC")]),
        ("six tags", json!({ "tags": ["a", "b", "c", "d", "e", "f"] }), &[("tags", "TOO_MANY_TAGS")]),
        ("bad tag", json!({ "tags": ["a", "b\r\n"] }), &[("tags[1]", "INVALID_TAG")]),
        ("from with line break", json!({ "from": "a\r\nb <a@b.com>" }), &[("from", "INVALID_EMAIL")]),
        ("cc is text", json!({ "cc": "a@b.com" }), &[("cc", "INVALID_TYPE")]),
    ]);
}

#[test]
fn headers_are_checked() {
    let many: serde_json::Map<String, Value> = (0..101).map(|n| (format!("X-{n}"), json!("1"))).collect();
    let large: serde_json::Map<String, Value> =
        (0..80).map(|n| (format!("X-{n}"), json!("x".repeat(900)))).collect();
    let long_name = "X".repeat(1000);
    let long_field = format!("headers.{}", "X".repeat(64));
    check(vec![
        ("fine", json!({ "headers": { "List-Unsubscribe": "<https://e.com/u>" } }), &[]),
        ("colon", json!({ "headers": { "X-A:B": "1" } }), &[("headers.X-A:B", "INVALID_HEADER")]),
        ("blank", json!({ "headers": { "X A": "1" } }), &[("headers.X A", "INVALID_HEADER")]),
        ("empty", json!({ "headers": { "": "1" } }), &[("headers.", "INVALID_HEADER")]),
        ("long name", json!({ "headers": { long_name: "1" } }), &[(&long_field, "INVALID_HEADER")]),
        ("CR", json!({ "headers": { "X-A": "1\rBcc: x" } }), &[("headers.X-A", "INVALID_HEADER")]),
        (
            "long value",
            json!({ "headers": { "X-A": "x".repeat(999) } }),
            &[("headers.X-A", "INVALID_HEADER")],
        ),
        ("Bcc", json!({ "headers": { "Bcc": "x@y.com" } }), &[("headers.Bcc", "FORBIDDEN_HEADER")]),
        ("From", json!({ "headers": { "from": "x@y.com" } }), &[("headers.from", "FORBIDDEN_HEADER")]),
        (
            "Content-Type",
            json!({ "headers": { "Content-Type": "x" } }),
            &[("headers.Content-Type", "FORBIDDEN_HEADER")],
        ),
        (
            "DKIM",
            json!({ "headers": { "DKIM-Signature": "x" } }),
            &[("headers.DKIM-Signature", "FORBIDDEN_HEADER")],
        ),
        (
            "Return-Path",
            json!({ "headers": { "Return-Path": "x" } }),
            &[("headers.Return-Path", "FORBIDDEN_HEADER")],
        ),
        ("101", json!({ "headers": many }), &[("headers", "TOO_MANY_HEADERS")]),
        ("64 KB", json!({ "headers": large }), &[("headers", "TOO_MANY_HEADERS")]),
        ("number", json!({ "headers": { "X-A": 1 } }), &[("headers.X-A", "INVALID_TYPE")]),
    ]);
}

#[test]
fn recipients() {
    let recipient = |inner: Value| json!({ "recipient": inner });
    let hash = "a".repeat(64);
    check(vec![
        ("nobody", recipient(json!({})), &[("recipient", "RECIPIENT_IDENTIFIER_REQUIRED")]),
        ("by id", recipient(json!({ "recipientId": "0190c3d2-7b7e-7000-8000-000000000000" })), &[]),
        ("bad id", recipient(json!({ "recipientId": "x" })), &[("recipient.recipientId", "INVALID_ID")]),
        ("by hash", recipient(json!({ "cpfCnpjHash": hash })), &[]),
        (
            "63 digits",
            recipient(json!({ "cpfCnpjHash": &hash[1..] })),
            &[("recipient.cpfCnpjHash", "INVALID_HASH")],
        ),
        ("by document", recipient(json!({ "cpfCnpj": "529.982.247-25" })), &[]),
        (
            "check digits",
            recipient(json!({ "cpfCnpj": "529.982.247-26" })),
            &[("recipient.cpfCnpj", "INVALID_DOCUMENT")],
        ),
        (
            "hash of another",
            recipient(json!({ "cpfCnpj": "529.982.247-25", "cpfCnpjHash": hash })),
            &[("recipient.cpfCnpjHash", "CONFLICTING_FIELDS")],
        ),
        (
            "document as id",
            recipient(json!({ "externalId": "529.982.247-25" })),
            &[("recipient.externalId", "PII_NOT_ALLOWED")],
        ),
        (
            "other address",
            recipient(json!({ "externalId": "c", "email": "x@example.com" })),
            &[("recipient.email", "RECIPIENT_EMAIL_MISMATCH")],
        ),
        (
            "misspelled",
            recipient(json!({ "externalId": "c", "name": "J" })),
            &[("recipient.name", "UNKNOWN_FIELD")],
        ),
    ]);
}

#[test]
fn ids_times_and_names() {
    let after = |millis: i64| Timestamp::from_millis(NOW.millis() + millis).to_rfc3339();
    check(vec![
        ("document as id", json!({ "externalId": "529.982.247-25" }), &[("externalId", "PII_NOT_ALLOWED")]),
        (
            "document as entity",
            json!({ "entity": { "id": "529.982.247-25" } }),
            &[("entity.id", "PII_NOT_ALLOWED")],
        ),
        ("entity without id", json!({ "entity": { "name": "x" } }), &[("entity.id", "REQUIRED")]),
        ("long id", json!({ "externalId": "x".repeat(256) }), &[("externalId", "TOO_LONG")]),
        ("past", json!({ "scheduledAt": after(-1000) }), &[]),
        ("too far", json!({ "scheduledAt": after(31 * 86_400_000) }), &[("scheduledAt", "OUT_OF_RANGE")]),
        (
            "no zone",
            json!({ "scheduledAt": "2026-01-02T12:00:00" }),
            &[("scheduledAt", "INVALID_SCHEDULED_AT")],
        ),
        (
            "no such day",
            json!({ "scheduledAt": "2025-02-30T12:00:00Z" }),
            &[("scheduledAt", "INVALID_SCHEDULED_AT")],
        ),
        ("both", json!({ "scheduledAt": after(1000), "delay": 5 }), &[("scheduledAt", "CONFLICTING_FIELDS")]),
        ("long delay", json!({ "delay": DELAY_MS_MAX + 1 }), &[("delay", "OUT_OF_RANGE")]),
        ("short life", json!({ "ttl": 1 }), &[("ttl", "OUT_OF_RANGE")]),
        ("on unknown", json!({ "onUnknown": "holt" }), &[("onUnknown", "INVALID_VALUE")]),
        ("credentials", json!({ "callbackUrl": "https://u:p@e.com" }), &[("callbackUrl", "FORBIDDEN_URL")]),
    ]);
}

#[test]
fn attachments_are_checked() {
    let attachment = |inner: Value| json!({ "attachments": [inner] });
    let many: Vec<Value> = (0..21).map(|_| json!({ "filename": "a", "content": "" })).collect();
    check(vec![
        (
            "no base64",
            attachment(json!({ "filename": "a", "content": "%%" })),
            &[("attachments[0].content", "INVALID_BASE64")],
        ),
        ("empty", attachment(json!({ "filename": "a", "content": "" })), &[]),
        ("without padding", attachment(json!({ "filename": "a", "content": "aGk" })), &[]),
        (
            "path",
            attachment(json!({ "filename": "../a", "content": "" })),
            &[("attachments[0].filename", "INVALID_FILENAME")],
        ),
        (
            "line break",
            attachment(json!({ "filename": "a\nb", "content": "" })),
            &[("attachments[0].filename", "INVALID_FILENAME")],
        ),
        (
            "type with line break",
            attachment(json!({ "filename": "a", "content": "", "contentType": "a/b\r\nX: y" })),
            &[("attachments[0].contentType", "INVALID_CONTENT_TYPE")],
        ),
        (
            "content id",
            attachment(json!({ "filename": "a", "content": "", "contentId": "<x>" })),
            &[("attachments[0].contentId", "INVALID_CONTENT_ID")],
        ),
        ("many", json!({ "attachments": many }), &[("attachments", "TOO_MANY_ATTACHMENTS")]),
        (
            "misspelled",
            attachment(json!({ "filename": "a", "content": "", "path": "/etc/passwd" })),
            &[("attachments[0].path", "UNKNOWN_FIELD")],
        ),
    ]);
    let body = with(attachment(json!({ "filename": "a", "content": "aGkh" })));
    let large = read(body, 2, NOW).expect_err("too large");
    assert_eq!(
        (large[0].code, large[0].kind),
        ("ATTACHMENTS_TOO_LARGE", gateway::accept::draft::FaultKind::TooLarge)
    );
}

#[test]
fn what_is_mended_is_told() {
    let body = with(json!({
        "tags": ["a", "a"],
        "attachments": [{ "filename": "a.png", "contentType": "image/png", "content": "JVBERi0=" }],
    }));
    let draft = read(body, ATTACHMENTS_BYTES_MAX, NOW).expect("acceptable");
    let notes: Vec<(&str, &str)> = draft.notes.iter().map(|note| (note.field.as_str(), note.code)).collect();
    assert_eq!(
        notes,
        [("tags[1]", "DUPLICATE_TAG"), ("attachments[0].contentType", "CONTENT_TYPE_CORRECTED")]
    );
    assert_eq!(draft.envelope.tags, ["a"]);
}
