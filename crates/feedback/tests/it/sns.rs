//! Messages of SNS: what others signed is believed, and nothing of it can be changed.

use feedback::sns::{Envelope, Message, MessageKind, SnsError, Trust, verify};
use serde_json::{Value, json};

use crate::{now, time, vectors};

pub const TOPIC: &str = "arn:aws:sns:us-east-1:123456789012:ses-events";

pub fn trust() -> Trust {
    Trust { topics: vec![TOPIC.to_owned()], ..Trust::default() }
}

fn file() -> Value {
    vectors(include_str!("../vectors/sns.json"))
}

fn believed(envelope: &Value, trust: &Trust) -> Result<Message, SnsError> {
    let certificate = file()["certificate"].as_str().expect("a certificate").to_owned();
    verify(&Envelope::parse(envelope.to_string().as_bytes())?, &certificate, trust, now())
}

fn each_vector(mut check: impl FnMut(&str, &Value)) {
    for vector in file()["vectors"].as_array().expect("a list") {
        check(vector["case"].as_str().expect("a name"), &vector["envelope"]);
    }
}

#[test]
fn what_was_signed_is_believed() {
    let mut kinds = Vec::new();
    each_vector(|case, envelope| {
        let message = believed(envelope, &trust()).expect(case);
        assert_eq!(message.id, envelope["MessageId"], "{case}");
        assert_eq!(message.topic, TOPIC, "{case}");
        let subscribe_url = envelope.get("SubscribeURL").and_then(Value::as_str);
        assert_eq!(message.subscribe_url().map(|url| url.as_str()), subscribe_url, "{case}");
        let shown = format!("{message:?}");
        assert!(!shown.contains("2336412f37") && !shown.contains("lines"), "{case}: {shown}");
        kinds.push(match message.kind {
            MessageKind::Notification(text) => {
                assert_eq!(text.expose().as_str(), envelope["Message"], "{case}");
                "Notification"
            }
            MessageKind::SubscriptionConfirmation(_) => "SubscriptionConfirmation",
            MessageKind::UnsubscribeConfirmation(_) => "UnsubscribeConfirmation",
        });
        assert_eq!(*kinds.last().expect("just pushed"), envelope["Type"], "{case}");
    });
    assert_eq!(kinds.len(), 10, "five messages, each in both versions");
}

/// The emulator moto signs as SNS does, with SHA-256.
#[test]
fn what_moto_signed_is_believed() {
    let file = vectors(include_str!("../vectors/sns-moto.json"));
    let envelope = Envelope::parse(file["envelope"].to_string().as_bytes()).expect("an envelope");
    let topic = file["envelope"]["TopicArn"].as_str().expect("a topic");
    let trust = Trust { topics: vec![topic.to_owned()], ..Trust::default() };
    let certificate = file["certificate"].as_str().expect("a certificate");
    let message = verify(&envelope, certificate, &trust, time("2027-01-01T00:00:00Z")).expect("believed");
    assert!(matches!(message.kind, MessageKind::Notification(_)));
}

#[test]
fn no_signed_field_can_be_changed() {
    let host = "https://sns.us-east-1.amazonaws.com/";
    let changes = [
        ("Message", json!("something else")),
        ("MessageId", json!("5f8d1c8e-0c2b-5b5f-9a53-000000000000")),
        ("Subject", json!("another subject")),
        ("Timestamp", json!("2026-03-01T10:00:00.001Z")),
        ("TopicArn", json!("arn:aws:sns:us-east-1:123456789012:other")),
        ("Type", json!("Notification")),
        ("Type", json!("SubscriptionConfirmation")),
        ("Type", json!("UnsubscribeConfirmation")),
        ("Token", json!("2336412f38")),
        ("SubscribeURL", json!(format!("{host}?Action=ConfirmSubscription&Token=1"))),
        ("SignatureVersion", json!("1")),
        ("SignatureVersion", json!("2")),
        ("Signature", json!("AAAA")),
        ("Signature", json!("")),
    ];
    let mut trust = trust();
    trust.topics.push("arn:aws:sns:us-east-1:123456789012:other".to_owned());
    let mut refused = 0;
    each_vector(|case, envelope| {
        for (field, value) in &changes {
            let is_notification = envelope["Type"] == "Notification";
            let is_unsigned = match *field {
                "Subject" => !is_notification,
                "SubscribeURL" => is_notification,
                "Token" => is_notification || case.contains("without token"),
                _ => false,
            };
            if is_unsigned || envelope.get(field) == Some(value) {
                continue;
            }
            let mut changed = envelope.clone();
            changed[field] = value.clone();
            let result = believed(&changed, &trust);
            let expected = match &changed["Type"] {
                kind if kind != "Notification" && is_notification => {
                    SnsError::NotAnEnvelope("a confirmation without Token or SubscribeURL")
                }
                _ => SnsError::Signature,
            };
            assert_eq!(result, Err(expected), "{case}: {field}");
            refused += 1;
        }
    });
    assert!(refused > 80, "only {refused} changes were tried");
}

#[test]
fn a_subject_cannot_be_taken_away_or_added() {
    each_vector(|case, envelope| {
        let mut changed = envelope.clone();
        if changed.as_object_mut().expect("an object").remove("Subject").is_none() {
            changed["Subject"] = json!("");
        }
        let believed = believed(&changed, &trust()).is_ok();
        assert_eq!(believed, envelope["Type"] != "Notification", "{case}");
    });
}

/// Moves the border between message and subject: the same lines, another meaning.
#[test]
fn line_breaks_cannot_move_borders() {
    let subject_vector = &file()["vectors"][2]["envelope"];
    let id = subject_vector["MessageId"].as_str().expect("an id");
    let subject = subject_vector["Subject"].as_str().expect("a subject");
    let mut moved = subject_vector.clone();
    moved.as_object_mut().expect("an object").remove("Subject");
    moved["MessageId"] = json!(format!("{id}\nSubject\n{subject}"));
    assert_eq!(
        believed(&moved, &trust()),
        Err(SnsError::NotAnEnvelope("a control character outside of Message"))
    );
}

#[test]
fn unsigned_and_unknown_fields_do_not_matter() {
    each_vector(|case, envelope| {
        let mut more = envelope.clone();
        more["UnsubscribeURL"] = json!("https://evil.example/");
        more["Unknown"] = json!({"a": [1, 2]});
        assert!(believed(&more, &trust()).is_ok(), "{case}");
    });
}

#[test]
fn envelopes_that_are_none() {
    let good = file()["vectors"][0]["envelope"].clone();
    let changed = |field: &str, value: Value| {
        let mut changed = good.clone();
        changed[field] = value;
        changed.to_string()
    };
    let without = |field: &str| {
        let mut changed = good.clone();
        changed.as_object_mut().expect("an object").remove(field);
        changed.to_string()
    };
    let fields = "not JSON with the fields of SNS";
    let twice = good.to_string().replacen('{', r#"{"TopicArn":"arn:other","#, 1);
    let cases = [
        ("empty", String::new(), fields),
        ("a list", "[]".to_owned(), fields),
        ("no MessageId", without("MessageId"), fields),
        ("no TopicArn", without("TopicArn"), fields),
        ("no SigningCertURL", without("SigningCertURL"), fields),
        ("no Signature", without("Signature"), fields),
        ("no SignatureVersion", without("SignatureVersion"), fields),
        ("a number as Message", changed("Message", json!(1)), fields),
        ("an object as Message", changed("Message", json!({})), fields),
        ("a number as version", changed("SignatureVersion", json!(1)), fields),
        ("a field twice", twice, fields),
        ("version 3", changed("SignatureVersion", json!("3")), "unknown SignatureVersion"),
        ("unknown type", changed("Type", json!("notification")), "unknown Type"),
        ("broken signature", changed("Signature", json!("FAKE!")), "Signature is not base64"),
    ];
    for (case, body, expected) in cases {
        let refused = Envelope::parse(body.as_bytes()).map(|_| ());
        assert_eq!(refused, Err(SnsError::NotAnEnvelope(expected)), "{case}");
    }
}

#[test]
fn only_topics_on_the_list_are_heard() {
    let lists = [vec![], vec!["arn:aws:sns:us-east-1:123456789012:other"], vec!["ses-events"], vec!["*"]];
    each_vector(|case, envelope| {
        for topics in &lists {
            let topics = topics.iter().map(ToString::to_string).collect();
            let trust = Trust { topics, ..Trust::default() };
            let parsed = Envelope::parse(envelope.to_string().as_bytes()).expect(case);
            assert_eq!(
                parsed.certificate_url(&trust),
                Err(SnsError::Topic),
                "{case}: before anything is fetched"
            );
            assert_eq!(believed(envelope, &trust), Err(SnsError::Topic), "{case}");
        }
    });
}
