//! Times, statuses, events and codes as people say them. Pure; the same words as the commands use.

use std::time::Duration;

use model::{Category, EventKind, Status, Timestamp};
use serde_json::{Map, Value};

/// `850 ms`, `1.5 s`, `2 min 5 s`, `3 h 20 min`, `4 d 2 h`.
pub fn duration(duration: Duration) -> String {
    let (ms, secs) = (duration.as_millis(), duration.as_secs());
    let pair = |big: u64, big_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big} {big_unit}"),
        small => format!("{big} {big_unit} {small} {small_unit}"),
    };
    match secs {
        0 => format!("{ms} ms"),
        1..60 if ms.is_multiple_of(1000) => format!("{secs} s"),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3_600 => pair(secs / 60, "min", secs % 60, "s"),
        3_600..86_400 => pair(secs / 3_600, "h", secs % 3_600 / 60, "min"),
        _ => pair(secs / 86_400, "d", secs % 86_400 / 3_600, "h"),
    }
}

/// How long ago, or in how long, in one unit: enough for a list.
pub fn distance(at: Timestamp, now: Timestamp) -> String {
    let is_past = at <= now;
    let secs = if is_past { now.since(at) } else { at.since(now) }.as_secs();
    let length = match secs {
        0 if is_past => return "just now".to_owned(),
        0 => return "now".to_owned(),
        1..60 => format!("{secs} s"),
        60..3_600 => format!("{} min", secs / 60),
        3_600..86_400 => format!("{} h", secs / 3_600),
        _ => format!("{} d", secs / 86_400),
    };
    if is_past { format!("{length} ago") } else { format!("in {length}") }
}

/// `2026-01-31 13:45:00 UTC`.
pub fn exact(at: Timestamp) -> String {
    let text = at.to_rfc3339();
    let second = text.get(..19).unwrap_or(&text);
    format!("{} UTC", second.replacen('T', " ", 1))
}

pub fn exact_with_distance(at: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", exact(at), distance(at, now))
}

/// The moment in a field of an answer.
pub fn time(value: &Value) -> Option<Timestamp> {
    Timestamp::parse(value.as_str()?)
}

pub fn status(status: Status) -> &'static str {
    match status {
        Status::Accepted => "Accepted",
        Status::Enqueued => "Enqueued",
        Status::Processing => "Processing",
        Status::RetryScheduled => "Retry scheduled",
        Status::Sent => "Sent",
        Status::Delivered => "Delivered",
        Status::Bounced => "Bounced",
        Status::Complained => "Complained",
        Status::Failed => "Failed",
        Status::Invalid => "Invalid",
        Status::Expired => "Expired",
        Status::Cancelled => "Cancelled",
    }
}

/// The class that colours a status. The word is always there too.
pub fn mood(status: Status) -> &'static str {
    match status {
        Status::Accepted | Status::Enqueued => "waiting",
        Status::Processing => "working",
        Status::RetryScheduled => "warn",
        Status::Sent => "sent",
        Status::Delivered => "good",
        Status::Bounced | Status::Complained | Status::Failed | Status::Invalid => "bad",
        Status::Expired | Status::Cancelled => "over",
    }
}

/// What happened, in a few words.
pub fn event(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Accepted => "Accepted, to be checked",
        EventKind::Intaking => "Being checked",
        EventKind::Invalid => "Content refused",
        EventKind::Enqueued => "Put into the queue",
        EventKind::Received => "Taken by a worker",
        EventKind::Validated => "Passed all checks",
        EventKind::ValidationFailed => "Failed a check",
        EventKind::SentAttempt => "Handed to the provider",
        EventKind::Sent => "Sent",
        EventKind::RetryScheduled => "To be tried again",
        EventKind::Failed => "Given up",
        EventKind::OutcomeUnknown => "Outcome unknown",
        EventKind::LateResult => "A late answer came",
        EventKind::LeaseLost => "The worker was lost",
        EventKind::Released => "Given back by the worker",
        EventKind::AlreadySent => "Was sent already",
        EventKind::Expired => "Expired",
        EventKind::Cancelled => "Cancelled",
        EventKind::RetryRequested => "Retry asked for",
        EventKind::Replayed => "Replayed",
        EventKind::DeadLetterDropped => "Taken off the dead letters",
        EventKind::SendReported => "Reported as sent",
        EventKind::Delivered => "Delivered",
        EventKind::DeliveryDelayed => "Delivery delayed",
        EventKind::Bounced => "Bounced",
        EventKind::SoftBounced => "Bounced for now",
        EventKind::Complained => "Complaint by the recipient",
        EventKind::Opened => "Opened",
        EventKind::Clicked => "Link clicked",
        EventKind::Reported => "The provider reported",
    }
}

/// The class that colours an event in the timeline.
pub fn event_mood(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Sent | EventKind::SendReported => "sent",
        EventKind::Delivered | EventKind::Opened | EventKind::Clicked => "good",
        EventKind::RetryScheduled
        | EventKind::OutcomeUnknown
        | EventKind::DeliveryDelayed
        | EventKind::SoftBounced
        | EventKind::LeaseLost => "warn",
        EventKind::Failed
        | EventKind::Bounced
        | EventKind::Complained
        | EventKind::Invalid
        | EventKind::ValidationFailed => "bad",
        EventKind::Expired | EventKind::Cancelled | EventKind::DeadLetterDropped => "over",
        _ => "waiting",
    }
}

/// What of an event's metadata matters, as sentences; then what else there is, by name.
pub fn metadata(metadata: &Map<String, Value>) -> (Vec<String>, Vec<(String, String)>) {
    let mut rest = metadata.clone();
    let refused = rest.remove("copiesRefused").unwrap_or_default();
    let mut take = |name: &str| rest.remove(name).map(|value| plain(&value)).filter(|text| !text.is_empty());
    let mut told = Vec::new();
    told.extend(take("attempt").map(|attempt| format!("Attempt {attempt}.")));
    told.extend(take("provider").map(|provider| format!("Provider {provider}.")));
    let (code, words) = (take("errorCode"), take("errorMessage").or_else(|| take("reason")));
    match (code, words) {
        (Some(code), Some(words)) => told.push(format!("{code}: {}.", words.trim_end_matches('.'))),
        (Some(code), None) => told.push(format!("{code}.")),
        (None, Some(words)) => told.push(format!("{}.", words.trim_end_matches('.'))),
        (None, None) => {}
    }
    told.extend(take("diagnostic").map(|words| format!("The receiving server said: {words}.")));
    let next = take("nextAttemptNumber");
    let delay = take("backoffDelay").and_then(|ms| ms.parse().ok()).map(Duration::from_millis).map(duration);
    match (next, delay) {
        (Some(next), Some(delay)) => told.push(format!("Attempt {next} follows after {delay}.")),
        (Some(next), None) => told.push(format!("Attempt {next} follows.")),
        _ => {}
    }
    let took = take("durationMs").and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
    told.extend(took.map(|took| format!("The answer came after {}.", duration(took))));
    told.extend(refused.as_array().into_iter().flatten().map(refused_copy));
    // Said by the event itself, and by the code.
    take("willRetry");
    take("errorCategory");
    let rest = rest.iter().map(|(name, value)| (name.clone(), plain(value))).collect();
    (told, rest)
}

fn refused_copy(copy: &Value) -> String {
    let word = |name: &str| copy[name].as_str().unwrap_or("?").trim_end_matches('.');
    format!("No copy to {}: {}, {}.", word("recipient"), word("errorCode"), word("errorMessage"))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What to do about a code. The longer story is in docs/PROVIDERS.md.
const HINTS: &[(&str, &str)] = &[
    (
        "RECIPIENT_SUPPRESSED",
        "The address is on the suppression list. Lift it there first, or it fails again.",
    ),
    ("RECIPIENT_NOT_FOUND", "The recipient was removed meanwhile. A replay will not help."),
    ("INVALID_TEMPLATE", "The html breaks a rule (scripts, size, subject). Send a corrected email instead."),
    ("INVALID_PAYLOAD", "A field is wrong. Send a corrected email instead of a replay."),
    ("INVALID_EMAIL", "An address cannot be used. Send a corrected email instead of a replay."),
    ("OUTCOME_UNKNOWN", "The provider may have taken it. A replay may send a second copy."),
    ("QUARANTINED", "Workers died with this email three times. Look at it before you replay it."),
    ("NETWORK_ERROR", "The provider could not be reached. Replay when it is well again."),
    ("SES_MESSAGE_REJECTED", "SES refused the content, or the sender is not verified in this region."),
    ("SES_ACCOUNT_SENDING_PAUSED", "AWS paused the account. Resume it there, then replay."),
    ("SES_DAILY_QUOTA_EXCEEDED", "The daily quota is used up. Replay tomorrow, or ask AWS for more."),
    ("RESEND_DOMAIN_NOT_VERIFIED", "Verify the sender's domain at Resend, then replay."),
];

pub fn hint(code: &str, category: &str) -> &'static str {
    if let Some((_, hint)) = HINTS.iter().find(|(known, _)| *known == code) {
        return hint;
    }
    match Category::parse(category) {
        Some(Category::Configuration) => {
            "Something is set up wrongly, here or at the provider. Mend it, then replay."
        }
        Some(Category::Permanent) => "The provider refused it for good. Read the reason before you replay.",
        Some(Category::Quota) => "The provider's limit was reached. Replay later.",
        Some(Category::Timeout) => {
            "The provider did not answer in time; it may have taken it. Look before you replay."
        }
        Some(Category::Transient) => "A passing trouble that outlasted all attempts. A replay usually helps.",
        _ => "Read the reason of one of them before you replay.",
    }
}

/// `812 B`, `14 KB`, `2.5 MB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} KB", bytes.div_ceil(1_000)),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// `1 email`, `3 emails`.
pub fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::{START, at_millis, at_secs};

    use super::*;

    #[test]
    fn distances_are_short() {
        let cases = [
            (0, 0, "just now"),
            (0, 59, "59 s ago"),
            (0, 125, "2 min ago"),
            (0, 7_300, "2 h ago"),
            (0, 200_000, "2 d ago"),
            (90, 0, "in 1 min"),
        ];
        for (at, now, expected) in cases {
            assert_eq!(distance(at_secs(at), at_secs(now)), expected);
        }
        assert_eq!(distance(at_millis(1), START), "now");
        assert_eq!(exact(at_secs(61)), "2026-01-01 00:01:01 UTC");
    }

    #[test]
    fn metadata_is_told_in_sentences_and_nothing_is_lost() {
        let given = json!({
            "attempt": 1, "errorCode": "SMTP_TRANSIENT_450", "errorMessage": "try later.", "willRetry": true,
            "nextAttemptNumber": 2, "backoffDelay": 1250, "originalCode": "450",
        });
        let (told, rest) = metadata(given.as_object().expect("an object"));
        let expected = ["Attempt 1.", "SMTP_TRANSIENT_450: try later.", "Attempt 2 follows after 1.2 s."]
            .map(str::to_owned);
        assert_eq!(told, expected);
        assert_eq!(rest, [("originalCode".to_owned(), "450".to_owned())]);
        let (told, rest) =
            metadata(json!({ "reason": "shutdown", "x": [1] }).as_object().expect("an object"));
        assert_eq!((told, rest), (vec!["shutdown.".to_owned()], vec![("x".to_owned(), "[1]".to_owned())]));
        let copy = json!({ "recipient": "b***@e***.com", "errorCode": "SMTP_REJECTED_550", "errorMessage": "no such user." });
        let (told, rest) =
            metadata(json!({ "attempt": 1, "copiesRefused": [copy] }).as_object().expect("an object"));
        let expected = ["Attempt 1.", "No copy to b***@e***.com: SMTP_REJECTED_550, no such user."];
        assert_eq!((told, rest), (expected.map(str::to_owned).to_vec(), vec![]));
    }

    #[test]
    fn sizes_are_short() {
        let cases = [(0, "0 B"), (999, "999 B"), (1_001, "2 KB"), (14_000, "14 KB"), (2_500_000, "2.5 MB")];
        for (bytes, expected) in cases {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn every_failure_has_a_hint() {
        assert!(hint("RECIPIENT_SUPPRESSED", "PERMANENT_ERROR").contains("suppression"));
        let general: std::collections::BTreeSet<&str> =
            Category::ALL.iter().map(|category| hint("SOME_CODE", category.as_str())).collect();
        assert!(general.len() >= 5, "{general:?}");
        assert!(!hint("", "").is_empty());
    }
}
