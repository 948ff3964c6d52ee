//! A second copy of an email: sent once more, or released from the mailbox to a real provider. Forms, links between the
//! copies, and what the forms do.

use api::inside::Answer;
use axum::extract::Path;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rand::TryRngCore as _;
use serde_json::{Value, json};

use super::{refused, rows, text};
use crate::fields::Fields;
use crate::layout::{Tab, form_token, moment, pill};
use crate::links::{step, with_query};
use crate::sessions::hex;
use crate::visit::At;
use crate::words;

/// What makes a form count once, however often it is sent.
fn once() -> Markup {
    let mut bits = [0_u8; 16];
    // Without it the form still works; only sending it twice would count twice.
    let key = rand::rngs::OsRng
        .try_fill_bytes(&mut bits)
        .map(|()| format!("ui-{}", hex(&bits)))
        .unwrap_or_default();
    html! { input type="hidden" name="once" value=(key); }
}

pub fn resend_button(at: &At, email: &Value) -> Markup {
    let action = at.place.path(&format!("/emails/{}/resend", text(email, "id")));
    html! {
        details.confirm {
            summary.button { "Resend" }
            form method="post" action=(action) {
                (form_token(&at.visit)) (once())
                p { "A new email with the same content goes to " strong { (text(email, "to")) } "." }
                button.main type="submit" { "Yes, send it once more" }
            }
        }
    }
}

/// A form where there is a provider to release to, and what to configure where there is none.
pub fn release_button(at: &At, email: &Value, providers: &[Value]) -> Markup {
    let real: Vec<&str> = providers
        .iter()
        .filter(|provider| provider["kind"] != "capture")
        .map(|provider| text(provider, "name"))
        .collect();
    let action = at.place.path(&format!("/emails/{}/release", text(email, "id")));
    html! {
        details.confirm.wide {
            summary.button { "Release…" }
            @if real.is_empty() {
                div.panel {
                    p { strong { "There is no provider that sends." } " Everything stays in this mailbox. To send some of it for real, add one to " code { "posthaste.toml" } " and start again:" }
                    pre { code { "[providers.relay]\nkind = \"smtp\"\nurl = \"smtp://user:pass@mail.example.com:587\"" } }
                    p.soft { "Test keys keep writing to the mailbox all the same." }
                }
            } @else {
                form.stack.panel method="post" action=(action) {
                    (form_token(&at.visit)) (once())
                    p { "A copy leaves this machine, to one address and nobody in copy." }
                    div.field {
                        label for="release-to" { "To" }
                        input #release-to type="email" name="to" value=(text(email, "to")) required autocomplete="off";
                    }
                    div.field {
                        label for="release-provider" { "Through" }
                        select #release-provider name="provider" { @for name in &real { option value=(name) { (name) } } }
                    }
                    button.main type="submit" { "Release to the real world" }
                }
            }
        }
    }
}

/// The email this one is a copy of, and the copies made of it.
pub async fn links(at: &At, email: &Value) -> Markup {
    let id = text(email, "id");
    let of = |purpose: &str| {
        with_query("/v1/emails", &[("requestId", &format!("{purpose}:{id}")), ("limit", "10")])
    };
    let (resent, released) = (of("resend"), of("release"));
    let (resent, released) = tokio::join!(at.get(&resent), at.get(&released));
    let original = &email["copyOf"];
    html! {
        @if let Some(first) = original["id"].as_str() {
            div.notice {
                @if original["purpose"] == "release" { "Released from the mailbox. " } @else { "Sent once more. " }
                a href=(at.place.path(&format!("/emails/{first}"))) { "See the first one" }
            }
        }
        @if !rows(&resent).is_empty() || !rows(&released).is_empty() {
            ul.copies aria-label="Copies of this email" {
                @for copy in rows(&released) { (line(at, copy, "Released to ")) }
                @for copy in rows(&resent) { (line(at, copy, "Resent to ")) }
            }
        }
    }
}

fn line(at: &At, copy: &Value, words: &str) -> Markup {
    html! {
        li {
            a href=(at.place.path(&format!("/emails/{}", text(copy, "id")))) { (words) (text(copy, "to")) }
            " " (pill(super::status_of(copy))) " "
            @if let Some(created_at) = words::time(&copy["createdAt"]) { span.soft { (moment(created_at, at.visit.now)) } }
        }
    }
}

pub async fn resend(at: At, Path((_, id)): Path<(String, String)>, fields: Fields) -> Response {
    let answer = order(&at, &id, "resend", &json!({}), &fields).await;
    ended(&at, &id, &answer, "resent")
}

pub async fn release(at: At, Path((_, id)): Path<(String, String)>, fields: Fields) -> Response {
    let field = |name: &str| fields.get(name);
    let body = json!({ "to": field("to"), "provider": field("provider") });
    let answer = order(&at, &id, "release", &body, &fields).await;
    ended(&at, &id, &answer, "released")
}

async fn order(at: &At, id: &str, what: &str, body: &Value, fields: &Fields) -> Answer {
    let path = format!("/v1/emails/{}/{what}", step(id));
    match fields.get("once") {
        Some(key) => at.post_once(&path, body, key).await,
        None => at.post(&path, body).await,
    }
}

/// To the copy, which says where it came from.
fn ended(at: &At, id: &str, answer: &Answer, name: &str) -> Response {
    if !answer.is_fine() {
        return refused(at, Tab::Emails, answer, &at.place.path(&format!("/emails/{}", step(id))));
    }
    let copy = at.place.path(&format!("/emails/{}", step(text(&answer.body, "outboxId"))));
    Redirect::to(&with_query(&copy, &[("done", name)])).into_response()
}
