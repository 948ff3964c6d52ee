//! People known to a company, and addresses that keep failing.

use std::time::Duration;

use axum::http::Method;
use model::{KeyMode, Scope};
use serde_json::{Value, json};

use crate::world::{World, world};

async fn list(world: &World, query: &str) -> Value {
    let answer = world.get(&format!("/v1/recipients{query}")).key(&world.live).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// Three emails to Ana fail for good.
async fn trouble(world: &World) {
    for number in 0..3 {
        world.clock.advance(Duration::from_secs(60));
        world
            .sent_with(&world.live, json!({ "to": "Ana@example.com", "externalId": number.to_string() }))
            .await;
        assert_eq!(world.fail_all("SMTP_REJECTED_550").await, 1);
    }
}

#[tokio::test]
async fn known_recipients_are_listed() {
    let world = world().await;
    for name in ["r-1", "r-2", "r-3"] {
        world.clock.advance(Duration::from_secs(1));
        let to = format!("{name}@example.com");
        world.sent_with(&world.live, json!({ "to": to, "recipient": { "externalId": name } })).await;
    }
    let page = list(&world, "?limit=2").await;
    let first = &page["data"][0];
    assert!(first["recipientId"].as_str().is_some_and(|id| id.len() == 36), "{first}");
    let mut first = first.clone();
    first["recipientId"] = json!("some id");
    let expected = json!({
        "recipientId": "some id", "externalId": "r-3", "email": "r-3@example.com", "suppressed": false,
        "problematic": false, "failures": null, "since": null, "lastFailureAt": null, "lastFailureCode": null,
    });
    assert_eq!(first, expected);
    let cursor = page["nextCursor"].as_str().expect("a second page");
    let second = list(&world, &format!("?limit=2&cursor={cursor}")).await;
    assert_eq!(second["data"][0]["externalId"], "r-1");
    let other = world.company("other").await;
    let stranger = world.key(&other, KeyMode::Live, &[Scope::Admin]).await;
    let theirs = world.get("/v1/recipients").key(&stranger).send().await.json();
    assert_eq!(theirs, json!({ "data": [], "nextCursor": null }));
}

#[tokio::test]
async fn addresses_with_repeated_failures_are_told_and_cleared() {
    let world = world().await;
    let changes =
        json!({ "to": "ana@example.com", "delay": 3_600_000, "recipient": { "externalId": "r-1" } });
    world.sent_with(&world.live, changes).await;
    trouble(&world).await;
    let suppression = json!({ "email": "ana@example.com", "reason": "full" });
    world.post("/v1/suppressions").key(&world.admin).json(&suppression).await;
    let expected = json!({
        "recipientId": null, "externalId": null, "email": "Ana@example.com", "suppressed": true,
        "problematic": true, "failures": 3, "since": "2026-01-01T00:03:00.000Z",
        "lastFailureAt": "2026-01-01T00:03:00.000Z", "lastFailureCode": "SMTP_REJECTED_550",
    });
    assert_eq!(list(&world, "?problematic=true").await, json!({ "data": [expected], "nextCursor": null }));
    let known = list(&world, "?problematic=false").await["data"][0].clone();
    assert_eq!((&known["externalId"], &known["problematic"]), (&json!("r-1"), &json!(true)));
    assert_eq!((&known["failures"], &known["suppressed"]), (&json!(3), &json!(true)));

    let path = "/v1/recipients/problematic/ANA@example.com";
    let other = world.company("other").await;
    let stranger = world.key(&other, KeyMode::Live, &[Scope::Admin]).await;
    let theirs = world.get("/v1/recipients?problematic=true").key(&stranger).send().await.json();
    assert_eq!(theirs["data"], json!([]));
    assert_eq!(world.call(Method::DELETE, path).key(&stranger).send().await.code(), "PROBLEM_NOT_FOUND");
    assert_eq!(world.call(Method::DELETE, path).key(&world.admin).send().await.status, 204);
    let again = world.call(Method::DELETE, path).key(&world.admin).send().await;
    assert_eq!((again.status, again.code().as_str()), (404, "PROBLEM_NOT_FOUND"));
    assert_eq!(list(&world, "?problematic=true").await["data"], json!([]));
    assert_eq!(list(&world, "").await["data"][0]["problematic"], false);
    let odd = world.call(Method::DELETE, "/v1/recipients/problematic/nobody").key(&world.admin).send().await;
    assert_eq!(odd.code(), "PROBLEM_NOT_FOUND");
}

#[tokio::test]
async fn wrong_parameters_are_named() {
    let world = world().await;
    let cases = [
        ("problematic=yes", "INVALID_TYPE"),
        ("problematic=true&problematic=true", "REPEATED_PARAMETER"),
        ("limit=101", "OUT_OF_RANGE"),
        ("cursor=x", "INVALID_CURSOR"),
        ("problem=true", "UNKNOWN_PARAMETER"),
    ];
    for (query, code) in cases {
        let answer = world.get(&format!("/v1/recipients?{query}")).key(&world.live).send().await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{query}");
    }
}
