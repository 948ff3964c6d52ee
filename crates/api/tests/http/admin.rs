//! The operator's companies and keys.

use std::time::Duration;

use api::ApiSettings;
use axum::http::Method;
use gateway::health::Health;
use model::Scope;
use provider::Trouble;
use serde_json::{Value, json};

use crate::world::{ADMIN_TOKEN, Wanted, World, good, world, world_of};

async fn add(world: &World, body: Value) -> Value {
    let answer = world.post("/v1/admin/companies").operator().json(&body).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()
}

#[tokio::test]
async fn companies_are_added_and_changed() {
    let world = world().await;
    let company =
        add(&world, json!({ "name": "acme", "from": "Acme <a@acme.example>", "dailyLimit": 5 })).await;
    assert_eq!(company["from"], "Acme <a@acme.example>");
    let path = format!("/v1/admin/companies/{}", company["id"].as_str().expect("an id"));
    let patch = json!({
        "name": "acme 2", "senders": ["@acme.example", "b@other.example"], "route": ["relay", "capture"],
        "weight": 3, "concurrencyMax": 10, "ratePerSec": 50, "dailyLimit": null, "retryPolicy": "patient",
        "onUnknown": "hold", "adminEmail": "ops@acme.example",
    });
    let changed = world.call(Method::PATCH, &path).operator().json(&patch).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    let mut expected = company.clone();
    for (name, value) in patch.as_object().expect("an object") {
        expected[name] = value.clone();
    }
    assert_eq!(changed.json(), expected);
    assert_eq!(world.get(&path).operator().send().await.json(), expected);
    let back = json!({ "senders": null, "route": null, "weight": null, "from": null });
    let back = world.call(Method::PATCH, &path).operator().json(&back).await.json();
    assert_eq!((&back["senders"], &back["route"], &back["weight"]), (&json!([]), &json!(null), &json!(1)));
    let listed = world.get("/v1/admin/companies").operator().send().await.json();
    let names: Vec<&str> = listed["data"]
        .as_array()
        .expect("data")
        .iter()
        .filter_map(|company| company["name"].as_str())
        .collect();
    assert_eq!(names, ["acme 2", "shop"]);
}

#[tokio::test]
async fn wrong_settings_are_named() {
    let world = world().await;
    let company = add(&world, json!({ "name": "acme" })).await;
    let path = format!("/v1/admin/companies/{}", company["id"].as_str().expect("an id"));
    let cases = [
        (json!({ "name": "" }), 400, "TOO_SHORT"),
        (json!({ "name": "shop" }), 409, "COMPANY_EXISTS"),
        (json!({ "weight": 0 }), 400, "OUT_OF_RANGE"),
        (json!({ "route": [] }), 400, "TOO_SHORT"),
        (json!({ "route": ["mars"] }), 422, "UNKNOWN_PROVIDER"),
        (json!({ "retryPolicy": "soon" }), 422, "UNKNOWN_RETRY_POLICY"),
        (json!({ "senders": ["@"] }), 400, "INVALID_SENDER"),
        (json!({ "from": "nobody" }), 400, "INVALID_EMAIL"),
        (json!({ "disabled": "yes" }), 400, "INVALID_TYPE"),
        (json!({ "id": "x" }), 400, "UNKNOWN_FIELD"),
        (json!({ "dailyLimt": 1 }), 400, "UNKNOWN_FIELD"),
    ];
    for (body, status, code) in cases {
        let answer = world.call(Method::PATCH, &path).operator().json(&body).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{body}");
    }
    let nameless = world.post("/v1/admin/companies").operator().json(&json!({ "weight": 0 })).await;
    assert_eq!((nameless.status, nameless.json()["errors"].as_array().map(Vec::len)), (400, Some(2)));
    let missing = "/v1/admin/companies/0190c3d2-7b7e-7000-8000-000000000000";
    for path in [missing, "/v1/admin/companies/x"] {
        assert_eq!(world.get(path).operator().send().await.code(), "COMPANY_NOT_FOUND");
    }
}

#[tokio::test]
async fn a_company_is_switched_off_and_on() {
    let world = world().await;
    world.sent().await;
    let path = format!("/v1/admin/companies/{}", world.shop.id);
    let off = world.call(Method::PATCH, &path).operator().json(&json!({ "disabled": true })).await;
    assert_eq!(off.json()["disabled"], true);
    let refused = world.post("/v1/email/send").key(&world.live).json(&good()).await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "COMPANY_DISABLED"), "at once");
    world.call(Method::PATCH, &path).operator().json(&json!({ "disabled": false })).await;
    world.sent().await;
}

#[tokio::test]
async fn a_key_lives_and_ends() {
    let world = world().await;
    let keys = format!("/v1/admin/companies/{}/keys", world.shop.id);
    let order =
        json!({ "mode": "test", "scopes": ["read"], "label": "ci", "expiresAt": "2026-01-01T01:00:00Z" });
    let made = world.post(&keys).operator().json(&order).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let made = made.json();
    let key = made["key"].as_str().expect("the key").to_owned();
    assert!(key.starts_with("test_") && key.len() == 48, "{key}");
    assert!(key.starts_with(made["prefix"].as_str().expect("a prefix")));
    assert_eq!(world.get("/v1/emails").key(&key).send().await.status, 200);
    world.state.flush().await.expect("written");
    let listed = world.get(&keys).operator().send().await;
    assert!(!listed.text().contains(&key), "the key is shown once");
    let listed = listed.json();
    let shown = listed["data"].as_array().expect("data").iter().find(|shown| shown["id"] == made["id"]);
    assert_eq!(shown.expect("the key")["label"], "ci");

    world.clock.advance(Duration::from_secs(3600));
    assert_eq!(world.get("/v1/emails").key(&key).send().await.code(), "EXPIRED_API_KEY");
    let path = format!("{keys}/{}", made["id"].as_str().expect("an id"));
    assert_eq!(world.call(Method::DELETE, &path).operator().send().await.status, 204);
    assert_eq!(world.get("/v1/emails").key(&key).send().await.code(), "REVOKED_API_KEY", "at once");
    assert_eq!(
        world.call(Method::DELETE, &path).operator().send().await.status,
        204,
        "revoking twice is fine"
    );
    let missing = format!("{keys}/0190c3d2-7b7e-7000-8000-000000000000");
    assert_eq!(world.call(Method::DELETE, &missing).operator().send().await.code(), "KEY_NOT_FOUND");
    let default = world.post(&keys).operator().json(&json!({})).await.json();
    assert_eq!((&default["mode"], &default["scopes"]), (&json!("live"), &json!(["send", "read"])));
    for (body, code) in [
        (json!({ "scopes": [] }), "TOO_SHORT"),
        (json!({ "scopes": ["root"] }), "INVALID_VALUE"),
        (json!({ "mode": "prod" }), "INVALID_VALUE"),
        (json!({ "expiresAt": "2020-01-01T00:00:00Z" }), "OUT_OF_RANGE"),
        (json!({ "hash": "x" }), "UNKNOWN_FIELD"),
    ] {
        assert_eq!(world.post(&keys).operator().json(&body).await.code(), code, "{body}");
    }
}

/// A key revoked on another node, whose memory this one does not share, ends here within five seconds.
#[tokio::test]
async fn a_revocation_elsewhere_arrives() {
    let world = world().await;
    let shop = world.shop.clone();
    let key = world.key(&shop, model::KeyMode::Live, &[Scope::Read]).await;
    assert_eq!(world.get("/v1/emails").key(&key).send().await.status, 200);
    let keys = world.gateway.store.keys(shop.id).await.expect("keys");
    let id = keys.iter().find(|kept| key.starts_with(&kept.prefix)).expect("the key").id;
    world.gateway.store.revoke_key(shop.id, id, testkit::START).await.expect("revoked");
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(world.get("/v1/emails").key(&key).send().await.code(), "REVOKED_API_KEY");
}

#[tokio::test]
async fn only_the_operator_comes_in() {
    let world = world().await;
    let path = "/v1/admin/companies";
    assert_eq!(world.get(path).send().await.code(), "MISSING_ADMIN_TOKEN");
    assert_eq!(world.get(path).header("x-admin-token", "wrong").send().await.code(), "INVALID_ADMIN_TOKEN");
    assert_eq!(
        world.get(path).key(&world.admin).send().await.code(),
        "MISSING_ADMIN_TOKEN",
        "a key is no token"
    );
    assert_eq!(world.get(path).header("x-admin-token", ADMIN_TOKEN).send().await.status, 200);
    let local = world.get(path).peer("127.0.0.1:1").header("host", "localhost");
    assert_eq!(local.send().await.code(), "MISSING_ADMIN_TOKEN", "with a token, being local is not enough");

    let open = world_of(Wanted { settings: ApiSettings::default(), ..Wanted::default() }).await;
    let local = || open.get(path).peer("127.0.0.1:1").header("host", "localhost:8025");
    assert_eq!(local().send().await.status, 200);
    assert_eq!(local().header("origin", "http://evil.example").send().await.code(), "ADMIN_LOCAL_ONLY");
    let away = open.get(path).peer("192.0.2.1:1").header("host", "localhost");
    assert_eq!(away.send().await.code(), "ADMIN_LOCAL_ONLY");
    let rebound = open.get(path).peer("127.0.0.1:1").header("host", "evil.example");
    assert_eq!(rebound.send().await.code(), "ADMIN_LOCAL_ONLY");
}

#[tokio::test]
async fn providers_are_shown_with_rate_and_breaker() {
    let world = world().await;
    let listed = |answer: Value| answer["data"].as_array().expect("data").clone();
    let fresh = listed(world.get("/v1/admin/providers").operator().send().await.json());
    let working = json!({
        "name": "relay", "kind": "capture", "status": "WORKING", "ratePerSec": 14, "configuredRatePerSec": 14,
        "breaker": null, "account": null, "lastReportAt": null,
    });
    assert_eq!(fresh.iter().map(|provider| &provider["name"]).collect::<Vec<_>>(), ["capture", "relay"]);
    assert_eq!((&fresh[0]["ratePerSec"], &fresh[1]), (&json!(null), &working));

    let now = world.gateway.clock.now();
    let slowed = Health::default().after(Trouble::Throttled, "SMTP_TRANSIENT_421", None, 14, now);
    let resting = slowed.clone().after(Trouble::Outage, "NETWORK_ERROR", None, 14, now);
    for (seen, health, status) in [(0, slowed, "SLOWED"), (1, resting, "RESTING")] {
        let noted = world.gateway.store.note_provider("relay", seen, &health.encode()).await;
        assert_eq!(noted, Ok(true));
        let relay = listed(world.get("/v1/admin/providers").operator().send().await.json()).remove(1);
        assert_eq!((&relay["status"], &relay["ratePerSec"]), (&json!(status), &json!(7)));
    }
    let relay = listed(world.get("/v1/admin/providers").operator().send().await.json()).remove(1);
    let breaker = json!({
        "cause": "OUTAGE", "code": "NETWORK_ERROR", "since": now.to_string(), "probes": 0,
        "nextProbeAt": now.plus(Duration::from_secs(1)).to_string(),
    });
    assert_eq!(relay["breaker"], breaker);
    let refused = world.get("/v1/admin/providers").key(&world.admin).send().await;
    assert_eq!(refused.status, 401, "a company's key is not the operator's: {}", refused.text());
}
