//! Following emails, described.

use model::Status;
use serde_json::{Value, json};

use super::{Operation, path_id, query};
use crate::limits::{CURSOR_LENGTH_MAX, ID_LENGTH_MAX, PAGE_DEFAULT, PAGE_MAX};

const TAG: &str = "Emails";
const MISSING: &str = "There is no such email, or it belongs to another company (EMAIL_NOT_FOUND).";

pub fn list() -> Operation {
    let statuses: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
    Operation::new(
        "listEmails",
        TAG,
        "List emails",
        "Newest first. Filters are joined by and. A page may be short and still have a next one: go on while nextCursor is not null.",
    )
    .parameter(query("status", json!({ "type": "string", "enum": statuses }), "Where the email is."))
    .parameter(query("to", json!({ "type": "string", "format": "email" }), "The address it goes to."))
    .parameter(query("tag", text(), "A tag it has."))
    .parameter(query("entity", text(), "The id of the entity it is about."))
    .parameter(query("externalId", text(), "Your own id of the email."))
    .parameter(query("recipient", text(), "The recipient's externalId or id."))
    .parameter(query("code", text(), "The code of its last failure."))
    .parameter(query("since", time(), "Accepted at or after."))
    .parameter(query("until", time(), "Accepted before."))
    .parameter(cursor())
    .parameter(limit())
    .problem(400, "A parameter is wrong or unknown.")
    .answer(200, "A page of emails", "EmailList", &json!({ "data": [email_example()], "nextCursor": null }))
}

pub fn get() -> Operation {
    Operation::new(
        "getEmail",
        TAG,
        "Read one email",
        "Where it is and what is known of it, without its content. Of an email to several, recipients tells how it went \
         with each.",
    )
    .parameter(email_id())
    .problem(404, MISSING)
    .answer(200, "The email", "Email", &email_example())
}

pub fn events() -> Operation {
    let example = json!({ "data": [
        { "type": "ENQUEUED", "createdAt": "2025-01-19T19:30:00.123Z", "metadata": {} },
        { "type": "RECEIVED", "createdAt": "2025-01-19T19:30:00.130Z", "metadata": { "attempt": 1 } },
    ] });
    Operation::new(
        "getEmailEvents",
        TAG,
        "Read an email's history",
        "Everything that happened to it, oldest first.",
    )
    .parameter(email_id())
    .problem(404, MISSING)
    .answer(200, "The history", "EventList", &example)
}

pub fn content() -> Operation {
    let example = json!({
        "id": "0194812c-9a7b-7cc3-9f0e-3c5d2a1b4e6f",
        "kind": "composed",
        "sizeBytes": 63,
        "html": "<h1>Pedido #12345</h1><p>Obrigado pela compra!</p>",
        "attachments": [],
    });
    let content = json!({
        "application/json": { "schema": super::reference("Content"), "example": example },
        "message/rfc822": { "schema": { "type": "string", "description": "The message itself." } },
    });
    let format = json!({ "type": "string", "enum": ["json", "eml"] });
    Operation::new(
        "getEmailContent",
        TAG,
        "Read what was sent",
        "As JSON, or the message itself with format=eml or Accept: message/rfc822. The .eml never shows bcc.",
    )
    .parameter(email_id())
    .parameter(query("format", format, "json unless given; counts more than the Accept header."))
    .problem(400, "The parameter is wrong or unknown.")
    .problem(404, MISSING)
    .problem(404, "The content is no longer kept (CONTENT_GONE).")
    .answer_of(200, "The content", content)
}

pub fn cancel() -> Operation {
    Operation::new(
        "cancelEmail",
        TAG,
        "Withdraw an email",
        "Works until a provider is called. An email that is CANCELLED already is answered the same way.",
    )
    .parameter(email_id())
    .problem(404, MISSING)
    .problem(409, "It is too late (TOO_LATE); detail says why.")
    .answer(200, "The email, now CANCELLED", "Email", &with_status(email_example(), "CANCELLED"))
}

pub fn retry() -> Operation {
    Operation::new(
        "retryEmail",
        TAG,
        "Make a waiting email due now",
        "For one that waits for a retry, for its time, or is held because its outcome is not known.",
    )
    .parameter(email_id())
    .problem(404, MISSING)
    .problem(409, "Nothing waits (NOT_WAITING); a FAILED email is replayed instead.")
    .answer(200, "The email, due now", "Email", &with_status(email_example(), "ENQUEUED"))
}

fn email_id() -> Value {
    path_id("id", "The email's id: outboxId and jobId of the receipt.")
}

pub fn text() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": ID_LENGTH_MAX })
}

pub fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

pub fn cursor() -> Value {
    let schema = json!({ "type": "string", "minLength": 1, "maxLength": CURSOR_LENGTH_MAX });
    query("cursor", schema, "nextCursor of the page before, with the same filters.")
}

pub fn limit() -> Value {
    let schema = json!({ "type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT });
    query("limit", schema, "How many at most.")
}

fn email_example() -> Value {
    json!({
        "id": "0194812c-9a7b-7cc3-9f0e-3c5d2a1b4e6f",
        "status": "SENT",
        "mode": "live",
        "requestId": "req_1737329400_abc123",
        "to": "cliente@example.com",
        "cc": [],
        "bcc": [],
        "replyTo": "suporte@example.com",
        "subject": "Seu pedido foi confirmado",
        "tags": ["order-confirmation", "transactional"],
        "recipientExternalId": "customer-67890",
        "externalId": "order-12345",
        "priority": 5,
        "attempts": 1,
        "provider": "main",
        "providerMessageId": "0000018d-1234-5678-abcd-ef1234567890",
        "outcomeUnknown": false,
        "sizeBytes": 78,
        "createdAt": "2025-01-19T19:30:00.123Z",
        "expiresAt": "2025-01-20T19:30:00.123Z",
        "sentAt": "2025-01-19T19:30:05.234Z",
    })
}

fn with_status(mut email: Value, status: &str) -> Value {
    email["status"] = Value::from(status);
    if let Some(members) = email.as_object_mut() {
        for name in ["sentAt", "provider", "providerMessageId"] {
            members.remove(name);
        }
        members.insert("attempts".into(), Value::from(0));
    }
    email
}
