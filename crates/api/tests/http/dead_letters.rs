//! Dead letters listed, replayed, dropped.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use crate::world::{World, world};

async fn replay(world: &World, body: Value) -> Value {
    let answer = world.post("/v1/dlq/replay").key(&world.admin).json(&body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[tokio::test]
async fn dead_letters_are_listed_in_the_words_of_the_contract() {
    let world = world().await;
    let id = world
        .sent_with(
            &world.live,
            json!({ "headers": { "X-Order": "1" }, "recipient": { "externalId": "r-1", "cpfCnpj": "529.982.247-25" } }),
        )
        .await;
    world.fail_all("SMTP_REJECTED_554").await;
    let page = world.get("/v1/dlq").key(&world.live).send().await.json();
    let letter = &page["data"][0];
    assert_eq!(letter["jobId"], id.to_string());
    assert_eq!(letter["lastFailureCode"], "SMTP_REJECTED_554");
    assert_eq!(letter["failedAttempts"], 1);
    assert_eq!(letter["ttl"], 604_800_000);
    let data = &letter["originalData"];
    assert_eq!(data["htmlRef"], format!("db:{id}"));
    assert_eq!(data["headers"]["X-Order"], "1");
    assert_eq!(data["recipient"]["externalId"], "r-1");
    assert!(!page.to_string().contains("52998224725") && !page.to_string().contains("529.982.247-25"));
    for (query, count) in [
        ("code=SMTP_REJECTED_554", 1),
        ("code=OTHER", 0),
        ("category=TRANSIENT_ERROR", 1),
        ("category=PERMANENT_ERROR", 0),
        ("to=ana@example.com", 1),
        ("recipient=r-1", 1),
        ("since=2026-01-01T00:00:00Z", 1),
        ("until=2026-01-01T00:00:00Z", 0),
    ] {
        let page = world.get(&format!("/v1/dlq?{query}")).key(&world.live).send().await.json();
        assert_eq!(page["data"].as_array().map(Vec::len), Some(count), "{query}");
    }
}

#[tokio::test]
async fn dead_letters_are_replayed_by_id_and_by_filter() {
    let world = world().await;
    let first = world.sent().await;
    for _ in 0..3 {
        world.sent().await;
    }
    assert_eq!(world.fail_all("SMTP_REJECTED_554").await, 4);
    assert_eq!(
        replay(&world, json!({ "filter": {}, "dryRun": true })).await,
        json!({ "matched": 4, "replayed": 0 })
    );
    assert_eq!(
        replay(&world, json!({ "ids": [first.to_string()] })).await,
        json!({ "matched": 1, "replayed": 1 })
    );
    let email = world.get(&format!("/v1/emails/{first}")).key(&world.live).send().await.json();
    assert_eq!(email["status"], "ENQUEUED");
    assert_eq!(
        replay(&world, json!({ "filter": { "code": "OTHER" } })).await,
        json!({ "matched": 0, "replayed": 0 })
    );
    assert_eq!(
        replay(&world, json!({ "filter": {}, "limit": 1 })).await,
        json!({ "matched": 3, "replayed": 1 })
    );
    assert_eq!(
        replay(&world, json!({ "filter": {}, "limit": 9 })).await,
        json!({ "matched": 2, "replayed": 2 })
    );
    assert_eq!(replay(&world, json!({ "filter": {} })).await, json!({ "matched": 0, "replayed": 0 }));
}

/// More than one chunk, and nothing that dies again meanwhile is taken twice.
#[tokio::test]
async fn many_are_replayed_in_chunks() {
    let world = world().await;
    let batch: Vec<Value> = (0..1000).map(|_| crate::world::good()).collect();
    for _ in 0..2 {
        world.post("/v1/email/batch").key(&world.live).json(&json!(batch)).await;
    }
    let mut failed = 0;
    while failed < 1200 {
        failed += world.fail_all("SMTP_REJECTED_554").await;
        world.clock.advance(Duration::from_millis(1));
    }
    let answer = replay(&world, json!({ "filter": {} })).await;
    assert_eq!(answer, json!({ "matched": failed, "replayed": failed }));
}

#[tokio::test]
async fn orders_are_checked() {
    let world = world().await;
    let ids: Vec<String> = (0..1001).map(|_| "0190c3d2-7b7e-7000-8000-000000000000".to_owned()).collect();
    let cases = [
        (json!({}), "REQUIRED"),
        (json!({ "ids": [], "filter": {} }), "CONFLICTING_FIELDS"),
        (json!({ "ids": ["x"] }), "INVALID_ID"),
        (json!({ "ids": ids }), "TOO_MANY_IDS"),
        (json!({ "filter": { "stauts": "x" } }), "UNKNOWN_FIELD"),
        (json!({ "filter": {}, "dryRun": "yes" }), "INVALID_TYPE"),
        (json!([]), "INVALID_TYPE"),
    ];
    for (body, code) in cases {
        let answer = world.post("/v1/dlq/replay").key(&world.admin).json(&body).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{body}");
    }
}

#[tokio::test]
async fn a_dead_letter_is_dropped_once() {
    let world = world().await;
    let id = world.sent().await;
    world.fail_all("SMTP_REJECTED_554").await;
    let path = format!("/v1/dlq/{id}");
    assert_eq!(world.call(Method::DELETE, &path).key(&world.admin).send().await.status, 204);
    let again = world.call(Method::DELETE, &path).key(&world.admin).send().await;
    assert_eq!((again.status, again.code().as_str()), (404, "DEAD_LETTER_NOT_FOUND"));
    let email = world.get(&format!("/v1/emails/{id}")).key(&world.live).send().await.json();
    assert_eq!(email["status"], "FAILED");
}
