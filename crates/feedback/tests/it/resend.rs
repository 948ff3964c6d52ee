//! What Resend's events become: one case per type, then the odd ones.

use feedback::resend::read;
use model::{Bounce, Report, ReportKind};
use serde_json::{Value, json};

use crate::{OUR_ID, now, time};

/// An event as Resend sends it, with `extra` among its data.
fn event(name: &str, extra: Value) -> Value {
    let mut event = json!({
        "type": name,
        "created_at": "2026-02-22T23:41:12.126Z",
        "data": {
            "email_id": "56761188-7520-42d8-8898-ff6fc54ce618",
            "created_at": "2026-02-22T23:41:11.894719+00:00",
            "from": "Shop <shop@example.com>",
            "to": ["ana@example.net"],
            "subject": "Your order",
            "message_id": "<a@b>",
            "tags": {"posthaste_id": OUR_ID, "welcome": "true"},
        },
    });
    for (name, value) in extra.as_object().expect("an object") {
        event["data"][name] = value.clone();
    }
    event
}

fn report(event: &Value) -> Report {
    read("msg_1", event.to_string().as_bytes(), now()).expect("readable").expect("a report")
}

fn bounce(kind: Value, sub_kind: Value) -> Value {
    json!({"bounce": {"type": kind, "subType": sub_kind, "message": "It came back."}})
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn every_type_is_read() {
    let cases = [
        ("email.sent", json!({}), ReportKind::Sent, json!({})),
        ("email.scheduled", json!({}), ReportKind::Other, json!({})),
        ("email.delivered", json!({}), ReportKind::Delivered, json!({})),
        ("email.delivery_delayed", json!({}), ReportKind::Delayed, json!({})),
        (
            "email.bounced",
            json!({"bounce": {
                "type": "Permanent", "subType": "General", "message": "Ask the owner.",
                "diagnosticCode": ["smtp; 550 5.1.1 <ana@example.net> unknown at [203.0.113.9]", "twice"],
            }}),
            ReportKind::Bounced(Bounce::Hard),
            json!({
                "bounceType": "Permanent", "bounceSubType": "General",
                "diagnostic": "smtp; 550 5.1.1 <a***@e***.net> unknown at [***]; twice",
            }),
        ),
        ("email.complained", json!({}), ReportKind::Complained, json!({})),
        ("email.opened", json!({}), ReportKind::Opened, json!({})),
        (
            "email.clicked",
            json!({"click": {
                "ipAddress": "203.0.113.9", "timestamp": "2026-02-23T08:00:00.000Z",
                "link": "https://shop.example.com/orders/42?email=ana@example.net#ana",
                "userAgent": "Mozilla/5.0 (X11) Chrome/120.0.0.0",
            }}),
            ReportKind::Clicked,
            json!({
                "link": "https://shop.example.com/orders/42", "userAgent": "Mozilla/5.0 (X11) Chrome/120.0.0.0",
            }),
        ),
        (
            "email.failed",
            json!({"failed": {"reason": "reached_daily_quota of shop@example.com"}}),
            ReportKind::Failed,
            json!({"errorCode": "RESEND_FAILED", "reason": "reached_daily_quota of s***@e***.com"}),
        ),
        (
            "email.suppressed",
            json!({"suppressed": {
                "message": "On the list: ana@example.net", "type": "OnAccountSuppressionList",
                "reason": "previous_bounce",
            }}),
            ReportKind::Bounced(Bounce::Hard),
            json!({
                "suppressed": true, "bounceSubType": "OnAccountSuppressionList", "reason": "previous_bounce",
                "diagnostic": "On the list: a***@e***.net",
            }),
        ),
        ("email.of_tomorrow", json!({}), ReportKind::Other, json!({})),
    ];
    for (name, extra, kind, mut metadata) in cases {
        metadata["providerEvent"] = json!(name);
        let report = report(&event(name, extra));
        assert_eq!(report.kind, kind, "{name}");
        assert_eq!(Value::Object(report.metadata.clone()), metadata, "{name}");
        assert_eq!(report.id, "resend:msg_1", "{name}");
        assert_eq!(report.email.map(|id| id.to_string()).as_deref(), Some(OUR_ID), "{name}");
        let provider_id = report.provider_message_id.as_deref();
        assert_eq!(provider_id, Some("56761188-7520-42d8-8898-ff6fc54ce618"), "{name}");
        assert_eq!(report.recipients, [], "{name}");
        let at = if name == "email.clicked" { "2026-02-23T08:00:00Z" } else { "2026-02-22T23:41:12.126Z" };
        assert_eq!(report.at, time(at), "{name}");
    }
}

#[test]
fn what_is_not_about_emails_sent_is_ignored() {
    for name in [
        "email.received",
        "contact.created",
        "domain.updated",
        "suppression.added",
        "topic.created",
        "inbox.received",
        "emails.of.tomorrow",
        "",
    ] {
        assert_eq!(read("msg_1", event(name, json!({})).to_string().as_bytes(), now()), Ok(None), "{name}");
        let bare = json!({"type": name}).to_string();
        assert_eq!(read("msg_1", bare.as_bytes(), now()), Ok(None), "{name} without data");
    }
}

#[test]
fn bounces_tell_of_addresses_and_of_content() {
    use Bounce::{Hard, Soft, Unclear};
    let cases = [
        (json!("Permanent"), json!("General"), Hard),
        (json!("Permanent"), json!("NoEmail"), Hard),
        (json!("Permanent"), json!("Suppressed"), Hard),
        (json!("Permanent"), json!("OnAccountSuppressionList"), Hard),
        (json!("Permanent"), json!("OfTomorrow"), Hard),
        (json!("Permanent"), Value::Null, Hard),
        (json!("Permanent"), json!("ContentRejected"), Unclear),
        (json!("Permanent"), json!("AttachmentRejected"), Unclear),
        (json!("Permanent"), json!("MessageTooLarge"), Unclear),
        (json!("Transient"), json!("General"), Soft),
        (json!("Transient"), json!("MailboxFull"), Soft),
        (json!("Transient"), json!("ContentRejected"), Soft),
        (json!("Undetermined"), json!("Undetermined"), Unclear),
        (json!("OfTomorrow"), json!("General"), Unclear),
        (Value::Null, Value::Null, Unclear),
        (json!(5), json!([]), Unclear),
    ];
    for (kind, sub_kind, expected) in cases {
        let report = report(&event("email.bounced", bounce(kind.clone(), sub_kind.clone())));
        assert_eq!(report.kind, ReportKind::Bounced(expected), "{kind} {sub_kind}");
        let is_suppression = sub_kind == "Suppressed" || sub_kind == "OnAccountSuppressionList";
        assert_eq!(report.metadata.contains_key("suppressed"), is_suppression, "{kind} {sub_kind}");
    }
}

/// Resend does not say whose address bounced, so its reports name nobody, however many the email went to.
#[test]
fn nobody_is_blamed_for_somebody_else() {
    let hard = || bounce(json!("Permanent"), json!("General"));
    let cases = [
        json!(["ana@example.net"]),
        json!("ana@example.net"),
        json!(["a@example.net", "b@example.net"]),
        Value::Null,
    ];
    for to in cases {
        let mut event = event("email.bounced", hard());
        event["data"]["to"] = to.clone();
        let report = report(&event);
        assert_eq!((report.kind, report.recipients.len()), (ReportKind::Bounced(Bounce::Hard), 0), "{to}");
    }
}

#[test]
fn our_id_is_found_wherever_it_is() {
    let header = |name: &str| json!([{"name": "X-Order", "value": "1"}, {"name": name, "value": OUR_ID}]);
    let cases = [
        ("tags as an object", json!({"posthaste_id": OUR_ID}), Value::Null, true),
        (
            "tags as a list",
            json!([{"name": "a", "value": "b"}, {"name": "posthaste_id", "value": OUR_ID}]),
            Value::Null,
            true,
        ),
        ("a header", Value::Null, header("X-Posthaste-Id"), true),
        ("a header in lower case", json!([]), header("x-posthaste-id"), true),
        ("headers as an object", Value::Null, json!({"X-Posthaste-Id": OUR_ID}), true),
        ("a broken tag, a good header", json!({"posthaste_id": "x"}), header("X-Posthaste-Id"), true),
        ("another header", Value::Null, header("X-Id"), false),
        ("broken", json!({"posthaste_id": 7}), json!("X-Posthaste-Id"), false),
        ("a list of texts", json!(["posthaste_id"]), json!([null, 1]), false),
        ("nowhere", Value::Null, Value::Null, false),
    ];
    for (case, tags, headers, found) in cases {
        let report = report(&event("email.sent", json!({"tags": tags, "headers": headers})));
        assert_eq!(report.email.is_some(), found, "{case}");
    }
}

#[test]
fn moments_fall_back() {
    for created_at in [json!("yesterday"), json!(5), Value::Null] {
        let mut event = event("email.sent", json!({}));
        event["created_at"] = created_at;
        assert_eq!(report(&event).at, now());
    }
    let clicked = event("email.clicked", json!({"click": {"timestamp": "?"}}));
    assert_eq!(report(&clicked).at, time("2026-02-22T23:41:12.126Z"));
}

#[test]
fn notes_are_bounded_and_name_nobody() {
    let long = format!("{} ana@example.net {}", "x ".repeat(140), "y ".repeat(500));
    let bounced = report(&event(
        "email.bounced",
        json!({"bounce": {
            "type": "Z".repeat(1_000), "subType": "for ana@example.net", "diagnosticCode": long,
        }}),
    ));
    let diagnostic = bounced.metadata["diagnostic"].as_str().expect("a text");
    assert!(diagnostic.chars().count() <= 300 && diagnostic.contains("a***@e***.net"), "{diagnostic}");
    assert!(bounced.metadata["bounceType"].as_str().expect("a text").len() <= 100);
    assert_eq!(bounced.metadata["bounceSubType"], "for a***@e***.net");

    // Cut in the middle, an address must not come to light.
    for padding in 270..310 {
        let text = format!("{} ana.maria.silva@example.net", "x".repeat(padding));
        let bounced = report(&event("email.bounced", json!({"bounce": {"message": text}})));
        let diagnostic = bounced.metadata["diagnostic"].as_str().expect("a text");
        assert!(!diagnostic.contains("ana"), "{diagnostic}");
    }

    let words = [
        ("550 from 192.0.2.7.", "550 from ***."),
        ("550 192.0.2.7:25: no", "550 ***: no"),
        ("550 [IPv6:2001:db8::17]", "550 [IPv***]"),
        ("550 5.1.1 at 12:30:45", "550 5.1.1 at 12:30:45"),
        ("two\r\nlines\u{0}", "two  lines"),
    ];
    for (text, expected) in words {
        let bounced = report(&event("email.bounced", json!({"bounce": {"message": text}})));
        assert_eq!(bounced.metadata["diagnostic"], expected);
    }
}

#[test]
fn links_tell_where_and_not_who() {
    let cases = [
        ("https://example.com/a/b", Some("https://example.com/a/b")),
        ("https://example.com", Some("https://example.com/")),
        ("http://ana:secret@example.com/a", Some("http://example.com/a")),
        ("https://example.com:8443/a?token=1#b", Some("https://example.com/a")),
        ("https://example.com/u/ana@example.net/off", Some("https://example.com/u/***/off")),
        ("https://example.com/u/ana%40example.net", Some("https://example.com/u/***")),
        ("https://example.com/u/ana%2540example.net", Some("https://example.com/u/***")),
        ("mailto:ana@example.net", None),
        ("tel:+5511999999999", None),
        ("https://203.0.113.9/a", None),
        ("https://[2001:db8::1]/a", None),
        ("javascript:alert(1)", None),
        ("not a link", None),
        ("", None),
    ];
    for (link, expected) in cases {
        let clicked = report(&event("email.clicked", json!({"click": {"link": link}})));
        assert_eq!(clicked.metadata.get("link").and_then(Value::as_str), expected, "{link}");
    }
    let long = format!("https://example.com/{}", "a".repeat(5_000));
    let clicked = report(&event("email.clicked", json!({"click": {"link": long}})));
    assert_eq!(clicked.metadata["link"].as_str().map(str::len), Some(300));
}

#[test]
fn ids_that_are_none() {
    let body = event("email.sent", json!({})).to_string();
    let longest = "x".repeat(200);
    assert!(read(&longest, body.as_bytes(), now()).is_ok());
    for id in ["", "a\nb", "a\u{0}", "\u{7f}", &"x".repeat(201)] {
        assert!(read(id, body.as_bytes(), now()).is_err(), "{id:?}");
    }
    for email_id in [json!(""), json!("x".repeat(201)), json!("a\nb"), json!(5), Value::Null] {
        let report = report(&event("email.sent", json!({"email_id": email_id})));
        assert_eq!(report.provider_message_id, None, "{email_id}");
    }
}

#[test]
fn texts_that_are_no_event() {
    for body in [
        "",
        "x",
        "[]",
        "null",
        "{}",
        r#"{"type": 5}"#,
        r#"{"type": "email.sent"}"#,
        r#"{"type": "email.sent", "data": []}"#,
    ] {
        let unreadable = read("msg_1", body.as_bytes(), now()).expect_err(body);
        assert!(unreadable.to_string().starts_with("the provider's report cannot be read: it "), "{body}");
    }
    assert!(read("msg_1", &[0xff, 0xfe], now()).is_err());
}
