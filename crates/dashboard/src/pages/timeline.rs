//! An email's history: what happened, when, and how long after the line before.

use maud::{Markup, html};
use model::{EventKind, Timestamp};
use serde_json::Value;

use super::text;
use crate::words;

pub fn timeline(events: &[Value]) -> Markup {
    let mut before: Option<Timestamp> = None;
    let lines = events.iter().map(|event| {
        let at = words::time(&event["createdAt"]);
        let after = before.zip(at).map(|(before, at)| words::duration(at.since(before)));
        before = at.or(before);
        line(event, at, after)
    });
    html! { ol.timeline { @for line in lines { (line) } } }
}

fn line(event: &Value, at: Option<Timestamp>, after: Option<String>) -> Markup {
    let name = text(event, "type");
    let kind = name.parse::<EventKind>().ok();
    let mut metadata = event["metadata"].as_object().cloned().unwrap_or_default();
    // Said where an attempt begins; repeating it on every line would only make noise.
    if kind != Some(EventKind::Received) {
        metadata.remove("attempt");
    }
    let (told, rest) = words::metadata(&metadata);
    html! {
        li.(kind.map_or("waiting", words::event_mood)) {
            div.what {
                strong { (kind.map(words::event).unwrap_or(name)) }
                code.soft { (name) }
            }
            @if !told.is_empty() { p { (told.join(" ")) } }
            @if !rest.is_empty() {
                dl.rest { @for (name, value) in &rest { div { dt { (name) } dd { (value) } } } }
            }
            div.at {
                @if let Some(at) = at { time datetime=(at.to_rfc3339()) { (words::exact(at)) } }
                @if let Some(after) = after { span.after title="After the line before" { "+" (after) } }
            }
        }
    }
}
