//! What providers report, tested from outside. One binary: `svix` and `sns` are signatures, `resend` and `ses` the
//! events, `hostile` what strangers may send.

mod hostile;
mod resend;
mod ses;
mod sns;
mod sns_trust;
mod sns_urls;
mod svix;

use model::{Address, Report, Timestamp};
use serde_json::Value;

const OUR_ID: &str = "0190c3d2-7b7e-7000-8000-000000000000";

fn time(text: &str) -> Timestamp {
    Timestamp::parse(text).expect("RFC 3339")
}

/// The moment at which the caller says the event came in.
fn now() -> Timestamp {
    time("2026-03-01T12:00:00Z")
}

fn vectors(text: &str) -> Value {
    serde_json::from_str(text).expect("the file of vectors is JSON")
}

fn exposed(report: &Report) -> Vec<&str> {
    report.recipients.iter().map(Address::expose).collect()
}
