//! What tests share: a clock they turn by hand, builders of emails and companies, a small disk, with the feature `http` a
//! server that answers as told, and with the feature `wire` a wire that can be cut.

#[cfg(feature = "http")]
pub mod http;
pub mod small_disk;
#[cfg(feature = "wire")]
pub mod wire;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use model::email::{Outgoing, Wishes};
use model::privacy::Secret;
use model::{
    Address, ApiKey, Attachment, Category, Clock, Company, CompanyId, CompanySettings, Content, EmailId,
    Entity, Envelope, ErrorCode, Failure, KeyId, KeyMode, Mailbox, NewEmail, OnUnknown, Recipient, Scope,
    Status, Timestamp, TraceContext,
};

/// The moment at which tests begin: 2026-01-01T00:00:00Z.
pub const START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// How long the emails of `an_email` live.
pub const TTL: Duration = Duration::from_secs(24 * 3600);

/// That many seconds after the start.
pub fn at_secs(secs: u64) -> Timestamp {
    START.plus(Duration::from_secs(secs))
}

/// That many milliseconds after the start.
pub fn at_millis(millis: u64) -> Timestamp {
    START.plus(Duration::from_millis(millis))
}

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

    /// As a person or NTP does, back or forth.
    pub fn set(&self, at: Timestamp) {
        self.0.store(at.millis(), Ordering::SeqCst);
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
        pause: None,
        resumed_at: None,
    }
}

/// An email of that company, accepted at the start and due at once; change its fields as the test needs.
pub fn an_email(company: CompanyId) -> NewEmail {
    an_email_at(company, START)
}

/// An email of that company, accepted at that moment and due at once.
pub fn an_email_at(company: CompanyId, now: Timestamp) -> NewEmail {
    NewEmail {
        id: EmailId::new(now),
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
        route: "relay".into(),
        created_at: now,
        due_at: now,
        scheduled_at: None,
        expires_at: now.plus(TTL),
        wishes: Wishes::default(),
        content: Content::Composed { html: "<p>Hello</p>".into(), text: None, attachments: vec![] },
        trace: None,
    }
}

/// An email on its way out at its first attempt, from that mailbox.
pub fn an_outgoing(email: NewEmail, from: &str) -> Outgoing {
    Outgoing {
        id: email.id,
        company: email.company,
        attempt: 1,
        series: 0,
        is_last_attempt: false,
        created_at: START,
        from: a_mailbox(from),
        envelope: email.envelope,
        content: email.content,
    }
}

/// An email with everything set that can be set.
pub fn a_full_email(company: CompanyId) -> NewEmail {
    let scheduled_at = at_secs(600);
    NewEmail {
        request_id: "req-full".into(),
        mode: KeyMode::Live,
        envelope: Envelope {
            from: Some(a_mailbox("Loja do João <loja@example.com>")),
            to: an_address("Ana.Maria@example.com"),
            cc: vec![an_address("bob@example.com"), an_address("carol@example.org")],
            bcc: vec![an_address("dave@example.net")],
            reply_to: Some(a_mailbox("Help desk <help@example.com>")),
            subject: Secret::new("Olá, \"Ana\" 🎉 — it's here".into()),
            headers: vec![
                ("X-Campaign".into(), Secret::new("spring 'sale'".into())),
                ("X-Order".into(), Secret::new("42".into())),
                ("X-Order".into(), Secret::new("43".into())),
            ],
            tags: vec!["welcome".into(), "não-lido".into()],
        },
        recipient: Some(Recipient {
            document_hmac: Some("5f".repeat(32)),
            legal_name: Some(Secret::new("Ana Maria Ltda.".into())),
            name: Some(Secret::new("Ana Maria".into())),
            ..a_recipient("customer-7")
        }),
        external_id: Some("order-42".into()),
        entity: Some(Entity { id: "club-9".into(), name: Some("Clube Nove".into()) }),
        priority: 1,
        route: "main>relay".into(),
        due_at: scheduled_at,
        scheduled_at: Some(scheduled_at),
        expires_at: scheduled_at.plus(TTL),
        wishes: Wishes {
            provider: Some("relay".into()),
            retry_policy: Some("patient".into()),
            on_unknown: Some(OnUnknown::Hold),
            callback_url: Some(Secret::new("https://example.com/hook?token=x".into())),
            is_alert: true,
        },
        content: Content::Composed {
            html: "<p>Olá <b>Ana</b></p>".into(),
            text: Some("Olá Ana".into()),
            attachments: vec![an_attachment("boleto.pdf", None), an_attachment("logo.png", Some("logo"))],
        },
        trace: TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ..an_email(company)
    }
}

pub fn an_attachment(filename: &str, content_id: Option<&str>) -> Attachment {
    Attachment {
        filename: filename.to_owned(),
        content_type: "application/octet-stream".into(),
        content_id: content_id.map(Into::into),
        bytes: Secret::new((0..=255).collect()),
    }
}

pub fn a_mailbox(text: &str) -> Mailbox {
    Mailbox::parse(text).expect("a valid mailbox")
}

/// A failure that may pass, with that code.
pub fn a_failure(code: &str) -> Failure {
    Failure {
        code: ErrorCode::from_string(code.to_owned()),
        category: Category::Transient,
        message: format!("it went wrong: {code}"),
        original_code: Some("421".into()),
        retry_after: None,
        refused: None,
    }
}

/// A key of that company whose hash is that byte, repeated.
pub fn a_key(company: CompanyId, byte: u8) -> ApiKey {
    ApiKey {
        id: KeyId::new(START),
        company,
        mode: KeyMode::Live,
        scopes: vec![Scope::Send, Scope::Read],
        label: None,
        hash: [byte; 32],
        prefix: format!("live_{byte:02x}"),
        created_at: START,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
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
