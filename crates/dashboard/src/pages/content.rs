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
use crate::links::{step, with_query};
use crate::visit::At;
use crate::words;

/// Of the message that is shown; the rest can be downloaded.
const SOURCE_BYTES_SHOWN_MAX: usize = 128 * 1024;
const HEADERS_SHOWN_MAX: usize = 200;

const PREVIEW_POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; \
                              base-uri 'none'; frame-ancestors 'self'";

/// The ways to look at what was sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    Preview,
    Text,
    Source,
    Headers,
    Attachments,
    Json,
}

const VIEWS: [(View, &str, &str); 6] = [
    (View::Preview, "preview", "Preview"),
    (View::Text, "text", "Text"),
    (View::Source, "source", "Source"),
    (View::Headers, "headers", "Headers"),
    (View::Attachments, "attachments", "Attachments"),
    (View::Json, "json", "JSON"),
];

/// The tabs on the page of an email.
pub async fn tabs(at: &At, id: EmailId, email: &Value, wanted: Option<&str>) -> Markup {
    let page = at.place.path(&format!("/emails/{id}"));
    let link = |name: &str| format!("{}#content-title", with_query(&page, &[("tab", name)]));
    shown(at, id, email, wanted, &link).await
}

/// The same tabs on another page, which says where they lead.
pub async fn shown(
    at: &At,
    id: EmailId,
    email: &Value,
    wanted: Option<&str>,
    link: &(dyn Fn(&str) -> String + Sync),
) -> Markup {
    let wanted = VIEWS.iter().find(|(_, name, _)| wanted == Some(*name));
    let view = wanted.map_or(View::Preview, |(view, _, _)| *view);
    let content = at.get(&format!("/v1/emails/{id}/content?format=json")).await;
    let attached = content.body["attachments"].as_array().map_or(0, Vec::len);
    let path = at.place.path(&format!("/emails/{id}"));
    let shown = match view {
        View::Json => json_tab(at, id, email).await,
        _ if !content.is_fine() => layout::problem(&content),
        View::Preview => preview_tab(&content.body, &path),
        View::Text => text_tab(&content.body),
        View::Source => source_tab(at, id).await,
        View::Headers => headers_tab(at, id).await,
        View::Attachments => attachments_tab(&content.body, &path),
    };
    html! {
        nav.tabs aria-label="Content" {
            @for (this, name, words) in VIEWS {
                @if this != View::Attachments || attached > 0 || view == this {
                    a href=(link(name)) data-swap aria-current=[(view == this).then_some("true")] {
                        (words) @if this == View::Attachments && attached > 0 { " " span.count { (attached) } }
                    }
                }
            }
            a.download href={ (path) "/eml" } download { ".eml" }
        }
        (shown)
    }
}

fn preview_tab(content: &Value, path: &str) -> Markup {
    html! {
        @if content["html"].as_str().is_some_and(|html| !html.trim().is_empty()) {
            div.widths.js role="group" aria-label="Width of the preview" {
                @for (name, words) in [("desktop", "Desktop"), ("tablet", "Tablet"), ("phone", "Phone")] {
                    button type="button" data-width=(name) aria-pressed=(name == "desktop") { (words) }
                }
            }
            div.stage data-keep="stage" {
                iframe.preview sandbox="" src={ (path) "/preview" } title="Preview of the email" referrerpolicy="no-referrer" {}
            }
            p.soft { "Nothing in it runs, and no pictures are loaded." }
        } @else {
            p.empty { "It has no html." }
        }
    }
}

fn attachments_tab(content: &Value, path: &str) -> Markup {
    let list = content["attachments"].as_array().map_or(&[][..], Vec::as_slice);
    html! {
        @if list.is_empty() {
            p.empty { "It has no attachments." @if content["kind"] == "raw" { " What an .eml carries is in the download." } }
        } @else {
            ul.attachments { @for (position, attachment) in list.iter().enumerate() {
                li {
                    a href={ (path) "/attachments/" (position) } download { (text(attachment, "filename")) }
                    " " span.soft { (text(attachment, "contentType")) ", " (words::size(attachment["sizeBytes"].as_u64().unwrap_or(0))) }
                }
            } }
        }
    }
}

fn text_tab(content: &Value) -> Markup {
    html! {
        @match content["text"].as_str() {
            Some(text) => pre.source tabindex="0" { (text) },
            None => p.empty { "It was handed in without a text of its own." },
        }
    }
}

async fn source_tab(at: &At, id: EmailId) -> Markup {
    let (message_path, reports_path) =
        (format!("/v1/emails/{id}/content?format=eml"), format!("/v1/admin/emails/{id}/reports"));
    let (answer, reports) = tokio::join!(at.get(&message_path), at.visit.get(&reports_path));
    let shown = &answer.bytes[..answer.bytes.len().min(SOURCE_BYTES_SHOWN_MAX)];
    html! {
        @if answer.is_fine() {
            pre.source tabindex="0" { (String::from_utf8_lossy(shown)) }
            @if shown.len() < answer.bytes.len() { p.soft { "The rest is in the download." } }
        } @else { (layout::problem(&answer)) }
        @if !rows(&reports).is_empty() {
            h3 { "What the provider reported" }
            @for report in rows(&reports) { pre.source tabindex="0" { (pretty(text(report, "payload"))) } }
        }
    }
}

async fn headers_tab(at: &At, id: EmailId) -> Markup {
    let answer = at.get(&format!("/v1/emails/{id}/content?format=eml")).await;
    if !answer.is_fine() {
        return layout::problem(&answer);
    }
    html! {
        table.headers {
            thead.hidden { tr { th scope="col" { "Header" } th scope="col" { "Value" } } }
            tbody { @for (name, value) in headers(&answer.bytes) { tr { th scope="row" { (name) } td { (value) } } } }
        }
    }
}

/// The headers of a message, in order, folded lines put together. What is no header is left out.
fn headers(eml: &[u8]) -> Vec<(String, String)> {
    let mut headers: Vec<(String, String)> = Vec::new();
    for line in eml.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
        if line.is_empty() || headers.len() == HEADERS_SHOWN_MAX {
            break;
        }
        match (line.starts_with([' ', '\t']), line.split_once(':'), headers.last_mut()) {
            (true, _, Some((_, value))) => {
                value.push(' ');
                value.push_str(line.trim());
            }
            (false, Some((name, value)), _) => headers.push((name.to_owned(), value.trim().to_owned())),
            _ => {}
        }
    }
    headers
}

/// As the API gives it, and its history.
async fn json_tab(at: &At, id: EmailId, email: &Value) -> Markup {
    let events = at.get(&format!("/v1/emails/{id}/events")).await;
    let json = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default();
    let (email, events) = (json(email), json(&events.body["data"]));
    html! {
        h3 { code { "GET /v1/emails/" (id) } }
        div.snippet.whole { pre.source tabindex="0" { (email) } button.js type="button" data-copy=(email) { "Copy" } }
        h3 { code { "GET /v1/emails/" (id) "/events" } }
        pre.source tabindex="0" { (events) }
    }
}

/// A report with its lines apart, where it is JSON.
fn pretty(payload: &str) -> String {
    let parsed = serde_json::from_str::<Value>(payload).ok();
    parsed.and_then(|value| serde_json::to_string_pretty(&value).ok()).unwrap_or_else(|| payload.to_owned())
}

/// Elements for which Chromium looks up a name or opens a connection before it asks the policy.
const REACHING_OUT: [&str; 4] = ["link", "iframe", "frame", "fencedframe"];

/// The html with those elements under names that mean nothing.
fn defused(html: &str) -> String {
    let mut defused = String::with_capacity(html.len());
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at + 1);
        defused.push_str(before);
        let name = tag.strip_prefix('/').unwrap_or(tag);
        if REACHING_OUT.iter().any(|element| is_tag(name, element)) {
            defused.push_str(&tag[..tag.len() - name.len()]);
            defused.push_str("x-");
            rest = name;
        } else {
            rest = tag;
        }
    }
    defused.push_str(rest);
    defused
}

fn is_tag(text: &str, element: &str) -> bool {
    let Some((name, rest)) = text.split_at_checked(element.len()) else {
        return false;
    };
    name.eq_ignore_ascii_case(element) && rest.starts_with(['\t', '\n', '\u{c}', '\r', ' ', '/', '>'])
}

/// The html itself, as it was sent, but for what would reach out. The only answer that is not made by maud, and the policy makes it harmless.
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
        (header::X_DNS_PREFETCH_CONTROL, "off"),
    ];
    (headers.map(fixed), defused(html)).into_response()
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

/// An attachment as a file; never shown as a page.
pub async fn attachment(at: At, Path((_, id, position)): Path<(String, String, String)>) -> Response {
    let path = format!("/v1/emails/{}/attachments/{}", step(&id), step(&position));
    let answer = at.get(&path).await;
    if !answer.is_fine() {
        return layout::page_with(&at, layout::Tab::Emails, "Gone", answer.status, &layout::problem(&answer));
    }
    let mut response = answer.bytes.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let name = answer.disposition.unwrap_or(HeaderValue::from_static("attachment"));
    headers.insert(header::CONTENT_DISPOSITION, name);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_unfolded_and_end_with_the_body() {
        let eml = b"Subject: Hello\r\n there\r\nnonsense\r\nX-A: 1\nX-A: 2\r\n\r\nBody: none\r\n";
        let expected = [("Subject", "Hello there"), ("X-A", "1"), ("X-A", "2")];
        let found = headers(eml);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, expected);
        assert!(headers(b" folded from nowhere\r\n\r\n").is_empty());
        assert!(headers(b"").is_empty());
    }

    #[test]
    fn what_reaches_out_is_renamed() {
        let cases = [
            ("<p>1 < 2 <b>x</b>", "<p>1 < 2 <b>x</b>"),
            ("<LINK rel=preconnect href=//a>", "<x-LINK rel=preconnect href=//a>"),
            ("<iframe/src=//a></iframe>", "<x-iframe/src=//a></x-iframe>"),
            ("<frame\tsrc=x><fencedframe>", "<x-frame\tsrc=x><x-fencedframe>"),
            ("<<link\n>", "<<x-link\n>"),
            ("<frameset><linker><links a>", "<frameset><linker><links a>"),
            ("é<link", "é<link"),
            ("<lin\u{e9}", "<lin\u{e9}"),
        ];
        for (given, expected) in cases {
            assert_eq!(defused(given), expected, "{given}");
        }
    }
}
