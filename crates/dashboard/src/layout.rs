//! What all pages have around them: head, side bar, notices, and the small parts they are built of. All text goes
//! through maud, which escapes it.

use api::inside::Answer;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use model::{Status, Timestamp};

use crate::assets::Assets;
use crate::visit::{At, Place, Visit};
use crate::words;

/// Which line of the side bar is the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tab {
    Server,
    Overview,
    Emails,
    Mailbox,
    DeadLetters,
    Recipients,
    Entities,
    Alerts,
    Settings,
    Providers,
    Companies,
}

/// More than these are chosen from the list of companies.
const PICKER_MAX: usize = 100;

/// A page of the server.
pub fn server_page(visit: &Visit, tab: Tab, title: &str, main: &Markup) -> Response {
    whole(visit, only(visit), tab, title, StatusCode::OK, main)
}

/// A page of the server whose marked parts change by themselves.
pub fn live_server_page(visit: &Visit, tab: Tab, title: &str, main: &Markup) -> Response {
    framed(visit, only(visit), tab, title, StatusCode::OK, Some("/ui/live"), main)
}

/// Where there is one company only, its pages are at hand everywhere.
fn only(visit: &Visit) -> Option<&Place> {
    if let [only] = visit.companies.as_slice() { Some(only) } else { None }
}

/// A page of a company.
pub fn page(at: &At, tab: Tab, title: &str, main: &Markup) -> Response {
    page_with(at, tab, title, StatusCode::OK, main)
}

pub fn page_with(at: &At, tab: Tab, title: &str, status: StatusCode, main: &Markup) -> Response {
    let title = format!("{title} · {}", at.place.name);
    whole(&at.visit, Some(&at.place), tab, &title, status, main)
}

/// A page of a company whose parts marked `data-live` change by themselves, when the stream says so.
pub fn live_page(at: &At, tab: Tab, title: &str, stream: Option<&str>, main: &Markup) -> Response {
    let title = format!("{title} · {}", at.place.name);
    framed(&at.visit, Some(&at.place), tab, &title, StatusCode::OK, stream, main)
}

pub fn whole(
    visit: &Visit,
    place: Option<&Place>,
    tab: Tab,
    title: &str,
    status: StatusCode,
    main: &Markup,
) -> Response {
    framed(visit, place, tab, title, status, None, main)
}

fn framed(
    visit: &Visit,
    place: Option<&Place>,
    tab: Tab,
    title: &str,
    status: StatusCode,
    stream: Option<&str>,
    main: &Markup,
) -> Response {
    let is_wide = tab == Tab::Mailbox;
    let body = html! {
        a.skip href="#main" { "Skip to the content" }
        div.frame {
            (side(visit, place, tab, stream.is_some()))
            main #main class=[is_wide.then_some("wide")] tabindex="-1" data-stream=[stream] data-now=(visit.now.millis()) { (main) }
        }
        (help())
    };
    answer(status, document(&visit.ui.assets, title, &body))
}

/// A page without anything around it: the login, and refusals.
pub fn bare(assets: &Assets, status: StatusCode, title: &str, main: &Markup) -> Response {
    let body = html! { main.alone #main { p.brand { (mark()) "Posthaste" } (main) } };
    answer(status, document(assets, title, &body))
}

fn document(assets: &Assets, title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Posthaste" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href=(assets.style);
                // Not deferred: it sets the chosen colours before anything is drawn.
                script src=(assets.script) {}
            }
            body { (body) }
        }
    }
}

fn answer(status: StatusCode, page: Markup) -> Response {
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    (status, [(header::CONTENT_TYPE, kind)], page.into_string()).into_response()
}

/// Says whether the page follows what happens, and stops it.
fn live_switch() -> Markup {
    html! {
        button.live.js type="button" data-live-switch data-state="off" aria-pressed="false" title="Pause or go on (p)" {
            span.dot aria-hidden="true" {}
            span.word role="status" { "Live" }
        }
    }
}

fn side(visit: &Visit, place: Option<&Place>, tab: Tab, is_live: bool) -> Markup {
    let line = |to: &str, name: &str, this: Tab| {
        html! { li { a href=(to) aria-current=[(tab == this).then_some("page")] { (name) } } }
    };
    html! {
        header.side {
            div.top {
                a.brand href="/ui" { (mark()) "Posthaste" }
                @if is_live { (live_switch()) }
                div.tools {
                    button.plain.js type="button" data-theme-switch title="Light or dark" aria-label="Switch between light and dark" { "◐" }
                    button.plain.js type="button" data-help title="Keys (?)" aria-label="Show the keys" { "?" }
                }
            }
            (picker(visit, place))
            nav aria-label="Pages" {
                @if let Some(place) = place {
                    ul {
                        (line(&place.path(""), "Overview", Tab::Overview))
                        (line(&place.path("/emails"), "Emails", Tab::Emails))
                        (line(&place.path("/mailbox"), "Mailbox", Tab::Mailbox))
                        (line(&place.path("/dead-letters"), "Dead letters", Tab::DeadLetters))
                        (line(&place.path("/recipients"), "Recipients", Tab::Recipients))
                        (line(&place.path("/entities"), "Entities", Tab::Entities))
                        (line(&place.path("/alerts"), "Alerts", Tab::Alerts))
                        @if visit.is_operator() { (line(&place.path("/settings"), "Keys and state", Tab::Settings)) }
                    }
                }
                ul.server aria-label="Server" {
                    @if visit.is_operator() {
                        (line("/ui", "Server", Tab::Server))
                        (line("/ui/providers", "Providers", Tab::Providers))
                        (line("/ui/companies", "Companies", Tab::Companies))
                    }
                    li { a href="/docs" { "API" } }
                }
            }
            @if !visit.may_act() { p.soft.role { "You look only; addresses are masked." } }
            @if visit.visitor.session.is_some() {
                form.logout method="post" action="/ui/logout" {
                    (form_token(visit))
                    button.plain type="submit" { "Log out" }
                }
            }
        }
    }
}

fn picker(visit: &Visit, place: Option<&Place>) -> Markup {
    html! {
        @if !visit.companies.is_empty() && visit.companies.len() <= PICKER_MAX {
            form.picker method="get" action="/ui/go" autocomplete="off" {
                label for="company" { "Company" }
                div.joined {
                    select #company name="company" data-go {
                        @if place.is_none() { option value="" selected { "All" } }
                        @for company in &visit.companies {
                            option value=(company.name) selected[place.is_some_and(|here| here.id == company.id)] {
                                (company.name)
                            }
                        }
                    }
                    button.no-js type="submit" { "Go" }
                }
            }
        } @else if let Some(place) = place {
            p.picker { span.label { "Company" } a href="/ui/companies" { (place.name) } }
        }
    }
}

fn mark() -> Markup {
    html! {
        svg.mark viewBox="0 0 24 24" width="22" height="22" aria-hidden="true" {
            path d="M3 6.5h13.5L12 12 3 6.5Zm0 2.6V17h14l3.5-10.5L12.6 14Z" {}
        }
    }
}

fn help() -> Markup {
    let keys = [
        ("/", "search"),
        ("j", "next line of a list"),
        ("k", "line before"),
        ("Enter", "open the line"),
        ("Esc", "leave a field, close, back to the list"),
        ("p", "pause or go on with live updates"),
        ("g e", "go to the emails"),
        ("g m", "go to the mailbox"),
        ("g d", "go to the dead letters"),
        ("?", "show or hide this"),
    ];
    html! {
        dialog #help aria-labelledby="help-title" {
            h2 #help-title { "Keys" }
            dl { @for (key, meaning) in keys { dt { kbd { (key) } } dd { (meaning) } } }
            form method="dialog" { button type="submit" { "Close" } }
        }
    }
}

/// Goes into every form that is sent.
pub fn form_token(visit: &Visit) -> Markup {
    html! { input type="hidden" name="csrf" value=(visit.visitor.form_token); }
}

pub fn message(title: &str, words: &str) -> Markup {
    html! { h1 { (title) } p { (words) } }
}

/// What the API said when it did not do what was asked.
pub fn problem(answer: &Answer) -> Markup {
    let title = answer.body["title"].as_str().unwrap_or("It did not work");
    let detail = answer.body["detail"].as_str().unwrap_or("The API gave no reason.");
    html! {
        div.notice.bad role="alert" {
            strong { (title) ". " } (detail)
            @if let Some(errors) = answer.body["errors"].as_array() {
                ul { @for error in errors {
                    li { code { (error["field"].as_str().unwrap_or_default()) } " " (error["message"].as_str().unwrap_or_default()) }
                } }
            }
        }
    }
}

/// A moment: how long ago, and exactly when one points at it.
pub fn moment(at: Timestamp, now: Timestamp) -> Markup {
    html! { time datetime=(at.to_rfc3339()) title=(words::exact(at)) data-ago { (words::distance(at, now)) } }
}

/// A status as a pill: colour and word.
pub fn pill(status: Status) -> Markup {
    html! { span class={ "pill " (words::mood(status)) } { (words::status(status)) } }
}

/// A text with a button that copies it.
pub fn copyable(text: &str) -> Markup {
    html! {
        span.copyable {
            code { (text) }
            button.plain.js type="button" data-copy=(text) aria-label={ "Copy " (text) } { "Copy" }
        }
    }
}

/// A number with its name, and where to see what it counts.
pub fn tile(name: &str, value: &str, link: Option<&str>, mood: &str) -> Markup {
    let inner = html! { dt { (name) } dd { (value) } };
    html! {
        @match link {
            Some(link) => a.tile.(mood) href=(link) { dl { (inner) } },
            None => div.tile.(mood) { dl { (inner) } },
        }
    }
}
