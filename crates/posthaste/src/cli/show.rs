//! `posthaste show ID`: an email, its times and its history. Needs no company: the operator may see all.

use std::io::BufRead as _;

use anyhow::bail;
use model::email::LastFailure;
use model::{Address, Company, Email, EmailId, Event, Mailbox, Timestamp};
use serde_json::{Value, json};
use store::Store;

use super::out::{duration, moment, table};
use super::{Session, note, parse_id};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The ids of emails; - reads them from standard input, one per line.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// An email with all that is known about it.
pub struct Record {
    pub company: Company,
    pub email: Email,
    pub events: Vec<Event>,
}

pub async fn run(session: &Session, args: &Args) -> anyhow::Result<()> {
    let store = session.store().await?;
    let mut unknown = 0_u64;
    let mut total = 0_u64;
    for id in ids(&args.ids) {
        let id = id?;
        total += 1;
        let found = match parse_id(&id) {
            Ok(id) => find(&*store, id).await?,
            Err(_) => None,
        };
        match found {
            Some(record) if session.out.is_json() => session.out.json(&record_json(&record))?,
            Some(record) => session.out.line(picture(&record, session.now()).trim_end())?,
            None => {
                unknown += 1;
                note(format_args!("posthaste: there is no email {}", id.trim()));
            }
        }
    }
    store.close().await;
    if unknown > 0 {
        bail!("{unknown} of {total} not found");
    }
    Ok(())
}

/// The ids as given, or line by line as they come in.
fn ids(given: &[String]) -> impl Iterator<Item = std::io::Result<String>> + '_ {
    given.iter().flat_map(|id| -> Box<dyn Iterator<Item = std::io::Result<String>>> {
        if id == "-" {
            let is_text =
                |line: &std::io::Result<String>| line.as_ref().map_or(true, |line| !line.trim().is_empty());
            return Box::new(std::io::stdin().lock().lines().filter(is_text));
        }
        Box::new(std::iter::once(Ok(id.clone())))
    })
}

pub async fn find(store: &dyn Store, id: EmailId) -> anyhow::Result<Option<Record>> {
    let Some(owner) = store.company_of(id).await? else {
        return Ok(None);
    };
    let (Some(company), Some(email)) = (store.company(owner).await?, store.email(owner, id).await?) else {
        return Ok(None);
    };
    let events = store.events(owner, id).await?.unwrap_or_default();
    Ok(Some(Record { company, email, events }))
}

fn picture(record: &Record, now: Timestamp) -> String {
    let Record { company, email, events } = record;
    let mut facts = vec![
        ("id", email.id.to_string()),
        ("status", email.status.to_string()),
        ("company", company.name.clone()),
        ("to", email.envelope.to.expose().to_owned()),
        ("subject", email.envelope.subject.expose().clone()),
        ("created", moment(email.created_at, now)),
    ];
    let mut time = |name, at: Option<Timestamp>| {
        facts.extend(at.map(|at| (name, moment(at, now))));
    };
    time("scheduled", email.scheduled_at);
    time("due", email.due_at.filter(|at| *at < Timestamp::NEVER && !email.status.is_final()));
    time("sent", email.sent_at);
    time("delivered", email.delivered_at);
    time("failed", email.failed_at);
    time("expires", (!email.status.is_final()).then_some(email.expires_at));
    facts.push(("attempts", email.attempts.to_string()));
    facts.extend(email.provider.clone().map(|provider| ("provider", provider)));
    facts.extend(email.provider_message_id.clone().map(|id| ("provider id", id)));
    facts.extend(email.last_failure.as_ref().map(|failure| ("last failure", failure_line(failure))));
    if email.outcome_unknown {
        facts.push(("note", "an attempt ended without an answer; the provider may have taken it".to_owned()));
    }
    let facts: Vec<Vec<String>> =
        facts.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    format!("{}\n{}", table(&[], &facts), history(events))
}

fn failure_line(failure: &LastFailure) -> String {
    format!("{} ({}): {}", failure.code, failure.category, failure.reason)
}

/// The events, each with how long after the one before it came.
fn history(events: &[Event]) -> String {
    let mut before: Option<Timestamp> = None;
    let rows: Vec<Vec<String>> = events
        .iter()
        .map(|event| {
            let after =
                before.map_or(String::new(), |before| format!("+{}", duration(event.at.since(before))));
            before = Some(event.at);
            vec![event.at.to_string(), after, event.kind.to_string(), metadata_line(event)]
        })
        .collect();
    table(&["TIME", "AFTER", "EVENT", "DETAILS"], &rows)
}

fn metadata_line(event: &Event) -> String {
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    event
        .metadata
        .iter()
        .map(|(name, value)| format!("{name}={}", shown(value)))
        .collect::<Vec<_>>()
        .join(" ")
}

fn record_json(record: &Record) -> Value {
    let Record { company, email, events } = record;
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string());
    let list = |addresses: &[Address]| {
        addresses.iter().map(|address| address.expose().to_owned()).collect::<Vec<_>>()
    };
    json!({
        "id": email.id.to_string(),
        "company": company.name,
        "status": email.status.as_str(),
        "from": email.envelope.from.as_ref().map(Mailbox::expose),
        "to": email.envelope.to.expose(),
        "cc": list(&email.envelope.cc),
        "bcc": list(&email.envelope.bcc),
        "subject": email.envelope.subject.expose(),
        "tags": email.envelope.tags,
        "requestId": email.request_id,
        "externalId": email.external_id,
        "mode": email.mode.as_str(),
        "priority": email.priority,
        "attempts": email.attempts,
        "createdAt": email.created_at.to_string(),
        "scheduledAt": time(email.scheduled_at),
        "dueAt": time(email.due_at),
        "expiresAt": email.expires_at.to_string(),
        "sentAt": time(email.sent_at),
        "deliveredAt": time(email.delivered_at),
        "failedAt": time(email.failed_at),
        "provider": email.provider,
        "providerMessageId": email.provider_message_id,
        "lastFailureCode": email.last_failure.as_ref().map(|failure| failure.code.clone()),
        "lastFailureReason": email.last_failure.as_ref().map(|failure| failure.reason.clone()),
        "outcomeUnknown": email.outcome_unknown,
        "sizeBytes": email.size_bytes,
        "events": events.iter().map(|event| json!({
            "type": event.kind.as_str(),
            "at": event.at.to_string(),
            "metadata": event.metadata,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use model::{EventKind, NewEmail, Status};
    use testkit::{START, a_company, an_email};

    use super::*;

    /// The email as a store would give it back, with nothing done yet.
    pub fn as_stored(email: NewEmail, status: Status) -> Email {
        Email {
            id: email.id,
            company: email.company,
            request_id: email.request_id,
            mode: email.mode,
            status,
            version: 1,
            fence: 0,
            envelope: email.envelope,
            recipient: email.recipient,
            external_id: email.external_id,
            entity: email.entity,
            priority: email.priority,
            route: email.route,
            attempts: 0,
            created_at: email.created_at,
            due_at: Some(email.due_at),
            scheduled_at: email.scheduled_at,
            expires_at: email.expires_at,
            sent_at: None,
            delivered_at: None,
            failed_at: None,
            dead_at: None,
            wishes: email.wishes,
            provider: None,
            provider_message_id: None,
            ses_message_id: None,
            last_failure: None,
            outcome_unknown: false,
            size_bytes: 0,
        }
    }

    #[test]
    fn the_history_shows_how_long_each_step_took() {
        let company = a_company("acme");
        let email = as_stored(an_email(company.id), Status::Sent);
        let events = vec![
            Event::new(EventKind::Enqueued, START),
            Event::new(EventKind::Received, START.plus(Duration::from_millis(3))).with("attempt", 1),
            Event::new(EventKind::Sent, START.plus(Duration::from_millis(1_503))),
        ];
        let text = picture(&Record { company, email, events }, START);
        let lines: Vec<&str> = text.lines().collect();
        let line = |part: &str| *lines.iter().find(|line| line.contains(part)).expect(part);
        assert!(line("RECEIVED").contains("+3 ms") && line("RECEIVED").ends_with("attempt=1"), "{text}");
        assert!(line("+1.5 s").ends_with("SENT"), "{text}");
        assert_eq!(line("status").split_whitespace().last(), Some("SENT"));
    }
}
