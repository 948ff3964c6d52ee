//! Is it alive, is it fit for work, and its numbers. These answer to everybody.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::CLOCK_MIN;
use store::StoreError;
use tokio::sync::Mutex;

use crate::error::Problem;
use crate::state::ApiState;
use crate::v1::answer;

/// How long a finding is believed: whoever asks more often makes the store no busier.
const BELIEVED: Duration = Duration::from_secs(1);
/// A store that takes longer is not fit for work.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is wrong with the store, in words for everybody.
type Finding = Result<(), &'static str>;

const STORE_FAILS: Finding = Err("store: it cannot be written to or read from");
const STORE_IS_FULL: Finding = Err("store: its disk is almost full; nothing is taken in until there is room");

/// The last finding about the store.
#[derive(Default)]
pub struct Readiness(Mutex<Option<(Instant, Finding)>>);

impl Readiness {
    async fn of_store(&self, state: &ApiState) -> Finding {
        let mut last = self.0.lock().await;
        if let Some((at, finding)) = *last
            && at.elapsed() < BELIEVED
        {
            return finding;
        }
        let finding = match tokio::time::timeout(PATIENCE, state.desk.gateway.store.check()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the store is not fit for work");
                if matches!(error, StoreError::Full(_)) { STORE_IS_FULL } else { STORE_FAILS }
            }
            Err(_) => {
                tracing::warn!("the store did not answer a check in time");
                STORE_FAILS
            }
        };
        *last = Some((Instant::now(), finding));
        finding
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
    if let Err(what) = state.readiness.of_store(&state).await {
        return not_ready(what);
    }
    Ok(answer::json(StatusCode::OK, r#"{"status":"ready","checks":{"server":"ok","store":"ok"}}"#))
}

/// For Prometheus.
pub async fn metrics(State(state): State<ApiState>) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], (state.metrics)()).into_response()
}
