//! The table: SES's name for an error, under v1 and v2 of its API and for AWS as a whole, and what it means to us.

use model::Category;
use provider::{Taken, Trouble};

use Category::{Configuration, Permanent, Quota, Timeout, Transient};
use Trouble::{Outage, Paused, QuotaUsedUp, Throttled};

#[derive(Debug)]
pub struct Row {
    pub name: &'static str,
    /// What the message must say too, where AWS has one name for two things; in lower case.
    pub words: &'static str,
    pub code: &'static str,
    pub category: Category,
    pub trouble: Option<Trouble>,
    pub taken: Taken,
}

const fn row(name: &'static str, code: &'static str, category: Category, trouble: Option<Trouble>) -> Row {
    Row { name, words: "", code, category, trouble, taken: Taken::No }
}

const fn saying(words: &'static str, row: Row) -> Row {
    Row { words, ..row }
}

/// Something on the way got no answer from SES: it may have passed the email on.
const fn open(row: Row) -> Row {
    Row { taken: Taken::Unknown, ..row }
}

const REJECTED: &str = "SES_MESSAGE_REJECTED";
const BAD_REQUEST: &str = "SES_BAD_REQUEST";
const FROM_DOMAIN: &str = "SES_MAIL_FROM_DOMAIN_NOT_VERIFIED";
const FROM_ADDRESS: &str = "SES_FROM_ADDRESS_NOT_VERIFIED";
const NO_SET: &str = "SES_CONFIGURATION_SET_DOES_NOT_EXIST";
const SET_PAUSED: &str = "SES_CONFIGURATION_SET_SENDING_PAUSED";
const PAUSED: &str = "SES_ACCOUNT_SENDING_PAUSED";
const THROTTLING: &str = "SES_THROTTLING";
const RATE: &str = "SES_MAX_SEND_RATE_EXCEEDED";
const DAILY: &str = "SES_DAILY_QUOTA_EXCEEDED";
const LIMIT: &str = "SES_LIMIT_EXCEEDED";
const UNAVAILABLE: &str = "SES_SERVICE_UNAVAILABLE";
const INTERNAL: &str = "SES_INTERNAL_FAILURE";
const DENIED: &str = "SES_ACCESS_DENIED";
const INVALID: &str = "SES_INVALID_CREDENTIALS";
const SIGNATURE: &str = "SES_SIGNATURE_DOES_NOT_MATCH";
const EXPIRED: &str = "SES_EXPIRED_CREDENTIALS";
const CLOCK: &str = "SES_CLOCK_SKEWED";
const NOT_SUBSCRIBED: &str = "SES_NOT_SUBSCRIBED";

/// The first row that fits counts. A new error of SES's is one new row.
///
/// Credentials that do not work say of the account that it cannot send (`Paused`), so that one email fails and the
/// others wait for better ones. That access is denied may be about this sender alone, so it is not said of the account.
pub const ERRORS: &[Row] = &[
    row("MessageRejected", REJECTED, Permanent, None),
    row("MailFromDomainNotVerified", FROM_DOMAIN, Configuration, None),
    row("MailFromDomainNotVerifiedException", FROM_DOMAIN, Configuration, None),
    row("FromEmailAddressNotVerified", FROM_ADDRESS, Configuration, None),
    row("FromEmailAddressNotVerifiedException", FROM_ADDRESS, Configuration, None),
    row("ConfigurationSetDoesNotExist", NO_SET, Configuration, None),
    row("ConfigurationSetDoesNotExistException", NO_SET, Configuration, None),
    saying("configuration set", row("NotFoundException", NO_SET, Configuration, None)),
    row("NotFoundException", "SES_NOT_FOUND", Configuration, None),
    saying("configuration set", row("BadRequestException", NO_SET, Configuration, None)),
    row("BadRequestException", BAD_REQUEST, Permanent, None),
    row("InvalidParameterValue", BAD_REQUEST, Permanent, None),
    row("InvalidParameterCombination", BAD_REQUEST, Permanent, None),
    row("MissingParameter", BAD_REQUEST, Permanent, None),
    row("ValidationError", BAD_REQUEST, Permanent, None),
    row("ValidationException", BAD_REQUEST, Permanent, None),
    row("SerializationException", BAD_REQUEST, Permanent, None),
    row("RequestEntityTooLarge", "SES_TOO_LARGE", Permanent, None),
    row("RequestEntityTooLargeException", "SES_TOO_LARGE", Permanent, None),
    row("AccountSendingPaused", PAUSED, Permanent, Some(Paused)),
    row("AccountSendingPausedException", PAUSED, Permanent, Some(Paused)),
    saying("configuration set", row("SendingPausedException", SET_PAUSED, Permanent, Some(Paused))),
    row("SendingPausedException", PAUSED, Permanent, Some(Paused)),
    row("ConfigurationSetSendingPaused", SET_PAUSED, Permanent, Some(Paused)),
    row("ConfigurationSetSendingPausedException", SET_PAUSED, Permanent, Some(Paused)),
    row("AccountSuspendedException", "SES_ACCOUNT_SUSPENDED", Permanent, Some(Paused)),
    saying("quota", row("Throttling", DAILY, Quota, Some(QuotaUsedUp))),
    saying("sending rate", row("Throttling", RATE, Quota, Some(Throttled))),
    row("Throttling", THROTTLING, Quota, Some(Throttled)),
    saying("quota", row("ThrottlingException", DAILY, Quota, Some(QuotaUsedUp))),
    saying("sending rate", row("ThrottlingException", RATE, Quota, Some(Throttled))),
    row("ThrottlingException", THROTTLING, Quota, Some(Throttled)),
    saying("quota", row("TooManyRequestsException", DAILY, Quota, Some(QuotaUsedUp))),
    saying("sending rate", row("TooManyRequestsException", RATE, Quota, Some(Throttled))),
    row("TooManyRequestsException", THROTTLING, Quota, Some(Throttled)),
    row("ThrottledException", THROTTLING, Quota, Some(Throttled)),
    row("RequestThrottled", THROTTLING, Quota, Some(Throttled)),
    row("RequestThrottledException", THROTTLING, Quota, Some(Throttled)),
    row("SlowDown", THROTTLING, Quota, Some(Throttled)),
    saying("quota", row("LimitExceededException", DAILY, Quota, Some(QuotaUsedUp))),
    saying("sending rate", row("LimitExceededException", RATE, Quota, Some(Throttled))),
    row("LimitExceededException", LIMIT, Quota, Some(Throttled)),
    row("LimitExceeded", LIMIT, Quota, Some(Throttled)),
    row("MaxSendRateExceeded", RATE, Quota, Some(Throttled)),
    row("DailyQuotaExceeded", DAILY, Quota, Some(QuotaUsedUp)),
    row("ServiceUnavailable", UNAVAILABLE, Transient, Some(Outage)),
    row("ServiceUnavailableException", UNAVAILABLE, Transient, Some(Outage)),
    row("InternalFailure", INTERNAL, Transient, Some(Outage)),
    row("InternalFailureException", INTERNAL, Transient, Some(Outage)),
    row("InternalServiceError", INTERNAL, Transient, Some(Outage)),
    row("InternalServiceErrorException", INTERNAL, Transient, Some(Outage)),
    row("InternalServerError", INTERNAL, Transient, Some(Outage)),
    row("RequestTimeout", "SES_TIMEOUT", Timeout, Some(Outage)),
    row("RequestTimeoutException", "SES_TIMEOUT", Timeout, Some(Outage)),
    row("ConcurrentModificationException", "SES_CONCURRENT_MODIFICATION", Transient, None),
    row("AccessDenied", DENIED, Configuration, None),
    row("AccessDeniedException", DENIED, Configuration, None),
    row("NotAuthorized", DENIED, Configuration, None),
    row("UnrecognizedClientException", INVALID, Configuration, Some(Paused)),
    row("InvalidClientTokenId", INVALID, Configuration, Some(Paused)),
    row("InvalidAccessKeyId", INVALID, Configuration, Some(Paused)),
    row("MissingAuthenticationToken", INVALID, Configuration, Some(Paused)),
    row("MissingAuthenticationTokenException", INVALID, Configuration, Some(Paused)),
    saying("signature expired", row("SignatureDoesNotMatch", CLOCK, Configuration, Some(Paused))),
    saying("signature not yet", row("SignatureDoesNotMatch", CLOCK, Configuration, Some(Paused))),
    row("SignatureDoesNotMatch", SIGNATURE, Configuration, Some(Paused)),
    saying("signature expired", row("InvalidSignatureException", CLOCK, Configuration, Some(Paused))),
    saying("signature not yet", row("InvalidSignatureException", CLOCK, Configuration, Some(Paused))),
    row("InvalidSignatureException", SIGNATURE, Configuration, Some(Paused)),
    row("IncompleteSignature", SIGNATURE, Configuration, Some(Paused)),
    row("IncompleteSignatureException", SIGNATURE, Configuration, Some(Paused)),
    row("ExpiredToken", EXPIRED, Configuration, Some(Paused)),
    row("ExpiredTokenException", EXPIRED, Configuration, Some(Paused)),
    row("RequestExpired", CLOCK, Configuration, Some(Paused)),
    row("RequestTimeTooSkewed", CLOCK, Configuration, Some(Paused)),
    row("RequestInTheFuture", CLOCK, Configuration, Some(Paused)),
    row("OptInRequired", NOT_SUBSCRIBED, Configuration, Some(Paused)),
    row("SubscriptionRequiredException", NOT_SUBSCRIBED, Configuration, Some(Paused)),
];

/// What a status says where no name does.
pub const BY_STATUS: &[(u16, Row)] = &[
    (408, row("", "SES_TIMEOUT", Timeout, Some(Outage))),
    (413, row("", "SES_TOO_LARGE", Permanent, None)),
    (429, row("", THROTTLING, Quota, Some(Throttled))),
    (502, open(row("", "SES_BAD_GATEWAY", Transient, Some(Outage)))),
    (503, row("", UNAVAILABLE, Transient, Some(Outage))),
    (504, open(row("", "SES_GATEWAY_TIMEOUT", Transient, Some(Outage)))),
];
const BROKEN: Row = row("", INTERNAL, Transient, Some(Outage));
/// Such as a redirect, which is not followed.
const ELSEWHERE: Row = row("", "SES_REDIRECTED", Configuration, None);
const UNKNOWN: Row = row("", "SES_UNKNOWN_ERROR", Transient, None);

/// The row for an answer.
pub fn row_of(status: u16, name: Option<&str>, message: &str) -> &'static Row {
    let message = message.to_lowercase();
    let named = |row: &&Row| Some(row.name) == name && message.contains(row.words);
    let by_status = || BY_STATUS.iter().find(|(known, _)| *known == status).map(|(_, row)| row);
    ERRORS.iter().find(named).or_else(by_status).unwrap_or(match status {
        300..400 => &ELSEWHERE,
        500.. => &BROKEN,
        _ => &UNKNOWN,
    })
}

/// What to do about a code that waits for a person.
pub fn advice(code: &str) -> Option<&'static str> {
    Some(match code {
        INVALID => {
            "AWS does not know these credentials: check the access key, the session token and the region"
        }
        SIGNATURE => "the secret key does not belong to the access key: check both",
        EXPIRED => "the credentials have expired: renew them",
        CLOCK => "this machine's clock is wrong: set it by NTP",
        DENIED => {
            "the credentials lack a permission: allow ses:SendEmail and ses:SendRawEmail for this sender"
        }
        NOT_SUBSCRIBED => "this AWS account has no SES: activate it",
        NO_SET => "there is no such configuration set in this region: create it or correct configuration_set",
        "SES_CREDENTIALS_NOT_FOUND" => {
            "no AWS credentials were found in the environment, a profile, the container or the machine"
        }
        "SES_CREDENTIALS_MISCONFIGURED" => "AWS's own configuration files are wrong",
        "SES_REGION_NOT_FOUND" => "set region, or AWS_REGION in the environment",
        "SES_REDIRECTED" => "the endpoint answers with a redirect: correct it",
        _ => return None,
    })
}
