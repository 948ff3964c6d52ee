//! The companies' templates: named, every version kept as long as the name is.

use async_trait::async_trait;
use model::{CompanyId, Timestamp};

use crate::StoreError;

#[async_trait]
pub trait Templates: Send + Sync {
    /// Writes the next version and returns its number, counted from 1. The same source again is no new version.
    async fn put_template(
        &self,
        company: CompanyId,
        name: &str,
        source: &str,
        now: Timestamp,
    ) -> Result<u32, StoreError>;

    /// The newest version, or the one asked for.
    async fn template(
        &self,
        company: CompanyId,
        name: &str,
        version: Option<u32>,
    ) -> Result<Option<StoredTemplate>, StoreError>;

    /// The newest version of each, by name.
    async fn templates(&self, company: CompanyId) -> Result<Vec<StoredTemplate>, StoreError>;

    /// Forgets a template with all its versions; `false` when there is none. A name that is used again goes on counting
    /// where it stopped.
    async fn delete_template(&self, company: CompanyId, name: &str) -> Result<bool, StoreError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTemplate {
    pub name: String,
    pub version: u32,
    /// As it was put; what it says is not the store's business.
    pub source: String,
    pub created_at: Timestamp,
}
