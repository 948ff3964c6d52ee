//! Answers that are what was asked for.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gateway::accept::Answer;
use serde_json::Value;

const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

pub fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub fn value(status: StatusCode, body: &Value) -> Response {
    json(status, body.to_string())
}

pub fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// The answer to emails that were taken.
pub fn taken(answer: Answer) -> Response {
    let mut response = json(StatusCode::ACCEPTED, answer.body);
    if answer.replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}
