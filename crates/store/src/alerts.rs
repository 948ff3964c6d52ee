//! What admins are to hear of, and addresses that keep failing. Both are written with what caused them.

use async_trait::async_trait;
use model::{Address, Alert, AlertId, AlertOutcome, CompanyId, Timestamp};

use crate::{Cursor, Page, StoreError};

#[async_trait]
pub trait Alerts: Send + Sync {
    /// Alerts of all companies that nobody has seen to, oldest first.
    async fn pending_alerts(&self, limit: u32) -> Result<Vec<Alert>, StoreError>;

    /// Notes what became of an alert; `false` when that was noted before.
    async fn end_alert(&self, id: AlertId, outcome: AlertOutcome) -> Result<bool, StoreError>;

    /// The company's alerts, newest first.
    async fn alerts(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Alert>, StoreError>;

    /// Addresses with repeated failures, the latest first. An address is one of them until it is taken off by
    /// `clear_problem`.
    async fn problems(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Problem>, StoreError>;

    /// `false` when the address was no problem. Its failures so far are forgotten.
    async fn clear_problem(&self, company: CompanyId, address: &Address) -> Result<bool, StoreError>;
}

/// An address that keeps failing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub address: Address,
    /// Within the time that counts, as of the last failure.
    pub failures: u32,
    pub since: Timestamp,
    pub last_failure_at: Timestamp,
    pub last_failure_code: String,
}
