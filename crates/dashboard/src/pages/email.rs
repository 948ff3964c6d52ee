//! One email: where it is and why, what happened to it, what was sent, and what a person can do about it.

use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};
use model::{EmailId, Status};
use serde_json::{Value, json};

use super::attempts::attempts;
use super::{content, copies, done, notice, refused, rows, status_of, text, timeline};
use crate::explain::{Explanation, Facts, explain};
use crate::fields::{Fields, Query};
use crate::layout::{self, Tab, copyable, form_token, live_page, moment, pill, problem};
use crate::links::with_query;
use crate::visit::{At, Place, Visit};
use crate::words;

/// How many companies are asked for an id that is not where it was looked for.
const OWNERS_ASKED_MAX: usize = 50;

pub async fn show(at: At, Path((_, id)): Path<(String, String)>, Query(query): Query) -> Response {
    let Ok(id) = id.parse::<EmailId>() else {
        return missing(&at);
    };
    let events_path = format!("/v1/emails/{id}/events");
    let email_path = format!("/v1/emails/{id}");
    let (email, events, providers) =
        tokio::join!(at.get(&email_path), at.get(&events_path), at.visit.get("/v1/admin/providers"));
    if email.status == axum::http::StatusCode::NOT_FOUND {
        return missing(&at);
    }
    if !email.is_fine() {
        return layout::page_with(&at, Tab::Emails, "Email", email.status, &problem(&email));
    }
    let (status, email) = (status_of(&email.body), &email.body);
    let facts = Facts {
        email,
        events: rows(&events),
        company: &at.place.shown,
        providers: rows(&providers),
        now: at.visit.now,
    };
    let (links, tabs) =
        tokio::join!(copies::links(&at, email), content::tabs(&at, id, email, query.get("tab")));
    let main = html! {
        p.crumbs { a href=(at.place.path("/emails")) data-back { "Emails" } }
        (notice(&query))
        div data-live="head" {
            (head(&at, status, email, rows(&providers)))
            (links)
            (why(status, &explain(status, &facts)))
        }
        div.columns {
            section.content aria-labelledby="content-title" {
                h2 #content-title { "Content" }
                (tabs)
            }
            div data-live="history" {
                (attempts(rows(&events), at.visit.now))
                section aria-labelledby="history-title" {
                    h2 #history-title { "History" }
                    (timeline::timeline(rows(&events)))
                }
            }
        }
    };
    let stream = with_query(&at.place.path("/live"), &[("email", &id.to_string())]);
    live_page(&at, Tab::Emails, text(email, "subject"), Some(&stream), &main)
}

fn missing(at: &At) -> Response {
    let main = html! {
        h1 { "There is no such email" }
        p { "It may belong to another company, or it was removed after its time." }
        p { a href=(at.place.path("/emails")) { "All emails" } }
    };
    layout::page_with(at, Tab::Emails, "No such email", axum::http::StatusCode::NOT_FOUND, &main)
}

/// Whose email this is: this company's, or another's.
pub async fn owner_of<'v>(visit: &'v Visit, here: &Place, id: EmailId) -> Option<&'v Place> {
    let (here, others): (Vec<&Place>, Vec<&Place>) =
        visit.companies.iter().partition(|place| place.id == here.id);
    let path = format!("/v1/emails/{id}");
    for place in here.into_iter().chain(others).take(OWNERS_ASKED_MAX) {
        let behalf = api::inside::Behalf::Company(place.id);
        if visit.ui.inside.get(behalf, &path).await.is_fine() {
            return Some(place);
        }
    }
    None
}

fn head(at: &At, status: Status, email: &Value, providers: &[Value]) -> Markup {
    let now = at.visit.now;
    let addresses = |name: &str| -> String {
        let list = email[name].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
    };
    let plain = [
        ("From", text(email, "from").to_owned()),
        ("Cc", addresses("cc")),
        ("Bcc", addresses("bcc")),
        ("Provider", text(email, "provider").to_owned()),
        ("Tags", addresses("tags")),
    ];
    let times = [
        ("Accepted", "createdAt"),
        ("Scheduled", "scheduledAt"),
        ("Sent", "sentAt"),
        ("Delivered", "deliveredAt"),
        ("Failed", "failedAt"),
    ];
    let ids = [
        ("Id", "id"),
        ("Provider's id", "providerMessageId"),
        ("Your id", "externalId"),
        ("Request", "requestId"),
    ];
    html! {
        div.headline {
            h1 { (text(email, "subject")) }
            div.state { (pill(status)) @if text(email, "mode") == "test" { span.tag { "test" } } }
            (actions(at, status, email, providers))
        }
        dl.facts {
            div.wide { dt { "To" } dd {
                a href=(crate::links::with_query(&at.place.path("/emails"), &[("to", text(email, "to"))])) { (text(email, "to")) }
            } }
            @for (name, value) in plain { @if !value.is_empty() { div { dt { (name) } dd { (value) } } } }
            @if let Some(entity) = email["entity"]["id"].as_str() {
                div { dt { "Entity" } dd {
                    a href=(at.place.path(&format!("/entities/{}", crate::links::step(entity)))) {
                        (email["entity"]["name"].as_str().unwrap_or(entity))
                    }
                } }
            }
            div { dt { "Attempts" } dd { (email["attempts"]) } }
            @for (name, field) in times { @if let Some(time) = words::time(&email[field]) {
                div { dt { (name) } dd { (moment(time, now)) } }
            } }
            @for (name, field) in ids { @if let Some(id) = email[field].as_str() {
                div.wide { dt { (name) } dd { (copyable(id)) } }
            } }
        }
        (recipients(email))
    }
}

/// How it went with each of several recipients.
fn recipients(email: &Value) -> Markup {
    let states = email["recipients"].as_array().map_or(&[][..], Vec::as_slice);
    html! {
        @if !states.is_empty() {
            ul.recipients aria-label="Recipients" { @for state in states {
                li { (text(state, "address")) " " span.soft { (text(state, "status").to_lowercase()) } }
            } }
        }
    }
}

fn why(status: Status, explanation: &Explanation) -> Markup {
    let title = if status.is_waiting() { "Why is it waiting?" } else { "What became of it?" };
    html! {
        section.why.(words::mood(status)) aria-label=(title) {
            h2 { (title) }
            p { (explanation.why) }
            p.soft { "Next: " (explanation.next) }
        }
    }
}

fn actions(at: &At, status: Status, email: &Value, providers: &[Value]) -> Markup {
    let path = |action: &str| at.place.path(&format!("/emails/{}/{action}", text(email, "id")));
    let ask = |action: &str, name: &str, question: &str, yes: &str| {
        html! {
            details.confirm {
                summary.button { (name) }
                form method="post" action=(path(action)) {
                    (form_token(&at.visit))
                    p { (question) }
                    button.main type="submit" { (yes) }
                }
            }
        }
    };
    if !at.visit.may_act() {
        return html! {};
    }
    html! {
        div.actions {
            @if status.is_waiting() {
                (ask("retry", "Retry now", "It is tried at once instead of at its due time.", "Yes, retry now"))
            }
            @if status == Status::Failed {
                (ask("replay", "Send again", "It goes back into the queue with all its attempts.", "Yes, send again"))
            }
            @if !status.is_final() && status != Status::Processing {
                (ask("cancel", "Cancel", "It will not be sent. This cannot be undone.", "Yes, cancel it"))
            }
            @if status.is_final() && status != Status::Invalid { (copies::resend_button(at, email)) }
            @if status.is_final() && email["captured"] == true && at.visit.is_operator() { (copies::release_button(at, email, providers)) }
        }
    }
}

pub async fn retry(at: At, Path((_, id)): Path<(String, String)>) -> Response {
    act(&at, &id, "retry", "retried").await
}

pub async fn cancel(at: At, Path((_, id)): Path<(String, String)>) -> Response {
    act(&at, &id, "cancel", "cancelled").await
}

async fn act(at: &At, id: &str, action: &str, name: &str) -> Response {
    let path = at.place.path(&format!("/emails/{}", crate::links::step(id)));
    let answer = at.post(&format!("/v1/emails/{}/{action}", crate::links::step(id)), &json!({})).await;
    if answer.is_fine() { done(&path, name) } else { refused(at, Tab::Emails, &answer, &path) }
}

/// A failed one, back into the queue.
pub async fn replay(at: At, Path((_, id)): Path<(String, String)>, _: Fields) -> Response {
    let path = at.place.path(&format!("/emails/{}", crate::links::step(&id)));
    let answer = at.post("/v1/dlq/replay", &json!({ "ids": [id] })).await;
    if !answer.is_fine() {
        return refused(&at, Tab::Emails, &answer, &path);
    }
    if answer.body["replayed"] == 0 {
        let main = html! {
            h1 { "It is no longer a dead letter" }
            p { "It was replayed or dropped meanwhile, so there is nothing to send again." }
            p { a href=(path) { "Back" } }
        };
        return layout::page_with(
            &at,
            Tab::Emails,
            "Nothing to send",
            axum::http::StatusCode::CONFLICT,
            &main,
        );
    }
    done(&path, "replayed")
}
