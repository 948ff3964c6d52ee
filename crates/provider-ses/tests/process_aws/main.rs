//! The SES provider against others: an AWS emulator in another process, and, in processes of its own, the ways in
//! which AWS hands out credentials.

mod credentials;
mod emulator;

use emulator::Emulator;
use model::email::Outgoing;
use model::{Category, Content};
use provider::{Account, Provider, Quota, Taken};
use provider_ses::{Credentials, Identity, SesConfig, SesProvider};
use serde_json::{Value, json};
use testkit::{a_company, a_full_email, an_email, an_outgoing};

fn provider(emulator: &Emulator) -> SesProvider {
    let config = SesConfig::parse(Some("us-east-1"), Some(&emulator.url()), None).expect("a configuration");
    SesProvider::with_credentials(config, Credentials::new("test", "test"))
}

fn without_time(mut message: Value) -> Value {
    message.as_object_mut().expect("an object").remove("Timestamp");
    message
}

/// What it recorded as sent is what we said we sent.
#[tokio::test]
async fn sent_is_what_was_recorded() {
    let emulator = Emulator::start();
    emulator.verify("acme.test").await;
    let ses = provider(&emulator);
    let raw = an_outgoing(a_full_email(a_company("acme").id), "João <shop@acme.test>");
    let mut simple = raw.clone();
    simple.content =
        Content::Composed { html: "<p>Olá</p>".into(), text: Some("Olá".into()), attachments: vec![] };
    simple.envelope.headers.clear();
    let eml = "From: Shop <shop@acme.test>\r\nTo: ana@example.com\r\nBcc: hidden@example.com\r\n\
               Subject: =?utf-8?B?T2zDoQ==?=\r\n\r\nHi\r\n";
    let mut given = an_outgoing(an_email(a_company("acme").id), "Shop <shop@acme.test>");
    given.envelope = message::read_envelope(eml.as_bytes()).expect("an envelope");
    given.content = Content::Raw(eml.into());

    let mut ids = Vec::new();
    for email in [&simple, &raw, &given] {
        ids.push(ses.send(email).await.expect("taken").message_id.expect("an id"));
    }
    let sent: Vec<Value> = emulator.sent().await.into_iter().map(without_time).collect();
    let composed = |id: &str, html: &str, text: &str| {
        json!({
            "MessageId": id,
            "Type": "v2.SendEmail",
            "Source": "=?utf-8?B?Sm/Do28=?= <shop@acme.test>",
            "To": ["Ana.Maria@example.com"],
            "CC": ["bob@example.com", "carol@example.org"],
            "BCC": ["dave@example.net"],
            "Subject": "Olá, \"Ana\" 🎉 — it's here",
            "BodyHtml": html,
            "BodyText": text,
        })
    };
    let expected = [
        composed(&ids[0], "<p>Olá</p>", "Olá"),
        composed(&ids[1], "<p>Olá <b>Ana</b></p>", "Olá Ana"),
        json!({
            "MessageId": ids[2], "Type": "v2.SendEmail", "Source": "Shop <shop@acme.test>",
            "To": ["ana@example.com"], "CC": [], "BCC": ["hidden@example.com"], "Subject": "Olá",
            "BodyHtml": null, "BodyText": "Hi\r\n",
        }),
    ];
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn an_unverified_sender_is_rejected() {
    let emulator = Emulator::start();
    emulator.verify("acme.test").await;
    let email = an_outgoing(an_email(a_company("acme").id), "shop@elsewhere.test");
    let error = provider(&emulator).send(&email).await.expect_err("rejected");
    assert_eq!((error.code.as_str(), error.category), ("SES_MESSAGE_REJECTED", Category::Permanent));
    assert_eq!((error.original_code.as_deref(), error.taken), (Some("MessageRejected"), Taken::No));
    assert!(error.detail.contains("s***@e***.test"), "{}", error.detail);
    assert_eq!(emulator.sent().await, Vec::<Value>::new());
}

#[tokio::test]
async fn the_account_and_its_identities() {
    let emulator = Emulator::start();
    emulator.verify("acme.test").await;
    let ses = provider(&emulator);
    ses.send(&outgoing()).await.expect("taken");
    let account = Account {
        rate_per_sec: Some(14.0),
        quota: Some(Quota { max_24_hours: 50_000.0, sent_24_hours: 1.0 }),
        may_send: true,
        is_sandboxed: false,
    };
    assert_eq!(ses.account().await.expect("an answer"), Some(account));
    let names: Vec<String> = ["acme.test", "elsewhere.test"].map(Into::into).to_vec();
    let found = ses.identities(&names).await.expect("answers");
    assert_eq!(
        found,
        [("acme.test".into(), Identity::Verified), ("elsewhere.test".into(), Identity::Unknown)]
    );
}

fn outgoing() -> Outgoing {
    an_outgoing(an_email(a_company("acme").id), "shop@acme.test")
}
