//! What the events of all providers have in common: ids, addresses, moments, bounces, and notes for the history that
//! hold nobody's address. Which field holds what is known to `resend.rs` and `ses.rs` alone.

use std::net::{IpAddr, SocketAddr};

use model::privacy::mask_text;
use model::{Address, Bounce, EmailId, Mailbox, ReportKind, Timestamp};
use serde_json::{Map, Value};
use url::Url;

use crate::Unreadable;

const ID_TAG: &str = "posthaste_id";
const ID_HEADER: &str = "X-Posthaste-Id";
/// Room for any provider's id and small enough for a key in every store.
const ID_CHARS_MAX: usize = 200;
/// No provider takes an email for more people than this.
const RECIPIENTS_MAX: usize = 100;
const WORD_CHARS_MAX: usize = 100;
const TEXT_CHARS_MAX: usize = 300;

/// The id of a report, with its source in front so that two providers cannot meet.
pub fn report_id(source: &str, id: &str) -> Result<String, Unreadable> {
    if !is_id(id) {
        return Err(Unreadable("its id is empty, too long or holds control characters"));
    }
    Ok(format!("{source}:{id}"))
}

/// A provider's id of an email, if it can be one.
pub fn provider_message_id(id: Option<&str>) -> Option<String> {
    id.filter(|id| is_id(id)).map(str::to_owned)
}

fn is_id(id: &str) -> bool {
    !id.is_empty() && id.chars().count() <= ID_CHARS_MAX && !id.chars().any(char::is_control)
}

/// Our id of the email: from its tags, else from its headers.
pub fn email_id(tags: Option<&Value>, headers: Option<&Value>) -> Option<EmailId> {
    named_values(tags, ID_TAG)
        .into_iter()
        .chain(named_values(headers, ID_HEADER))
        .find_map(|value| value.trim().parse().ok())
}

/// The values of a name in any of the forms providers use: an object of texts, an object of lists, a list of pairs.
fn named_values<'a>(pairs: Option<&'a Value>, wanted: &str) -> Vec<&'a str> {
    let is_wanted = |name: &str| name.eq_ignore_ascii_case(wanted);
    match pairs {
        Some(Value::Object(object)) => object
            .iter()
            .filter(|(name, _)| is_wanted(name))
            .flat_map(|(_, value)| texts(Some(value)))
            .collect(),
        Some(Value::Array(list)) => list
            .iter()
            .filter(|pair| pair.get("name").and_then(Value::as_str).is_some_and(is_wanted))
            .flat_map(|pair| texts(pair.get("value")))
            .collect(),
        _ => Vec::new(),
    }
}

/// A text, or every text of a list.
pub fn texts(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

pub fn text<'a>(event: &'a Value, pointer: &str) -> Option<&'a str> {
    event.pointer(pointer).and_then(Value::as_str)
}

/// The addresses that can be read; the others are passed over.
pub fn addresses<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Address> {
    texts
        .into_iter()
        .take(RECIPIENTS_MAX)
        .filter_map(|text| Mailbox::parse(text).ok())
        .map(|mailbox| mailbox.address)
        .collect()
}

/// The first moment that can be read, else now.
pub fn moment(candidates: &[Option<&str>], now: Timestamp) -> Timestamp {
    candidates.iter().flatten().find_map(|text| Timestamp::parse(text)).unwrap_or(now)
}

/// What a bounce says of the address. Resend passes on the words of SES. An email that was refused for its content says
/// nothing of the address, however final the refusal was.
pub fn bounce(kind: Option<&str>, sub_kind: Option<&str>) -> Bounce {
    const FOR_CONTENT: [&str; 3] = ["ContentRejected", "AttachmentRejected", "MessageTooLarge"];
    let sub_kind = sub_kind.unwrap_or_default();
    match kind {
        Some("Permanent") if FOR_CONTENT.contains(&sub_kind) => Bounce::Unclear,
        Some("Permanent") => Bounce::Hard,
        Some("Transient") => Bounce::Soft,
        _ => Bounce::Unclear,
    }
}

/// Whether the provider did not even try, since the address is on a list of its own.
pub fn is_suppression(sub_kind: Option<&str>) -> bool {
    matches!(sub_kind, Some("Suppressed" | "OnAccountSuppressionList"))
}

/// What a report may say when it does not say of whom. A report without names is about everybody the email went to, and
/// nobody may be put on a suppression list for somebody else's bounce.
pub fn without_names(kind: ReportKind) -> ReportKind {
    match kind {
        ReportKind::Bounced(Bounce::Hard) => ReportKind::Bounced(Bounce::Unclear),
        ReportKind::Complained => ReportKind::Other,
        other => other,
    }
}

/// What else is known, for the history. Every text is bounded, and addresses inside are masked.
#[derive(Default)]
pub struct Notes(Map<String, Value>);

impl Notes {
    pub fn flag(&mut self, name: &str) {
        self.0.insert(name.into(), Value::Bool(true));
    }

    /// One of our own codes.
    pub fn code(&mut self, code: &str) {
        self.0.insert("errorCode".into(), code.into());
    }

    /// A word from a provider's list, such as the type of a bounce.
    pub fn word(&mut self, name: &str, word: Option<&str>) {
        self.put(name, word.map(|word| bounded(&mask_ips(&mask_text(word)), WORD_CHARS_MAX)));
    }

    /// A server's own words. They often quote addresses, also those of machines.
    pub fn words(&mut self, name: &str, words: Option<&str>) {
        self.put(name, words.map(|words| bounded(&mask_ips(&mask_text(words)), TEXT_CHARS_MAX)));
    }

    /// The reader's program. Its version numbers look like the addresses of machines, so those are not masked here.
    pub fn user_agent(&mut self, text: Option<&str>) {
        self.put("userAgent", text.map(|text| bounded(&mask_text(text), TEXT_CHARS_MAX)));
    }

    /// Where a click went, without what could tell who clicked.
    pub fn link(&mut self, link: Option<&str>) {
        self.put("link", link.and_then(bare_link));
    }

    pub fn into_map(self) -> Map<String, Value> {
        self.0
    }

    fn put(&mut self, name: &str, text: Option<String>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.0.insert(name.into(), Value::String(text));
        }
    }
}

/// Cut after masking: half an address might not look like one any more.
fn bounded(text: &str, chars_max: usize) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(chars_max)
        .collect::<String>()
        .trim()
        .to_owned()
}

fn mask_ips(text: &str) -> String {
    let part_of_ip = |c: char| c.is_ascii_hexdigit() || c == '.' || c == ':';
    let is_ip = |word: &str| word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok();
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word_end = rest.find(|c| !part_of_ip(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(word_end);
        // A sentence may end right behind an address.
        let trimmed = word.trim_end_matches(['.', ':']);
        if is_ip(word) {
            masked.push_str("***");
        } else if is_ip(trimmed) {
            masked.push_str("***");
            masked.push_str(&word[trimmed.len()..]);
        } else {
            masked.push_str(word);
        }
        let gap_end = after.find(part_of_ip).unwrap_or(after.len());
        let (gap, next) = after.split_at(gap_end);
        masked.push_str(gap);
        rest = next;
    }
    masked
}

/// Scheme, host and path. The query and fragment are where mailers put who is reading; parts of the path with an @ are
/// hidden for the same reason. Links that do not lead to a named host are left out.
fn bare_link(link: &str) -> Option<String> {
    let url = Url::parse(link).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    let host = url.domain()?;
    let names_somebody = |part: &str| {
        let part = part.to_ascii_lowercase();
        // Written once or twice in escapes.
        ["@", "%40", "%2540"].iter().any(|at| part.contains(at))
    };
    let path: Vec<&str> =
        url.path().split('/').map(|part| if names_somebody(part) { "***" } else { part }).collect();
    Some(bounded(&format!("{}://{host}{}", url.scheme(), path.join("/")), TEXT_CHARS_MAX))
}
