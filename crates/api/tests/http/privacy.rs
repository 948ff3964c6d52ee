//! What must not be told to anybody: document numbers in fields that go on into events and jobs, keys in addresses,
//! the words of panics.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::world::{Wanted, good, with, world, world_of};

const CANARY: &str = "kanarienvogel";

/// All that is logged, at the loudest.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Log {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

impl Log {
    /// From now on, on this thread.
    fn begin(&self) -> tracing::subscriber::DefaultGuard {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
        tracing::subscriber::set_default(subscriber.with_writer(self.clone()).finish())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("text")
    }
}

/// Every field of a send that goes on into events, jobs, headers or the store in clear.
#[tokio::test]
async fn document_numbers_stand_in_their_own_field_only() {
    let world = world().await;
    let with_recipient = |name: &str, text: &str| json!({ "recipient": { "externalId": "r", name: text } });
    type Put = Box<dyn Fn(&str) -> Value>;
    let fields: [(&str, Put); 9] = [
        ("subject", Box::new(|text| json!({ "subject": text }))),
        ("tags[0]", Box::new(|text| json!({ "tags": [text] }))),
        ("externalId", Box::new(|text| json!({ "externalId": text }))),
        ("entity.id", Box::new(|text| json!({ "entity": { "id": text } }))),
        ("entity.name", Box::new(|text| json!({ "entity": { "id": "e", "name": text } }))),
        ("recipient.externalId", Box::new(move |text| with_recipient("externalId", text))),
        ("recipient.nome", Box::new(move |text| with_recipient("nome", text))),
        ("recipient.razaoSocial", Box::new(move |text| with_recipient("razaoSocial", text))),
        ("headers.X-Note", Box::new(|text| json!({ "headers": { "X-Note": text } }))),
    ];
    let texts = [
        ("529.982.247-25", false),
        ("a 529.982.247-25 b", false),
        ("cpf 52998224725", false),
        ("CNPJ:11222333000181", false),
        // What numbers of orders look like is taken, right check digits or not.
        ("52998224725", true),
        ("11222333000181", true),
        ("order 529982247-25", true),
    ];
    for (field, put) in &fields {
        for (text, is_taken) in texts {
            let sent = world.post("/v1/email/send").key(&world.live).json(&with(put(text))).await;
            if is_taken {
                assert_eq!(sent.status, 202, "{field} {text}: {}", sent.text());
                continue;
            }
            assert_eq!((sent.status, sent.code().as_str()), (400, "PII_NOT_ALLOWED"), "{field} {text}");
            assert_eq!(sent.json()["errors"][0]["field"], *field, "{field} {text}: {}", sent.text());
            assert!(!sent.text().contains(text), "{field} {text} is echoed");
        }
    }
    let named = with(json!({ "headers": { "X-CPF": "52998224725" } }));
    let named = world.post("/v1/email/send").key(&world.live).json(&named).await;
    assert_eq!(named.json()["errors"][0]["field"], "headers.X-CPF", "the name says what it is");
}

#[tokio::test]
async fn document_numbers_do_not_come_in_beside_the_body() {
    let world = world().await;
    let send = || world.post("/v1/email/send").key(&world.live);
    let keyed = send().header("idempotency-key", "pedido 529.982.247-25").json(&good()).await;
    assert_eq!((keyed.status, keyed.code().as_str()), (400, "PII_NOT_ALLOWED"), "{}", keyed.text());
    let fine = send().header("idempotency-key", "pedido 52998224725").json(&good()).await;
    assert_eq!(fine.status, 202, "{}", fine.text());
    let named = send().header("x-request-id", "cpf:529.982.247-25").json(&good()).await;
    assert!(named.header("x-request-id").is_some_and(|id| id.starts_with("req_")), "another id is given");
    let raw = "From: shop@shop.example\r\nTo: ana@example.com\r\nSubject: CPF 529.982.247-25\r\n\r\nx\r\n";
    let raw =
        world.post("/v1/email/raw").key(&world.live).body("message/rfc822", raw.as_bytes()).send().await;
    assert_eq!((raw.status, raw.code().as_str()), (400, "PII_NOT_ALLOWED"), "{}", raw.text());
    let reason = json!({ "email": "a@b.example", "reason": "CPF 529.982.247-25" });
    let listed = world.post("/v1/suppressions").key(&world.admin).json(&reason).await;
    assert_eq!((listed.status, listed.code().as_str()), (400, "PII_NOT_ALLOWED"), "{}", listed.text());
}

#[tokio::test]
async fn a_key_in_the_address_is_refused_with_a_hint_and_not_logged() {
    let world = world().await;
    let log = Log::default();
    let guard = log.begin();
    for name in ["apiKey", "api_key", "token", "q"] {
        let path = format!("/v1/emails?{name}={}", world.live);
        let answer = world.get(&path).send().await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "MISSING_API_KEY"), "{name}");
        let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        assert!(detail.contains("address") && detail.contains("X-API-Key header"), "{name}: {detail}");
        assert!(!answer.text().contains(&world.live), "{name}: the key is echoed");
    }
    let plain = world.get("/v1/emails").send().await.json()["detail"].to_string();
    assert!(!plain.contains("address"), "{plain}");
    drop(guard);
    let log = log.text();
    assert!(log.contains("a request was answered"), "the log is on: {log}");
    assert!(!log.contains(&world.live), "{log}");
}

#[tokio::test]
async fn the_words_of_a_panic_are_dropped() {
    let world = world_of(Wanted { metrics: || panic!("{CANARY}"), ..Wanted::default() }).await;
    let log = Log::default();
    let guard = log.begin();
    let answer = world.get("/metrics").header("x-request-id", "which-one").send().await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "INTERNAL_ERROR"));
    drop(guard);
    let log = log.text();
    assert!(log.contains("a request met a bug") && log.contains("which-one"), "{log}");
    assert!(!log.contains(CANARY) && !answer.text().contains(CANARY), "{log}");
}
