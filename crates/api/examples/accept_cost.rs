//! What one `POST /v1/email/send` with 10 KB of html costs: `cargo run --release -p api --example accept_cost`.
//!
//! `refused` names an unknown provider, so it goes all the way from the router through reading, checking and
//! the html policy and ends before the store; `stored` goes on into an SQLite store in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::{ApiSettings, ApiState};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use gateway::accept::Desk;
use gateway::keys::make_key;
use gateway::{CAPTURE, EnvironmentGuard, Gateway, Settings};
use model::{KeyMode, RetryPolicy, Scope};
use provider::Provider;
use provider_capture::CaptureProvider;
use queue_store::StoreQueue;
use store::{Retention, Store};
use store_sqlite::SqliteStore;
use testkit::{ManualClock, START, a_company};
use tower::ServiceExt as _;

const ROUNDS: u32 = 2_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (router, key) = router().await;
    let paragraph = "<p style=\"margin:0\">Your order <b>12345</b> is on its way, &amp; arrives soon.</p>\n";
    let html = paragraph.repeat(10 * 1024 / paragraph.len());
    let good = serde_json::json!({ "to": "ana@example.com", "subject": "Your order", "html": html });
    let mut refused = good.clone();
    refused["provider"] = "mars".into();
    for (name, body, status) in [("refused", refused, 422), ("stored", good, 202)] {
        let body = body.to_string();
        let started = Instant::now();
        for _ in 0..ROUNDS {
            let request = Request::post("/v1/email/send")
                .header("x-api-key", &key)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONTENT_LENGTH, body.len())
                .body(Body::from(body.clone()))
                .expect("a request");
            let answer = router.clone().oneshot(request).await.expect("an answer");
            assert_eq!(answer.status(), status);
        }
        println!("{name}: {:?} per request of {} bytes", started.elapsed() / ROUNDS, body.len());
    }
}

async fn router() -> (Router, String) {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.expect("a store"));
    let company = a_company("shop");
    store.add_company(company.clone()).await.expect("a company");
    let key = make_key(company.id, KeyMode::Test, vec![Scope::Send], None, None, START);
    store.add_key(key.record).await.expect("a key");
    let capture: Arc<dyn Provider> = Arc::new(CaptureProvider::default());
    let fast = RetryPolicy::fast();
    let day = Duration::from_secs(24 * 3600);
    let gateway = Gateway {
        queue: Arc::new(StoreQueue::new(Arc::clone(&store))),
        store,
        providers: Arc::new(BTreeMap::from([(CAPTURE.to_owned(), capture)])),
        clock: Arc::new(ManualClock::default()),
        suppressions: Arc::default(),
        templates: Arc::default(),
        tracer: Default::default(),
        dice: Arc::new(|| 0.0),
        settings: Arc::new(Settings {
            default_retry_policy: fast.name.clone(),
            retry_policies: BTreeMap::from([(fast.name.clone(), fast)]),
            default_route: vec![CAPTURE.to_owned()],
            ttl: day,
            worker_concurrency: 1,
            lease: Duration::from_secs(45),
            retention: Retention { content: day, emails: day, dead_letters: day },
            guard: EnvironmentGuard::Open,
            provider_rates: std::collections::BTreeMap::new(),
            alerts: Default::default(),
            reputation: None,
        }),
    };
    let desk = Desk { gateway, documents: None };
    let settings = ApiSettings { requests_per_sec: u32::MAX, ..ApiSettings::default() };
    let state = ApiState::new(desk, settings, Arc::new(String::new));
    (api::router(state), key.text.into_inner())
}
