//! One try to hand an email to a provider: what a worker holds while it tries, and what it reports.

use std::time::Duration;

use serde_json::json;

use crate::address::Address;
use crate::clock::Timestamp;
use crate::company::KeyMode;
use crate::email::{Content, Entity, Envelope, Recipient, Wishes};
use crate::error_code::{Category, ErrorCode};
use crate::event::Event;
use crate::id::{CompanyId, EmailId};
use crate::trace::TraceContext;

/// What a later write of a worker must still find in the row: the fence of its claim and the version it last
/// saw. (The status goes without saying: PROCESSING.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guard {
    pub id: EmailId,
    pub fence: u64,
    pub version: u64,
}

/// An email leased to a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    pub guard: Guard,
    pub company: CompanyId,
    pub request_id: String,
    pub mode: KeyMode,
    /// Counted from 1 over the email's whole life.
    pub attempt: u32,
    /// Counted from 1 since acceptance or the last replay: what the retry policy looks at.
    pub attempt_in_series: u32,
    /// As in `Outgoing`.
    pub series: u32,
    /// How many times in a row a worker started on it and never came back.
    pub unfinished_starts: u32,
    /// Some earlier attempt ended without our knowing whether the provider took it.
    pub outcome_unknown: bool,
    /// The provider of the attempt before this one.
    pub last_provider: Option<String>,
    /// Where it waited.
    pub route: String,
    pub created_at: Timestamp,
    pub claimed_at: Timestamp,
    pub lease_until: Timestamp,
    pub expires_at: Timestamp,
    pub envelope: Envelope,
    pub recipient: Option<Recipient>,
    pub external_id: Option<String>,
    pub entity: Option<Entity>,
    pub wishes: Wishes,
    /// `None` when the content is gone.
    pub content: Option<Content>,
    /// Where its acceptance stands in a trace, if it is traced.
    pub trace: Option<TraceContext>,
}

impl Claim {
    pub fn id(&self) -> EmailId {
        self.guard.id
    }
}

/// A lease whose worker did not come back in time, or is known to be dead.
#[derive(Debug, Clone, PartialEq)]
pub struct LostLease {
    pub guard: Guard,
    pub company: CompanyId,
    pub request_id: String,
    pub attempt: u32,
    pub attempt_in_series: u32,
    pub unfinished_starts: u32,
    /// The provider call was about to be made: whether the provider took the email is not known.
    pub at_provider: bool,
    pub provider: Option<String>,
    pub lease_until: Timestamp,
    pub expires_at: Timestamp,
    pub wishes: Wishes,
}

/// What went wrong with an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: ErrorCode,
    pub category: Category,
    /// For people, already masked.
    pub message: String,
    /// The provider's own code.
    pub original_code: Option<String>,
    pub retry_after: Option<Duration>,
    /// Whom the provider refused, where it refused one of the recipients and not the email. Few failures have it, so it
    /// takes no room in the others.
    pub refused: Option<Box<Address>>,
}

/// Tells of copies that the provider refused while it took the email, if there are any. Addresses are masked.
pub fn with_refused_copies(event: Event, refused: &[Failure]) -> Event {
    let copy = |failure: &Failure| {
        json!({
            "recipient": failure.refused.as_ref().map(ToString::to_string),
            "errorCode": failure.code.as_str(),
            "errorMessage": failure.message,
            "originalCode": failure.original_code,
        })
    };
    if refused.is_empty() {
        event
    } else {
        event.with("copiesRefused", refused.iter().map(copy).collect::<Vec<_>>())
    }
}

/// How an attempt ended, as the store is to record it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The provider took it. Its kind says whose id that is: operators look for those of SES in a column of their own.
    Sent {
        provider: String,
        provider_kind: &'static str,
        message_id: Option<String>,
        duration_ms: u64,
        /// Copies that it did not take along, each with whom it refused.
        refused: Vec<Failure>,
    },
    /// It is due again later. `outcome_unknown` when the provider may have taken it after all.
    Retry { due_at: Timestamp, failure: Failure, outcome_unknown: bool },
    /// The provider may have taken it and a second copy must not be risked: it waits for a person or a report.
    Hold { failure: Failure },
    /// Given up for good; a dead letter from now on.
    Fail { failure: Failure, outcome_unknown: bool },
    /// Its time to live is over, or would be before it is due again.
    Expire { failure: Option<Failure> },
    /// Given back at shutdown: due at once, and the attempt does not count.
    Release { outcome_unknown: bool },
    /// Put back untouched for a later turn: it is as if the claim had never been. With a route, it waits there from
    /// now on.
    PutBack { due_at: Timestamp, route: Option<String> },
    /// Its worker vanished before it called the provider: due at once, the attempt stands.
    Requeue { due_at: Timestamp },
}
