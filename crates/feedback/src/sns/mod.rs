//! Messages of Amazon SNS over HTTP: the envelope, and whether SNS signed it. Start reading at [`verify`]. Which hosts
//! are believed is in `origin.rs`, which certificates in `certificate.rs`, what SES writes inside in `ses.rs`.
//!
//! Fetching the certificate and keeping it for a while is the caller's work: over verified TLS, without redirects,
//! bounded in size, and only from the address [`Envelope::certificate_url`] gave out.

mod certificate;
mod origin;

use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, RsaParameters,
    UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::{Secret, Timestamp};
use serde::Deserialize;
use url::Url;

pub use certificate::{CertificateFault, InvalidRoot, Root};
pub use origin::{InvalidHost, TrustedHost, UrlFault};

use origin::Origin;

/// Whom we believe.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// The topics we listen to. Everybody can have SNS sign messages of a topic of their own, so an empty list
    /// believes nothing.
    pub topics: Vec<String>,
    /// Hosts beside those of AWS, as emulators need.
    pub hosts: Vec<TrustedHost>,
    /// If there are any, certificates from `hosts` must be one of these or signed by one of these.
    pub roots: Vec<Root>,
}

/// A message as it came: read, and not believed yet.
#[derive(Debug, Clone)]
pub struct Envelope {
    id: String,
    topic: String,
    timestamp: String,
    text: Secret<String>,
    certificate_url: String,
    digest: Digest,
    signature: Vec<u8>,
    kind: EnvelopeKind,
}

/// A message that SNS signed, of a topic of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The same on every retry.
    pub id: String,
    pub topic: String,
    pub kind: MessageKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageKind {
    /// What was published, word for word.
    Notification(Secret<String>),
    /// To be fetched once if we want the topic's messages. The address holds a token.
    SubscriptionConfirmation(Secret<Url>),
    /// We were taken off the topic; fetching the address would put us on it again.
    UnsubscribeConfirmation(Secret<Url>),
}

impl Message {
    /// Where a subscription is confirmed. The host is one we trust; an address on another host does not get this far.
    pub fn subscribe_url(&self) -> Option<&Url> {
        match &self.kind {
            MessageKind::SubscriptionConfirmation(url) | MessageKind::UnsubscribeConfirmation(url) => {
                Some(url.expose())
            }
            MessageKind::Notification(_) => None,
        }
    }
}

/// Why a message is not believed. Never quotes the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SnsError {
    #[error("not a message of SNS: {0}")]
    NotAnEnvelope(&'static str),
    #[error("the topic is not on the list of topics")]
    Topic,
    #[error("the address of the certificate is refused: {0}")]
    CertificateUrl(UrlFault),
    #[error("the certificate is refused: {0}")]
    Certificate(#[from] CertificateFault),
    #[error("the signature does not match")]
    Signature,
    #[error("the address for confirming the subscription is refused: {0}")]
    SubscribeUrl(UrlFault),
}

/// Whether SNS signed this message with the key of this certificate, and the message if so.
pub fn verify(
    envelope: &Envelope,
    certificate_pem: &str,
    trust: &Trust,
    now: Timestamp,
) -> Result<Message, SnsError> {
    let (_, origin) = envelope.origin(trust)?;
    let key = certificate::rsa_key(certificate_pem, &origin, &trust.roots, now)?;
    let key = UnparsedPublicKey::new(envelope.digest.algorithm(), key);
    let is_signed = |text: &String| key.verify(text.as_bytes(), &envelope.signature).is_ok();
    if !envelope.signed_texts().iter().any(is_signed) {
        return Err(SnsError::Signature);
    }
    envelope.open(trust)
}

/// `SignatureVersion`: 1 is what a topic has unless told otherwise. SHA-1 is weak where somebody can choose both of two
/// texts; here SNS would have to sign one of them, with an id of its own inside.
#[derive(Debug, Clone, Copy)]
enum Digest {
    Sha1,
    Sha256,
}

impl Digest {
    fn algorithm(self) -> &'static RsaParameters {
        match self {
            Self::Sha1 => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            Self::Sha256 => &RSA_PKCS1_2048_8192_SHA256,
        }
    }
}

#[derive(Debug, Clone)]
enum EnvelopeKind {
    Notification { subject: Option<Secret<String>> },
    SubscriptionConfirmation(Confirmation),
    UnsubscribeConfirmation(Confirmation),
}

#[derive(Debug, Clone)]
struct Confirmation {
    token: Secret<String>,
    subscribe_url: Secret<String>,
}

impl Confirmation {
    /// As they are signed: each with its name.
    fn fields(&self) -> ((&str, &str), (&str, &str)) {
        (("SubscribeURL", self.subscribe_url.expose()), ("Token", self.token.expose()))
    }
}

/// The JSON, field by field. Unknown fields are passed over; one that comes twice is an error.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wire {
    r#type: String,
    message_id: String,
    topic_arn: String,
    message: String,
    timestamp: String,
    signature_version: String,
    signature: String,
    #[serde(rename = "SigningCertURL")]
    signing_cert_url: String,
    subject: Option<String>,
    token: Option<String>,
    #[serde(rename = "SubscribeURL")]
    subscribe_url: Option<String>,
}

impl Envelope {
    /// Reads a message. The caller has bounded its size.
    pub fn parse(body: &[u8]) -> Result<Self, SnsError> {
        // Not the error's own text: it may quote the body.
        let wire: Wire = serde_json::from_slice(body)
            .map_err(|_| SnsError::NotAnEnvelope("not JSON with the fields of SNS"))?;
        wire.check_lines()?;
        let digest = match wire.signature_version.as_str() {
            "1" => Digest::Sha1,
            "2" => Digest::Sha256,
            _ => return Err(SnsError::NotAnEnvelope("unknown SignatureVersion")),
        };
        let signature = STANDARD
            .decode(&wire.signature)
            .map_err(|_| SnsError::NotAnEnvelope("Signature is not base64"))?;
        let confirmation = || match (&wire.token, &wire.subscribe_url) {
            (Some(token), Some(url)) => Ok(Confirmation {
                token: Secret::new(token.clone()),
                subscribe_url: Secret::new(url.clone()),
            }),
            _ => Err(SnsError::NotAnEnvelope("a confirmation without Token or SubscribeURL")),
        };
        let kind = match wire.r#type.as_str() {
            "Notification" => EnvelopeKind::Notification { subject: wire.subject.clone().map(Secret::new) },
            "SubscriptionConfirmation" => EnvelopeKind::SubscriptionConfirmation(confirmation()?),
            "UnsubscribeConfirmation" => EnvelopeKind::UnsubscribeConfirmation(confirmation()?),
            _ => return Err(SnsError::NotAnEnvelope("unknown Type")),
        };
        Ok(Self {
            id: wire.message_id,
            topic: wire.topic_arn,
            timestamp: wire.timestamp,
            text: Secret::new(wire.message),
            certificate_url: wire.signing_cert_url,
            digest,
            signature,
            kind,
        })
    }

    /// Where the certificate may be fetched. Refused before anything is fetched: a topic that is not ours, and every
    /// address that is not on a host we trust.
    pub fn certificate_url(&self, trust: &Trust) -> Result<Url, SnsError> {
        self.origin(trust).map(|(url, _)| url)
    }

    fn origin(&self, trust: &Trust) -> Result<(Url, Origin), SnsError> {
        if !trust.topics.contains(&self.topic) {
            return Err(SnsError::Topic);
        }
        origin::check_certificate_url(&self.certificate_url, &trust.hosts).map_err(SnsError::CertificateUrl)
    }

    /// What SNS may have signed: each field's name and value on a line of its own, in the order of the names. AWS's
    /// guide signs the token of an UnsubscribeConfirmation, AWS's own validator for JavaScript does not: either will do.
    fn signed_texts(&self) -> Vec<String> {
        match &self.kind {
            EnvelopeKind::Notification { subject } => {
                let subject = subject.as_ref().map(|subject| ("Subject", subject.expose().as_str()));
                vec![self.signed_text("Notification", subject, None)]
            }
            EnvelopeKind::SubscriptionConfirmation(confirmation) => {
                let (url, token) = confirmation.fields();
                vec![self.signed_text("SubscriptionConfirmation", Some(url), Some(token))]
            }
            EnvelopeKind::UnsubscribeConfirmation(confirmation) => {
                let (url, token) = confirmation.fields();
                [Some(token), None]
                    .map(|token| self.signed_text("UnsubscribeConfirmation", Some(url), token))
                    .to_vec()
            }
        }
    }

    fn signed_text(
        &self,
        kind: &str,
        before_timestamp: Option<(&str, &str)>,
        after_timestamp: Option<(&str, &str)>,
    ) -> String {
        let fields = [
            Some(("Message", self.text.expose().as_str())),
            Some(("MessageId", self.id.as_str())),
            before_timestamp,
            Some(("Timestamp", self.timestamp.as_str())),
            after_timestamp,
            Some(("TopicArn", self.topic.as_str())),
            Some(("Type", kind)),
        ];
        fields.into_iter().flatten().map(|(name, value)| format!("{name}\n{value}\n")).collect()
    }

    /// The message inside, once it is believed.
    fn open(&self, trust: &Trust) -> Result<Message, SnsError> {
        let checked = |confirmation: &Confirmation| {
            origin::check_host(confirmation.subscribe_url.expose(), &trust.hosts)
                .map(|(url, _)| Secret::new(url))
                .map_err(SnsError::SubscribeUrl)
        };
        let kind = match &self.kind {
            EnvelopeKind::Notification { .. } => MessageKind::Notification(self.text.clone()),
            EnvelopeKind::SubscriptionConfirmation(confirmation) => {
                MessageKind::SubscriptionConfirmation(checked(confirmation)?)
            }
            EnvelopeKind::UnsubscribeConfirmation(confirmation) => {
                MessageKind::UnsubscribeConfirmation(checked(confirmation)?)
            }
        };
        Ok(Message { id: self.id.clone(), topic: self.topic.clone(), kind })
    }
}

impl Wire {
    /// Only the message itself may have line breaks. In the signed text names and values are told apart by line, so that
    /// a line break in another field could make one signed text of two different envelopes.
    fn check_lines(&self) -> Result<(), SnsError> {
        let required = [&self.message_id, &self.topic_arn, &self.timestamp, &self.signing_cert_url];
        let optional = [&self.subject, &self.token, &self.subscribe_url];
        let mut fields = required.into_iter().chain(optional.into_iter().flatten());
        if fields.any(|field| field.chars().any(char::is_control)) {
            return Err(SnsError::NotAnEnvelope("a control character outside of Message"));
        }
        Ok(())
    }
}
