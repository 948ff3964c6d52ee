//! Every row of the table of errors over HTTP, by each way in which AWS names an error.

use model::Category;
use model::Category::{Configuration, Permanent, Quota, Timeout, Transient};
use provider::Trouble::{Outage, Paused, QuotaUsedUp, Throttled};
use provider::{Taken, Trouble};
use testkit::http::Reply;

use crate::{Naming, refusal, refused, summary};

struct Case {
    status: u16,
    names: &'static [&'static str],
    message: &'static str,
    code: &'static str,
    category: Category,
    trouble: Option<Trouble>,
}

const fn case(
    status: u16,
    names: &'static [&'static str],
    message: &'static str,
    code: &'static str,
    category: Category,
    trouble: Option<Trouble>,
) -> Case {
    Case { status, names, message, code, category, trouble }
}

const RATE: &str = "Maximum sending rate exceeded.";
const DAILY: &str = "Daily message quota exceeded.";
const SET: &str = "Configuration set <main> does not exist.";
const LATE: &str = "Signature expired: 20260101T000000Z is now earlier than 20260101T001000Z";

const CASES: &[Case] = &[
    case(400, &["MessageRejected"], "not verified", "SES_MESSAGE_REJECTED", Permanent, None),
    case(
        400,
        &["MailFromDomainNotVerified", "MailFromDomainNotVerifiedException"],
        "",
        "SES_MAIL_FROM_DOMAIN_NOT_VERIFIED",
        Configuration,
        None,
    ),
    case(
        400,
        &["FromEmailAddressNotVerified", "FromEmailAddressNotVerifiedException"],
        "",
        "SES_FROM_ADDRESS_NOT_VERIFIED",
        Configuration,
        None,
    ),
    case(
        400,
        &["ConfigurationSetDoesNotExist", "ConfigurationSetDoesNotExistException"],
        "",
        "SES_CONFIGURATION_SET_DOES_NOT_EXIST",
        Configuration,
        None,
    ),
    case(
        404,
        &["NotFoundException", "BadRequestException"],
        SET,
        "SES_CONFIGURATION_SET_DOES_NOT_EXIST",
        Configuration,
        None,
    ),
    case(404, &["NotFoundException"], "", "SES_NOT_FOUND", Configuration, None),
    case(
        400,
        &[
            "BadRequestException",
            "InvalidParameterValue",
            "InvalidParameterCombination",
            "MissingParameter",
            "ValidationError",
            "ValidationException",
            "SerializationException",
        ],
        "Missing final '@domain'",
        "SES_BAD_REQUEST",
        Permanent,
        None,
    ),
    case(
        413,
        &["RequestEntityTooLarge", "RequestEntityTooLargeException"],
        "",
        "SES_TOO_LARGE",
        Permanent,
        None,
    ),
    case(
        400,
        &["AccountSendingPaused", "AccountSendingPausedException", "SendingPausedException"],
        "",
        "SES_ACCOUNT_SENDING_PAUSED",
        Permanent,
        Some(Paused),
    ),
    case(
        400,
        &[
            "ConfigurationSetSendingPaused",
            "ConfigurationSetSendingPausedException",
            "SendingPausedException",
        ],
        "Sending is paused for configuration set <main>",
        "SES_CONFIGURATION_SET_SENDING_PAUSED",
        Permanent,
        Some(Paused),
    ),
    case(400, &["AccountSuspendedException"], "", "SES_ACCOUNT_SUSPENDED", Permanent, Some(Paused)),
    case(
        429,
        &[
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
            "ThrottledException",
            "RequestThrottled",
            "RequestThrottledException",
            "SlowDown",
        ],
        "Rate exceeded",
        "SES_THROTTLING",
        Quota,
        Some(Throttled),
    ),
    case(
        429,
        &[
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
            "LimitExceededException",
            "MaxSendRateExceeded",
        ],
        RATE,
        "SES_MAX_SEND_RATE_EXCEEDED",
        Quota,
        Some(Throttled),
    ),
    case(
        429,
        &[
            "Throttling",
            "ThrottlingException",
            "TooManyRequestsException",
            "LimitExceededException",
            "DailyQuotaExceeded",
        ],
        DAILY,
        "SES_DAILY_QUOTA_EXCEEDED",
        Quota,
        Some(QuotaUsedUp),
    ),
    case(400, &["LimitExceededException", "LimitExceeded"], "", "SES_LIMIT_EXCEEDED", Quota, Some(Throttled)),
    case(
        503,
        &["ServiceUnavailable", "ServiceUnavailableException"],
        "",
        "SES_SERVICE_UNAVAILABLE",
        Transient,
        Some(Outage),
    ),
    case(
        500,
        &[
            "InternalFailure",
            "InternalFailureException",
            "InternalServiceError",
            "InternalServiceErrorException",
            "InternalServerError",
        ],
        "",
        "SES_INTERNAL_FAILURE",
        Transient,
        Some(Outage),
    ),
    case(408, &["RequestTimeout", "RequestTimeoutException"], "", "SES_TIMEOUT", Timeout, Some(Outage)),
    case(409, &["ConcurrentModificationException"], "", "SES_CONCURRENT_MODIFICATION", Transient, None),
    case(
        403,
        &["AccessDenied", "AccessDeniedException", "NotAuthorized"],
        "User is not authorized to perform `ses:SendEmail'",
        "SES_ACCESS_DENIED",
        Configuration,
        None,
    ),
    case(
        403,
        &[
            "UnrecognizedClientException",
            "InvalidClientTokenId",
            "InvalidAccessKeyId",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
        ],
        "The security token included in the request is invalid.",
        "SES_INVALID_CREDENTIALS",
        Configuration,
        Some(Paused),
    ),
    case(
        403,
        &[
            "SignatureDoesNotMatch",
            "InvalidSignatureException",
            "IncompleteSignature",
            "IncompleteSignatureException",
        ],
        "The request signature we calculated does not match",
        "SES_SIGNATURE_DOES_NOT_MATCH",
        Configuration,
        Some(Paused),
    ),
    case(
        403,
        &["ExpiredToken", "ExpiredTokenException"],
        "",
        "SES_EXPIRED_CREDENTIALS",
        Configuration,
        Some(Paused),
    ),
    case(
        403,
        &[
            "SignatureDoesNotMatch",
            "InvalidSignatureException",
            "RequestExpired",
            "RequestTimeTooSkewed",
            "RequestInTheFuture",
        ],
        LATE,
        "SES_CLOCK_SKEWED",
        Configuration,
        Some(Paused),
    ),
    case(
        403,
        &["SignatureDoesNotMatch", "InvalidSignatureException"],
        "Signature not yet current: 20260101T001000Z is still later than 20260101T000500Z",
        "SES_CLOCK_SKEWED",
        Configuration,
        Some(Paused),
    ),
    case(
        403,
        &["OptInRequired", "SubscriptionRequiredException"],
        "",
        "SES_NOT_SUBSCRIBED",
        Configuration,
        Some(Paused),
    ),
    case(400, &["SomethingNewException"], "", "SES_UNKNOWN_ERROR", Transient, None),
];

const NAMINGS: [Naming; 4] =
    [Naming::Header, Naming::HeaderWithLink, Naming::Body, Naming::BodyWithNamespace];

#[tokio::test]
async fn every_error_over_the_wire() {
    for Case { status, names, message, code, category, trouble } in CASES {
        for (name, naming) in names.iter().flat_map(|name| NAMINGS.map(|naming| (name, naming))) {
            let words = format!("{message} (to ana@example.com)");
            let error = refused(refusal(*status, name, &words, naming)).await;
            assert_eq!(summary(&error), (*code, *category, Taken::No, *trouble), "{name} {naming:?}");
            assert_eq!(error.original_code.as_deref(), Some(*name), "{naming:?}");
            assert!(!error.detail.contains("ana@"), "{}", error.detail);
            assert!(error.detail.contains(&format!("{status} {name}")), "{}", error.detail);
        }
    }
}

#[tokio::test]
async fn answers_that_are_not_ses_s() {
    let html = |status| Reply { status, headers: vec![], body: b"<html>sorry</html>".to_vec() };
    let cases = [
        (html(307), "SES_REDIRECTED", Category::Configuration, Taken::No, None),
        (html(400), "SES_UNKNOWN_ERROR", Category::Transient, Taken::No, None),
        (html(413), "SES_TOO_LARGE", Category::Permanent, Taken::No, None),
        (html(429), "SES_THROTTLING", Category::Quota, Taken::No, Some(Throttled)),
        (html(500), "SES_INTERNAL_FAILURE", Category::Transient, Taken::No, Some(Outage)),
        (html(502), "SES_BAD_GATEWAY", Category::Transient, Taken::Unknown, Some(Outage)),
        (html(503), "SES_SERVICE_UNAVAILABLE", Category::Transient, Taken::No, Some(Outage)),
        (html(504), "SES_GATEWAY_TIMEOUT", Category::Transient, Taken::Unknown, Some(Outage)),
        (html(200), "SES_UNREADABLE_ANSWER", Category::Transient, Taken::Unknown, Some(Outage)),
        (
            testkit::http::json(200, "{}"),
            "SES_UNREADABLE_ANSWER",
            Category::Transient,
            Taken::Unknown,
            Some(Outage),
        ),
    ];
    for (reply, code, category, taken, trouble) in cases {
        let status = reply.status;
        let error = refused(reply).await;
        assert_eq!(summary(&error), (code, category, taken, trouble), "{status}");
    }
}
