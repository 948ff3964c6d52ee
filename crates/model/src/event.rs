//! The immutable lines of an email's history.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::clock::Timestamp;

macro_rules! event_kinds {
    ($($name:ident = $text:literal,)*) => {
        /// What happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EventKind { $($name,)* }

        impl EventKind {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name users see.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

event_kinds! {
    Accepted = "ACCEPTED",
    Intaking = "INTAKING",
    Invalid = "INVALID",
    Enqueued = "ENQUEUED",
    Received = "RECEIVED",
    Validated = "VALIDATED",
    ValidationFailed = "VALIDATION_FAILED",
    SentAttempt = "SENT_ATTEMPT",
    Sent = "SENT",
    RetryScheduled = "RETRY_SCHEDULED",
    Failed = "FAILED",
    OutcomeUnknown = "OUTCOME_UNKNOWN",
    LateResult = "LATE_RESULT",
    LeaseLost = "LEASE_LOST",
    Released = "RELEASED",
    AlreadySent = "ALREADY_SENT",
    Expired = "EXPIRED",
    Cancelled = "CANCELLED",
    RetryRequested = "RETRY_REQUESTED",
    Replayed = "REPLAYED",
    DeadLetterDropped = "DEAD_LETTER_DROPPED",
    SendReported = "SEND_REPORTED",
    Delivered = "DELIVERED",
    DeliveryDelayed = "DELIVERY_DELAYED",
    Bounced = "BOUNCED",
    SoftBounced = "SOFT_BOUNCED",
    Complained = "COMPLAINED",
    Opened = "OPENED",
    Clicked = "CLICKED",
    Reported = "REPORTED",
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no event kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an event kind")]
pub struct UnknownEventKind;

impl FromStr for EventKind {
    type Err = UnknownEventKind;

    fn from_str(text: &str) -> Result<Self, UnknownEventKind> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text).ok_or(UnknownEventKind)
    }
}

/// One line of history. The metadata never holds an address, a body or a document number.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub kind: EventKind,
    pub at: Timestamp,
    pub metadata: Map<String, Value>,
}

impl Event {
    pub fn new(kind: EventKind, at: Timestamp) -> Self {
        Self { kind, at, metadata: Map::new() }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(name.to_owned(), value.into());
        self
    }
}
