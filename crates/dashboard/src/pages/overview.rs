//! A company at a glance. What happened is counted by the API; what is under way is not, so that those numbers are of one
//! page of the list: exact up to a hundred, "100+" beyond.

use axum::response::Response;
use maud::{Markup, html};
use model::alert::AlertKind;
use model::{Status, Timestamp};
use serde_json::Value;

use super::emails::{search_box, table};
use super::entities::trend;
use super::{notice, rows, text};
use crate::fields::Query;
use crate::layout::{Tab, moment, page, tile};
use crate::links::with_query;
use crate::visit::At;
use crate::words;

const COUNTED_MAX: usize = 100;
const FAILURES_SHOWN: &str = "6";
const DAY_MILLIS: i64 = 24 * 3600 * 1000;

/// So many of something; more may be meant.
#[derive(Clone, Copy, Default)]
struct Count {
    number: usize,
    is_more: bool,
}

impl Count {
    fn words(self) -> String {
        if self.is_more { format!("{}+", self.number.max(COUNTED_MAX)) } else { self.number.to_string() }
    }

    fn is_some(self) -> bool {
        self.number > 0 || self.is_more
    }
}

pub async fn show(at: At, Query(query): Query) -> Response {
    let today = start_of_day(at.visit.now).to_rfc3339();
    let all = |status| counted(&at, status);
    let dead_path = with_query("/v1/dlq", &[("limit", FAILURES_SHOWN)]);
    let bounced_path =
        with_query("/v1/emails", &[("status", Status::Bounced.as_str()), ("limit", FAILURES_SHOWN)]);
    let ((enqueued, retries, processing), dead, dead_letters, (bounces, told, summary)) = tokio::join!(
        async { tokio::join!(all(Status::Enqueued), all(Status::RetryScheduled), all(Status::Processing)) },
        count(&at, "/v1/dlq?limit=100"),
        at.get(&dead_path),
        async {
            tokio::join!(at.get(&bounced_path), at.get("/v1/alerts?limit=5"), at.get("/v1/summary?days=30"))
        },
    );
    let emails = |status: Status| with_query(&at.place.path("/emails"), &[("status", status.as_str())]);
    let days = summary.body["trend"].as_array().map_or(&[][..], Vec::as_slice);
    let of_today = |name: &str| days.last().and_then(|day| day[name].as_u64()).unwrap_or(0);
    let today_path = with_query(&at.place.path("/emails"), &[("since", &today)]);
    let bad = |count: Count| if count.is_some() { "bad" } else { "" };
    let main = html! {
        h1 { "Overview" }
        (notice(&query))
        (standing(&at))
        (search_box(&at.place.path("/emails")))
        div.tiles {
            (tile("Waiting", &enqueued.words(), Some(&emails(Status::Enqueued)), ""))
            (tile("To be retried", &retries.words(), Some(&emails(Status::RetryScheduled)), if retries.is_some() { "warn" } else { "" }))
            (tile("In flight", &processing.words(), Some(&emails(Status::Processing)), ""))
            (tile("Dead letters", &dead.words(), Some(&at.place.path("/dead-letters")), bad(dead)))
            (tile("Sent today", &of_today("sent").to_string(), Some(&today_path), ""))
            (tile("Bounced today", &of_today("bounced").to_string(), Some(&emails(Status::Bounced)), if of_today("bounced") > 0 { "bad" } else { "" }))
        }
        p.soft { "Today is since midnight UTC." }
        @if !days.is_empty() {
            section { h2 { "Delivered and bounced, 30 days" } (trend(days)) }
        }
        @if !rows(&told).is_empty() { section { h2 { "Alerts" } (alerts(&at, rows(&told))) } }
        section {
            h2 { "Recent dead letters" }
            (failures(&at, rows(&dead_letters)))
        }
        @if !rows(&bounces).is_empty() {
            section { h2 { "Recent bounces" } (table(&at, rows(&bounces))) }
        }
    };
    page(&at, Tab::Overview, "Overview", &main)
}

/// A company that does not send is said so first.
pub fn standing(at: &At) -> Markup {
    let company = &at.place.shown;
    html! {
        @if company["disabled"] == true {
            div.notice.bad { "This company is switched off: its keys are refused and its emails wait. " a href=(at.place.path("/settings")) { "Switch it on" } }
        }
        @if let Some(reason) = company["paused"]["reason"].as_str() {
            div.notice.warn { "This company is paused: " (reason) ". " a href=(at.place.path("/settings")) { "Let it go on" } }
        }
    }
}

/// What the company's admin was to hear of. Where nobody could be written to, it is told here alone.
fn alerts(at: &At, alerts: &[Value]) -> Markup {
    html! {
        table.list data-list {
            thead { tr { th scope="col" { "About" } th scope="col" { "What" } th scope="col" { "Told" } th scope="col" { "When" } } }
            tbody { @for alert in alerts { tr {
                td.to { (text(alert, "address")) }
                td.subject {
                    a href=(at.place.path(&format!("/emails/{}", text(alert, "emailId")))) { (kind(text(alert, "kind"))) }
                    " " span.soft { (text(alert, "reason")) }
                    @if let Some(repeats) = alert["repeats"].as_u64().filter(|repeats| *repeats > 0) { " " span.tag { "+" (repeats) } }
                }
                td { @match alert["sentAs"].as_str() {
                    Some(id) => a href=(at.place.path(&format!("/emails/{id}"))) { "by email" },
                    None => span.soft { "here" },
                } }
                td.when { @if let Some(time) = words::time(&alert["createdAt"]) { (moment(time, at.visit.now)) } }
            } } }
        }
    }
}

fn kind(name: &str) -> &str {
    match AlertKind::parse(name) {
        Some(AlertKind::Bounce) => "An email bounced",
        Some(AlertKind::Complaint) => "A recipient complained",
        Some(AlertKind::RepeatedFailures) => "An address keeps failing",
        None => name,
    }
}

fn failures(at: &At, letters: &[Value]) -> Markup {
    html! {
        @if letters.is_empty() {
            p.empty { "None. What is given up for good appears here." }
        } @else {
            table.list data-list {
                thead { tr { th scope="col" { "Code" } th scope="col" { "To" } th scope="col" { "Subject" } th scope="col" { "When" } } }
                tbody { @for letter in letters { tr {
                    td.code { code { (text(letter, "lastFailureCode")) } }
                    td.to { (text(&letter["originalData"], "to")) }
                    td.subject { a href=(at.place.path(&format!("/emails/{}", text(letter, "outboxId")))) { (text(&letter["originalData"], "subject")) } }
                    td.when { @if let Some(time) = words::time(&letter["movedToDLQAt"]) { (moment(time, at.visit.now)) } }
                } } }
            }
        }
    }
}

async fn counted(at: &At, status: Status) -> Count {
    count(at, &with_query("/v1/emails", &[("status", status.as_str()), ("limit", "100")])).await
}

async fn count(at: &At, path: &str) -> Count {
    let answer = at.get(path).await;
    Count { number: rows(&answer).len(), is_more: answer.body["nextCursor"].is_string() }
}

fn start_of_day(now: Timestamp) -> Timestamp {
    Timestamp::from_millis(now.millis() - now.millis().rem_euclid(DAY_MILLIS))
}
