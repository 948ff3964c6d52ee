//! A row of the outbox as every relational store reads it, and the model's types made of it. Each store fills a
//! `Record` from its own rows; what the columns mean is said here once.

use model::attempt::LostLease;
use model::company::KeyMode;
use model::email::LastFailure;
use model::privacy::Secret;
use model::{Address, Claim, CompanyId, Email, EmailId, Guard, RecipientId, Status, Timestamp};

use crate::detail::Detail;
use crate::{StoreError, suspects};

#[derive(Debug, Clone)]
pub struct Record {
    pub id: EmailId,
    pub company: CompanyId,
    pub status: Status,
    pub version: u64,
    pub fence: u64,
    pub priority: u8,
    /// Set while it waits.
    pub due_at: Option<Timestamp>,
    pub expires_at: Timestamp,
    /// Set while it is leased.
    pub lease_until: Option<Timestamp>,
    pub at_provider: bool,
    /// As `suspects` counts them.
    pub unfinished_starts: u32,
    pub outcome_unknown: bool,
    pub attempts: u32,
    /// Where `attempts` stood at the last replay.
    pub attempts_before: u32,
    /// Where `attempts` stood when the provider was last to take an attempt for a new one.
    pub series: u32,
    pub mode: KeyMode,
    pub to_email: String,
    pub subject: String,
    pub created_at: Timestamp,
    pub scheduled_at: Option<Timestamp>,
    pub sent_at: Option<Timestamp>,
    pub delivered_at: Option<Timestamp>,
    pub failed_at: Option<Timestamp>,
    pub dead_at: Option<Timestamp>,
    /// The providers it may go through, as it was last known.
    pub route: String,
    /// The provider of the last attempt.
    pub provider: Option<String>,
    pub provider_message_id: Option<String>,
    pub ses_message_id: Option<String>,
    pub last_failure: Option<LastFailure>,
    pub request_id: String,
    pub external_id: Option<String>,
    pub entity_id: Option<String>,
    /// The id under which acceptance knows the recipient.
    pub recipient_id: Option<RecipientId>,
    pub size_bytes: u64,
    pub detail: Detail,
}

impl Record {
    pub fn guard(&self) -> Guard {
        Guard { id: self.id, fence: self.fence, version: self.version }
    }

    pub fn email(self) -> Email {
        let detail = self.detail_with_recipient();
        Email {
            id: self.id,
            company: self.company,
            request_id: self.request_id,
            mode: self.mode,
            status: self.status,
            version: self.version,
            fence: self.fence,
            envelope: detail.envelope(Address::trusted(self.to_email), Secret::new(self.subject)),
            external_id: self.external_id,
            entity: detail.entity(self.entity_id),
            recipient: detail.recipient,
            priority: self.priority,
            route: self.route,
            attempts: self.attempts,
            created_at: self.created_at,
            due_at: self.due_at,
            scheduled_at: self.scheduled_at,
            expires_at: self.expires_at,
            sent_at: self.sent_at,
            delivered_at: self.delivered_at,
            failed_at: self.failed_at,
            dead_at: self.dead_at,
            wishes: detail.wishes,
            provider: self.provider,
            provider_message_id: self.provider_message_id,
            ses_message_id: self.ses_message_id,
            last_failure: self.last_failure,
            outcome_unknown: self.outcome_unknown,
            size_bytes: self.size_bytes,
        }
    }

    /// The claim that has just been written into the row, still without its content.
    pub fn claim(self, now: Timestamp) -> Result<Claim, StoreError> {
        let (guard, lease_until) = (self.guard(), self.leased_until()?);
        let detail = self.detail_with_recipient();
        Ok(Claim {
            guard,
            company: self.company,
            request_id: self.request_id,
            mode: self.mode,
            attempt: self.attempts,
            attempt_in_series: self.attempts.saturating_sub(self.attempts_before),
            series: self.series,
            // The start that is this claim may yet finish.
            unfinished_starts: suspects::before_claim(self.unfinished_starts),
            outcome_unknown: self.outcome_unknown,
            last_provider: self.provider,
            route: self.route,
            created_at: self.created_at,
            claimed_at: now,
            lease_until,
            expires_at: self.expires_at,
            envelope: detail.envelope(Address::trusted(self.to_email), Secret::new(self.subject)),
            external_id: self.external_id,
            entity: detail.entity(self.entity_id),
            recipient: detail.recipient,
            trace: detail.trace,
            wishes: detail.wishes,
            content: None,
        })
    }

    pub fn lost_lease(self) -> Result<LostLease, StoreError> {
        Ok(LostLease {
            guard: self.guard(),
            company: self.company,
            lease_until: self.leased_until()?,
            request_id: self.request_id,
            attempt: self.attempts,
            attempt_in_series: self.attempts.saturating_sub(self.attempts_before),
            unfinished_starts: suspects::with_lost(self.unfinished_starts),
            at_provider: self.at_provider,
            provider: self.provider,
            expires_at: self.expires_at,
            wishes: self.detail.wishes,
        })
    }

    fn leased_until(&self) -> Result<Timestamp, StoreError> {
        self.lease_until.ok_or_else(|| StoreError::Broken("a leased email has no lease".into()))
    }

    fn detail_with_recipient(&self) -> Detail {
        let mut detail = self.detail.clone();
        if let (Some(recipient), Some(id)) = (&mut detail.recipient, self.recipient_id) {
            recipient.id = Some(id);
        }
        detail
    }
}

/// What a store says of a value that it never wrote: the database was changed behind its back.
pub fn damaged(what: &str) -> StoreError {
    StoreError::Broken(format!("{what} of an email cannot be read"))
}
