//! The provider that sends nothing: it takes every email, and the mailbox people look into is the store's emails
//! whose provider is `capture`, so nothing is kept here. A few addresses play the outcomes a real provider may have.

use std::time::Duration;

use async_trait::async_trait;
use model::email::Outgoing;
use model::{Address, Bounce, Category, ErrorCode, ReportKind};
use provider::{Provider, Receipt, SendError, Taken};

/// The domain whose mailboxes play an outcome; anything after a `+` is the caller's own.
pub const SANDBOX_DOMAIN: &str = "posthaste.test";

/// The longest a capture provider may be told to take.
const LATENCY_MAX: Duration = Duration::from_secs(25);

/// How a capture provider behaves: `capture:?latency_ms=50` plays one that takes its time, for load tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureConfig {
    pub latency: Duration,
}

/// The text is no way to describe a capture provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a capture mailbox needs no url; to play a slow provider use capture:?latency_ms=50 (up to 25000)")]
pub struct InvalidCaptureUrl;

impl CaptureConfig {
    pub fn parse(url: &str) -> Result<Self, InvalidCaptureUrl> {
        let millis = url.strip_prefix("capture:?latency_ms=").and_then(|text| text.parse().ok());
        let latency = millis.map(Duration::from_millis).filter(|latency| *latency <= LATENCY_MAX);
        latency.map(|latency| Self { latency }).ok_or(InvalidCaptureUrl)
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct CaptureProvider {
    config: CaptureConfig,
}

impl CaptureProvider {
    pub fn new(config: CaptureConfig) -> Self {
        Self { config }
    }
}

#[async_trait]
impl Provider for CaptureProvider {
    fn kind(&self) -> &'static str {
        "capture"
    }

    fn played_report(&self, to: &Address) -> Option<ReportKind> {
        let part = sandbox_part(to)?;
        REPORTS.iter().find(|(name, _)| part.eq_ignore_ascii_case(name)).map(|(_, kind)| *kind)
    }

    async fn send(&self, email: &Outgoing) -> Result<Receipt, SendError> {
        if !self.config.latency.is_zero() {
            tokio::time::sleep(self.config.latency).await;
        }
        match played_failure(&email.envelope.to) {
            Some((_, code, category, detail)) => Err(SendError {
                code: ErrorCode::new(code),
                category: *category,
                original_code: None,
                retry_after: None,
                detail: (*detail).to_owned(),
                taken: Taken::No,
                // An address plays its part for itself, not for the whole mailbox.
                trouble: None,
                refused: None,
            }),
            None => Ok(Receipt::for_all(Some(format!("capture-{}", email.id)))),
        }
    }
}

/// Local part, code, category, words. A mailbox that is not here takes its mail.
const FAILURES: &[Failure] = &[
    ("rejected", "CAPTURE_REJECTED", Category::Permanent, "this address plays a provider that refuses"),
    ("throttled", "CAPTURE_THROTTLED", Category::Quota, "this address plays a provider that throttles"),
    (
        "timeout",
        "CAPTURE_TIMEOUT",
        Category::Timeout,
        "this address plays a provider that does not answer in time",
    ),
];

/// Mailboxes whose mail is taken and then reported so.
const REPORTS: &[(&str, ReportKind)] = &[
    ("delivered", ReportKind::Delivered),
    ("bounced", ReportKind::Bounced(Bounce::Hard)),
    ("complained", ReportKind::Complained),
];

type Failure = (&'static str, &'static str, Category, &'static str);

fn played_failure(to: &Address) -> Option<&'static Failure> {
    let part = sandbox_part(to)?;
    FAILURES.iter().find(|(name, ..)| part.eq_ignore_ascii_case(name))
}

/// The part an address plays, if it is in the sandbox.
fn sandbox_part(to: &Address) -> Option<&str> {
    let (local, domain) = to.expose().rsplit_once('@')?;
    let part = local.split_once('+').map_or(local, |(part, _)| part);
    domain.eq_ignore_ascii_case(SANDBOX_DOMAIN).then_some(part)
}

#[cfg(test)]
mod tests {
    use model::Mailbox;
    use testkit::{START, a_company, an_address, an_email};

    use super::*;

    fn to(address: &str) -> Outgoing {
        let email = an_email(a_company("acme").id);
        let mut envelope = email.envelope;
        envelope.to = an_address(address);
        Outgoing {
            id: email.id,
            company: email.company,
            attempt: 1,
            series: 0,
            is_last_attempt: false,
            created_at: START,
            from: Mailbox::plain(an_address("no-reply@posthaste.test")),
            envelope,
            content: email.content,
        }
    }

    #[tokio::test]
    async fn each_address_plays_its_part() {
        let rejected = Some(("CAPTURE_REJECTED", Category::Permanent));
        let throttled = Some(("CAPTURE_THROTTLED", Category::Quota));
        let timeout = Some(("CAPTURE_TIMEOUT", Category::Timeout));
        let cases = [
            ("ana@example.com", None),
            ("delivered@posthaste.test", None),
            ("bounced@posthaste.test", None),
            ("complained+run7@posthaste.test", None),
            ("anyone@posthaste.test", None),
            ("rejected@posthaste.test", rejected),
            ("Rejected+order-5@POSTHASTE.test", rejected),
            ("throttled@posthaste.test", throttled),
            ("throttled+a+b@posthaste.test", throttled),
            ("timeout@posthaste.test", timeout),
            ("rejected@example.com", None),
            ("rejected@sub.posthaste.test", None),
            ("rejectedly@posthaste.test", None),
            ("a+rejected@posthaste.test", None),
        ];
        for (address, expected) in cases {
            let email = to(address);
            match (CaptureProvider::default().send(&email).await, expected) {
                (Ok(receipt), None) => {
                    assert_eq!(receipt.message_id, Some(format!("capture-{}", email.id)), "{address}");
                }
                (Err(error), Some((code, category))) => {
                    assert_eq!((error.code.as_str(), error.category), (code, category), "{address}");
                    assert_eq!(error.taken, Taken::No, "{address}");
                }
                (outcome, _) => panic!("{address}: {outcome:?}"),
            }
        }
    }

    #[test]
    fn some_addresses_are_reported() {
        let played = |text: &str| CaptureProvider::default().played_report(&an_address(text));
        assert_eq!(played("delivered@posthaste.test"), Some(ReportKind::Delivered));
        assert_eq!(played("Bounced+7@posthaste.test"), Some(ReportKind::Bounced(Bounce::Hard)));
        assert_eq!(played("complained@POSTHASTE.test"), Some(ReportKind::Complained));
        for nobody in ["rejected@posthaste.test", "ana@posthaste.test", "bounced@example.com"] {
            assert_eq!(played(nobody), None, "{nobody}");
        }
    }

    #[test]
    fn it_says_what_it_is() {
        assert_eq!(CaptureProvider::default().kind(), "capture");
    }

    #[test]
    fn only_a_latency_can_be_asked_for() {
        let millis = |text: &str| CaptureConfig::parse(text).map(|config| config.latency.as_millis());
        assert_eq!(millis("capture:?latency_ms=50"), Ok(50));
        assert_eq!(millis("capture:?latency_ms=25000"), Ok(25_000));
        for wrong in
            ["", "capture:", "capture:?latency_ms=", "capture:?latency_ms=25001", "smtp://x", "capture:?x=1"]
        {
            assert_eq!(millis(wrong), Err(InvalidCaptureUrl), "{wrong}");
        }
    }
}
