//! The things that come and go, as JSON Schema. Limits are those of `limits`, words those of `model`.

mod aftermath;
mod given;

use model::{EventKind, Status};
use serde_json::{Value, json};

use super::{reference, send};
use crate::codes::{CODES, WARNINGS};
use crate::v1::admin::providers;

pub use given::nullable;

/// All schemas by name.
pub fn all() -> Value {
    let mut all = json!({
        "Send": given::send(),
        "Recipient": given::recipient(),
        "Entity": given::entity(),
        "Attachment": given::attachment(),
        "Batch": send::batch_schema(),
        "Replay": given::replay(),
        "NewCompany": given::new_company(),
        "CompanyPatch": given::company_patch(),
        "NewKey": given::new_key(),
        "Problem": problem(),
        "FieldError": field_error(),
        "Warning": warning(),
        "Receipt": receipt(),
        "BatchAnswer": batch_answer(),
        "BatchAccepted": batch_accepted(),
        "BatchRejected": batch_rejected(),
        "Email": email(),
        "EmailList": page("Email"),
        "Event": event(),
        "EventList": list("Event"),
        "Content": content(),
        "DeadLetter": dead_letter(),
        "DeadLetterList": page("DeadLetter"),
        "JobData": job_data(),
        "ReplayCount": replay_count(),
        "Company": company(),
        "CompanyList": list("Company"),
        "Key": key(false),
        "KeyList": list("Key"),
        "CreatedKey": key(true),
        "Provider": provider(),
        "ProviderList": list("Provider"),
        "Alive": object(json!({ "status": { "type": "string", "const": "ok" } }), &["status"]),
        "Ready": object(json!({
            "status": { "type": "string", "const": "ready" },
            "checks": { "type": "object", "additionalProperties": { "type": "string", "const": "ok" } },
        }), &["status", "checks"]),
    });
    // Not above: the macro's depth is bounded.
    all["Release"] = given::release();
    if let (Some(all), Some(more)) = (all.as_object_mut(), aftermath::all().as_object_mut()) {
        all.append(more);
    }
    all
}

/// An object with nothing in it that is not named.
pub fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// The same, with everything required that is named.
fn required_all(properties: Value) -> Value {
    let names: Vec<String> =
        properties.as_object().map(|named| named.keys().cloned().collect()).unwrap_or_default();
    let required: Vec<&str> = names.iter().map(String::as_str).collect();
    object(properties, &required)
}

pub fn id() -> Value {
    json!({ "type": "string", "format": "uuid" })
}

pub fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

pub fn text() -> Value {
    json!({ "type": "string" })
}

fn texts() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

fn whole() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn status() -> Value {
    let words: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
    json!({ "type": "string", "enum": words })
}

fn list(of: &str) -> Value {
    object(json!({ "data": { "type": "array", "items": reference(of) } }), &["data"])
}

fn page(of: &str) -> Value {
    let properties = json!({
        "data": { "type": "array", "items": reference(of) },
        "nextCursor": { "type": ["string", "null"], "description": "For the next page; null on the last one." },
    });
    object(properties, &["data", "nextCursor"])
}

fn codes(list: &[(&str, &str)]) -> Value {
    let words: Vec<&str> = list.iter().map(|(code, _)| *code).collect();
    json!({ "type": "string", "enum": words })
}

fn problem() -> Value {
    let properties = json!({
        "type": { "type": "string", "format": "uri-reference", "description": "Where the code is explained." },
        "title": text(),
        "status": { "type": "integer", "minimum": 400, "maximum": 599 },
        "code": codes(CODES),
        "detail": { "type": "string", "description": "One sentence for people." },
        "requestId": text(),
        "errors": { "type": "array", "minItems": 1, "items": reference("FieldError") },
    });
    object(properties, &["type", "title", "status", "code", "detail", "requestId"])
}

fn field_error() -> Value {
    let field =
        json!({ "type": "string", "description": "Such as recipient.email or attachments[0].content." });
    object(json!({ "field": field, "code": codes(CODES), "message": text() }), &["field", "code", "message"])
}

fn warning() -> Value {
    object(
        json!({ "field": text(), "code": codes(WARNINGS), "message": text() }),
        &["field", "code", "message"],
    )
}

fn receipt_properties() -> Value {
    json!({
        "outboxId": id(),
        "jobId": { "type": "string", "format": "uuid", "description": "The same as outboxId." },
        "requestId": text(),
        "status": { "type": "string", "enum": ["ENQUEUED", "ACCEPTED"] },
        "receivedAt": time(),
        "recipient": object(json!({ "externalId": text() }), &[]),
        "warnings": { "type": "array", "minItems": 1, "items": reference("Warning") },
    })
}

const RECEIPT_REQUIRED: [&str; 6] = ["outboxId", "jobId", "requestId", "status", "receivedAt", "recipient"];

fn receipt() -> Value {
    object(receipt_properties(), &RECEIPT_REQUIRED)
}

fn batch_answer() -> Value {
    let results = json!({
        "type": "array",
        "items": { "oneOf": [reference("BatchAccepted"), reference("BatchRejected")] },
    });
    let properties =
        json!({ "accepted": whole(), "rejected": whole(), "requestId": text(), "results": results });
    object(properties, &["accepted", "rejected", "requestId", "results"])
}

fn batch_accepted() -> Value {
    let mut properties = receipt_properties();
    properties["index"] = whole();
    object(properties, &[&RECEIPT_REQUIRED[..], &["index"]].concat())
}

fn batch_rejected() -> Value {
    let error = json!({
        "status": { "type": "integer", "enum": [400, 413, 422, 429] },
        "code": codes(CODES),
        "detail": text(),
        "errors": { "type": "array", "items": reference("FieldError") },
    });
    let error = object(error, &["status", "code", "detail", "errors"]);
    object(json!({ "index": whole(), "error": error }), &["index", "error"])
}

fn email() -> Value {
    let properties = json!({
        "id": id(),
        "status": status(),
        "mode": { "type": "string", "enum": ["live", "test"] },
        "requestId": text(),
        "from": { "type": "string", "description": "As it was given, or the company's default when it was accepted. Absent when there was none: mail that is captured then comes from no-reply@posthaste.test." },
        "to": text(),
        "cc": texts(),
        "bcc": texts(),
        "recipients": aftermath::recipient_states(),
        "replyTo": text(),
        "subject": text(),
        "tags": texts(),
        "recipientExternalId": text(),
        "externalId": text(),
        "entity": object(json!({ "id": text(), "name": text() }), &["id"]),
        "priority": { "type": "integer", "minimum": 1, "maximum": 10 },
        "attempts": whole(),
        "provider": { "type": "string", "description": "The provider of the last attempt." },
        "captured": { "type": "boolean", "const": true, "description": "The provider keeps mail instead of sending it; absent otherwise." },
        "copyOf": object(json!({
            "id": id(),
            "purpose": { "type": "string", "enum": ["resend", "release"] },
        }), &["id", "purpose"]),
        "providerMessageId": text(),
        "sesMessageId": { "type": "string", "description": "The same, when the provider is SES." },
        "lastFailureCode": text(),
        "lastFailureCategory": text(),
        "lastFailureReason": text(),
        "lastFailureAt": time(),
        "outcomeUnknown": { "type": "boolean", "description": "A provider may have taken it without our knowing." },
        "sizeBytes": whole(),
        "createdAt": time(),
        "scheduledAt": time(),
        "dueAt": time(),
        "expiresAt": time(),
        "sentAt": time(),
        "deliveredAt": time(),
        "failedAt": time(),
    });
    let required = [
        "id",
        "status",
        "mode",
        "requestId",
        "to",
        "cc",
        "bcc",
        "subject",
        "tags",
        "priority",
        "attempts",
        "outcomeUnknown",
        "sizeBytes",
        "createdAt",
        "expiresAt",
    ];
    object(properties, &required)
}

fn event() -> Value {
    let kinds: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
    let properties = json!({
        "type": { "type": "string", "enum": kinds },
        "createdAt": time(),
        "metadata": { "type": "object" },
    });
    object(properties, &["type", "createdAt", "metadata"])
}

fn content() -> Value {
    let attachment = object(
        json!({ "filename": text(), "contentType": text(), "contentId": text(), "sizeBytes": whole() }),
        &["filename", "contentType", "sizeBytes"],
    );
    let properties = json!({
        "id": id(),
        "kind": { "type": "string", "enum": ["composed", "raw"] },
        "sizeBytes": whole(),
        "html": { "type": "string", "description": "Absent when an .eml was handed in that has none." },
        "text": text(),
        "attachments": { "type": "array", "items": attachment },
    });
    object(properties, &["id", "kind", "sizeBytes", "attachments"])
}

fn dead_letter() -> Value {
    let properties = json!({
        "jobId": id(),
        "outboxId": id(),
        "companyId": id(),
        "originalData": reference("JobData"),
        "failedAttempts": whole(),
        "lastFailureReason": text(),
        "lastFailureCode": text(),
        "lastFailureCategory": text(),
        "lastFailureTimestamp": time(),
        "outcomeUnknown": { "type": "boolean" },
        "enqueuedAt": time(),
        "movedToDLQAt": time(),
        "ttl": { "type": "integer", "minimum": 0, "description": "Milliseconds for which it is kept." },
    });
    let required = [
        "jobId",
        "outboxId",
        "companyId",
        "originalData",
        "failedAttempts",
        "outcomeUnknown",
        "enqueuedAt",
        "movedToDLQAt",
        "ttl",
    ];
    object(properties, &required)
}

fn job_data() -> Value {
    let recipient = json!({
        "recipientId": id(),
        "externalId": text(),
        "cpfCnpjHash": { "type": "string", "description": "An HMAC under the server's key, not the plain hash." },
        "razaoSocial": text(),
        "nome": text(),
        "email": text(),
    });
    let properties = json!({
        "outboxId": id(),
        "companyId": id(),
        "requestId": text(),
        "to": text(),
        "cc": texts(),
        "bcc": texts(),
        "subject": text(),
        "htmlRef": { "type": "string", "description": "A reference to the content, never the content." },
        "replyTo": text(),
        "headers": { "type": "object", "additionalProperties": text() },
        "tags": texts(),
        "recipient": object(recipient, &["email"]),
        "attempt": whole(),
        "enqueuedAt": time(),
    });
    let required = [
        "outboxId",
        "companyId",
        "requestId",
        "to",
        "cc",
        "bcc",
        "subject",
        "htmlRef",
        "headers",
        "tags",
        "attempt",
        "enqueuedAt",
    ];
    object(properties, &required)
}

fn replay_count() -> Value {
    object(json!({ "matched": whole(), "replayed": whole() }), &["matched", "replayed"])
}

fn company() -> Value {
    let mut properties = json!({
        "id": id(),
        "name": text(),
        "createdAt": time(),
        "disabled": { "type": "boolean" },
        "disabledAt": nullable(time()),
        "paused": aftermath::pause(),
        "from": nullable(text()),
        "senders": texts(),
        "route": nullable(texts()),
        "weight": whole(),
    });
    for name in ["concurrencyMax", "ratePerSec", "dailyLimit"] {
        properties[name] = nullable(whole());
    }
    for name in ["retryPolicy", "onUnknown", "adminEmail"] {
        properties[name] = nullable(text());
    }
    required_all(properties)
}

/// `with_secret`: the answer that shows the key itself, once.
fn provider() -> Value {
    let number = || json!({ "type": "number" });
    let breaker = object(
        json!({
            "cause": { "type": "string", "enum": ["THROTTLED", "QUOTA_USED_UP", "PAUSED", "OUTAGE"] },
            "code": text(),
            "since": time(),
            "probes": whole(),
            "nextProbeAt": time(),
        }),
        &["cause", "code", "since", "probes", "nextProbeAt"],
    );
    let account = object(
        json!({
            "ratePerSec": nullable(number()),
            "max24Hours": nullable(number()),
            "sent24Hours": nullable(number()),
            "readAt": time(),
        }),
        &["ratePerSec", "max24Hours", "sent24Hours", "readAt"],
    );
    object(
        json!({
            "name": text(),
            "kind": text(),
            "status": {
                "type": "string", "enum": providers::STATUSES,
                "description": "SLOWED: it was called too fast and the rate climbs back. RESTING: it is only probed.",
            },
            "ratePerSec": nullable(whole()),
            "configuredRatePerSec": nullable(whole()),
            "breaker": nullable(breaker),
            "account": nullable(account),
            "lastReportAt": nullable(time()),
        }),
        &[
            "name",
            "kind",
            "status",
            "ratePerSec",
            "configuredRatePerSec",
            "breaker",
            "account",
            "lastReportAt",
        ],
    )
}

fn key(with_secret: bool) -> Value {
    let mut properties = json!({
        "id": id(),
        "mode": { "type": "string", "enum": ["live", "test"] },
        "scopes": { "type": "array", "items": { "type": "string", "enum": ["send", "read", "admin"] } },
        "label": nullable(text()),
        "prefix": { "type": "string", "description": "The key's first characters, to recognise it by." },
        "createdAt": time(),
        "expiresAt": nullable(time()),
        "revokedAt": nullable(time()),
        "lastUsedAt": nullable(time()),
    });
    if with_secret {
        let pattern = "^(live|test)_[A-Za-z0-9_-]{43}$";
        properties["key"] =
            json!({ "type": "string", "pattern": pattern, "description": "Shown here and nowhere else." });
    }
    required_all(properties)
}
