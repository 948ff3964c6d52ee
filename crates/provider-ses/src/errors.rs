//! What went wrong between us and SES, and the one table that says what it means to us.

use std::time::Duration;

use aws::Failure;
pub use aws::{Lack, Sent};
use model::{Category, ErrorCode};
use provider::{SendError, Taken, Trouble, detail};

use crate::table::{Row, advice, row_of};

/// A wait that is longer than this is not believed: no email lives longer by default.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// What went wrong.
#[derive(Debug)]
pub enum Mishap {
    /// SES, or something on the way, answered with an error.
    Answer(Answer),
    /// It says that it took the email, but not as which.
    Unreadable,
    /// It did not answer in time.
    TimedOut(Sent),
    /// It could not be reached or hung up.
    Network(Sent, String),
    /// No credentials, or none now.
    Credentials(Lack, String),
    NoRegion,
    /// The email cannot be written as SES wants it.
    Unfit(String),
}

/// An error answer.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    /// SES's name for the error; none when the answer is not SES's.
    pub name: Option<String>,
    pub message: String,
    pub retry_after: Option<Duration>,
}

impl From<Failure> for Mishap {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoRegion => Self::NoRegion,
            Failure::Credentials(lack, reason) => Self::Credentials(lack, reason),
            Failure::TimedOut(sent) => Self::TimedOut(sent),
            Failure::Network(sent, reason) => Self::Network(sent, reason),
        }
    }
}

/// Of an answer that says no.
impl From<aws::Answer> for Mishap {
    fn from(answer: aws::Answer) -> Self {
        let aws::Refusal { name, message } = answer.refusal();
        Self::Answer(Answer { status: answer.status, name, message, retry_after: answer.retry_after })
    }
}

impl Mishap {
    /// What the gateway is told.
    pub fn into_send_error(self) -> SendError {
        let (code, category, taken, trouble) = self.judged();
        let (original_code, retry_after) = match &self {
            Self::Answer(answer) => {
                let name = answer.name.as_deref().map_or(answer.status.to_string(), detail);
                (Some(name), answer.retry_after.map(|wait| wait.min(RETRY_AFTER_MAX)))
            }
            _ => (None, None),
        };
        let words = match advice(code.as_str()) {
            Some(advice) => format!("{advice} ({})", self.words()),
            None => self.words(),
        };
        SendError {
            code,
            category,
            original_code,
            retry_after,
            detail: detail(&words),
            taken,
            trouble,
            refused: None,
        }
    }

    fn judged(&self) -> (ErrorCode, Category, Taken, Option<Trouble>) {
        let outage = Some(Trouble::Outage);
        let paused = Some(Trouble::Paused);
        let taken = |sent: &Sent| match sent {
            Sent::Nothing => Taken::No,
            Sent::Perhaps => Taken::Unknown,
        };
        match self {
            Self::Answer(answer) => {
                let Row { code, category, trouble, taken, .. } =
                    *row_of(answer.status, answer.name.as_deref(), &answer.message);
                (ErrorCode::new(code), category, taken, trouble)
            }
            Self::Unreadable => {
                (ErrorCode::new("SES_UNREADABLE_ANSWER"), Category::Transient, Taken::Unknown, outage)
            }
            Self::TimedOut(sent) => (ErrorCode::new("SES_TIMEOUT"), Category::Timeout, taken(sent), outage),
            Self::Network(sent, _) => (ErrorCode::NETWORK_ERROR, Category::Transient, taken(sent), outage),
            Self::Credentials(Lack::Misconfigured, _) => {
                (ErrorCode::new("SES_CREDENTIALS_MISCONFIGURED"), Category::Configuration, Taken::No, paused)
            }
            Self::Credentials(Lack::NoneFound, _) => {
                (ErrorCode::new("SES_CREDENTIALS_NOT_FOUND"), Category::Transient, Taken::No, paused)
            }
            Self::NoRegion => {
                (ErrorCode::new("SES_REGION_NOT_FOUND"), Category::Transient, Taken::No, paused)
            }
            Self::Unfit(_) => (ErrorCode::new("SES_UNFIT_MESSAGE"), Category::Permanent, Taken::No, None),
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Answer(answer) => answer.words(),
            Self::Unreadable => "the answer says that the email was taken but has no id".into(),
            Self::TimedOut(Sent::Nothing) => "connecting: no answer in time".into(),
            Self::TimedOut(Sent::Perhaps) => "no answer in time".into(),
            Self::Network(Sent::Nothing, text) => format!("connecting: {text}"),
            Self::Network(Sent::Perhaps, text) => format!("after the request: {text}"),
            Self::Credentials(_, text) => text.clone(),
            Self::NoRegion => "neither the configuration nor AWS's own settings name a region".into(),
            Self::Unfit(reason) => format!("SES cannot send this message as it is: {reason}"),
        }
    }
}

impl Answer {
    fn words(&self) -> String {
        let name = self.name.as_deref().unwrap_or("no answer of SES's");
        match self.message.as_str() {
            "" => format!("{} {name}", self.status),
            message => format!("{} {name}: {message}", self.status),
        }
    }
}

#[cfg(test)]
mod tests;
