//! The email itself: as it is accepted, as it is stored, as it is handed to a provider.

use std::fmt;

use crate::address::{Address, Mailbox};
use crate::clock::Timestamp;
use crate::company::KeyMode;
use crate::id::{CompanyId, EmailId, RecipientId};
use crate::privacy::Secret;
use crate::status::Status;
use crate::trace::TraceContext;

pub const SUBJECT_LENGTH_MAX: usize = 150;
pub const HTML_BYTES_MAX: usize = 512 * 1024;
pub const COPIES_MAX: usize = 5;
pub const TAGS_MAX: usize = 5;

/// What to do when a provider may or may not have taken an email.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnknown {
    /// Try again, marked: a duplicate is possible, visible and counted.
    Retry,
    /// Never risk a second copy: wait for the provider's report or a person.
    Hold,
}

impl OnUnknown {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Hold => "hold",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Retry, Self::Hold].into_iter().find(|choice| choice.as_str() == text)
    }
}

/// What an email is about in the company's world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entity {
    pub id: String,
    pub name: Option<String>,
}

/// The person an email goes to, as the company names them. The document never travels in clear.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recipient {
    pub id: Option<RecipientId>,
    pub external_id: Option<String>,
    /// HMAC under the server's key of the SHA-256 of the CPF or CNPJ.
    pub document_hmac: Option<String>,
    /// The CPF or CNPJ, encrypted; only in the recipients table.
    pub document_sealed: Option<Secret<Vec<u8>>>,
    pub legal_name: Option<Secret<String>>,
    pub name: Option<Secret<String>>,
}

/// Who and what: everything about the message that is not its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    pub from: Option<Mailbox>,
    pub to: Address,
    pub cc: Vec<Address>,
    pub bcc: Vec<Address>,
    pub reply_to: Option<Mailbox>,
    pub subject: Secret<String>,
    pub headers: Vec<(String, Secret<String>)>,
    pub tags: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    pub filename: String,
    pub content_type: String,
    /// Set for an inline image that the html names by `cid:`.
    pub content_id: Option<String>,
    pub bytes: Secret<Vec<u8>>,
}

/// What the reader sees. Prints its size only.
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    Composed {
        html: String,
        text: Option<String>,
        attachments: Vec<Attachment>,
    },
    /// An .eml, taken as it is.
    Raw(Vec<u8>),
}

impl Content {
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Raw(eml) => eml.len(),
            Self::Composed { html, text, attachments } => {
                let attached: usize =
                    attachments.iter().map(|attachment| attachment.bytes.expose().len()).sum();
                html.len() + text.as_ref().map_or(0, String::len) + attached
            }
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Composed { .. } => "composed",
            Self::Raw(_) => "raw",
        };
        write!(f, "Content({kind}, {} bytes)", self.size_bytes())
    }
}

/// How an email wants to be treated: what the company asked for, for this email.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wishes {
    pub provider: Option<String>,
    pub retry_policy: Option<String>,
    pub on_unknown: Option<OnUnknown>,
    pub callback_url: Option<Secret<String>>,
    /// It is an alert of ours, and must never lead to another.
    pub is_alert: bool,
}

/// An email as it is accepted: everything the store needs to keep it safe.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEmail {
    pub id: EmailId,
    pub company: CompanyId,
    pub request_id: String,
    pub mode: KeyMode,
    /// `Enqueued` when its content was checked, `Accepted` when that is still to be done.
    pub status: Status,
    pub envelope: Envelope,
    pub recipient: Option<Recipient>,
    pub external_id: Option<String>,
    pub entity: Option<Entity>,
    /// 1 goes first, 10 last.
    pub priority: u8,
    /// The providers it may go through, in order, as one text: emails of the same route wait together.
    pub route: String,
    pub created_at: Timestamp,
    pub due_at: Timestamp,
    /// Set when the company asked for a later time.
    pub scheduled_at: Option<Timestamp>,
    pub expires_at: Timestamp,
    pub wishes: Wishes,
    pub content: Content,
    /// Where its acceptance stands in a trace, if it is traced.
    pub trace: Option<TraceContext>,
}

/// An email as it is read back: where it is and what is known of it, without its content.
#[derive(Debug, Clone, PartialEq)]
pub struct Email {
    pub id: EmailId,
    pub company: CompanyId,
    pub request_id: String,
    pub mode: KeyMode,
    pub status: Status,
    pub version: u64,
    pub fence: u64,
    pub envelope: Envelope,
    pub recipient: Option<Recipient>,
    pub external_id: Option<String>,
    pub entity: Option<Entity>,
    pub priority: u8,
    /// The providers it may go through, as it was last known.
    pub route: String,
    pub attempts: u32,
    pub created_at: Timestamp,
    /// When it is due, while it waits.
    pub due_at: Option<Timestamp>,
    pub scheduled_at: Option<Timestamp>,
    pub expires_at: Timestamp,
    pub sent_at: Option<Timestamp>,
    pub delivered_at: Option<Timestamp>,
    pub failed_at: Option<Timestamp>,
    /// Set while it is among the dead letters.
    pub dead_at: Option<Timestamp>,
    pub wishes: Wishes,
    /// The provider of the last attempt.
    pub provider: Option<String>,
    pub provider_message_id: Option<String>,
    /// The same, when the provider is SES.
    pub ses_message_id: Option<String>,
    pub last_failure: Option<LastFailure>,
    /// Some attempt ended without our knowing whether the provider took it.
    pub outcome_unknown: bool,
    pub size_bytes: u64,
}

/// The last thing that went wrong with an email.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastFailure {
    pub code: String,
    pub category: String,
    pub reason: String,
    pub at: Timestamp,
}

/// An email on its way out: what a provider gets to see.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    pub id: EmailId,
    pub company: CompanyId,
    pub attempt: u32,
    /// Which series of attempts this is: 0, until a replay begins another. Within a series a provider that knows its
    /// requests again takes the email once.
    pub series: u32,
    /// No other may follow, by the retry policy or in its time: a copy that cannot be taken now is better left out than the
    /// email lost.
    pub is_last_attempt: bool,
    pub created_at: Timestamp,
    pub from: Mailbox,
    pub envelope: Envelope,
    pub content: Content,
}
