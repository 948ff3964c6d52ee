//! The documentation for people, drawn by a small script from `/openapi.json`, and the way from `/` to the dashboard.
//! Nothing is loaded from elsewhere, and the policy allows only the very script and style that ship.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::openapi;
use crate::state::ApiState;
use crate::v1::answer;

const STYLE: &str = include_str!("pages/style.css");
const SCRIPT: &str = include_str!("pages/docs.js");
const DOCS: &str = include_str!("pages/docs.html");
/// Where the dashboard is.
const DASHBOARD: &str = "/ui";

/// Made once: they never change while the program runs.
pub struct Pages {
    openapi: Bytes,
    docs: Bytes,
    policy: HeaderValue,
}

impl Pages {
    pub fn new() -> Self {
        let docs = DOCS.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT);
        Self { openapi: openapi::document().to_string().into(), docs: docs.into(), policy: policy() }
    }

    fn html(&self, page: &Bytes) -> Response {
        let mut response = (StatusCode::OK, page.clone()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        response
    }
}

fn policy() -> HeaderValue {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())));
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    HeaderValue::from_str(&policy).expect("base64 and fixed words make a header")
}

pub async fn openapi(State(state): State<ApiState>) -> Response {
    answer::json(StatusCode::OK, state.pages.openapi.clone())
}

pub async fn docs(State(state): State<ApiState>) -> Response {
    state.pages.html(&state.pages.docs)
}

/// Whoever types the bare address is a person.
pub async fn front() -> Redirect {
    Redirect::to(DASHBOARD)
}
