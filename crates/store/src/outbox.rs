//! The emails and their way through the pipeline: every change of status happens in one of these verbs,
//! together with its events, guarded by status, version and fence.

use std::time::Duration;

use async_trait::async_trait;
use model::attempt::LostLease;
use model::{
    Claim, CompanyId, Content, EmailId, Envelope, Event, Failure, Guard, NewEmail, Status, Timestamp,
};
use model::{Verdict, WorkerId};

use crate::{StoreError, content_codec};

#[async_trait]
pub trait Outbox: Send + Sync {
    /// Stores the emails of one request, all or none, together with its idempotency key. When this returns
    /// `Stored`, they are on disk. Recipients named by external id or document are created or brought up to date
    /// with them; one named by its own id is left as it is.
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted, StoreError>;

    /// Leases due emails to a worker: fair between companies by weight, by priority within a company, within
    /// the companies' concurrency and rate limits, and none of a company that is switched off. Moves them to
    /// PROCESSING, counts the attempt and, but for suspects, the start, hands out the next fence and records
    /// RECEIVED. What has outlived its time is moved to EXPIRED instead. The cost does not grow with what is
    /// waiting. What a caller that goes away meanwhile does not take is put back as if it had never been claimed.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError>;

    /// Counts the start of a suspect (`SUSPECT_STARTS`), which its claim does not: nothing of its work may be done before
    /// this says `true` and the start is on disk. Counts once, however often it is asked. `false` when the email was
    /// cancelled or taken over.
    async fn begin_suspect(&self, guard: Guard) -> Result<bool, StoreError>;

    /// Records that the provider is about to be called. Nothing may be sent before this says `Yes`.
    async fn begin(&self, start: AttemptStart) -> Result<Begun, StoreError>;

    /// Records how an attempt ended. A worker that lost its lease changes nothing: its result is kept as a
    /// LATE_RESULT event.
    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError>;

    /// Prolongs the leases of `owner`. Returns those that are no longer its own.
    async fn renew(
        &self,
        owner: WorkerId,
        guards: Vec<Guard>,
        until: Timestamp,
    ) -> Result<Vec<EmailId>, StoreError>;

    /// Leases that ran out before `now`, or whose owner is known to be dead.
    async fn lost_leases(&self, now: Timestamp, limit: u32) -> Result<Vec<LostLease>, StoreError>;

    /// Moves waiting emails whose time is over to EXPIRED (a held one, whose outcome is unknown, to FAILED).
    /// Returns how many; call again while it returns `limit`.
    async fn expire(&self, now: Timestamp, limit: u32) -> Result<u32, StoreError>;

    /// Emails in ACCEPTED, oldest first, but for those whose intake somebody began within `INTAKE_LEASE` of `now`.
    async fn awaiting_intake(&self, now: Timestamp, limit: u32) -> Result<Vec<IntakeItem>, StoreError>;

    /// Counts a start of an email's intake and, once that is on disk, hands out the content. `None` when the email was
    /// no longer there to be taken in, or somebody else began.
    async fn begin_intake(
        &self,
        item: (EmailId, u64),
        now: Timestamp,
    ) -> Result<Option<IntakeStart>, StoreError>;

    /// Ends the intake of one email. `false` when it was no longer there to be ended.
    async fn settle_intake(
        &self,
        item: (EmailId, u64),
        verdict: IntakeVerdict,
        events: Vec<Event>,
        now: Timestamp,
    ) -> Result<bool, StoreError>;

    /// Withdraws an email that no provider has been called for.
    async fn cancel(&self, company: CompanyId, id: EmailId, now: Timestamp) -> Result<Cancelled, StoreError>;

    /// Returns when another process has made emails due, where the store can tell. It may miss some and never
    /// return: who waits for work looks by itself from time to time.
    async fn arrival(&self) {
        std::future::pending().await
    }

    /// Makes a waiting (or held) email due now.
    async fn retry_now(
        &self,
        company: CompanyId,
        id: EmailId,
        now: Timestamp,
    ) -> Result<RetriedNow, StoreError>;
}

/// One request's emails and what guards them against being taken twice.
#[derive(Debug, Clone)]
pub struct Acceptance {
    pub company: CompanyId,
    pub emails: Vec<NewEmail>,
    pub key: Option<IdempotencyKey>,
    /// The company's limit of emails per UTC day, if it has one. All that were taken in since midnight count towards it,
    /// also those before there was a limit.
    pub daily_limit: Option<u32>,
    pub now: Timestamp,
}

/// A request's idempotency key, with what must be remembered of the request.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    pub key: String,
    /// Of one of two kinds: see `QUICK_HASH`.
    pub body_hash: [u8; 32],
    /// The answer to give again.
    pub answer: String,
    pub keep_until: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    Stored,
    /// The key was used for the same request before: its answer.
    Replayed {
        answer: String,
    },
    /// The key was used for another request.
    KeyReused,
    /// These are more than the company has left of its day. Nothing was stored; so many would have been.
    OverDailyLimit {
        left: u32,
    },
}

const DAY_MS: i64 = 24 * 3600 * 1000;

/// What the ids of that day and of later ones are not below: where to begin counting what a company handed in.
pub fn first_id_of(day: i64) -> EmailId {
    EmailId::from_parts(Timestamp::from_millis(day.saturating_mul(DAY_MS)), [0; 10])
}

/// How many emails a company has handed in on its day once these are taken, or the refusal.
pub fn count_towards_day(handed_in: i64, emails: usize, limit: u32) -> Result<i64, Accepted> {
    let after = handed_in.saturating_add(i64::try_from(emails).unwrap_or(i64::MAX));
    if after <= i64::from(limit) {
        return Ok(after);
    }
    let left = i64::from(limit).saturating_sub(handed_in).max(0);
    Err(Accepted::OverDailyLimit { left: u32::try_from(left).unwrap_or(u32::MAX) })
}

/// What is remembered under an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptAnswer {
    pub body_hash: Vec<u8>,
    pub answer: String,
}

/// How a hash ends that is no SHA-256.
pub const QUICK_HASH: [u8; 16] = *b"XXH3, 128 bits  ";

impl KeptAnswer {
    /// The answer to a request that comes with its key. Hashes of different kinds tell nothing of each other: that is a key
    /// stored by a version that hashed otherwise, within the day that it is kept. Then the request is taken for the same, as
    /// nearly all are that come with a used key; the other answer would have an application send what was sent.
    pub fn to(&self, body_hash: &[u8; 32]) -> Accepted {
        let is_comparable = self.body_hash.ends_with(&QUICK_HASH) == body_hash.ends_with(&QUICK_HASH);
        let is_same = self.body_hash == body_hash || !is_comparable;
        if is_same { Accepted::Replayed { answer: self.answer.clone() } } else { Accepted::KeyReused }
    }
}

/// Emails of which routes a claim looks at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Routes {
    #[default]
    All,
    Only(Vec<String>),
    Except(Vec<String>),
}

impl Routes {
    pub fn allow(&self, route: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(routes) => routes.iter().any(|other| other == route),
            Self::Except(routes) => !routes.iter().any(|other| other == route),
        }
    }
}

#[derive(Debug, Clone)]
pub struct ClaimRequest {
    pub owner: WorkerId,
    pub now: Timestamp,
    pub lease_until: Timestamp,
    pub limit: u32,
    /// Stop adding emails when their content comes to this much.
    pub size_bytes_max: u64,
    /// Emails of other routes are passed over, at no cost that grows with their number.
    pub routes: Routes,
}

#[derive(Debug, Clone)]
pub struct AttemptStart {
    pub guard: Guard,
    pub provider: String,
    pub events: Vec<Event>,
    pub now: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// The guard for what follows.
    Yes(Guard),
    /// Lock not acquired: the email was cancelled, expired or taken over.
    Lost,
}

#[derive(Debug, Clone)]
pub struct Settlement {
    pub guard: Guard,
    pub by: SettledBy,
    pub verdict: Verdict,
    pub events: Vec<Event>,
    pub now: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettledBy {
    Worker,
    /// The sweep, for a worker that did not come back; refused if the lease was renewed meanwhile.
    Sweep {
        lease_seen: Timestamp,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Done(Status),
    /// Lock not acquired: somebody else owns the email by now.
    Late,
}

/// Who began an intake is left alone with it for so long. Reading the largest message takes a fraction of this; past it,
/// whoever began did not come back.
pub const INTAKE_LEASE: Duration = Duration::from_secs(10);

/// An email whose content is still to be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntakeItem {
    pub id: EmailId,
    pub company: CompanyId,
    pub version: u64,
    /// Intakes of it that were begun and never ended.
    pub unfinished_starts: u32,
}

/// An intake that was begun.
#[derive(Debug, Clone)]
pub struct IntakeStart {
    /// Under which it is to be ended.
    pub version: u64,
    pub content: Option<Content>,
}

impl IntakeStart {
    /// Reads the content as stores keep it; what cannot be read is as good as none.
    pub fn of(version: u64, block: Option<&[u8]>) -> Self {
        Self { version, content: block.and_then(|block| content_codec::decode(block).ok()) }
    }
}

#[derive(Debug, Clone)]
pub enum IntakeVerdict {
    /// It may enter the queue, under the envelope read from its content.
    Passed {
        envelope: Envelope,
    },
    Refused {
        failure: Failure,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    Done,
    NotFound,
    /// It is too late in this status.
    TooLate(Status),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetriedNow {
    Done,
    NotFound,
    /// Nothing waits to be retried in this status.
    NotWaiting(Status),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_belongs_to_its_request_and_to_one_that_cannot_be_compared() {
        let quick = |first: u8| {
            let mut hash = [first; 32];
            hash[16..].copy_from_slice(&QUICK_HASH);
            hash
        };
        let cases = [
            // case                          kept      asked     the same
            ("SHA-256, the same", [1; 32], [1; 32], true),
            ("SHA-256, another", [1; 32], [2; 32], false),
            ("quick, the same", quick(1), quick(1), true),
            ("quick, another", quick(1), quick(2), false),
            ("kept by an earlier version", [1; 32], quick(1), true),
            ("kept by a later version", quick(1), [1; 32], true),
        ];
        for (case, kept, asked, is_same) in cases {
            let kept = KeptAnswer { body_hash: kept.to_vec(), answer: "first".into() };
            let expected =
                if is_same { Accepted::Replayed { answer: "first".into() } } else { Accepted::KeyReused };
            assert_eq!(kept.to(&asked), expected, "{case}");
        }
    }
}
