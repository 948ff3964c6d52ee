//! The port to whoever carries an email away.

mod detail;
mod tags;

pub use detail::{DETAIL_LENGTH_MAX, detail};
pub use tags::{ID_TAG, tags};

use std::time::Duration;

use async_trait::async_trait;
use model::email::Outgoing;
use model::{Address, Category, Envelope, ErrorCode, Failure, ReportKind};

/// No provider call may last longer; the lease of an email is longer than this.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(30);

#[async_trait]
pub trait Provider: Send + Sync {
    /// What kind it is (`smtp`, `capture`), for people.
    fn kind(&self) -> &'static str;

    /// Hands one email over. Bounded in time by the provider itself, which alone knows whether a request that
    /// ran into its time-out had gone out already.
    async fn send(&self, email: &Outgoing) -> Result<Receipt, SendError>;

    /// What it reports of emails to this address once it took them, where it plays its own reports.
    fn played_report(&self, _to: &Address) -> Option<ReportKind> {
        None
    }

    /// How much of the provider's rate an email takes.
    fn rate_cost(&self, _envelope: &Envelope) -> u32 {
        1
    }

    /// What the provider allows this account now. `None` when it cannot be asked.
    async fn account(&self) -> Result<Option<Account>, SendError> {
        Ok(None)
    }
}

/// What a provider says of the account that sends.
#[derive(Debug, Clone, PartialEq)]
pub struct Account {
    /// Emails per second, all senders of the account together.
    pub rate_per_sec: Option<f64>,
    /// Emails within 24 hours: how many are allowed and how many were sent.
    pub quota: Option<Quota>,
    /// `false` while the provider has paused the account.
    pub may_send: bool,
    /// Only verified addresses can be written to.
    pub is_sandboxed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quota {
    pub max_24_hours: f64,
    pub sent_24_hours: f64,
}

/// What an error says of the provider as a whole, beyond the email that met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It sends slower than we ask it to.
    Throttled,
    /// The quota of the day or the month is used up.
    QuotaUsedUp,
    /// The account may not send at all for now.
    Paused,
    /// It does not work: connections fail, calls time out, servers break.
    Outage,
}

/// The provider took it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The provider's own id, by which its reports name the email.
    pub message_id: Option<String>,
    /// Copies that it did not take along, each with whom it refused; everybody else gets the email, `to` always.
    pub refused: Vec<Failure>,
}

impl Receipt {
    /// It took the email for everybody.
    pub fn for_all(message_id: Option<String>) -> Self {
        Self { message_id, refused: Vec::new() }
    }
}

/// Whether the provider may have taken an email although the call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It surely did not.
    No,
    /// It may have: the request was out when the answer got lost.
    Unknown,
}

/// The words of a failure are kept up to this length, whatever a provider gives.
const MESSAGE_LENGTH_MAX: usize = 500;

/// The provider did not take it, or did not say.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct SendError {
    pub code: ErrorCode,
    pub category: Category,
    /// The provider's own code.
    pub original_code: Option<String>,
    pub retry_after: Option<Duration>,
    /// The provider's words, masked.
    pub detail: String,
    pub taken: Taken,
    /// `None` when the error is about this email alone.
    pub trouble: Option<Trouble>,
    /// Whom it refused, where it refused one of the recipients and not the email.
    pub refused: Option<Address>,
}

/// As it is kept.
impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        Self {
            code: error.code,
            category: error.category,
            message: error.detail.chars().take(MESSAGE_LENGTH_MAX).collect(),
            original_code: error.original_code,
            retry_after: error.retry_after,
            refused: error.refused.map(Box::new),
        }
    }
}
