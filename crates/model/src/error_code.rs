//! Our stable codes for what went wrong with an attempt, and the category that decides whether to retry.

use std::borrow::Cow;
use std::fmt;

/// What kind of trouble it was. Retry asks this, never the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Category {
    Validation,
    Permanent,
    Configuration,
    Quota,
    Transient,
    Timeout,
}

impl Category {
    pub const ALL: [Self; 6] =
        [Self::Validation, Self::Permanent, Self::Configuration, Self::Quota, Self::Transient, Self::Timeout];

    pub fn is_retried(self) -> bool {
        matches!(self, Self::Quota | Self::Transient | Self::Timeout)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Validation => "VALIDATION_ERROR",
            Self::Permanent => "PERMANENT_ERROR",
            Self::Configuration => "CONFIGURATION_ERROR",
            Self::Quota => "QUOTA_ERROR",
            Self::Transient => "TRANSIENT_ERROR",
            Self::Timeout => "TIMEOUT_ERROR",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.as_str() == text)
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A stable code such as `SMTP_REJECTED_550`. Most are constants; SMTP's carry the reply code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ErrorCode(Cow<'static, str>);

impl ErrorCode {
    pub const INVALID_PAYLOAD: Self = Self::new("INVALID_PAYLOAD");
    pub const OUTBOX_NOT_FOUND: Self = Self::new("OUTBOX_NOT_FOUND");
    pub const RECIPIENT_NOT_FOUND: Self = Self::new("RECIPIENT_NOT_FOUND");
    pub const INVALID_EMAIL: Self = Self::new("INVALID_EMAIL");
    pub const RECIPIENT_SUPPRESSED: Self = Self::new("RECIPIENT_SUPPRESSED");
    pub const INVALID_TEMPLATE: Self = Self::new("INVALID_TEMPLATE");
    pub const NETWORK_ERROR: Self = Self::new("NETWORK_ERROR");
    /// The provider may or may not have taken it, and nothing more will be tried by itself.
    pub const OUTCOME_UNKNOWN: Self = Self::new("OUTCOME_UNKNOWN");
    /// Its worker died three times in a row while it held this email.
    pub const QUARANTINED: Self = Self::new("QUARANTINED");
    /// No provider on the email's route can be used.
    pub const NO_PROVIDER: Self = Self::new("NO_PROVIDER");
    /// No sender address: neither the email nor the company names one.
    pub const NO_SENDER: Self = Self::new("NO_SENDER");

    pub const fn new(code: &'static str) -> Self {
        Self(Cow::Borrowed(code))
    }

    pub fn from_string(code: String) -> Self {
        Self(Cow::Owned(code))
    }

    /// The code if it is one of the constants, of which there are only so many.
    pub fn as_constant(&self) -> Option<&'static str> {
        match &self.0 {
            Cow::Borrowed(code) => Some(code),
            Cow::Owned(_) => None,
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
