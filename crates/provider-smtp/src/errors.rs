//! What went wrong between us and an SMTP server, and the one table that says what it means to us.

use std::error::Error as _;
use std::sync::atomic::{AtomicU8, Ordering};

use message::RenderError;
use model::{Address, Category, ErrorCode};
use provider::{SendError, Taken, Trouble, detail};

/// What went wrong.
#[derive(Debug)]
pub enum Mishap {
    /// The server said no.
    Reply {
        code: u16,
        text: String,
        /// Whom it refused, if it was a recipient.
        recipient: Option<Address>,
    },
    /// It did not answer in time.
    TimedOut,
    /// It could not be reached, hung up, or said what is not SMTP.
    Network(String),
    TlsNotOffered,
    AuthNotOffered,
    EightBitNotOffered,
    /// An address that cannot stand in an SMTP command.
    Address,
    Unrenderable(RenderError),
}

impl Mishap {
    /// The table: what happened, our code, and the category that decides about retry. A 4yz may pass, a 5yz will
    /// not, except that a refused login says nothing about the email.
    fn row(&self) -> (ErrorCode, Category) {
        use Category::{Configuration, Permanent, Timeout, Transient};
        let rejected = |code| ErrorCode::from_string(format!("SMTP_REJECTED_{code}"));
        let transient = |code| ErrorCode::from_string(format!("SMTP_TRANSIENT_{code}"));
        match self {
            Self::Reply { code: code @ (530 | 534 | 535 | 538), .. } => (rejected(code), Configuration),
            Self::Reply { code: code @ 400..=499, .. } => (transient(code), Transient),
            Self::Reply { code, .. } => (rejected(code), Permanent),
            Self::TimedOut => (ErrorCode::new("SMTP_TIMEOUT"), Timeout),
            Self::Network(_) => (ErrorCode::NETWORK_ERROR, Transient),
            // Retried, since somebody in between may have taken the offer out; nothing goes unprotected meanwhile.
            Self::TlsNotOffered => (ErrorCode::new("SMTP_TLS_NOT_OFFERED"), Transient),
            Self::AuthNotOffered => (ErrorCode::new("SMTP_AUTH_NOT_OFFERED"), Configuration),
            Self::EightBitNotOffered => (ErrorCode::new("SMTP_8BITMIME_NOT_OFFERED"), Permanent),
            Self::Address => (ErrorCode::INVALID_EMAIL, Permanent),
            Self::Unrenderable(_) => (ErrorCode::INVALID_PAYLOAD, Permanent),
        }
    }

    /// The connection may have been dead before it was used: worth one more try on a fresh one.
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Network(_) | Self::Reply { code: 421, .. })
    }

    /// The server refused and the connection is still good.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Reply { code, .. } if *code != 421)
    }

    /// If it met a copy, the email can go to the others without it. What may pass is worth another attempt for all of them
    /// first, as long as there is one.
    pub fn is_copys_own(&self, is_last_attempt: bool) -> bool {
        match self.row().1 {
            Category::Permanent => matches!(self, Self::Reply { .. }),
            Category::Transient => is_last_attempt && self.is_refusal(),
            _ => false,
        }
    }

    /// Says which recipient it was about, since the server need not. A server that hangs up says nothing of anybody.
    pub fn with_recipient(self, recipient: &str) -> Self {
        match self {
            Self::Reply { code, text, .. } if code != 421 => {
                let text = format!("{text} (recipient {recipient})");
                Self::Reply { code, text, recipient: Some(Address::trusted(recipient.to_owned())) }
            }
            other => other,
        }
    }

    pub fn into_send_error(self, stage: Stage) -> SendError {
        let (code, category) = self.row();
        let taken = match (&self, stage) {
            (Self::Reply { .. }, _) => Taken::No,
            (_, Stage::EndOfData) => Taken::Unknown,
            _ => Taken::No,
        };
        let original_code = match &self {
            Self::Reply { code, text, .. } => Some(original_code(*code, text)),
            _ => None,
        };
        let detail = detail(&format!("{}: {}", stage.words(), self.words()));
        // Only a server that cannot be talked to says something of itself; its refusals are about the email.
        let trouble = match &self {
            Self::TimedOut | Self::Network(_) | Self::Reply { code: 421, .. } => Some(Trouble::Outage),
            _ => None,
        };
        let refused = if let Self::Reply { recipient, .. } = self { recipient } else { None };
        SendError { code, category, original_code, retry_after: None, detail, taken, trouble, refused }
    }

    fn words(&self) -> String {
        match self {
            Self::Reply { code, text, .. } => format!("{code} {text}"),
            Self::TimedOut => "no answer in time".into(),
            Self::Network(text) => text.clone(),
            Self::TlsNotOffered => {
                "the server does not offer STARTTLS, and without it nothing is sent".into()
            }
            Self::AuthNotOffered => "the server offers no way to log in that we know (PLAIN, LOGIN)".into(),
            Self::EightBitNotOffered => {
                "the message has bytes outside ASCII and the server does not take them (no 8BITMIME)".into()
            }
            Self::Address => "an address cannot be used with SMTP".into(),
            Self::Unrenderable(error) => error.to_string(),
        }
    }
}

impl From<lettre::transport::smtp::Error> for Mishap {
    fn from(error: lettre::transport::smtp::Error) -> Self {
        match error.status() {
            Some(code) => {
                let text = error.source().map(ToString::to_string).unwrap_or_default();
                Self::Reply { code: code.into(), text, recipient: None }
            }
            None if error.is_timeout() => Self::TimedOut,
            None => Self::Network(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Mishap {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::TimedOut {
            Self::TimedOut
        } else {
            Self::Network(error.to_string())
        }
    }
}

/// How far an attempt has come. Once the end of the message may be out, only the server knows whether it took it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Preparing,
    WaitingForConnection,
    Connecting,
    Envelope,
    Body,
    EndOfData,
}

impl Stage {
    const ALL: [Self; 6] = [
        Self::Preparing,
        Self::WaitingForConnection,
        Self::Connecting,
        Self::Envelope,
        Self::Body,
        Self::EndOfData,
    ];

    fn words(self) -> &'static str {
        match self {
            Self::Preparing => "preparing the message",
            Self::WaitingForConnection => "waiting for a free connection",
            Self::Connecting => "connecting",
            Self::Envelope => "naming sender and recipients",
            Self::Body => "sending the message",
            Self::EndOfData => "after the message",
        }
    }
}

/// The stage an attempt is in, still known when the attempt itself was cut off.
#[derive(Debug, Default)]
pub struct Progress(AtomicU8);

impl Progress {
    pub fn reach(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    pub fn stage(&self) -> Stage {
        Stage::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

/// Such as `550 5.1.1`: the code and, if the text begins with one, the enhanced code.
fn original_code(code: u16, text: &str) -> String {
    let first = text.split_whitespace().next().unwrap_or_default();
    let numbers: Vec<&str> = first.split('.').collect();
    let is_number = |text: &&str| (1..=3).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    if numbers.len() == 3 && numbers.iter().all(is_number) {
        format!("{code} {first}")
    } else {
        code.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(code: u16, text: &str) -> Mishap {
        Mishap::Reply { code, text: text.into(), recipient: None }
    }

    #[test]
    fn the_table() {
        use Category::{Configuration, Permanent, Timeout, Transient};
        let cases = [
            (reply(421, "4.3.2 closing"), "SMTP_TRANSIENT_421", Transient, Some("421 4.3.2")),
            (reply(450, "busy"), "SMTP_TRANSIENT_450", Transient, Some("450")),
            (reply(451, "4.3.0 x"), "SMTP_TRANSIENT_451", Transient, Some("451 4.3.0")),
            (reply(452, "4.3.1"), "SMTP_TRANSIENT_452", Transient, Some("452 4.3.1")),
            (reply(454, "4.7.0 later"), "SMTP_TRANSIENT_454", Transient, Some("454 4.7.0")),
            (reply(530, "5.7.0 STARTTLS first"), "SMTP_REJECTED_530", Configuration, Some("530 5.7.0")),
            (reply(534, "weak"), "SMTP_REJECTED_534", Configuration, Some("534")),
            (reply(535, "5.7.8 no"), "SMTP_REJECTED_535", Configuration, Some("535 5.7.8")),
            (reply(538, "encrypt"), "SMTP_REJECTED_538", Configuration, Some("538")),
            (reply(550, "5.1.1 no such user"), "SMTP_REJECTED_550", Permanent, Some("550 5.1.1")),
            (reply(552, "1.2.3.4 size"), "SMTP_REJECTED_552", Permanent, Some("552")),
            (reply(554, ""), "SMTP_REJECTED_554", Permanent, Some("554")),
            (Mishap::TimedOut, "SMTP_TIMEOUT", Timeout, None),
            (Mishap::Network("reset".into()), "NETWORK_ERROR", Transient, None),
            (Mishap::TlsNotOffered, "SMTP_TLS_NOT_OFFERED", Transient, None),
            (Mishap::AuthNotOffered, "SMTP_AUTH_NOT_OFFERED", Configuration, None),
            (Mishap::EightBitNotOffered, "SMTP_8BITMIME_NOT_OFFERED", Permanent, None),
            (Mishap::Address, "INVALID_EMAIL", Permanent, None),
            (Mishap::Unrenderable(RenderError::ContentId), "INVALID_PAYLOAD", Permanent, None),
        ];
        for (trouble, code, category, original) in cases {
            let case = format!("{trouble:?}");
            let error = trouble.into_send_error(Stage::Envelope);
            assert_eq!((error.code.as_str(), error.category), (code, category), "{case}");
            assert_eq!(error.original_code.as_deref(), original, "{case}");
            assert_eq!((error.retry_after, error.taken), (None, Taken::No), "{case}");
        }
    }

    #[test]
    fn only_silence_after_the_message_leaves_it_open() {
        for stage in Stage::ALL {
            let open = if stage == Stage::EndOfData { Taken::Unknown } else { Taken::No };
            assert_eq!(Mishap::TimedOut.into_send_error(stage).taken, open, "{stage:?}");
            assert_eq!(Mishap::Network("x".into()).into_send_error(stage).taken, open, "{stage:?}");
            assert_eq!(reply(554, "no").into_send_error(stage).taken, Taken::No, "{stage:?}");
            let progress = Progress::default();
            progress.reach(stage);
            assert_eq!(progress.stage(), stage);
        }
    }

    #[test]
    fn details_are_masked_and_on_one_line() {
        let error = reply(550, "5.1.1 <bob@example.com>\r\n  unknown\u{7}").into_send_error(Stage::Envelope);
        assert_eq!(error.detail, "naming sender and recipients: 550 5.1.1 <b***@e***.com> unknown");
    }
}
