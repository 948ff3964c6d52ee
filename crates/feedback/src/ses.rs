//! What SES says through SNS: events of a configuration set (`eventType`) and feedback of an identity
//! (`notificationType`). Whether they are from SNS is checked before, in `sns/`.

use model::{Report, ReportKind, Timestamp};
use serde_json::Value;

use crate::Unreadable;
use crate::facts::{self, Notes, text};

/// What SES publishes, as plain text, when a topic is made the destination of events.
const GREETING: &str = "Successfully validated SNS topic";
/// Said when a topic is made the destination of an identity's feedback, and of emails that came in.
const NOT_OF_EMAILS_SENT: [&str; 2] = ["AmazonSnsSubscriptionSucceeded", "Received"];

/// Reads the text of a notification. `id` is the MessageId of SNS. None: it is not about an email of ours, and may be
/// forgotten. One event is one report, also when it names several recipients.
pub fn read(id: &str, message: &str, now: Timestamp) -> Result<Option<Report>, Unreadable> {
    if message.starts_with(GREETING) {
        return Ok(None);
    }
    let event: Value = serde_json::from_str(message).map_err(|_| Unreadable("it is not JSON"))?;
    let name = text(&event, "/eventType")
        .or_else(|| text(&event, "/notificationType"))
        .ok_or(Unreadable("it has neither eventType nor notificationType"))?;
    if NOT_OF_EMAILS_SENT.contains(&name) {
        return Ok(None);
    }
    let mail = event.get("mail").filter(|mail| mail.is_object()).ok_or(Unreadable("it has no mail"))?;
    let mut notes = Notes::default();
    notes.word("providerEvent", Some(name));
    let Told { kind, recipients, part } = told(name, &event, &mut notes);
    let mut recipients = facts::addresses(recipients);
    let destination = facts::texts(mail.get("destination"));
    let mut spoken = kind;
    if recipients.is_empty() && facts::without_names(kind) != kind {
        // An email to one address leaves no doubt.
        recipients = if destination.len() == 1 { facts::addresses(destination) } else { Vec::new() };
        if recipients.is_empty() {
            notes.flag("recipientUnknown");
            spoken = facts::without_names(kind);
        }
    }
    let at = [text(&event, &format!("/{part}/timestamp")), text(mail, "/timestamp")];
    Ok(Some(Report {
        id: facts::report_id("ses", id)?,
        kind: spoken,
        at: facts::moment(&at, now),
        email: facts::email_id(mail.get("tags"), mail.get("headers")),
        provider_kind: "ses".into(),
        provider_message_id: facts::provider_message_id(text(mail, "/messageId")),
        recipients,
        metadata: notes.into_map(),
    }))
}

/// What an event says, and the part of it that holds the moment.
struct Told<'a> {
    kind: ReportKind,
    recipients: Vec<&'a str>,
    part: &'static str,
}

fn told<'a>(name: &str, event: &'a Value, notes: &mut Notes) -> Told<'a> {
    let plain = |kind, part| Told { kind, recipients: Vec::new(), part };
    match name {
        "Send" => plain(ReportKind::Sent, "send"),
        "Delivery" => {
            notes.words("diagnostic", text(event, "/delivery/smtpResponse"));
            let recipients = facts::texts(event.pointer("/delivery/recipients"));
            Told { kind: ReportKind::Delivered, recipients, part: "delivery" }
        }
        "Bounce" => bounced(event, notes),
        "Complaint" => complained(event, notes),
        "DeliveryDelay" => {
            notes.word("delayType", text(event, "/deliveryDelay/delayType"));
            server_words(event, "/deliveryDelay/delayedRecipients", notes);
            let recipients = listed(event, "/deliveryDelay/delayedRecipients");
            Told { kind: ReportKind::Delayed, recipients, part: "deliveryDelay" }
        }
        "Reject" => {
            notes.code("SES_REJECTED");
            notes.words("reason", text(event, "/reject/reason"));
            plain(ReportKind::Failed, "reject")
        }
        "Rendering Failure" => {
            notes.code("SES_RENDERING_FAILURE");
            notes.word("template", text(event, "/failure/templateName"));
            notes.words("reason", text(event, "/failure/errorMessage"));
            plain(ReportKind::Failed, "failure")
        }
        "Open" => {
            notes.user_agent(text(event, "/open/userAgent"));
            plain(ReportKind::Opened, "open")
        }
        "Click" => {
            notes.link(text(event, "/click/link"));
            notes.user_agent(text(event, "/click/userAgent"));
            plain(ReportKind::Clicked, "click")
        }
        _ => plain(ReportKind::Other, "subscription"),
    }
}

fn bounced<'a>(event: &'a Value, notes: &mut Notes) -> Told<'a> {
    let (bounce_type, sub_type) = (text(event, "/bounce/bounceType"), text(event, "/bounce/bounceSubType"));
    notes.word("bounceType", bounce_type);
    notes.word("bounceSubType", sub_type);
    server_words(event, "/bounce/bouncedRecipients", notes);
    if facts::is_suppression(sub_type) {
        notes.flag("suppressed");
    }
    let kind = ReportKind::Bounced(facts::bounce(bounce_type, sub_type));
    Told { kind, recipients: listed(event, "/bounce/bouncedRecipients"), part: "bounce" }
}

/// `not-spam` is a reader who took the email out of the spam folder: good news.
fn complained<'a>(event: &'a Value, notes: &mut Notes) -> Told<'a> {
    let feedback = text(event, "/complaint/complaintFeedbackType");
    let sub_type = text(event, "/complaint/complaintSubType");
    notes.word("complaintFeedbackType", feedback);
    notes.word("complaintSubType", sub_type);
    notes.user_agent(text(event, "/complaint/userAgent"));
    if facts::is_suppression(sub_type) {
        notes.flag("suppressed");
    }
    let kind = if feedback == Some("not-spam") { ReportKind::Other } else { ReportKind::Complained };
    Told { kind, recipients: listed(event, "/complaint/complainedRecipients"), part: "complaint" }
}

/// The addresses of a list of objects.
fn listed<'a>(event: &'a Value, pointer: &str) -> Vec<&'a str> {
    let list = event.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|recipient| text(recipient, "/emailAddress")).collect()
}

/// The first receiving server's words: those of one event are alike, and the history needs one.
fn server_words(event: &Value, pointer: &str, notes: &mut Notes) {
    notes.word("smtpStatus", text(event, &format!("{pointer}/0/status")));
    notes.words("diagnostic", text(event, &format!("{pointer}/0/diagnosticCode")));
}
