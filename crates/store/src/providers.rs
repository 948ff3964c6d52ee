//! What all processes together know and do about the providers: how fast they may be called, and how they are doing.
//! What a note says is the gateway's business; a store keeps it.

use async_trait::async_trait;
use model::Timestamp;

use crate::StoreError;

#[async_trait]
pub trait Providers: Send + Sync {
    /// Takes starts of calls to a provider and returns how many it got: all processes together start no more than the
    /// rate within a second, and within a little more than a second, since a call goes out a moment after its start was
    /// taken.
    async fn take_starts(&self, provider: &str, wish: StartsWish, now: Timestamp) -> Result<u32, StoreError>;

    /// What is known of each provider; those nothing is known of are missing.
    async fn provider_notes(&self) -> Result<Vec<ProviderNote>, StoreError>;

    /// Replaces what is known of a provider if it is still at the version `seen` (0: nothing is known yet). `false` when
    /// somebody else was first.
    async fn note_provider(&self, provider: &str, seen: u64, note: &str) -> Result<bool, StoreError>;
}

/// How many starts somebody would like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartsWish {
    /// Fewer are of no use: then none are taken.
    pub least: u32,
    pub most: u32,
    /// What all processes together may start within a second.
    pub per_sec: u32,
}

impl StartsWish {
    /// How many to take when so many have been started lately.
    pub fn granted(&self, started: u32) -> u32 {
        let granted = self.most.min(self.per_sec.saturating_sub(started));
        // What can never be had at once is had when everything is free.
        let least = self.least.min(self.per_sec);
        if granted >= least { granted } else { 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderNote {
    pub provider: String,
    /// Counted from 1, one more with every change.
    pub version: u64,
    pub note: String,
}
