//! No company sees another: what is somebody else's is answered byte for byte like what is not there.

use axum::http::Method;
use model::{EmailId, KeyMode, Scope};
use serde_json::json;
use testkit::START;

use crate::world::{World, world};

async fn stranger(world: &World) -> String {
    let company = world.company("stranger").await;
    world.key(&company, KeyMode::Live, &[Scope::Admin]).await
}

/// Every route of companies with an id in it, taken from the OpenAPI document so that a new one cannot be
/// forgotten.
fn routes_with_id(world: &World) -> Vec<(Method, String)> {
    let mut routes = Vec::new();
    for (path, item) in world.document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            if path.contains("{id}") && operation.get("x-scope").is_some() {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
                routes.push((method, path.clone()));
            }
        }
    }
    routes
}

#[tokio::test]
async fn foreign_ids_look_like_missing_ones() {
    let world = world().await;
    let stranger = stranger(&world).await;
    let dead = world.sent().await;
    assert_eq!(world.fail_all("SMTP_REJECTED_550").await, 1);
    let waiting = world.sent().await;
    let routes = routes_with_id(&world);
    assert!(routes.len() >= 6, "{routes:?}");
    for (method, path) in routes {
        for theirs in [waiting, dead] {
            let mut bodies = Vec::new();
            for id in [theirs, EmailId::new(START)] {
                let path = path.replace("{id}", &id.to_string());
                let call = world.call(method.clone(), &path).key(&stranger).header("x-request-id", "same");
                let answer = call.send().await;
                assert_eq!(answer.status, 404, "{method} {path}");
                bodies.push(answer.bytes);
            }
            assert_eq!(bodies[0], bodies[1], "{method} {path}");
            let malformed = path.replace("{id}", "not-an-id");
            let answer = world.call(method.clone(), &malformed).key(&stranger).header("x-request-id", "same");
            assert_eq!(answer.send().await.bytes, bodies[0], "{method} {malformed}");
        }
    }
    let still = world.get(&format!("/v1/emails/{waiting}")).key(&world.live).send().await;
    assert_eq!(still.json()["status"], "ENQUEUED", "nothing was changed");
}

#[tokio::test]
async fn lists_and_replays_stay_at_home() {
    let world = world().await;
    let stranger = stranger(&world).await;
    let dead = world.sent_with(&world.live, json!({ "tags": ["t"], "externalId": "e" })).await;
    world.fail_all("SMTP_REJECTED_550").await;
    world.sent().await;
    for path in [
        "/v1/emails",
        "/v1/emails?externalId=e",
        "/v1/emails?tag=t",
        "/v1/emails?to=ana@example.com",
        "/v1/dlq",
    ] {
        let answer = world.get(path).key(&stranger).send().await;
        assert_eq!(answer.json(), json!({ "data": [], "nextCursor": null }), "{path}");
    }
    for body in [json!({ "ids": [dead.to_string()] }), json!({ "filter": {} })] {
        let answer = world.post("/v1/dlq/replay").key(&stranger).json(&body).await;
        assert_eq!(answer.json(), json!({ "matched": 0, "replayed": 0 }), "{body}");
    }
    let first = world.get("/v1/emails?limit=1").key(&world.live).send().await.json();
    let cursor = first["nextCursor"].as_str().expect("a second page");
    let answer = world.get(&format!("/v1/emails?limit=1&cursor={cursor}")).key(&stranger).send().await;
    assert_eq!(answer.code(), "INVALID_CURSOR", "a cursor is of no use to others");
}
