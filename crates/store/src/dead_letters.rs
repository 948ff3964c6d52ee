//! FAILED emails, kept at hand for seven days: listed, replayed, dropped.

use async_trait::async_trait;
use model::{Category, CompanyId, Email, EmailId, KeyMode, Timestamp};

use crate::{Cursor, Page, StoreError};

#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Newest first; pages as in `Lookup::emails`.
    async fn dead_letters(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Email>, StoreError>;

    async fn count_dead_letters(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
    ) -> Result<u64, StoreError>;

    /// Puts up to `limit` matching dead letters back into the queue under their old ids: the attempts go on
    /// counting, the retry policy and the time to live start anew. Call again until none matched.
    async fn replay(
        &self,
        company: CompanyId,
        filter: &DeadLetterFilter,
        now: Timestamp,
        limit: u32,
    ) -> Result<ReplayCount, StoreError>;

    /// Takes one dead letter off the list; the email stays FAILED. `false` when it was not on it.
    async fn drop_dead_letter(
        &self,
        company: CompanyId,
        id: EmailId,
        now: Timestamp,
    ) -> Result<bool, StoreError>;
}

/// Which dead letters; what is empty does not matter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeadLetterFilter {
    pub ids: Option<Vec<EmailId>>,
    pub code: Option<String>,
    pub category: Option<Category>,
    pub to: Option<model::Address>,
    /// The recipient's external id or id.
    pub recipient: Option<String>,
    /// Failed at or after.
    pub since: Option<Timestamp>,
    /// Failed before.
    pub until: Option<Timestamp>,
    /// Handed in with a key of this kind.
    pub mode: Option<KeyMode>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayCount {
    pub matched: u64,
    pub replayed: u64,
}
