//! What the events of SES become: one case per type, then the odd ones.

use feedback::ses::read;
use model::{Bounce, Report, ReportKind};
use serde_json::{Value, json};

use crate::{OUR_ID, exposed, now, time};

const MAIL_TIME: &str = "2026-02-22T23:41:00.000Z";
const EVENT_TIME: &str = "2026-02-22T23:41:12.126Z";

/// An event of a configuration set; `part` is the object named after the type.
fn event(name: &str, part_name: &str, part: Value) -> Value {
    let mut event = json!({
        "eventType": name,
        "mail": {
            "timestamp": MAIL_TIME,
            "source": "Shop <shop@example.com>",
            "sourceArn": "arn:aws:ses:us-east-1:123456789012:identity/example.com",
            "sendingAccountId": "123456789012",
            "messageId": "0100017f-0000",
            "destination": ["ana@example.net", "bob@example.net"],
            "headersTruncated": false,
            "headers": [{"name": "From", "value": "shop@example.com"}, {"name": "X-Posthaste-Id", "value": OUR_ID}],
            "commonHeaders": {"from": ["shop@example.com"], "to": ["ana@example.net"], "subject": "Your order"},
            "tags": {"ses:source-ip": ["203.0.113.9"], "posthaste_id": [OUR_ID]},
        },
    });
    event[part_name] = part;
    event
}

fn report(event: &Value) -> Report {
    read("sns-1", &event.to_string(), now()).expect("readable").expect("a report")
}

fn bounce_event(kind: Value, sub_kind: Value, recipients: Value) -> Value {
    let part = json!({
        "bounceType": kind, "bounceSubType": sub_kind, "bouncedRecipients": recipients, "timestamp": EVENT_TIME,
        "feedbackId": "f1", "reportingMTA": "dsn; a.example.com",
    });
    event("Bounce", "bounce", part)
}

fn ana() -> Value {
    json!([{"emailAddress": "ana@example.net", "action": "failed", "status": "5.1.1",
        "diagnosticCode": "smtp; 550 5.1.1 ana@example.net unknown"}])
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn every_type_is_read() {
    let at = EVENT_TIME;
    let agent = "Mozilla/5.0 Chrome/120.0.0.0";
    let cases = [
        (event("Send", "send", json!({})), ReportKind::Sent, vec![], MAIL_TIME, json!({})),
        (
            event(
                "Delivery",
                "delivery",
                json!({
                    "timestamp": at, "processingTimeMillis": 546, "recipients": ["ana@example.net"],
                    "smtpResponse": "250 ok for ana@example.net", "reportingMTA": "a.example.com",
                }),
            ),
            ReportKind::Delivered,
            vec!["ana@example.net"],
            at,
            json!({"diagnostic": "250 ok for a***@e***.net"}),
        ),
        (
            bounce_event(json!("Permanent"), json!("General"), ana()),
            ReportKind::Bounced(Bounce::Hard),
            vec!["ana@example.net"],
            at,
            json!({
                "bounceType": "Permanent", "bounceSubType": "General", "smtpStatus": "5.1.1",
                "diagnostic": "smtp; 550 5.1.1 a***@e***.net unknown",
            }),
        ),
        (
            event(
                "Complaint",
                "complaint",
                json!({
                    "complainedRecipients": [{"emailAddress": "ana@example.net"}], "timestamp": at, "feedbackId": "f1",
                    "complaintSubType": null, "userAgent": "Reporter/1.0", "complaintFeedbackType": "abuse",
                }),
            ),
            ReportKind::Complained,
            vec!["ana@example.net"],
            at,
            json!({"complaintFeedbackType": "abuse", "userAgent": "Reporter/1.0"}),
        ),
        (
            event("Reject", "reject", json!({"reason": "Bad content"})),
            ReportKind::Failed,
            vec![],
            MAIL_TIME,
            json!({"errorCode": "SES_REJECTED", "reason": "Bad content"}),
        ),
        (
            event(
                "DeliveryDelay",
                "deliveryDelay",
                json!({
                    "timestamp": at, "delayType": "TransientCommunicationFailure", "expirationTime": "2026-02-23T23:41:12Z",
                    "delayedRecipients": [{"emailAddress": "bob@example.net", "status": "4.4.1",
                        "diagnosticCode": "smtp; 421 4.4.1 no answer from 192.0.2.1"}],
                }),
            ),
            ReportKind::Delayed,
            vec!["bob@example.net"],
            at,
            json!({
                "delayType": "TransientCommunicationFailure", "smtpStatus": "4.4.1",
                "diagnostic": "smtp; 421 4.4.1 no answer from ***",
            }),
        ),
        (
            event(
                "Rendering Failure",
                "failure",
                json!({
                    "templateName": "welcome", "errorMessage": "Attribute 'name' is missing for ana@example.net",
                }),
            ),
            ReportKind::Failed,
            vec![],
            MAIL_TIME,
            json!({
                "errorCode": "SES_RENDERING_FAILURE", "template": "welcome",
                "reason": "Attribute 'name' is missing for a***@e***.net",
            }),
        ),
        (
            event("Open", "open", json!({"ipAddress": "203.0.113.9", "timestamp": at, "userAgent": agent})),
            ReportKind::Opened,
            vec![],
            at,
            json!({"userAgent": agent}),
        ),
        (
            event(
                "Click",
                "click",
                json!({
                    "ipAddress": "203.0.113.9", "timestamp": at, "userAgent": agent, "link": "https://example.com/a?b=c",
                    "linkTags": {"who": ["ana@example.net"]},
                }),
            ),
            ReportKind::Clicked,
            vec![],
            at,
            json!({"userAgent": agent, "link": "https://example.com/a"}),
        ),
        (
            event(
                "Subscription",
                "subscription",
                json!({
                    "contactList": "news", "timestamp": at, "source": "UnsubscribeHeader",
                    "newTopicPreferences": {"unsubscribeAll": true, "topicSubscriptionStatus": []},
                }),
            ),
            ReportKind::Other,
            vec![],
            at,
            json!({}),
        ),
        (event("OfTomorrow", "ofTomorrow", json!({})), ReportKind::Other, vec![], MAIL_TIME, json!({})),
    ];
    for (event, kind, recipients, at, mut metadata) in cases {
        let name = event["eventType"].as_str().expect("a name");
        metadata["providerEvent"] = json!(name);
        let report = report(&event);
        assert_eq!(report.kind, kind, "{name}");
        assert_eq!(Value::Object(report.metadata.clone()), metadata, "{name}");
        assert_eq!(exposed(&report), recipients, "{name}");
        assert_eq!(report.at, time(at), "{name}");
        assert_eq!(report.id, "ses:sns-1", "{name}");
        assert_eq!(report.provider_message_id.as_deref(), Some("0100017f-0000"), "{name}");
        assert_eq!(report.email.map(|id| id.to_string()).as_deref(), Some(OUR_ID), "{name}");
    }
}

/// Feedback of an identity has another name at the top and no tags.
#[test]
fn feedback_of_an_identity_is_read_alike() {
    let complaint =
        json!({"complainedRecipients": [{"emailAddress": "ana@example.net"}], "timestamp": EVENT_TIME});
    let delivery = json!({"recipients": ["ana@example.net"], "timestamp": EVENT_TIME});
    for published in [
        bounce_event(json!("Permanent"), json!("General"), ana()),
        event("Complaint", "complaint", complaint),
        event("Delivery", "delivery", delivery),
    ] {
        let mut feedback = published.clone();
        let name = feedback.as_object_mut().expect("an object").remove("eventType").expect("a name");
        feedback["notificationType"] = name;
        feedback["mail"].as_object_mut().expect("an object").remove("tags");
        assert_eq!(report(&feedback), report(&published), "our id is in the headers too");
    }
}

#[test]
fn bounces_tell_of_addresses_and_of_content() {
    use Bounce::{Hard, Soft, Unclear};
    let cases = [
        ("Permanent", "General", Hard, false),
        ("Permanent", "NoEmail", Hard, false),
        ("Permanent", "Suppressed", Hard, true),
        ("Permanent", "OnAccountSuppressionList", Hard, true),
        ("Permanent", "ContentRejected", Unclear, false),
        ("Transient", "General", Soft, false),
        ("Transient", "MailboxFull", Soft, false),
        ("Transient", "MessageTooLarge", Soft, false),
        ("Transient", "ContentRejected", Soft, false),
        ("Transient", "AttachmentRejected", Soft, false),
        ("Undetermined", "Undetermined", Unclear, false),
        ("OfTomorrow", "General", Unclear, false),
    ];
    for (kind, sub_kind, expected, suppressed) in cases {
        let report = report(&bounce_event(json!(kind), json!(sub_kind), ana()));
        assert_eq!(report.kind, ReportKind::Bounced(expected), "{kind} {sub_kind}");
        assert_eq!(
            report.metadata.get("suppressed"),
            suppressed.then_some(&json!(true)),
            "{kind} {sub_kind}"
        );
    }
}

#[test]
fn complaints_are_not_all_alike() {
    let cases = [
        (json!("abuse"), Value::Null, ReportKind::Complained, false),
        (json!("fraud"), Value::Null, ReportKind::Complained, false),
        (Value::Null, Value::Null, ReportKind::Complained, false),
        (Value::Null, json!("OnAccountSuppressionList"), ReportKind::Complained, true),
        (json!("not-spam"), Value::Null, ReportKind::Other, false),
    ];
    for (feedback, sub_kind, expected, suppressed) in cases {
        let report = report(&event(
            "Complaint",
            "complaint",
            json!({
                "complainedRecipients": [{"emailAddress": "ana@example.net"}],
                "complaintFeedbackType": feedback, "complaintSubType": sub_kind,
            }),
        ));
        let name = format!("{feedback} {sub_kind}");
        assert_eq!(report.kind, expected, "{name}");
        assert_eq!(report.metadata.contains_key("suppressed"), suppressed, "{name}");
        assert_eq!(
            report.metadata.get("complaintFeedbackType").cloned().unwrap_or_default(),
            feedback,
            "{name}"
        );
        assert_eq!(report.metadata.get("complaintSubType").cloned().unwrap_or_default(), sub_kind, "{name}");
    }
}

#[test]
fn nobody_is_blamed_for_somebody_else() {
    let who = |address: &str| json!({"emailAddress": address});
    let two = json!(["ana@example.net", "bob@example.net"]);
    let cases = [
        ("named", json!([who("ana@example.net")]), two.clone(), vec!["ana@example.net"]),
        ("with a name", json!([who("Ana <ana@example.net>")]), two.clone(), vec!["ana@example.net"]),
        ("one unreadable", json!([who("?"), who("bob@example.net")]), two.clone(), vec!["bob@example.net"]),
        ("unreadable, one address", json!([who("?")]), json!(["ana@example.net"]), vec!["ana@example.net"]),
        ("missing, one address", Value::Null, json!(["ana@example.net"]), vec!["ana@example.net"]),
        ("unreadable, two addresses", json!([who("?")]), two.clone(), vec![]),
        ("missing, two addresses", Value::Null, two.clone(), vec![]),
        ("missing altogether", Value::Null, Value::Null, vec![]),
        ("odd", json!([5, "ana@example.net", {}]), two, vec![]),
    ];
    for (case, list, destination, recipients) in cases {
        let complaint = event("Complaint", "complaint", json!({"complainedRecipients": list}));
        let bounce = bounce_event(json!("Permanent"), json!("General"), list);
        let is_known = !recipients.is_empty();
        let bounced = ReportKind::Bounced(if is_known { Bounce::Hard } else { Bounce::Unclear });
        let complained = if is_known { ReportKind::Complained } else { ReportKind::Other };
        for (mut event, kind) in [(bounce, bounced), (complaint, complained)] {
            event["mail"]["destination"] = destination.clone();
            let report = report(&event);
            assert_eq!(exposed(&report), recipients, "{case}");
            assert_eq!(report.kind, kind, "{case}");
            assert_eq!(report.metadata.contains_key("recipientUnknown"), !is_known, "{case}");
        }
    }
}

#[test]
fn moments_fall_back() {
    let opened = |at: Value| event("Open", "open", json!({"timestamp": at}));
    assert_eq!(report(&opened(json!(EVENT_TIME))).at, time(EVENT_TIME));
    for at in [json!("2026-02-22"), json!(5), Value::Null] {
        assert_eq!(report(&opened(at.clone())).at, time(MAIL_TIME), "{at}");
        let mut without_any = opened(at);
        without_any["mail"]["timestamp"] = json!("?");
        assert_eq!(report(&without_any).at, now());
    }
}

#[test]
fn a_mail_may_say_little() {
    let bare = json!({"eventType": "Send", "mail": {}});
    let report = report(&bare);
    assert_eq!((report.email, report.provider_message_id), (None, None));
}

#[test]
fn what_is_not_about_emails_sent_is_ignored() {
    let greetings = [
        "Successfully validated SNS topic for Amazon SES event publishing.".to_owned(),
        json!({"notificationType": "AmazonSnsSubscriptionSucceeded", "message": "You are subscribed."})
            .to_string(),
        json!({"notificationType": "Received", "mail": {}, "receipt": {}, "content": "…"}).to_string(),
    ];
    for text in greetings {
        assert_eq!(read("sns-1", &text, now()), Ok(None), "{text}");
    }
}

#[test]
fn texts_that_are_no_event() {
    for text in [
        "",
        "hello",
        "[]",
        "{}",
        r#"{"eventType": 5}"#,
        r#"{"eventType": "Send"}"#,
        r#"{"eventType": "Send", "mail": "x"}"#,
    ] {
        assert!(read("sns-1", text, now()).is_err(), "{text}");
    }
    let event = event("Send", "send", json!({})).to_string();
    for id in ["", "a\nb", &"x".repeat(201)] {
        assert!(read(id, &event, now()).is_err(), "{id:?}");
    }
}
