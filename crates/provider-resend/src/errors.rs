//! What went wrong between us and Resend, and the one table that says what it means to us.

use std::time::Duration;

use model::{Category, ErrorCode, Secret};
use provider::{SendError, Taken, Trouble, detail};

/// A wait that is longer than this is not believed: no email lives longer by default.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// What went wrong.
#[derive(Debug)]
pub enum Mishap {
    /// Resend, or something on the way, answered with an error.
    Answer(Answer),
    /// It says that it took the email, but not as which.
    Unreadable,
    /// It did not answer in time.
    TimedOut(Sent),
    /// It could not be reached or hung up.
    Network(Sent, String),
    /// The email cannot be written as Resend wants it.
    Unfit(String),
}

/// How much of the request is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    Nothing,
    Perhaps,
}

/// An error answer.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    /// Resend's name for the error; none when the answer is not Resend's.
    pub name: Option<String>,
    pub message: String,
    pub retry_after: Option<Duration>,
}

/// Which names a row is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Is(&'static str),
    /// That name with these words in the message, where Resend has one name for two things.
    Says(&'static str, &'static str),
    /// Any name: it is Resend that speaks.
    Given,
    /// Any name or none: the status alone says it.
    Any,
}

struct Row {
    status: u16,
    name: Name,
    code: &'static str,
    category: Category,
    trouble: Option<Trouble>,
    taken: Taken,
}

const fn row(
    status: u16,
    name: Name,
    code: &'static str,
    category: Category,
    trouble: Option<Trouble>,
) -> Row {
    Row { status, name, code, category, trouble, taken: Taken::No }
}

const fn open(row: Row) -> Row {
    Row { taken: Taken::Unknown, ..row }
}

use Category::{Configuration, Permanent, Quota, Timeout, Transient};
use Name::{Any, Given, Is, Says};
use Trouble::{Outage, Paused, QuotaUsedUp, Throttled};

/// The table: status and name, our code, the category that decides about retry, and what it says of the provider as a
/// whole. The first row that fits counts. A new error of Resend's is one new row.
///
/// A key that does not work says of the account that it cannot send (`Paused`), so that one email fails and the others
/// wait for the key. A 502 and a 504 come from something between us and Resend, which may have passed the email on.
/// `invalid_idempotent_request`: the key, made of the email's id, was used before with another payload. So Resend took
/// this email before, as it was then (the sender's default or our mapping changed in between). Trying again could only
/// end the same way, or, when Resend forgets the key after a day, in a second copy; so it is not tried again and its
/// outcome is open.
const ERRORS: &[Row] = &[
    row(400, Is("invalid_idempotency_key"), "RESEND_INVALID_IDEMPOTENCY_KEY", Permanent, None),
    row(
        400,
        Says("validation_error", "API key is invalid"),
        "RESEND_INVALID_API_KEY",
        Configuration,
        Some(Paused),
    ),
    row(400, Is("validation_error"), "RESEND_VALIDATION_ERROR", Permanent, None),
    row(400, Given, "RESEND_REJECTED", Permanent, None),
    row(401, Is("missing_api_key"), "RESEND_MISSING_API_KEY", Configuration, Some(Paused)),
    row(401, Is("restricted_api_key"), "RESEND_RESTRICTED_API_KEY", Configuration, None),
    row(401, Any, "RESEND_INVALID_API_KEY", Configuration, Some(Paused)),
    row(403, Is("invalid_api_key"), "RESEND_INVALID_API_KEY", Configuration, Some(Paused)),
    row(403, Is("suspended_api_key"), "RESEND_SUSPENDED_API_KEY", Configuration, Some(Paused)),
    row(403, Is("restricted_api_key"), "RESEND_RESTRICTED_API_KEY", Configuration, None),
    row(403, Is("invalid_permission"), "RESEND_INVALID_PERMISSION", Configuration, None),
    row(403, Is("validation_error"), "RESEND_DOMAIN_NOT_VERIFIED", Configuration, None),
    row(403, Given, "RESEND_FORBIDDEN", Configuration, None),
    row(404, Any, "RESEND_NOT_FOUND", Configuration, None),
    row(405, Any, "RESEND_METHOD_NOT_ALLOWED", Configuration, None),
    row(408, Any, "RESEND_TIMEOUT", Timeout, Some(Outage)),
    open(row(
        409,
        Is("concurrent_idempotent_requests"),
        "RESEND_CONCURRENT_IDEMPOTENT_REQUESTS",
        Transient,
        None,
    )),
    open(row(409, Is("invalid_idempotent_request"), "RESEND_INVALID_IDEMPOTENT_REQUEST", Permanent, None)),
    row(409, Is("resource_locked"), "RESEND_RESOURCE_LOCKED", Transient, None),
    row(413, Any, "RESEND_TOO_LARGE", Permanent, None),
    row(422, Is("invalid_attachment"), "RESEND_INVALID_ATTACHMENT", Permanent, None),
    row(422, Is("invalid_from_address"), "RESEND_INVALID_FROM_ADDRESS", Configuration, None),
    row(422, Is("invalid_access"), "RESEND_INVALID_ACCESS", Configuration, None),
    row(422, Is("invalid_region"), "RESEND_INVALID_REGION", Configuration, None),
    row(422, Is("invalid_parameter"), "RESEND_INVALID_PARAMETER", Permanent, None),
    row(422, Is("missing_required_field"), "RESEND_MISSING_REQUIRED_FIELD", Permanent, None),
    row(422, Is("missing_required_parameter"), "RESEND_MISSING_REQUIRED_PARAMETER", Permanent, None),
    row(422, Is("validation_error"), "RESEND_VALIDATION_ERROR", Permanent, None),
    row(422, Given, "RESEND_REJECTED", Permanent, None),
    row(429, Is("daily_quota_exceeded"), "RESEND_DAILY_QUOTA_EXCEEDED", Quota, Some(QuotaUsedUp)),
    row(429, Is("monthly_quota_exceeded"), "RESEND_MONTHLY_QUOTA_EXCEEDED", Quota, Some(QuotaUsedUp)),
    row(429, Any, "RESEND_RATE_LIMIT_EXCEEDED", Quota, Some(Throttled)),
    row(451, Is("security_error"), "RESEND_SECURITY_ERROR", Permanent, None),
    open(row(502, Any, "RESEND_BAD_GATEWAY", Transient, Some(Outage))),
    row(503, Any, "RESEND_SERVICE_UNAVAILABLE", Transient, Some(Outage)),
    open(row(504, Any, "RESEND_GATEWAY_TIMEOUT", Transient, Some(Outage))),
];
/// A redirect is not followed: it would take the key along.
const REDIRECT: Row = row(300, Any, "RESEND_REDIRECTED", Configuration, None);
const BROKEN: Row = row(500, Any, "RESEND_APPLICATION_ERROR", Transient, Some(Outage));
const UNKNOWN: Row = row(0, Any, "RESEND_UNKNOWN_ERROR", Transient, None);

impl Answer {
    fn row(&self) -> &'static Row {
        let named = ERRORS.iter().find(|row| {
            row.status == self.status
                && match row.name {
                    Is(name) => self.name.as_deref() == Some(name),
                    Says(name, words) => self.name.as_deref() == Some(name) && self.message.contains(words),
                    Given => self.name.is_some(),
                    Any => true,
                }
        });
        named.unwrap_or(match self.status {
            300..400 => &REDIRECT,
            500.. => &BROKEN,
            _ => &UNKNOWN,
        })
    }

    fn words(&self) -> String {
        let name = self.name.as_deref().unwrap_or("no answer of Resend's");
        match self.message.as_str() {
            "" => format!("{} {name}", self.status),
            message => format!("{} {name}: {message}", self.status),
        }
    }
}

impl Mishap {
    /// What the gateway is told. The key never appears, even if the answer quotes it.
    pub fn into_send_error(self, key: &Secret<String>) -> SendError {
        let original_code = match &self {
            Self::Answer(answer) => {
                Some(answer.name.as_ref().map_or(answer.status.to_string(), |name| detail(name)))
            }
            _ => None,
        };
        let retry_after = match &self {
            Self::Answer(answer) => answer.retry_after.map(|wait| wait.min(RETRY_AFTER_MAX)),
            _ => None,
        };
        let (code, category, taken, trouble) = self.judged();
        let detail = detail(&self.words().replace(key.expose(), "***"));
        SendError { code, category, original_code, retry_after, detail, taken, trouble, refused: None }
    }

    fn judged(&self) -> (ErrorCode, Category, Taken, Option<Trouble>) {
        let taken = |sent: &Sent| match sent {
            Sent::Nothing => Taken::No,
            Sent::Perhaps => Taken::Unknown,
        };
        match self {
            Self::Answer(answer) => {
                let row = answer.row();
                (ErrorCode::new(row.code), row.category, row.taken, row.trouble)
            }
            // Tried again under the same key: if it was Resend, the same email is answered with its id again.
            Self::Unreadable => {
                (ErrorCode::new("RESEND_UNREADABLE_ANSWER"), Transient, Taken::Unknown, Some(Outage))
            }
            Self::TimedOut(sent) => (ErrorCode::new("RESEND_TIMEOUT"), Timeout, taken(sent), Some(Outage)),
            Self::Network(sent, _) => (ErrorCode::NETWORK_ERROR, Transient, taken(sent), Some(Outage)),
            Self::Unfit(_) => (ErrorCode::new("RESEND_UNFIT_MESSAGE"), Permanent, Taken::No, None),
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
            Self::Unfit(reason) => format!("Resend cannot send this message as it is: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests;
