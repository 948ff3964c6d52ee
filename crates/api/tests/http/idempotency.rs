//! One key, one email.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::Method;
use futures_util::future::join_all;
use model::{KeyMode, Scope};
use serde_json::{Value, json};

use crate::world::{Answer, World, good, with, world};

async fn send(world: &World, api_key: &str, key: &str, body: &Value) -> Answer {
    world.post("/v1/email/send").key(api_key).header("idempotency-key", key).json(body).await
}

async fn emails(world: &World) -> usize {
    let listed = world.get("/v1/emails?limit=100").key(&world.live).send().await;
    listed.json()["data"].as_array().map_or(0, Vec::len)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_at_once_are_one_email() {
    let world = world().await;
    let body = good();
    let answers = join_all((0..20).map(|_| send(&world, &world.live, "order-1", &body))).await;
    let bodies: BTreeSet<&[u8]> = answers.iter().map(|answer| answer.bytes.as_slice()).collect();
    assert_eq!(bodies.len(), 1, "all answers are byte for byte the same");
    assert!(answers.iter().all(|answer| answer.status == 202));
    let first = answers.iter().filter(|answer| answer.header("idempotent-replayed").is_none()).count();
    assert_eq!(first, 1, "one was the first, the others say so");
    assert_eq!(emails(&world).await, 1);
}

#[tokio::test]
async fn spelling_does_not_matter_but_content_does() {
    let world = world().await;
    let first = send(&world, &world.live, "k", &good()).await;
    let respelled =
        "{ \"html\":\"<p>Hello</p>\", \"subject\" : \"\\u0048ello\",\n\"to\":\"ana@example.com\" }";
    let call = world.post("/v1/email/send").key(&world.live).header("idempotency-key", "k");
    let again = call.body("application/json", respelled).send().await;
    assert_eq!(again.bytes, first.bytes);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    let other = send(&world, &world.live, "k", &with(json!({ "subject": "Bye" }))).await;
    assert_eq!((other.status, other.code().as_str()), (422, "IDEMPOTENCY_KEY_REUSED"));
    let by_test = send(&world, &world.test, "k", &good()).await;
    assert_eq!(by_test.code(), "IDEMPOTENCY_KEY_REUSED", "a test email cannot stand in for a live one");
    let batch = world.post("/v1/email/batch").key(&world.live).header("idempotency-key", "k");
    assert_eq!(batch.json(&json!([good()])).await.code(), "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(emails(&world).await, 1);
}

/// Whichever call came first under a key, no other stands in for it.
#[tokio::test]
async fn a_key_belongs_to_one_call() {
    const EML: &str = "From: shop@shop.example\r\nTo: ana@example.com\r\nSubject: Hi\r\n\r\nHello\r\n";
    let world = world().await;
    let copy = format!("/v1/emails/{}/resend", world.sent().await);
    world.deliver_all("relay").await;
    let hand_in = async |call: &str, mode: &str, key: &str| {
        let path = if call == "copy" { &copy } else { &format!("/v1/email/{call}") };
        let by = if mode == "live" { &world.live } else { &world.test };
        let request = world.post(path).key(by).header("idempotency-key", key);
        match call {
            "send" => request.json(&good()).await,
            "batch" => request.json(&json!([good()])).await,
            "raw" => request.body("message/rfc822", EML).send().await,
            _ => request.json(&json!({})).await,
        }
    };
    let calls = [
        ("send", "live"),
        ("send", "test"),
        ("batch", "live"),
        ("raw", "live"),
        ("raw", "test"),
        ("copy", "live"),
    ];
    for (first, first_mode) in calls {
        let key = format!("{first} {first_mode}");
        let taken = hand_in(first, first_mode, &key).await;
        assert_eq!(taken.status, 202, "{key}: {}", taken.code());
        for (call, mode) in calls.into_iter().filter(|other| *other != (first, first_mode)) {
            let answer = hand_in(call, mode, &key).await;
            let refused = (answer.status, answer.code());
            assert_eq!(refused, (422, "IDEMPOTENCY_KEY_REUSED".into()), "{call} {mode} after {key}");
        }
    }
    assert_eq!(emails(&world).await, 1 + calls.len(), "each of them made one");
}

/// Whoever lost the first answer must not be told that nothing was taken, only because it would be refused today.
#[tokio::test]
async fn what_changed_since_does_not_change_the_answer() {
    let world = world().await;
    let template = "/v1/templates/welcome";
    let source = json!({ "subject": "Hi", "html": "<p>{{ name }}</p>" });
    assert_eq!(world.call(Method::PUT, template).key(&world.admin).json(&source).await.status, 200);
    let body = json!({ "to": "ana@example.com", "template": "welcome", "variables": { "name": "Ana" } });
    let batch = |key| {
        let call = world.post("/v1/email/batch").key(&world.live).header("idempotency-key", key);
        let body = json!([body]);
        async move { call.json(&body).await }
    };
    let (first, first_batch) = (send(&world, &world.live, "k", &body).await, batch("b").await);
    assert_eq!((first.status, first_batch.json()["accepted"].clone()), (202, json!(1)));
    assert_eq!(world.call(Method::DELETE, template).key(&world.admin).send().await.status, 204);
    for (first, again) in
        [(first, send(&world, &world.live, "k", &body).await), (first_batch, batch("b").await)]
    {
        assert_eq!((again.status, &again.bytes), (202, &first.bytes));
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
    let other = json!({ "to": "ana@example.com", "template": "welcome", "variables": { "name": "Eva" } });
    assert_eq!(send(&world, &world.live, "k", &other).await.code(), "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(send(&world, &world.live, "new", &body).await.code(), "TEMPLATE_NOT_FOUND");
    world.clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(send(&world, &world.live, "k", &body).await.code(), "TEMPLATE_NOT_FOUND", "it is forgotten");
    assert_eq!(emails(&world).await, 2);
}

#[tokio::test]
async fn a_refused_request_does_not_use_up_its_key() {
    let world = world().await;
    assert_eq!(send(&world, &world.live, "k", &json!({})).await.status, 400);
    assert_eq!(send(&world, &world.live, "k", &with(json!({ "html": "<script>" }))).await.status, 422);
    assert_eq!(send(&world, &world.live, "k", &good()).await.status, 202);
    let none = world.post("/v1/email/batch").key(&world.live).header("idempotency-key", "b");
    assert_eq!(none.json(&json!([{}])).await.json()["accepted"], 0);
    let some = world.post("/v1/email/batch").key(&world.live).header("idempotency-key", "b");
    assert_eq!(some.json(&json!([good()])).await.json()["accepted"], 1);
}

#[tokio::test]
async fn a_batch_is_replayed_whole() {
    let world = world().await;
    let batch = json!([good(), {}, good()]);
    let send = || world.post("/v1/email/batch").key(&world.live).header("idempotency-key", "b").json(&batch);
    let (first, second) = (send().await, send().await);
    assert_eq!(first.bytes, second.bytes);
    assert_eq!(second.header("idempotent-replayed"), Some("true"));
    assert_eq!(emails(&world).await, 2);
}

#[tokio::test]
async fn keys_are_the_companys_own_and_last_a_day() {
    let world = world().await;
    let other = world.company("other").await;
    let other_key = world.key(&other, KeyMode::Test, &[Scope::Send]).await;
    let ours = send(&world, &world.live, "k", &good()).await;
    let theirs = send(&world, &other_key, "k", &good()).await;
    assert_eq!(theirs.header("idempotent-replayed"), None);
    assert_ne!(ours.json()["outboxId"], theirs.json()["outboxId"]);
    world.clock.advance(Duration::from_secs(24 * 3600 - 1));
    assert_eq!(send(&world, &world.live, "k", &good()).await.header("idempotent-replayed"), Some("true"));
    world.clock.advance(Duration::from_secs(2));
    assert_eq!(send(&world, &world.live, "k", &good()).await.header("idempotent-replayed"), None);
    assert_eq!(emails(&world).await, 2);
}
