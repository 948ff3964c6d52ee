//! `/v1/alerts`: what the company's admin was to hear of, and what became of that.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use model::{Alert, AlertOutcome};
use serde_json::{Value, json};

use super::cursor::Listing;
use super::emails::{page_answer, page_limit};
use super::params::read_query;
use crate::auth::Client;
use crate::error::Problem;
use crate::state::ApiState;

pub const PARAMETERS: &[&str] = &["cursor", "limit"];

pub async fn list(State(state): State<ApiState>, client: Client, uri: Uri) -> Result<Response, Problem> {
    let listing = Listing::of(&state, client.id(), "alerts", &uri).await?;
    let (after, limit) = read_query(&uri, PARAMETERS, |form| (listing.take(form), page_limit(form)))?;
    let page = state.desk.gateway.store.alerts(client.id(), after.as_ref(), limit).await?;
    Ok(page_answer(&listing, page, show))
}

fn show(alert: &Alert) -> Value {
    let (sent_as, shown) = match &alert.outcome {
        None => (None, None),
        Some(AlertOutcome::Sent(email)) => (Some(email.to_string()), None),
        Some(AlertOutcome::Shown(why)) => (None, Some(why.as_str())),
    };
    json!({
        "id": alert.id.to_string(),
        "kind": alert.kind.as_str(),
        "mode": alert.mode.as_str(),
        "subject": alert.subject,
        "emailId": alert.email.to_string(),
        "address": alert.address.expose(),
        "reason": alert.reason,
        "createdAt": alert.created_at.to_rfc3339(),
        "repeats": alert.repeats,
        "sentAs": sent_as,
        "shown": shown,
    })
}
