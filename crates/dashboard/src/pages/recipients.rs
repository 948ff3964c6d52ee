//! Addresses that are not written to, and addresses that keep failing.

use axum::response::Response;
use maud::{Markup, html};
use serde_json::{Value, json};

use super::{done, notice, pager, refused, rows, text};
use crate::fields::{Fields, Query};
use crate::layout::{Tab, form_token, moment, page, problem};
use crate::links::{step, with_query};
use crate::visit::At;
use crate::words;

pub async fn list(at: At, Query(query): Query) -> Response {
    let path = at.place.path("/recipients");
    let asked = query.pick(&["cursor"]);
    let list_path = with_query("/v1/suppressions", &asked);
    let (suppressions, problems) =
        tokio::join!(at.get(&list_path), at.get("/v1/recipients?problematic=true&limit=50"));
    let main = html! {
        h1 { "Recipients" }
        (notice(&query))
        @if !rows(&problems).is_empty() {
            section {
                h2 { "Addresses that keep failing" }
                p.soft { "Three or more failures within a week." }
                (problem_table(&at, rows(&problems)))
            }
        }
        section {
            h2 { "Suppressed" }
            p.soft { "No email is sent to these. Hard bounces and complaints put addresses here by themselves." }
            @if at.visit.may_act() { (add_form(&at)) }
            @if !suppressions.is_fine() { (problem(&suppressions)) }
            @else if rows(&suppressions).is_empty() { p.empty { "No address is suppressed." } }
            @else {
                (table(&at, rows(&suppressions)))
                (pager(&suppressions, &path, &asked))
            }
        }
    };
    page(&at, Tab::Recipients, "Recipients", &main)
}

fn add_form(at: &At) -> Markup {
    html! {
        form.inline method="post" action=(at.place.path("/recipients/suppress")) {
            (form_token(&at.visit))
            div.field { label for="email" { "Address" } input #email type="email" name="email" required autocomplete="off"; }
            div.field { label for="reason" { "Reason" } input #reason name="reason" required maxlength="200" autocomplete="off"; }
            button type="submit" { "Suppress" }
        }
    }
}

fn emails_to(at: &At, address: &str) -> Markup {
    html! { a href=(with_query(&at.place.path("/emails"), &[("to", address)])) { (address) } }
}

fn table(at: &At, suppressions: &[Value]) -> Markup {
    html! {
        table.list data-list {
            thead { tr {
                th scope="col" { "Address" } th scope="col" { "Reason" } th scope="col" { "From" } th scope="col" { "When" }
                th scope="col" { span.hidden { "Actions" } }
            } }
            tbody { @for line in suppressions { tr {
                td.to { (emails_to(at, text(line, "email"))) }
                td.subject {
                    (text(line, "reason"))
                    @if let Some(id) = line["emailId"].as_str() { " " a.aside href=(at.place.path(&format!("/emails/{id}"))) { "See the email" } }
                }
                td { (text(line, "source").to_lowercase()) }
                td.when { @if let Some(time) = words::time(&line["createdAt"]) { (moment(time, at.visit.now)) } }
                td.act { (confirm(at, "lift", "Lift", text(line, "email"), "It will be written to again.", "Yes, lift it")) }
            } } }
        }
    }
}

fn problem_table(at: &At, problems: &[Value]) -> Markup {
    html! {
        table.list data-list {
            thead { tr {
                th scope="col" { "Address" } th scope="col" { "Failures" } th scope="col" { "Last" } th scope="col" { "When" }
                th scope="col" { span.hidden { "Actions" } }
            } }
            tbody { @for line in problems { tr {
                td.to { (emails_to(at, text(line, "email"))) @if line["suppressed"] == true { " " span.tag { "suppressed" } } }
                td { (line["failures"]) }
                td.code { code { (text(line, "lastFailureCode")) } }
                td.when { @if let Some(time) = words::time(&line["lastFailureAt"]) { (moment(time, at.visit.now)) } }
                td.act { (confirm(at, "clear", "Forget", text(line, "email"), "The count starts anew.", "Yes, forget them")) }
            } } }
        }
    }
}

fn confirm(at: &At, action: &str, name: &str, address: &str, question: &str, yes: &str) -> Markup {
    if !at.visit.may_act() {
        return html! {};
    }
    html! {
        details.confirm {
            summary.button.plain { (name) }
            form method="post" action=(at.place.path(&format!("/recipients/{action}"))) {
                (form_token(&at.visit))
                input type="hidden" name="email" value=(address);
                p { (question) }
                button type="submit" { (yes) }
            }
        }
    }
}

pub async fn suppress(at: At, fields: Fields) -> Response {
    let field = |name: &str| fields.get(name).unwrap_or_default();
    let body = json!({ "email": field("email"), "reason": field("reason") });
    let answer = at.post("/v1/suppressions", &body).await;
    ended(&at, &answer, "suppressed")
}

pub async fn lift(at: At, fields: Fields) -> Response {
    let address = step(fields.get("email").unwrap_or_default());
    let answer = at.delete(&format!("/v1/suppressions/{address}")).await;
    ended(&at, &answer, "lifted")
}

pub async fn clear(at: At, fields: Fields) -> Response {
    let address = step(fields.get("email").unwrap_or_default());
    let answer = at.delete(&format!("/v1/recipients/problematic/{address}")).await;
    ended(&at, &answer, "cleared")
}

fn ended(at: &At, answer: &api::inside::Answer, name: &str) -> Response {
    let path = at.place.path("/recipients");
    if answer.is_fine() { done(&path, name) } else { refused(at, Tab::Recipients, answer, &path) }
}
