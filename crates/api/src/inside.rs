//! The API called from within the same process: the dashboard's only way to anything. Calls go through the same
//! router, guards and handlers as those from the network; only the proof of who calls is another one.
//!
//! That proof is a [`Pass`] among the request's extensions. Nothing that comes over the network can carry one: its
//! field is private to this file, and extensions are not part of HTTP. Requests made here are new ones; nothing of the
//! request that caused them is passed on.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use bytes::Bytes;
use gateway::keys::{Caller, hash_key};
use http_body_util::BodyExt as _;
use model::privacy::mask_text;
use model::{ApiKey, CompanyId, KeyId, KeyMode, Scope, Timestamp};
use serde_json::{Value, json};
/// Part of a gateway's settings; here for tests and examples that make a gateway and may not see the store.
pub use store::Retention;
use subtle::ConstantTimeEq as _;
use tower::ServiceExt as _;

use crate::auth::{self, Access, Client};
use crate::error::Problem;
use crate::state::ApiState;

/// On whose behalf a call is made. Whoever makes it has checked that the person may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behalf {
    Operator,
    /// A company, with all scopes, also while it is switched off.
    Company(CompanyId),
    /// Somebody who may look at a company's emails, but not into them and not whom they are to: every answer is masked
    /// here, so that no page can forget it.
    Reader(CompanyId),
}

/// Who shows a key, as far as pages are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHolder {
    pub company: CompanyId,
    /// May do everything of the company; else only look.
    pub is_admin: bool,
}

/// Stands in for a key or the admin token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass(Behalf);

impl Pass {
    /// The client that a route for companies gets; `None` for one of the operator's.
    pub(crate) async fn client(self, state: &ApiState, access: Access) -> Result<Option<Client>, Problem> {
        match (access, self.0) {
            (Access::Public, _) | (Access::Operator, Behalf::Operator) => Ok(None),
            (Access::Key(_), Behalf::Company(id)) => client(state, id).await.map(Some),
            (Access::Key(Scope::Read), Behalf::Reader(id)) => client(state, id).await.map(Some),
            (Access::Operator | Access::Key(_), _) => Err(not_theirs()),
        }
    }
}

async fn client(state: &ApiState, id: CompanyId) -> Result<Client, Problem> {
    let company = state.desk.gateway.store.company(id).await?;
    let company = company.ok_or_else(<CompanyId as crate::v1::params::Named>::missing)?;
    Ok(Client(Arc::new(Caller { key: no_key(id, state.now()), company })))
}

const NOT_THEIRS: &str = "INSUFFICIENT_SCOPE";

fn not_theirs() -> Problem {
    Problem::new(StatusCode::FORBIDDEN, NOT_THEIRS, "this call was made on somebody else's behalf")
}

/// In the place of a key. Its hash belongs to no key, and it is never stored.
fn no_key(company: CompanyId, now: Timestamp) -> ApiKey {
    ApiKey {
        id: KeyId::new(now),
        company,
        mode: KeyMode::Live,
        scopes: Scope::ALL.to_vec(),
        label: None,
        hash: [0; 32],
        prefix: String::new(),
        created_at: now,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    }
}

/// What the API answered.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    /// `null` when the answer is not JSON or has no body.
    pub body: Value,
    /// The answer as it came.
    pub bytes: Bytes,
    /// The file name of a download.
    pub disposition: Option<HeaderValue>,
}

impl Answer {
    pub fn is_fine(&self) -> bool {
        self.status.is_success()
    }

    /// Without addresses, and without anything that is not JSON: that is content.
    pub fn masked(self) -> Self {
        let mut body = self.body;
        mask(&mut body);
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        Self { status: self.status, body, bytes, disposition: None }
    }

    /// What a call is answered with that nobody may make on this behalf.
    pub fn forbidden(detail: &str) -> Self {
        let body = json!({ "code": NOT_THEIRS, "title": "Not for you", "detail": detail });
        let bytes = Bytes::from(body.to_string());
        Self { status: StatusCode::FORBIDDEN, body, bytes, disposition: None }
    }

    /// The code of the problem, or nothing.
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

fn mask(value: &mut Value) {
    match value {
        Value::String(text) if text.contains('@') => *text = mask_text(text),
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Object(fields) => fields.values_mut().for_each(mask),
        _ => {}
    }
}

/// A client of the API without a network; cheap to clone.
#[derive(Clone)]
pub struct Inside {
    router: Router,
    state: ApiState,
}

impl Inside {
    pub fn new(state: ApiState) -> Self {
        Self { router: crate::router(state.clone()), state }
    }

    pub async fn get(&self, behalf: Behalf, path: &str) -> Answer {
        self.call(behalf, Method::GET, path, None, None).await
    }

    pub async fn post(&self, behalf: Behalf, path: &str, body: &Value) -> Answer {
        self.call(behalf, Method::POST, path, Some(body), None).await
    }

    /// A post that counts once, however often it is made with this idempotency key.
    pub async fn post_once(&self, behalf: Behalf, path: &str, body: &Value, key: &str) -> Answer {
        self.call(behalf, Method::POST, path, Some(body), Some(key)).await
    }

    pub async fn patch(&self, behalf: Behalf, path: &str, body: &Value) -> Answer {
        self.call(behalf, Method::PATCH, path, Some(body), None).await
    }

    pub async fn delete(&self, behalf: Behalf, path: &str) -> Answer {
        self.call(behalf, Method::DELETE, path, None, None).await
    }

    /// A path that is none is answered like one that leads nowhere.
    async fn call(
        &self,
        behalf: Behalf,
        method: Method,
        path: &str,
        body: Option<&Value>,
        key: Option<&str>,
    ) -> Answer {
        let uri = path.parse::<Uri>().unwrap_or_else(|_| Uri::from_static("/-"));
        let mut request = Request::new(body.map_or_else(Body::empty, |body| Body::from(body.to_string())));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        if body.is_some() {
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert(header::CONTENT_TYPE, json);
        }
        if let Some(key) = key.and_then(|key| HeaderValue::from_str(key).ok()) {
            request.headers_mut().insert("idempotency-key", key);
        }
        if matches!(behalf, Behalf::Reader(_)) && is_content(request.uri().path()) {
            return Answer::forbidden("What an email says is shown only to keys with the scope admin.");
        }
        request.extensions_mut().insert(Pass(behalf));
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, body) = response.into_parts();
        // The body is in memory already: no route streams.
        let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let disposition = parts.headers.get(header::CONTENT_DISPOSITION).cloned();
        let answer = Answer { status: parts.status, body, bytes, disposition };
        if matches!(behalf, Behalf::Reader(_)) { answer.masked() } else { answer }
    }

    /// Who shows this key, if it may open pages at all.
    pub async fn key_holder(&self, key: &str) -> Option<(KeyHolder, [u8; 32])> {
        let hash = hash_key(key);
        Some((self.key_holder_by_hash(hash).await?, hash))
    }

    /// The same again, later: a key that was revoked opens nothing any more.
    pub async fn key_holder_by_hash(&self, hash: [u8; 32]) -> Option<KeyHolder> {
        let caller = self.state.keys.authenticate_hash(hash).await.ok()?;
        // What is done on the pages is done as with a live key.
        let is_admin = caller.key.may(Scope::Admin) && caller.key.mode == KeyMode::Live;
        let holder = KeyHolder { company: caller.company.id, is_admin };
        caller.key.may(Scope::Read).then_some(holder)
    }

    /// Returns when the server begins to shut down. An answer that goes on and on has to end then, or the shutdown would
    /// wait for it.
    pub async fn draining(&self) {
        self.state.draining().await;
    }

    pub fn now(&self) -> Timestamp {
        self.state.now()
    }

    /// Whether the operator has to show the admin token.
    pub fn has_admin_token(&self) -> bool {
        self.state.settings.admin_token.is_some()
    }

    /// Compared in constant time. Nothing is the token where none is configured.
    pub fn is_admin_token(&self, given: &str) -> bool {
        let expected = self.state.settings.admin_token.as_ref();
        expected.is_some_and(|expected| bool::from(given.as_bytes().ct_eq(expected.expose().as_bytes())))
    }
}

/// What was sent to somebody, whole.
fn is_content(path: &str) -> bool {
    path.split('/').any(|step| matches!(step, "content" | "attachments"))
}

/// Whether the request came from a program on this machine that no web page and no proxy speaks through: whom the
/// operator's routes answer to without an admin token.
pub fn is_local(peer: Option<IpAddr>, headers: &HeaderMap) -> bool {
    auth::is_local(peer, headers)
}
