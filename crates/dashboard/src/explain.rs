//! Why an email is where it is and what comes next, in words, from what the API tells of it. Pure.

use model::{EventKind, Status, Timestamp};
use serde_json::Value;

use crate::words::{count, exact_with_distance, time};

/// What the words are made of.
pub struct Facts<'a> {
    pub email: &'a Value,
    pub events: &'a [Value],
    pub company: &'a Value,
    pub providers: &'a [Value],
    pub now: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Explanation {
    pub why: String,
    pub next: String,
}

pub fn explain(status: Status, facts: &Facts<'_>) -> Explanation {
    let email = facts.email;
    let text = |name: &str| email[name].as_str().unwrap_or_default();
    let provider = email["provider"].as_str().unwrap_or("The provider");
    let ending = "nothing, this is its end.";
    let (why, next) = match status {
        Status::Accepted => (
            "It was stored as handed in, and its content is still to be checked.".to_owned(),
            "a worker checks it and lets it into the queue.".to_owned(),
        ),
        Status::Enqueued | Status::RetryScheduled => return waiting(facts),
        Status::Processing => (
            format!("A worker holds it for attempt {}{}.", email["attempts"], at_provider(facts)),
            "the provider has 30 seconds to answer. Should the worker have died, another one takes over."
                .to_owned(),
        ),
        Status::Sent => (
            format!("{provider} took it."),
            "if the provider reports a delivery, a bounce or a complaint, it is recorded here.".to_owned(),
        ),
        Status::Failed => (
            format!(
                "It was given up after {}: {}.",
                count(email["attempts"].as_u64().unwrap_or(0), "attempt"),
                failure(email).unwrap_or_else(|| "no reason was recorded".to_owned())
            ),
            "nothing, unless it is sent again. Dead letters are kept for a while, then removed.".to_owned(),
        ),
        Status::Delivered => (format!("{provider} reported it delivered."), ending.to_owned()),
        Status::Bounced => {
            (format!("{provider} reported that it bounced{}.", reason(email)), ending.to_owned())
        }
        Status::Complained => {
            (format!("{provider} reported a complaint by the recipient."), ending.to_owned())
        }
        Status::Invalid => (format!("Its content was refused{}.", reason(email)), ending.to_owned()),
        Status::Expired => (
            format!("It was not sent before its time was over at {}{}.", text("expiresAt"), reason(email)),
            ending.to_owned(),
        ),
        Status::Cancelled => ("It was withdrawn before it was sent.".to_owned(), ending.to_owned()),
    };
    Explanation { why, next }
}

fn waiting(facts: &Facts<'_>) -> Explanation {
    let (email, now) = (facts.email, facts.now);
    let due_at = time(&email["dueAt"]).unwrap_or(now);
    let told = |why: &str, next: String| Explanation { why: why.to_owned(), next };
    if due_at >= Timestamp::NEVER {
        return told(
            "Nobody knows whether the provider took the last attempt, and a second copy must not be risked.",
            "it waits for the provider's report, or for a person: Retry sends it again.".to_owned(),
        );
    }
    if facts.company["disabled"] == true {
        return told(
            "Its company is switched off.",
            "it is sent when the company is switched on again, unless it expires before.".to_owned(),
        );
    }
    if let Some(reason) = facts.company["paused"]["reason"].as_str() {
        return told(
            &format!("Its company is paused: {}.", reason.trim_end_matches('.')),
            "it is sent when a person lets the company go on, unless it expires before.".to_owned(),
        );
    }
    let give_up = time(&email["expiresAt"])
        .map(|at| format!(" It is given up {} if it was not sent by then.", exact_with_distance(at, now)))
        .unwrap_or_default();
    if due_at > now {
        let attempts = &email["attempts"];
        let why = match (failure(email), time(&email["scheduledAt"])) {
            (Some(failure), _) => format!("Attempt {attempts} failed with {failure}."),
            (None, Some(at)) => format!("It is scheduled for {}.", exact_with_distance(at, now)),
            (None, None) => "It is not due yet.".to_owned(),
        };
        return told(&why, format!("it is tried {}.{give_up}", exact_with_distance(due_at, now)));
    }
    if let Some(resting) = standstill(facts) {
        let code = resting["breaker"]["code"].as_str().unwrap_or("no reason known");
        let name = resting["name"].as_str().unwrap_or_default();
        let look = time(&resting["breaker"]["nextProbeAt"]).map(|at| exact_with_distance(at, now));
        let next = look.map_or_else(String::new, |look| format!("the provider is looked at again {look}."));
        return told(
            &format!(
                "It is due, but the provider {name} takes no emails now: {code}. This costs it no attempt."
            ),
            format!("{next}{give_up}"),
        );
    }
    told("It is due and waits for a worker.", format!("it is sent as soon as a worker is free.{give_up}"))
}

/// A resting provider, where all those the email may take are resting. Without a route of its own the company's default
/// is not known here, so only a server all of whose providers rest is at a standstill.
fn standstill<'a>(facts: &Facts<'a>) -> Option<&'a Value> {
    let route = facts.company["route"].as_array();
    let is_usable = |provider: &&Value| route.is_none_or(|route| route.contains(&provider["name"]));
    let usable: Vec<&Value> =
        facts.providers.iter().filter(|provider| provider["kind"] != "capture").filter(is_usable).collect();
    let all_rest = !usable.is_empty() && usable.iter().all(|provider| !provider["breaker"].is_null());
    if all_rest { usable.first().copied() } else { None }
}

fn at_provider(facts: &Facts<'_>) -> &'static str {
    let last = facts.events.last().and_then(|event| event["type"].as_str());
    let called = last.is_some_and(|kind| kind == EventKind::SentAttempt.as_str());
    if called { ", which is at the provider right now" } else { "" }
}

/// `CODE (what the provider said)`.
fn failure(email: &Value) -> Option<String> {
    let code = email["lastFailureCode"].as_str()?;
    let reason = email["lastFailureReason"].as_str().unwrap_or_default().trim_end_matches('.');
    Some(if reason.is_empty() { code.to_owned() } else { format!("{code} ({reason})") })
}

fn reason(email: &Value) -> String {
    failure(email).map(|failure| format!(": {failure}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::{START, at_secs};

    use super::*;

    fn told(status: Status, changes: Value, company: &Value, providers: &[Value]) -> String {
        let mut email =
            json!({ "attempts": 1, "expiresAt": at_secs(3600).to_rfc3339(), "dueAt": START.to_rfc3339() });
        for (name, value) in changes.as_object().expect("an object") {
            email[name] = value.clone();
        }
        let facts = Facts { email: &email, events: &[], company, providers, now: at_secs(60) };
        let Explanation { why, next } = explain(status, &facts);
        format!("{why} | {next}")
    }

    #[test]
    fn what_it_waits_for_is_named() {
        let plain = json!({ "disabled": false, "paused": null, "route": null });
        let resting = json!({
            "name": "main", "kind": "ses",
            "breaker": { "code": "SES_SERVICE_UNAVAILABLE", "nextProbeAt": at_secs(90).to_rfc3339() },
        });
        let working = json!({ "name": "second", "kind": "resend", "breaker": null });
        let failed = json!({
            "dueAt": at_secs(90).to_rfc3339(), "lastFailureCode": "SMTP_TRANSIENT_450", "lastFailureReason": "try later",
        });
        let held = json!({ "dueAt": Timestamp::NEVER.to_rfc3339() });
        let scheduled = json!({ "dueAt": at_secs(90).to_rfc3339(), "scheduledAt": at_secs(90).to_rfc3339() });
        let off = json!({ "disabled": true });
        let paused = json!({ "disabled": false, "paused": { "reason": "too many bounces" } });
        let only_main = json!({ "disabled": false, "route": ["main"] });
        let cases: &[(&str, &Value, &Value, &[Value], &str)] = &[
            ("due", &json!({}), &plain, &[], "waits for a worker"),
            (
                "failed before",
                &failed,
                &plain,
                &[],
                "failed with SMTP_TRANSIENT_450 (try later). | it is tried 2026-01-01 00:01:30 UTC (in 30 s)",
            ),
            ("held", &held, &plain, &[], "second copy must not be risked"),
            ("scheduled", &scheduled, &plain, &[], "scheduled for 2026-01-01 00:01:30"),
            ("switched off", &json!({}), &off, &[], "switched off"),
            ("paused", &json!({}), &paused, &[], "paused: too many bounces."),
            (
                "all rest",
                &json!({}),
                &plain,
                std::slice::from_ref(&resting),
                "main takes no emails now: SES_SERVICE_UNAVAILABLE",
            ),
            ("another works", &json!({}), &plain, &[resting.clone(), working.clone()], "waits for a worker"),
            (
                "not on its route",
                &json!({}),
                &only_main,
                &[resting.clone(), working.clone()],
                "takes no emails now",
            ),
        ];
        for (case, changes, company, providers, expected) in cases {
            let words = told(Status::Enqueued, (*changes).clone(), company, providers);
            assert!(words.contains(expected), "{case}: {words}");
        }
    }

    #[test]
    fn every_status_is_explained() {
        for status in Status::ALL {
            let words = told(status, json!({}), &json!({}), &[]);
            assert!(words.split(" | ").all(|part| part.ends_with('.')), "{status}: {words}");
        }
    }
}
