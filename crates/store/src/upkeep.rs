//! Keeping the store healthy: numbers for the operator, retention, and whose database it is.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use model::{Secret, Status, Timestamp, WorkerId};

use crate::StoreError;

#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Cheap at any size: the counts are kept, not counted.
    async fn stats(&self, now: Timestamp) -> Result<QueueStats, StoreError>;

    /// Makes the connections that hot work will want, so that the first emails do not wait for them. What cannot be
    /// made now is made when it is needed.
    async fn warm_up(&self) {}

    /// A write and a read: is the store fit for work?
    async fn check(&self) -> Result<(), StoreError>;

    /// How the database is set up, as far as it may lose what was acknowledged or stand in the way of work.
    async fn weaknesses(&self) -> Result<Vec<Weakness>, StoreError> {
        Ok(Vec::new())
    }

    /// Deletes what has outlived its retention, at most `limit` emails per call. Only finished emails are
    /// ever touched.
    async fn prune(&self, retention: &Retention, now: Timestamp, limit: u32) -> Result<Pruned, StoreError>;

    /// The environment this database was made for, or the one just written when it had none.
    async fn environment(&self, or_set: &str) -> Result<String, StoreError>;

    /// The key under which cursors are given out, or the one just written when there was none. It is kept here since that
    /// is what all processes share, and guards nothing from whoever can read the store.
    async fn cursor_key(&self, or_set: Secret<String>) -> Result<Secret<String>, StoreError>;

    /// Makes a worker known as alive until it leaves or its process ends, however that ends.
    async fn worker_joins(&self, worker: WorkerId) -> Result<(), StoreError>;

    async fn worker_leaves(&self, worker: WorkerId) -> Result<(), StoreError>;

    /// Releases what the store holds open; calls after this fail.
    async fn close(&self);
}

/// Something about the database that an operator should change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weakness {
    /// The setting, as the database calls it.
    pub setting: String,
    /// What is wrong with it and what to do.
    pub text: String,
    /// Acknowledged emails can be lost. Otherwise work is only made harder.
    pub loses_data: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueStats {
    pub by_status: BTreeMap<Status, u64>,
    /// When the email that has been due longest became due.
    pub oldest_due_at: Option<Timestamp>,
    pub dead_letters: u64,
    /// What the store's disk has left, where the store minds it itself.
    pub room: Option<RoomLeft>,
}

/// How much more can be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoomLeft {
    pub free_bytes: u64,
    /// With less than this nothing new is accepted or claimed: it is kept for what is in flight.
    pub reserve_bytes: u64,
}

impl RoomLeft {
    /// An operator should make room now.
    pub fn is_getting_short(&self) -> bool {
        self.free_bytes / 2 < self.reserve_bytes
    }
}

impl QueueStats {
    pub fn waiting(&self) -> u64 {
        [Status::Enqueued, Status::RetryScheduled]
            .iter()
            .filter_map(|status| self.by_status.get(status))
            .sum()
    }
}

/// How long things are kept after the email reached its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    pub content: Duration,
    pub emails: Duration,
    pub dead_letters: Duration,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    pub contents: u64,
    pub emails: u64,
    pub dead_letters: u64,
    pub idempotency_keys: u64,
    /// Rows of counts by day, those of daily limits too, and of whom they were about.
    pub tallies: u64,
    /// There is more to look at, though nothing of this may have had to go.
    pub is_under_way: bool,
}
