//! The HTTP API: who calls, what they ask for, and the answer. Emails go to `gateway::accept`, questions to
//! `gateway::lookup`; nothing here knows a back-end.
//!
//! A request walks through these files in this order: `serve` (connections), `edge` (request id, time limit,
//! panics, problems), `auth` (key or operator, rate), a handler of `v1` named in `routes`, which reads the
//! body through `body`, `json` and `form`. `openapi` describes the same table of routes. `webhooks` knows which
//! providers report here and why they are believed.

mod auth;
mod body;
mod codes;
mod edge;
mod error;
mod form;
mod health;
pub mod inside;
mod json;
mod limits;
mod nearest;
mod openapi;
mod pages;
mod rate;
pub mod reading;
mod routes;
mod serve;
mod state;
mod v1;
mod webhooks;

pub use edge::edge;
pub use limits::{ATTACHMENTS_BYTES_MAX, CONNECTIONS_MAX, REQUESTS_PER_SEC};
pub use routes::{health_router, router};
pub use serve::{Peer, ServeSettings, serve};
pub use state::{ApiSettings, ApiState};
pub use webhooks::{Fetch, NotFetched, Source as WebhookSource, Webhooks};

/// The OpenAPI document, as `/openapi.json` serves it.
pub fn openapi_document() -> serde_json::Value {
    openapi::document()
}

/// A company as the operator sees it, in the API and in the commands.
pub fn company_json(company: &model::Company) -> serde_json::Value {
    v1::admin::settings::show(company)
}
