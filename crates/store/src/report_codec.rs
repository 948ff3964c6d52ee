//! A report as the text a store keeps of it until its email is found.

use model::{Address, Bounce, Report, ReportKind, Timestamp};
use serde_json::{Map, Value, json};

const KINDS: [(ReportKind, &str); 11] = [
    (ReportKind::Sent, "sent"),
    (ReportKind::Delivered, "delivered"),
    (ReportKind::Delayed, "delayed"),
    (ReportKind::Bounced(Bounce::Hard), "bounced_hard"),
    (ReportKind::Bounced(Bounce::Soft), "bounced_soft"),
    (ReportKind::Bounced(Bounce::Unclear), "bounced"),
    (ReportKind::Complained, "complained"),
    (ReportKind::Failed, "failed"),
    (ReportKind::Opened, "opened"),
    (ReportKind::Clicked, "clicked"),
    (ReportKind::Other, "other"),
];

pub fn encode(report: &Report) -> String {
    let kind = KINDS.iter().find(|(kind, _)| *kind == report.kind).map_or("other", |(_, name)| name);
    json!({
        "id": report.id,
        "kind": kind,
        "at": report.at.millis(),
        "email": report.email.map(|id| id.to_string()),
        "providerKind": report.provider_kind,
        "messageId": report.provider_message_id,
        "recipients": report.recipients.iter().map(Address::expose).collect::<Vec<_>>(),
        "metadata": report.metadata,
    })
    .to_string()
}

pub fn decode(text: &str) -> Option<Report> {
    let mut json: Map<String, Value> = serde_json::from_str(text).ok()?;
    let kind = json.get("kind")?.as_str()?;
    let recipients = json.get("recipients")?.as_array()?.iter().filter_map(Value::as_str);
    Some(Report {
        kind: KINDS.iter().find(|(_, name)| *name == kind)?.0,
        at: Timestamp::from_millis(json.get("at")?.as_i64()?),
        email: json.get("email").and_then(Value::as_str).and_then(|id| id.parse().ok()),
        // Texts of an earlier version have none.
        provider_kind: json.get("providerKind").and_then(Value::as_str).unwrap_or_default().to_owned(),
        provider_message_id: json.get("messageId").and_then(Value::as_str).map(str::to_owned),
        recipients: recipients.map(|text| Address::trusted(text.to_owned())).collect(),
        id: json.get("id")?.as_str()?.to_owned(),
        metadata: match json.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        },
    })
}

#[cfg(test)]
mod tests {
    use model::EmailId;

    use super::*;

    #[test]
    fn every_kind_reads_back() {
        for (kind, _) in KINDS {
            let report = Report {
                id: "resend:msg_1".into(),
                kind,
                at: Timestamp::from_millis(1_767_225_600_123),
                email: Some(EmailId::new(Timestamp::from_millis(7))),
                provider_kind: "resend".into(),
                provider_message_id: Some("m-1".into()),
                recipients: vec![Address::trusted("Ana@example.com".into())],
                metadata: json!({ "bounceType": "Permanent" }).as_object().cloned().unwrap_or_default(),
            };
            assert_eq!(decode(&encode(&report)), Some(report));
        }
        assert_eq!(decode("{}"), None);
        assert_eq!(decode("not json"), None);
    }
}
