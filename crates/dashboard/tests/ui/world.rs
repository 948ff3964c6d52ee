//! A dashboard with two companies, and a browser that sends what it is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::inside::{Behalf, Inside};
use api::{ApiSettings, ApiState, Peer};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response};
use dashboard::DashboardSettings;
use gateway::Gateway;
use gateway::accept::Desk;
use http_body_util::BodyExt as _;
use model::{CompanyId, Secret};
use provider_smtp::{SmtpConfig, SmtpProvider};
use serde_json::{Value, json};
use testkit::ManualClock;
use tower::ServiceExt as _;

pub const TOKEN: &str = "an-admin-token-for-tests-0123456789";
const HOST: &str = "localhost:8025";

pub struct World {
    router: Router,
    pub state: ApiState,
    pub inside: Inside,
    pub gateway: Gateway,
    pub clock: Arc<ManualClock>,
    pub shop: CompanyId,
}

/// Open to this machine, as without an admin token.
pub async fn world() -> World {
    world_of(None, DashboardSettings::default()).await
}

pub async fn world_with_login() -> World {
    world_of(Some(TOKEN), DashboardSettings::default()).await
}

/// With a provider that sends, `outside`. Nothing is ever sent to it.
pub async fn world_with_a_way_out() -> World {
    let clock = Arc::new(ManualClock::default());
    let mut gateway = crate::gateway::a_gateway(clock.clone()).await;
    let mut providers = BTreeMap::clone(&gateway.providers);
    let config = SmtpConfig::parse("smtp://127.0.0.1:9").expect("an address");
    providers.insert("outside".to_owned(), Arc::new(SmtpProvider::new(config).expect("a provider")));
    gateway.providers = Arc::new(providers);
    world_on(gateway, clock, None, DashboardSettings::default()).await
}

pub async fn world_of(token: Option<&str>, settings: DashboardSettings) -> World {
    let clock = Arc::new(ManualClock::default());
    let gateway = crate::gateway::a_gateway(clock.clone()).await;
    world_on(gateway, clock, token, settings).await
}

async fn world_on(
    gateway: Gateway,
    clock: Arc<ManualClock>,
    token: Option<&str>,
    settings: DashboardSettings,
) -> World {
    let desk = Desk { gateway: gateway.clone(), documents: None };
    let api_settings = ApiSettings {
        admin_token: token.map(|token| Secret::new(token.to_owned())),
        ..ApiSettings::default()
    };
    let metrics = "webhooks_in_total{provider=\"main\",result=\"applied\"} 7\nemail_queue_size 3\nemail_oldest_waiting_seconds 90\nemail_dlq_size 2\n";
    let state = ApiState::new(desk, api_settings, Arc::new(move || metrics.to_owned()));
    let inside = Inside::new(state.clone());
    let shop = a_company(&inside, "shop").await;
    a_company(&inside, "a/b & <c>").await;
    let router = dashboard::router(state.clone(), settings).fallback_service(api::router(state.clone()));
    World { router, state, inside, gateway, clock, shop }
}

async fn a_company(inside: &Inside, name: &str) -> CompanyId {
    let body = json!({ "name": name, "from": "Shop <shop@shop.example>" });
    let made = inside.post(Behalf::Operator, "/v1/admin/companies", &body).await;
    assert!(made.is_fine(), "{}", made.body);
    made.body["id"].as_str().expect("an id").parse().expect("an id")
}

impl World {
    /// Hands in an email of the shop with changes, and returns its id.
    pub async fn email(&self, changes: Value) -> String {
        let mut body = json!({ "to": "ana@example.com", "subject": "Hello", "html": "<p>Hello</p>" });
        for (name, value) in changes.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let answer = self.inside.post(Behalf::Company(self.shop), "/v1/email/send", &body).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.body["outboxId"].as_str().expect("an id").to_owned()
    }

    pub async fn work(&self) {
        gateway::worker::run_once(&self.gateway).await.expect("a round of work");
    }

    pub async fn status_of(&self, id: &str) -> String {
        let answer = self.inside.get(Behalf::Company(self.shop), &format!("/v1/emails/{id}")).await;
        answer.body["status"].as_str().expect("a status").to_owned()
    }

    pub fn get(&self, path: &str) -> Call<'_> {
        self.call(Method::GET, path)
    }

    pub fn post(&self, path: &str) -> Call<'_> {
        self.call(Method::POST, path)
    }

    fn call(&self, method: Method, path: &str) -> Call<'_> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a path");
        request.extensions_mut().insert(Peer("127.0.0.1:5000".parse().expect("an address")));
        Call { world: self, request, fields: Vec::new() }.header("host", HOST)
    }

    /// What a form of the page carries to prove that it is ours.
    pub async fn form_token(&self, path: &str, cookie: Option<&str>) -> String {
        let call = self.get(path);
        let call = match cookie {
            Some(cookie) => call.header("cookie", cookie),
            None => call,
        };
        let page = call.send().await.text;
        let start = page.find("name=\"csrf\" value=\"").expect("a form") + "name=\"csrf\" value=\"".len();
        page[start..start + 64].to_owned()
    }

    /// Sends a form as the browser would that shows the page it is on.
    pub async fn submit(&self, page: &str, action: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.form_token(page, None).await;
        let call = self.post(action).header("origin", &format!("http://{HOST}")).field("csrf", &token);
        fields.iter().fold(call, |call, (name, value)| call.field(name, value)).send().await
    }
}

pub struct Call<'w> {
    world: &'w World,
    request: Request<Body>,
    fields: Vec<(String, String)>,
}

impl Call<'_> {
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("a header value");
        self.request.headers_mut().insert(name, value);
        self
    }

    pub fn peer(mut self, address: &str) -> Self {
        self.request.extensions_mut().insert(Peer(address.parse().expect("an address")));
        self
    }

    pub fn field(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The answer with its body still to come.
    pub async fn begin(self) -> Response<Body> {
        let mut request = self.request;
        let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&self.fields).finish();
        *request.body_mut() = Body::from(form);
        self.world.router.clone().oneshot(request).await.expect("routers cannot fail")
    }

    pub async fn send(self) -> Answer {
        let (parts, body) = self.begin().await.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        Answer { status: parts.status.as_u16(), headers: parts.headers, text }
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Checks that all are there, in any order.
    pub fn has(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.text.contains(part), "{part} is missing ({}):\n{}", self.status, self.text);
        }
    }

    pub fn has_not(&self, part: &str) {
        assert!(!self.text.contains(part), "{part} is there:\n{}", self.text);
    }
}
