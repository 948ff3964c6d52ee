use super::*;
use crate::table::{BY_STATUS, ERRORS};
use Category::{Configuration, Permanent, Quota, Timeout, Transient};
use Trouble::{Outage, Paused, QuotaUsedUp, Throttled};

fn answered(status: u16, name: &str, message: &str) -> SendError {
    let name = (!name.is_empty()).then(|| name.to_owned());
    Mishap::Answer(Answer { status, name, message: message.into(), retry_after: None }).into_send_error()
}

/// The promised half of the table, name by name; `tests/api.rs` has every row over HTTP.
#[test]
fn what_is_promised() {
    let rate = "Maximum sending rate exceeded.";
    let daily = "Daily message quota exceeded.";
    let cases = [
        // SES's name, what it says     our code                               category       trouble
        ("MessageRejected", "", "SES_MESSAGE_REJECTED", Permanent, None),
        ("MailFromDomainNotVerified", "", "SES_MAIL_FROM_DOMAIN_NOT_VERIFIED", Configuration, None),
        ("MailFromDomainNotVerifiedException", "", "SES_MAIL_FROM_DOMAIN_NOT_VERIFIED", Configuration, None),
        ("ConfigurationSetDoesNotExist", "", "SES_CONFIGURATION_SET_DOES_NOT_EXIST", Configuration, None),
        (
            "NotFoundException",
            "Configuration set <x> does not exist.",
            "SES_CONFIGURATION_SET_DOES_NOT_EXIST",
            Configuration,
            None,
        ),
        ("AccountSendingPausedException", "", "SES_ACCOUNT_SENDING_PAUSED", Permanent, Some(Paused)),
        ("SendingPausedException", "", "SES_ACCOUNT_SENDING_PAUSED", Permanent, Some(Paused)),
        ("AccountSuspendedException", "", "SES_ACCOUNT_SUSPENDED", Permanent, Some(Paused)),
        ("Throttling", "", "SES_THROTTLING", Quota, Some(Throttled)),
        ("Throttling", rate, "SES_MAX_SEND_RATE_EXCEEDED", Quota, Some(Throttled)),
        ("Throttling", daily, "SES_DAILY_QUOTA_EXCEEDED", Quota, Some(QuotaUsedUp)),
        ("ThrottlingException", "Rate exceeded", "SES_THROTTLING", Quota, Some(Throttled)),
        ("TooManyRequestsException", "", "SES_THROTTLING", Quota, Some(Throttled)),
        ("TooManyRequestsException", rate, "SES_MAX_SEND_RATE_EXCEEDED", Quota, Some(Throttled)),
        ("TooManyRequestsException", daily, "SES_DAILY_QUOTA_EXCEEDED", Quota, Some(QuotaUsedUp)),
        ("LimitExceededException", "", "SES_LIMIT_EXCEEDED", Quota, Some(Throttled)),
        ("LimitExceededException", daily, "SES_DAILY_QUOTA_EXCEEDED", Quota, Some(QuotaUsedUp)),
        ("MaxSendRateExceeded", "", "SES_MAX_SEND_RATE_EXCEEDED", Quota, Some(Throttled)),
        ("DailyQuotaExceeded", "", "SES_DAILY_QUOTA_EXCEEDED", Quota, Some(QuotaUsedUp)),
        ("ServiceUnavailable", "", "SES_SERVICE_UNAVAILABLE", Transient, Some(Outage)),
        ("InternalFailure", "", "SES_INTERNAL_FAILURE", Transient, Some(Outage)),
        ("BadRequestException", "Missing final '@domain'", "SES_BAD_REQUEST", Permanent, None),
        ("AccessDeniedException", "", "SES_ACCESS_DENIED", Configuration, None),
        ("UnrecognizedClientException", "", "SES_INVALID_CREDENTIALS", Configuration, Some(Paused)),
        ("InvalidClientTokenId", "", "SES_INVALID_CREDENTIALS", Configuration, Some(Paused)),
        ("SignatureDoesNotMatch", "", "SES_SIGNATURE_DOES_NOT_MATCH", Configuration, Some(Paused)),
        (
            "SignatureDoesNotMatch",
            "Signature expired: 20260101T000000Z is now earlier than …",
            "SES_CLOCK_SKEWED",
            Configuration,
            Some(Paused),
        ),
        ("ExpiredTokenException", "", "SES_EXPIRED_CREDENTIALS", Configuration, Some(Paused)),
        ("RequestTimeTooSkewed", "", "SES_CLOCK_SKEWED", Configuration, Some(Paused)),
        ("RequestTimeoutException", "", "SES_TIMEOUT", Timeout, Some(Outage)),
        ("SomethingNewException", "", "SES_UNKNOWN_ERROR", Transient, None),
    ];
    for (name, message, code, category, trouble) in cases {
        let error = answered(400, name, message);
        assert_eq!((error.code.as_str(), error.category, error.trouble), (code, category, trouble), "{name}");
        assert_eq!((error.original_code.as_deref(), error.taken), (Some(name), Taken::No), "{name}");
    }
}

#[test]
fn every_row_can_be_reached() {
    for row in ERRORS {
        let found = answered(400, row.name, row.words);
        assert_eq!((found.code.as_str(), found.category), (row.code, row.category), "{}", row.name);
    }
    for (status, row) in BY_STATUS {
        assert_eq!(answered(*status, "", "").code.as_str(), row.code, "{status}");
        assert_eq!(answered(*status, "SomethingNew", "").code.as_str(), row.code, "{status}");
    }
}

#[test]
fn what_only_a_status_says() {
    let cases = [
        (301, "SES_REDIRECTED", Configuration, Taken::No),
        (400, "SES_UNKNOWN_ERROR", Transient, Taken::No),
        (500, "SES_INTERNAL_FAILURE", Transient, Taken::No),
        (502, "SES_BAD_GATEWAY", Transient, Taken::Unknown),
        (503, "SES_SERVICE_UNAVAILABLE", Transient, Taken::No),
        (504, "SES_GATEWAY_TIMEOUT", Transient, Taken::Unknown),
        (599, "SES_INTERNAL_FAILURE", Transient, Taken::No),
    ];
    for (status, code, category, taken) in cases {
        let error = answered(status, "", "");
        assert_eq!((error.code.as_str(), error.category, error.taken), (code, category, taken), "{status}");
        assert_eq!(error.original_code, Some(status.to_string()));
    }
}

#[test]
fn what_is_no_answer() {
    let lack = |lack| Mishap::Credentials(lack, "x".into());
    let cases = [
        (Mishap::TimedOut(Sent::Nothing), "SES_TIMEOUT", Timeout, Taken::No, Some(Outage)),
        (Mishap::TimedOut(Sent::Perhaps), "SES_TIMEOUT", Timeout, Taken::Unknown, Some(Outage)),
        (Mishap::Network(Sent::Nothing, "x".into()), "NETWORK_ERROR", Transient, Taken::No, Some(Outage)),
        (
            Mishap::Network(Sent::Perhaps, "x".into()),
            "NETWORK_ERROR",
            Transient,
            Taken::Unknown,
            Some(Outage),
        ),
        (Mishap::Unreadable, "SES_UNREADABLE_ANSWER", Transient, Taken::Unknown, Some(Outage)),
        (lack(Lack::NoneFound), "SES_CREDENTIALS_NOT_FOUND", Transient, Taken::No, Some(Paused)),
        (lack(Lack::Misconfigured), "SES_CREDENTIALS_MISCONFIGURED", Configuration, Taken::No, Some(Paused)),
        (Mishap::NoRegion, "SES_REGION_NOT_FOUND", Transient, Taken::No, Some(Paused)),
        (Mishap::Unfit("x".into()), "SES_UNFIT_MESSAGE", Permanent, Taken::No, None),
    ];
    for (mishap, code, category, taken, trouble) in cases {
        let case = format!("{mishap:?}");
        let error = mishap.into_send_error();
        let found = (error.code.as_str(), error.category, error.taken, error.trouble);
        assert_eq!(found, (code, category, taken, trouble), "{case}");
        assert_eq!((error.original_code, error.retry_after), (None, None), "{case}");
    }
}

#[test]
fn details_are_masked_and_say_what_to_do() {
    let rejected = answered(400, "MessageRejected", "Email address is not verified: ana@example.com");
    assert_eq!(rejected.detail, "400 MessageRejected: Email address is not verified: a***@e***.com");
    let expired = answered(403, "ExpiredTokenException", "");
    assert_eq!(expired.detail, "the credentials have expired: renew them (403 ExpiredTokenException)");
}

#[test]
fn waits_are_bounded() {
    let retry_after = Some(Duration::from_secs(u64::MAX));
    let answer = Answer { status: 503, retry_after, ..Answer::default() };
    assert_eq!(Mishap::Answer(answer).into_send_error().retry_after, Some(RETRY_AFTER_MAX));
}
