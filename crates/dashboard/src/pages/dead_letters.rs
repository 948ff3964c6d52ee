//! Emails that were given up, by what went wrong, with a way back into the queue.

use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::{done, notice, pager, refused, rows, text};
use crate::fields::{Fields, Query};
use crate::layout::{self, Tab, form_token, live_page, moment, page, problem};
use crate::links::with_query;
use crate::visit::At;
use crate::words;

/// Replayed at once; then the page says how far it is.
const STEP: u64 = 5_000;
/// Codes that are counted, those of the newest dead letters.
const GROUPS_MAX: usize = 12;
const DAY_MILLIS: u64 = 24 * 3600 * 1000;

struct Group {
    code: String,
    category: String,
    matched: u64,
}

pub async fn list(at: At, Query(query): Query) -> Response {
    let path = at.place.path("/dead-letters");
    let asked = query.pick(&["code", "to", "cursor"]);
    let list_path = with_query("/v1/dlq", &asked);
    let (answer, groups) = tokio::join!(at.get(&list_path), groups(&at));
    let code = query.get("code");
    let is_first = query.get("cursor").is_none();
    let main = html! {
        h1 { "Dead letters" }
        (notice(&query))
        p.soft { "Emails that were given up for good. They can be sent again" (kept_for(rows(&answer))) "." }
        @if !answer.is_fine() { (problem(&answer)) }
        div data-live=[is_first.then_some("letters")] {
            @if groups.is_empty() {
                p.empty { "None. That is how it should be." }
            } @else {
                ul.cards { @for group in &groups { li data-key=(group.code) { (group_card(&at, &path, group, code)) } } }
                (narrowing(&at, &path, &query))
                @if rows(&answer).is_empty() { p.empty { "None of them matches." } }
                @else {
                    @if at.visit.may_act() { (selection(&path)) }
                    (table(&at, rows(&answer)))
                    (pager(&answer, &path, &asked))
                }
            }
        }
    };
    let stream = at.place.path("/live");
    live_page(&at, Tab::DeadLetters, "Dead letters", is_first.then_some(stream.as_str()), &main)
}

/// By code and address, and what to do with all that match.
fn narrowing(at: &At, path: &str, query: &Fields) -> Markup {
    let narrowed = query.pick(&["code", "to"]);
    html! {
        form.inline method="get" action=(path) {
            @if let Some(code) = query.get("code") { input type="hidden" name="code" value=(code); }
            div.field {
                label for="to" { "To" }
                input #to type="email" name="to" value=(query.get("to").unwrap_or_default()) autocomplete="off" data-search;
            }
            button type="submit" { "Filter" }
            @if !narrowed.is_empty() {
                @if at.visit.may_act() {
                    a.button href=(with_query(&format!("{path}/replay"), &narrowed)) { "Replay all that match…" }
                }
                a.button.plain href=(path) { "Show all" }
            }
        }
    }
}

/// The form that the boxes of the lines belong to.
fn selection(path: &str) -> Markup {
    html! {
        form #selected.selected method="get" action={ (path) "/replay" } {
            label.check.js { input type="checkbox" data-all="id"; " All of this page" }
            button type="submit" { "Replay selected…" }
        }
    }
}

/// For how long, as the dead letters themselves say.
fn kept_for(letters: &[Value]) -> String {
    let days = letters.first().and_then(|letter| letter["ttl"].as_u64()).map(|ttl| ttl / DAY_MILLIS);
    days.map(|days| format!(" for {}", words::count(days, "day"))).unwrap_or_default()
}

/// The codes of the newest hundred, each counted over all.
async fn groups(at: &At) -> Vec<Group> {
    let newest = at.get("/v1/dlq?limit=100").await;
    let mut codes: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for letter in rows(&newest) {
        let seen = codes.entry(text(letter, "lastFailureCode")).or_default();
        *seen = (seen.0 + 1, text(letter, "lastFailureCategory"));
    }
    let mut codes: Vec<(&str, (usize, &str))> = codes.into_iter().collect();
    codes.sort_by_key(|(_, (seen, _))| std::cmp::Reverse(*seen));
    let mut groups = Vec::new();
    for (code, (seen, category)) in codes.into_iter().take(GROUPS_MAX) {
        let matched = matched(at, code).await.unwrap_or(seen as u64);
        groups.push(Group { code: code.to_owned(), category: category.to_owned(), matched });
    }
    groups
}

async fn matched(at: &At, code: &str) -> Option<u64> {
    let answer = at.post("/v1/dlq/replay", &json!({ "filter": { "code": code }, "dryRun": true })).await;
    answer.body["matched"].as_u64()
}

fn group_card(at: &At, path: &str, group: &Group, chosen: Option<&str>) -> Markup {
    let pairs = [("code", group.code.as_str())];
    html! {
        div.card.chosen[chosen == Some(group.code.as_str())] {
            div.headline { a href=(with_query(path, &pairs)) { code { (group.code) } } strong.number { (group.matched) } }
            p.soft { (words::hint(&group.code, &group.category)) }
            @if at.visit.may_act() { p { a.button href=(with_query(&format!("{path}/replay"), &pairs)) { "Replay…" } } }
        }
    }
}

fn table(at: &At, letters: &[Value]) -> Markup {
    html! {
        table.list data-list {
            thead { tr {
                th scope="col" { span.hidden { "Select" } } th scope="col" { "Code" } th scope="col" { "To" } th scope="col" { "Subject" } th scope="col" { "When" }
                th scope="col" { span.hidden { "Actions" } }
            } }
            tbody { @for letter in letters { (row(at, letter)) } }
        }
    }
}

fn row(at: &At, letter: &Value) -> Markup {
    let data = &letter["originalData"];
    let id = text(letter, "outboxId");
    html! {
        tr data-key=(id) {
            td.box { @if at.visit.may_act() { input type="checkbox" name="id" value=(id) form="selected" aria-label={ "Select " (text(data, "subject")) }; } }
            td.code { code { (text(letter, "lastFailureCode")) } }
            td.to { (text(data, "to")) }
            td.subject {
                a href=(at.place.path(&format!("/emails/{id}"))) { (text(data, "subject")) }
                span.reason.soft { (text(letter, "lastFailureReason")) }
            }
            td.when { @if let Some(time) = words::time(&letter["movedToDLQAt"]) { (moment(time, at.visit.now)) } }
            td.act { @if at.visit.may_act() {
                details.confirm {
                    summary.button.plain { "Drop" }
                    form method="post" action=(at.place.path("/dead-letters/drop")) {
                        (form_token(&at.visit))
                        input type="hidden" name="id" value=(id);
                        p { "It can no longer be sent again." }
                        button type="submit" { "Yes, drop it" }
                    }
                }
            } }
        }
    }
}

/// Which dead letters are meant: those picked by hand, or all that fit a filter. `None` where the form named neither:
/// that would mean all, which is never what a button said.
fn meant(fields: &Fields) -> Option<Value> {
    let ids = fields.all("id");
    if !ids.is_empty() {
        return Some(json!({ "ids": ids }));
    }
    let filter: serde_json::Map<String, Value> = fields
        .pick(&["code", "to"])
        .into_iter()
        .map(|(name, value)| (name.to_owned(), Value::from(value)))
        .collect();
    (!filter.is_empty()).then(|| json!({ "filter": filter }))
}

/// The same as hidden fields of a form.
fn carried(fields: &Fields) -> Markup {
    html! {
        @for id in fields.all("id") { input type="hidden" name="id" value=(id); }
        @for (name, value) in fields.pick(&["code", "to"]) { input type="hidden" name=(name) value=(value); }
    }
}

fn replay_what(at: &At) -> Response {
    let main = html! {
        (layout::message("Replay what?", "Nothing was selected. Nothing was changed."))
        p { a href=(at.place.path("/dead-letters")) { "Back" } }
    };
    layout::page_with(at, Tab::DeadLetters, "Replay what?", StatusCode::BAD_REQUEST, &main)
}

/// How many would go back, before they do.
pub async fn ask(at: At, Query(query): Query) -> Response {
    let path = at.place.path("/dead-letters");
    let Some(mut order) = meant(&query) else { return replay_what(&at) };
    order["dryRun"] = true.into();
    let answer = at.post("/v1/dlq/replay", &order).await;
    if !answer.is_fine() {
        return refused(&at, Tab::DeadLetters, &answer, &path);
    }
    let matched = answer.body["matched"].as_u64().unwrap_or(0);
    let code = query.get("code");
    let main = html! {
        p.crumbs { a href=(path) data-back { "Dead letters" } }
        h1 { "Replay " @match code { Some(code) => code { (code) }, None => "dead letters" } }
        @if matched == 0 {
            p { "None of them is a dead letter any more." }
        } @else {
            p { strong { (words::count(matched, "email")) } " would go back into the queue, each with all its attempts." }
            @if let Some(code) = code { p.soft { (words::hint(code, "")) } }
            form method="post" action={ (path) "/replay" } {
                (form_token(&at.visit))
                (carried(&query))
                button.main type="submit" { "Replay " (words::count(matched, "email")) }
                " " a.button.plain href=(path) { "No" }
            }
        }
    };
    page(&at, Tab::DeadLetters, "Replay", &main)
}

pub async fn replay(at: At, fields: Fields) -> Response {
    let path = at.place.path("/dead-letters");
    let Some(mut order) = meant(&fields) else { return replay_what(&at) };
    let number = |name: &str| fields.get(name).and_then(|text| text.parse::<u64>().ok());
    order["limit"] = number("step").unwrap_or(STEP).clamp(1, STEP).into();
    let answer = at.post("/v1/dlq/replay", &order).await;
    // A long replay goes on behind the answer, and one in doubt may have been done; the page that follows counts what
    // is left.
    if ["REQUEST_TIMEOUT", "STORE_IN_DOUBT"].contains(&answer.code()) {
        return done(&path, "replaying");
    }
    if !answer.is_fine() {
        return refused(&at, Tab::DeadLetters, &answer, &path);
    }
    let count = |name: &str| answer.body[name].as_u64().unwrap_or(0);
    let (replayed, left) = (count("replayed"), count("matched").saturating_sub(count("replayed")));
    if left == 0 || replayed == 0 {
        return done(&path, "replayed-all");
    }
    going_on(&at, &fields, number("so-far").unwrap_or(0).saturating_add(replayed), left)
}

/// How far a long replay is. The page asks for the next step by itself where scripts run, and can be stopped.
fn going_on(at: &At, fields: &Fields, so_far: u64, left: u64) -> Response {
    let path = at.place.path("/dead-letters");
    let all = so_far.saturating_add(left);
    let main = html! {
        h1 { "Replaying" }
        p role="status" { strong { (so_far) } " of " (words::count(all, "email")) " are back in the queue." }
        progress max=(all) value=(so_far) aria-label="Replayed" {}
        form method="post" action={ (path) "/replay" } data-go-on {
            (form_token(&at.visit))
            (carried(fields))
            @if let Some(step) = fields.get("step") { input type="hidden" name="step" value=(step); }
            input type="hidden" name="so-far" value=(so_far);
            button.main type="submit" { "Go on" }
            " " a.button.plain href=(path) { "Stop here" }
        }
    };
    page(at, Tab::DeadLetters, "Replaying", &main)
}

pub async fn drop(at: At, fields: Fields) -> Response {
    let path = at.place.path("/dead-letters");
    let id = crate::links::step(fields.get("id").unwrap_or_default());
    let answer = at.delete(&format!("/v1/dlq/{id}")).await;
    if answer.is_fine() { done(&path, "dropped") } else { refused(&at, Tab::DeadLetters, &answer, &path) }
}
