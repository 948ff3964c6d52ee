//! Companies and their keys.

use async_trait::async_trait;
use model::{ApiKey, Company, CompanyId, KeyId, Pause, Timestamp};

use crate::StoreError;

#[async_trait]
pub trait Companies: Send + Sync {
    /// `Exists` when the name is taken.
    async fn add_company(&self, company: Company) -> Result<(), StoreError>;

    /// Replaces name, settings and whether it is switched off, but not whether it is paused. `false` when there is no such
    /// company.
    async fn update_company(&self, company: Company) -> Result<bool, StoreError>;

    /// Pauses a company: none of its emails is claimed until it is resumed. `false` when there is none, or it is paused
    /// already.
    async fn pause_company(&self, id: CompanyId, pause: Pause) -> Result<bool, StoreError>;

    /// Ends a pause; `false` when there is none.
    async fn resume_company(&self, id: CompanyId, now: Timestamp) -> Result<bool, StoreError>;

    async fn company(&self, id: CompanyId) -> Result<Option<Company>, StoreError>;

    async fn company_named(&self, name: &str) -> Result<Option<Company>, StoreError>;

    /// All of them, by name.
    async fn companies(&self) -> Result<Vec<Company>, StoreError>;

    async fn add_key(&self, key: ApiKey) -> Result<(), StoreError>;

    /// `false` when the company has no such key. Revoking twice keeps the first time.
    async fn revoke_key(&self, company: CompanyId, id: KeyId, now: Timestamp) -> Result<bool, StoreError>;

    /// Newest first.
    async fn keys(&self, company: CompanyId) -> Result<Vec<ApiKey>, StoreError>;

    /// The key with this hash and its company.
    async fn key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<(ApiKey, Company)>, StoreError>;

    /// Notes when keys were last used; never moves a time backwards.
    async fn touch_keys(&self, uses: Vec<(KeyId, Timestamp)>) -> Result<(), StoreError>;
}
