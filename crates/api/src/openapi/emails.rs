//! Following emails, described.

use model::Status;
use serde_json::{Value, json};

use super::{Operation, path_id, path_text, query};
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
    .parameter(query("requestId", text(), "The id of the request that handed it in; of copies resend: or release: and the first one's id."))
    .parameter(query("providerMessageId", text(), "The provider's own id of it."))
    .parameter(query("captured", json!({ "type": "boolean" }), "true: those kept in the capture mailbox. false: those a real provider was given."))
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
    .problem(403, LIVE_ONLY)
    .problem(404, MISSING)
    .problem(409, "It is too late (TOO_LATE); detail says why.")
    .answer(200, "The email, now CANCELLED", "Email", &with_status(email_example(), "CANCELLED"))
}

const LIVE_ONLY: &str = "The key is a test key and the email a live one (LIVE_KEY_REQUIRED).";

pub fn retry() -> Operation {
    Operation::new(
        "retryEmail",
        TAG,
        "Make a waiting email due now",
        "For one that waits for a retry, for its time, or is held because its outcome is not known.",
    )
    .parameter(email_id())
    .problem(403, LIVE_ONLY)
    .problem(404, MISSING)
    .problem(409, "Nothing waits (NOT_WAITING); a FAILED email is replayed instead.")
    .answer(200, "The email, due now", "Email", &with_status(email_example(), "ENQUEUED"))
}

pub fn attachment() -> Operation {
    let file = json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } });
    Operation::new(
        "getEmailAttachment",
        TAG,
        "Download an attachment",
        "The bytes as they were handed in, under its file name. Those of an .eml are in the message itself.",
    )
    .parameter(email_id())
    .parameter(path_text("position", "Its place in the attachments of the content, counted from 0.", 9))
    .problem(404, MISSING)
    .problem(
        404,
        "The content is no longer kept (CONTENT_GONE), or has no such attachment (ATTACHMENT_NOT_FOUND).",
    )
    .answer_of(200, "The attachment", file)
}

pub fn resend() -> Operation {
    Operation::new(
        "resendEmail",
        TAG,
        "Send an email once more",
        "A new email with the same content, recipients and wishes, due now; its copyOf names the first. Works once the \
         first has reached its end and while its content is kept. With a test key the copy is a test email.",
    )
    .parameter(email_id())
    .parameter(super::send::idempotency_key())
    .problem(400, "INVALID_IDEMPOTENCY_KEY.")
    .problem(404, MISSING)
    .problem(404, "The content is no longer kept (CONTENT_GONE).")
    .problem(409, "It is still under way, or was refused as it came in (NOT_COPYABLE).")
    .problem(422, "RECIPIENT_SUPPRESSED, NO_SENDER, SENDER_NOT_ALLOWED, IDEMPOTENCY_KEY_REUSED.")
    .problem(429, "The company's daily limit is reached (DAILY_LIMIT_EXCEEDED).")
    .answer(202, "The copy was taken", "Receipt", &copy_example("resend"))
    .header("Idempotent-Replayed", super::send::replayed())
}

pub fn release() -> Operation {
    let example = json!({ "provider": "main", "to": "me@example.com" });
    Operation::new(
        "releaseEmail",
        TAG,
        "Release a captured email",
        "Sends a copy through a real provider, to one address and to nobody in copy; its copyOf names the first. The \
         environment's guard is held all the same. Test keys are refused.",
    )
    .parameter(email_id())
    .parameter(super::send::idempotency_key())
    .json_body(&["application/json"], "Release", &example)
    .problem(400, "INVALID_IDEMPOTENCY_KEY.")
    .problem(403, "The key is a test key (LIVE_KEY_REQUIRED).")
    .problem(404, MISSING)
    .problem(404, "The content is no longer kept (CONTENT_GONE).")
    .problem(409, "NOT_COPYABLE; no provider that sends is configured (NO_REAL_PROVIDER); the environment captures it (STAYS_CAPTURED).")
    .problem(422, "UNKNOWN_PROVIDER, RECIPIENT_SUPPRESSED, NO_SENDER, SENDER_NOT_ALLOWED, IDEMPOTENCY_KEY_REUSED.")
    .problem(429, "The company's daily limit is reached (DAILY_LIMIT_EXCEEDED).")
    .answer(202, "The copy was taken", "Receipt", &copy_example("release"))
    .header("Idempotent-Replayed", super::send::replayed())
}

fn copy_example(purpose: &str) -> Value {
    json!({
        "outboxId": "0194812d-1c2d-7aa0-8b11-9e8f7a6b5c4d",
        "jobId": "0194812d-1c2d-7aa0-8b11-9e8f7a6b5c4d",
        "requestId": format!("{purpose}:0194812c-9a7b-7cc3-9f0e-3c5d2a1b4e6f"),
        "status": "ENQUEUED",
        "receivedAt": "2025-01-19T19:30:00.123Z",
        "recipient": {},
    })
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
