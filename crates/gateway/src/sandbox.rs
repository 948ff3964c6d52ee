//! Reports that are played, not sent by a provider: sandbox addresses and `posthaste trigger` go the way of every other
//! report, so that a developer sees the whole story without a provider.

use model::{Bounce, EmailId, Report, ReportKind};
use serde_json::{Map, json};
use store::{ReportArrival, Reported, StoreError};

use crate::{Gateway, observe};

/// What can be played, by name.
pub const PLAYED: [(&str, ReportKind); 9] = [
    ("sent", ReportKind::Sent),
    ("delivered", ReportKind::Delivered),
    ("delayed", ReportKind::Delayed),
    ("bounced", ReportKind::Bounced(Bounce::Hard)),
    ("soft-bounced", ReportKind::Bounced(Bounce::Soft)),
    ("complained", ReportKind::Complained),
    ("failed", ReportKind::Failed),
    ("opened", ReportKind::Opened),
    ("clicked", ReportKind::Clicked),
];

/// Plays a report about an email. `id` tells it from others: played twice, it counts once.
pub async fn play(
    gateway: &Gateway,
    provider: &str,
    email: EmailId,
    kind: ReportKind,
    id: String,
) -> Result<Reported, StoreError> {
    let now = gateway.clock.now();
    let provider_kind = gateway.providers.get(provider).map(|provider| provider.kind().to_owned());
    let report = Report {
        id,
        kind,
        at: now,
        email: Some(email),
        provider_kind: provider_kind.unwrap_or_default(),
        provider_message_id: None,
        recipients: Vec::new(),
        metadata: words(kind),
    };
    let payload = b"{\"played\":true}".to_vec();
    let arrival = ReportArrival { report, provider: provider.to_owned(), payload, now };
    let reported = gateway.store.report(arrival).await?;
    observe::reported(kind, &reported);
    if let Reported::Applied { company, .. } = reported {
        gateway.suppressions.changed(company);
    }
    Ok(reported)
}

/// What a provider would say with it.
fn words(kind: ReportKind) -> Map<String, serde_json::Value> {
    let words = match kind {
        ReportKind::Bounced(Bounce::Hard) => {
            json!({ "bounceType": "Permanent", "diagnostic": "550 5.1.1 no such mailbox (played)" })
        }
        ReportKind::Bounced(_) => {
            json!({ "bounceType": "Transient", "diagnostic": "452 4.2.2 mailbox full (played)" })
        }
        ReportKind::Failed => {
            json!({ "errorCode": "PROVIDER_FAILED", "reason": "the provider did not send it (played)" })
        }
        ReportKind::Complained => json!({ "complaintFeedbackType": "abuse" }),
        _ => json!({}),
    };
    let mut words = words.as_object().cloned().unwrap_or_default();
    words.insert("played".to_owned(), json!(true));
    words
}
