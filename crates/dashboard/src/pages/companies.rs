//! Companies, their state and their keys. A key is shown once, in the answer to the form that made it.

use api::inside::{Answer, Behalf};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::{done, notice, overview, refused, rows, text};
use crate::fields::{Fields, Query};
use crate::layout::{Tab, copyable, form_token, moment, page, problem, server_page};
use crate::links::step;
use crate::visit::{At, Place, Visit};
use crate::words;

pub async fn list(visit: Visit, Query(query): Query) -> Response {
    companies_page(&visit, &notice(&query))
}

fn companies_page(visit: &Visit, above: &Markup) -> Response {
    let main = html! {
        h1 { "Companies" }
        (above)
        form.inline method="post" action="/ui/companies" {
            (form_token(visit))
            div.field { label for="name" { "Name" } input #name name="name" required maxlength="100" autocomplete="off"; }
            button type="submit" { "Add a company" }
        }
        @if visit.companies.is_empty() {
            p.empty { "There is none yet. A company owns keys, recipients and emails." }
        } @else {
            table.list data-list {
                thead { tr { th scope="col" { "Name" } th scope="col" { "State" } th scope="col" { "Sender" } th scope="col" { "Since" } } }
                tbody { @for place in &visit.companies { tr {
                    td.subject { a href=(place.path("")) { (place.name) } }
                    td { (state(place)) }
                    td.to { (text(&place.shown, "from")) }
                    td.when { @if let Some(time) = words::time(&place.shown["createdAt"]) { (moment(time, visit.now)) } }
                } } }
            }
        }
    };
    server_page(visit, Tab::Companies, "Companies", &main)
}

pub fn state(place: &Place) -> &'static str {
    if place.shown["disabled"] == true {
        "switched off"
    } else if place.shown["paused"].is_object() {
        "paused"
    } else {
        "active"
    }
}

pub async fn add(visit: Visit, fields: Fields) -> Response {
    let body = json!({ "name": fields.get("name").unwrap_or_default() });
    let answer = visit.post("/v1/admin/companies", &body).await;
    if !answer.is_fine() {
        let mut response = companies_page(&visit, &problem(&answer));
        *response.status_mut() = answer.status;
        return response;
    }
    let name = text(&answer.body, "name");
    Redirect::to(&format!("/ui/c/{}/settings?done=added", step(name))).into_response()
}

pub async fn show(at: At, Query(query): Query) -> Response {
    settings_page(&at, &notice(&query)).await
}

async fn settings_page(at: &At, above: &Markup) -> Response {
    let keys = at.visit.get(&at.place.admin_path("/keys")).await;
    let main = html! {
        h1 { "Keys and state" }
        (above)
        (overview::standing(at))
        section {
            h2 { "API keys" }
            (key_form(at))
            @if !keys.is_fine() { (problem(&keys)) }
            @else if rows(&keys).is_empty() { p.empty { "No key yet. Applications need one to send." } }
            @else { (key_table(at, rows(&keys))) }
        }
        section { h2 { "State" } (facts(at)) (switches(at)) }
    };
    page(at, Tab::Settings, "Keys and state", &main)
}

fn key_form(at: &At) -> Markup {
    html! {
        form.inline method="post" action=(at.place.path("/settings/keys")) {
            (form_token(&at.visit))
            div.field { label for="label" { "Label" } input #label name="label" maxlength="100" autocomplete="off"; }
            div.field {
                label for="mode" { "Mode" }
                select #mode name="mode" { option value="test" { "Test: nothing leaves this machine" } option value="live" { "Live" } }
            }
            fieldset.field {
                legend { "Scopes" }
                @for (scope, is_usual) in [("send", true), ("read", true), ("admin", false)] {
                    label.check { input type="checkbox" name="scope" value=(scope) checked[is_usual]; (scope) }
                }
            }
            button type="submit" { "Make a key" }
        }
    }
}

fn key_table(at: &At, keys: &[Value]) -> Markup {
    let now = at.visit.now;
    html! {
        table.list {
            thead { tr {
                th scope="col" { "Key" } th scope="col" { "Label" } th scope="col" { "Scopes" } th scope="col" { "Last used" }
                th scope="col" { span.hidden { "Actions" } }
            } }
            tbody { @for key in keys { tr {
                td.code { code { (text(key, "prefix")) "…" } }
                td.subject { (text(key, "label")) }
                td { (key["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")) }
                td.when { @match words::time(&key["lastUsedAt"]) { Some(time) => (moment(time, now)), None => span.soft { "never" } } }
                td.act {
                    @if key["revokedAt"].is_null() {
                        details.confirm {
                            summary.button.plain { "Revoke" }
                            form method="post" action=(at.place.path("/settings/keys/revoke")) {
                                (form_token(&at.visit))
                                input type="hidden" name="key" value=(text(key, "id"));
                                p { "Whoever uses it is refused from then on." }
                                button type="submit" { "Yes, revoke it" }
                            }
                        }
                    } @else { span.soft { "revoked" } }
                }
            } } }
        }
    }
}

fn facts(at: &At) -> Markup {
    let company = &at.place.shown;
    let list = |name: &str| -> String {
        company[name]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let or = |text: String, otherwise: &str| if text.is_empty() { otherwise.to_owned() } else { text };
    let number = |name: &str| company[name].as_u64().map_or_else(|| "no limit".to_owned(), |n| n.to_string());
    let lines = [
        ("Sender", or(text(company, "from").to_owned(), "none")),
        ("May also send as", or(list("senders"), "nobody else")),
        ("Route", or(list("route"), "the default")),
        ("Alerts go to", or(text(company, "adminEmail").to_owned(), "the server's address")),
        ("Emails a day", number("dailyLimit")),
        ("Emails a second", number("ratePerSec")),
    ];
    html! {
        dl.facts {
            @for (name, value) in lines { div { dt { (name) } dd { (value) } } }
            div.wide { dt { "Id" } dd { (copyable(text(company, "id"))) } }
        }
    }
}

fn switches(at: &At) -> Markup {
    let is_off = at.place.shown["disabled"] == true;
    let (name, question, value) = if is_off {
        ("Switch on", "Its keys work again and its emails go out.", "on")
    } else {
        ("Switch off", "Its keys are refused and its emails wait until it is switched on again.", "off")
    };
    html! {
        div.actions {
            @if at.place.shown["paused"].is_object() {
                form method="post" action=(at.place.path("/settings/resume")) {
                    (form_token(&at.visit)) button.main type="submit" { "Let it go on" }
                }
            }
            details.confirm {
                summary.button { (name) }
                form method="post" action=(at.place.path("/settings/switch")) {
                    (form_token(&at.visit))
                    input type="hidden" name="to" value=(value);
                    p { (question) }
                    button.main type="submit" { "Yes, " (name.to_lowercase()) }
                }
            }
        }
    }
}

pub async fn switch(at: At, fields: Fields) -> Response {
    let body = json!({ "disabled": fields.get("to") != Some("on") });
    let answer = at.visit.ui.inside.patch(Behalf::Operator, &at.place.admin_path(""), &body).await;
    ended(&at, &answer, "switched")
}

pub async fn resume(at: At) -> Response {
    let answer = at.visit.post(&at.place.admin_path("/resume"), &json!({})).await;
    ended(&at, &answer, "resumed")
}

/// The page that shows a new key has the form's address; who asks for it again gets to the keys.
pub async fn back(at: At) -> Response {
    Redirect::to(&at.place.path("/settings")).into_response()
}

pub async fn add_key(at: At, fields: Fields) -> Response {
    let mut body = json!({ "mode": fields.get("mode").unwrap_or("test"), "scopes": fields.all("scope") });
    if let Some(label) = fields.get("label") {
        body["label"] = label.into();
    }
    let answer = at.visit.post(&at.place.admin_path("/keys"), &body).await;
    if !answer.is_fine() {
        return refused(&at, Tab::Settings, &answer, &at.place.path("/settings"));
    }
    let above = html! {
        div.notice.good role="status" {
            p { strong { "This is the key. " } "Copy it now: it is shown this once and never again." }
            p { (copyable(text(&answer.body, "key"))) }
        }
    };
    settings_page(&at, &above).await
}

pub async fn revoke_key(at: At, fields: Fields) -> Response {
    let key = step(fields.get("key").unwrap_or_default());
    let path = at.place.admin_path(&format!("/keys/{key}"));
    let answer = at.visit.ui.inside.delete(Behalf::Operator, &path).await;
    ended(&at, &answer, "revoked")
}

fn ended(at: &At, answer: &Answer, name: &str) -> Response {
    let path = at.place.path("/settings");
    if answer.is_fine() { done(&path, name) } else { refused(at, Tab::Settings, answer, &path) }
}
