//! What was sent: the html in a frame that runs and loads nothing, the text, and the source.
//!
//! The frame has an address of its own instead of `srcdoc`: a frame made of an attribute would inherit our policy, which
//! forbids the inline styles every email is made of. Its own policy allows these and nothing else, and puts it into an
//! opaque origin also when somebody opens it by itself.

use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use model::EmailId;
use serde_json::Value;

use super::{rows, text};
use crate::layout;
use crate::links::with_query;
use crate::visit::At;

/// Of the message that is shown; the rest can be downloaded.
const SOURCE_BYTES_SHOWN_MAX: usize = 128 * 1024;

const PREVIEW_POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; \
                              base-uri 'none'; frame-ancestors 'self'";

#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    Preview,
    Text,
    Source,
}

pub async fn tabs(at: &At, id: EmailId, email: &Value, wanted: Option<&str>) -> Markup {
    let view = match wanted {
        Some("text") => View::Text,
        Some("source") => View::Source,
        _ => View::Preview,
    };
    let path = at.place.path(&format!("/emails/{id}"));
    let tab = |name: &str, words: &str, this: View| {
        html! { a href={ (with_query(&path, &[("tab", name)])) "#content-title" } aria-current=[(view == this).then_some("true")] { (words) } }
    };
    let shown = match view {
        View::Preview => preview_tab(at, id, &path).await,
        View::Text => text_tab(at, id).await,
        View::Source => source_tab(at, id, email).await,
    };
    html! {
        nav.tabs aria-label="Content" {
            (tab("preview", "Preview", View::Preview))
            (tab("text", "Text", View::Text))
            (tab("source", "Source", View::Source))
            a.download href={ (path) "/eml" } download { "Download .eml" }
        }
        (shown)
    }
}

async fn preview_tab(at: &At, id: EmailId, path: &str) -> Markup {
    let answer = at.get(&format!("/v1/emails/{id}/content?format=json")).await;
    if !answer.is_fine() {
        return layout::problem(&answer);
    }
    html! {
        @if answer.body["html"].as_str().is_some_and(|html| !html.trim().is_empty()) {
            iframe.preview sandbox="" src={ (path) "/preview" } title="Preview of the email" referrerpolicy="no-referrer" {}
            p.soft { "Nothing in it runs, and no pictures are loaded." }
        } @else {
            p.empty { "It has no html." }
        }
        (attachments(&answer.body))
    }
}

fn attachments(content: &Value) -> Markup {
    let list = content["attachments"].as_array().map_or(&[][..], Vec::as_slice);
    html! {
        @if !list.is_empty() {
            h3 { "Attachments" }
            ul { @for attachment in list {
                li { (text(attachment, "filename")) " " span.soft {
                    (text(attachment, "contentType")) ", " (attachment["sizeBytes"].as_u64().unwrap_or(0).div_ceil(1024)) " KB"
                } }
            } }
        }
    }
}

async fn text_tab(at: &At, id: EmailId) -> Markup {
    let answer = at.get(&format!("/v1/emails/{id}/content?format=json")).await;
    if !answer.is_fine() {
        return layout::problem(&answer);
    }
    html! {
        @match answer.body["text"].as_str() {
            Some(text) => pre.source tabindex="0" { (text) },
            None => p.empty { "It was handed in without a text of its own." },
        }
    }
}

async fn source_tab(at: &At, id: EmailId, email: &Value) -> Markup {
    let (message_path, reports_path) =
        (format!("/v1/emails/{id}/content?format=eml"), format!("/v1/admin/emails/{id}/reports"));
    let (answer, reports) = tokio::join!(at.get(&message_path), at.visit.get(&reports_path));
    let shown = &answer.bytes[..answer.bytes.len().min(SOURCE_BYTES_SHOWN_MAX)];
    let json = serde_json::to_string_pretty(email).unwrap_or_default();
    html! {
        @if answer.is_fine() {
            h3 { "The message" }
            pre.source tabindex="0" { (String::from_utf8_lossy(shown)) }
            @if shown.len() < answer.bytes.len() { p.soft { "The rest is in the download." } }
        } @else { (layout::problem(&answer)) }
        @if !rows(&reports).is_empty() {
            h3 { "What the provider reported" }
            @for report in rows(&reports) { pre.source tabindex="0" { (pretty(text(report, "payload"))) } }
        }
        h3 { "The email in the API" }
        pre.source tabindex="0" { (json) }
    }
}

/// A report with its lines apart, where it is JSON.
fn pretty(payload: &str) -> String {
    let parsed = serde_json::from_str::<Value>(payload).ok();
    parsed.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| payload.to_owned())
}

/// The html itself, as it was sent. The only answer that is not made by maud, and the policy makes it harmless.
pub async fn preview(at: At, Path((_, id)): Path<(String, String)>) -> Response {
    let Ok(id) = id.parse::<EmailId>() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let answer = at.get(&format!("/v1/emails/{id}/content?format=json")).await;
    let Some(html) = answer.body["html"].as_str().filter(|_| answer.is_fine()) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PREVIEW_POLICY),
        (header::X_FRAME_OPTIONS, "SAMEORIGIN"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers.map(fixed), html.to_owned()).into_response()
}

fn fixed((name, value): (HeaderName, &'static str)) -> (HeaderName, HeaderValue) {
    (name, HeaderValue::from_static(value))
}

/// The message as a file; never shown as a page.
pub async fn eml(at: At, Path((_, id)): Path<(String, String)>) -> Response {
    let Ok(id) = id.parse::<EmailId>() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let answer = at.get(&format!("/v1/emails/{id}/content?format=eml")).await;
    if !answer.is_fine() {
        return layout::page_with(&at, layout::Tab::Emails, "Gone", answer.status, &layout::problem(&answer));
    }
    let name = format!("attachment; filename=\"{id}.eml\"");
    let mut response = answer.bytes.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("message/rfc822"));
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    response
}
