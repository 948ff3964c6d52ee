//! The body of a send, read into a draft: every field checked for shape and size, every fault told at once.
//! Whether the email may be sent is decided by `gateway::accept`, not here.

use gateway::accept::text;
use std::time::Duration;

use gateway::accept::draft::{Draft, DraftTemplate, Fault, Note, OnSuppressed, When};
use gateway::accept::rules;
use gateway::templates::TemplateName;
use model::email::{COPIES_MAX, HTML_BYTES_MAX, TAGS_MAX, Wishes};
use model::{Content, Entity, Envelope, OnUnknown, Secret, Timestamp};
use serde_json::Value;

use super::{attachments, recipient, url};
use crate::form::{At, Faults, Form};
use crate::limits::{
    DELAY_MS_MAX, HEADER_VALUE_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, ID_LENGTH_MAX, NAME_LENGTH_MAX,
    PRIORITY_MAX, TAG_LENGTH_MAX, TEXT_BYTES_MAX, TTL_MS_MAX, TTL_MS_MIN, WORD_LENGTH_MAX,
};

/// Every field of a send.
pub const FIELDS: &[&str] = &[
    "to",
    "subject",
    "html",
    "text",
    "from",
    "cc",
    "bcc",
    "replyTo",
    "headers",
    "tags",
    "attachments",
    "recipient",
    "externalId",
    "entity",
    "priority",
    "delay",
    "scheduledAt",
    "ttl",
    "template",
    "variables",
    "callbackUrl",
    "provider",
    "retryPolicy",
    "onUnknown",
    "onSuppressed",
];

/// Reads one email.
pub fn read(body: Value, attachments_bytes_max: usize, now: Timestamp) -> Result<Draft, Vec<Fault>> {
    let faults = Faults::default();
    let draft = Form::open(body, At::Root, FIELDS, &faults)
        .and_then(|form| read_form(form, attachments_bytes_max, now));
    match (draft, faults.into_vec()) {
        (Some(draft), faults) if faults.is_empty() => Ok(draft),
        (_, faults) => Err(faults),
    }
}

fn read_form(mut form: Form<'_>, attachments_bytes_max: usize, now: Timestamp) -> Option<Draft> {
    if !form.has("to") {
        form.fault("to", "REQUIRED", "is required");
    }
    let mut notes = Vec::new();
    let to = form.address("to");
    // Also one that cannot be used: its own fault is enough.
    let has_template = form.has("template");
    let template = template(&mut form);
    let subject = subject(&mut form, has_template);
    let html = html(&mut form, has_template);
    let plain = plain_text(&mut form);
    let (from, reply_to) = (form.mailbox("from"), form.mailbox("replyTo"));
    let cc = form.addresses("cc", COPIES_MAX, "TOO_MANY_CC");
    let bcc = form.addresses("bcc", COPIES_MAX, "TOO_MANY_BCC");
    let headers = headers(&mut form);
    let tags = tags(&mut form, &mut notes);
    let attachments = attachments::read(&mut form, attachments_bytes_max, &mut notes);
    let recipient = recipient::read(&mut form, to.as_ref());
    let entity = entity(&mut form);
    let options = options(&mut form, now);
    form.finish();
    notes.extend(not_yet(&options.wishes));
    let (to, subject) = (to?, Secret::new(subject?));
    Some(Draft {
        envelope: Envelope { from, to, cc, bcc, reply_to, subject, headers, tags },
        recipient,
        external_id: options.external_id,
        entity,
        priority: options.priority,
        when: options.when,
        ttl: options.ttl,
        wishes: options.wishes,
        content: Content::Composed { html: html?, text: plain, attachments },
        template,
        on_suppressed: options.on_suppressed,
        notes,
    })
}

/// The fields that a send and an .eml share: how to treat the email.
pub const OPTION_FIELDS: &[&str] = &[
    "externalId",
    "priority",
    "delay",
    "scheduledAt",
    "ttl",
    "callbackUrl",
    "provider",
    "retryPolicy",
    "onUnknown",
    "onSuppressed",
];

pub struct Options {
    pub external_id: Option<String>,
    pub priority: Option<u8>,
    pub when: When,
    pub ttl: Option<Duration>,
    pub wishes: Wishes,
    pub on_suppressed: OnSuppressed,
}

pub fn options(form: &mut Form<'_>, now: Timestamp) -> Options {
    let priority = form.whole("priority", 1..=PRIORITY_MAX).and_then(|number| u8::try_from(number).ok());
    Options {
        external_id: own_text(form, "externalId", ID_LENGTH_MAX),
        priority,
        when: when(form, now),
        ttl: form.whole("ttl", TTL_MS_MIN..=TTL_MS_MAX).map(Duration::from_millis),
        wishes: Wishes {
            provider: line(form, "provider", WORD_LENGTH_MAX),
            retry_policy: line(form, "retryPolicy", WORD_LENGTH_MAX),
            on_unknown: form.choice("onUnknown", &["retry", "hold"], OnUnknown::parse),
            callback_url: url::read(form, "callbackUrl").map(Secret::new),
            is_alert: false,
        },
        on_suppressed: form
            .choice("onSuppressed", &["warn", "reject"], OnSuppressed::parse)
            .unwrap_or_default(),
    }
}

/// A text on one line; a fault and `None` otherwise.
pub fn line(form: &mut Form<'_>, name: &str, max: usize) -> Option<String> {
    form.text(name).filter(|value| passes(form, name, text::one_line(value, max)))
}

/// An id or a name of the company's own world.
pub fn own_text(form: &mut Form<'_>, name: &str, max: usize) -> Option<String> {
    form.text(name).filter(|value| passes(form, name, text::line_without_document(value, max)))
}

pub fn passes(form: &Form<'_>, name: &str, verdict: Result<(), text::Flaw>) -> bool {
    verdict.map_err(|(code, message)| form.fault(name, code, message)).is_ok()
}

/// The template that makes the email: its name, or `name@version`.
fn template(form: &mut Form<'_>) -> Option<DraftTemplate> {
    let name = line(form, "template", WORD_LENGTH_MAX);
    let variables = form.take("variables");
    if variables.as_ref().is_some_and(|variables| !variables.is_object()) {
        form.fault("variables", "INVALID_TYPE", "must be an object");
    }
    if name.is_none() && variables.is_some() {
        form.fault("variables", "CONFLICTING_FIELDS", "need a template");
    }
    let text = name?;
    if form.has("html") {
        form.fault("template", "CONFLICTING_FIELDS", "cannot be given together with html");
    }
    let (name, version) = match text.rsplit_once('@') {
        None => (text.as_str(), None),
        Some((name, version)) => match version.parse() {
            Ok(version) => (name, Some(version)),
            Err(_) => {
                let message = "must be the name of a template, or name@version with a number";
                form.fault("template", "INVALID_VALUE", message);
                return None;
            }
        },
    };
    let name = TemplateName { name: name.to_owned(), version };
    Some(DraftTemplate { name, variables: variables.unwrap_or_default() })
}

/// With a template it may be left to the template; then it is empty here.
fn subject(form: &mut Form<'_>, has_template: bool) -> Option<String> {
    if has_template && !form.has("subject") {
        return Some(String::new());
    }
    form.required_text("subject").filter(|subject| passes(form, "subject", text::subject(subject)))
}

/// With a template it is empty here.
fn html(form: &mut Form<'_>, has_template: bool) -> Option<String> {
    if !form.has("html") {
        if has_template {
            return Some(String::new());
        }
        form.fault("html", "REQUIRED", "is required unless a template is named");
    }
    let html = form.text("html")?;
    if html.len() > HTML_BYTES_MAX {
        form.push("html", |field| too_large(field, "HTML_TOO_LARGE", html.len(), HTML_BYTES_MAX));
        return None;
    }
    if html.trim().is_empty() {
        form.fault("html", "INVALID_HTML", "is empty");
        return None;
    }
    passes(form, "html", text::body(&html)).then_some(html)
}

fn plain_text(form: &mut Form<'_>) -> Option<String> {
    let plain = form.text("text")?;
    if plain.len() > TEXT_BYTES_MAX {
        form.push("text", |field| too_large(field, "TEXT_TOO_LARGE", plain.len(), TEXT_BYTES_MAX));
    }
    passes(form, "text", text::body(&plain)).then_some(plain)
}

fn too_large(field: String, code: &'static str, bytes: usize, max: usize) -> Fault {
    Fault::too_large(field, code, format!("has {bytes} bytes; at most {max} are allowed"))
}

fn headers(form: &mut Form<'_>) -> Vec<(String, Secret<String>)> {
    let members = match form.take("headers") {
        None => return Vec::new(),
        Some(Value::Object(members)) => members,
        Some(_) => {
            form.fault("headers", "INVALID_TYPE", "must be an object of names and texts");
            return Vec::new();
        }
    };
    let size: usize =
        members.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if members.len() > HEADERS_MAX || size > HEADERS_BYTES_MAX {
        let limit =
            format!("have too many lines; at most {HEADERS_MAX} and {HEADERS_BYTES_MAX} bytes are allowed");
        form.fault("headers", "TOO_MANY_HEADERS", limit);
        return Vec::new();
    }
    let root = At::Root;
    let at = At::Field(&root, "headers");
    let mut headers = Vec::with_capacity(members.len());
    for (name, value) in members {
        match header(&name, value) {
            Ok(value) => headers.push((name, value)),
            Err((code, message)) => {
                form.faults().push(Fault::wrong(At::Field(&at, &name).to_string(), code, message));
            }
        }
    }
    headers
}

fn header(name: &str, value: Value) -> Result<Secret<String>, text::Flaw> {
    let Value::String(value) = value else {
        return Err(("INVALID_TYPE", "must be a text".into()));
    };
    if value.len() > HEADER_VALUE_BYTES_MAX {
        return Err(("INVALID_HEADER", format!("has more than {HEADER_VALUE_BYTES_MAX} bytes")));
    }
    match message::check_header(name, &value) {
        // The name says what a bare number is: X-CPF.
        Ok(()) => text::no_document(&format!("{name}: {value}")).map(|()| Secret::new(value)),
        Err(message::InvalidHeader::Structural(_)) => {
            Err(("FORBIDDEN_HEADER", "is set by the gateway and cannot be given".into()))
        }
        Err(message::InvalidHeader::Name) => Err((
            "INVALID_HEADER",
            "is no header name: 1 to 76 printable ASCII characters without colon and blank".into(),
        )),
        Err(message::InvalidHeader::Value(_)) => {
            Err(("INVALID_HEADER", "holds a line break or a control character".into()))
        }
    }
}

/// What is asked for and kept, but not done by this version.
pub fn not_yet(wishes: &Wishes) -> Option<Note> {
    wishes.callback_url.as_ref().map(|_| Note {
        field: "callbackUrl".to_owned(),
        code: "NOT_AVAILABLE_YET",
        message: "is kept, but this version makes no callbacks yet".to_owned(),
    })
}

fn tags(form: &mut Form<'_>, notes: &mut Vec<Note>) -> Vec<String> {
    let mut tags: Vec<String> = Vec::new();
    for (index, tag) in form.texts("tags", TAGS_MAX, "TOO_MANY_TAGS") {
        match text::tag(&tag, TAG_LENGTH_MAX) {
            Err((code, message)) => form.item_fault("tags", index, code, message),
            Ok(()) if tags.contains(&tag) => notes.push(Note {
                field: format!("tags[{index}]"),
                code: "DUPLICATE_TAG",
                message: "is named before; it was left out here".into(),
            }),
            Ok(()) => tags.push(tag),
        }
    }
    tags
}

fn entity(form: &mut Form<'_>) -> Option<Entity> {
    let value = form.take("entity")?;
    let root = At::Root;
    let mut inner = Form::open(value, At::Field(&root, "entity"), &["id", "name"], form.faults())?;
    if !inner.has("id") {
        inner.fault("id", "REQUIRED", "is required");
    }
    let id = own_text(&mut inner, "id", ID_LENGTH_MAX);
    let name = own_text(&mut inner, "name", NAME_LENGTH_MAX);
    inner.finish();
    Some(Entity { id: id?, name })
}

fn when(form: &mut Form<'_>, now: Timestamp) -> When {
    let both = form.has("delay") && form.has("scheduledAt");
    let delay =
        form.whole("delay", 0..=DELAY_MS_MAX).map(|millis| When::After(Duration::from_millis(millis)));
    let moment = form.moment("scheduledAt", "INVALID_SCHEDULED_AT").map(When::At);
    if both {
        form.fault("scheduledAt", "CONFLICTING_FIELDS", "cannot be given together with delay");
    }
    let when = moment.or(delay).unwrap_or(When::Now);
    if let Err(fault) = rules::schedule(when, now) {
        form.faults().push(fault);
    }
    when
}

#[cfg(test)]
mod tests;
