//! The only place that makes HTTP of an error: problems as RFC 9457 has them, each with a stable code.
//!
//! A [`Problem`] travels to `edge` inside the response and becomes a body there, where the request's id is
//! known. What the codes mean is in `codes`.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gateway::accept::NotTaken;
use gateway::accept::draft::{Fault, sum_up};
use gateway::keys::Denied;
use serde_json::{Value, json};
use store::StoreError;

use crate::codes;

/// When to come back after a trouble whose end is not known.
const COME_BACK: Duration = Duration::from_secs(2);

/// An answer that is not what was asked for.
#[derive(Debug, Clone)]
pub struct Problem {
    pub status: StatusCode,
    pub code: &'static str,
    /// One sentence a person understands; never a value of the request that could be secret.
    pub detail: Cow<'static, str>,
    pub errors: Vec<Fault>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// For the log alone.
    cause: Option<Box<StoreError>>,
}

impl Problem {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, detail: detail.into(), errors: Vec::new(), headers: Vec::new(), cause: None }
    }

    pub fn bad_request(code: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// The same for what is missing and for what belongs to somebody else.
    pub fn not_found(code: &'static str, detail: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    pub fn unauthorized(code: &'static str, detail: &'static str) -> Self {
        let challenge = HeaderValue::from_static("Bearer realm=\"posthaste\"");
        Self::new(StatusCode::UNAUTHORIZED, code, detail).with(header::WWW_AUTHENTICATE, challenge)
    }

    pub fn too_large(code: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, code, detail)
    }

    /// The rest of the request will not be read, so the connection cannot be used again.
    pub fn closing(self) -> Self {
        self.with(header::CONNECTION, HeaderValue::from_static("close"))
    }

    pub fn later(self, after: Duration) -> Self {
        let secs = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        self.with(header::RETRY_AFTER, HeaderValue::from(secs.max(1)))
    }

    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// What the operator is told of it; by the id they find the request that a client tells them of.
    pub fn log(&self, request_id: &str) {
        let Some(error) = &self.cause else { return };
        let message = match **error {
            StoreError::Full(_) => "a request was refused: the store has no room",
            StoreError::Unavailable(_) => "a request was refused: the store cannot be reached",
            StoreError::Unusable(_) => "a request was refused: the store does not let us in",
            StoreError::InDoubt(_) => "a request is in doubt: the store was lost before it could answer",
            StoreError::Exists(_) | StoreError::Broken(_) => "a request failed: the store did not work",
        };
        if error.is_temporary() {
            tracing::warn!(requestId = request_id, %error, "{message}");
        } else {
            tracing::error!(requestId = request_id, %error, "{message}");
        }
    }

    /// The body, in the order people read it.
    pub fn body(&self, request_id: &str) -> String {
        let text = |text: &str| Value::from(text);
        let mut body = format!(
            "{{\"type\":\"/docs#{}\",\"title\":{},\"status\":{},\"code\":\"{}\",\"detail\":{},\"requestId\":{}",
            self.code,
            text(codes::title(self.code)),
            self.status.as_u16(),
            self.code,
            text(&self.detail),
            text(request_id),
        );
        if !self.errors.is_empty() {
            let errors: Vec<Value> = self.errors.iter().map(fault_json).collect();
            body.push_str(",\"errors\":");
            body.push_str(&Value::from(errors).to_string());
        }
        body.push('}');
        body
    }
}

pub fn fault_json(fault: &Fault) -> Value {
    json!({ "field": fault.field, "code": fault.code, "message": fault.message })
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        for (name, value) in &self.headers {
            response.headers_mut().insert(name.clone(), value.clone());
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Vec<Fault>> for Problem {
    fn from(faults: Vec<Fault>) -> Self {
        let verdict = sum_up(&faults);
        let status = StatusCode::from_u16(gateway::accept::http_status(verdict.kind))
            .expect("the statuses of faults are constants");
        Self { errors: faults, ..Self::new(status, verdict.code, verdict.detail) }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let later = |code, detail| Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).later(COME_BACK);
        let problem = match &error {
            StoreError::Full(_) => {
                later("STORAGE_LOW", "there is no room to store anything; nothing was changed")
            }
            StoreError::Unavailable(_) => {
                later("STORE_UNAVAILABLE", "the store cannot be reached now; nothing was changed")
            }
            // While we run: a password that was changed, a right that was taken away. Somebody mends it, and nothing of
            // what was asked has happened.
            StoreError::Unusable(_) => {
                later("STORE_UNAVAILABLE", "the store cannot be used now; nothing was changed")
            }
            StoreError::InDoubt(_) => later(
                "STORE_IN_DOUBT",
                "the store was lost before it could answer; what was asked for may have been done, so repeat it with \
                 the same Idempotency-Key",
            ),
            StoreError::Exists(_) => {
                return Self::new(StatusCode::CONFLICT, "EXISTS", "there is one of that name already");
            }
            StoreError::Broken(_) => Self::internal(),
        };
        Self { cause: Some(Box::new(error)), ..problem }
    }
}

impl Problem {
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "INTERNAL_ERROR",
            "something went wrong on our side; the requestId helps the operator to find it",
        )
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Unknown => Self::unauthorized("INVALID_API_KEY", "this API key is not known"),
            Denied::Revoked => Self::unauthorized("REVOKED_API_KEY", "this API key was revoked"),
            Denied::Expired => Self::unauthorized("EXPIRED_API_KEY", "this API key has expired"),
            Denied::CompanyDisabled => Self::new(
                StatusCode::FORBIDDEN,
                "COMPANY_DISABLED",
                "the company of this key is switched off",
            ),
            Denied::Store(error) => error.into(),
        }
    }
}

impl From<NotTaken> for Problem {
    fn from(reason: NotTaken) -> Self {
        match reason {
            NotTaken::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "IDEMPOTENCY_KEY_REUSED",
                "this Idempotency-Key was used for another request within the last 24 hours; nothing was stored",
            ),
            NotTaken::OverDailyLimit { retry_after } => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "DAILY_LIMIT_EXCEEDED",
                "the company's emails of the day are used up; the count starts anew at midnight UTC",
            )
            .later(retry_after),
            NotTaken::ClockNeverSet => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "NOT_READY",
                "clock: it was never set; nothing was stored",
            )
            .later(COME_BACK),
            NotTaken::Store(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client without a key trusts these words: it sends again what was not stored, and looks first where that is
    /// not known.
    #[test]
    fn what_is_said_of_a_store_that_failed() {
        let text = String::new;
        let cases = [
            (StoreError::Unavailable(text()), 503, "STORE_UNAVAILABLE", "nothing was changed"),
            (StoreError::Full(text()), 503, "STORAGE_LOW", "nothing was changed"),
            (StoreError::InDoubt(text()), 503, "STORE_IN_DOUBT", "may have been done"),
            (StoreError::Broken(text()), 500, "INTERNAL_ERROR", "something went wrong"),
            (StoreError::Unusable(text()), 503, "STORE_UNAVAILABLE", "nothing was changed"),
        ];
        for (error, status, code, words) in cases {
            let problem = Problem::from(error);
            assert_eq!((problem.status.as_u16(), problem.code), (status, code));
            assert!(problem.detail.contains(words), "{code}: {}", problem.detail);
            let comes_back = problem.headers.iter().any(|(name, _)| name == header::RETRY_AFTER);
            assert_eq!(comes_back, status == 503, "{code}");
        }
    }
}
