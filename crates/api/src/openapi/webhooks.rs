//! Webhooks of providers, described.

use serde_json::{Value, json};

use super::{Operation, path_text};
use crate::limits::{WEBHOOK_BODY_BYTES_MAX, WORD_LENGTH_MAX};

const TAG: &str = "Webhooks";

const RESEND: &str = "Resend reports here what became of emails. The signature (svix-id, svix-timestamp and \
svix-signature, or their webhook- twins) is the key; timestamps more than five minutes off are refused. Answered 200 \
once the report is on disk. A report that came before changes nothing.";

const SES: &str = "Amazon SNS delivers here what SES reports. The topic must be configured and the signature good; a \
subscription is confirmed by itself. Answered 200 once the report is on disk. A report that came before changes nothing.";

const NAMED: &str = " For installations with several providers of this kind.";

pub fn resend() -> Operation {
    resend_operation("receiveResendWebhook", RESEND.to_owned())
}

pub fn resend_named() -> Operation {
    resend_operation("receiveResendWebhookOf", format!("{RESEND}{NAMED}")).parameter(provider())
}

pub fn ses() -> Operation {
    ses_operation("receiveSesWebhook", SES.to_owned())
}

pub fn ses_named() -> Operation {
    ses_operation("receiveSesWebhookOf", format!("{SES}{NAMED}")).parameter(provider())
}

fn resend_operation(id: &'static str, description: String) -> Operation {
    let event = json!({
        "type": "email.delivered",
        "created_at": "2026-01-01T00:00:00.000Z",
        "data": { "email_id": "re_1", "to": ["ana@example.com"] },
    });
    webhook(id, "Take a report of Resend", description, "application/json", &event)
}

fn ses_operation(id: &'static str, description: String) -> Operation {
    let envelope = json!({
        "Type": "Notification",
        "MessageId": "m-1",
        "TopicArn": "arn:aws:sns:us-east-1:123456789012:ses-events",
        "Message": "{\"eventType\":\"Delivery\"}",
        "Timestamp": "2026-01-01T00:00:00.000Z",
        "SignatureVersion": "2",
        "Signature": "c2lnbmF0dXJl",
        "SigningCertURL": "https://sns.us-east-1.amazonaws.com/SimpleNotificationService.pem",
    });
    webhook(id, "Take a report of SES", description, "text/plain", &envelope)
        .problem(403, "UNKNOWN_TOPIC, UNTRUSTED_CERTIFICATE, FORBIDDEN_URL.")
        .problem(503, "CERTIFICATE_UNAVAILABLE, SUBSCRIPTION_NOT_CONFIRMED.")
}

fn webhook(
    id: &'static str,
    summary: &'static str,
    description: String,
    kind: &str,
    example: &Value,
) -> Operation {
    let schema = json!({
        "type": "object",
        "description": format!("JSON of at most {WEBHOOK_BODY_BYTES_MAX} bytes, in the provider's own form."),
    });
    Operation::new(id, TAG, summary, description)
        .any_body(json!({ kind: { "schema": schema, "example": example } }))
        .problem(
            400,
            "The signature is good, but the report cannot be read (UNREADABLE_REPORT); INVALID_BODY.",
        )
        .problem(401, "The signature is missing, old or wrong (INVALID_SIGNATURE).")
        .problem(404, "No such provider takes webhooks here (WEBHOOK_NOT_CONFIGURED).")
        .answer(200, "Taken", "WebhookResult", &json!({ "result": "applied" }))
}

fn provider() -> Value {
    path_text("provider", "The provider's configured name.", WORD_LENGTH_MAX)
}
