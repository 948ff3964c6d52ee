//! What became of the emails about one thing in the company's world: a table of events and a trend of thirty days.

use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};
use model::EventKind;
use serde_json::Value;

use super::{rows, text};
use crate::layout::{self, Tab, page, problem};
use crate::links::{step, with_query};
use crate::visit::At;
use crate::words;

pub async fn list(at: At) -> Response {
    let answer = at.get("/v1/entities?limit=100").await;
    let main = html! {
        h1 { "Entities" }
        p.soft { "What emails are about: orders, events, clubs. Those that something happened to lately." }
        @if !answer.is_fine() { (problem(&answer)) }
        @else if rows(&answer).is_empty() { p.empty { "No email named an entity. Send " code { "\"entity\": {\"id\": \"order-1\"}" } " with one." } }
        @else {
            table.list data-list {
                thead { tr { th scope="col" { "Entity" } th scope="col" { "Last active" } } }
                tbody { @for entity in rows(&answer) { tr {
                    td.subject { a href=(at.place.path(&format!("/entities/{}", step(text(entity, "id"))))) { (text(entity, "id")) } }
                    td.when { (text(entity, "lastActiveOn")) }
                } } }
            }
        }
    };
    page(&at, Tab::Entities, "Entities", &main)
}

pub async fn show(at: At, Path((_, entity)): Path<(String, String)>) -> Response {
    let answer = at.get(&format!("/v1/entities/{}/summary?days=30", step(&entity))).await;
    if !answer.is_fine() {
        return layout::page_with(&at, Tab::Entities, "Entity", answer.status, &problem(&answer));
    }
    let events = answer.body["events"].as_array().map_or(&[][..], Vec::as_slice);
    let trend_days = answer.body["trend"].as_array().map_or(&[][..], Vec::as_slice);
    let main = html! {
        p.crumbs { a href=(at.place.path("/entities")) { "Entities" } }
        div.headline {
            h1 { (entity) }
            a.button href=(with_query(&at.place.path("/emails"), &[("entity", &entity)])) { "Its emails" }
        }
        section { h2 { "The last 30 days" } (trend(trend_days)) }
        section {
            h2 { "Events" }
            @if events.is_empty() { p.empty { "Nothing happened in these days." } }
            @else {
                table.list {
                    thead { tr { th scope="col" { "Event" } th.number scope="col" { "Total" } th.number scope="col" { "Recipients" } } }
                    tbody { @for event in events { (event_row(event)) } }
                }
            }
        }
    };
    page(&at, Tab::Entities, &entity, &main)
}

fn event_row(event: &Value) -> Markup {
    let name = text(event, "event");
    let kind = name.parse::<EventKind>().ok();
    html! {
        tr {
            td { (kind.map(words::event).unwrap_or(name)) " " code.soft { (name) } }
            td.number { (event["total"]) }
            td.number { (event["uniqueRecipients"]) }
        }
    }
}

const WIDTH: u64 = 600;
const HEIGHT: u64 = 120;

/// Delivered and bounced, day by day, as bars; the numbers are in the title of each day and in the summary.
pub fn trend(days: &[Value]) -> Markup {
    let number = |day: &Value, name: &str| day[name].as_u64().unwrap_or(0);
    let total = |name: &str| days.iter().map(|day| number(day, name)).sum::<u64>();
    let (delivered, bounced) = (total("delivered"), total("bounced"));
    let most =
        days.iter().map(|day| number(day, "delivered") + number(day, "bounced")).max().unwrap_or(0).max(1);
    let day = |day: Option<&Value>| day.map(|day| text(day, "day").to_owned()).unwrap_or_default();
    let (first, last) = (day(days.first()), day(days.last()));
    let step = WIDTH / (days.len().max(1) as u64);
    let summary = format!("{delivered} delivered and {bounced} bounced in {} days.", days.len());
    html! {
        figure.trend {
            svg role="img" aria-label=(summary) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" {
                @for (index, day) in days.iter().enumerate() {
                    @let x = index as u64 * step;
                    @let good = number(day, "delivered") * HEIGHT / most;
                    @let bad = number(day, "bounced") * HEIGHT / most;
                    g {
                        title { (text(day, "day")) ": " (number(day, "delivered")) " delivered, " (number(day, "bounced")) " bounced" }
                        rect.ground x=(x) y="0" width=(step - 2) height=(HEIGHT) {}
                        rect.good x=(x) y=(HEIGHT - good) width=(step - 2) height=(good) {}
                        rect.bad x=(x) y=(HEIGHT.saturating_sub(good + bad)) width=(step - 2) height=(bad) {}
                    }
                }
            }
            figcaption { span.key.good {} (delivered) " delivered " span.key.bad {} (bounced) " bounced"
                span.span { (first) " to " (last) ", at most " (most) " a day" } }
        }
    }
}
