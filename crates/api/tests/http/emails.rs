//! Following emails.

use std::time::Duration;

use axum::http::Method;
use model::{EmailId, KeyMode, Scope};
use serde_json::{Value, json};

use crate::world::{World, with, world};

fn ids(page: &Value) -> Vec<String> {
    let items = page["data"].as_array().expect("data");
    items.iter().filter_map(|item| item["id"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn lists_go_backwards_page_by_page() {
    let world = world().await;
    let mut sent = Vec::new();
    for _ in 0..7 {
        world.clock.advance(Duration::from_millis(5));
        sent.insert(0, world.sent().await.to_string());
    }
    let mut found = Vec::new();
    let mut path = "/v1/emails?limit=3".to_owned();
    loop {
        let page = world.get(&path).key(&world.live).send().await.json();
        found.extend(ids(&page));
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/v1/emails?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(found, sent);
}

#[tokio::test]
async fn filters_narrow_the_list() {
    let world = world().await;
    let special = world
        .sent_with(
            &world.live,
            json!({
                "to": "bob@example.com", "tags": ["red"], "externalId": "o-1", "entity": { "id": "club-1" },
                "recipient": { "externalId": "r-1" },
            }),
        )
        .await;
    world.clock.advance(Duration::from_secs(60));
    world.sent().await;
    let named = world.post("/v1/email/send").key(&world.live).header("x-request-id", "req-of-mine");
    assert_eq!(named.json(&crate::world::good()).await.status, 202);
    let cases = [
        ("to=bob@example.com", 1),
        ("tag=red", 1),
        ("externalId=o-1", 1),
        ("entity=club-1", 1),
        ("recipient=r-1", 1),
        ("status=ENQUEUED", 3),
        ("status=SENT", 0),
        ("until=2026-01-01T00:00:30Z", 1),
        ("since=2026-01-01T00:00:30Z", 2),
        ("since=2026-01-01T01:00:30%2B01:00", 2),
        ("since=2026-01-01T01:00:30+01:00", 2),
        ("to=bob@example.com&tag=blue", 0),
        ("code=SMTP_REJECTED_550", 0),
        ("requestId=req-of-mine", 1),
        ("requestId=req-of", 0),
        ("providerMessageId=nobody", 0),
        ("captured=true", 0),
    ];
    for (query, count) in cases {
        let answer = world.get(&format!("/v1/emails?{query}")).key(&world.live).send().await;
        assert_eq!(ids(&answer.json()).len(), count, "{query}: {}", answer.text());
    }
    world.deliver_all("relay").await;
    let sent = [
        (format!("providerMessageId=m-{special}"), 1),
        (format!("providerMessageId=m-{special}&tag=blue"), 0),
        ("captured=true".to_owned(), 3),
        ("captured=false".to_owned(), 0),
    ];
    for (query, count) in sent {
        let answer = world.get(&format!("/v1/emails?{query}")).key(&world.live).send().await;
        assert_eq!(ids(&answer.json()).len(), count, "{query}: {}", answer.text());
    }
    let found = world.get("/v1/emails?tag=red").key(&world.live).send().await;
    assert_eq!(ids(&found.json()), [special.to_string()]);
}

#[tokio::test]
async fn wrong_parameters_are_named() {
    let world = world().await;
    let cases = [
        ("limit=0", "OUT_OF_RANGE"),
        ("limit=101", "OUT_OF_RANGE"),
        ("limit=ten", "INVALID_TYPE"),
        ("status=sent", "INVALID_VALUE"),
        ("to=nobody", "INVALID_EMAIL"),
        ("since=yesterday", "INVALID_TIME"),
        ("cursor=123", "INVALID_CURSOR"),
        ("cursor=1.aabbccddeeff", "INVALID_CURSOR"),
        ("tag=a&tag=b", "REPEATED_PARAMETER"),
        ("page=2", "UNKNOWN_PARAMETER"),
        ("tag=%00", "CONTROL_CHARACTER"),
    ];
    for (query, code) in cases {
        let answer = world.get(&format!("/v1/emails?{query}")).key(&world.live).send().await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{query}");
    }
}

#[tokio::test]
async fn history_and_content_are_read_back() {
    let world = world().await;
    let changes = json!({
        "html": "<p>Olá</p>", "text": "Olá", "bcc": ["hidden@example.com"],
        "attachments": [{ "filename": "a.txt", "content": "aGk=", "contentType": "text/plain" }],
    });
    let id = world.sent_with(&world.live, changes).await;
    let path = format!("/v1/emails/{id}");
    let events = world.get(&format!("{path}/events")).key(&world.live).send().await.json();
    assert_eq!(events["data"][0]["type"], "ENQUEUED");
    let content = world.get(&format!("{path}/content")).key(&world.live).send().await.json();
    assert_eq!((&content["html"], &content["text"]), (&json!("<p>Olá</p>"), &json!("Olá")));
    let expected = json!([{ "filename": "a.txt", "contentType": "text/plain", "sizeBytes": 2 }]);
    assert_eq!(content["attachments"], expected);
    let by_format = world.get(&format!("{path}/content?format=eml")).key(&world.live).send().await;
    let accept = world.get(&format!("{path}/content")).key(&world.live).header("accept", "message/rfc822");
    assert_eq!(accept.send().await.bytes, by_format.bytes);
    assert_eq!(by_format.header("content-type"), Some("message/rfc822"));
    let disposition = format!("attachment; filename=\"{id}.eml\"");
    assert_eq!(by_format.header("content-disposition"), Some(disposition.as_str()));
    let eml = by_format.text();
    assert!(eml.contains("Shop") && eml.contains("<shop@shop.example>"), "{eml}");
    assert!(!eml.contains("hidden@example.com"), "bcc stays hidden");
    let json =
        world.get(&format!("{path}/content?format=json")).key(&world.live).header("accept", "message/rfc822");
    assert_eq!(json.send().await.header("content-type"), Some("application/json"));
    let file = world.get(&format!("{path}/attachments/0")).key(&world.live).send().await;
    assert_eq!((file.status, file.bytes.len()), (200, 2));
    assert_eq!(file.header("content-type"), Some("application/octet-stream"), "whatever it calls itself");
    assert!(
        file.header("content-disposition")
            .is_some_and(|text| text.starts_with("attachment; filename=\"a.txt\""))
    );
    for position in ["1", "-1", "x", "99999999999999999999"] {
        let missing = world.get(&format!("{path}/attachments/{position}")).key(&world.live).send().await;
        assert_eq!((missing.status, missing.code().as_str()), (404, "ATTACHMENT_NOT_FOUND"), "{position}");
    }
    let wrong = world.get(&format!("{path}/content?format=pdf")).key(&world.live).send().await;
    assert_eq!(wrong.code(), "INVALID_VALUE");
}

async fn act(world: &World, id: EmailId, verb: &str) -> (u16, String) {
    let answer = world.post(&format!("/v1/emails/{id}/{verb}")).key(&world.live).send().await;
    let word = if answer.status == 200 {
        answer.json()["status"].as_str().map(str::to_owned)
    } else {
        Some(answer.code())
    };
    (answer.status, word.unwrap_or_default())
}

#[tokio::test]
async fn emails_are_withdrawn_and_hurried() {
    let world = world().await;
    let scheduled = world.sent_with(&world.live, json!({ "delay": 3_600_000 })).await;
    assert_eq!(act(&world, scheduled, "retry").await, (200, "ENQUEUED".into()));
    assert_eq!(world.fail_all("SMTP_REJECTED_550").await, 1, "it was due at once");
    assert_eq!(act(&world, scheduled, "retry").await, (409, "NOT_WAITING".into()));
    assert_eq!(act(&world, scheduled, "cancel").await, (409, "TOO_LATE".into()));
    let waiting = world.sent().await;
    assert_eq!(act(&world, waiting, "cancel").await, (200, "CANCELLED".into()));
    assert_eq!(act(&world, waiting, "cancel").await, (200, "CANCELLED".into()), "asking twice is fine");
    assert_eq!(act(&world, waiting, "retry").await, (409, "NOT_WAITING".into()));
}

/// What a test key does never reaches a provider.
#[tokio::test]
async fn a_test_key_leaves_live_emails_alone() {
    let world = world().await;
    let test_admin = world.key(&world.shop.clone(), KeyMode::Test, &[Scope::Admin]).await;
    let act = async |id: EmailId, verb: &str| {
        world.post(&format!("/v1/emails/{id}/{verb}")).key(&test_admin).send().await
    };
    let live = world.sent_with(&world.live, json!({ "delay": 3_600_000 })).await;
    let test = world.sent_with(&world.test, json!({ "delay": 3_600_000 })).await;
    for verb in ["retry", "cancel"] {
        let refused = act(live, verb).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "LIVE_KEY_REQUIRED"), "{verb}");
        assert_eq!(act(test, verb).await.status, 200, "{verb}");
    }
    let untouched = world.get(&format!("/v1/emails/{live}")).key(&test_admin).send().await.json();
    assert_eq!(untouched["status"], "ENQUEUED");

    world.post(&format!("/v1/emails/{live}/retry")).key(&world.live).send().await;
    let other = world.sent_with(&world.test, json!({})).await;
    assert_eq!(world.fail_all("SMTP_REJECTED_550").await, 2);
    let replay = world.post("/v1/dlq/replay").key(&test_admin).json(&json!({ "filter": {} })).await;
    assert_eq!(replay.json(), json!({ "matched": 1, "replayed": 1 }));
    for (id, status) in [(live, "FAILED"), (other, "ENQUEUED")] {
        let email = world.get(&format!("/v1/emails/{id}")).key(&test_admin).send().await.json();
        assert_eq!(email["status"], status);
    }
}

#[tokio::test]
async fn scopes_are_held() {
    let world = world().await;
    let id = world.sent().await;
    let shop = world.shop.clone();
    let send = world.key(&shop, KeyMode::Live, &[Scope::Send]).await;
    let read = world.key(&shop, KeyMode::Live, &[Scope::Read]).await;
    let get = Method::GET;
    let post = Method::POST;
    let cases = [
        // method, path, status with a send key, a read key
        (&get, "/v1/emails".to_owned(), 403, 200),
        (&get, format!("/v1/emails/{id}"), 403, 200),
        (&get, format!("/v1/emails/{id}/events"), 403, 200),
        (&get, format!("/v1/emails/{id}/content"), 403, 200),
        (&get, "/v1/dlq".to_owned(), 403, 200),
        (&post, format!("/v1/emails/{id}/retry"), 200, 403),
        (&post, format!("/v1/emails/{id}/cancel"), 200, 403),
        (&get, format!("/v1/emails/{id}/attachments/0"), 403, 404),
        (&post, format!("/v1/emails/{id}/resend"), 202, 403),
        (&post, format!("/v1/emails/{id}/release"), 403, 403),
        (&post, "/v1/email/send".to_owned(), 415, 403),
        (&post, "/v1/email/batch".to_owned(), 415, 403),
        (&post, "/v1/email/raw".to_owned(), 415, 403),
        (&post, "/v1/dlq/replay".to_owned(), 403, 403),
        (&Method::DELETE, format!("/v1/dlq/{id}"), 403, 403),
    ];
    for (method, path, with_send, with_read) in cases {
        for (key, status) in [(&send, with_send), (&read, with_read)] {
            let answer = world.call(method.clone(), &path).key(key).send().await;
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
            if status == 403 {
                assert_eq!(answer.code(), "INSUFFICIENT_SCOPE");
            }
        }
    }
}

async fn eml_of(world: &World, id: EmailId) -> String {
    let answer = world.get(&format!("/v1/emails/{id}/content?format=eml")).key(&world.live).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text()
}

/// What is accepted is what is sent: a default sender that is set later is for later emails.
#[tokio::test]
async fn the_default_sender_is_that_of_the_acceptance() {
    let world = world().await;
    let body = with(json!({ "delay": 60_000 }));
    let send = || world.post("/v1/email/send").key(&world.live).header("idempotency-key", "k-1").json(&body);
    let first = send().await;
    let id: EmailId = first.json()["outboxId"].as_str().expect("an id").parse().expect("an id");
    let batch = world.post("/v1/email/batch").key(&world.live).json(&json!([body])).await.json();
    let of_batch: EmailId = batch["results"][0]["outboxId"].as_str().expect("an id").parse().expect("an id");
    let before = eml_of(&world, id).await;
    assert!(before.contains("From: \"Shop\" <shop@shop.example>"), "{before}");

    let company = format!("/v1/admin/companies/{}", world.shop.id);
    let patch = json!({ "from": "News <news@elsewhere.example>" });
    let changed = world.call(Method::PATCH, &company).operator().json(&patch).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    let again = send().await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"), "it is the same request");
    assert_eq!(again.bytes, first.bytes);
    let later = world.sent().await;
    assert!(eml_of(&world, later).await.contains("news@elsewhere.example"), "the default of now");

    world.clock.advance(std::time::Duration::from_secs(61));
    while gateway::worker::run_once(&world.gateway).await != Ok(0) {}
    for (id, from) in [(id, "Shop <shop@shop.example>"), (of_batch, "Shop <shop@shop.example>")] {
        let shown = world.get(&format!("/v1/emails/{id}")).key(&world.live).send().await.json();
        assert_eq!((&shown["status"], &shown["from"]), (&json!("SENT"), &json!(from)));
    }
    assert_eq!(eml_of(&world, id).await, before, "what was sent stays what it was");
    let copy = world.post(&format!("/v1/emails/{later}/resend")).key(&world.live).json(&json!({})).await;
    let copy: EmailId = copy.json()["outboxId"].as_str().expect("an id").parse().expect("an id");
    assert!(eml_of(&world, copy).await.contains("news@elsewhere.example"));
    // Where the company may no longer send as it did, a copy is today's mail.
    let withdrawn = world.call(Method::PATCH, &company).operator().json(&json!({ "senders": [] })).await;
    assert_eq!(withdrawn.status, 200, "{}", withdrawn.text());
    world.clock.advance(std::time::Duration::from_secs(60));
    let copy = world.post(&format!("/v1/emails/{id}/resend")).key(&world.live).json(&json!({})).await;
    assert_eq!(copy.status, 202, "{}", copy.text());
    let copy: EmailId = copy.json()["outboxId"].as_str().expect("an id").parse().expect("an id");
    assert!(eml_of(&world, copy).await.contains("news@elsewhere.example"));
}

/// The .eml is what was sent, and before that what would be sent.
#[tokio::test]
async fn a_copy_that_was_left_out_is_not_shown_as_sent() {
    let world = world().await;
    let changes = json!({ "cc": ["bob@example.com", "carol@example.com"] });
    let id = world.sent_with(&world.live, changes.clone()).await;
    let whole = eml_of(&world, id).await;
    assert!(whole.contains("bob@example.com") && whole.contains("carol@example.com"), "{whole}");
    let suppressed = json!({ "email": "bob@example.com", "reason": "asked to" });
    let listed = world.post("/v1/suppressions").key(&world.admin).json(&suppressed).await;
    assert!(listed.status < 300, "{}", listed.text());
    assert!(!eml_of(&world, id).await.contains("bob@example.com"), "it would be left out now");
    assert_eq!(gateway::worker::run_once(&world.gateway).await, Ok(1));
    let lift = world.call(Method::DELETE, "/v1/suppressions/bob@example.com").key(&world.admin).send().await;
    assert!(lift.status < 300, "{}", lift.text());
    let sent = eml_of(&world, id).await;
    assert!(!sent.contains("bob@example.com") && sent.contains("carol@example.com"), "{sent}");
    let bob = testkit::an_address("bob@example.com");
    let erased = world.gateway.store.erase(world.shop.id, &bob, None, world.gateway.clock.now(), 10).await;
    assert_eq!(erased.expect("erased").emails, 1);
    assert!(eml_of(&world, id).await.contains("carol@example.com"), "who stood behind the one that is gone");

    let second = world.sent_with(&world.live, changes).await;
    assert_eq!(gateway::worker::run_once(&world.gateway).await, Ok(1));
    world.post("/v1/suppressions").key(&world.admin).json(&suppressed).await;
    assert!(eml_of(&world, second).await.contains("bob@example.com"), "it got its copy");
}
