//! Intake: checks what was accepted unchecked (bulk, .eml) and lets it into the queue or refuses it. `sweep` calls this
//! in every round, and ends a round that it began before the process shuts down.
//!
//! A message that brings the process down would do so again at every start. So each start is counted on disk before the
//! content is touched, one email at a time, and after three that never ended the email is refused unread.

use model::{
    Address, Category, CompanySettings, Content, Envelope, ErrorCode, Event, EventKind, Failure, KeyMode,
    Status, Timestamp,
};
use store::{IntakeItem, IntakeVerdict, StoreError};

use crate::accept::rules;
use crate::company_cache::CompanyCache;
use crate::conclude::STARTS_MAX;
use crate::validate::{Validation, refusal, template};
use crate::{Gateway, observe};

/// The same code with which the API refuses a composed email.
const SENDER_NOT_ALLOWED: ErrorCode = ErrorCode::new("SENDER_NOT_ALLOWED");

/// How many emails one batch checks.
pub const BATCH: u32 = 4;

/// Checks one batch; returns how many emails were let in or refused.
pub async fn take_in_batch(gateway: &Gateway, companies: &CompanyCache) -> Result<u32, StoreError> {
    let mut ended = 0;
    for item in gateway.store.awaiting_intake(gateway.clock.now(), BATCH).await? {
        let (id, company) = (item.id, item.company);
        match take_in(gateway, companies, item).await {
            Ok(done) => ended += u32::from(done),
            Err(error) if error.is_temporary() => return Err(error),
            // One row that cannot be dealt with must not keep the others waiting.
            Err(error) => tracing::error!(
                outboxId = %id, companyId = %company, %error, "an intake could not be ended"
            ),
        }
    }
    Ok(ended)
}

/// `false` when the email was no longer there to be taken in.
async fn take_in(gateway: &Gateway, companies: &CompanyCache, item: IntakeItem) -> Result<bool, StoreError> {
    let began_at = gateway.clock.now();
    let IntakeItem { id, company, version, unfinished_starts } = item;
    let Some(email) = gateway.store.email(company, id).await? else {
        return Ok(false);
    };
    let sender = companies.get(&*gateway.store, company).await?;
    let settings = sender.as_deref().map(|company| &company.settings);
    let (version, checked) = if unfinished_starts >= STARTS_MAX {
        (version, Err(quarantined()))
    } else {
        let Some(start) = gateway.store.begin_intake((id, version), began_at).await? else {
            return Ok(false);
        };
        let checked = read(start.content, email.envelope).await;
        (start.version, checked.and_then(|found| check_senders(found, email.mode, settings)))
    };
    let verdict = match checked {
        Ok(envelope) => IntakeVerdict::Passed { envelope },
        Err(failure) => IntakeVerdict::Refused { failure },
    };
    let now = gateway.clock.now();
    let events = events_of(&verdict, began_at, now);
    let refused = refused_by(&verdict);
    let is_in = matches!(verdict, IntakeVerdict::Passed { .. });
    if !gateway.store.settle_intake((id, version), verdict, events.clone(), now).await? {
        return Ok(false);
    }
    observe::recorded(&events);
    refused.into_iter().for_each(observe::validation_failed);
    let state = if is_in { Status::Enqueued } else { Status::Invalid };
    if !is_in {
        observe::ended_as(state);
    }
    tracing::info!(
        outboxId = %id, requestId = email.request_id, companyId = %company, %state, starts = unfinished_starts,
        durationMs = u64::try_from(now.since(began_at).as_millis()).unwrap_or(u64::MAX),
        "intake ended"
    );
    if is_in {
        gateway.queue.offer(&[(id, now)]).await?;
    }
    Ok(true)
}

/// The validation that refuses it, if one does.
fn refused_by(verdict: &IntakeVerdict) -> Option<Validation> {
    match verdict {
        IntakeVerdict::Passed { .. } => None,
        IntakeVerdict::Refused { failure } if failure.code == ErrorCode::QUARANTINED => None,
        IntakeVerdict::Refused { failure } if failure.code == ErrorCode::INVALID_TEMPLATE => {
            Some(Validation::Template)
        }
        IntakeVerdict::Refused { .. } => Some(Validation::Integrity),
    }
}

/// What is found in a content that can be sent.
struct Found {
    envelope: Envelope,
    /// By the header of the message that names them.
    senders_beside_from: Vec<(&'static str, Option<Address>)>,
}

/// The envelope under which the content may be sent. What only the request said (tags) stays as it was.
async fn read(content: Option<Content>, known: Envelope) -> Result<Found, Failure> {
    match content {
        None => Err(refusal(ErrorCode::INVALID_PAYLOAD, "the content is gone")),
        Some(Content::Composed { html, .. }) => {
            template::check_html(&html)?;
            Ok(Found { envelope: known, senders_beside_from: Vec::new() })
        }
        Some(Content::Raw(eml)) => {
            // Reading a large message takes its time, and one that makes the parser panic must harm only itself.
            let reading = tokio::task::spawn_blocking(move || read_raw(&eml)).await;
            let found = reading.unwrap_or_else(|_| {
                Err(refusal(ErrorCode::INVALID_PAYLOAD, "the message could not be read"))
            })?;
            Ok(Found { envelope: Envelope { tags: known.tags, ..found.envelope }, ..found })
        }
    }
}

fn read_raw(eml: &[u8]) -> Result<Found, Failure> {
    let envelope = message::read_envelope(eml)
        .map_err(|unreadable| refusal(ErrorCode::INVALID_PAYLOAD, unreadable.to_string()))?;
    template::check_raw(eml)?;
    Ok(Found { envelope, senders_beside_from: message::senders_beside_from(eml) })
}

/// A message names its own senders, so whether the company may send as those can only be told here. Test keys never
/// reach a provider and may use all.
fn check_senders(
    found: Found,
    mode: KeyMode,
    company: Option<&CompanySettings>,
) -> Result<Envelope, Failure> {
    let from = found.envelope.from.as_ref().map(|from| ("From", Some(from.address.clone())));
    let senders: Vec<_> = from.into_iter().chain(found.senders_beside_from).collect();
    match rules::foreign_sender(company, mode, &senders) {
        None => Ok(found.envelope),
        Some(header) => {
            let message =
                format!("the message's header {header} names a sender that is none of this company");
            Err(refusal(SENDER_NOT_ALLOWED, message))
        }
    }
}

fn quarantined() -> Failure {
    let message = format!("whoever read this message did not survive it {STARTS_MAX} times in a row");
    Failure { category: Category::Permanent, ..refusal(ErrorCode::QUARANTINED, message) }
}

fn events_of(verdict: &IntakeVerdict, began_at: Timestamp, now: Timestamp) -> Vec<Event> {
    let ended = match verdict {
        IntakeVerdict::Passed { .. } => Event::new(EventKind::Enqueued, now),
        IntakeVerdict::Refused { failure } => Event::new(EventKind::Invalid, now)
            .with("errorCode", failure.code.as_str())
            .with("errorCategory", failure.category.as_str())
            .with("errorMessage", failure.message.clone()),
    };
    vec![Event::new(EventKind::Intaking, began_at), ended]
}
