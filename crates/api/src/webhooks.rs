//! Which providers report here, and whether a webhook is really theirs. The binary makes a [`Webhooks`] of its
//! configuration; `v1/webhooks` answers. What signatures and events look like is known to `feedback`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use feedback::sns::{self, Envelope, Message, SnsError, Trust};
use feedback::svix::SigningSecret;
use model::Timestamp;
use tokio::sync::Semaphore;

use crate::limits::{
    CERTIFICATE_AGE_MAX, CERTIFICATE_BYTES_MAX, CERTIFICATES_MAX, FETCH_TIMEOUT, FETCHES_MAX,
};

/// Why the webhooks of a provider are believed.
#[derive(Debug, Clone)]
pub enum Source {
    /// Resend signs with a shared secret; several are for the time of a change.
    Resend { secrets: Vec<SigningSecret> },
    /// SES reports through SNS topics, signed with a certificate.
    Ses { trust: Trust },
}

impl Source {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Resend { .. } => Kind::Resend,
            Self::Ses { .. } => Kind::Ses,
        }
    }

    /// Without a secret or a topic nothing could ever be believed.
    fn is_usable(&self) -> bool {
        match self {
            Self::Resend { secrets } => !secrets.is_empty(),
            Self::Ses { trust } => !trust.topics.is_empty(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Resend,
    Ses,
}

/// Calls an address that a webhook named and that was found on a trusted host. Whoever implements this follows no
/// redirects, verifies TLS, and reads a bounded number of bytes; an answer that is not 2xx is an error. Time is bounded
/// by the caller as well.
#[async_trait]
pub trait Fetch: Send + Sync {
    async fn get(&self, url: &str) -> Result<Bytes, NotFetched>;
}

/// Why nothing was fetched, for the log. Never holds the address: it may carry a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotFetched(pub String);

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Webhooks(Option<Arc<Inner>>);

struct Inner {
    sources: BTreeMap<String, Source>,
    fetch: Arc<dyn Fetch>,
    fetches: Semaphore,
    certificates: Certificates,
}

/// Names only.
impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().flat_map(|inner| inner.sources.keys());
        f.debug_set().entries(names).finish()
    }
}

/// Why a message of SNS was not taken.
#[derive(Debug)]
pub enum Doubt {
    Refused(SnsError),
    /// The certificate could not be fetched now.
    Unchecked(NotFetched),
}

impl Webhooks {
    /// Sources by the provider's configured name. Those without a secret or topic are left out.
    pub fn new(sources: impl IntoIterator<Item = (String, Source)>, fetch: Arc<dyn Fetch>) -> Self {
        Self(Some(Arc::new(Inner {
            sources: sources.into_iter().filter(|(_, source)| source.is_usable()).collect(),
            fetch,
            fetches: Semaphore::new(FETCHES_MAX),
            certificates: Certificates::default(),
        })))
    }

    /// The provider of that kind and name; without a name, the only one of the kind.
    pub(crate) fn find(&self, kind: Kind, name: Option<&str>) -> Option<(&str, &Source)> {
        let inner = self.0.as_ref()?;
        let mut fitting = inner.sources.iter().filter(|(known, source)| {
            source.kind() == kind && name.is_none_or(|name| name == known.as_str())
        });
        let (found, source) = fitting.next()?;
        fitting.next().is_none().then_some((found.as_str(), source))
    }

    /// Whether SNS signed it, with a certificate that is fetched unless it is known.
    pub(crate) async fn believe(
        &self,
        envelope: &Envelope,
        trust: &Trust,
        now: Timestamp,
    ) -> Result<Message, Doubt> {
        let Some(inner) = &self.0 else { return Err(Doubt::Refused(SnsError::Topic)) };
        let url = envelope.certificate_url(trust).map_err(Doubt::Refused)?;
        let url = url.as_str();
        let judge = |pem: &str| sns::verify(envelope, pem, trust, now);
        if let Some(pem) = inner.certificates.get(url, now) {
            return judge(&pem).map_err(Doubt::Refused);
        }
        let _turn = inner.fetches.acquire().await;
        // Somebody may have fetched it while this one waited.
        if let Some(pem) = inner.certificates.get(url, now) {
            return judge(&pem).map_err(Doubt::Refused);
        }
        let bytes = inner.fetch(url).await.map_err(Doubt::Unchecked)?;
        let pem = certificate_text(&bytes).map_err(Doubt::Unchecked)?;
        let judged = judge(&pem);
        // A stranger can have us fetch whatever a trusted host has; only a certificate of SNS takes up room.
        if !matches!(judged, Err(SnsError::Certificate(_))) {
            inner.certificates.put(url, pem, now);
        }
        judged.map_err(Doubt::Refused)
    }

    /// Calls the address by which a subscription is confirmed.
    pub(crate) async fn confirm(&self, url: &str) -> Result<(), NotFetched> {
        let Some(inner) = &self.0 else { return Err(NotFetched("no webhooks are configured".into())) };
        let _turn = inner.fetches.acquire().await;
        inner.fetch(url).await.map(drop)
    }
}

impl Inner {
    async fn fetch(&self, url: &str) -> Result<Bytes, NotFetched> {
        tokio::time::timeout(FETCH_TIMEOUT, self.fetch.get(url))
            .await
            .unwrap_or_else(|_| Err(NotFetched("no answer in time".into())))
    }
}

fn certificate_text(bytes: &[u8]) -> Result<String, NotFetched> {
    if bytes.len() > CERTIFICATE_BYTES_MAX {
        return Err(NotFetched("the certificate is too large".into()));
    }
    // What is not text is no certificate in PEM form, and is refused as such.
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Certificates by their address, for an hour.
#[derive(Default)]
struct Certificates(Mutex<HashMap<String, (Timestamp, Arc<str>)>>);

impl Certificates {
    fn get(&self, url: &str, now: Timestamp) -> Option<Arc<str>> {
        let known = self.known();
        let (fetched_at, pem) = known.get(url)?;
        is_fresh(*fetched_at, now).then(|| pem.clone())
    }

    fn put(&self, url: &str, pem: String, now: Timestamp) {
        let mut known = self.known();
        if known.len() >= CERTIFICATES_MAX {
            known.retain(|_, (fetched_at, _)| is_fresh(*fetched_at, now));
        }
        if known.len() < CERTIFICATES_MAX || known.contains_key(url) {
            known.insert(url.to_owned(), (now, pem.into()));
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, (Timestamp, Arc<str>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Not from the future either: a clock that was set back must not keep a certificate for longer.
fn is_fresh(fetched_at: Timestamp, now: Timestamp) -> bool {
    fetched_at <= now && now.since(fetched_at) < CERTIFICATE_AGE_MAX
}

#[cfg(test)]
mod tests {
    use model::Clock as _;
    use testkit::{ManualClock, START, at_secs};

    use super::*;

    struct Nothing;

    #[async_trait]
    impl Fetch for Nothing {
        async fn get(&self, _: &str) -> Result<Bytes, NotFetched> {
            Err(NotFetched("nothing there".into()))
        }
    }

    fn resend() -> Source {
        let secret = SigningSecret::parse("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz").expect("a secret");
        Source::Resend { secrets: vec![secret] }
    }

    fn ses() -> Source {
        Source::Ses { trust: Trust { topics: vec!["arn:x".into()], ..Trust::default() } }
    }

    #[test]
    fn providers_are_found_by_kind_and_name() {
        let one = Webhooks::new([("a".to_owned(), resend()), ("b".to_owned(), ses())], Arc::new(Nothing));
        let two = Webhooks::new([("a".to_owned(), resend()), ("c".to_owned(), resend())], Arc::new(Nothing));
        let unset = Source::Resend { secrets: Vec::new() };
        let deaf = Source::Ses { trust: Trust::default() };
        let none = Webhooks::new([("a".to_owned(), unset), ("b".to_owned(), deaf)], Arc::new(Nothing));
        let cases = [
            ("the only one", &one, Kind::Resend, None, Some("a")),
            ("the only one, of SES", &one, Kind::Ses, None, Some("b")),
            ("by name", &one, Kind::Resend, Some("a"), Some("a")),
            ("of another kind", &one, Kind::Resend, Some("b"), None),
            ("unknown", &one, Kind::Resend, Some("z"), None),
            ("one of several", &two, Kind::Resend, Some("c"), Some("c")),
            ("several and no name", &two, Kind::Resend, None, None),
            ("without a secret", &none, Kind::Resend, Some("a"), None),
            ("without a topic", &none, Kind::Ses, None, None),
            ("none at all", &Webhooks::default(), Kind::Ses, None, None),
        ];
        for (case, webhooks, kind, name, expected) in cases {
            assert_eq!(webhooks.find(kind, name).map(|(name, _)| name), expected, "{case}");
        }
        assert_eq!(format!("{one:?}"), r#"{"a", "b"}"#, "no secret is printed");
    }

    #[test]
    fn certificates_are_kept_for_an_hour_and_not_without_end() {
        let certificates = Certificates::default();
        certificates.put("u", "pem".into(), START);
        let cases = [(0, true), (3599, true), (3600, false)];
        for (secs, kept) in cases {
            assert_eq!(certificates.get("u", at_secs(secs)).is_some(), kept, "{secs}");
        }
        assert!(certificates.get("u", START.minus(CERTIFICATE_AGE_MAX)).is_none(), "the clock was set back");
        let clock = ManualClock::default();
        for number in 0..1_000 {
            certificates.put(&number.to_string(), "pem".into(), clock.now());
        }
        assert_eq!(certificates.known().len(), CERTIFICATES_MAX);
        clock.advance(CERTIFICATE_AGE_MAX);
        certificates.put("new", "pem".into(), clock.now());
        assert!(certificates.get("new", clock.now()).is_some(), "old ones make room");
    }
}
