//! A company at a glance. What happened is counted by the API; what is under way is not, so that those numbers are of one
//! page of the list: exact up to a hundred, "100+" beyond.

use axum::response::Response;
use maud::{Markup, html};
use model::{Status, Timestamp};
use serde_json::Value;
use std::time::Duration;

use super::emails::{search_box, table};
use super::entities::trend;
use super::server::gauge;
use super::{alerts, notice, providers, rows, text};
use crate::fields::Query;
use crate::layout::{Tab, live_page, moment, tile};
use crate::links::with_query;
use crate::visit::At;
use crate::words;

const COUNTED_MAX: usize = 100;
const FAILURES_SHOWN: &str = "6";
const DAY_MILLIS: i64 = 24 * 3600 * 1000;
/// What is due for longer than this is worth a second look.
const LATE_SECS: u64 = 60;

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

/// Spans of the trend.
const SPANS: [&str; 3] = ["7", "30", "90"];

pub async fn show(at: At, Query(query): Query) -> Response {
    let days = query.get("days").filter(|days| SPANS.contains(days)).unwrap_or("30");
    let all = |status| counted(&at, status);
    let dead_path = with_query("/v1/dlq", &[("limit", FAILURES_SHOWN)]);
    let bounced_path =
        with_query("/v1/emails", &[("status", Status::Bounced.as_str()), ("limit", FAILURES_SHOWN)]);
    let summary_path = with_query("/v1/summary", &[("days", days)]);
    let (
        (enqueued, retries, processing),
        (newest, dead),
        dead_letters,
        (bounces, told, summary),
        (metrics, health),
    ) = tokio::join!(
        async { tokio::join!(all(Status::Enqueued), all(Status::RetryScheduled), all(Status::Processing)) },
        async { tokio::join!(at.get("/v1/emails?limit=100"), count(&at, "/v1/dlq?limit=100")) },
        at.get(&dead_path),
        async { tokio::join!(at.get(&bounced_path), at.get("/v1/alerts?limit=5"), at.get(&summary_path)) },
        async { tokio::join!(at.visit.get("/metrics"), at.visit.get("/v1/admin/providers")) },
    );
    let trend_days = summary.body["trend"].as_array().map_or(&[][..], Vec::as_slice);
    let now = Now {
        waiting: [enqueued, retries],
        in_flight: processing,
        dead,
        per_minute: per_minute(rows(&newest), newest.body["nextCursor"].is_string(), at.visit.now),
        oldest: gauge(&String::from_utf8_lossy(&metrics.bytes), "email_oldest_waiting_seconds"),
        today: trend_days.last(),
    };
    let main = html! {
        h1 { "Overview" }
        (notice(&query))
        (standing(&at))
        (search_box(&at.place.path("/emails")))
        div data-live="now" {
            (tiles(&at, &now))
            p.soft { "Today is since midnight UTC." }
        }
        section data-live="trend" {
            div.title {
                h2 { "Delivered and bounced" }
                nav.spans aria-label="Days of the trend" { @for span in SPANS {
                    a href=(with_query(&at.place.path(""), &[("days", span)])) aria-current=[(span == days).then_some("true")] { (span) " days" }
                } }
            }
            @if trend_days.is_empty() { p.empty { "Nothing to show yet." } } @else { (trend(trend_days)) }
        }
        section data-live="health" { h2 { "Providers" } (providers::cards(rows(&health), at.visit.now)) }
        div data-live="trouble" {
            @if !rows(&told).is_empty() {
                section { h2 { "Alerts" } (alerts::table(&at, rows(&told))) p { a href=(at.place.path("/alerts")) { "All alerts" } } }
            }
            section {
                h2 { "Recent dead letters" }
                (failures(&at, rows(&dead_letters)))
            }
            @if !rows(&bounces).is_empty() {
                section { h2 { "Recent bounces" } (table(&at, rows(&bounces))) }
            }
        }
    };
    let stream = at.place.path("/live");
    live_page(&at, Tab::Overview, "Overview", Some(&stream), &main)
}

/// What is under way.
struct Now<'v> {
    /// For a worker, and for a retry.
    waiting: [Counted; 2],
    in_flight: Counted,
    dead: Counted,
    per_minute: String,
    /// In seconds, of all companies.
    oldest: Option<f64>,
    today: Option<&'v Value>,
}

fn tiles(at: &At, now: &Now<'_>) -> Markup {
    let emails = |status: Status| with_query(&at.place.path("/emails"), &[("status", status.as_str())]);
    let today = start_of_day(at.visit.now).to_rfc3339();
    let today_path = with_query(&at.place.path("/emails"), &[("since", &today)]);
    let of_today = |name: &str| now.today.and_then(|day| day[name].as_u64()).unwrap_or(0);
    let [enqueued, retries] = &now.waiting;
    let oldest = oldest_waiting(&now.waiting, now.oldest, at.visit.now);
    let is_late = oldest.as_ref().is_some_and(|(_, secs)| *secs > LATE_SECS);
    let oldest = oldest.map_or_else(|| "none".to_owned(), |(words, _)| words);
    let mood = |is_so: bool, mood| if is_so { mood } else { "" };
    html! {
        div.tiles {
            (tile("Accepted per minute", &now.per_minute, Some(&at.place.path("/emails")), ""))
            (tile("Waiting", &enqueued.count.words(), Some(&emails(Status::Enqueued)), ""))
            (tile("Oldest due", &oldest, Some(&emails(Status::Enqueued)), mood(is_late, "warn")))
            (tile("To be retried", &retries.count.words(), Some(&emails(Status::RetryScheduled)), mood(retries.count.is_some(), "warn")))
            (tile("In flight", &now.in_flight.count.words(), Some(&emails(Status::Processing)), ""))
            (tile("Dead letters", &now.dead.count.words(), Some(&at.place.path("/dead-letters")), mood(now.dead.count.is_some(), "bad")))
            (tile("Sent today", &of_today("sent").to_string(), Some(&today_path), ""))
            (tile("Bounced today", &of_today("bounced").to_string(), Some(&emails(Status::Bounced)), mood(of_today("bounced") > 0, "bad")))
        }
    }
}

/// How long the one that is due longest has been due. Where all that wait are known they say it; where there are too many
/// the whole server's number is an upper bound.
fn oldest_waiting(waiting: &[Counted; 2], server: Option<f64>, now: Timestamp) -> Option<(String, u64)> {
    let secs = |at: Timestamp| now.since(at).as_secs();
    if waiting.iter().all(|counted| !counted.count.is_more) {
        let due = waiting.iter().filter_map(|counted| counted.oldest_due_at).filter(|due_at| *due_at <= now);
        // What has just become due is on its way.
        let secs = due.min().map(secs).filter(|secs| *secs > 0)?;
        return Some((words::duration(Duration::from_secs(secs)), secs));
    }
    let secs = server.filter(|secs| *secs >= 1.0)? as u64;
    Some((format!("≤ {}", words::duration(Duration::from_secs(secs))), secs))
}

/// Emails accepted in the last minute. When more than a page came, the page's own span says how fast they come.
fn per_minute(newest: &[Value], is_more: bool, now: Timestamp) -> String {
    let minute = Duration::from_secs(60);
    let times: Vec<Timestamp> = newest.iter().filter_map(|email| words::time(&email["createdAt"])).collect();
    let recent = times.iter().filter(|at| now.since(**at) < minute).count();
    match times.last() {
        Some(oldest) if is_more && recent == times.len() => {
            let span = now.since(*oldest).as_millis().max(1);
            format!("~{}", recent as u128 * minute.as_millis() / span)
        }
        _ => recent.to_string(),
    }
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

/// What one page of a list tells.
#[derive(Clone, Copy, Default)]
struct Counted {
    count: Count,
    oldest_due_at: Option<Timestamp>,
}

async fn counted(at: &At, status: Status) -> Counted {
    count(at, &with_query("/v1/emails", &[("status", status.as_str()), ("limit", "100")])).await
}

async fn count(at: &At, path: &str) -> Counted {
    let answer = at.get(path).await;
    let count = Count { number: rows(&answer).len(), is_more: answer.body["nextCursor"].is_string() };
    let oldest_due_at = rows(&answer).iter().filter_map(|email| words::time(&email["dueAt"])).min();
    Counted { count, oldest_due_at }
}

fn start_of_day(now: Timestamp) -> Timestamp {
    Timestamp::from_millis(now.millis() - now.millis().rem_euclid(DAY_MILLIS))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::at_secs;

    use super::*;

    #[test]
    fn throughput_is_of_the_last_minute() {
        let accepted = |secs: &[u64]| -> Vec<Value> {
            secs.iter().map(|secs| json!({ "createdAt": at_secs(*secs).to_rfc3339() })).collect()
        };
        let now = at_secs(100);
        let cases = [
            ("none", accepted(&[]), false, "0"),
            ("some", accepted(&[99, 50, 40, 1]), false, "2"),
            ("a full page within half a minute", accepted(&[99, 90, 70]), true, "~6"),
            ("a full page, older ones in it", accepted(&[99, 30]), true, "1"),
        ];
        for (case, newest, is_more, expected) in cases {
            assert_eq!(per_minute(&newest, is_more, now), expected, "{case}");
        }
    }

    #[test]
    fn the_oldest_is_known_or_bounded() {
        let counted = |number, is_more, due: Option<u64>| Counted {
            count: Count { number, is_more },
            oldest_due_at: due.map(at_secs),
        };
        let (none, now) = (counted(0, false, None), at_secs(100));
        let cases = [
            ("nothing waits", [none, none], Some(50.0), None),
            ("known", [counted(2, false, Some(10)), none], None, Some("1 min 30 s")),
            ("not due yet", [counted(1, false, Some(200)), none], Some(50.0), None),
            ("too many to know", [counted(100, true, Some(90)), none], Some(50.0), Some("≤ 50 s")),
        ];
        for (case, waiting, server, expected) in cases {
            let found = oldest_waiting(&waiting, server, now).map(|(words, _)| words);
            assert_eq!(found.as_deref(), expected, "{case}");
        }
    }
}
