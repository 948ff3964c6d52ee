//! Every code the API answers with, and what it means. A code is never renamed: programs depend on it.

/// A code and its title. The page `/docs` has an anchor for each.
pub const CODES: &[(&str, &str)] = &[
    // Who calls.
    ("MISSING_API_KEY", "No API key"),
    ("INVALID_API_KEY", "Unknown API key"),
    ("REVOKED_API_KEY", "Revoked API key"),
    ("EXPIRED_API_KEY", "Expired API key"),
    ("COMPANY_DISABLED", "Company switched off"),
    ("INSUFFICIENT_SCOPE", "The key may not do this"),
    ("MISSING_ADMIN_TOKEN", "No admin token"),
    ("INVALID_ADMIN_TOKEN", "Wrong admin token"),
    ("ADMIN_LOCAL_ONLY", "Only from this machine"),
    ("RATE_LIMITED", "Too many requests"),
    ("DAILY_LIMIT_EXCEEDED", "Daily limit reached"),
    // The request as such.
    ("INVALID_REQUEST", "Not a request"),
    ("ADDRESS_TOO_LONG", "Address too long"),
    ("HEAD_TOO_LARGE", "Head too large"),
    ("ROUTE_NOT_FOUND", "No such address"),
    ("METHOD_NOT_ALLOWED", "Method not allowed here"),
    ("UNSUPPORTED_MEDIA_TYPE", "Wrong content type"),
    ("BODY_TOO_LARGE", "Body too large"),
    ("BODY_TIMEOUT", "Body too slow"),
    ("INVALID_BODY", "Body incomplete"),
    ("INVALID_JSON", "Not JSON"),
    ("INVALID_ENCODING", "Not UTF-8"),
    ("INVALID_QUERY", "Query string unreadable"),
    ("TOO_DEEP", "Nested too deep"),
    ("REPEATED_FIELD", "Field given twice"),
    ("REPEATED_PARAMETER", "Parameter given twice"),
    ("INVALID_IDEMPOTENCY_KEY", "Malformed Idempotency-Key"),
    ("IDEMPOTENCY_KEY_REUSED", "Idempotency-Key used for another request"),
    // Fields in general.
    ("VALIDATION_FAILED", "Several fields are wrong"),
    ("REQUIRED", "Field missing"),
    ("UNKNOWN_FIELD", "Unknown field"),
    ("UNKNOWN_PARAMETER", "Unknown parameter"),
    ("CONFLICTING_FIELDS", "Fields exclude each other"),
    ("INVALID_TYPE", "Wrong type"),
    ("INVALID_VALUE", "Not one of the allowed values"),
    ("INVALID_ID", "Not an id"),
    ("INVALID_TIME", "Not a time with its zone"),
    ("OUT_OF_RANGE", "Number or time out of range"),
    ("TOO_SHORT", "Empty"),
    ("TOO_LONG", "Too long"),
    ("CONTROL_CHARACTER", "Control character"),
    ("INVALID_CURSOR", "Not a cursor of this list"),
    // Fields of an email.
    ("INVALID_EMAIL", "Not an email address"),
    ("INVALID_SUBJECT", "Unusable subject"),
    ("INVALID_HTML", "Unusable html"),
    ("HTML_TOO_LARGE", "Html too large"),
    ("TEXT_TOO_LARGE", "Text too large"),
    ("UNSAFE_HTML", "Html with scripts"),
    ("TOO_MANY_CC", "Too many cc"),
    ("TOO_MANY_BCC", "Too many bcc"),
    ("TOO_MANY_TAGS", "Too many tags"),
    ("INVALID_TAG", "Unusable tag"),
    ("TOO_MANY_HEADERS", "Too many headers"),
    ("INVALID_HEADER", "Unusable header"),
    ("FORBIDDEN_HEADER", "Header set by the gateway"),
    ("TOO_MANY_ATTACHMENTS", "Too many attachments"),
    ("ATTACHMENTS_TOO_LARGE", "Attachments too large"),
    ("INVALID_FILENAME", "Unusable file name"),
    ("INVALID_CONTENT_TYPE", "Unusable content type"),
    ("INVALID_CONTENT_ID", "Unusable content id"),
    ("INVALID_BASE64", "Not base64"),
    ("RECIPIENT_IDENTIFIER_REQUIRED", "Recipient without identifier"),
    ("RECIPIENT_EMAIL_MISMATCH", "Recipient's address is not that of to"),
    ("INVALID_DOCUMENT", "Not a CPF or CNPJ"),
    ("INVALID_HASH", "Not a SHA-256"),
    ("PII_NOT_ALLOWED", "Document number in clear"),
    ("DOCUMENT_KEYS_MISSING", "Server cannot protect document numbers"),
    ("INVALID_SCHEDULED_AT", "Not a time with its zone"),
    ("INVALID_URL", "Not a URL"),
    ("FORBIDDEN_URL", "URL not allowed"),
    ("TEMPLATE_NOT_FOUND", "No such template"),
    ("TEMPLATE_ERROR", "The template makes no email of these variables"),
    ("MISSING_VARIABLE", "The template needs a variable that is not given"),
    ("RECIPIENT_SUPPRESSED", "The company does not write to this address"),
    ("NO_SENDER", "No sender"),
    ("SENDER_NOT_ALLOWED", "Sender not allowed"),
    ("UNKNOWN_PROVIDER", "No such provider"),
    ("UNKNOWN_RETRY_POLICY", "No such retry policy"),
    ("INVALID_MESSAGE", "Unreadable message"),
    ("EMPTY_BATCH", "Empty batch"),
    ("TOO_MANY_EMAILS", "Batch too long"),
    // Emails and dead letters.
    ("EMAIL_NOT_FOUND", "No such email"),
    ("CONTENT_GONE", "Content no longer kept"),
    ("ATTACHMENT_NOT_FOUND", "No such attachment"),
    ("NOT_COPYABLE", "Not to be sent once more"),
    ("NO_REAL_PROVIDER", "No provider that sends"),
    ("STAYS_CAPTURED", "Kept in the mailbox here"),
    ("LIVE_KEY_REQUIRED", "A test key never sends"),
    ("TOO_LATE", "Too late to withdraw"),
    ("NOT_WAITING", "Nothing waits"),
    ("DEAD_LETTER_NOT_FOUND", "No such dead letter"),
    ("TOO_MANY_IDS", "Too many ids"),
    // After sending.
    ("SUPPRESSION_NOT_FOUND", "Not on the suppression list"),
    ("TOO_MANY_SUPPRESSIONS", "Too many suppressions at once"),
    ("PROBLEM_NOT_FOUND", "No repeated failures"),
    ("ENTITY_NOT_FOUND", "No such entity"),
    ("INVALID_NAME", "Unusable name"),
    ("TEMPLATE_INVALID", "The template cannot be used"),
    ("TOO_MANY_TEMPLATES", "Too many templates"),
    // Webhooks of providers.
    ("WEBHOOK_NOT_CONFIGURED", "No webhooks of this provider"),
    ("INVALID_SIGNATURE", "Not signed by the provider"),
    ("UNKNOWN_TOPIC", "Not a topic of ours"),
    ("UNTRUSTED_CERTIFICATE", "Certificate not trusted"),
    ("UNREADABLE_REPORT", "Report cannot be read"),
    ("CERTIFICATE_UNAVAILABLE", "Signature cannot be checked now"),
    ("SUBSCRIPTION_NOT_CONFIRMED", "Subscription not confirmed"),
    // The operator's.
    ("COMPANY_NOT_FOUND", "No such company"),
    ("COMPANY_EXISTS", "Company name taken"),
    ("NOT_PAUSED", "Not paused"),
    ("KEY_NOT_FOUND", "No such key"),
    ("EXISTS", "Exists already"),
    ("INVALID_SENDER", "Not an address or domain"),
    ("TOO_MANY_SENDERS", "Too many senders"),
    ("TOO_MANY_PROVIDERS", "Too many providers"),
    ("TOO_MANY_SCOPES", "Too many scopes"),
    // Ours.
    ("STORE_UNAVAILABLE", "Store out of reach"),
    ("STORE_IN_DOUBT", "Not known whether it was stored"),
    ("STORAGE_LOW", "No room left"),
    ("OVERLOADED", "Too much at once"),
    ("REQUEST_TIMEOUT", "No answer in time"),
    ("NOT_READY", "Not ready"),
    ("INTERNAL_ERROR", "Our mistake"),
];

/// What warnings may say; the email is taken all the same.
pub const WARNINGS: &[(&str, &str)] = &[
    ("DUPLICATE_ADDRESS", "The address was named before and left out here"),
    ("DUPLICATE_TAG", "The tag was named before and left out here"),
    ("SCHEDULED_IN_PAST", "The time is past; the email is sent now"),
    ("NOT_AVAILABLE_YET", "Kept, but not done by this version"),
    ("CONTENT_TYPE_CORRECTED", "The attachment is sent as what its bytes show"),
    ("UNUSED_VARIABLE", "The template does not mention this variable"),
    ("RECIPIENT_SUPPRESSED", "Nothing is sent to this address until it is off the list"),
];

/// The title of a code.
pub fn title(code: &str) -> &'static str {
    CODES.iter().find(|(known, _)| *known == code).map_or("Error", |(_, title)| title)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every code named in the sources is here, and none stands twice in a list. A code may be an error for one caller and
    /// a warning for another.
    #[test]
    fn the_list_is_complete() {
        let listed: BTreeSet<&str> = CODES.iter().chain(WARNINGS).map(|(code, _)| *code).collect();
        for list in [CODES, WARNINGS] {
            let once: BTreeSet<&str> = list.iter().map(|(code, _)| *code).collect();
            assert_eq!(once.len(), list.len(), "a code stands twice");
        }
        let sources = concat!(
            include_str!("auth.rs"),
            include_str!("body.rs"),
            include_str!("edge.rs"),
            include_str!("error.rs"),
            include_str!("form.rs"),
            include_str!("health.rs"),
            include_str!("json.rs"),
            include_str!("routes.rs"),
            include_str!("serve.rs"),
            include_str!("serve/stream.rs"),
            include_str!("v1/alerts.rs"),
            include_str!("v1/attachments.rs"),
            include_str!("v1/copies.rs"),
            include_str!("v1/cursor.rs"),
            include_str!("v1/dead_letters.rs"),
            include_str!("v1/draft.rs"),
            include_str!("v1/emails.rs"),
            include_str!("v1/entities.rs"),
            include_str!("v1/params.rs"),
            include_str!("v1/raw.rs"),
            include_str!("v1/recipient.rs"),
            include_str!("v1/recipients.rs"),
            include_str!("v1/send.rs"),
            include_str!("v1/suppressions.rs"),
            include_str!("v1/templates.rs"),
            include_str!("v1/url.rs"),
            include_str!("v1/webhooks.rs"),
            include_str!("webhooks.rs"),
            include_str!("v1/admin/companies.rs"),
            include_str!("v1/admin/keys.rs"),
            include_str!("v1/admin/reports.rs"),
            include_str!("v1/admin/settings.rs"),
            include_str!("../../gateway/src/accept.rs"),
            include_str!("../../gateway/src/accept/copy.rs"),
            include_str!("../../gateway/src/accept/known.rs"),
            include_str!("../../gateway/src/accept/rules.rs"),
            include_str!("../../gateway/src/accept/text.rs"),
        );
        let is_code = |word: &&str| {
            word.len() > 5 && word.contains('_') && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
        };
        let missing: BTreeSet<&str> =
            sources.split('"').filter(is_code).filter(|word| !listed.contains(word)).collect();
        // What a span says of itself is no answer.
        assert_eq!(missing, BTreeSet::from(["STORE_ERROR"]));
    }
}
