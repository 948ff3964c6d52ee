//! How the providers are: working, slowed, resting and why.

use axum::response::Response;
use maud::{Markup, html};
use model::Timestamp;
use serde_json::Value;

use super::{rows, text};
use crate::layout::{Tab, live_server_page, moment, problem};
use crate::visit::Visit;
use crate::words;

pub async fn show(visit: Visit) -> Response {
    let answer = visit.get("/v1/admin/providers").await;
    let main = html! {
        h1 { "Providers" }
        div data-live="providers" {
            @if answer.is_fine() { (cards(rows(&answer), visit.now)) } @else { (problem(&answer)) }
        }
        p.soft { "A resting provider is asked again by itself. Emails that wait for it lose no attempt." }
    };
    live_server_page(&visit, Tab::Providers, "Providers", &main)
}

pub fn cards(providers: &[Value], now: Timestamp) -> Markup {
    html! { ul.cards { @for provider in providers { li { (card(provider, now)) } } } }
}

fn card(provider: &Value, now: Timestamp) -> Markup {
    let (mood, word) = match text(provider, "status") {
        "WORKING" => ("good", "Working"),
        "SLOWED" => ("warn", "Slowed"),
        "RESTING" => ("bad", "Resting"),
        _ => ("waiting", "Unknown"),
    };
    let breaker = &provider["breaker"];
    let account = &provider["account"];
    html! {
        div.card {
            div.headline {
                strong { (text(provider, "name")) }
                span class={ "pill " (mood) } { (word) }
            }
            p.soft { (text(provider, "kind")) @if let Some(rate) = provider["ratePerSec"].as_u64() {
                ", " (rate) " per second"
                @if let Some(configured) = provider["configuredRatePerSec"].as_u64().filter(|configured| *configured != rate) { " of " (configured) }
            } }
            @if breaker.is_object() {
                p { code { (text(breaker, "code")) }
                    @if let Some(since) = words::time(&breaker["since"]) { ", since " (moment(since, now)) }
                    @if let Some(next) = words::time(&breaker["nextProbeAt"]) { "; asked again " (moment(next, now)) }
                }
            }
            @if let (Some(sent), Some(most)) = (account["sent24Hours"].as_f64(), account["max24Hours"].as_f64()) {
                p.soft { "Account: " (format!("{sent:.0}")) " of " (format!("{most:.0}")) " in 24 hours" }
            }
        }
    }
}
