//! The whole server at a glance: what waits, how the providers are, which companies there are.

use api::inside::Behalf;
use axum::response::{IntoResponse, Redirect, Response};
use futures_util::future::join_all;
use maud::{Markup, html};
use std::time::Duration;

use super::{notice, providers, rows};
use crate::fields::Query;
use crate::layout::{Tab, live_server_page, tile};
use crate::visit::Visit;
use crate::words;

/// The others are on the page of companies.
const COMPANIES_SHOWN_MAX: usize = 50;

pub async fn show(visit: Visit, Query(query): Query) -> Response {
    let (metrics, providers) = tokio::join!(visit.get("/metrics"), visit.get("/v1/admin/providers"));
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    let main = html! {
        h1 { "Server" }
        (notice(&query))
        div data-live="tiles" { (tiles(&metrics)) }
        section data-live="providers" { h2 { "Providers" } (providers::cards(rows(&providers), visit.now)) }
        section { h2 { "Companies" } (companies(&visit).await) }
    };
    live_server_page(&visit, Tab::Server, "Server", &main)
}

/// To the company that was picked.
pub async fn go(visit: Visit, Query(query): Query) -> Response {
    let picked =
        query.get("company").and_then(|name| visit.companies.iter().find(|place| place.name == name));
    Redirect::to(&picked.map_or_else(|| "/ui".to_owned(), |place| place.path("/emails"))).into_response()
}

/// From the metrics page: the only place of the API that counts over all companies.
fn tiles(metrics: &str) -> Markup {
    let number = |name| gauge(metrics, name).map_or_else(|| "–".to_owned(), |value| format!("{value:.0}"));
    let oldest = gauge(metrics, "email_oldest_waiting_seconds");
    let oldest_words = match oldest {
        None => "–".to_owned(),
        Some(secs) if secs < 1.0 => "none".to_owned(),
        Some(secs) => words::duration(Duration::from_secs(secs as u64)),
    };
    let dead = gauge(metrics, "email_dlq_size").is_some_and(|value| value > 0.0);
    let is_late = oldest.is_some_and(|secs| secs > 60.0);
    html! {
        div.tiles {
            (tile("Waiting", &number("email_queue_size"), None, ""))
            (tile("Oldest waiting", &oldest_words, None, if is_late { "warn" } else { "" }))
            (tile("Dead letters", &number("email_dlq_size"), None, if dead { "bad" } else { "" }))
        }
    }
}

/// The value of a metric without labels.
pub fn gauge(metrics: &str, name: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.split_whitespace().next()?.parse().ok().filter(|value: &f64| value.is_finite())
}

/// With a word at those that have dead letters: the first one is looked for, none is counted.
async fn companies(visit: &Visit) -> Markup {
    let shown = &visit.companies[..visit.companies.len().min(COMPANIES_SHOWN_MAX)];
    let first_dead =
        shown.iter().map(|place| visit.ui.inside.get(Behalf::Company(place.id), "/v1/dlq?limit=1"));
    let first_dead = join_all(first_dead).await;
    html! {
        @if visit.companies.is_empty() {
            div.empty {
                p { "There is no company yet. A company owns keys and emails." }
                p { a.button.main href="/ui/companies" { "Add one" } }
            }
        } @else {
            ul.cards {
                @for (place, dead) in shown.iter().zip(&first_dead) {
                    li { div.card {
                        div.headline {
                            a href=(place.path("")) { strong { (place.name) } }
                            span.soft { (super::companies::state(place)) }
                        }
                        @if !rows(dead).is_empty() { p { a href=(place.path("/dead-letters")) { "Dead letters" } } }
                    } }
                }
            }
            @if visit.companies.len() > COMPANIES_SHOWN_MAX { p { a href="/ui/companies" { "All " (visit.companies.len()) " companies" } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_among_the_metrics() {
        let page = "# HELP email_queue_size x\n# TYPE email_queue_size gauge\nemail_queue_size_other 9\nemail_queue_size 12\n\
                    email_dlq_size{a=\"b\"} 3\nemail_oldest_waiting_seconds NaN\n";
        assert_eq!(gauge(page, "email_queue_size"), Some(12.0));
        assert_eq!(gauge(page, "email_dlq_size"), None, "labelled ones are another matter");
        assert_eq!(gauge(page, "email_oldest_waiting_seconds"), None);
        assert_eq!(gauge("", "email_queue_size"), None);
    }
}
