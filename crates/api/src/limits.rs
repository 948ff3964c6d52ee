//! Every bound on what comes in, each with its reason. The OpenAPI document quotes these, never a number of
//! its own.

use std::time::Duration;

/// Of all attachments of one email, decoded. Providers refuse more than 10 to 40 MB.
pub const ATTACHMENTS_BYTES_MAX: usize = 10 * 1024 * 1024;
pub const ATTACHMENTS_MAX: usize = 20;

/// One email: 2 MB of JSON and its attachments in base64, which takes a third more.
pub const SEND_BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
pub const BATCH_BODY_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Everything else: a few hundred ids at most.
pub const SMALL_BODY_BYTES_MAX: usize = 64 * 1024;

/// What a provider reports; theirs are a few kilobytes.
pub const WEBHOOK_BODY_BYTES_MAX: usize = 256 * 1024;
/// A list of suppressions: each an address and a reason, both at their longest, and JSON around them.
pub const SUPPRESSIONS_BODY_BYTES_MAX: usize = 2 * 1024 * 1024;
/// A template: html or MJML, and text, half a megabyte each, in JSON.
pub const TEMPLATE_BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// The variables of a preview.
pub const PREVIEW_BODY_BYTES_MAX: usize = 1024 * 1024;

/// Bodies in memory at once; beyond it large requests are asked to come back. Reading multiplies a body by
/// about three, so this keeps the whole process below half a gigabyte.
pub const BODIES_BYTES_MAX: usize = 96 * 1024 * 1024;
/// Bodies up to this size are taken without asking for room: every connection may hold one.
pub const BODY_BYTES_FREE: usize = 16 * 1024;
/// Beyond that room is asked for in steps of this size.
pub const BODY_ROOM_STEP: usize = 64 * 1024;
/// A body larger than this is read and checked off the threads that serve requests.
pub const BODY_BYTES_INLINE: usize = 128 * 1024;

/// Objects and arrays within each other. A send needs four.
pub const JSON_DEPTH_MAX: usize = 32;
pub const BATCH_EMAILS_MAX: usize = 1000;

/// Text alternative of an email, like its html.
pub const TEXT_BYTES_MAX: usize = 512 * 1024;
/// Ids and names of the company's own world.
pub const ID_LENGTH_MAX: usize = 255;
pub const NAME_LENGTH_MAX: usize = 255;
pub const FILENAME_LENGTH_MAX: usize = 255;
pub const CONTENT_TYPE_LENGTH_MAX: usize = 127;
pub const CONTENT_ID_LENGTH_MAX: usize = 128;
pub const TAG_LENGTH_MAX: usize = 64;
pub const URL_LENGTH_MAX: usize = 2048;
/// Names of providers, retry policies, templates.
pub const WORD_LENGTH_MAX: usize = 64;

pub const HEADERS_MAX: usize = 100;
pub const HEADERS_BYTES_MAX: usize = 64 * 1024;
pub const HEADER_VALUE_BYTES_MAX: usize = 998;

pub const PRIORITY_MAX: u64 = 10;
pub const DELAY_MS_MAX: u64 = 30 * 24 * 3600 * 1000;
pub const TTL_MS_MIN: u64 = 1000;
pub const TTL_MS_MAX: u64 = 30 * 24 * 3600 * 1000;

/// The head of a request, from its first line to the empty one. Heads of more than 100 lines are refused too: hyper's own
/// bound, since to name another would cost an allocation for every request.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

pub const IDEMPOTENCY_KEY_LENGTH_MAX: usize = 256;
pub const REQUEST_ID_LENGTH_MAX: usize = 128;

pub const PAGE_MAX: u64 = 100;
pub const PAGE_DEFAULT: u64 = 25;
pub const CURSOR_LENGTH_MAX: usize = 512;
pub const REPLAY_IDS_MAX: usize = 1000;
pub const REPLAY_LIMIT_MAX: u64 = 1_000_000;
pub const SUPPRESSIONS_MAX: usize = 1000;
/// Days that a summary may look back.
pub const SUMMARY_DAYS_MAX: u64 = 365;
pub const SUMMARY_DAYS_DEFAULT: u64 = 30;
/// Names of templates per company. They are listed with their sources in memory.
pub const TEMPLATES_MAX: usize = 200;
/// Addresses with repeated failures that are looked through to tell which of the known recipients are among them, the
/// latest first, so many at a time.
pub const PROBLEMS_LOOKED_AT_MAX: u32 = 10_000;
pub const PROBLEMS_STEP: u32 = 1_000;
/// Reports of one email that the operator is shown, the latest.
pub const REPORTS_SHOWN_MAX: usize = 100;

pub const COMPANY_NAME_LENGTH_MAX: usize = 100;
pub const SENDERS_MAX: usize = 100;
pub const ROUTE_MAX: usize = 10;
pub const LABEL_LENGTH_MAX: usize = 100;
pub const WEIGHT_MAX: u64 = 1000;
pub const CONCURRENCY_MAX: u64 = 10_000;
pub const RATE_PER_SEC_MAX: u64 = 100_000;
pub const DAILY_LIMIT_MAX: u64 = 1_000_000_000;

/// Faults told of one request: enough to mend it, not enough to be used against us.
pub const FAULTS_MAX: usize = 50;

/// A body that is not there by then is given up.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(20);
/// From the request's head to its answer. Longer than any store takes that is not broken.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The head of a request, from its first byte, or from the beginning of the connection.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The silence between two requests on one connection. Load balancers keep theirs for a minute and must be first to close.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
/// A client that takes nothing of its answer for so long holds a connection that others could use.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);
pub const CONNECTIONS_MAX: usize = 4096;
pub const REQUESTS_PER_SEC: u32 = 20_000;

/// Certificates that sign webhooks: SNS has one per region and changes it once a year.
pub const CERTIFICATES_MAX: usize = 64;
pub const CERTIFICATE_AGE_MAX: Duration = Duration::from_secs(3600);
/// Two kilobytes, usually.
pub const CERTIFICATE_BYTES_MAX: usize = 64 * 1024;
/// Calls to the senders of webhooks at once, and how long each may take.
pub const FETCHES_MAX: usize = 8;
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
