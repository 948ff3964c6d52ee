//! What tests share: a clock they turn by hand and builders of emails and companies.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use model::email::Wishes;
use model::privacy::Secret;
use model::{
    Address, Clock, Company, CompanyId, CompanySettings, Content, EmailId, Entity, Envelope, KeyMode,
    NewEmail, Recipient, Status, Timestamp,
};

/// The moment at which tests begin: 2026-01-01T00:00:00Z.
pub const START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// A clock that moves only when told to.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl Default for ManualClock {
    fn default() -> Self {
        Self(AtomicI64::new(START.millis()))
    }
}

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_millis()).expect("a test's time is short"), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// A company of that name with default settings.
pub fn a_company(name: &str) -> Company {
    Company {
        id: CompanyId::new(START),
        name: name.to_owned(),
        settings: CompanySettings::default(),
        created_at: START,
        disabled_at: None,
    }
}

/// An email of that company, due at once; change its fields as the test needs.
pub fn an_email(company: CompanyId) -> NewEmail {
    NewEmail {
        id: EmailId::new(START),
        company,
        request_id: "req-test".into(),
        mode: KeyMode::Test,
        status: Status::Enqueued,
        envelope: Envelope {
            from: None,
            to: an_address("ana@example.com"),
            cc: vec![],
            bcc: vec![],
            reply_to: None,
            subject: Secret::new("Hello".into()),
            headers: vec![],
            tags: vec![],
        },
        recipient: None,
        external_id: None,
        entity: None,
        priority: 5,
        created_at: START,
        due_at: START,
        scheduled_at: None,
        expires_at: START.plus(Duration::from_secs(24 * 3600)),
        wishes: Wishes::default(),
        content: Content::Composed { html: "<p>Hello</p>".into(), text: None, attachments: vec![] },
    }
}

pub fn an_address(text: &str) -> Address {
    Address::parse(text).expect("a valid address")
}

pub fn an_entity(id: &str) -> Entity {
    Entity { id: id.to_owned(), name: None }
}

pub fn a_recipient(external_id: &str) -> Recipient {
    Recipient { external_id: Some(external_id.to_owned()), ..Recipient::default() }
}
