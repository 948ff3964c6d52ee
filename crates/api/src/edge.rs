//! Around every request: its id, its time limit, a net under panics, and problems made into bodies.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use gateway::accept::copy::original_of;
use gateway::trace::Span;
use model::document::looks_like_document;

use crate::error::Problem;
use crate::inside::Pass;
use crate::limits::REQUEST_ID_LENGTH_MAX;
use crate::rate::RateStatus;
use crate::state::ApiState;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The id of the request: the caller's if it is well-formed, else ours.
#[derive(Debug, Clone)]
pub struct RequestId(pub Arc<str>);

impl FromRequestParts<ApiState> for RequestId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &ApiState) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(Problem::internal)
    }
}

/// The outermost layer, of the API and of the pages.
pub async fn edge(State(state): State<ApiState>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    request.extensions_mut().insert(RequestId(Arc::clone(&id)));
    let mut span = span_of(&state, &request, &id);
    if let Some(context) = span.context() {
        request.extensions_mut().insert(context);
    }
    let method = request.method().clone();
    // The route's path, not the caller's: addresses and keys are put there by mistake.
    let path =
        tracing::enabled!(tracing::Level::DEBUG).then(|| request.extensions().get::<MatchedPath>().cloned());
    let work = tokio::time::timeout(state.settings.request_timeout, next.run(request));
    let mut response = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => timed_out().into_response(),
        Err(_panic) => panicked(&id).into_response(),
    };
    finish(&mut response, &id, &state);
    end_span(&mut span, response.status());
    if let Some(path) = path {
        let (status, took) = (response.status().as_u16(), started.elapsed());
        let path = path.as_ref().map_or("none", MatchedPath::as_str);
        tracing::debug!(requestId = %id, %method, path, status, durationMs = millis(took), "a request was answered");
    }
    response
}

/// The span of a request, if it is traced. Health checks are none of anybody's traces, nor is what pages read.
fn span_of(state: &ApiState, request: &Request, id: &str) -> Span {
    let tracer = &state.desk.gateway.tracer;
    if !tracer.is_on() {
        return Span::default();
    }
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let is_page = request.method() == Method::GET && request.extensions().get::<Pass>().is_some();
    let Some(route) = route.filter(|route| route.starts_with("/v1/") && !is_page) else {
        return Span::default();
    };
    let method = request.method();
    let traceparent = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let mut span = tracer.request(|| format!("{method} {route}"), traceparent);
    span.put("http.request.method", method);
    span.put("http.route", route);
    span.put("requestId", id);
    span
}

fn end_span(span: &mut Span, status: StatusCode) {
    span.number("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.fails(status.as_u16());
    }
}

fn finish(response: &mut Response, id: &str, state: &ApiState) {
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        problem.log(id);
        *response.body_mut() = problem.body(id).into();
        let headers = response.headers_mut();
        headers.remove(header::CONTENT_LENGTH);
        put_problem_type(headers);
    }
    let rate = response.extensions_mut().remove::<RateStatus>();
    let rate = rate.unwrap_or_else(|| RateStatus::untouched(state.settings.requests_per_sec));
    put_common(response.headers_mut(), id, rate);
}

pub fn put_problem_type(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_TYPE, PROBLEM_JSON);
}

/// What every answer carries.
pub fn put_common(headers: &mut HeaderMap, id: &str, rate: RateStatus) {
    rate.write(headers);
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

pub fn new_request_id() -> String {
    format!("req_{}", uuid::Uuid::now_v7())
}

/// 1 to 128 characters that can do no harm in a log or a header.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let is_fine = |id: &&str| {
        (1..=REQUEST_ID_LENGTH_MAX).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
            // Such an id says of an email that it is a copy; only we may say so.
            && original_of(id).is_none()
            // It stands in logs and events.
            && !looks_like_document(id)
    };
    match headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(is_fine) {
        Some(id) => Arc::from(id),
        None => Arc::from(new_request_id()),
    }
}

/// The work goes on behind, so this must not claim that nothing happened.
fn timed_out() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "REQUEST_TIMEOUT",
        "no answer in time; what was asked for may still be done, so repeat it with the same Idempotency-Key",
    )
    .later(Duration::from_secs(5))
}

/// The panic's words are dropped: they may quote what was sent. Where it happened was logged as it happened.
fn panicked(id: &str) -> Problem {
    tracing::error!(requestId = id, "a request met a bug");
    Problem::internal()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_ids_are_kept_when_they_are_well_formed() {
        let longest = "a".repeat(128);
        let too_long = "a".repeat(129);
        let cases = [
            ("req_1737329400_abc123", true),
            ("A-z.0:9_", true),
            (longest.as_str(), true),
            (too_long.as_str(), false),
            ("", false),
            ("a b", false),
            ("a/b", false),
            ("<script>", false),
            ("release:mine", true),
            ("release:0194812c-9a7b-7cc3-9f0e-3c5d2a1b4e6f", false),
            ("529.982.247-25", false),
            ("cpf:52998224725", false),
            ("52998224725", true),
        ];
        for (given, kept) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(given).expect("a header value"));
            let id = request_id(&headers);
            assert_eq!(id.as_ref() == given, kept, "{given}");
            assert!(kept || id.starts_with("req_"), "{given}");
        }
    }
}
