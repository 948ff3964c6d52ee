//! What a provider reports of an email after it took it, whatever the provider's own words were.

use serde_json::{Map, Value};

use crate::address::Address;
use crate::clock::Timestamp;
use crate::event::EventKind;
use crate::id::EmailId;

/// One report. Reports come late, twice and in any order.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The report's own id, the same however often it comes.
    pub id: String,
    pub kind: ReportKind,
    /// When it happened, by the provider's clock.
    pub at: Timestamp,
    /// Our id, where the report carries it.
    pub email: Option<EmailId>,
    /// What kind of provider reports (`ses`, `resend`).
    pub provider_kind: String,
    /// The provider's id of the email.
    pub provider_message_id: Option<String>,
    /// Whom it is about. None named: the one recipient there is, or nobody in particular where there are several.
    pub recipients: Vec<Address>,
    /// What else is known, for the history: the bounce's type, the link that was clicked. No address, masked text.
    pub metadata: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportKind {
    /// The provider has it, and goes on.
    Sent,
    Delivered,
    /// The provider goes on trying.
    Delayed,
    Bounced(Bounce),
    Complained,
    /// The provider took it and did not send it after all.
    Failed,
    Opened,
    Clicked,
    /// Nothing that changes or explains the way of an email.
    Other,
}

impl ReportKind {
    /// What the history calls it.
    pub fn event(self) -> EventKind {
        match self {
            Self::Sent => EventKind::SendReported,
            Self::Delivered => EventKind::Delivered,
            Self::Delayed => EventKind::DeliveryDelayed,
            Self::Bounced(Bounce::Soft) => EventKind::SoftBounced,
            Self::Bounced(Bounce::Hard | Bounce::Unclear) => EventKind::Bounced,
            Self::Complained => EventKind::Complained,
            Self::Failed => EventKind::Failed,
            Self::Opened => EventKind::Opened,
            Self::Clicked => EventKind::Clicked,
            Self::Other => EventKind::Reported,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bounce {
    /// The address does not work and will not: nothing more is sent to it.
    Hard,
    /// It did not work this time.
    Soft,
    /// It came back for good, and nobody knows whether the address works; also when the content was refused.
    Unclear,
}
