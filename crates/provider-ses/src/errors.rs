//! What went wrong between us and SES, and the one table that says what it means to us.

use std::error::Error;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sesv2::config::http::HttpResponse;
use aws_sdk_sesv2::error::{ConnectorError, ProvideErrorMetadata, SdkError};
use hyper_util::client::legacy::Error as ClientError;
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

/// How much of the request is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    Nothing,
    Perhaps,
}

/// Why there are no credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// What should lead to them is written wrongly.
    Misconfigured,
    /// Nobody had any. On a machine of AWS's this passes: its metadata service was too busy to answer.
    NoneFound,
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

impl Mishap {
    /// What an error of the SDK's means. `was_out` says whether the call had come as far as the connection.
    pub fn of<E>(error: SdkError<E, HttpResponse>, was_out: bool) -> Self
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        match &error {
            // The SDK calls an answer that it cannot read an error, whatever its status.
            SdkError::ServiceError(context) if context.raw().status().is_success() => Self::Unreadable,
            SdkError::ServiceError(context) => {
                let meta = context.err().meta();
                Self::Answer(answer(context.raw(), meta.code(), meta.message()))
            }
            SdkError::ResponseError(context) if context.raw().status().is_success() => Self::Unreadable,
            SdkError::ResponseError(context) => Self::Answer(answer(context.raw(), None, None)),
            SdkError::ConstructionFailure(_) => Self::Unfit(in_full(&error)),
            SdkError::TimeoutError(_) => Self::TimedOut(sent(was_out)),
            _ => Self::of_dispatch(&error, was_out),
        }
    }

    fn of_dispatch(error: &(dyn Error + 'static), was_out: bool) -> Self {
        if let Some(lack) = find::<CredentialsError>(error) {
            let lack = match lack {
                CredentialsError::InvalidConfiguration(_) => Lack::Misconfigured,
                _ => Lack::NoneFound,
            };
            return Self::Credentials(lack, in_full(error));
        }
        // Only while a connection was being made is it sure that nothing went out.
        let never_connected = find::<ClientError>(error).is_some_and(ClientError::is_connect);
        let sent = sent(was_out && !never_connected);
        let is_timeout = find::<ConnectorError>(error).is_some_and(ConnectorError::is_timeout);
        if is_timeout { Self::TimedOut(sent) } else { Self::Network(sent, in_full(error)) }
    }

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
        SendError { code, category, original_code, retry_after, detail: detail(&words), taken, trouble }
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

fn sent(was_out: bool) -> Sent {
    if was_out { Sent::Perhaps } else { Sent::Nothing }
}

fn answer(raw: &HttpResponse, name: Option<&str>, message: Option<&str>) -> Answer {
    Answer {
        status: raw.status().as_u16(),
        name: name.filter(|name| !name.is_empty()).map(str::to_owned),
        message: message.unwrap_or_default().to_owned(),
        retry_after: raw
            .headers()
            .get("retry-after")
            .and_then(|secs| secs.trim().parse().ok())
            .map(Duration::from_secs),
    }
}

fn find<'x, E: Error + 'static>(error: &'x (dyn Error + 'static)) -> Option<&'x E> {
    std::iter::successors(Some(error), |&error| error.source()).find_map(|error| error.downcast_ref())
}

/// The error and what caused it, which has the better words.
fn in_full(error: &(dyn Error + 'static)) -> String {
    let mut words: Vec<String> = Vec::new();
    for error in std::iter::successors(Some(error), |&error| error.source()) {
        let text = error.to_string();
        if !words.iter().any(|known| known.contains(&text)) {
            words.push(text);
        }
    }
    words.join(": ")
}

#[cfg(test)]
mod tests;
