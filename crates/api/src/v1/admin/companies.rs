//! `/v1/admin/companies`: listing, adding, reading and changing companies.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use gateway::accept::draft::Fault;
use gateway::accept::to_the_end;
use model::{Company, CompanyId, CompanySettings};
use serde_json::{Value, json};
use store::StoreError;

use super::settings;
use crate::body;
use crate::error::Problem;
use crate::json as json_body;
use crate::limits::SMALL_BODY_BYTES_MAX;
use crate::state::ApiState;
use crate::v1::answer;
use crate::v1::params::{Id, Named as _};

/// A patch may call itself what it is.
pub const PATCH_TYPES: &[&str] = &["application/json", "application/merge-patch+json"];

pub async fn list(State(state): State<ApiState>) -> Result<Response, Problem> {
    let companies = state.desk.gateway.store.companies().await?;
    let data: Vec<Value> = companies.iter().map(settings::show).collect();
    Ok(answer::value(StatusCode::OK, &json!({ "data": data })))
}

pub async fn add(State(state): State<ApiState>, request: Request) -> Result<Response, Problem> {
    let body = read_body(&state, request, body::JSON).await?;
    let now = state.now();
    let blank = Company {
        id: CompanyId::new(now),
        name: String::new(),
        settings: CompanySettings::default(),
        created_at: now,
        disabled_at: None,
        pause: None,
        resumed_at: None,
    };
    let has_name = body.get("name").is_some_and(|name| !name.is_null());
    let company = match settings::apply(&state.desk.gateway, blank, body, now) {
        Ok(company) if has_name => company,
        applied => return Err(with_name_missing(applied.err().unwrap_or_default(), has_name).into()),
    };
    let (store, stored) = (state.desk.gateway.store.clone(), company.clone());
    to_the_end(async move { store.add_company(stored).await }).await.map_err(name_taken)?;
    let mut response = answer::value(StatusCode::CREATED, &settings::show(&company));
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/admin/companies/{}", company.id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

fn with_name_missing(mut faults: Vec<Fault>, has_name: bool) -> Vec<Fault> {
    if !has_name {
        faults.insert(0, Fault::wrong("name", "REQUIRED", "is required"));
    }
    faults
}

pub async fn get(State(state): State<ApiState>, Id(id): Id<CompanyId>) -> Result<Response, Problem> {
    Ok(answer::value(StatusCode::OK, &settings::show(&find(&state, id).await?)))
}

pub async fn patch(
    State(state): State<ApiState>,
    Id(id): Id<CompanyId>,
    request: Request,
) -> Result<Response, Problem> {
    let body = read_body(&state, request, PATCH_TYPES).await?;
    let company = find(&state, id).await?;
    let company = settings::apply(&state.desk.gateway, company, body, state.now())?;
    let (store, stored) = (state.desk.gateway.store.clone(), company.clone());
    if !to_the_end(async move { store.update_company(stored).await }).await.map_err(name_taken)? {
        return Err(CompanyId::missing());
    }
    state.keys.forget_company(id);
    Ok(answer::value(StatusCode::OK, &settings::show(&company)))
}

/// Lets a paused company's emails go again.
pub async fn resume(State(state): State<ApiState>, Id(id): Id<CompanyId>) -> Result<Response, Problem> {
    find(&state, id).await?;
    let (store, now) = (state.desk.gateway.store.clone(), state.now());
    if !to_the_end(async move { store.resume_company(id, now).await }).await? {
        return Err(Problem::new(StatusCode::CONFLICT, "NOT_PAUSED", "the company is not paused"));
    }
    state.keys.forget_company(id);
    get(State(state), Id(id)).await
}

pub async fn find(state: &ApiState, id: CompanyId) -> Result<Company, Problem> {
    state.desk.gateway.store.company(id).await?.ok_or_else(CompanyId::missing)
}

pub async fn read_body(state: &ApiState, request: Request, types: &[&str]) -> Result<Value, Problem> {
    let (parts, incoming) = request.into_parts();
    body::require_type(&parts.headers, types)?;
    let taken = body::take(state, &parts.headers, incoming, SMALL_BODY_BYTES_MAX).await?;
    json_body::read(&taken.bytes)
}

fn name_taken(error: StoreError) -> Problem {
    match error {
        StoreError::Exists(_) => {
            Problem::new(StatusCode::CONFLICT, "COMPANY_EXISTS", "there is a company of that name already")
        }
        error => error.into(),
    }
}
