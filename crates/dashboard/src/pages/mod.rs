//! The pages, one file each, and what several of them need.

pub mod alerts;
mod attempts;
pub mod companies;
pub mod content;
pub mod copies;
pub mod dead_letters;
pub mod email;
pub mod emails;
pub mod entities;
pub mod login;
pub mod mailbox;
pub mod overview;
pub mod providers;
pub mod recipients;
pub mod server;
mod timeline;

use api::inside::Answer;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use model::Status;
use serde_json::Value;

use crate::fields::Fields;
use crate::layout::{self, Tab, message};
use crate::links::with_query;
use crate::visit::{At, Visit};

/// What was done, told on the page that follows. The address names it; the words are here, so that nobody can put
/// words of their own into a link.
const NOTICES: &[(&str, &str)] = &[
    ("retried", "It is due now."),
    ("cancelled", "It was cancelled and will not be sent."),
    ("replayed", "It is back in the queue."),
    ("replayed-all", "They are back in the queue."),
    ("replaying", "They are going back into the queue. There are many: the numbers below fall as they go."),
    ("dropped", "It was taken off the dead letters. The email stays in the list, failed."),
    ("resent", "A copy is on its way. This is it; the first one stays as it is."),
    ("released", "A copy goes to a real provider. This is it; the captured one stays in the mailbox."),
    ("suppressed", "The address is on the suppression list now."),
    ("lifted", "The address may be written to again."),
    ("cleared", "Its failures are forgotten."),
    ("switched", "Done."),
    ("resumed", "The company goes on."),
    ("revoked", "The key is revoked."),
    ("added", "The company was added."),
];

pub fn notice(query: &Fields) -> Markup {
    let words = query.get("done").and_then(|name| NOTICES.iter().find(|(known, _)| *known == name));
    html! { @if let Some((_, words)) = words { div.notice.good role="status" { (words) } } }
}

/// To the page that shows what was done; the method becomes GET.
pub fn done(path: &str, name: &str) -> Response {
    Redirect::to(&with_query(path, &[("done", name)])).into_response()
}

/// The API refused an action: its words, and a way back.
pub fn refused(at: &At, tab: Tab, answer: &Answer, back: &str) -> Response {
    let main = html! {
        h1 { "That did not work" }
        (layout::problem(answer))
        p { a href=(back) { "Back" } }
    };
    layout::page_with(at, tab, "That did not work", answer.status, &main)
}

pub async fn nowhere(visit: Visit) -> Response {
    let main =
        message("There is nothing here", "The address leads nowhere. The side bar lists what there is.");
    layout::whole(&visit, None, Tab::Server, "Nothing here", StatusCode::NOT_FOUND, &main)
}

/// The `Allow` header is added by the router, which knows it.
pub async fn wrong_method(visit: Visit) -> Response {
    let main = message("That cannot be done here", "This address does not take what the browser sent.");
    let status = StatusCode::METHOD_NOT_ALLOWED;
    layout::whole(&visit, None, Tab::Server, "Not here", status, &main)
}

pub fn no_company(visit: &Visit) -> Response {
    let main = html! {
        (message("There is no such company", "It may have been renamed."))
        p { a href="/ui/companies" { "All companies" } }
    };
    layout::whole(visit, None, Tab::Companies, "No such company", StatusCode::NOT_FOUND, &main)
}

/// A request that did not pass the guard: a fault of ours.
pub fn broken(status: StatusCode) -> Response {
    status.into_response()
}

pub fn rows(answer: &Answer) -> &[Value] {
    answer.body["data"].as_array().map_or(&[], Vec::as_slice)
}

pub fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

pub fn status_of(email: &Value) -> Status {
    text(email, "status").parse().unwrap_or(Status::Accepted)
}

/// "Older", where there is more.
pub fn pager(answer: &Answer, path: &str, pairs: &[(&str, &str)]) -> Markup {
    let next = answer.body["nextCursor"].as_str();
    let is_first = !pairs.iter().any(|(name, _)| *name == "cursor");
    let others: Vec<(&str, &str)> = pairs.iter().copied().filter(|(name, _)| *name != "cursor").collect();
    html! {
        @if next.is_some() || !is_first {
            nav.pager aria-label="More" {
                @if !is_first { a.button href=(with_query(path, &others)) { "Newest" } }
                @if let Some(next) = next {
                    a.button rel="next" href=(with_query(path, &[others.as_slice(), &[("cursor", next)]].concat())) { "Older" }
                }
            }
        }
    }
}
