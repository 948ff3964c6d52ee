//! What came back: webhooks of the providers, and what the company's admin was told of. Webhooks are counted by the process
//! that answers; when a provider last reported is known to all.

use axum::response::Response;
use maud::{Markup, html};
use model::alert::AlertKind;
use serde_json::Value;

use super::{pager, rows, text};
use crate::fields::Query;
use crate::layout::{Tab, copyable, live_page, moment, problem};
use crate::links::with_query;
use crate::visit::At;
use crate::words;

/// How the results of a webhook are told to people.
const RESULTS: [(&str, &[&str]); 4] = [
    ("Accepted", &["applied", "repeated", "ignored", "confirmed"]),
    ("Unmatched", &["unmatched"]),
    ("Refused", &["refused"]),
    ("Failed", &["failed"]),
];

pub async fn show(at: At, Query(query): Query) -> Response {
    let path = at.place.path("/alerts");
    let asked = query.pick(&["cursor"]);
    let alerts_path = with_query("/v1/alerts", &asked);
    let (told, providers, metrics) =
        tokio::join!(at.get(&alerts_path), at.visit.get("/v1/admin/providers"), at.visit.get("/metrics"));
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    let is_first = query.get("cursor").is_none();
    let main = html! {
        h1 { "Webhooks and alerts" }
        section data-live="webhooks" {
            h2 { "What providers report" }
            (webhooks(&at, rows(&providers), &metrics))
        }
        section data-live=[is_first.then_some("alerts")] {
            h2 { "Alerts" }
            p.soft { "Sent to " strong { (text_or(&at.place.shown, "adminEmail", "the server's admin address")) } ", at most one a day about the same thing." }
            @if !told.is_fine() { (problem(&told)) }
            @else if rows(&told).is_empty() { (no_alert()) }
            @else {
                (table(&at, rows(&told)))
                (pager(&told, &path, &asked))
            }
        }
        @if !rows(&told).is_empty() { (hint()) }
    };
    let stream = at.place.path("/live");
    live_page(&at, Tab::Alerts, "Webhooks and alerts", is_first.then_some(stream.as_str()), &main)
}

fn text_or<'v>(value: &'v Value, name: &str, otherwise: &'v str) -> &'v str {
    Some(text(value, name)).filter(|text| !text.is_empty()).unwrap_or(otherwise)
}

fn webhooks(at: &At, providers: &[Value], metrics: &str) -> Markup {
    let reporting: Vec<&Value> =
        providers.iter().filter(|provider| matches!(text(provider, "kind"), "ses" | "resend")).collect();
    html! {
        @if reporting.is_empty() {
            div.empty {
                p { "No provider that reports is configured. Amazon SES and Resend tell what became of an email: delivered, bounced, complained." }
                p.soft { "Without one, an address such as " code { "bounced@posthaste.test" } " plays a report." }
            }
        } @else {
            table.list {
                thead { tr {
                    th scope="col" { "Provider" }
                    @for (name, _) in RESULTS { th.number scope="col" { (name) } }
                    th scope="col" { "Last report" }
                } }
                tbody { @for provider in reporting { (webhook_row(at, provider, metrics)) } }
            }
            p.soft { "Counted since this process started. Unmatched reports name an email we do not know; refused ones had no good signature." }
        }
    }
}

fn webhook_row(at: &At, provider: &Value, metrics: &str) -> Markup {
    let (name, kind) = (text(provider, "name"), text(provider, "kind"));
    html! {
        tr {
            td.subject { strong { (name) } span.reason.soft { code { "/v1/webhooks/" (kind) "/" (name) } } }
            @for (word, results) in RESULTS {
                @let count = counted(metrics, name, results);
                td.number { span.hidden { (word) " " } span.bad[word == "Refused" && count > 0] { (count) } }
            }
            td.when { @match words::time(&provider["lastReportAt"]) {
                Some(time) => (moment(time, at.visit.now)),
                None => span.soft { "never" },
            } }
        }
    }
}

/// Of the metrics, the webhooks of one provider with one of these results.
fn counted(metrics: &str, provider: &str, results: &[&str]) -> u64 {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("webhooks_in_total{"));
    let counts = lines.filter_map(|line| {
        let (labels, value) = line.rsplit_once("} ")?;
        let has = |name: &str, value: &str| labels.contains(&format!("{name}=\"{value}\""));
        let wanted = has("provider", provider) && results.iter().any(|result| has("result", result));
        wanted.then(|| value.split('.').next().and_then(|value| value.parse::<u64>().ok())).flatten()
    });
    counts.sum()
}

fn no_alert() -> Markup {
    html! {
        div.empty {
            p { "No alert yet. A bounce, a complaint, or an address that fails three times in a week raises one." }
            (hint())
        }
    }
}

/// How to see one without harm.
fn hint() -> Markup {
    html! {
        p.soft { "To try it, send an email to " (copyable("bounced@posthaste.test")) " with a live or test key: it bounces here, and nothing leaves this machine." }
    }
}

/// What the company's admin was to hear of. Where nobody could be written to, it is told here alone.
pub fn table(at: &At, alerts: &[Value]) -> Markup {
    html! {
        table.list data-list {
            thead { tr { th scope="col" { "About" } th scope="col" { "What" } th scope="col" { "Told" } th scope="col" { "When" } } }
            tbody { @for alert in alerts { tr data-key=(text(alert, "id")) {
                td.to { (text(alert, "address")) }
                td.subject {
                    a href=(at.place.path(&format!("/emails/{}", text(alert, "emailId")))) { (kind(text(alert, "kind"))) }
                    " " span.soft { (text(alert, "reason")) }
                    @if let Some(repeats) = alert["repeats"].as_u64().filter(|repeats| *repeats > 0) { " " span.tag { "+" (repeats) } }
                }
                td { (told(at, alert)) }
                td.when { @if let Some(time) = words::time(&alert["createdAt"]) { (moment(time, at.visit.now)) } }
            } } }
        }
    }
}

fn told(at: &At, alert: &Value) -> Markup {
    html! {
        @match (alert["sentAs"].as_str(), alert["shown"].as_str()) {
            (Some(id), _) => a href=(at.place.path(&format!("/emails/{id}"))) { "by email" },
            (None, Some(why)) => span.soft title=(why) { "here: " (why) },
            (None, None) => span.soft { "soon" },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_are_counted_by_provider_and_result() {
        let page = "# TYPE webhooks_in_total counter\n\
                    webhooks_in_total{provider=\"main\",result=\"applied\"} 7\n\
                    webhooks_in_total{result=\"repeated\",provider=\"main\"} 2\n\
                    webhooks_in_total{provider=\"main\",result=\"refused\"} 1\n\
                    webhooks_in_total{provider=\"main2\",result=\"applied\"} 9\n";
        let cases = [("main", 0, 9), ("main", 2, 1), ("main", 1, 0), ("main2", 0, 9), ("other", 0, 0)];
        for (provider, row, expected) in cases {
            let (name, results) = RESULTS[row];
            assert_eq!(counted(page, provider, results), expected, "{provider} {name}");
        }
    }
}
