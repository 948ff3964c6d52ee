//! What a company's admin is to hear of. An alert is written with what caused it, and becomes an email afterwards.

use std::time::Duration;

use crate::address::Address;
use crate::clock::Timestamp;
use crate::company::KeyMode;
use crate::id::{AlertId, CompanyId, EmailId};

/// So many failures of one address within so much time are worth an alert.
pub const FAILURES_MIN: u32 = 3;
pub const FAILURES_WITHIN: Duration = Duration::from_secs(7 * 24 * 3600);
/// About the same thing there is one alert in this time.
pub const ALERT_WINDOW: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    pub id: AlertId,
    pub company: CompanyId,
    pub kind: AlertKind,
    /// What it is about: an entity, or an address where there is none. Within a window one alert speaks of it.
    pub subject: String,
    /// Alerts about emails of `test_` keys go where those go.
    pub mode: KeyMode,
    /// The email that raised it.
    pub email: EmailId,
    pub address: Address,
    /// For people, already masked.
    pub reason: String,
    pub created_at: Timestamp,
    /// How many times more it happened within the window.
    pub repeats: u32,
    /// What became of it; `None` while nobody has seen to it.
    pub outcome: Option<AlertOutcome>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlertOutcome {
    /// It was handed in as this email.
    Sent(EmailId),
    /// Nobody could be told, and why.
    Shown(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AlertKind {
    Bounce,
    Complaint,
    RepeatedFailures,
}

impl AlertKind {
    pub const ALL: [Self; 3] = [Self::Bounce, Self::Complaint, Self::RepeatedFailures];

    /// Also the name of its template.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bounce => "admin-email-bounce",
            Self::Complaint => "admin-email-complaint",
            Self::RepeatedFailures => "admin-email-repeated-failures",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The window a moment is in, counted from 1970.
pub fn window_of(at: Timestamp) -> i64 {
    at.millis().div_euclid(i64::try_from(ALERT_WINDOW.as_millis()).unwrap_or(i64::MAX))
}
