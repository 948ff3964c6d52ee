//! `/v1/admin/emails/{id}/reports`: what providers reported of an email, word for word. For the operator alone: reports
//! hold addresses, and whatever else a provider puts there.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use model::EmailId;
use serde_json::{Value, json};
use store::KeptReport;

use crate::error::Problem;
use crate::limits::REPORTS_SHOWN_MAX;
use crate::state::ApiState;
use crate::v1::answer;
use crate::v1::params::{Id, Named as _};

pub async fn list(State(state): State<ApiState>, Id(id): Id<EmailId>) -> Result<Response, Problem> {
    let store = &state.desk.gateway.store;
    let company = store.company_of(id).await?.ok_or_else(EmailId::missing)?;
    let reports = store.reports(company, id).await?;
    let latest = &reports[reports.len().saturating_sub(REPORTS_SHOWN_MAX)..];
    let data: Vec<Value> = latest.iter().map(show).collect();
    Ok(answer::value(StatusCode::OK, &json!({ "data": data, "total": reports.len() })))
}

fn show(report: &KeptReport) -> Value {
    json!({
        "id": report.id,
        "provider": report.provider,
        "receivedAt": report.received_at.to_rfc3339(),
        "payload": String::from_utf8_lossy(&report.payload),
    })
}
