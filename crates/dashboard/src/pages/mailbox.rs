//! The mailbox of captured mail: what test keys and this environment kept instead of sending it. A list on the left, the
//! message on the right; on a phone one after the other. Everything is in the address, so that it works without script.

use axum::response::Response;
use maud::{Markup, html};
use model::{Address, EmailId};
use serde_json::Value;

use super::copies::release_button;
use super::emails::lesson;
use super::{content, notice, rows, status_of, text};
use crate::fields::{Fields, Query};
use crate::layout::{Tab, live_page, moment, pill, problem};
use crate::links::with_query;
use crate::visit::At;
use crate::words;

/// So many are looked at for words in them; the rest is older.
const LOOKED_AT: &str = "100";
const SHOWN: &str = "50";
/// As the capture provider has it where nobody is named.
const NOBODY: &str = "no-reply@posthaste.test";

pub async fn show(at: At, Query(query): Query) -> Response {
    let wanted = Wanted::read(&query);
    let list = at.get(&with_query("/v1/emails", &wanted.asked)).await;
    let found: Vec<&Value> = rows(&list).iter().filter(|email| wanted.fits(email)).collect();
    let chosen = query.get("id").and_then(|id| id.parse::<EmailId>().ok());
    let message = match chosen {
        Some(id) => message(&at, &query, id).await,
        None => nothing_chosen(),
    };
    let path = at.place.path("/mailbox");
    let is_first = query.get("cursor").is_none();
    let next = list.body["nextCursor"].as_str();
    let main = html! {
        h1.hidden { "Mailbox" }
        div.mailbox.chosen[chosen.is_some()] {
            div.letters {
                form.search role="search" method="get" action=(path) {
                    label.hidden for="q" { "Search by address, sender or subject" }
                    input #q type="search" name="q" value=(query.get("q").unwrap_or_default()) placeholder="Address, sender or subject" autocomplete="off" spellcheck="false" data-search;
                }
                div data-live=[is_first.then_some("letters")] {
                    @if !list.is_fine() { (problem(&list)) }
                    @else if !found.is_empty() {
                        div.bar.js { span data-unread-count {} button.plain type="button" data-read-all { "Mark all as read" } }
                        ul.letter-list data-list { @for email in &found { (letter(&at, &query, email, chosen)) } }
                    } @else { (nothing_found(&at, &query, next.is_some()).await) }
                    (older(&path, &query, next))
                }
            }
            section.message aria-label="Message" { (notice(&query)) (message) }
        }
    };
    let stream = at.place.path("/live");
    live_page(&at, Tab::Mailbox, "Mailbox", is_first.then_some(stream.as_str()), &main)
}

/// What is searched for: an address is looked up, words are looked for in what was found.
struct Wanted<'q> {
    asked: Vec<(&'static str, &'q str)>,
    words: Option<String>,
}

impl<'q> Wanted<'q> {
    fn read(query: &'q Fields) -> Self {
        let typed = query.get("q");
        let address = typed.filter(|typed| Address::parse(typed).is_ok());
        let words = typed.filter(|_| address.is_none()).map(str::to_lowercase);
        let limit = if words.is_some() { LOOKED_AT } else { SHOWN };
        let mut asked = vec![("captured", "true"), ("limit", limit)];
        asked.extend(address.map(|address| ("to", address)));
        asked.extend(query.get("cursor").map(|cursor| ("cursor", cursor)));
        Self { asked, words }
    }

    fn fits(&self, email: &Value) -> bool {
        let holds = |words: &String| {
            ["subject", "to", "from", "id"]
                .iter()
                .any(|name| text(email, name).to_lowercase().contains(words))
        };
        self.words.as_ref().is_none_or(holds)
    }
}

/// The page with another message, tab or nothing chosen, and the same search.
fn link(at: &At, query: &Fields, id: Option<&str>, tab: Option<&str>) -> String {
    let mut pairs = query.pick(&["q", "cursor"]);
    pairs.extend(id.map(|id| ("id", id)));
    pairs.extend(tab.map(|tab| ("tab", tab)));
    with_query(&at.place.path("/mailbox"), &pairs)
}

fn sender<'v>(at: &'v At, email: &'v Value) -> &'v str {
    let named = [text(email, "from"), text(&at.place.shown, "from")];
    named.into_iter().find(|from| !from.is_empty()).unwrap_or(NOBODY)
}

fn letter(at: &At, query: &Fields, email: &Value, chosen: Option<EmailId>) -> Markup {
    let (id, status) = (text(email, "id"), status_of(email));
    let is_chosen = chosen.is_some_and(|chosen| chosen.to_string() == id);
    // What stays captured is SENT; anything else is worth saying.
    let says_status = status != model::Status::Sent;
    html! {
        li data-key=(id) data-letter=(id) {
            a href=(link(at, query, Some(id), None)) data-swap aria-current=[is_chosen.then_some("true")] {
                span.who { (sender(at, email)) }
                span.when { @if let Some(time) = words::time(&email["createdAt"]) { (moment(time, at.visit.now)) } }
                span.what { (text(email, "subject")) }
                span.whom { "to " (text(email, "to")) }
                span.size { (words::size(email["sizeBytes"].as_u64().unwrap_or(0))) }
                @if says_status { span.how { (pill(status)) } }
            }
        }
    }
}

fn older(path: &str, query: &Fields, next: Option<&str>) -> Markup {
    let same = query.pick(&["q"]);
    html! {
        @if query.get("cursor").is_some() || next.is_some() {
            nav.pager aria-label="More" {
                @if query.get("cursor").is_some() { a.button href=(with_query(path, &same)) { "Newest" } }
                @if let Some(next) = next {
                    a.button rel="next" href=(with_query(path, &[same.as_slice(), &[("cursor", next)]].concat())) { "Older" }
                }
            }
        }
    }
}

async fn nothing_found(at: &At, query: &Fields, is_more: bool) -> Markup {
    let is_asked = query.get("q").is_some();
    html! {
        @if is_more {
            p.empty { "None among the newest. Look further back." }
        } @else if is_asked {
            div.empty { p { "No captured mail matches." } p { a href=(at.place.path("/mailbox")) { "Show all" } } }
        } @else {
            (lesson(at).await)
            p.soft { "What test keys send, what goes to " code { "posthaste.test" } ", and everything where the guard captures is kept here instead of being sent." }
        }
    }
}

fn nothing_chosen() -> Markup {
    html! {
        div.empty.pick { p { "Choose a message." } p.soft.js { kbd { "j" } " and " kbd { "k" } " move, " kbd { "Enter" } " opens." } }
    }
}

async fn message(at: &At, query: &Fields, id: EmailId) -> Markup {
    let path = format!("/v1/emails/{id}");
    let (email, providers) = tokio::join!(at.get(&path), at.visit.get("/v1/admin/providers"));
    let back =
        html! { p.crumbs { a href=(link(at, query, None, None)) data-swap data-back { "← All messages" } } };
    if !email.is_fine() {
        return html! { (back) (problem(&email)) };
    }
    let email = &email.body;
    let own = id.to_string();
    let tabs =
        content::shown(at, id, email, query.get("tab"), &|tab| link(at, query, Some(&own), Some(tab))).await;
    let list = |name: &str| -> String {
        let addresses = email[name].as_array().into_iter().flatten().filter_map(Value::as_str);
        addresses.collect::<Vec<_>>().join(", ")
    };
    let lines = [
        ("From", sender(at, email).to_owned()),
        ("To", text(email, "to").to_owned()),
        ("Cc", list("cc")),
        ("Bcc", list("bcc")),
        ("Reply to", text(email, "replyTo").to_owned()),
    ];
    html! {
        (back)
        div.headline data-opened=(id) {
            h2 { (text(email, "subject")) }
            div.actions {
                @if at.visit.is_operator() { (release_button(at, email, rows(&providers))) }
                a.button href=(at.place.path(&format!("/emails/{id}"))) { "History" }
            }
        }
        dl.lines {
            @for (name, value) in lines { @if !value.is_empty() { div { dt { (name) } dd { (value) } } } }
            div { dt { "Captured" } dd {
                @if let Some(time) = words::time(&email["createdAt"]) { (moment(time, at.visit.now)) ", " span.soft { (words::exact(time)) } }
                " " (pill(status_of(email)))
                @if email["captured"] != true { " " span.tag { "not in this mailbox" } }
            } }
        }
        (tabs)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_is_looked_up_and_words_are_looked_for() {
        let fields = |query: &str| Fields::parse(query.as_bytes());
        let query = fields("q=ana%40example.com");
        let by_address = Wanted::read(&query);
        assert!(by_address.asked.contains(&("to", "ana@example.com")) && by_address.words.is_none());
        let query = fields("q=Order&cursor=c.1");
        let by_words = Wanted::read(&query);
        assert_eq!(by_words.asked, [("captured", "true"), ("limit", LOOKED_AT), ("cursor", "c.1")]);
        let cases = [
            (json!({ "subject": "Your ORDER" }), true),
            (json!({ "subject": "Hello", "from": "orders@shop.example" }), true),
            (json!({ "subject": "Hello", "to": "ana@example.com" }), false),
        ];
        for (email, fits) in cases {
            assert_eq!(by_words.fits(&email), fits, "{email}");
        }
        let query = fields("");
        assert!(Wanted::read(&query).fits(&json!({})), "nothing asked fits everything");
    }
}
