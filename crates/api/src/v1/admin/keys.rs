//! `/v1/admin/companies/{id}/keys`: a company's API keys. The key itself is shown once, when it is made.

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use gateway::accept::draft::Fault;
use gateway::accept::to_the_end;
use gateway::keys::{NewKey, make_key};
use model::{ApiKey, CompanyId, KeyId, KeyMode, Scope, Timestamp};
use serde_json::{Value, json};

use super::companies::{find, read_body};
use crate::body;
use crate::error::Problem;
use crate::form::{At, Faults, Form};
use crate::limits::LABEL_LENGTH_MAX;
use crate::state::ApiState;
use crate::v1::answer;
use crate::v1::draft::line;
use crate::v1::params::{Id, Named as _};

pub const FIELDS: &[&str] = &["mode", "scopes", "label", "expiresAt"];
/// What an application needs that sends and follows its emails.
pub const SCOPES_DEFAULT: [Scope; 2] = [Scope::Send, Scope::Read];

pub async fn list(State(state): State<ApiState>, Id(company): Id<CompanyId>) -> Result<Response, Problem> {
    find(&state, company).await?;
    let keys = state.desk.gateway.store.keys(company).await?;
    let data: Vec<Value> = keys.iter().map(show).collect();
    Ok(answer::value(StatusCode::OK, &json!({ "data": data })))
}

pub async fn add(
    State(state): State<ApiState>,
    Id(company): Id<CompanyId>,
    request: Request,
) -> Result<Response, Problem> {
    let body = read_body(&state, request, body::JSON).await?;
    find(&state, company).await?;
    let NewKey { text, record } = read(body, company, state.now())?;
    let mut shown = show(&record);
    shown["key"] = Value::from(text.expose().as_str());
    let store = state.desk.gateway.store.clone();
    to_the_end(async move { store.add_key(record).await }).await?;
    Ok(answer::value(StatusCode::CREATED, &shown))
}

/// Ends a key: here at once, on other nodes within five seconds.
pub async fn revoke(
    State(state): State<ApiState>,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let missing = || Problem::not_found("KEY_NOT_FOUND", "there is no key with this id");
    let Path((company, key)) = path.map_err(|_| missing())?;
    let company: CompanyId = company.parse().map_err(|_| CompanyId::missing())?;
    let key: KeyId = key.parse().map_err(|_| missing())?;
    find(&state, company).await?;
    let (store, now) = (state.desk.gateway.store.clone(), state.now());
    if !to_the_end(async move { store.revoke_key(company, key, now).await }).await? {
        return Err(missing());
    }
    state.keys.forget_company(company);
    Ok(answer::no_content())
}

fn read(body: Value, company: CompanyId, now: Timestamp) -> Result<NewKey, Vec<Fault>> {
    let faults = Faults::default();
    let made = Form::open(body, At::Root, FIELDS, &faults).map(|mut form| {
        let mode = form.choice("mode", &["live", "test"], KeyMode::parse).unwrap_or(KeyMode::Live);
        let scopes = scopes(&mut form);
        let label = line(&mut form, "label", LABEL_LENGTH_MAX);
        let expires_at = form.moment("expiresAt", "INVALID_TIME");
        if expires_at.is_some_and(|end| end <= now) {
            form.fault("expiresAt", "OUT_OF_RANGE", "must be in the future");
        }
        form.finish();
        make_key(company, mode, scopes, label, expires_at, now)
    });
    match (made, faults.into_vec()) {
        (Some(key), faults) if faults.is_empty() => Ok(key),
        (_, faults) => Err(faults),
    }
}

fn scopes(form: &mut Form<'_>) -> Vec<Scope> {
    if !form.has("scopes") {
        return SCOPES_DEFAULT.to_vec();
    }
    let given = form.texts("scopes", Scope::ALL.len(), "TOO_MANY_SCOPES");
    if given.is_empty() && form.faults().is_empty() {
        form.fault("scopes", "TOO_SHORT", "must name at least one of send, read, admin");
    }
    let mut scopes = Vec::new();
    for (index, text) in given {
        match Scope::parse(&text) {
            Some(scope) if !scopes.contains(&scope) => scopes.push(scope),
            Some(_) => {}
            None => form.item_fault("scopes", index, "INVALID_VALUE", "must be one of send, read, admin"),
        }
    }
    scopes
}

fn show(key: &ApiKey) -> Value {
    let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    json!({
        "id": key.id.to_string(),
        "mode": key.mode.as_str(),
        "scopes": scopes,
        "label": key.label,
        "prefix": key.prefix,
        "createdAt": key.created_at.to_rfc3339(),
        "expiresAt": key.expires_at.map(Timestamp::to_rfc3339),
        "revokedAt": key.revoked_at.map(Timestamp::to_rfc3339),
        "lastUsedAt": key.last_used_at.map(Timestamp::to_rfc3339),
    })
}
