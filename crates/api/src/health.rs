//! Is it alive, is it fit for work, and its numbers. These answer to everybody.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::CLOCK_MIN;
use tokio::sync::Mutex;

use crate::error::Problem;
use crate::state::ApiState;
use crate::v1::answer;

/// How long a finding is believed: whoever asks more often makes the store no busier.
const BELIEVED: Duration = Duration::from_secs(1);
/// A store that takes longer is not fit for work.
const PATIENCE: Duration = Duration::from_secs(2);

/// The last finding about the store.
#[derive(Default)]
pub struct Readiness(Mutex<Option<(Instant, bool)>>);

impl Readiness {
    async fn store_is_fit(&self, state: &ApiState) -> bool {
        let mut last = self.0.lock().await;
        if let Some((at, fit)) = *last
            && at.elapsed() < BELIEVED
        {
            return fit;
        }
        let fit = match tokio::time::timeout(PATIENCE, state.desk.gateway.store.check()).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the store is not fit for work");
                false
            }
            Err(_) => {
                tracing::warn!("the store did not answer a check in time");
                false
            }
        };
        *last = Some((Instant::now(), fit));
        fit
    }
}

/// The process runs and answers.
pub async fn livez() -> Response {
    answer::json(StatusCode::OK, r#"{"status":"ok"}"#)
}

/// It can take emails. Otherwise the failing part is named.
pub async fn readyz(State(state): State<ApiState>) -> Result<Response, Problem> {
    let not_ready = |detail: &'static str| {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "NOT_READY", detail);
        Err(problem.later(Duration::from_secs(2)))
    };
    if state.is_draining() {
        return not_ready("server: it is shutting down");
    }
    if state.now() < CLOCK_MIN {
        return not_ready("clock: it was never set");
    }
    if !state.readiness.store_is_fit(&state).await {
        return not_ready("store: it cannot be written to or read from");
    }
    Ok(answer::json(StatusCode::OK, r#"{"status":"ready","checks":{"server":"ok","store":"ok"}}"#))
}

/// For Prometheus.
pub async fn metrics(State(state): State<ApiState>) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], (state.metrics)()).into_response()
}
