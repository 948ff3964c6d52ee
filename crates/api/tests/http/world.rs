//! A gateway with two companies, and a client that checks whatever it gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::{ApiSettings, ApiState, Peer};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use gateway::accept::Desk;
use gateway::documents::DocumentKeys;
use gateway::keys::make_key;
use gateway::{CAPTURE, EnvironmentGuard, Gateway, Settings};
use http_body_util::BodyExt as _;
use model::{
    Claim, Company, Event, EventKind, KeyMode, Mailbox, RetryPolicy, Scope, Secret, Verdict, WorkerId,
};
use model::{Clock as _, EmailId};
use provider::Provider;
use provider_capture::CaptureProvider;
use queue_store::StoreQueue;
use serde_json::{Value, json};
use store::{ClaimRequest, Retention, SettledBy, Settlement, Store};
use store_sqlite::SqliteStore;
use testkit::{ManualClock, START, a_company, a_failure};
use tower::ServiceExt as _;

use crate::schema;

pub const ADMIN_TOKEN: &str = "an-admin-token-for-tests-0123456789";

pub struct World {
    pub router: Router,
    pub state: ApiState,
    pub gateway: Gateway,
    pub clock: Arc<ManualClock>,
    /// Has a default sender, `shop@shop.example`.
    pub shop: Company,
    pub live: String,
    pub test: String,
    pub admin: String,
    pub document: Value,
}

/// What may differ from test to test.
pub struct Wanted {
    pub settings: ApiSettings,
    pub documents: bool,
    pub metrics: fn() -> String,
}

impl Default for Wanted {
    fn default() -> Self {
        let settings =
            ApiSettings { admin_token: Some(Secret::new(ADMIN_TOKEN.to_owned())), ..ApiSettings::default() };
        Self { settings, documents: true, metrics: || "# nothing\n".to_owned() }
    }
}

pub async fn world() -> World {
    world_of(Wanted::default()).await
}

pub async fn world_of(wanted: Wanted) -> World {
    let clock = Arc::new(ManualClock::default());
    let store: Arc<dyn Store> = Arc::new(SqliteStore::in_memory().await.expect("a store"));
    let gateway = gateway(store, Arc::clone(&clock));
    let documents = wanted.documents.then(|| {
        let keys = DocumentKeys::new(Secret::new(vec![7; 32]), &[Secret::new([8; 32])]);
        Arc::new(keys.expect("fit keys"))
    });
    let desk = Desk { gateway: gateway.clone(), documents };
    let state = ApiState::new(desk, wanted.settings, Arc::new(wanted.metrics));
    let mut shop = a_company("shop");
    shop.settings.from = Some(Mailbox::parse("Shop <shop@shop.example>").expect("valid"));
    shop.settings.senders = vec!["@shop.example".into()];
    gateway.store.add_company(shop.clone()).await.expect("a company");
    let mut world = World {
        router: api::router(state.clone()),
        state,
        gateway,
        clock,
        live: String::new(),
        test: String::new(),
        admin: String::new(),
        shop,
        document: api::openapi_document(),
    };
    let shop = world.shop.clone();
    world.live = world.key(&shop, KeyMode::Live, &[Scope::Send, Scope::Read]).await;
    world.test = world.key(&shop, KeyMode::Test, &[Scope::Send, Scope::Read]).await;
    world.admin = world.key(&shop, KeyMode::Live, &[Scope::Admin]).await;
    world
}

fn gateway(store: Arc<dyn Store>, clock: Arc<ManualClock>) -> Gateway {
    let policies = [RetryPolicy::fast(), RetryPolicy::patient()];
    let day = Duration::from_secs(24 * 3600);
    let capture: Arc<dyn Provider> = Arc::new(CaptureProvider::default());
    let relay: Arc<dyn Provider> = Arc::new(CaptureProvider::default());
    Gateway {
        queue: Arc::new(StoreQueue::new(Arc::clone(&store))),
        store,
        providers: Arc::new(BTreeMap::from([(CAPTURE.to_owned(), capture), ("relay".to_owned(), relay)])),
        clock,
        suppressions: Arc::default(),
        templates: Arc::default(),
        tracer: Default::default(),
        dice: Arc::new(|| 0.0),
        settings: Arc::new(Settings {
            retry_policies: policies.into_iter().map(|policy| (policy.name.clone(), policy)).collect(),
            default_retry_policy: "fast".into(),
            default_route: vec!["relay".into()],
            ttl: day,
            worker_concurrency: 1,
            lease: Duration::from_secs(45),
            retention: Retention { content: 30 * day, emails: 90 * day, dead_letters: 7 * day },
            guard: EnvironmentGuard::Open,
            provider_rates: BTreeMap::from([("relay".to_owned(), 14)]),
            alerts: Default::default(),
            reputation: None,
        }),
    }
}

/// An email the shop may send.
pub fn good() -> Value {
    json!({ "to": "ana@example.com", "subject": "Hello", "html": "<p>Hello</p>" })
}

/// The good email with changes.
pub fn with(changes: Value) -> Value {
    let mut body = good();
    for (name, value) in changes.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

impl World {
    pub async fn key(&self, company: &Company, mode: KeyMode, scopes: &[Scope]) -> String {
        let key = make_key(company.id, mode, scopes.to_vec(), None, None, START);
        self.gateway.store.add_key(key.record).await.expect("a key");
        key.text.into_inner()
    }

    pub async fn company(&self, name: &str) -> Company {
        let company = a_company(name);
        self.gateway.store.add_company(company.clone()).await.expect("a company");
        company
    }

    pub fn get(&self, path: &str) -> Call<'_> {
        self.call(Method::GET, path)
    }

    pub fn post(&self, path: &str) -> Call<'_> {
        self.call(Method::POST, path)
    }

    pub fn call(&self, method: Method, path: &str) -> Call<'_> {
        let request = Request::new(Body::empty());
        let (mut parts, _) = request.into_parts();
        parts.method = method;
        parts.uri = path.parse().expect("a path");
        Call { world: self, parts, body: Body::empty(), may_be_undescribed: false }
    }

    /// Hands in the good email and returns its id.
    pub async fn sent(&self) -> EmailId {
        self.sent_with(&self.live, json!({})).await
    }

    pub async fn sent_with(&self, key: &str, changes: Value) -> EmailId {
        let answer = self.post("/v1/email/send").key(key).json(&with(changes)).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()["outboxId"].as_str().expect("an id").parse().expect("an id")
    }

    /// Lets a worker claim what is due and fail it for good.
    pub async fn fail_all(&self, code: &str) -> usize {
        self.settle_due(|_| Verdict::Fail { failure: a_failure(code), outcome_unknown: false }).await
    }

    /// Lets a worker claim what is due, and a provider take it; its id of an email is `m-` and ours.
    pub async fn deliver_all(&self, provider: &str) -> usize {
        let verdict = |claim: &Claim| Verdict::Sent {
            provider: provider.to_owned(),
            provider_kind: "smtp",
            message_id: Some(format!("m-{}", claim.id())),
            duration_ms: 1,
            refused: Vec::new(),
        };
        let mut sent = 0;
        loop {
            match self.settle_due(verdict).await {
                0 => return sent,
                more => sent += more,
            }
        }
    }

    /// Lets a worker claim what is due, and ends each as `verdict` says.
    pub async fn settle_due(&self, verdict: impl Fn(&Claim) -> Verdict) -> usize {
        let (store, now) = (&self.gateway.store, self.clock.now());
        let owner = WorkerId::new(now);
        let lease_until = now.plus(Duration::from_secs(45));
        let request = ClaimRequest {
            owner,
            now,
            lease_until,
            limit: 100,
            size_bytes_max: u64::MAX,
            routes: Default::default(),
        };
        let claims = store.claim(request).await.expect("claims");
        for claim in &claims {
            let kind = match verdict(claim) {
                Verdict::Sent { .. } => Some(Event::new(EventKind::Sent, now)),
                _ => None,
            };
            let settlement = Settlement {
                guard: claim.guard,
                by: SettledBy::Worker,
                verdict: verdict(claim),
                events: kind.into_iter().collect(),
                now,
            };
            store.settle(settlement).await.expect("settled");
        }
        claims.len()
    }
}

/// A request in the making.
pub struct Call<'w> {
    world: &'w World,
    parts: axum::http::request::Parts,
    body: Body,
    may_be_undescribed: bool,
}

impl Call<'_> {
    pub fn header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        let value = axum::http::HeaderValue::from_bytes(value.as_ref()).expect("a header value");
        self.parts.headers.append(name, value);
        self
    }

    pub fn key(self, key: &str) -> Self {
        self.header("x-api-key", key)
    }

    pub fn operator(self) -> Self {
        self.header("authorization", format!("Bearer {ADMIN_TOKEN}"))
    }

    pub fn peer(mut self, address: &str) -> Self {
        self.parts.extensions.insert(Peer(address.parse().expect("an address")));
        self
    }

    /// For answers below the API's description, such as those to unknown paths.
    pub fn undescribed(mut self) -> Self {
        self.may_be_undescribed = true;
        self
    }

    pub fn body(mut self, kind: &str, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self.header("content-type", kind)
    }

    pub async fn json(self, body: &Value) -> Answer {
        self.body("application/json", body.to_string()).send().await
    }

    pub async fn send(self) -> Answer {
        let Call { world, parts, body, may_be_undescribed } = self;
        let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
        let request = Request::from_parts(parts, body);
        let response = world.router.clone().oneshot(request).await.expect("routers cannot fail");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes().to_vec();
        let answer = Answer { status: parts.status.as_u16(), headers: parts.headers, bytes };
        answer.check_common();
        if !may_be_undescribed {
            schema::check_answer(&world.document, &method, &path, &answer);
        }
        answer
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub bytes: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// What every answer has.
    fn check_common(&self) {
        let id = self.header("x-request-id").expect("X-Request-Id").to_owned();
        for name in ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"] {
            let value = self.header(name).unwrap_or_else(|| panic!("{name} is missing"));
            assert!(value.parse::<u32>().is_ok(), "{name}: {value}");
        }
        assert_eq!(self.header("x-content-type-options"), Some("nosniff"));
        let status = StatusCode::from_u16(self.status).expect("a status");
        if status.is_client_error() || status.is_server_error() {
            assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
            let problem = self.json();
            assert_eq!(problem["status"], self.status);
            assert_eq!(problem["requestId"], id.as_str());
            assert!(problem["title"].as_str().is_some_and(|title| title != "Error"), "{problem}");
        }
        if matches!(self.status, 429 | 503) {
            assert!(self.header("retry-after").is_some(), "Retry-After is missing");
        }
    }
}
