//! The list of a company's emails: filters in the address, a search that guesses what was typed, older ones page by
//! page.

use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use model::{EmailId, Status, Timestamp};
use serde_json::Value;
use std::time::Duration;

use super::{notice, pager, rows, status_of, text};
use crate::fields::{Fields, Query};
use crate::layout::{Tab, live_page, moment, pill, problem};
use crate::links::with_query;
use crate::visit::At;
use crate::words;

const FILTERS: &[&str] = &[
    "status",
    "to",
    "tag",
    "entity",
    "externalId",
    "recipient",
    "code",
    "requestId",
    "providerMessageId",
    "since",
    "until",
    "cursor",
];

/// Filters that are not always in sight, with their names for people.
const MORE: [(&str, &str); 7] = [
    ("to", "To"),
    ("tag", "Tag"),
    ("entity", "Entity"),
    ("externalId", "Your id"),
    ("code", "Failure code"),
    ("requestId", "Request id"),
    ("providerMessageId", "Provider's id"),
];

/// Spans to choose from; the address may also hold an exact time.
const SPANS: [(&str, &str, u64); 4] = [
    ("1h", "Last hour", 3_600),
    ("24h", "Last 24 hours", 86_400),
    ("7d", "Last 7 days", 7 * 86_400),
    ("30d", "Last 30 days", 30 * 86_400),
];

pub async fn list(at: At, Query(query): Query) -> Response {
    let path = at.place.path("/emails");
    if let Some(wanted) = query.get("q") {
        return Redirect::to(&search(&at, &path, wanted).await).into_response();
    }
    let since = query.get("since").map(|since| exact_since(since, at.visit.now));
    let asked: Vec<(&str, &str)> = query
        .pick(FILTERS)
        .into_iter()
        .map(
            |(name, value)| {
                if name == "since" { (name, since.as_deref().unwrap_or(value)) } else { (name, value) }
            },
        )
        .collect();
    let answer = at.get(&with_query("/v1/emails", &asked)).await;
    let is_filtered = !asked.is_empty();
    // Older pages stand still: what is new belongs on the first.
    let is_first = query.get("cursor").is_none();
    let main = html! {
        h1 { "Emails" }
        (notice(&query))
        (search_box(&path))
        (filters(&path, &query))
        div data-live=[is_first.then_some("emails")] {
            @if !answer.is_fine() {
                (problem(&answer))
            } @else if !rows(&answer).is_empty() {
                (table(&at, rows(&answer)))
                (pager(&answer, &path, &asked))
            } @else if is_filtered {
                div.empty {
                    p { "No email matches." }
                    (pager(&answer, &path, &asked))
                    p { a href=(path) { "Show all" } }
                }
            } @else {
                (lesson(&at).await)
            }
        }
    };
    let stream = at.place.path("/live");
    live_page(&at, Tab::Emails, "Emails", is_first.then_some(stream.as_str()), &main)
}

/// A span from now on back, as the moment it begins, so that the pages that follow belong to the same question.
fn exact_since(since: &str, now: Timestamp) -> String {
    let span = SPANS.iter().find(|(name, _, _)| *name == since);
    span.map_or_else(|| since.to_owned(), |(_, _, secs)| now.minus(Duration::from_secs(*secs)).to_rfc3339())
}

/// What was typed, as far as its form tells.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    Id(EmailId),
    /// The filter it surely means.
    Filter(&'static str),
    /// The filters it may mean, the likeliest first.
    OneOf(&'static [&'static str]),
}

fn recognise(typed: &str) -> Typed {
    let starts = |prefix: &str| typed.starts_with(prefix);
    if let Ok(id) = typed.to_ascii_lowercase().parse::<EmailId>() {
        return Typed::Id(id);
    }
    if starts("req_") || starts("resend:") || starts("release:") || starts("alert-") {
        return Typed::Filter("requestId");
    }
    if starts("capture-") || starts("<") && typed.ends_with('>') {
        return Typed::Filter("providerMessageId");
    }
    if typed.contains('@') {
        return Typed::OneOf(&["to", "providerMessageId"]);
    }
    Typed::OneOf(&["entity", "externalId", "providerMessageId", "requestId", "tag", "recipient"])
}

/// An id leads to the email, also to another company's; the rest to a list. What may mean several things is looked for
/// in each, along its index, until something is found.
async fn search(at: &At, path: &str, wanted: &str) -> String {
    let candidates: &[&'static str] = match recognise(wanted) {
        Typed::Id(id) => {
            let owner = super::email::owner_of(&at.visit, &at.place, id).await;
            if let Some(place) = owner {
                return place.path(&format!("/emails/{id}"));
            }
            // Providers make such ids, too.
            &["providerMessageId", "externalId", "entity"]
        }
        Typed::Filter(name) => return with_query(path, &[(name, wanted)]),
        Typed::OneOf(names) => names,
    };
    for name in candidates {
        let found = at.get(&with_query("/v1/emails", &[(name, wanted), ("limit", "1")])).await;
        if !rows(&found).is_empty() {
            return with_query(path, &[(name, wanted)]);
        }
    }
    let likeliest = candidates.first().copied().unwrap_or("entity");
    with_query(path, &[(likeliest, wanted)])
}

pub fn search_box(path: &str) -> Markup {
    let what = "Address, id, request, provider's id or entity";
    html! {
        form.search role="search" method="get" action=(path) {
            label.hidden for="q" { "Search for an " (what.to_lowercase()) }
            input #q type="search" name="q" placeholder=(what) autocomplete="off" spellcheck="false" data-search;
            button type="submit" { "Search" }
        }
    }
}

fn filters(path: &str, query: &Fields) -> Markup {
    let value = |name: &str| query.get(name).unwrap_or_default();
    let is_open = MORE.iter().any(|(name, _)| query.get(name).is_some());
    let since = value("since");
    let is_exact = !since.is_empty() && !SPANS.iter().any(|(name, _, _)| *name == since);
    html! {
        form.filters method="get" action=(path) autocomplete="off" {
            div.field {
                label for="status" { "Status" }
                select #status name="status" data-submit {
                    option value="" { "Any" }
                    @for status in Status::ALL {
                        option value=(status.as_str()) selected[value("status") == status.as_str()] { (words::status(status)) }
                    }
                }
            }
            div.field {
                label for="since" { "Accepted" }
                select #since name="since" data-submit {
                    option value="" { "Any time" }
                    @for (name, words, _) in SPANS {
                        option value=(name) selected[since == name] { (words) }
                    }
                    @if is_exact { option value=(since) selected { "Since " (since) } }
                }
            }
            details open[is_open] {
                summary { "More filters" }
                div.row {
                    @for (name, label) in MORE {
                        div.field {
                            label for={ "f-" (name) } { (label) }
                            input id={ "f-" (name) } name=(name) value=(value(name)) autocomplete="off" spellcheck="false";
                        }
                    }
                    button.js type="submit" { "Filter" }
                }
            }
            button.no-js type="submit" { "Filter" }
            @if !query.pick(FILTERS).is_empty() { a.button.plain href=(path) { "Clear" } }
        }
    }
}

pub fn table(at: &At, emails: &[Value]) -> Markup {
    html! {
        table.list data-list {
            thead { tr {
                th scope="col" { "Status" }
                th scope="col" { "To" }
                th scope="col" { "Subject" }
                th scope="col" { "When" }
            } }
            tbody { @for email in emails { (row(at, email)) } }
        }
    }
}

fn row(at: &At, email: &Value) -> Markup {
    let now = at.visit.now;
    let status = status_of(email);
    let due_at = words::time(&email["dueAt"]).filter(|due_at| status.is_waiting() && *due_at > now);
    html! {
        tr data-key=(text(email, "id")) {
            td.status { (pill(status)) }
            td.to { (text(email, "to")) }
            td.subject {
                a href=(at.place.path(&format!("/emails/{}", text(email, "id")))) { (text(email, "subject")) }
                @if text(email, "mode") == "test" { " " span.tag { "test" } }
                @if let Some(purpose) = email["copyOf"]["purpose"].as_str() { " " span.tag { (copy_tag(purpose)) } }
                @for tag in email["tags"].as_array().into_iter().flatten() {
                    " " span.tag { (tag.as_str().unwrap_or_default()) }
                }
                @if let Some(code) = email["lastFailureCode"].as_str().filter(|_| tells_failure(status)) { " " code.soft { (code) } }
            }
            td.when {
                @if let Some(created_at) = words::time(&email["createdAt"]) { (moment(created_at, now)) }
                @match due_at {
                    Some(due_at) if due_at >= Timestamp::NEVER => span.soft { "held" },
                    Some(due_at) => span.soft { "due " (moment(due_at, now)) },
                    None => {},
                }
            }
        }
    }
}

fn copy_tag(purpose: &str) -> &'static str {
    if purpose == "release" { "released" } else { "resent" }
}

/// A trouble that was overcome is part of the history only.
fn tells_failure(status: Status) -> bool {
    !matches!(status, Status::Sent | Status::Delivered)
}

/// What to do when there is nothing yet.
pub async fn lesson(at: &At) -> Markup {
    let keys = at.visit.get(&at.place.admin_path("/keys")).await;
    let usable = rows(&keys).iter().find(|key| key["revokedAt"].is_null());
    let dev_key = at
        .visit
        .ui
        .settings
        .dev_key
        .as_ref()
        .filter(|(company, _)| *company == at.place.name && at.visit.is_operator());
    let key = match (dev_key, usable) {
        (Some((_, key)), _) => key.expose().clone(),
        (None, Some(key)) => format!("{}…", text(key, "prefix")),
        (None, None) => "YOUR_KEY".to_owned(),
    };
    let place = at.visit.ui.settings.public_url.clone();
    let place = place.unwrap_or_else(|| format!("http://{}", at.visit.visitor.host));
    let line = format!(
        "curl {}/v1/email/send \\\n  -H 'X-API-Key: {key}' \\\n  -H 'Content-Type: application/json' \\\n  -d '{{\"to\": \
         \"delivered@posthaste.test\", \"subject\": \"Hello\", \"html\": \"<p>Hello</p>\"}}'",
        place.trim_end_matches('/')
    );
    html! {
        div.empty {
            h2 { "No email yet" }
            p { "Send one. An address at " code { "posthaste.test" } " never leaves this machine." }
            div.snippet {
                pre { code { (line) } }
                button.js type="button" data-copy=(line) { "Copy" }
            }
            @if dev_key.is_some() {
                p.soft { "This line works as it is. What it sends appears here by itself." }
            } @else if usable.is_some() {
                p.soft { "Put the whole key in place of " code { (key) } "; it was shown when it was made." }
            } @else if at.visit.is_operator() {
                p { a.button.main href=(at.place.path("/settings")) { "Make a key" } }
            } @else {
                p.soft { "Put a key with the scope " code { "send" } " in place of " code { (key) } "." }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use testkit::at_secs;

    use super::*;

    #[test]
    fn spans_begin_at_a_moment() {
        assert_eq!(exact_since("1h", at_secs(7_200)), at_secs(3_600).to_rfc3339());
        assert_eq!(exact_since("2026-01-01T00:00:00Z", at_secs(0)), "2026-01-01T00:00:00Z");
        assert_eq!(exact_since("nonsense", at_secs(0)), "nonsense", "the API says what is wrong with it");
    }

    #[test]
    fn what_is_typed_is_recognised() {
        let id = EmailId::new(at_secs(0));
        let cases = [
            (id.to_string(), Typed::Id(id)),
            (id.to_string().to_uppercase(), Typed::Id(id)),
            ("req_1737329400_abc".to_owned(), Typed::Filter("requestId")),
            (format!("release:{id}"), Typed::Filter("requestId")),
            (format!("capture-{id}"), Typed::Filter("providerMessageId")),
            ("<abc.1@mail.example.com>".to_owned(), Typed::Filter("providerMessageId")),
            ("ana@example.com".to_owned(), Typed::OneOf(&["to", "providerMessageId"])),
        ];
        for (typed, expected) in cases {
            assert_eq!(recognise(&typed), expected, "{typed}");
        }
        assert!(matches!(recognise("order-7"), Typed::OneOf(["entity", ..])));
    }
}
