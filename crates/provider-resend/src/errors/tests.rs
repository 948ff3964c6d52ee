use super::*;

fn refusal(status: u16, name: &str, message: &str) -> Mishap {
    let name = (!name.is_empty()).then(|| name.to_owned());
    Mishap::Answer(Answer { status, name, message: message.into(), retry_after: None })
}

fn key() -> Secret<String> {
    Secret::new("re_hunter2".into())
}

/// The whole table, by what comes over the wire; `tests/api.rs` has Resend's own names over HTTP.
#[test]
fn the_table() {
    let no = Taken::No;
    let open = Taken::Unknown;
    let paused = Some(Paused);
    let outage = Some(Outage);
    let cases = [
        // status and name                    code                              category       taken  trouble
        (400, "invalid_idempotency_key", "RESEND_INVALID_IDEMPOTENCY_KEY", Permanent, no, None),
        (400, "validation_error", "RESEND_VALIDATION_ERROR", Permanent, no, None),
        (400, "something_new", "RESEND_REJECTED", Permanent, no, None),
        (400, "", "RESEND_UNKNOWN_ERROR", Transient, no, None),
        (401, "missing_api_key", "RESEND_MISSING_API_KEY", Configuration, no, paused),
        (401, "restricted_api_key", "RESEND_RESTRICTED_API_KEY", Configuration, no, None),
        (401, "validation_error", "RESEND_INVALID_API_KEY", Configuration, no, paused),
        (403, "invalid_api_key", "RESEND_INVALID_API_KEY", Configuration, no, paused),
        (403, "suspended_api_key", "RESEND_SUSPENDED_API_KEY", Configuration, no, paused),
        (403, "invalid_permission", "RESEND_INVALID_PERMISSION", Configuration, no, None),
        (403, "validation_error", "RESEND_DOMAIN_NOT_VERIFIED", Configuration, no, None),
        (403, "something_new", "RESEND_FORBIDDEN", Configuration, no, None),
        (403, "", "RESEND_UNKNOWN_ERROR", Transient, no, None),
        (404, "not_found", "RESEND_NOT_FOUND", Configuration, no, None),
        (405, "method_not_allowed", "RESEND_METHOD_NOT_ALLOWED", Configuration, no, None),
        (408, "", "RESEND_TIMEOUT", Timeout, no, outage),
        (
            409,
            "concurrent_idempotent_requests",
            "RESEND_CONCURRENT_IDEMPOTENT_REQUESTS",
            Transient,
            open,
            None,
        ),
        (409, "invalid_idempotent_request", "RESEND_INVALID_IDEMPOTENT_REQUEST", Permanent, open, None),
        (409, "resource_locked", "RESEND_RESOURCE_LOCKED", Transient, no, None),
        (409, "something_new", "RESEND_UNKNOWN_ERROR", Transient, no, None),
        (413, "", "RESEND_TOO_LARGE", Permanent, no, None),
        (422, "invalid_attachment", "RESEND_INVALID_ATTACHMENT", Permanent, no, None),
        (422, "invalid_from_address", "RESEND_INVALID_FROM_ADDRESS", Configuration, no, None),
        (422, "invalid_access", "RESEND_INVALID_ACCESS", Configuration, no, None),
        (422, "invalid_region", "RESEND_INVALID_REGION", Configuration, no, None),
        (422, "invalid_parameter", "RESEND_INVALID_PARAMETER", Permanent, no, None),
        (422, "missing_required_field", "RESEND_MISSING_REQUIRED_FIELD", Permanent, no, None),
        (422, "missing_required_parameter", "RESEND_MISSING_REQUIRED_PARAMETER", Permanent, no, None),
        (422, "validation_error", "RESEND_VALIDATION_ERROR", Permanent, no, None),
        (422, "something_new", "RESEND_REJECTED", Permanent, no, None),
        (429, "rate_limit_exceeded", "RESEND_RATE_LIMIT_EXCEEDED", Quota, no, Some(Throttled)),
        (429, "daily_quota_exceeded", "RESEND_DAILY_QUOTA_EXCEEDED", Quota, no, Some(QuotaUsedUp)),
        (429, "monthly_quota_exceeded", "RESEND_MONTHLY_QUOTA_EXCEEDED", Quota, no, Some(QuotaUsedUp)),
        (429, "", "RESEND_RATE_LIMIT_EXCEEDED", Quota, no, Some(Throttled)),
        (451, "security_error", "RESEND_SECURITY_ERROR", Permanent, no, None),
        (500, "application_error", "RESEND_APPLICATION_ERROR", Transient, no, outage),
        (500, "internal_server_error", "RESEND_APPLICATION_ERROR", Transient, no, outage),
        (502, "", "RESEND_BAD_GATEWAY", Transient, open, outage),
        (503, "service_unavailable", "RESEND_SERVICE_UNAVAILABLE", Transient, no, outage),
        (504, "", "RESEND_GATEWAY_TIMEOUT", Transient, open, outage),
        (529, "", "RESEND_APPLICATION_ERROR", Transient, no, outage),
        (302, "", "RESEND_REDIRECTED", Configuration, no, None),
        (418, "teapot", "RESEND_UNKNOWN_ERROR", Transient, no, None),
    ];
    for (status, name, code, category, taken, trouble) in cases {
        let error = refusal(status, name, "").into_send_error(&key());
        let found = (error.code.as_str(), error.category, error.taken, error.trouble);
        assert_eq!(found, (code, category, taken, trouble), "{status} {name}");
        let original = if name.is_empty() { status.to_string() } else { name.to_owned() };
        assert_eq!(error.original_code, Some(original), "{status} {name}");
    }
    let missing: Vec<&str> =
        ERRORS.iter().map(|row| row.code).filter(|code| !cases.iter().any(|case| case.2 == *code)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_key_that_is_wrong_under_another_name() {
    let error = refusal(400, "validation_error", "API key is invalid").into_send_error(&key());
    assert_eq!((error.code.as_str(), error.category), ("RESEND_INVALID_API_KEY", Configuration));
    assert_eq!(error.trouble, Some(Paused));
}

#[test]
fn what_is_no_answer() {
    let cases = [
        (Mishap::TimedOut(Sent::Nothing), "RESEND_TIMEOUT", Timeout, Taken::No, Some(Outage)),
        (Mishap::TimedOut(Sent::Perhaps), "RESEND_TIMEOUT", Timeout, Taken::Unknown, Some(Outage)),
        (Mishap::Network(Sent::Nothing, "x".into()), "NETWORK_ERROR", Transient, Taken::No, Some(Outage)),
        (
            Mishap::Network(Sent::Perhaps, "x".into()),
            "NETWORK_ERROR",
            Transient,
            Taken::Unknown,
            Some(Outage),
        ),
        (Mishap::Unreadable, "RESEND_UNREADABLE_ANSWER", Transient, Taken::Unknown, Some(Outage)),
        (Mishap::Unfit("x".into()), "RESEND_UNFIT_MESSAGE", Permanent, Taken::No, None),
    ];
    for (mishap, code, category, taken, trouble) in cases {
        let case = format!("{mishap:?}");
        let error = mishap.into_send_error(&key());
        let found = (error.code.as_str(), error.category, error.taken, error.trouble);
        assert_eq!(found, (code, category, taken, trouble), "{case}");
        assert_eq!((error.original_code, error.retry_after), (None, None), "{case}");
    }
}

#[test]
fn details_are_masked() {
    let error = refusal(422, "validation_error", "bob@example.com\nis on fire, says re_hunter2");
    let error = error.into_send_error(&key());
    assert_eq!(error.detail, "422 validation_error: b***@e***.com is on fire, says ***");
}

#[test]
fn waits_are_bounded() {
    let retry_after = Some(Duration::from_secs(u64::MAX));
    let answer = Answer { status: 429, retry_after, ..Answer::default() };
    assert_eq!(Mishap::Answer(answer).into_send_error(&key()).retry_after, Some(RETRY_AFTER_MAX));
}
