//! `/v1/admin/providers`: how each provider is doing.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use gateway::health::{Allowance, Rest, name};
use gateway::standing::{Standing, standings};
use model::Timestamp;
use serde_json::{Value, json};

use crate::error::Problem;
use crate::state::ApiState;
use crate::v1::answer;

pub async fn list(State(state): State<ApiState>) -> Result<Response, Problem> {
    let standings = standings(&state.desk.gateway).await?;
    let mut data = Vec::with_capacity(standings.len());
    for standing in &standings {
        let last = state.desk.gateway.store.last_report(&standing.provider).await?;
        data.push(show(standing, last));
    }
    Ok(answer::value(StatusCode::OK, &json!({ "data": data })))
}

fn show(standing: &Standing, last_report_at: Option<Timestamp>) -> Value {
    let health = &standing.health;
    json!({
        "name": standing.provider,
        "kind": standing.kind,
        "status": status(standing),
        "ratePerSec": standing.per_sec,
        "configuredRatePerSec": standing.configured_per_sec,
        "breaker": health.rest.as_ref().map(breaker),
        "account": health.allowance.as_ref().map(account),
        "lastReportAt": last_report_at.map(Timestamp::to_rfc3339),
    })
}

pub const STATUSES: [&str; 3] = ["WORKING", "SLOWED", "RESTING"];

fn status(standing: &Standing) -> &'static str {
    let [working, slowed, resting] = STATUSES;
    if standing.health.rest.is_some() {
        resting
    } else if standing.is_slowed {
        slowed
    } else {
        working
    }
}

fn breaker(rest: &Rest) -> Value {
    json!({
        "cause": name(rest.cause),
        "code": rest.code,
        "since": rest.since.to_string(),
        "probes": rest.probes,
        "nextProbeAt": rest.next_probe_at.to_string(),
    })
}

fn account(allowance: &Allowance) -> Value {
    json!({
        "ratePerSec": allowance.per_sec,
        "max24Hours": allowance.max_24_hours,
        "sent24Hours": allowance.sent_24_hours,
        "readAt": allowance.read_at.to_string(),
    })
}
