//! Handing emails in, described.

use serde_json::{Value, json};

use super::{Operation, query, reference};
use crate::limits::{
    BATCH_EMAILS_MAX, DELAY_MS_MAX, ID_LENGTH_MAX, IDEMPOTENCY_KEY_LENGTH_MAX, PRIORITY_MAX,
    SEND_BODY_BYTES_MAX, TTL_MS_MAX, TTL_MS_MIN, URL_LENGTH_MAX, WORD_LENGTH_MAX,
};

const TAG: &str = "Sending";

pub fn send() -> Operation {
    Operation::new(
        "sendEmail",
        TAG,
        "Hand in one email",
        "The email is on disk when this answers 202, and is sent from the queue. With an Idempotency-Key the same \
         request can be made again within 24 hours without sending a second email: the first answer is given again.",
    )
    .parameter(idempotency_key())
    .json_body(&["application/json"], "Send", &send_example())
    .problem(400, "PII_NOT_ALLOWED: a CPF or CNPJ stands in clear elsewhere than in recipient.cpfCnpj and the content. INVALID_IDEMPOTENCY_KEY.")
    .problem(413, "HTML_TOO_LARGE, TEXT_TOO_LARGE, ATTACHMENTS_TOO_LARGE.")
    .problem(422, UNACCEPTABLE)
    .problem(429, "The company's daily limit is reached (DAILY_LIMIT_EXCEEDED).")
    .answer(202, "Taken", "Receipt", &receipt_example("ENQUEUED"))
    .header("Idempotent-Replayed", replayed())
    .links(LINKS, "$response.body#/outboxId")
}

pub fn batch() -> Operation {
    let example = json!([send_example(), { "to": "not an address", "subject": "Hi", "html": "<p>Hi</p>" }]);
    let answer = json!({
        "accepted": 1,
        "rejected": 1,
        "requestId": "req_1737329400_abc123",
        "results": [
            with_index(0, receipt_example("ENQUEUED")),
            { "index": 1, "error": {
                "status": 400,
                "code": "INVALID_EMAIL",
                "detail": "to must be a plain address such as ana@example.com",
                "errors": [{ "field": "to", "code": "INVALID_EMAIL", "message": "must be a plain address such as ana@example.com" }],
            } },
        ],
    });
    Operation::new(
        "sendBatch",
        TAG,
        "Hand in up to 1,000 emails",
        "Each email is accepted or rejected for itself, and results come in the order of the emails. All accepted \
         ones are stored in one go. Where the company's daily limit leaves room for some of them, the first are accepted \
         and the others rejected with DAILY_LIMIT_EXCEEDED. The Idempotency-Key counts for the whole call; a batch without a single accepted \
         email stores nothing and does not use it up.",
    )
    .parameter(idempotency_key())
    .json_body(&["application/json"], "Batch", &example)
    .problem(400, &format!("EMPTY_BATCH, TOO_MANY_EMAILS (more than {BATCH_EMAILS_MAX}), INVALID_IDEMPOTENCY_KEY."))
    .problem(422, "The Idempotency-Key was used for another request (IDEMPOTENCY_KEY_REUSED).")
    .problem(429, "The company's daily limit is reached (DAILY_LIMIT_EXCEEDED); nothing was stored.")
    .answer(202, "Read; see each result", "BatchAnswer", &answer)
    .header("Idempotent-Replayed", replayed())
}

pub fn raw() -> Operation {
    let eml = "From: shop@example.com\r\nTo: ana@example.com\r\nSubject: Hello\r\n\r\nHello Ana\r\n";
    let content = json!({ "message/rfc822": {
        "schema": { "type": "string", "description": format!("An .eml of at most {SEND_BODY_BYTES_MAX} bytes.") },
        "example": eml,
    } });
    let whole = |least: u64, most: u64| json!({ "type": "integer", "minimum": least, "maximum": most });
    let text = |most: usize| json!({ "type": "string", "minLength": 1, "maxLength": most });
    Operation::new(
        "sendRaw",
        TAG,
        "Hand in an .eml",
        "The message is taken as it is and checked behind: its status is ACCEPTED, then ENQUEUED or INVALID. From, To \
         and Subject are read from its headers; the first address in To is the recipient, further ones count as copies. \
         Sender, Resent-From and Resent-Sender must be senders of the company as From must. Bcc, Return-Path and \
         X-SES-… are taken out; all else, such as Received and DKIM-Signature, is sent as it is.",
    )
    .parameter(idempotency_key())
    .parameter(query("priority", whole(1, PRIORITY_MAX), "1 goes first, 10 last; 5 unless given."))
    .parameter(query("delay", whole(0, DELAY_MS_MAX), "Milliseconds to wait before sending."))
    .parameter(query("scheduledAt", json!({ "type": "string", "format": "date-time" }), "When to send; at most 30 days ahead."))
    .parameter(query("ttl", whole(TTL_MS_MIN, TTL_MS_MAX), "Milliseconds after which it is no longer sent."))
    .parameter(query("externalId", text(ID_LENGTH_MAX), "Your own id of the email."))
    .parameter(query("callbackUrl", text(URL_LENGTH_MAX), "Where to report what became of it. Kept, but this version makes no callbacks yet; the answer warns of it."))
    .parameter(query("provider", text(WORD_LENGTH_MAX), "The provider to use."))
    .parameter(query("retryPolicy", text(WORD_LENGTH_MAX), "The retry policy to use."))
    .parameter(query("onUnknown", json!({ "type": "string", "enum": ["retry", "hold"] }), "What to do when a provider may have taken it."))
    .parameter(query("onSuppressed", json!({ "type": "string", "enum": ["warn", "reject"] }), ON_SUPPRESSED))
    .body(content)
    .problem(400, "INVALID_MESSAGE, a wrong parameter, INVALID_IDEMPOTENCY_KEY, PII_NOT_ALLOWED.")
    .problem(422, UNACCEPTABLE)
    .problem(429, "The company's daily limit is reached (DAILY_LIMIT_EXCEEDED).")
    .answer(202, "Taken", "Receipt", &receipt_example("ACCEPTED"))
    .header("Idempotent-Replayed", replayed())
    .links(LINKS, "$response.body#/outboxId")
}

/// What can be asked about an email that was taken.
const LINKS: &[&str] = &["getEmail", "getEmailEvents", "getEmailContent", "cancelEmail", "retryEmail"];

const UNACCEPTABLE: &str = "Well-formed, but not acceptable: UNSAFE_HTML, NO_SENDER, SENDER_NOT_ALLOWED, \
UNKNOWN_PROVIDER, UNKNOWN_RETRY_POLICY, TEMPLATE_NOT_FOUND, MISSING_VARIABLE, TEMPLATE_ERROR, RECIPIENT_SUPPRESSED, \
DOCUMENT_KEYS_MISSING, IDEMPOTENCY_KEY_REUSED.";

pub const ON_SUPPRESSED: &str = "What to do when a recipient is on the company's suppression list. warn, unless given: \
the email is taken with a warning (RECIPIENT_SUPPRESSED) and not sent to those on the list. reject: it is refused (422).";

pub fn idempotency_key() -> Value {
    json!({
        "name": "Idempotency-Key", "in": "header", "required": false,
        "description": "Per company, kept 24 hours. A request that fails validation does not use it up.",
        "schema": { "type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_LENGTH_MAX, "pattern": "^[!-~]([ -~]*[!-~])?$" },
        "example": "order-12345-notification",
    })
}

pub fn replayed() -> Value {
    json!({
        "description": "Present when this is the answer to an earlier request with the same Idempotency-Key.",
        "schema": { "type": "string", "enum": ["true"] },
    })
}

pub fn send_example() -> Value {
    json!({
        "to": "cliente@example.com",
        "subject": "Seu pedido foi confirmado",
        "html": "<html><body><h1>Pedido #12345</h1><p>Obrigado pela compra!</p></body></html>",
        "replyTo": "suporte@example.com",
        "tags": ["order-confirmation", "transactional"],
        "recipient": { "externalId": "customer-67890", "nome": "João Silva", "email": "cliente@example.com" },
        "externalId": "order-12345",
    })
}

fn receipt_example(status: &str) -> Value {
    let recipient = if status == "ENQUEUED" { json!({ "externalId": "customer-67890" }) } else { json!({}) };
    json!({
        "outboxId": "0194812c-9a7b-7cc3-9f0e-3c5d2a1b4e6f",
        "jobId": "0194812c-9a7b-7cc3-9f0e-3c5d2a1b4e6f",
        "requestId": "req_1737329400_abc123",
        "status": status,
        "receivedAt": "2025-01-19T19:30:00.123Z",
        "recipient": recipient,
    })
}

fn with_index(index: usize, mut receipt: Value) -> Value {
    receipt["index"] = Value::from(index);
    receipt
}

/// Named here because only this area uses it.
pub fn batch_schema() -> Value {
    let item = json!({
        "anyOf": [reference("Send"), {}],
        "description": "The body of a send. Whatever is none is rejected for itself, the others are taken.",
    });
    json!({ "type": "array", "minItems": 1, "maxItems": BATCH_EMAILS_MAX, "items": item })
}
