//! Every route there is: its method and path, whom it is for, who answers, and how it is described. Router and
//! OpenAPI document are both made of this table, so neither can know a route the other does not.

use axum::Router;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, patch, post, put};
use model::Scope;

use crate::auth::{Access, guard};
use crate::error::Problem;
use crate::openapi::{Operation, admin, aftermath, dead_letters, emails, send, system, templates, webhooks};
use crate::state::ApiState;
use crate::v1::admin::{companies, keys, providers, reports};
use crate::v1::{self};
use crate::{edge, health, pages};

pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub access: Access,
    handler: MethodRouter<ApiState>,
    pub operation: fn() -> Operation,
}

const SEND: Access = Access::Key(Scope::Send);
const READ: Access = Access::Key(Scope::Read);
const ADMIN: Access = Access::Key(Scope::Admin);
const OPERATOR: Access = Access::Operator;
const PUBLIC: Access = Access::Public;

/// The whole API, one line per route.
pub fn table() -> Vec<Route> {
    [
        emails_of_a_company(),
        aftermath_of_a_company(),
        webhooks_of_providers(),
        operator(),
        health_of_the_process(),
        system(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn emails_of_a_company() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::POST, "/v1/email/send", SEND, post(v1::send::send), send::send),
        route(M::POST, "/v1/email/batch", SEND, post(v1::send::batch), send::batch),
        route(M::POST, "/v1/email/raw", SEND, post(v1::raw::raw), send::raw),
        route(M::GET, "/v1/emails", READ, get(v1::emails::list), emails::list),
        route(M::GET, "/v1/emails/{id}", READ, get(v1::emails::get), emails::get),
        route(M::GET, "/v1/emails/{id}/events", READ, get(v1::emails::events), emails::events),
        route(M::GET, "/v1/emails/{id}/content", READ, get(v1::emails::content), emails::content),
        route(
            M::GET,
            "/v1/emails/{id}/attachments/{position}",
            READ,
            get(v1::emails::attachment),
            emails::attachment,
        ),
        route(M::POST, "/v1/emails/{id}/cancel", SEND, post(v1::emails::cancel), emails::cancel),
        route(M::POST, "/v1/emails/{id}/retry", SEND, post(v1::emails::retry), emails::retry),
        route(M::POST, "/v1/emails/{id}/resend", SEND, post(v1::copies::resend), emails::resend),
        route(M::POST, "/v1/emails/{id}/release", ADMIN, post(v1::copies::release), emails::release),
        route(M::GET, "/v1/dlq", READ, get(v1::dead_letters::list), dead_letters::list),
        route(M::POST, "/v1/dlq/replay", ADMIN, post(v1::dead_letters::replay), dead_letters::replay),
        route(M::DELETE, "/v1/dlq/{id}", ADMIN, delete(v1::dead_letters::remove), dead_letters::remove),
    ]
}

fn aftermath_of_a_company() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/suppressions", READ, get(v1::suppressions::list), aftermath::list_suppressions),
        route(M::POST, "/v1/suppressions", ADMIN, post(v1::suppressions::add), aftermath::add_suppressions),
        route(
            M::GET,
            "/v1/suppressions/{email}",
            READ,
            get(v1::suppressions::get),
            aftermath::get_suppression,
        ),
        route(
            M::DELETE,
            "/v1/suppressions/{email}",
            ADMIN,
            delete(v1::suppressions::remove),
            aftermath::lift_suppression,
        ),
        route(M::GET, "/v1/recipients", READ, get(v1::recipients::list), aftermath::list_recipients),
        route(
            M::DELETE,
            "/v1/recipients/problematic/{email}",
            ADMIN,
            delete(v1::recipients::clear),
            aftermath::clear_problem,
        ),
        route(M::GET, "/v1/entities", READ, get(v1::entities::list), aftermath::list_entities),
        route(
            M::GET,
            "/v1/entities/{entity}/summary",
            READ,
            get(v1::entities::summary),
            aftermath::entity_summary,
        ),
        route(M::GET, "/v1/summary", READ, get(v1::entities::company_summary), aftermath::company_summary),
        route(M::GET, "/v1/alerts", READ, get(v1::alerts::list), aftermath::list_alerts),
        route(M::GET, "/v1/templates", READ, get(v1::templates::list), templates::list),
        route(M::GET, "/v1/templates/{name}", READ, get(v1::templates::get), templates::get),
        route(M::PUT, "/v1/templates/{name}", ADMIN, put(v1::templates::put), templates::put),
        route(M::DELETE, "/v1/templates/{name}", ADMIN, delete(v1::templates::remove), templates::remove),
        route(
            M::POST,
            "/v1/templates/{name}/preview",
            READ,
            post(v1::templates::preview),
            templates::preview,
        ),
    ]
}

fn webhooks_of_providers() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::POST, "/v1/webhooks/resend", PUBLIC, post(v1::webhooks::resend), webhooks::resend),
        route(
            M::POST,
            "/v1/webhooks/resend/{provider}",
            PUBLIC,
            post(v1::webhooks::resend_named),
            webhooks::resend_named,
        ),
        route(M::POST, "/v1/webhooks/ses", PUBLIC, post(v1::webhooks::ses), webhooks::ses),
        route(
            M::POST,
            "/v1/webhooks/ses/{provider}",
            PUBLIC,
            post(v1::webhooks::ses_named),
            webhooks::ses_named,
        ),
    ]
}

fn operator() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/v1/admin/companies", OPERATOR, get(companies::list), admin::list_companies),
        route(M::POST, "/v1/admin/companies", OPERATOR, post(companies::add), admin::add_company),
        route(M::GET, "/v1/admin/companies/{id}", OPERATOR, get(companies::get), admin::get_company),
        route(M::PATCH, "/v1/admin/companies/{id}", OPERATOR, patch(companies::patch), admin::patch_company),
        route(
            M::POST,
            "/v1/admin/companies/{id}/resume",
            OPERATOR,
            post(companies::resume),
            admin::resume_company,
        ),
        route(M::GET, "/v1/admin/companies/{id}/keys", OPERATOR, get(keys::list), admin::list_keys),
        route(M::POST, "/v1/admin/companies/{id}/keys", OPERATOR, post(keys::add), admin::add_key),
        route(
            M::DELETE,
            "/v1/admin/companies/{id}/keys/{keyId}",
            OPERATOR,
            delete(keys::revoke),
            admin::revoke_key,
        ),
        route(M::GET, "/v1/admin/emails/{id}/reports", OPERATOR, get(reports::list), admin::list_reports),
        route(M::GET, "/v1/admin/providers", OPERATOR, get(providers::list), admin::list_providers),
    ]
}

fn health_of_the_process() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/livez", PUBLIC, get(health::livez), system::livez),
        route(M::GET, "/readyz", PUBLIC, get(health::readyz), system::readyz),
        route(M::GET, "/metrics", PUBLIC, get(health::metrics), system::metrics),
    ]
}

fn system() -> Vec<Route> {
    use Method as M;
    vec![
        route(M::GET, "/openapi.json", PUBLIC, get(pages::openapi), system::openapi),
        route(M::GET, "/docs", PUBLIC, get(pages::docs), system::docs),
        route(M::GET, "/", PUBLIC, get(pages::front), system::front),
    ]
}

fn route(
    method: Method,
    path: &'static str,
    access: Access,
    handler: MethodRouter<ApiState>,
    operation: fn() -> Operation,
) -> Route {
    Route { method, path, access, handler, operation }
}

/// The whole API as a service.
pub fn router(state: ApiState) -> Router {
    within_the_edge(of(table(), &state).fallback(no_such_route), state)
}

/// Health and numbers alone, for a process that takes nothing in.
pub fn health_router(state: ApiState) -> Router {
    within_the_edge(of(health_of_the_process(), &state).fallback(only_health), state)
}

fn of(routes: Vec<Route>, state: &ApiState) -> Router<ApiState> {
    let mut router = Router::new();
    for Route { path, access, handler, .. } in routes {
        let handler = match access {
            Access::Public => handler,
            access => handler.route_layer(from_fn_with_state((state.clone(), access), guard)),
        };
        router = router.route(path, handler);
    }
    router
}

fn within_the_edge(router: Router<ApiState>, state: ApiState) -> Router {
    router
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), edge::edge))
        .with_state(state)
}

async fn only_health() -> Problem {
    Problem::not_found("ROUTE_NOT_FOUND", "this process only sends: it answers /livez, /readyz and /metrics")
}

async fn no_such_route() -> Problem {
    Problem::not_found("ROUTE_NOT_FOUND", "there is nothing at this address; /docs lists what there is")
}

/// The `Allow` header is added by the router, which knows it.
async fn wrong_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "METHOD_NOT_ALLOWED",
        "this address does not take that method; the Allow header lists those it does",
    )
}
