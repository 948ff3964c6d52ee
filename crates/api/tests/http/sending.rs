//! Handing emails in.

use model::{Content, KeyMode, Scope, Status};
use serde_json::{Value, json};

use crate::world::{Wanted, good, with, world, world_of};

#[tokio::test]
async fn an_email_is_taken() {
    let world = world().await;
    let body = json!({
        "to": "cliente@example.com",
        "subject": "Seu pedido foi confirmado",
        "html": "<html><body><h1>Pedido #12345</h1></body></html>",
        "replyTo": "suporte@shop.example",
        "tags": ["order-confirmation", "transactional"],
        "recipient": { "externalId": "customer-67890", "nome": "João Silva", "email": "cliente@example.com" },
        "externalId": "order-12345",
    });
    let call = world.post("/v1/email/send").key(&world.live).header("x-request-id", "req_1737329400_abc123");
    let answer = call.json(&body).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let receipt = answer.json();
    assert_eq!(receipt["jobId"], receipt["outboxId"]);
    assert_eq!(receipt["requestId"], "req_1737329400_abc123");
    assert_eq!(receipt["status"], "ENQUEUED");
    assert_eq!(receipt["receivedAt"], "2026-01-01T00:00:00.000Z");
    assert_eq!(receipt["recipient"], json!({ "externalId": "customer-67890" }));
    assert_eq!(receipt.get("warnings"), None);
    let id = receipt["outboxId"].as_str().expect("an id");
    let email = world.get(&format!("/v1/emails/{id}")).key(&world.live).send().await.json();
    assert_eq!(email["status"], "ENQUEUED");
    assert_eq!(email["externalId"], "order-12345");
    assert_eq!(email["recipientExternalId"], "customer-67890");
    assert_eq!(email["expiresAt"], "2026-01-02T00:00:00.000Z");
    assert_eq!(email["mode"], "live");
    assert_eq!(email["priority"], 5);
}

#[tokio::test]
async fn what_is_mended_is_warned_about() {
    let world = world().await;
    let changes = json!({
        "cc": ["ANA@example.com", "bob@example.com"],
        "bcc": ["bob@example.com"],
        "scheduledAt": "2025-12-31T00:00:00Z",
        "attachments": [{ "filename": "a.png", "contentType": "image/png", "content": "JVBERi0=" }],
    });
    let answer = world.post("/v1/email/send").key(&world.live).json(&with(changes)).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let warnings: Vec<(Value, Value)> = answer.json()["warnings"]
        .as_array()
        .expect("warnings")
        .iter()
        .map(|warning| (warning["field"].clone(), warning["code"].clone()))
        .collect();
    let expected = [
        ("attachments[0].contentType", "CONTENT_TYPE_CORRECTED"),
        ("scheduledAt", "SCHEDULED_IN_PAST"),
        ("cc[0]", "DUPLICATE_ADDRESS"),
        ("bcc[0]", "DUPLICATE_ADDRESS"),
    ];
    assert_eq!(warnings, expected.map(|(field, code)| (json!(field), json!(code))));
}

#[tokio::test]
async fn times_are_resolved() {
    let world = world().await;
    let cases = [
        ("delay", json!({ "delay": 60_000 }), Some("2026-01-01T00:01:00.000Z"), "2026-01-02T00:01:00.000Z"),
        (
            "time and life",
            json!({ "scheduledAt": "2026-01-01T02:00:00+01:00", "ttl": 60_000 }),
            Some("2026-01-01T01:00:00.000Z"),
            "2026-01-01T01:01:00.000Z",
        ),
        ("past", json!({ "scheduledAt": "2025-01-01T00:00:00Z" }), None, "2026-01-02T00:00:00.000Z"),
    ];
    for (case, changes, scheduled_at, expires_at) in cases {
        let id = world.sent_with(&world.live, changes).await;
        let email = world.get(&format!("/v1/emails/{id}")).key(&world.live).send().await.json();
        assert_eq!(email.get("scheduledAt").and_then(Value::as_str), scheduled_at, "{case}");
        assert_eq!(email["expiresAt"], expires_at, "{case}");
    }
}

#[tokio::test]
async fn senders_are_held_to() {
    let world = world().await;
    let bare = world.company("bare").await;
    let bare_live = world.key(&bare, KeyMode::Live, &[Scope::Send]).await;
    let bare_test = world.key(&bare, KeyMode::Test, &[Scope::Send]).await;
    let cases = [
        ("own domain", &world.live, json!({ "from": "x@shop.example" }), 202, ""),
        ("no sender at all", &bare_live, json!({}), 422, "NO_SENDER"),
        ("captured", &bare_live, json!({ "provider": "capture" }), 202, ""),
        ("sandbox", &bare_live, json!({ "to": "bounced@posthaste.test" }), 202, ""),
        ("test key, any sender", &bare_test, json!({ "from": "x@anywhere.example" }), 202, ""),
        ("test key, none", &bare_test, json!({}), 202, ""),
    ];
    for (case, key, changes, status, code) in cases {
        let answer = world.post("/v1/email/send").key(key).json(&with(changes)).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{case}: {}", answer.text());
    }
}

#[tokio::test]
async fn documents_are_stored_hashed_and_sealed() {
    let world = world().await;
    let recipient = json!({ "recipient": { "cpfCnpj": "529.982.247-25", "nome": "Ana" } });
    let id = world.sent_with(&world.live, recipient.clone()).await;
    let email = world.gateway.store.email(world.shop.id, id).await.expect("a store").expect("an email");
    let hmac = email.recipient.expect("a recipient").document_hmac.expect("an HMAC");
    assert_eq!(hmac.len(), 64);
    assert!(!hmac.contains("52998224725"));
    let plain = model::document::Document::parse("529.982.247-25").expect("valid").sha256_hex();
    assert_ne!(hmac, plain, "the plain hash could be turned back");
    let by_hash = json!({ "recipient": { "cpfCnpjHash": plain.to_uppercase() } });
    let id = world.sent_with(&world.live, by_hash).await;
    let email = world.gateway.store.email(world.shop.id, id).await.expect("a store").expect("an email");
    assert_eq!(email.recipient.expect("a recipient").document_hmac, Some(hmac), "number and hash are one");

    let keyless = world_of(Wanted { documents: false, ..Wanted::default() }).await;
    let answer = keyless.post("/v1/email/send").key(&keyless.live).json(&with(recipient)).await;
    assert_eq!((answer.status, answer.code().as_str()), (422, "DOCUMENT_KEYS_MISSING"));
}

#[tokio::test]
async fn a_batch_is_judged_item_by_item() {
    let world = world().await;
    let batch = json!([
        good(),
        with(json!({ "to": "nobody", "subject": "" })),
        with(json!({ "html": "<script></script>" })),
        5,
        with(json!({ "cc": ["ana@example.com"] })),
    ]);
    let answer = world.post("/v1/email/batch").key(&world.live).json(&batch).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    let answer = answer.json();
    assert_eq!((&answer["accepted"], &answer["rejected"]), (&json!(2), &json!(3)));
    let results = answer["results"].as_array().expect("results");
    let errors: Vec<Value> = results.iter().map(|result| result["error"]["code"].clone()).collect();
    assert_eq!(
        errors,
        [json!(null), json!("VALIDATION_FAILED"), json!("UNSAFE_HTML"), json!("INVALID_TYPE"), json!(null)]
    );
    assert_eq!(results[1]["error"]["errors"].as_array().map(Vec::len), Some(2));
    assert_eq!(results[4]["warnings"][0]["code"], "DUPLICATE_ADDRESS");
    let indexes: Vec<u64> = results.iter().filter_map(|result| result["index"].as_u64()).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4]);
    let listed = world.get("/v1/emails").key(&world.live).send().await.json();
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn batches_have_bounds() {
    let world = world().await;
    let many: Vec<Value> = (0..1001).map(|_| json!({})).collect();
    let cases = [
        ("empty", json!([]), "EMPTY_BATCH"),
        ("too many", json!(many), "TOO_MANY_EMAILS"),
        ("no list", good(), "INVALID_TYPE"),
    ];
    for (case, body, code) in cases {
        let answer = world.post("/v1/email/batch").key(&world.live).json(&body).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{case}");
    }
    let thousand: Vec<Value> = (0..1000).map(|_| good()).collect();
    let answer = world.post("/v1/email/batch").key(&world.live).json(&json!(thousand)).await;
    assert_eq!(answer.json()["accepted"], 1000);
    let none = world.post("/v1/email/batch").key(&world.live).json(&json!([{}])).await;
    assert_eq!((none.status, &none.json()["accepted"]), (202, &json!(0)));
}

#[tokio::test]
async fn an_eml_is_taken_as_it_is() {
    let world = world().await;
    let eml = "From: Shop <shop@shop.example>\r\nTo: ana@example.com\r\nSubject: Hello\r\n\r\nHello Ana\r\n";
    let raw = |path: &str, eml: &str| {
        world.post(path).key(&world.live).body("message/rfc822", eml.to_owned()).send()
    };
    let answer = raw("/v1/email/raw?priority=1&ttl=60000&externalId=o-1", eml).await;
    assert_eq!((answer.status, &answer.json()["status"]), (202, &json!("ACCEPTED")), "{}", answer.text());
    let id = answer.json()["outboxId"].as_str().expect("an id").to_owned();
    let email = world.get(&format!("/v1/emails/{id}")).key(&world.live).send().await.json();
    assert_eq!(email["to"], "ana@example.com");
    assert_eq!(email["subject"], "Hello");
    assert_eq!((&email["priority"], &email["externalId"]), (&json!(1), &json!("o-1")));
    let stored =
        world.gateway.store.content(world.shop.id, id.parse().expect("an id")).await.expect("a store");
    assert_eq!(stored, Some(Content::Raw(eml.as_bytes().to_vec())));
    assert_eq!(email["status"], Status::Accepted.as_str());
    let content = world.get(&format!("/v1/emails/{id}/content")).key(&world.live).send().await.json();
    assert_eq!((&content["kind"], content.get("html")), (&json!("raw"), None));

    let foreign = eml.replace("shop@shop.example", "ceo@bank.example");
    let cases = [
        ("no message", "/v1/email/raw", "", 400, "INVALID_MESSAGE"),
        ("no To", "/v1/email/raw", "From: shop@shop.example\r\n\r\nx", 400, "INVALID_MESSAGE"),
        ("foreign sender", "/v1/email/raw", foreign.as_str(), 422, "SENDER_NOT_ALLOWED"),
        ("bad priority", "/v1/email/raw?priority=0", eml, 400, "OUT_OF_RANGE"),
        ("unknown parameter", "/v1/email/raw?prioritty=1", eml, 400, "UNKNOWN_PARAMETER"),
    ];
    for (case, path, eml, status, code) in cases {
        let answer = raw(path, eml).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{case}: {}", answer.text());
    }
    let json = world.post("/v1/email/raw").key(&world.live).json(&good()).await;
    assert_eq!(json.code(), "UNSUPPORTED_MEDIA_TYPE");
}

/// Whoever reads a message is shown these beside From, or instead of it.
#[tokio::test]
async fn an_eml_names_nobody_elses_senders() {
    let world = world().await;
    let eml = |header: &str| {
        format!(
            "From: shop@shop.example\r\n{header}\r\nTo: ana@example.com\r\nSubject: Hello\r\n\r\nHello\r\n"
        )
    };
    let raw =
        |key: &str, eml: String| world.post("/v1/email/raw").key(key).body("message/rfc822", eml).send();
    let cases = [
        ("its own", "Sender: Robot <robot@shop.example>", 202, "", ""),
        ("nobody", "Sender:", 202, "", ""),
        ("foreign", "Sender: ceo@bank.example", 422, "SENDER_NOT_ALLOWED", "Sender"),
        ("blanks in the name", "Sen der : ceo@bank.example", 422, "SENDER_NOT_ALLOWED", "Sender"),
        ("folded", "sender:\r\n CEO\r\n <ceo@bank.example>", 422, "SENDER_NOT_ALLOWED", "Sender"),
        ("a name alone", "Sender: The Bank", 422, "SENDER_NOT_ALLOWED", "Sender"),
        (
            "the second one",
            "Sender: shop@shop.example\r\nSender: ceo@bank.example",
            422,
            "SENDER_NOT_ALLOWED",
            "Sender",
        ),
        ("passed on", "Resent-From: ceo@bank.example", 422, "SENDER_NOT_ALLOWED", "Resent-From"),
        (
            "passed on by several",
            "Resent-From: shop@shop.example, ceo@bank.example",
            422,
            "SENDER_NOT_ALLOWED",
            "Resent-From",
        ),
        ("passed on for", "Resent-Sender: ceo@bank.example", 422, "SENDER_NOT_ALLOWED", "Resent-Sender"),
        ("From twice", "From: ceo@bank.example", 400, "INVALID_MESSAGE", ""),
        (
            "where it was before",
            "Return-Path: <ceo@bank.example>\r\nReceived: from bank.example",
            202,
            "",
            "",
        ),
    ];
    for (case, header, status, code, field) in cases {
        let answer = raw(&world.live, eml(header)).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{case}: {}", answer.text());
        if status == 422 {
            assert_eq!(answer.json()["errors"][0]["field"], field, "{case}");
        }
    }
    let two = eml("").replace("From: shop@shop.example", "From: shop@shop.example, ceo@bank.example");
    assert_eq!(raw(&world.live, two).await.code(), "INVALID_MESSAGE", "From with two addresses");
    let test = raw(&world.test, eml("Sender: ceo@bank.example")).await;
    assert_eq!(test.status, 202, "a test key may call itself anything");
}

#[tokio::test]
async fn the_daily_limit_ends_at_midnight() {
    let world = world().await;
    let mut shop = world.shop.clone();
    shop.settings.daily_limit = Some(2);
    world.gateway.store.update_company(shop).await.expect("updated");
    for _ in 0..2 {
        world.sent().await;
    }
    world.clock.advance(std::time::Duration::from_secs(23 * 3600));
    let answer = world.post("/v1/email/send").key(&world.live).json(&good()).await;
    assert_eq!((answer.status, answer.code().as_str()), (429, "DAILY_LIMIT_EXCEEDED"));
    assert_eq!(answer.header("retry-after"), Some("3600"));
    world.clock.advance(std::time::Duration::from_secs(3600));
    world.sent().await;
}

/// A limit that is set during the day counts what came before; of a batch the first are taken as far as they fit.
#[tokio::test]
async fn a_batch_is_taken_as_far_as_the_day_goes() {
    let world = world().await;
    world.sent().await;
    let mut shop = world.shop.clone();
    shop.settings.daily_limit = Some(3);
    world.gateway.store.update_company(shop).await.expect("updated");
    world.clock.advance(std::time::Duration::from_secs(6));
    let batch = json!([good(), { "to": "nobody" }, good(), good(), good()]);
    let hand_in = |key: &'static str| {
        let call = world.post("/v1/email/batch").key(&world.live).header("idempotency-key", key);
        call.json(&batch)
    };
    let first = hand_in("k1").await;
    assert_eq!(first.status, 202, "{}", first.text());
    let body = first.json();
    assert_eq!((&body["accepted"], &body["rejected"]), (&json!(2), &json!(3)), "{body}");
    let told: Vec<(u64, &str)> = body["results"]
        .as_array()
        .expect("results")
        .iter()
        .map(|item| {
            (item["index"].as_u64().expect("a place"), item["error"]["code"].as_str().unwrap_or("taken"))
        })
        .collect();
    let (taken, over) = ("taken", "DAILY_LIMIT_EXCEEDED");
    assert_eq!(told, [(0, taken), (1, "VALIDATION_FAILED"), (2, taken), (3, over), (4, over)], "{body}");
    let stored = world.get("/v1/emails").key(&world.live).send().await.json();
    let ids: Vec<&str> =
        stored["data"].as_array().expect("data").iter().filter_map(|email| email["id"].as_str()).collect();
    assert_eq!(ids.len(), 3, "{stored}");
    assert!([0, 2].iter().all(|at| ids.contains(&body["results"][*at]["outboxId"].as_str().expect("an id"))));

    let again = hand_in("k1").await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (202, Some("true")));
    assert_eq!(again.text(), first.text(), "the key stands for what was answered");
    let none = hand_in("k2").await;
    assert_eq!((none.status, none.code().as_str()), (429, "DAILY_LIMIT_EXCEEDED"), "nothing fits");
    assert!(none.header("retry-after").is_some());
}
