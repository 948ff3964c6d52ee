//! Reading emails back, always of one company.

use async_trait::async_trait;
use model::{CompanyId, Content, Email, EmailId, Event, Status, Timestamp};

use crate::{KeptAnswer, StoreError};

#[async_trait]
pub trait Lookup: Send + Sync {
    async fn email(&self, company: CompanyId, id: EmailId) -> Result<Option<Email>, StoreError>;

    /// What an earlier request with this idempotency key was answered, unless its time is over.
    async fn kept_answer(
        &self,
        company: CompanyId,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, StoreError>;

    /// Newest first. A page may be short, even empty, and still have a next one: a store looks at a bounded
    /// number of rows per call, so that a rare match among millions costs many cheap calls, not one dear one.
    async fn emails(
        &self,
        company: CompanyId,
        filter: &EmailFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Email>, StoreError>;

    /// The email's history, oldest first; `None` when there is no such email.
    async fn events(&self, company: CompanyId, id: EmailId) -> Result<Option<Vec<Event>>, StoreError>;

    async fn content(&self, company: CompanyId, id: EmailId) -> Result<Option<Content>, StoreError>;

    /// Whose email it is: the operator's way in, for commands that are given an id only.
    async fn company_of(&self, id: EmailId) -> Result<Option<CompanyId>, StoreError>;
}

/// Which emails to list; what is `None` does not matter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EmailFilter {
    pub status: Option<Status>,
    pub to: Option<model::Address>,
    pub tag: Option<String>,
    pub entity: Option<String>,
    pub external_id: Option<String>,
    /// The recipient's external id, or the recipient's id.
    pub recipient: Option<String>,
    pub code: Option<String>,
    /// The id of the request that handed it in.
    pub request_id: Option<String>,
    /// The provider's own id of it.
    pub message_id: Option<String>,
    /// The last attempt used one of these providers. Only tested, never looked up: it goes well with a list most of
    /// which matches.
    pub providers: Option<Vec<String>>,
    /// Accepted at or after.
    pub since: Option<Timestamp>,
    /// Accepted before.
    pub until: Option<Timestamp>,
}

/// Where the next page begins; each store has its own spelling, made of URL-safe characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub String);

#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<Cursor>,
}
