//! What callers send: bodies, with every limit that is checked.

use model::address::ADDRESS_LENGTH_MAX;
use model::email::{COPIES_MAX, HTML_BYTES_MAX, SUBJECT_LENGTH_MAX, TAGS_MAX};
use serde_json::{Value, json};

use super::{id, object, text, time};
use crate::limits as limit;
use crate::openapi::dead_letters::category;
use crate::openapi::reference;
use crate::openapi::send::ON_SUPPRESSED;

/// No control characters, line breaks or marks that turn the reading direction around.
const ONE_LINE: &str =
    "^[^\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ufffe\\uffff]+$";

pub fn send() -> Value {
    let mut properties = json!({
        "to": address("Whom it goes to: a plain address."),
        "subject": nullable(one_line(SUBJECT_LENGTH_MAX, "1 to 150 characters (code points) on one line, no encoded words. Required unless a template is named; with one, a subject given here wins over the template's.")),
        "html": { "type": ["string", "null"], "minLength": 1, "maxLength": HTML_BYTES_MAX,
            "description": format!("Required unless a template is named; at most {HTML_BYTES_MAX} bytes, without scripts.") },
        "text": { "type": ["string", "null"], "maxLength": limit::TEXT_BYTES_MAX, "description": "The alternative for readers of plain text." },
        "from": nullable(text_of("An address, or Name <address>; else the company's default. Only senders the company may use.")),
        "cc": copies(),
        "bcc": copies(),
        "replyTo": nullable(text_of("An address, or Name <address>.")),
        "headers": { "type": ["object", "null"], "maxProperties": limit::HEADERS_MAX,
            "propertyNames": { "pattern": "^[!-9;-~]{1,76}$" },
            "additionalProperties": { "type": "string", "maxLength": limit::HEADER_VALUE_BYTES_MAX, "pattern": "^[^\\u0000-\\u0008\\u000a-\\u001f\\u007f-\\u009f]*$" },
            "description": "Further headers; those that say who, when and what are set by the gateway and refused." },
        "tags": { "type": ["array", "null"], "maxItems": TAGS_MAX,
            "items": { "type": "string", "minLength": 1, "maxLength": limit::TAG_LENGTH_MAX, "pattern": "^[A-Za-z0-9_.:-]([A-Za-z0-9_.: -]*[A-Za-z0-9_.:-])?$" },
            "description": "Letters, digits, blanks inside and _ . : -" },
        "attachments": { "type": ["array", "null"], "maxItems": limit::ATTACHMENTS_MAX, "items": reference("Attachment"),
            "description": format!("At most {} bytes in all, decoded.", limit::ATTACHMENTS_BYTES_MAX) },
        "recipient": nullable_reference("Recipient"),
        "externalId": own_id("Your own id of the email; never a document number."),
        "entity": nullable_reference("Entity"),
    });
    if let (Some(all), Some(options)) = (properties.as_object_mut(), options().as_object_mut()) {
        all.append(options);
    }
    let mut schema = object(properties, &["to"]);
    let given = |name: &str| json!({ "required": [name], "properties": { name: { "type": "string" } } });
    schema["anyOf"] = json!([given("template"), { "allOf": [given("subject"), given("html")] }]);
    schema
}

/// How an email wants to be treated.
fn options() -> Value {
    let whole = |least: u64, most: u64, description: &str| json!({ "type": ["integer", "null"], "minimum": least, "maximum": most, "description": description });
    json!({
        "priority": whole(1, limit::PRIORITY_MAX, "1 goes first, 10 last; 5 unless given."),
        "delay": whole(0, limit::DELAY_MS_MAX, "Milliseconds to wait before sending."),
        "scheduledAt": { "type": ["string", "null"], "format": "date-time", "description": "When to send, at most 30 days ahead; a time past means now. Excludes delay." },
        "ttl": whole(limit::TTL_MS_MIN, limit::TTL_MS_MAX, "Milliseconds from its time to send after which it is no longer sent; 24 hours unless the operator says otherwise."),
        "template": nullable(word("A template of the company's in place of html: its name for the newest version, or name@version for that one. Rendered now, so that a later change of the template does not reach this email.")),
        "variables": { "type": ["object", "null"], "description": "For the template. Those it needs and does not get are all named (MISSING_VARIABLE)." },
        "callbackUrl": { "type": ["string", "null"], "format": "uri", "maxLength": limit::URL_LENGTH_MAX, "pattern": "^[hH][tT][tT][pP][sS]?://[^@\\s]+$", "description": "Where to report what became of it. Kept, but this version makes no callbacks yet; the answer warns of it." },
        "provider": nullable(word("The provider to use, else the company's route.")),
        "retryPolicy": nullable(word("The retry policy to use, such as fast or patient.")),
        "onUnknown": { "type": ["string", "null"], "enum": ["retry", "hold", null], "description": "What to do when a provider may or may not have taken it." },
        "onSuppressed": { "type": ["string", "null"], "enum": ["warn", "reject", null], "description": ON_SUPPRESSED },
    })
}

pub fn recipient() -> Value {
    let properties = json!({
        "recipientId": nullable(id()),
        "externalId": own_id("Your own id of the person; never a document number."),
        "cpfCnpj": { "type": ["string", "null"], "minLength": 11, "maxLength": 18, "description": "Stored encrypted, shown nowhere." },
        "cpfCnpjHash": { "type": ["string", "null"], "pattern": "^[0-9A-Fa-f]{64}$", "description": "SHA-256 of the number without punctuation." },
        "razaoSocial": nullable(one_line(limit::NAME_LENGTH_MAX, "The name of a company.")),
        "nome": nullable(one_line(limit::NAME_LENGTH_MAX, "The name of a person.")),
        "email": nullable(address("If given, the same address as to.")),
    });
    let mut schema = object(properties, &[]);
    schema["description"] =
        Value::from("Needs at least one of recipientId, externalId, cpfCnpj and cpfCnpjHash.");
    schema["anyOf"] = ["recipientId", "externalId", "cpfCnpj", "cpfCnpjHash"]
        .map(|name| json!({ "required": [name], "properties": { name: { "type": "string" } } }))
        .to_vec()
        .into();
    schema
}

pub fn entity() -> Value {
    let properties = json!({
        "id": one_line(limit::ID_LENGTH_MAX, "Your own id of what the email is about."),
        "name": nullable(one_line(limit::NAME_LENGTH_MAX, "Its name.")),
    });
    object(properties, &["id"])
}

pub fn attachment() -> Value {
    let properties = json!({
        "filename": { "type": "string", "minLength": 1, "maxLength": limit::FILENAME_LENGTH_MAX, "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ufffe\\uffff/\\\\]+$" },
        "contentType": { "type": ["string", "null"], "maxLength": limit::CONTENT_TYPE_LENGTH_MAX, "pattern": "^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+$",
            "description": "Found out from the file when absent, and corrected (with a warning) when its bytes prove it wrong." },
        "content": { "type": "string", "contentEncoding": "base64", "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$" },
        "contentId": { "type": ["string", "null"], "minLength": 1, "maxLength": limit::CONTENT_ID_LENGTH_MAX, "pattern": "^[A-Za-z0-9._@+-]+$",
            "description": "For an image that the html shows by cid:." },
    });
    object(properties, &["filename", "content"])
}

pub fn release() -> Value {
    let properties = json!({
        "provider": nullable(word("A provider that sends; the first of the company's route unless given.")),
        "to": nullable(address("Whom it goes to; its own recipient unless given.")),
    });
    object(properties, &[])
}

pub fn replay() -> Value {
    let filter = json!({
        "code": nullable(one_line(limit::ID_LENGTH_MAX, "The code of the last failure.")),
        "category": nullable_enum(category()),
        "to": nullable(address("The address it goes to.")),
        "recipient": nullable(one_line(limit::ID_LENGTH_MAX, "The recipient's externalId or id.")),
        "since": nullable(time()),
        "until": nullable(time()),
    });
    let ids = json!({ "type": "array", "maxItems": limit::REPLAY_IDS_MAX, "items": id() });
    let dry_run = json!({ "type": ["boolean", "null"], "description": "Only count." });
    let most = json!({
        "type": ["integer", "null"], "minimum": 1, "maximum": limit::REPLAY_LIMIT_MAX,
        "description": "No more than these at once.",
    });
    let absent = json!({ "type": "null" });
    let by_ids = json!({ "ids": ids, "filter": absent, "dryRun": dry_run, "limit": most });
    let by_filter = json!({ "filter": object(filter, &[]), "ids": absent, "dryRun": dry_run, "limit": most });
    let (by_ids, by_filter) = (object(by_ids, &["ids"]), object(by_filter, &["filter"]));
    json!({ "oneOf": [by_ids, by_filter] })
}

fn company_properties() -> Value {
    let whole = |most: u64, description: &str| json!({ "type": ["integer", "null"], "minimum": 1, "maximum": most, "description": description });
    json!({
        "name": one_line(limit::COMPANY_NAME_LENGTH_MAX, "Its name, which no other company has."),
        "disabled": { "type": ["boolean", "null"], "description": "Refuses its keys and lets its emails wait." },
        "from": nullable(text_of("The sender of emails that name none: an address, or Name <address>.")),
        "senders": { "type": ["array", "null"], "maxItems": limit::SENDERS_MAX, "items": text(), "description": "Whom else it may send as: addresses and whole domains (@example.com)." },
        "route": { "type": ["array", "null"], "minItems": 1, "maxItems": limit::ROUTE_MAX, "items": { "type": "string", "minLength": 1 }, "description": "Names of providers, in order." },
        "weight": whole(limit::WEIGHT_MAX, "Its share of the workers against other companies."),
        "concurrencyMax": whole(limit::CONCURRENCY_MAX, "Its emails in flight at once."),
        "ratePerSec": whole(limit::RATE_PER_SEC_MAX, "Its emails started per second."),
        "dailyLimit": whole(limit::DAILY_LIMIT_MAX, "Its emails handed in per day (UTC), counted from midnight whenever it was set."),
        "retryPolicy": nullable(word("The retry policy of emails that name none.")),
        "onUnknown": { "type": ["string", "null"], "enum": ["retry", "hold", null] },
        "adminEmail": nullable(address("Where alerts go.")),
    })
}

pub fn new_company() -> Value {
    object(company_properties(), &["name"])
}

pub fn company_patch() -> Value {
    let mut properties = company_properties();
    properties["name"] = nullable(properties["name"].take());
    object(properties, &[])
}

pub fn new_key() -> Value {
    let scopes = json!({
        "type": ["array", "null"], "minItems": 1, "maxItems": 3,
        "items": { "type": "string", "enum": ["send", "read", "admin"] },
        "description": "send and read unless given; admin may do everything of its company.",
    });
    let properties = json!({
        "mode": { "type": ["string", "null"], "enum": ["live", "test", null], "description": "live unless given; test keys never reach a provider." },
        "scopes": scopes,
        "label": nullable(one_line(limit::LABEL_LENGTH_MAX, "What it is for.")),
        "expiresAt": { "type": ["string", "null"], "format": "date-time", "description": "In the future." },
    });
    object(properties, &[])
}

/// The same schema, or `null`.
pub fn nullable(mut schema: Value) -> Value {
    let kind = schema["type"].take();
    schema["type"] = json!([kind, "null"]);
    schema
}

fn nullable_enum(schema: Value) -> Value {
    let mut schema = nullable(schema);
    if let Some(words) = schema["enum"].as_array_mut() {
        words.push(Value::Null);
    }
    schema
}

fn nullable_reference(name: &str) -> Value {
    json!({ "oneOf": [reference(name), { "type": "null" }] })
}

pub fn address(description: &str) -> Value {
    json!({ "type": "string", "format": "email", "maxLength": ADDRESS_LENGTH_MAX, "description": description })
}

fn copies() -> Value {
    json!({
        "type": ["array", "null"], "maxItems": COPIES_MAX, "items": address("A plain address."),
        "description": "At most 5; an address that is named before is left out, with a warning.",
    })
}

pub fn one_line(max: usize, description: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": max, "pattern": ONE_LINE, "description": description })
}

fn own_id(description: &str) -> Value {
    nullable(one_line(limit::ID_LENGTH_MAX, description))
}

fn word(description: &str) -> Value {
    one_line(limit::WORD_LENGTH_MAX, description)
}

fn text_of(description: &str) -> Value {
    json!({ "type": "string", "minLength": 3, "description": description })
}
