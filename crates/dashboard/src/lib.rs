//! The dashboard: pages that show people what happens to their emails, from the same binary, with nothing loaded from
//! elsewhere. Every page reads and acts through the API (`api::inside`); there is no door to the store.
//!
//! A request walks through these files in this order: the API's `edge` (request id, time limit, panics), `guard` (who
//! may, forms that are really ours, headers), `visit` (which company, what the pages share), a page of `pages`, which
//! puts its parts into `layout`. `live` tells open pages that something has changed. `words` has the pure half: times,
//! statuses and events as people say them; `explain` says why an email is where it is.

mod assets;
mod explain;
mod fields;
mod guard;
mod layout;
mod links;
mod live;
mod pages;
mod sessions;
mod state;
mod visit;
mod words;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

pub use state::DashboardSettings;
use state::Ui;

/// All pages: what is below `/ui`. The API takes the rest, and `/`, which leads here:
/// `dashboard::router(state.clone(), settings).fallback_service(api::router(state))`.
pub fn router(state: api::ApiState, settings: DashboardSettings) -> Router {
    let ui = Ui::new(state.clone(), settings);
    Router::new()
        .merge(of_the_server())
        .merge(of_a_company())
        .route("/ui/{*rest}", get(pages::nowhere))
        .method_not_allowed_fallback(pages::wrong_method)
        .layer(from_fn_with_state(ui.clone(), guard::guard))
        .layer(from_fn_with_state(state, api::edge))
        .with_state(ui)
}

fn of_the_server() -> Router<Ui> {
    use pages::{companies, login, providers, server};
    Router::new()
        .route("/ui", get(server::show))
        .route("/ui/go", get(server::go))
        .route("/ui/live", get(live::of_the_server))
        .route("/ui/login", get(login::show).post(login::log_in))
        .route("/ui/logout", post(login::log_out))
        .route("/ui/providers", get(providers::show))
        .route("/ui/companies", get(companies::list).post(companies::add))
        .route("/ui/assets/{hash}/{name}", get(assets::serve))
}

fn of_a_company() -> Router<Ui> {
    use pages::{
        alerts, companies, content, copies, dead_letters, email, emails, entities, mailbox, overview,
        recipients,
    };
    Router::new()
        .route("/ui/c/{company}", get(overview::show))
        .route("/ui/c/{company}/live", get(live::of_a_company))
        .route("/ui/c/{company}/mailbox", get(mailbox::show))
        .route("/ui/c/{company}/alerts", get(alerts::show))
        .route("/ui/c/{company}/emails", get(emails::list))
        .route("/ui/c/{company}/emails/{id}", get(email::show))
        .route("/ui/c/{company}/emails/{id}/preview", get(content::preview))
        .route("/ui/c/{company}/emails/{id}/eml", get(content::eml))
        .route("/ui/c/{company}/emails/{id}/attachments/{position}", get(content::attachment))
        .route("/ui/c/{company}/emails/{id}/retry", post(email::retry))
        .route("/ui/c/{company}/emails/{id}/cancel", post(email::cancel))
        .route("/ui/c/{company}/emails/{id}/replay", post(email::replay))
        .route("/ui/c/{company}/emails/{id}/resend", post(copies::resend))
        .route("/ui/c/{company}/emails/{id}/release", post(copies::release))
        .route("/ui/c/{company}/dead-letters", get(dead_letters::list))
        .route("/ui/c/{company}/dead-letters/replay", get(dead_letters::ask).post(dead_letters::replay))
        .route("/ui/c/{company}/dead-letters/drop", post(dead_letters::drop))
        .route("/ui/c/{company}/recipients", get(recipients::list))
        .route("/ui/c/{company}/recipients/suppress", post(recipients::suppress))
        .route("/ui/c/{company}/recipients/lift", post(recipients::lift))
        .route("/ui/c/{company}/recipients/clear", post(recipients::clear))
        .route("/ui/c/{company}/entities", get(entities::list))
        .route("/ui/c/{company}/entities/{entity}", get(entities::show))
        .route("/ui/c/{company}/settings", get(companies::show))
        .route("/ui/c/{company}/settings/switch", post(companies::switch))
        .route("/ui/c/{company}/settings/resume", post(companies::resume))
        .route("/ui/c/{company}/settings/keys", get(companies::back).post(companies::add_key))
        .route("/ui/c/{company}/settings/keys/revoke", post(companies::revoke_key))
}
