//! Emails, events and dead letters as JSON. What is not known is left out.

use gateway::Gateway;
use gateway::accept::copy::{Purpose, original_of};
use model::privacy::Secret;
use model::{Address, Attachment, Content, Email, EmailId, Entity, Event, Mailbox, Recipient, Timestamp};
use serde_json::{Map, Value, json};
use store::RecipientState;

/// An object in the making, without what is absent.
#[derive(Default)]
struct Object(Map<String, Value>);

impl Object {
    fn put(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    fn maybe(&mut self, name: &str, value: Option<impl Into<Value>>) -> &mut Self {
        if let Some(value) = value {
            self.put(name, value);
        }
        self
    }

    fn time(&mut self, name: &str, moment: Option<Timestamp>) -> &mut Self {
        self.maybe(name, moment.map(Timestamp::to_rfc3339))
    }
}

/// One email, without its content.
pub fn email(gateway: &Gateway, email: &Email) -> Value {
    let envelope = &email.envelope;
    let by_ses = email.provider.as_ref().and_then(|name| gateway.providers.get(name));
    let by_ses = by_ses.is_some_and(|provider| provider.kind() == "ses");
    // Emails of an earlier version have no column of it.
    let ses_message_id =
        email.ses_message_id.clone().or_else(|| email.provider_message_id.clone().filter(|_| by_ses));
    let failure = email.last_failure.as_ref();
    let recipient = email.recipient.as_ref();
    let captured = email.provider.as_ref().is_some_and(|name| gateway.captures(name));
    let mut json = Object::default();
    json.put("id", email.id.to_string())
        .put("status", email.status.as_str())
        .put("mode", email.mode.as_str())
        .put("requestId", email.request_id.as_str())
        .maybe("from", envelope.from.as_ref().map(Mailbox::expose))
        .put("to", envelope.to.expose())
        .put("cc", addresses(&envelope.cc))
        .put("bcc", addresses(&envelope.bcc))
        .maybe("replyTo", envelope.reply_to.as_ref().map(Mailbox::expose))
        .put("subject", envelope.subject.expose().as_str())
        .put("tags", envelope.tags.clone())
        .maybe("recipientExternalId", recipient.and_then(|recipient| recipient.external_id.clone()))
        .maybe("externalId", email.external_id.clone())
        .maybe("entity", email.entity.as_ref().map(entity))
        .put("priority", email.priority)
        .put("attempts", email.attempts)
        .maybe("provider", email.provider.clone())
        .maybe("captured", captured.then_some(true))
        .maybe("copyOf", original_of(&email.request_id).map(original))
        .maybe("providerMessageId", email.provider_message_id.clone())
        .maybe("sesMessageId", ses_message_id)
        .maybe("lastFailureCode", failure.map(|failure| failure.code.clone()))
        .maybe("lastFailureCategory", failure.map(|failure| failure.category.clone()))
        .maybe("lastFailureReason", failure.map(|failure| failure.reason.clone()))
        .time("lastFailureAt", failure.map(|failure| failure.at))
        .put("outcomeUnknown", email.outcome_unknown)
        .put("sizeBytes", email.size_bytes)
        .time("createdAt", Some(email.created_at))
        .time("scheduledAt", email.scheduled_at)
        .time("dueAt", email.due_at)
        .time("expiresAt", Some(email.expires_at))
        .time("sentAt", email.sent_at)
        .time("deliveredAt", email.delivered_at)
        .time("failedAt", email.failed_at);
    Value::Object(json.0)
}

/// The email that this one is a copy of.
fn original((purpose, id): (Purpose, EmailId)) -> Value {
    json!({ "id": id.to_string(), "purpose": purpose.as_str() })
}

fn entity(entity: &Entity) -> Value {
    let mut json = Object::default();
    json.put("id", entity.id.as_str()).maybe("name", entity.name.clone());
    Value::Object(json.0)
}

fn addresses(list: &[Address]) -> Value {
    list.iter().map(Address::expose).collect()
}

/// How it went with one of several recipients.
pub fn recipient_state(state: &RecipientState) -> Value {
    json!({
        "address": state.address.expose(),
        "status": state.status.as_str(),
        "at": state.at.to_rfc3339(),
    })
}

/// One line of history.
pub fn event(event: &Event) -> Value {
    json!({ "type": event.kind.as_str(), "createdAt": event.at.to_rfc3339(), "metadata": event.metadata })
}

/// What was sent. Of an .eml only the html it shows; the rest can be downloaded as it is.
pub fn content(email: &Email, content: &Content) -> Value {
    let mut json = Object::default();
    json.put("id", email.id.to_string()).put("sizeBytes", email.size_bytes);
    match content {
        Content::Raw(eml) => json
            .put("kind", "raw")
            .maybe("html", message::html_of(eml))
            .put("attachments", Vec::<Value>::new()),
        Content::Composed { html, text, attachments } => json
            .put("kind", "composed")
            .put("html", html.as_str())
            .maybe("text", text.clone())
            .put("attachments", attachments.iter().map(attachment).collect::<Vec<_>>()),
    };
    Value::Object(json.0)
}

fn attachment(attachment: &Attachment) -> Value {
    let mut json = Object::default();
    json.put("filename", attachment.filename.as_str())
        .put("contentType", attachment.content_type.as_str())
        .maybe("contentId", attachment.content_id.clone())
        .put("sizeBytes", attachment.bytes.expose().len());
    Value::Object(json.0)
}

/// A dead letter, in the words of the job contract.
pub fn dead_letter(gateway: &Gateway, email: &Email) -> Value {
    let id = email.id.to_string();
    let kept = gateway.settings.retention.dead_letters;
    let failure = email.last_failure.as_ref();
    let mut json = Object::default();
    json.put("jobId", id.as_str())
        .put("outboxId", id.as_str())
        .put("companyId", email.company.to_string())
        .put("originalData", job_data(email))
        .put("failedAttempts", email.attempts)
        .maybe("lastFailureReason", failure.map(|failure| failure.reason.clone()))
        .maybe("lastFailureCode", failure.map(|failure| failure.code.clone()))
        .maybe("lastFailureCategory", failure.map(|failure| failure.category.clone()))
        .time("lastFailureTimestamp", failure.map(|failure| failure.at))
        .put("outcomeUnknown", email.outcome_unknown)
        .time("enqueuedAt", Some(email.created_at))
        .time("movedToDLQAt", email.dead_at)
        .put("ttl", u64::try_from(kept.as_millis()).unwrap_or(u64::MAX));
    Value::Object(json.0)
}

/// The job as it was queued: content by reference, the document only as its HMAC.
fn job_data(email: &Email) -> Value {
    let envelope = &email.envelope;
    let headers: Map<String, Value> =
        envelope.headers.iter().map(|(name, value)| (name.clone(), value.expose().as_str().into())).collect();
    let mut json = Object::default();
    json.put("outboxId", email.id.to_string())
        .put("companyId", email.company.to_string())
        .put("requestId", email.request_id.as_str())
        .put("to", envelope.to.expose())
        .put("cc", addresses(&envelope.cc))
        .put("bcc", addresses(&envelope.bcc))
        .put("subject", envelope.subject.expose().as_str())
        .put("htmlRef", format!("db:{}", email.id))
        .maybe("replyTo", envelope.reply_to.as_ref().map(Mailbox::expose))
        .put("headers", headers)
        .put("tags", envelope.tags.clone())
        .maybe("recipient", email.recipient.as_ref().map(|recipient| job_recipient(email, recipient)))
        .put("attempt", email.attempts)
        .time("enqueuedAt", Some(email.created_at));
    Value::Object(json.0)
}

fn job_recipient(email: &Email, recipient: &Recipient) -> Value {
    let exposed = |name: &Option<Secret<String>>| name.as_ref().map(|name| name.expose().clone());
    let mut json = Object::default();
    json.maybe("recipientId", recipient.id.map(|id| id.to_string()))
        .maybe("externalId", recipient.external_id.clone())
        .maybe("cpfCnpjHash", recipient.document_hmac.clone())
        .maybe("razaoSocial", exposed(&recipient.legal_name))
        .maybe("nome", exposed(&recipient.name))
        .put("email", email.envelope.to.expose());
    Value::Object(json.0)
}
