//! People known to a company, and forgetting them.

use async_trait::async_trait;
use model::{Address, CompanyId, RecipientId, Timestamp};

use crate::{Cursor, Page, StoreError};

#[async_trait]
pub trait Recipients: Send + Sync {
    /// Those of the company's that have these ids, deleted ones too, in any order; ids of nobody are passed over. A worker
    /// asks for all that it claimed at once.
    async fn recipients_by_id(
        &self,
        company: CompanyId,
        ids: &[RecipientId],
    ) -> Result<Vec<RecipientRecord>, StoreError>;

    /// Those that are not deleted, the latest known first.
    async fn recipients(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<RecipientRecord>, StoreError>;

    /// Removes a person's addresses, names and content from everything of the company, and keeps the counts:
    /// finished emails lose their content, waiting ones are cancelled first, those at a provider right now are
    /// counted as `pending`. That the person is not to be written to (a suppression) stays known. Each call is a step of
    /// bounded cost, which changes no more than `limit` emails and looks at no more than `erasure::LOOKED_AT` for copies; call
    /// again with `next` until there is none.
    async fn erase(
        &self,
        company: CompanyId,
        address: &Address,
        after: Option<&Cursor>,
        now: Timestamp,
        limit: u32,
    ) -> Result<Erased, StoreError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientRecord {
    pub id: RecipientId,
    pub email: Address,
    pub external_id: Option<String>,
    pub deleted_at: Option<Timestamp>,
}

/// What one step of an erasure did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Erased {
    pub emails: u64,
    pub recipients: u64,
    /// In flight, and left: begin again when they are done.
    pub pending: u64,
    /// Where the next step goes on.
    pub next: Option<Cursor>,
}
