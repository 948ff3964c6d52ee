//! Addresses a company no longer writes to.

use crate::address::Address;
use crate::clock::Timestamp;
use crate::id::EmailId;

pub const SUPPRESSION_REASON_LENGTH_MAX: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppression {
    pub address: Address,
    /// For people, already masked.
    pub reason: String,
    pub source: SuppressionSource,
    /// The email whose fate led to it.
    pub email: Option<EmailId>,
    pub created_at: Timestamp,
}

/// Who put an address on the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SuppressionSource {
    /// A provider's report of a hard bounce.
    Bounce,
    /// A provider's report of a complaint.
    Complaint,
    /// The company, over the API or the dashboard.
    Company,
    /// The operator, by command or import.
    Operator,
}

impl SuppressionSource {
    pub const ALL: [Self; 4] = [Self::Bounce, Self::Complaint, Self::Company, Self::Operator];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bounce => "bounce",
            Self::Complaint => "complaint",
            Self::Company => "company",
            Self::Operator => "operator",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == text)
    }
}
