//! What Resend's webhooks say. Whether they are Resend's is checked before, in `svix.rs`.
//!
//! Resend names the addresses an email was sent to, not the one that bounced, so its reports name nobody: of an email
//! with one recipient it is clear who is meant.

use model::{Bounce, Report, ReportKind, Timestamp};
use serde_json::Value;

use crate::Unreadable;
use crate::facts::{self, Notes, text};

/// Reads an event. `id` is the webhook's own id (`svix-id`). None: it is not about an email of ours, and may be forgotten.
pub fn read(id: &str, body: &[u8], now: Timestamp) -> Result<Option<Report>, Unreadable> {
    let event: Value = serde_json::from_slice(body).map_err(|_| Unreadable("it is not JSON"))?;
    let name = text(&event, "/type").ok_or(Unreadable("it has no type"))?;
    // Contacts, domains and whatever else may come; and emails that came in.
    if !name.starts_with("email.") || name == "email.received" {
        return Ok(None);
    }
    let data = event.get("data").filter(|data| data.is_object()).ok_or(Unreadable("it has no data"))?;
    let mut notes = Notes::default();
    notes.word("providerEvent", Some(name));
    let kind = kind(name, data, &mut notes);
    Ok(Some(Report {
        id: facts::report_id("resend", id)?,
        kind,
        at: facts::moment(&[text(data, "/click/timestamp"), text(&event, "/created_at")], now),
        email: facts::email_id(data.get("tags"), data.get("headers")),
        provider_kind: "resend".into(),
        provider_message_id: facts::provider_message_id(text(data, "/email_id")),
        recipients: Vec::new(),
        metadata: notes.into_map(),
    }))
}

fn kind(name: &str, data: &Value, notes: &mut Notes) -> ReportKind {
    match name {
        "email.sent" => ReportKind::Sent,
        "email.delivered" => ReportKind::Delivered,
        "email.delivery_delayed" => ReportKind::Delayed,
        "email.bounced" => bounced(data, notes),
        "email.suppressed" => suppressed(data, notes),
        "email.complained" => ReportKind::Complained,
        "email.opened" => ReportKind::Opened,
        "email.clicked" => {
            notes.link(text(data, "/click/link"));
            notes.user_agent(text(data, "/click/userAgent"));
            ReportKind::Clicked
        }
        "email.failed" => {
            notes.code("RESEND_FAILED");
            notes.words("reason", text(data, "/failed/reason"));
            ReportKind::Failed
        }
        _ => ReportKind::Other,
    }
}

fn bounced(data: &Value, notes: &mut Notes) -> ReportKind {
    let (bounce_type, sub_type) = (text(data, "/bounce/type"), text(data, "/bounce/subType"));
    notes.word("bounceType", bounce_type);
    notes.word("bounceSubType", sub_type);
    notes.words("diagnostic", diagnostic(data, "/bounce").as_deref());
    if facts::is_suppression(sub_type) {
        notes.flag("suppressed");
    }
    ReportKind::Bounced(facts::bounce(bounce_type, sub_type))
}

/// Resend did not try, since the address bounced or complained before.
fn suppressed(data: &Value, notes: &mut Notes) -> ReportKind {
    notes.flag("suppressed");
    notes.word("bounceSubType", text(data, "/suppressed/type"));
    notes.word("reason", text(data, "/suppressed/reason"));
    notes.words("diagnostic", diagnostic(data, "/suppressed").as_deref());
    ReportKind::Bounced(Bounce::Hard)
}

/// The receiving server's words where there are any, else Resend's.
fn diagnostic(data: &Value, place: &str) -> Option<String> {
    let codes = facts::texts(data.pointer(&format!("{place}/diagnosticCode")));
    if codes.is_empty() {
        return text(data, &format!("{place}/message")).map(str::to_owned);
    }
    Some(codes.join("; "))
}
