//! The provider that sends nothing: it takes every email, and the mailbox people look into is the store's emails
//! whose provider is `capture`, so nothing is kept here. A few addresses play the outcomes a real provider may have.

use async_trait::async_trait;
use model::email::Outgoing;
use model::{Address, Category, ErrorCode};
use provider::{Provider, Receipt, SendError, Taken};

/// The domain whose mailboxes play an outcome; anything after a `+` is the caller's own.
pub const SANDBOX_DOMAIN: &str = "posthaste.test";

#[derive(Debug, Clone, Copy, Default)]
pub struct CaptureProvider;

#[async_trait]
impl Provider for CaptureProvider {
    fn kind(&self) -> &'static str {
        "capture"
    }

    async fn send(&self, email: &Outgoing) -> Result<Receipt, SendError> {
        match played_failure(&email.envelope.to) {
            Some((_, code, category, detail)) => Err(SendError {
                code: ErrorCode::new(code),
                category: *category,
                original_code: None,
                retry_after: None,
                detail: (*detail).to_owned(),
                taken: Taken::No,
            }),
            None => Ok(Receipt { message_id: Some(format!("capture-{}", email.id)) }),
        }
    }
}

/// Local part, code, category, words. A mailbox that is not here takes its mail; so do `delivered`, `bounced` and
/// `complained`, whose part comes after that.
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

type Failure = (&'static str, &'static str, Category, &'static str);

fn played_failure(to: &Address) -> Option<&'static Failure> {
    let (local, domain) = to.expose().rsplit_once('@')?;
    let mailbox = local.split_once('+').map_or(local, |(mailbox, _)| mailbox);
    let is_sandbox = domain.eq_ignore_ascii_case(SANDBOX_DOMAIN);
    FAILURES.iter().find(|(name, ..)| is_sandbox && mailbox.eq_ignore_ascii_case(name))
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
            match (CaptureProvider.send(&email).await, expected) {
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
    fn it_says_what_it_is() {
        assert_eq!(CaptureProvider.kind(), "capture");
    }
}
