//! Copies: an email sent once more, and captured mail let out to a real provider by somebody who may.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{ApiSettings, ApiState};
use gateway::accept::Desk;
use gateway::{CAPTURE, EnvironmentGuard, Settings};
use model::{EmailId, KeyMode, Scope, Secret};
use provider_smtp::{SmtpConfig, SmtpProvider};
use serde_json::{Value, json};

use crate::world::{ADMIN_TOKEN, Answer, World, world};

/// A world with one provider that sends, `outside`, beside those that capture. Nothing is ever sent in these tests.
async fn world_with_a_way_out(guard: EnvironmentGuard) -> World {
    let mut world = world().await;
    let mut providers = BTreeMap::clone(&world.gateway.providers);
    let config = SmtpConfig::parse("smtp://127.0.0.1:9").expect("an address");
    providers.insert("outside".to_owned(), Arc::new(SmtpProvider::new(config).expect("a provider")));
    world.gateway.providers = Arc::new(providers);
    world.gateway.settings = Arc::new(Settings { guard, ..Settings::clone(&world.gateway.settings) });
    let settings =
        ApiSettings { admin_token: Some(Secret::new(ADMIN_TOKEN.to_owned())), ..ApiSettings::default() };
    let desk = Desk { gateway: world.gateway.clone(), documents: None };
    world.state = ApiState::new(desk, settings, Arc::new(String::new));
    world.router = api::router(world.state.clone());
    world
}

async fn ask(world: &World, key: &str, id: EmailId, verb: &str, body: &Value) -> Answer {
    world.post(&format!("/v1/emails/{id}/{verb}")).key(key).json(body).await
}

async fn shown(world: &World, id: &str) -> Value {
    world.get(&format!("/v1/emails/{id}")).key(&world.live).send().await.json()
}

fn id_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 202, "{}", answer.text());
    answer.json()["outboxId"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn an_email_is_sent_once_more() {
    let world = world().await;
    let first = world
        .sent_with(
            &world.live,
            json!({ "cc": ["bob@example.com"], "tags": ["red"], "externalId": "o-1", "entity": { "id": "club" }, "text": "Hi" }),
        )
        .await;
    let early = ask(&world, &world.live, first, "resend", &json!({})).await;
    assert_eq!((early.status, early.code().as_str()), (409, "NOT_COPYABLE"), "it is still to be sent itself");
    world.deliver_all("relay").await;
    let copy = id_of(&ask(&world, &world.live, first, "resend", &json!({})).await);
    let (first_shown, copy_shown) = (shown(&world, &first.to_string()).await, shown(&world, &copy).await);
    assert_eq!(first_shown["status"], "SENT", "the first stays as it is");
    assert_eq!(copy_shown["copyOf"], json!({ "id": first.to_string(), "purpose": "resend" }));
    assert_eq!((&copy_shown["status"], &copy_shown["attempts"]), (&json!("ENQUEUED"), &json!(0)));
    for name in ["to", "cc", "subject", "tags", "externalId", "entity", "mode", "sizeBytes"] {
        assert_eq!(copy_shown[name], first_shown[name], "{name}");
    }
    let content = world.get(&format!("/v1/emails/{copy}/content")).key(&world.live).send().await.json();
    assert_eq!((&content["html"], &content["text"]), (&json!("<p>Hello</p>"), &json!("Hi")));
    let copies =
        world.get(&format!("/v1/emails?requestId=resend:{first}")).key(&world.live).send().await.json();
    assert_eq!(copies["data"][0]["id"], copy.as_str(), "the first leads to its copies");
    let forged =
        world.post("/v1/email/send").key(&world.live).header("x-request-id", format!("resend:{first}"));
    let forged = id_of(&forged.json(&crate::world::good()).await);
    assert_eq!(shown(&world, &forged).await["copyOf"], Value::Null, "nobody else can say so");
}

#[tokio::test]
async fn a_key_makes_one_copy() {
    let world = world().await;
    let first = world.sent().await;
    world.deliver_all("relay").await;
    let path = format!("/v1/emails/{first}/resend");
    let once = || world.post(&path).key(&world.live).header("idempotency-key", "k").json(&Value::Null);
    let (one, two) = (once().await, once().await);
    assert_eq!(id_of(&one), id_of(&two));
    assert_eq!(two.header("idempotent-replayed"), Some("true"));
    let second = world.sent().await;
    world.deliver_all("relay").await;
    let other = world.post(&format!("/v1/emails/{second}/resend")).key(&world.live);
    assert_eq!(other.header("idempotency-key", "k").send().await.code(), "IDEMPOTENCY_KEY_REUSED");
}

#[tokio::test]
async fn what_must_not_be_copied_is_refused() {
    let world = world().await;
    let first = world.sent().await;
    world.deliver_all("relay").await;
    let suppress = json!({ "email": "ana@example.com", "reason": "asked us" });
    assert!(world.post("/v1/suppressions").key(&world.admin).json(&suppress).await.status < 300);
    let refused = ask(&world, &world.live, first, "resend", &json!({})).await;
    assert_eq!((refused.status, refused.code().as_str()), (422, "RECIPIENT_SUPPRESSED"));
    let by_test = world.key(&world.shop.clone(), KeyMode::Test, &[Scope::Send, Scope::Read]).await;
    let second = world.sent_with(&world.live, json!({ "to": "bob@example.com" })).await;
    world.deliver_all("relay").await;
    let copy = id_of(&ask(&world, &by_test, second, "resend", &json!({})).await);
    assert_eq!(shown(&world, &copy).await["mode"], "test", "a test key never sends for real");
}

#[tokio::test]
async fn captured_mail_is_released_to_one_address() {
    let world = world_with_a_way_out(EnvironmentGuard::Open).await;
    let changes =
        json!({ "cc": ["bob@example.com"], "bcc": ["eve@example.com"], "entity": { "id": "club" } });
    let first = world.sent_with(&world.test, changes).await;
    world.deliver_all(CAPTURE).await;
    assert_eq!(shown(&world, &first.to_string()).await["captured"], true);
    let body = json!({ "provider": "outside", "to": "me@example.com" });
    let copy = id_of(&ask(&world, &world.admin, first, "release", &body).await);
    let copy_shown = shown(&world, &copy).await;
    assert_eq!(copy_shown["copyOf"], json!({ "id": first.to_string(), "purpose": "release" }));
    assert_eq!((&copy_shown["to"], &copy_shown["mode"]), (&json!("me@example.com"), &json!("live")));
    assert_eq!((&copy_shown["cc"], &copy_shown["bcc"]), (&json!([]), &json!([])), "nobody nobody thought of");
    assert_eq!(copy_shown["entity"], Value::Null);
    let id: EmailId = copy.parse().expect("an id");
    let stored = world.gateway.store.email(world.shop.id, id).await.expect("read").expect("there");
    assert_eq!(stored.route, "outside");
    let events = world.get(&format!("/v1/emails/{copy}/events")).key(&world.live).send().await.json();
    assert_eq!(events["data"][0]["type"], "ENQUEUED");

    let plain = id_of(&ask(&world, &world.admin, first, "release", &json!({})).await);
    let stored = world.gateway.store.email(world.shop.id, plain.parse().expect("an id")).await;
    let stored = stored.expect("read").expect("there");
    assert_eq!(stored.route, "outside", "the only one that sends");
    assert_eq!(stored.envelope.to.expose(), "ana@example.com");
}

#[tokio::test]
async fn not_everything_may_be_released_by_everybody() {
    let world = world_with_a_way_out(EnvironmentGuard::Open).await;
    let first = world.sent_with(&world.test, json!({})).await;
    let waiting = ask(&world, &world.admin, first, "release", &json!({})).await;
    assert_eq!(waiting.code(), "NOT_COPYABLE");
    world.deliver_all(CAPTURE).await;
    let shop = world.shop.clone();
    let test_admin = world.key(&shop, KeyMode::Test, &[Scope::Admin]).await;
    let cases = [
        ("a key that only sends", &world.live, json!({}), 403, "INSUFFICIENT_SCOPE"),
        ("a test key", &test_admin, json!({}), 403, "LIVE_KEY_REQUIRED"),
        ("a mailbox", &world.admin, json!({ "provider": "relay" }), 422, "UNKNOWN_PROVIDER"),
        ("no provider", &world.admin, json!({ "provider": "nobody" }), 422, "UNKNOWN_PROVIDER"),
        ("a sandbox address", &world.admin, json!({ "to": "x@posthaste.test" }), 409, "STAYS_CAPTURED"),
        ("no address", &world.admin, json!({ "to": "nobody" }), 400, "INVALID_EMAIL"),
        ("another field", &world.admin, json!({ "cc": "x@example.com" }), 400, "UNKNOWN_FIELD"),
    ];
    for (case, key, body, status, code) in cases {
        let answer = ask(&world, key, first, "release", &body).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{case}");
    }
    let foreign = world.sent_with(&world.test, json!({ "from": "boss@elsewhere.example" })).await;
    world.deliver_all(CAPTURE).await;
    let refused = ask(&world, &world.admin, foreign, "release", &json!({})).await;
    assert_eq!(refused.code(), "SENDER_NOT_ALLOWED", "a test key may call itself anything, a real email not");
    let eml =
        "From: shop@shop.example\r\nSender: boss@elsewhere.example\r\nTo: ana@example.com\r\n\r\nHello\r\n";
    let taken = world.post("/v1/email/raw").key(&world.test).body("message/rfc822", eml).send().await;
    gateway::sweep::sweep_once(&world.gateway).await.expect("the store works");
    world.deliver_all(CAPTURE).await;
    let raw: EmailId = id_of(&taken).parse().expect("an id");
    let refused = ask(&world, &world.admin, raw, "release", &json!({})).await;
    assert_eq!(refused.code(), "SENDER_NOT_ALLOWED", "nor an .eml by its Sender");
    let all = world.get("/v1/emails").key(&world.live).send().await.json();
    assert_eq!(all["data"].as_array().map(Vec::len), Some(3), "nothing was made of any of it");
}

#[tokio::test]
async fn the_environment_has_the_last_word() {
    let guarded = world_with_a_way_out(EnvironmentGuard::Capture).await;
    let first = guarded.sent().await;
    guarded.deliver_all(CAPTURE).await;
    assert_eq!(ask(&guarded, &guarded.admin, first, "release", &json!({})).await.code(), "STAYS_CAPTURED");

    let allowed = world_with_a_way_out(EnvironmentGuard::Allow(vec!["me@example.com".into()])).await;
    let first = allowed.sent().await;
    allowed.deliver_all(CAPTURE).await;
    assert_eq!(ask(&allowed, &allowed.admin, first, "release", &json!({})).await.code(), "STAYS_CAPTURED");
    id_of(&ask(&allowed, &allowed.admin, first, "release", &json!({ "to": "me@example.com" })).await);

    let without = world().await;
    let first = without.sent().await;
    without.deliver_all(CAPTURE).await;
    assert_eq!(ask(&without, &without.admin, first, "release", &json!({})).await.code(), "NO_REAL_PROVIDER");
}
