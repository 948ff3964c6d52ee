//! What providers report: believed only when they signed it, and answered 200 only once it is kept.

use std::time::Duration;

use axum::body::Body;
use metrics_exporter_prometheus::PrometheusBuilder;
use model::EmailId;
use serde_json::{Value, json};
use testkit::START;

use crate::hooks::{
    CERTIFICATE_URL, Hook, Notice, OLD_SECRET, SECRET, STRANGE_SECRET, Stage, resend_event, ses_event,
};
use crate::world::{good, world};

const TO: &str = "ana@example.com";

#[tokio::test]
async fn a_report_is_applied_once() {
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    let delivered = stage.resend("msg_1", &resend_event("email.delivered", id, TO));
    assert_eq!(stage.result(&delivered).await, "applied");
    assert_eq!(stage.status(id).await, "DELIVERED");
    assert_eq!(stage.result(&delivered).await, "repeated");
    let complaint = stage.ses("sns-1", &ses_event("Complaint", id, TO));
    assert_eq!(stage.result(&complaint).await, "applied");
    assert_eq!(stage.result(&complaint).await, "repeated");
    assert_eq!(stage.status(id).await, "COMPLAINED");
    let late = stage.resend("msg_2", &resend_event("email.delivered", id, TO));
    assert_eq!(stage.result(&late).await, "applied", "kept as an event");
    assert_eq!(stage.status(id).await, "COMPLAINED", "never backwards");
    let events = stage.world.get(&format!("/v1/emails/{id}/events")).key(&stage.world.live).send().await;
    let kinds: Vec<Value> =
        events.json()["data"].as_array().expect("data").iter().map(|event| event["type"].clone()).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "DELIVERED").count(), 2);
    assert_eq!(kinds.iter().filter(|kind| *kind == "COMPLAINED").count(), 1);
}

#[tokio::test]
async fn what_is_not_about_our_emails_is_taken_too() {
    let stage = Stage::new().await;
    let unknown = EmailId::new(START);
    let greeting = "Successfully validated SNS topic for Amazon SES event publishing.";
    let cases = [
        ("unknown email", stage.resend("a", &resend_event("email.bounced", unknown, TO)), "unmatched"),
        ("again", stage.resend("a", &resend_event("email.bounced", unknown, TO)), "repeated"),
        ("a contact", stage.resend("b", &json!({ "type": "contact.created", "data": {} })), "ignored"),
        ("unknown message", stage.ses("c", &ses_event("Bounce", unknown, TO)), "unmatched"),
        ("a greeting", stage.sns(&Notice::of("d", greeting)), "ignored"),
    ];
    for (case, hook, result) in cases {
        assert_eq!(stage.result(&hook).await, result, "{case}");
    }
}

/// The company had nobody on its list a moment ago, and that was remembered.
#[tokio::test]
async fn a_bounce_is_obeyed_at_once() {
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    let bounce = stage.resend("msg_1", &resend_event("email.bounced", id, TO));
    assert_eq!(stage.result(&bounce).await, "applied");
    let sent = stage.world.post("/v1/email/send").key(&stage.world.live).json(&good()).await;
    assert_eq!(sent.status, 202);
    assert_eq!(sent.json()["warnings"][0]["code"], "RECIPIENT_SUPPRESSED");
    let mut strict = good();
    strict["onSuppressed"] = json!("reject");
    let refused = stage.world.post("/v1/email/send").key(&stage.world.live).json(&strict).await;
    assert_eq!((refused.status, refused.code().as_str()), (422, "RECIPIENT_SUPPRESSED"));
    let listed = stage.world.get("/v1/suppressions").key(&stage.world.live).send().await.json();
    let suppression = &listed["data"][0];
    assert_eq!((&suppression["email"], &suppression["source"]), (&json!(TO), &json!("bounce")));
    assert_eq!(suppression["emailId"], id.to_string());
}

fn without(hook: &Hook, name: &str) -> Hook {
    let mut hook = hook.clone();
    hook.headers.retain(|(known, _)| *known != name);
    hook
}

fn with_header(hook: &Hook, name: &str, value: &str) -> Hook {
    let mut hook = hook.clone();
    for (_, old) in hook.headers.iter_mut().filter(|(known, _)| *known == name) {
        *old = value.to_owned();
    }
    hook
}

#[tokio::test]
async fn forged_events_of_resend_are_refused() {
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    let event = resend_event("email.complained", id, TO);
    let good = stage.resend("msg_1", &event);
    let now = stage.now_secs();
    let tampered = Hook { body: good.body.replace("complained", "bounced"), ..good.clone() };
    let signature = good.headers[2].1.clone();
    let cases = [
        ("another secret", stage.resend_by(STRANGE_SECRET, "msg_1", &event, now)),
        ("changed body", tampered),
        ("one blank more", Hook { body: format!("{} ", good.body), ..good.clone() }),
        ("another id", with_header(&good, "svix-id", "msg_2")),
        ("another time", with_header(&good, "svix-timestamp", &(now + 1).to_string())),
        ("old", stage.resend_by(SECRET, "msg_1", &event, now - 301)),
        ("from the future", stage.resend_by(SECRET, "msg_1", &event, now + 301)),
        ("no id", without(&good, "svix-id")),
        ("no time", without(&good, "svix-timestamp")),
        ("no signature", without(&good, "svix-signature")),
        ("no headers", Hook { headers: Vec::new(), ..good.clone() }),
        ("cut signature", with_header(&good, "svix-signature", &signature[..signature.len() - 4])),
        ("empty signature", with_header(&good, "svix-signature", "v1,")),
        ("another version", with_header(&good, "svix-signature", &signature.replace("v1,", "v2,"))),
        ("not UTF-8", with_header(&good, "svix-signature", "\u{fc}")),
        ("a message of SNS", Hook { path: good.path.clone(), ..stage.ses("x", &event) }),
    ];
    for (case, hook) in cases {
        let answer = stage.send(&hook).await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "INVALID_SIGNATURE"), "{case}");
        assert!(!answer.text().contains(TO) && !answer.text().contains("whsec_"), "{case}");
    }
    assert_eq!(stage.status(id).await, "SENT", "nothing was applied");
    assert_eq!(stage.result(&good).await, "applied", "and no id was used up");
}

#[tokio::test]
async fn both_secrets_and_both_families_of_headers_are_taken() {
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    let event = resend_event("email.opened", id, TO);
    let now = stage.now_secs();
    let old = stage.resend_by(OLD_SECRET, "msg_1", &event, now);
    let mut both = stage.resend_by(SECRET, "msg_2", &event, now);
    let other = stage.resend_by(STRANGE_SECRET, "msg_2", &event, now).headers[2].1.clone();
    both.headers[2].1 = format!("{other} v1a,xyz {}", both.headers[2].1);
    let mut twins = stage.resend_by(SECRET, "msg_3", &event, now - 299);
    for (header, name) in
        twins.headers.iter_mut().zip(["webhook-id", "webhook-timestamp", "webhook-signature"])
    {
        header.0 = name;
    }
    for (case, hook) in [("old secret", old), ("several signatures", both), ("webhook- headers", twins)] {
        assert_eq!(stage.result(&hook).await, "applied", "{case}");
    }
}

#[tokio::test]
async fn forged_messages_of_sns_are_refused() {
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    let event = ses_event("Complaint", id, TO).to_string();
    let notice = Notice::of("sns-1", &event);
    let good = stage.sns(&notice);
    let strange_url = "https://sns.test:8443/strange.pem";
    stage.web.put(strange_url, stage.signers.strange_pem.clone());
    stage.web.put("https://sns.test:8443/page.pem", "<html>no certificate</html>");
    let at = |url: &str| Notice { certificate_url: url.to_owned(), ..notice.clone() };
    let with_key = |notice: &Notice| notice.signed_by(&stage.signers.strange_key);
    let changed = |from: &str, to: &str| Hook { body: good.body.replace(from, to), ..good.clone() };
    let topic = Notice { topic: "arn:aws:sns:us-east-1:666666666666:theirs".into(), ..notice.clone() };
    let signature = "INVALID_SIGNATURE";
    let certificate = "UNTRUSTED_CERTIFICATE";
    let cases = [
        ("another key", with_key(&notice), 401, signature),
        ("changed message", changed("Complaint", "Bounce"), 401, signature),
        ("changed id", changed("sns-1", "sns-2"), 401, signature),
        (
            "version 1 of a version 2 signature",
            changed("\"SignatureVersion\":\"2\"", "\"SignatureVersion\":\"1\""),
            401,
            signature,
        ),
        ("no signature", changed("\"Signature\"", "\"Sig\""), 401, signature),
        ("not JSON", Hook { body: "hello".into(), ..good.clone() }, 401, signature),
        ("empty", Hook { body: String::new(), ..good.clone() }, 401, signature),
        ("the bare event", Hook { body: event.clone(), ..good.clone() }, 401, signature),
        ("a stranger's topic", stage.sns(&topic), 403, "UNKNOWN_TOPIC"),
        ("a stranger's certificate", with_key(&at(strange_url)), 403, certificate),
        ("a page", stage.sns(&at("https://sns.test:8443/page.pem")), 403, certificate),
        ("a stranger's host", with_key(&at("https://evil.example/signing.pem")), 403, certificate),
        ("a port of ours", with_key(&at("https://sns.test:9/signing.pem")), 403, certificate),
        ("metadata", with_key(&at("http://169.254.169.254/latest/a.pem")), 403, certificate),
        ("no certificate at all", stage.sns(&at("https://sns.test:8443/?x=.pem")), 403, certificate),
    ];
    for (case, hook, status, code) in cases {
        let answer = stage.send(&hook).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{case}: {}", answer.text());
    }
    let asked = stage.web.asked();
    assert!(asked.iter().all(|url| url.starts_with("https://sns.test:8443/")), "{asked:?}");
    stage.send(&with_key(&at(strange_url))).await;
    assert_eq!(stage.web.asked(), [strange_url], "a certificate that is refused is not kept");
    assert_eq!(stage.status(id).await, "SENT", "nothing was applied");
    assert_eq!(stage.result(&good).await, "applied", "and no id was used up");
}

#[tokio::test]
async fn a_certificate_is_fetched_once_an_hour() {
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    let open = |number: u32| stage.ses(&format!("sns-{number}"), &ses_event("Open", id, TO));
    for number in 0..3 {
        assert_eq!(stage.result(&open(number)).await, "applied");
    }
    assert_eq!(stage.web.asked(), [CERTIFICATE_URL]);
    stage.world.clock.advance(Duration::from_secs(3600));
    stage.web.remove(CERTIFICATE_URL);
    let unchecked = stage.send(&open(3)).await;
    assert_eq!((unchecked.status, unchecked.code().as_str()), (503, "CERTIFICATE_UNAVAILABLE"));
    stage.web.put(CERTIFICATE_URL, "x".repeat(64 * 1024 + 1));
    assert_eq!(stage.send(&open(3)).await.code(), "CERTIFICATE_UNAVAILABLE", "too large to be one");
    stage.web.put(CERTIFICATE_URL, stage.signers.pem.clone());
    assert_eq!(stage.result(&open(3)).await, "applied", "nothing was used up meanwhile");
    assert_eq!(stage.web.asked(), [CERTIFICATE_URL; 3]);
    assert_eq!(stage.result(&open(4)).await, "applied");
    assert!(stage.web.asked().is_empty());
}

#[tokio::test]
async fn a_subscription_is_confirmed() {
    let stage = Stage::new().await;
    let url = "https://sns.test:8443/?Action=ConfirmSubscription&Token=t-1";
    let confirmation = stage.sns(&Notice::confirmation("SubscriptionConfirmation", url));
    let failed = stage.send(&confirmation).await;
    assert_eq!((failed.status, failed.code().as_str()), (503, "SUBSCRIPTION_NOT_CONFIRMED"));
    assert!(!failed.text().contains("t-1"), "the token is not told");
    stage.web.put(url, "<ok/>");
    stage.web.asked();
    assert_eq!(stage.result(&confirmation).await, "confirmed");
    assert_eq!(stage.web.asked(), [url]);

    let gone = stage.sns(&Notice::confirmation("UnsubscribeConfirmation", url));
    assert_eq!(stage.result(&gone).await, "ignored");
    let elsewhere = Notice::confirmation("SubscriptionConfirmation", "https://evil.example/?Action=x");
    let refused = stage.send(&stage.sns(&elsewhere)).await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "FORBIDDEN_URL"));
    let forged = Notice::confirmation("SubscriptionConfirmation", url).signed_by(&stage.signers.strange_key);
    assert_eq!(stage.send(&forged).await.code(), "INVALID_SIGNATURE");
    assert!(stage.web.asked().is_empty(), "none of these was fetched");
}

#[tokio::test]
async fn what_was_signed_and_cannot_be_read() {
    let stage = Stage::new().await;
    let cases = [
        ("no type", stage.resend("a", &json!({}))),
        ("no data", stage.resend("a", &json!({ "type": "email.sent" }))),
        (
            "an id without end",
            stage.resend(&"i".repeat(201), &resend_event("email.sent", EmailId::new(START), TO)),
        ),
        ("not JSON", stage.sns(&Notice::of("a", "hello"))),
        ("no mail", stage.ses("a", &json!({ "eventType": "Bounce" }))),
    ];
    for (case, hook) in cases {
        let answer = stage.send(&hook).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "UNREADABLE_REPORT"), "{case}");
    }
}

#[tokio::test]
async fn providers_are_told_apart_by_kind_and_name() {
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    let resend = stage.resend("a", &resend_event("email.opened", id, TO));
    let ses = stage.ses("b", &ses_event("Open", id, TO));
    let cases = [
        ("/v1/webhooks/resend/post", &resend, 200),
        ("/v1/webhooks/ses/main", &ses, 200),
        ("/v1/webhooks/resend/main", &resend, 404),
        ("/v1/webhooks/ses/post", &ses, 404),
        ("/v1/webhooks/resend/other", &resend, 404),
        ("/v1/webhooks/resend/%ff", &resend, 404),
    ];
    for (path, hook, status) in cases {
        let answer = stage.send(&Hook { path: path.into(), ..hook.clone() }).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(status == 200 || answer.code() == "WEBHOOK_NOT_CONFIGURED", "{path}");
    }
    let without = world().await;
    for path in ["/v1/webhooks/resend", "/v1/webhooks/ses", "/v1/webhooks/ses/main"] {
        let answer = without.post(path).body("application/json", "{}").send().await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "WEBHOOK_NOT_CONFIGURED"), "{path}");
    }
}

#[tokio::test]
async fn a_store_that_is_gone_has_the_provider_try_again() {
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    stage.world.gateway.store.close().await;
    for hook in [
        stage.resend("a", &resend_event("email.bounced", id, TO)),
        stage.ses("b", &ses_event("Bounce", id, TO)),
    ] {
        let answer = stage.send(&hook).await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "STORE_UNAVAILABLE"));
        assert!(answer.header("retry-after").is_some());
    }
}

#[tokio::test]
async fn bodies_are_bounded() {
    let stage = Stage::new().await;
    for path in ["/v1/webhooks/resend", "/v1/webhooks/ses"] {
        let body = Body::from(vec![b' '; 256 * 1024 + 1]);
        let answer = stage.world.post(path).body("application/json", body).send().await;
        assert_eq!((answer.status, answer.code().as_str()), (413, "BODY_TOO_LARGE"), "{path}");
    }
    let id = stage.taken(json!({})).await;
    let mut event = resend_event("email.opened", id, TO);
    event["data"]["padding"] = json!("x".repeat(255 * 1024));
    assert_eq!(stage.result(&stage.resend("a", &event)).await, "applied");
}

#[tokio::test]
async fn webhooks_are_counted_by_what_became_of_them() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    let opened = stage.resend("a", &resend_event("email.opened", id, TO));
    stage.send(&opened).await;
    stage.send(&opened).await;
    stage.send(&without(&opened, "svix-id")).await;
    stage.send(&stage.resend("b", &resend_event("email.opened", EmailId::new(START), TO))).await;
    stage.send(&stage.resend("c", &json!({ "type": "domain.created" }))).await;
    stage.send(&stage.resend("d", &json!({}))).await;
    stage.send(&stage.sns(&Notice::of("e", "hello"))).await;
    stage.send(&Hook { path: "/v1/webhooks/resend/made-up".into(), ..opened }).await;
    stage.world.gateway.store.close().await;
    stage.send(&stage.ses("f", &ses_event("Open", id, TO))).await;
    let text = page.render();
    let mut counted: Vec<&str> = text.lines().filter(|line| line.starts_with("webhooks_in_total")).collect();
    counted.sort_unstable();
    let expected = [
        r#"webhooks_in_total{provider="main",result="failed"} 1"#,
        r#"webhooks_in_total{provider="main",result="refused"} 1"#,
        r#"webhooks_in_total{provider="post",result="applied"} 1"#,
        r#"webhooks_in_total{provider="post",result="ignored"} 1"#,
        r#"webhooks_in_total{provider="post",result="refused"} 2"#,
        r#"webhooks_in_total{provider="post",result="repeated"} 1"#,
        r#"webhooks_in_total{provider="post",result="unmatched"} 1"#,
    ];
    assert_eq!(counted, expected);
}

#[tokio::test]
async fn of_several_recipients_each_has_its_own_state() {
    let stage = Stage::new().await;
    let one = stage.taken(json!({})).await;
    let several = stage.taken(json!({ "cc": ["bob@example.com"], "bcc": ["carol@example.com"] })).await;
    let read = |id: EmailId| {
        let call = stage.world.get(&format!("/v1/emails/{id}")).key(&stage.world.live);
        async move { call.send().await.json() }
    };
    assert_eq!(read(one).await.get("recipients"), None);
    assert_eq!(read(several).await["recipients"], json!([]));
    let mut delivered = ses_event("Delivery", several, TO);
    delivered["delivery"]["timestamp"] = json!("2026-01-01T00:00:00.000Z");
    let bounced = ses_event("Bounce", several, "bob@example.com");
    for (id, event) in [("a", delivered), ("b", bounced)] {
        assert_eq!(stage.result(&stage.ses(id, &event)).await, "applied");
    }
    let email = read(several).await;
    let at = "2026-01-01T00:00:00.000Z";
    assert_eq!(
        email["recipients"],
        json!([
            { "address": TO, "status": "DELIVERED", "at": at },
            { "address": "bob@example.com", "status": "BOUNCED", "at": at },
        ])
    );
    assert_eq!(email["status"], "BOUNCED", "the worst of them");
}

#[tokio::test]
async fn raw_reports_are_for_the_operator() {
    let stage = Stage::new().await;
    let id = stage.taken(json!({})).await;
    let hook = stage.resend("a", &resend_event("email.opened", id, TO));
    let message = ses_event("Open", id, TO).to_string();
    assert_eq!(stage.result(&hook).await, "applied");
    stage.world.clock.advance(Duration::from_secs(1));
    assert_eq!(stage.result(&stage.sns(&Notice::of("b", &message))).await, "applied");
    let path = format!("/v1/admin/emails/{id}/reports");
    let shown = stage.world.get(&path).operator().send().await.json();
    assert_eq!(
        shown,
        json!({ "total": 2, "data": [
            { "id": "resend:a", "provider": "post", "receivedAt": "2026-01-01T00:00:00.000Z", "payload": hook.body },
            { "id": "ses:b", "provider": "main", "receivedAt": "2026-01-01T00:00:01.000Z", "payload": message },
        ] })
    );
    for number in 0..120 {
        let more = stage.resend(&format!("more-{number}"), &resend_event("email.opened", id, TO));
        assert_eq!(stage.result(&more).await, "applied");
    }
    let shown = stage.world.get(&path).operator().send().await.json();
    assert_eq!((&shown["total"], shown["data"].as_array().map(Vec::len)), (&json!(122), Some(100)));
    let refused = stage.world.get(&path).key(&stage.world.admin).send().await;
    assert_eq!(refused.status, 401, "a company's key does not open it");
    for missing in [EmailId::new(START).to_string(), "x".to_owned()] {
        let path = format!("/v1/admin/emails/{missing}/reports");
        assert_eq!(stage.world.get(&path).operator().send().await.code(), "EMAIL_NOT_FOUND");
    }
    let events = stage.world.get(&format!("/v1/emails/{id}/events")).key(&stage.world.live).send().await;
    assert!(!events.text().contains("posthaste_id"), "the public history does not hold the payload");
}
