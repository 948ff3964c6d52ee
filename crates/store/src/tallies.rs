//! Counts of what happened, by day: kept as it happens, so that a summary costs the same however long the history is.
//! A count may lag behind by the time between two calls of `fold`.

use async_trait::async_trait;
use model::{CompanyId, EventKind, KeyMode, Timestamp};

use crate::StoreError;

/// The events that are counted: what people ask about, not the steps of every attempt.
pub const TALLIED: [EventKind; 12] = [
    EventKind::Sent,
    EventKind::Delivered,
    EventKind::DeliveryDelayed,
    EventKind::Bounced,
    EventKind::SoftBounced,
    EventKind::Complained,
    EventKind::Opened,
    EventKind::Clicked,
    EventKind::Failed,
    EventKind::Invalid,
    EventKind::Expired,
    EventKind::Cancelled,
];

/// How many counts `entities` looks at, the latest first. A company whose entities are orders has hundreds of thousands;
/// those of a page are among the first hundreds.
pub const ENTITY_ROWS_LOOKED_AT_MAX: u32 = 20_000;

/// How many days are kept: nobody can ask for more than a year. What they hold of a person, an address that something
/// happened to, goes with them.
pub const DAYS_KEPT: i64 = 366;

/// The first day that is kept.
pub fn kept_since(now: Timestamp) -> i64 {
    day_of(now) - DAYS_KEPT
}

/// The first day for which what a company with a daily limit handed in is kept: yesterday, until every process has seen
/// midnight. Should one be later still, the day is counted anew.
pub fn limits_kept_since(now: Timestamp) -> i64 {
    day_of(now) - 1
}

#[async_trait]
pub trait Tallies: Send + Sync {
    /// Adds up what was noted since the last time, at most `limit` notes. Returns how many there were; call again while
    /// it returns `limit`. A store that adds up at once has nothing to do here.
    async fn fold(&self, _limit: u32) -> Result<u32, StoreError> {
        Ok(0)
    }

    /// What happened to emails about an entity since the beginning of a day.
    async fn entity_tally(
        &self,
        company: CompanyId,
        entity: &str,
        since_day: i64,
    ) -> Result<Vec<EntityTally>, StoreError>;

    /// The same by day, oldest first; days on which nothing happened are missing.
    async fn entity_days(
        &self,
        company: CompanyId,
        entity: &str,
        since_day: i64,
    ) -> Result<Vec<DayTally>, StoreError>;

    /// What happened to all emails of a company (`None`: of all companies), of `live_` or `test_` keys or both, by day,
    /// oldest first.
    async fn company_days(
        &self,
        company: Option<CompanyId>,
        mode: Option<KeyMode>,
        since_day: i64,
    ) -> Result<Vec<DayTally>, StoreError>;

    /// The entities that emails were about lately, the latest first. Of a company with very many, older ones may be
    /// missing.
    async fn entities(&self, company: CompanyId, limit: u32) -> Result<Vec<EntityRecord>, StoreError>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntityTally {
    pub kind: EventKind,
    pub total: u64,
    pub unique_recipients: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayTally {
    /// Days since 1970, UTC.
    pub day: i64,
    pub kind: EventKind,
    pub total: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityRecord {
    pub id: String,
    /// The last day on which something was counted.
    pub last_day: i64,
}

/// The day a moment is in, UTC, counted from 1970.
pub fn day_of(at: Timestamp) -> i64 {
    at.millis().div_euclid(24 * 3600 * 1000)
}
