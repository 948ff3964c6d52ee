//! What a verdict means for the row, decided once for every store; a store only writes it down.

use model::attempt::with_refused_copies;
use model::{ErrorCode, Event, EventKind, Failure, Move, Status, Timestamp, Verdict};

use crate::{SettledBy, Settlement, StoreError};

/// How a settled row changes; what is `None` stays as it is, but for `due_at` and `dead_at`, which are set or cleared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change<'a> {
    pub to: Status,
    pub due_at: Option<Timestamp>,
    pub sent_at: Option<Timestamp>,
    pub failed_at: Option<Timestamp>,
    /// A failed email is a dead letter from then on.
    pub dead_at: Option<Timestamp>,
    pub provider: Option<&'a str>,
    pub provider_message_id: Option<&'a str>,
    /// Set or cleared where `provider` is given.
    pub ses_message_id: Option<&'a str>,
    pub duration_ms: Option<u64>,
    pub failure: Option<&'a Failure>,
    pub outcome_unknown: bool,
    pub attempts_given_back: u32,
    /// Starts in a row that no worker ended: `None` begins to count anew, since a worker says how this one ended;
    /// otherwise the count goes down by so many.
    pub starts_given_back: Option<u32>,
    /// The route by which it waits from now on; `None` leaves it as it is.
    pub route: Option<&'a str>,
    /// Only if the lease still ends then.
    pub lease_seen: Option<Timestamp>,
}

impl<'a> Change<'a> {
    pub fn of(settlement: &'a Settlement) -> Result<Self, StoreError> {
        let now = settlement.now;
        let change = match &settlement.verdict {
            Verdict::Sent { provider, provider_kind, message_id, duration_ms, .. } => Self {
                sent_at: Some(now),
                provider: Some(provider),
                provider_message_id: message_id.as_deref(),
                ses_message_id: ses_message_id(provider_kind, message_id.as_deref()),
                duration_ms: Some(*duration_ms),
                ..Self::by(Move::Send, settlement)?
            },
            Verdict::Retry { due_at, failure, outcome_unknown } => Self {
                due_at: Some(*due_at),
                failure: Some(failure),
                outcome_unknown: *outcome_unknown,
                ..Self::by(Move::Defer, settlement)?
            },
            Verdict::Hold { failure } => Self {
                due_at: Some(Timestamp::NEVER),
                failure: Some(failure),
                outcome_unknown: true,
                ..Self::by(Move::Defer, settlement)?
            },
            Verdict::Fail { failure, outcome_unknown } => Self {
                failed_at: Some(now),
                dead_at: Some(now),
                failure: Some(failure),
                outcome_unknown: *outcome_unknown,
                ..Self::by(Move::Fail, settlement)?
            },
            Verdict::Expire { failure } => {
                Self { failure: failure.as_ref(), ..Self::by(Move::Expire, settlement)? }
            }
            Verdict::Release { outcome_unknown } => Self {
                due_at: Some(now),
                outcome_unknown: *outcome_unknown,
                attempts_given_back: 1,
                ..Self::by(Move::Release, settlement)?
            },
            Verdict::PutBack { due_at, route } => Self {
                due_at: Some(*due_at),
                route: route.as_deref(),
                attempts_given_back: 1,
                starts_given_back: Some(1),
                ..Self::by(Move::Release, settlement)?
            },
            Verdict::Requeue { due_at } => {
                Self { due_at: Some(*due_at), ..Self::by(Move::Release, settlement)? }
            }
        };
        Ok(change)
    }

    fn by(step: Move, settlement: &Settlement) -> Result<Self, StoreError> {
        let lease_seen = match settlement.by {
            SettledBy::Worker => None,
            SettledBy::Sweep { lease_seen } => Some(lease_seen),
        };
        Ok(Self {
            to: moved(Status::Processing, step)?,
            due_at: None,
            sent_at: None,
            failed_at: None,
            dead_at: None,
            provider: None,
            provider_message_id: None,
            ses_message_id: None,
            duration_ms: None,
            failure: None,
            outcome_unknown: false,
            attempts_given_back: 0,
            starts_given_back: lease_seen.map(|_| 0),
            route: None,
            lease_seen,
        })
    }
}

/// Ids of SES have a column of their own beside that of every provider: people look for it there.
pub fn ses_message_id<'a>(provider_kind: &str, message_id: Option<&'a str>) -> Option<&'a str> {
    message_id.filter(|_| provider_kind == "ses")
}

/// The status a move leads to, by the model's table.
pub fn moved(from: Status, step: Move) -> Result<Status, StoreError> {
    from.after(step).map_err(|illegal| StoreError::Broken(illegal.to_string()))
}

/// How the time of a waiting email ends. One that is held (due never) may have been sent: it is a dead letter for a
/// person to look at, not an expired one.
pub fn expiry(due_at: Timestamp, now: Timestamp) -> (Move, Event) {
    if due_at == Timestamp::NEVER {
        let event = Event::new(EventKind::Failed, now)
            .with("errorCode", ErrorCode::OUTCOME_UNKNOWN.as_str())
            .with("willRetry", false);
        (Move::Fail, event)
    } else {
        (Move::Expire, Event::new(EventKind::Expired, now))
    }
}

/// What a row says of what happened to it last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub status: Status,
    pub fence: u64,
    pub version: u64,
    pub sent_at: Option<Timestamp>,
    pub updated_at: Timestamp,
}

impl Standing {
    /// The row holds this very report of a worker already: its answer was lost, and the worker reports again. That an email
    /// was sent is told from the moment, since the provider may have reported on it meanwhile; any other end is recognised
    /// as long as it is the last that happened to the email.
    pub fn holds(&self, settlement: &Settlement, change: &Change<'_>) -> bool {
        let (guard, now) = (settlement.guard, settlement.now);
        if settlement.by != SettledBy::Worker || self.fence != guard.fence {
            return false;
        }
        match settlement.verdict {
            Verdict::Sent { .. } => self.sent_at == Some(now),
            _ => (self.status, self.version, self.updated_at) == (change.to, guard.version + 1, now),
        }
    }
}

/// What is kept of the report of a worker that slept through its lease, so that the provider's own reports still find
/// the email.
pub fn late_result(settlement: &Settlement) -> Event {
    let event = Event::new(EventKind::LateResult, settlement.now).with("fence", settlement.guard.fence);
    match &settlement.verdict {
        Verdict::Sent { provider, message_id, duration_ms, refused, .. } => {
            let event = event
                .with("result", "SENT")
                .with("provider", provider.as_str())
                .with("providerMessageId", message_id.clone())
                .with("durationMs", *duration_ms);
            with_refused_copies(event, refused)
        }
        Verdict::Retry { failure, .. } | Verdict::Hold { failure } | Verdict::Fail { failure, .. } => {
            event.with("result", "ERROR").with("errorCode", failure.code.as_str())
        }
        Verdict::Expire { .. } => event.with("result", "EXPIRED"),
        Verdict::Release { .. } | Verdict::PutBack { .. } | Verdict::Requeue { .. } => {
            event.with("result", "RELEASED")
        }
    }
}
