//! What providers report of emails they took: kept once, matched to its email, and carried out in one transaction.

use async_trait::async_trait;
use model::{Address, CompanyId, EmailId, Report, Status, Timestamp};

use crate::StoreError;

#[async_trait]
pub trait Feedback: Send + Sync {
    /// Keeps a report and carries out what it means: its event, the move of the email's status, the state of each
    /// recipient, suppressions, counted failures and alerts, all in one transaction. A report that was kept before
    /// changes nothing. One that finds no email is kept for `rematch`.
    async fn report(&self, arrival: ReportArrival) -> Result<Reported, StoreError>;

    /// Looks again for the emails of reports that found none, newest first, since what came a moment early is likelier to
    /// find one than what came from nowhere; carries out those that do. Returns how many did.
    async fn rematch(&self, now: Timestamp, limit: u32) -> Result<u32, StoreError>;

    /// What was reported of each recipient of an email that went to several, or that its copy was refused; those of whom
    /// nothing is known are missing.
    async fn recipient_states(
        &self,
        company: CompanyId,
        id: EmailId,
    ) -> Result<Vec<RecipientState>, StoreError>;

    /// The reports of an email as they came, oldest first: for the operator alone.
    async fn reports(&self, company: CompanyId, id: EmailId) -> Result<Vec<KeptReport>, StoreError>;

    /// When a provider's report was last kept, by the provider's name.
    async fn last_report(&self, provider: &str) -> Result<Option<Timestamp>, StoreError>;
}

/// A report as it came in.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportArrival {
    pub report: Report,
    /// The provider whose report it is, by its configured name.
    pub provider: String,
    /// The raw payload, kept privately.
    pub payload: Vec<u8>,
    pub now: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// The email it is about, and its status now.
    Applied { email: EmailId, company: CompanyId, status: Status, moved: bool },
    /// It was kept before.
    Repeated,
    /// No email is known by its ids.
    Unmatched,
}

/// How it went with one of several recipients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipientState {
    pub address: Address,
    pub status: Status,
    pub at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptReport {
    pub id: String,
    pub provider: String,
    pub received_at: Timestamp,
    pub payload: Vec<u8>,
}

/// How long a report that found no email is looked at again.
pub const REMATCH_FOR: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);
