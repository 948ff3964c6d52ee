//! `/v1/suppressions…`: the addresses a company does not write to, listed, added, lifted.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use gateway::accept::draft::Fault;
use gateway::accept::to_the_end;
use model::suppression::SUPPRESSION_REASON_LENGTH_MAX;
use model::{Address, EmailId, Suppression, SuppressionSource, Timestamp};
use serde_json::{Value, json};

use super::answer;
use super::cursor::Listing;
use super::draft::own_text;
use super::emails::{page_answer, page_limit};
use super::params::read_query;
use super::send::decide;
use crate::auth::Client;
use crate::body;
use crate::error::Problem;
use crate::form::{At, Faults, Form};
use crate::json as json_body;
use crate::limits::{SUPPRESSIONS_BODY_BYTES_MAX, SUPPRESSIONS_MAX};
use crate::state::ApiState;

pub const PARAMETERS: &[&str] = &["cursor", "limit"];
pub const FIELDS: &[&str] = &["email", "reason"];

/// An address in a path.
pub type InPath = Result<Path<String>, PathRejection>;

pub async fn list(State(state): State<ApiState>, client: Client, uri: Uri) -> Result<Response, Problem> {
    let listing = Listing::of(&state, client.id(), "suppressions", &uri).await?;
    let (after, limit) = read_query(&uri, PARAMETERS, |form| (listing.take(form), page_limit(form)))?;
    let page = state.desk.gateway.store.suppressions(client.id(), after.as_ref(), limit).await?;
    Ok(page_answer(&listing, page, show))
}

pub async fn get(State(state): State<ApiState>, client: Client, email: InPath) -> Result<Response, Problem> {
    let address = address_of(email).ok_or_else(missing)?;
    let found = state.desk.gateway.store.suppressed(client.id(), &[address]).await?;
    found.first().map(|found| answer::value(StatusCode::OK, &show(found))).ok_or_else(missing)
}

/// Adds one, or a list; those on the list already stay as they are.
pub async fn add(
    State(state): State<ApiState>,
    client: Client,
    request: Request,
) -> Result<Response, Problem> {
    let (parts, incoming) = request.into_parts();
    body::require_type(&parts.headers, body::JSON)?;
    let taken = body::take(&state, &parts.headers, incoming, SUPPRESSIONS_BODY_BYTES_MAX).await?;
    let now = state.now();
    let (suppressions, _taken) = decide(taken, move |bytes| Ok(read(json_body::read(bytes)?, now)?)).await?;
    let (given, company) = (suppressions.len(), client.id());
    let gateway = state.desk.gateway.clone();
    let added = to_the_end(async move {
        let added = gateway.store.suppress(company, suppressions).await;
        gateway.suppressions.changed(company);
        added
    });
    let body = json!({ "given": given, "added": added.await? });
    Ok(answer::value(StatusCode::OK, &body))
}

pub async fn remove(
    State(state): State<ApiState>,
    client: Client,
    email: InPath,
) -> Result<Response, Problem> {
    let address = address_of(email).ok_or_else(missing)?;
    let (gateway, company) = (state.desk.gateway.clone(), client.id());
    let lifted = to_the_end(async move {
        let lifted = gateway.store.lift(company, &address).await;
        gateway.suppressions.changed(company);
        lifted
    });
    if lifted.await? { Ok(answer::no_content()) } else { Err(missing()) }
}

/// What is no address is on no list.
pub fn address_of(path: InPath) -> Option<Address> {
    path.ok().and_then(|Path(text)| Address::parse(&text).ok())
}

fn missing() -> Problem {
    Problem::not_found("SUPPRESSION_NOT_FOUND", "this address is not on the suppression list")
}

fn read(body: Value, now: Timestamp) -> Result<Vec<Suppression>, Vec<Fault>> {
    let faults = Faults::default();
    let root = At::Root;
    let read: Vec<Suppression> = match body {
        Value::Array(items) if items.is_empty() => {
            faults.push(Fault::wrong("", "TOO_SHORT", "the list is empty"));
            Vec::new()
        }
        Value::Array(items) if items.len() > SUPPRESSIONS_MAX => {
            let message =
                format!("the list has {} items; at most {SUPPRESSIONS_MAX} are allowed", items.len());
            faults.push(Fault::wrong("", "TOO_MANY_SUPPRESSIONS", message));
            Vec::new()
        }
        Value::Array(items) => {
            let read = |(index, item)| read_one(item, At::Item(&root, index), &faults, now);
            items.into_iter().enumerate().filter_map(read).collect()
        }
        one => read_one(one, root, &faults, now).into_iter().collect(),
    };
    let faults = faults.into_vec();
    if faults.is_empty() { Ok(read) } else { Err(faults) }
}

fn read_one(item: Value, at: At<'_>, faults: &Faults, now: Timestamp) -> Option<Suppression> {
    let mut form = Form::open(item, at, FIELDS, faults)?;
    for name in FIELDS {
        if !form.has(name) {
            form.fault(name, "REQUIRED", "is required");
        }
    }
    let address = form.address("email");
    let reason = own_text(&mut form, "reason", SUPPRESSION_REASON_LENGTH_MAX);
    form.finish();
    let source = SuppressionSource::Company;
    Some(Suppression { address: address?, reason: reason?, source, email: None, created_at: now })
}

fn show(suppression: &Suppression) -> Value {
    json!({
        "email": suppression.address.expose(),
        "reason": suppression.reason,
        "source": suppression.source.as_str(),
        "emailId": suppression.email.map(|id: EmailId| id.to_string()),
        "createdAt": suppression.created_at.to_rfc3339(),
    })
}
