//! What all processes together know and do about the providers: how fast they may be called, and how they are doing.
//! What a note says is the gateway's business; a store keeps it.

use async_trait::async_trait;
use model::Timestamp;

use crate::StoreError;

#[async_trait]
pub trait Providers: Send + Sync {
    /// Takes up to `wanted` starts of calls to a provider and returns how many it got: all processes together start no
    /// more than `per_sec` within a second, and within a little more than a second, since a call goes out a moment
    /// after its start was taken.
    async fn take_starts(
        &self,
        provider: &str,
        wanted: u32,
        per_sec: u32,
        now: Timestamp,
    ) -> Result<u32, StoreError>;

    /// What is known of each provider; those nothing is known of are missing.
    async fn provider_notes(&self) -> Result<Vec<ProviderNote>, StoreError>;

    /// Replaces what is known of a provider if it is still at the version `seen` (0: nothing is known yet). `false` when
    /// somebody else was first.
    async fn note_provider(&self, provider: &str, seen: u64, note: &str) -> Result<bool, StoreError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderNote {
    pub provider: String,
    /// Counted from 1, one more with every change.
    pub version: u64,
    pub note: String,
}
