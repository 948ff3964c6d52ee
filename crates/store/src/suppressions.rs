//! The addresses each company no longer writes to.

use async_trait::async_trait;
use model::{Address, CompanyId, Suppression};

use crate::{Cursor, Page, StoreError};

#[async_trait]
pub trait Suppressions: Send + Sync {
    /// Puts addresses on the company's list. One that is on it already stays as it is. Returns how many are new.
    async fn suppress(&self, company: CompanyId, suppressions: Vec<Suppression>) -> Result<u32, StoreError>;

    /// Takes an address off the list; `false` when it was not on it.
    async fn lift(&self, company: CompanyId, address: &Address) -> Result<bool, StoreError>;

    /// Those of the addresses that are on the list, however they are spelled. Asked before every email is accepted and
    /// before it is sent.
    async fn suppressed(
        &self,
        company: CompanyId,
        addresses: &[Address],
    ) -> Result<Vec<Suppression>, StoreError>;

    /// Newest first.
    async fn suppressions(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Suppression>, StoreError>;
}
