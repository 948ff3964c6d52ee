//! Health, pages, fallbacks, limits and what happens when things break.

use std::time::{Duration, Instant};

use api::ApiSettings;
use axum::body::Body;
use axum::http::Method;
use base64::Engine as _;
use futures_util::stream::{self, StreamExt as _};
use sha2::{Digest as _, Sha256};

use crate::world::{Wanted, World, good, world, world_of};

/// A store that takes more than 2 s for its answer is not fit for work, also where the machine is only slow.
async fn becomes_ready(world: &World) {
    let begun = Instant::now();
    loop {
        let answer = world.get("/readyz").send().await;
        if answer.status == 200 {
            return;
        }
        assert_eq!((answer.status, answer.code().as_str()), (503, "NOT_READY"));
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", answer.text());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn health_is_told() {
    let world = world().await;
    assert_eq!(world.get("/livez").send().await.status, 200);
    becomes_ready(&world).await;
    assert_eq!(world.get("/metrics").send().await.text(), "# nothing\n");
    world.state.begin_draining();
    let answer = world.get("/readyz").send().await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "NOT_READY"));
    assert!(answer.text().contains("shutting down"), "{}", answer.text());
    assert_eq!(world.get("/livez").send().await.status, 200);
}

#[tokio::test]
async fn a_store_that_is_gone_is_a_clear_error() {
    let world = world().await;
    world.sent().await;
    world.gateway.store.close().await;
    let sent = world.post("/v1/email/send").key(&world.live).json(&good()).await;
    assert_eq!((sent.status, sent.code().as_str()), (503, "STORE_UNAVAILABLE"), "{}", sent.text());
    let listed = world.get("/v1/emails").key(&world.live).send().await;
    assert_eq!((listed.status, listed.code().as_str()), (503, "STORE_UNAVAILABLE"));
    let unknown = world.get("/v1/emails").key("live_x").send().await;
    assert_eq!(unknown.status, 503, "whether the key is good cannot be known now");
    let ready = world.get("/readyz").send().await;
    assert_eq!((ready.status, ready.code().as_str()), (503, "NOT_READY"));
    assert!(ready.text().contains("store"), "{}", ready.text());
}

#[tokio::test]
async fn unknown_addresses_and_methods() {
    let world = world().await;
    for path in ["/v1/nothing", "/v1/emails/", "/V1/emails", "/%2e%2e/etc/passwd", "/v1//emails"] {
        let answer = world.get(path).undescribed().send().await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "ROUTE_NOT_FOUND"), "{path}");
    }
    let cases = [
        (Method::GET, "/v1/email/send", "POST"),
        (Method::DELETE, "/v1/emails", "GET,HEAD"),
        (Method::PUT, "/v1/admin/companies", "GET,HEAD,POST"),
        (Method::POST, "/livez", "GET,HEAD"),
        (Method::OPTIONS, "/v1/email/send", "POST"),
    ];
    for (method, path, allowed) in cases {
        let answer = world.call(method.clone(), path).undescribed().send().await;
        assert_eq!((answer.status, answer.code().as_str()), (405, "METHOD_NOT_ALLOWED"), "{method} {path}");
        assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
    }
    let strange = world.get("/v1/emails/%ff%fe").key(&world.live).send().await;
    assert_eq!(strange.code(), "EMAIL_NOT_FOUND");
}

#[tokio::test]
async fn the_bare_address_leads_to_the_dashboard() {
    let world = world().await;
    let answer = world.get("/").send().await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("/ui")));
}

/// A process that only sends answers like the others, if only for its health.
#[tokio::test]
async fn a_worker_tells_its_health_alone() {
    let mut world = world().await;
    world.router = api::health_router(world.state.clone());
    for path in ["/livez", "/metrics"] {
        assert_eq!(world.get(path).send().await.status, 200, "{path}");
    }
    becomes_ready(&world).await;
    for path in ["/", "/ui", "/docs", "/openapi.json", "/v1/emails", "/v1/admin/companies"] {
        let answer = world.get(path).key(&world.live).undescribed().send().await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "ROUTE_NOT_FOUND"), "{path}");
        assert!(answer.text().contains("/livez"), "{path}: {}", answer.text());
    }
    let wrong = world.post("/livez").undescribed().send().await;
    assert_eq!((wrong.status, wrong.code().as_str()), (405, "METHOD_NOT_ALLOWED"));
}

#[tokio::test]
async fn a_bug_is_our_mistake_and_tells_nothing() {
    let world = world_of(Wanted { metrics: || panic!("a secret detail"), ..Wanted::default() }).await;
    let answer = world.get("/metrics").send().await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "INTERNAL_ERROR"));
    assert!(!answer.text().contains("secret detail"));
    assert_eq!(world.get("/livez").send().await.status, 200);
}

#[tokio::test]
async fn a_second_holds_so_many_requests() {
    let mut wanted = Wanted::default();
    wanted.settings.requests_per_sec = 2;
    let world = world_of(wanted).await;
    let get = || world.get("/v1/emails").key(&world.live).send();
    assert_eq!(get().await.header("ratelimit-remaining"), Some("1"));
    assert_eq!(get().await.header("ratelimit-remaining"), Some("0"));
    let refused = get().await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "RATE_LIMITED"));
    assert_eq!(refused.header("ratelimit-remaining"), Some("0"));
    let other = world.company("other").await;
    let other = world.key(&other, model::KeyMode::Test, &[model::Scope::Read]).await;
    assert_eq!(world.get("/v1/emails").key(&other).send().await.status, 200, "others are not slowed");
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(get().await.status, 200);
}

#[tokio::test]
async fn a_body_that_never_comes_is_given_up() {
    let mut wanted = Wanted::default();
    wanted.settings.body_timeout = Duration::from_millis(50);
    let world = world_of(wanted).await;
    let never = Body::from_stream(stream::pending::<Result<bytes::Bytes, std::io::Error>>());
    let answer = world.post("/v1/email/send").key(&world.live).body("application/json", never).send().await;
    assert_eq!((answer.status, answer.code().as_str()), (408, "BODY_TIMEOUT"));
    assert_eq!(answer.header("connection"), Some("close"));
}

#[tokio::test]
async fn large_bodies_wait_for_room() {
    let world = world().await;
    world.sent().await; // From here on the key is known without asking the store.
    let half = || {
        let block = bytes::Bytes::from(vec![b' '; 1024 * 1024]);
        let blocks = (0..15).map(move |_| Ok::<_, std::io::Error>(block.clone()));
        let body = Body::from_stream(stream::iter(blocks).chain(stream::pending()));
        world.post("/v1/email/send").key(&world.live).body("application/json", body)
    };
    let mut held: Vec<_> = (0..6).map(|_| Box::pin(half().send())).collect();
    for call in &mut held {
        assert!(futures_util::poll!(call.as_mut()).is_pending());
    }
    let refused = half().send().await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "OVERLOADED"));
    world.sent().await;
    drop(held);
    assert!(futures_util::poll!(Box::pin(half().send())).is_pending(), "room is given back");
}

#[tokio::test]
async fn pages_allow_only_what_they_ship() {
    let world = world().await;
    for path in ["/docs"] {
        let answer = world.get(path).send().await;
        let policy = answer.header("content-security-policy").expect("a policy").to_owned();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        let page = answer.text();
        assert!(!page.contains("http://") && !page.contains("https://"), "nothing from elsewhere");
        for tag in ["style", "script"] {
            for part in page.split(&format!("<{tag}>")).skip(1) {
                let text = part.split(&format!("</{tag}>")).next().expect("an end");
                let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text.as_bytes()));
                assert!(policy.contains(&format!("'sha256-{hash}'")), "{path} {tag}");
            }
        }
    }
    let document = world.get("/openapi.json").send().await.json();
    assert_eq!(document, world.document);
}

#[tokio::test]
async fn the_default_settings_are_those_promised() {
    let settings = ApiSettings::default();
    assert_eq!(settings.requests_per_sec, 20_000);
    assert_eq!(settings.attachments_bytes_max, 10 * 1024 * 1024);
}
