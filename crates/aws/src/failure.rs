//! What can go wrong until there is an answer, and whether the request may be out by then.

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("neither the configuration nor AWS's own settings name a region")]
    NoRegion,
    /// No credentials, or none now.
    #[error("{1}")]
    Credentials(Lack, String),
    /// It did not answer in time.
    #[error("no answer in time")]
    TimedOut(Sent),
    /// It could not be reached or hung up.
    #[error("{1}")]
    Network(Sent, String),
}

/// How much of the request is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    Nothing,
    Perhaps,
}

/// Why there are no credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// What should lead to them is written wrongly.
    Misconfigured,
    /// Nobody had any. On a machine of AWS's this passes: its metadata service was too busy to answer.
    NoneFound,
}

pub fn misconfigured(reason: impl Into<String>) -> Failure {
    Failure::Credentials(Lack::Misconfigured, reason.into())
}

pub fn none_found(reason: impl Into<String>) -> Failure {
    Failure::Credentials(Lack::NoneFound, reason.into())
}
