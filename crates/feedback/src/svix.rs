//! The signature of a webhook by the scheme of Svix, which is that of Standard Webhooks: Resend signs with it, and so
//! do callbacks of ours. What the body says is read elsewhere (`resend.rs`).

use std::time::Duration;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use model::{Secret, Timestamp};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};

/// How far a sender's clock may be off, either way. It is what the official libraries allow.
pub const WINDOW: Duration = Duration::from_secs(300);

const KEY_BYTES_MIN: usize = 24;
const KEY_BYTES_MAX: usize = 64;
const PREFIX: &str = "whsec_";
const VERSION: &str = "v1";

/// The two families of headers. Both carry the same; a webhook is read from one of them, never from a mixture.
const FAMILIES: [[&str; 3]; 2] = [
    ["svix-id", "svix-timestamp", "svix-signature"],
    ["webhook-id", "webhook-timestamp", "webhook-signature"],
];

/// Secrets are copied by hand and lose their `=` on the way; the official libraries do not mind either.
const PADDING_OPTIONAL: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The key both sides share. Prints as stars.
#[derive(Debug, Clone)]
pub struct SigningSecret(Secret<Vec<u8>>);

/// Why a text is no signing secret. Never quotes the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    #[error("a signing secret starts with {PREFIX}")]
    Prefix,
    #[error(
        "this is a key of the ed25519 scheme (whpk_, whsk_); the secret that starts with {PREFIX} is needed"
    )]
    Asymmetric,
    #[error("what follows {PREFIX} is not base64")]
    Base64,
    #[error("a signing secret holds {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes, this one {0}")]
    Length(usize),
}

impl SigningSecret {
    /// Reads `whsec_` followed by base64.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        if text.starts_with("whpk_") || text.starts_with("whsk_") {
            return Err(InvalidSecret::Asymmetric);
        }
        let encoded = text.strip_prefix(PREFIX).ok_or(InvalidSecret::Prefix)?;
        let key = PADDING_OPTIONAL.decode(encoded).map_err(|_| InvalidSecret::Base64)?;
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(InvalidSecret::Length(key.len()));
        }
        Ok(Self(Secret::new(key)))
    }

    fn mac(&self, id: &str, timestamp: &str, body: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.expose()).expect("HMAC takes keys of any length");
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

/// The three headers of a webhook, as they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers<'a> {
    /// The same on every retry of an event.
    pub id: &'a str,
    pub timestamp: &'a str,
    pub signature: &'a str,
}

impl<'a> Headers<'a> {
    /// Looks for one whole family of headers. `header` is asked with lower-case names; an empty header is none.
    pub fn find(header: impl Fn(&str) -> Option<&'a str>) -> Result<Self, Refused> {
        let mut came_in_part = None;
        for family in FAMILIES {
            let found = family.map(|name| header(name).filter(|value| !value.is_empty()));
            if let [Some(id), Some(timestamp), Some(signature)] = found {
                return Ok(Self { id, timestamp, signature });
            }
            if found.iter().any(Option::is_some) {
                let missing = family.into_iter().zip(found).find(|(_, value)| value.is_none());
                came_in_part = came_in_part.or(missing.map(|(name, _)| name));
            }
        }
        Err(Refused::MissingHeader(came_in_part.unwrap_or(FAMILIES[0][0])))
    }
}

/// Why a webhook is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the header {0} is missing")]
    MissingHeader(&'static str),
    #[error("the timestamp is not a number of seconds")]
    TimestampUnreadable,
    #[error("the timestamp is more than {} seconds old", WINDOW.as_secs())]
    TooOld,
    #[error("the timestamp is more than {} seconds ahead", WINDOW.as_secs())]
    TooNew,
    #[error("no signature matches")]
    Signature,
}

/// Whether one of the secrets signed this very body, lately. More than one secret is for the time of a change of
/// secrets; none at all believes nothing. The number of signatures in the header is bounded by the size of the header,
/// which is the HTTP server's to bound.
pub fn verify(
    secrets: &[SigningSecret],
    headers: &Headers<'_>,
    body: &[u8],
    now: Timestamp,
) -> Result<(), Refused> {
    check_time(headers.timestamp, now)?;
    let mut matched = Choice::from(0);
    for secret in secrets {
        let expected = secret.mac(headers.id, headers.timestamp, body);
        for signature in signatures(headers.signature) {
            // Slices of different lengths are never equal, so a shortened signature is none.
            matched |= signature.as_slice().ct_eq(&expected);
        }
    }
    if bool::from(matched) { Ok(()) } else { Err(Refused::Signature) }
}

/// The signature header for a body of ours. The timestamp header must say the same number of seconds.
pub fn sign(secret: &SigningSecret, id: &str, timestamp_secs: i64, body: &[u8]) -> String {
    let mac = secret.mac(id, &timestamp_secs.to_string(), body);
    format!("{VERSION},{}", STANDARD.encode(mac))
}

fn check_time(timestamp: &str, now: Timestamp) -> Result<(), Refused> {
    // Rust would also read a plus sign, which no sender writes.
    if !timestamp.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refused::TimestampUnreadable);
    }
    let secs: i64 = timestamp.parse().map_err(|_| Refused::TimestampUnreadable)?;
    let sent = Timestamp::from_millis(secs.saturating_mul(1_000));
    if now.since(sent) > WINDOW {
        return Err(Refused::TooOld);
    }
    if sent.since(now) > WINDOW {
        return Err(Refused::TooNew);
    }
    Ok(())
}

/// The signatures of our version, decoded. Others (`v1a` is ed25519) and broken ones are passed over.
fn signatures(header: &str) -> impl Iterator<Item = Vec<u8>> {
    header
        .split(' ')
        .filter_map(|entry| entry.split_once(','))
        .filter(|(version, _)| *version == VERSION)
        .filter_map(|(_, encoded)| STANDARD.decode(encoded).ok())
}
