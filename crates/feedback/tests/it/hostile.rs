//! Whatever comes in: no panic, no belief, nobody named.

use feedback::sns::{Envelope, Root, Trust, TrustedHost, verify};
use feedback::svix::{self, Headers, SigningSecret};
use feedback::{resend, ses};
use model::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::now;
use crate::sns::TOPIC;

const ADDRESS: &str = "ana.maria@example.net";
const IP: &str = "203.0.113.77";

fn secret() -> SigningSecret {
    SigningSecret::parse("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX").expect("a secret")
}

/// Any JSON, with the words of providers among its keys and texts.
fn any_json() -> impl Strategy<Value = Value> {
    let words = [
        "type",
        "data",
        "to",
        "bounce",
        "subType",
        "diagnosticCode",
        "message",
        "click",
        "link",
        "userAgent",
        "failed",
        "reason",
        "suppressed",
        "tags",
        "headers",
        "name",
        "value",
        "posthaste_id",
        "created_at",
        "mail",
        "eventType",
        "bouncedRecipients",
        "emailAddress",
        "destination",
        "Permanent",
        "Bounce",
        "Complaint",
        "email.bounced",
        "email.clicked",
        "Click",
        "Delivery",
        "delivery",
        "complaint",
        "complainedRecipients",
        "status",
    ];
    let word = prop::sample::select(words.to_vec()).prop_map(str::to_owned);
    let text = prop_oneof![
        word.clone(),
        any::<String>(),
        Just(format!("x {ADDRESS} y {IP}")),
        Just(ADDRESS.to_owned())
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((word.clone(), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_no_event(body in prop::collection::vec(any::<u8>(), 0..400), id in any::<String>()) {
        let _ = resend::read(&id, &body, now());
        let _ = ses::read(&id, &String::from_utf8_lossy(&body), now());
        prop_assert!(Envelope::parse(&body).is_err());
    }

    #[test]
    fn arbitrary_texts_open_no_door(text in any::<String>(), millis in any::<i64>()) {
        let now = Timestamp::from_millis(millis);
        let headers = Headers { id: &text, timestamp: &text, signature: &text };
        prop_assert!(svix::verify(&[secret()], &headers, text.as_bytes(), now).is_err());
        prop_assert!(SigningSecret::parse(&text).is_err());
        let _ = TrustedHost::parse(&text);
        let _ = Root::read_all(&text);
        let _ = Root::read_all(&format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"));
    }

    #[test]
    fn only_hosts_of_sns_are_fetched_from(url in "(https?|ftp)://[a-z.@:/\\\\%0-9-]{0,12}(sns\\.[a-z0-9-]{1,9}\\.amazonaws\\.com)?[a-z.@:/\\\\%0-9?#-]{0,12}(/a\\.pem)?") {
        let body = json!({
            "Type": "Notification", "MessageId": "1", "TopicArn": TOPIC, "Message": "", "Timestamp": "",
            "SignatureVersion": "1", "Signature": "", "SigningCertURL": url,
        });
        let trust = Trust { topics: vec![TOPIC.to_owned()], ..Trust::default() };
        let envelope = Envelope::parse(body.to_string().as_bytes()).expect("an envelope");
        if let Ok(url) = envelope.certificate_url(&trust) {
            let host = url.host_str().expect("a host");
            prop_assert!(host.starts_with("sns.") && host.ends_with(".amazonaws.com"), "{}", url);
            prop_assert!(url.scheme() == "https" && url.port().is_none() && url.username().is_empty(), "{}", url);
        }
    }

    #[test]
    fn arbitrary_certificates_are_refused(der in prop::collection::vec(any::<u8>(), 0..300), cut in 0_usize..2_000) {
        use base64::Engine;
        let file = crate::vectors(include_str!("../vectors/sns.json"));
        let envelope = Envelope::parse(file["vectors"][1]["envelope"].to_string().as_bytes()).expect("an envelope");
        let trust = Trust { topics: vec![TOPIC.to_owned()], ..Trust::default() };
        let encoded = base64::engine::general_purpose::STANDARD.encode(&der);
        let random = format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n");
        prop_assert!(verify(&envelope, &random, &trust, now()).is_err());

        // The real one, with one byte changed: most changes spoil what is not looked at (its own signature, which
        // nobody checks for a certificate that came from AWS), so that no panic is all that is asked.
        let pem = file["certificate"].as_str().expect("a certificate");
        let inner: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let mut changed = base64::engine::general_purpose::STANDARD.decode(inner).expect("base64");
        let place = cut % changed.len();
        changed[place] ^= 1 << (cut % 8);
        let encoded = base64::engine::general_purpose::STANDARD.encode(&changed);
        let _ = verify(&envelope, &format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n"), &trust, now());
    }

    #[test]
    fn events_of_any_shape_are_read(data in any_json(), mail in any_json()) {
        for event in events(&data, &mail) {
            let text = event.to_string();
            prop_assert!(resend::read("1", text.as_bytes(), now()).is_ok() || ses::read("1", &text, now()).is_ok());
        }
    }

    #[test]
    fn notes_name_nobody(before in "[a-z @.:]{0,320}", after in "[a-z @.:]{0,20}") {
        let text = format!("{before} {ADDRESS} <{IP}> {after}");
        let link = format!("https://shop.example.com/{ADDRESS}/a?to={ADDRESS}&from={IP}#{ADDRESS}");
        let recipient = json!({"emailAddress": ADDRESS, "status": text, "diagnosticCode": text});
        let data = json!({
            "type": text, "subType": text, "message": text, "diagnosticCode": [text], "reason": text, "link": link,
            "ipAddress": IP, "bounceType": text, "bounceSubType": text, "bouncedRecipients": [recipient],
            "complainedRecipients": [recipient], "complaintFeedbackType": text, "complaintSubType": text,
            "delayType": text, "delayedRecipients": [recipient], "smtpResponse": text, "templateName": text,
            "errorMessage": text, "userAgent": format!("{before} {ADDRESS}"), "recipients": [ADDRESS],
        });
        let mut notes = 0;
        for event in events(&data, &json!([ADDRESS])) {
            let text = event.to_string();
            let report = match event.get("type") {
                Some(_) => resend::read("1", text.as_bytes(), now()),
                None => ses::read("1", &text, now()),
            };
            let report = report.expect("readable").expect("a report");
            notes += report.metadata.len();
            let shown = format!("{report:?} {}", Value::Object(report.metadata.clone()));
            prop_assert!(!shown.contains("ana.maria") && !shown.contains(IP), "{}", shown);
        }
        prop_assert!(notes > 40, "only {} notes were looked at", notes);
    }
}

/// One event of every type, with `data` as what it tells and `mail` as everything about the email.
fn events(data: &Value, mail: &Value) -> Vec<Value> {
    let resend = ["bounced", "clicked", "failed", "suppressed", "complained", "sent"].map(|name| {
        json!({"type": format!("email.{name}"), "created_at": mail, "data": {
            "bounce": data, "click": data, "failed": data, "suppressed": data, "tags": mail, "to": mail, "headers": mail,
        }})
    });
    let names =
        ["Bounce", "Complaint", "Click", "Delivery", "DeliveryDelay", "Reject", "Rendering Failure", "Open"];
    let ses = names.map(|name| {
        json!({
            "eventType": name, "mail": {"tags": mail, "headers": mail, "destination": mail, "messageId": mail},
            "bounce": data, "complaint": data, "click": data, "delivery": data, "deliveryDelay": data, "reject": data,
            "failure": data, "open": data,
        })
    });
    [resend.to_vec(), ses.to_vec()].concat()
}
