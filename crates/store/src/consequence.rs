//! What a report means for its email, decided once for every store; a store only writes it down.

use model::alert::window_of;
use model::{
    Address, Alert, AlertId, AlertKind, Bounce, Category, Event, Failure, Move, Report, ReportKind, Status,
    Suppression, SuppressionSource, Timestamp, Verdict,
};

use crate::record::Record;

/// What is to be written. Everything in it is to happen in one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Consequence {
    pub event: Event,
    /// Where the email goes, if it goes anywhere.
    pub to: Option<Status>,
    /// Of whom it was reported, when the email went to several; see [`outranks`].
    pub states: Vec<(Address, Status)>,
    pub suppressions: Vec<Suppression>,
    /// The last failure from now on: code, category and reason.
    pub failure: Option<(String, &'static str, String)>,
    /// Addresses for whom this counts as a failure.
    pub failed: Vec<Address>,
    pub alert: Option<Alert>,
    /// When it happened, no earlier than the email and no later than now.
    pub at: Timestamp,
}

impl Consequence {
    pub fn of(report: &Report, record: &Record, now: Timestamp) -> Self {
        let everybody = recipients(record);
        let about = concerned(report, &everybody);
        let at = report.at.max(record.created_at).min(now);
        let step = step(report.kind);
        let to = step.and_then(|step| record.status.after(step).ok());
        let is_end =
            matches!(report.kind, ReportKind::Bounced(Bounce::Hard | Bounce::Unclear) | ReportKind::Failed);
        let counts = !record.detail.wishes.is_alert;
        Self {
            event: event(report, at, &about, everybody.len()),
            to,
            states: match reported_status(report.kind) {
                Some(status) if everybody.len() > 1 => {
                    about.iter().map(|address| (address.clone(), status)).collect()
                }
                _ => Vec::new(),
            },
            suppressions: suppressions(report, record, &about, now),
            failure: to.and_then(|to| failure(report, to)),
            failed: if is_end && counts { about.clone() } else { Vec::new() },
            alert: if counts { alert(report, record, &about, now) } else { None },
            at,
        }
    }
}

/// Whether a recipient's state gives way to what was reported now: COMPLAINED over BOUNCED over DELIVERED over the rest.
pub fn outranks(new: Status, old: Status) -> bool {
    rank(new) > rank(old)
}

fn rank(status: Status) -> u8 {
    match status {
        Status::Complained => 4,
        Status::Bounced => 3,
        Status::Delivered => 2,
        Status::Failed => 1,
        _ => 0,
    }
}

fn recipients(record: &Record) -> Vec<Address> {
    let mut all = vec![Address::trusted(record.to_email.clone())];
    all.extend(record.detail.cc.iter().cloned());
    all.extend(record.detail.bcc.iter().cloned());
    all
}

/// Of the email's recipients those the report is about. A report that names nobody, or only others, such as an address
/// that mail was forwarded to, is about the one recipient there is, and about nobody in particular where there are several:
/// nobody is suppressed for somebody else's bounce.
fn concerned(report: &Report, everybody: &[Address]) -> Vec<Address> {
    let is_named = |address: &&Address| report.recipients.iter().any(|named| named.same_mailbox(address));
    let named: Vec<Address> = everybody.iter().filter(is_named).cloned().collect();
    if named.is_empty() && everybody.len() == 1 { everybody.to_vec() } else { named }
}

fn step(kind: ReportKind) -> Option<Move> {
    match kind {
        ReportKind::Sent => Some(Move::ReportSent),
        ReportKind::Delivered => Some(Move::ReportDelivered),
        ReportKind::Bounced(Bounce::Hard | Bounce::Unclear) => Some(Move::ReportBounced),
        ReportKind::Complained => Some(Move::ReportComplained),
        ReportKind::Failed => Some(Move::ReportFailed),
        ReportKind::Bounced(Bounce::Soft)
        | ReportKind::Delayed
        | ReportKind::Opened
        | ReportKind::Clicked
        | ReportKind::Other => None,
    }
}

fn reported_status(kind: ReportKind) -> Option<Status> {
    match kind {
        ReportKind::Delivered => Some(Status::Delivered),
        ReportKind::Bounced(Bounce::Hard | Bounce::Unclear) => Some(Status::Bounced),
        ReportKind::Complained => Some(Status::Complained),
        ReportKind::Failed => Some(Status::Failed),
        _ => None,
    }
}

/// Addresses in a history are masked; they say which of several it was about.
fn event(report: &Report, at: Timestamp, about: &[Address], of: usize) -> Event {
    let mut event = Event::new(report.kind.event(), at).with("reportId", report.id.as_str());
    event.metadata.extend(report.metadata.clone());
    if of > 1 {
        let masked: Vec<String> = about.iter().map(Address::to_string).collect();
        event = event.with("recipients", masked);
    }
    event
}

fn text(report: &Report, name: &str) -> Option<String> {
    report.metadata.get(name).and_then(serde_json::Value::as_str).map(str::to_owned)
}

/// The provider's own words, where it has some.
fn reason(report: &Report, otherwise: &str) -> String {
    ["diagnostic", "reason", "bounceSubType", "complaintFeedbackType"]
        .iter()
        .find_map(|name| text(report, name))
        .unwrap_or_else(|| otherwise.to_owned())
}

fn failure(report: &Report, to: Status) -> Option<(String, &'static str, String)> {
    let (code, otherwise) = match to {
        Status::Bounced => (bounce_code(report.kind).to_owned(), "the email bounced"),
        Status::Complained => ("COMPLAINED".to_owned(), "the recipient complained"),
        Status::Failed => (
            text(report, "errorCode").unwrap_or_else(|| "PROVIDER_FAILED".to_owned()),
            "the provider did not send it after all",
        ),
        _ => return None,
    };
    Some((code, model::Category::Permanent.as_str(), reason(report, otherwise)))
}

fn bounce_code(kind: ReportKind) -> &'static str {
    match kind {
        ReportKind::Bounced(Bounce::Hard) => "HARD_BOUNCE",
        _ => "BOUNCED",
    }
}

/// The code under which a failure of an address is counted.
pub fn failure_code(report: &Report) -> String {
    match report.kind {
        ReportKind::Failed => text(report, "errorCode").unwrap_or_else(|| "PROVIDER_FAILED".to_owned()),
        kind => bounce_code(kind).to_owned(),
    }
}

fn suppressions(report: &Report, record: &Record, about: &[Address], now: Timestamp) -> Vec<Suppression> {
    let (source, otherwise) = match report.kind {
        ReportKind::Bounced(Bounce::Hard) => (SuppressionSource::Bounce, "hard bounce"),
        ReportKind::Complained => (SuppressionSource::Complaint, "complaint"),
        _ => return Vec::new(),
    };
    let reason: String =
        reason(report, otherwise).chars().take(model::suppression::SUPPRESSION_REASON_LENGTH_MAX).collect();
    about
        .iter()
        .map(|address| Suppression {
            address: address.clone(),
            reason: reason.clone(),
            source,
            email: Some(record.id),
            created_at: now,
        })
        .collect()
}

fn alert(report: &Report, record: &Record, about: &[Address], now: Timestamp) -> Option<Alert> {
    let (kind, otherwise) = match report.kind {
        ReportKind::Bounced(Bounce::Hard | Bounce::Unclear) => (AlertKind::Bounce, "the email bounced"),
        ReportKind::Complained => (AlertKind::Complaint, "the recipient complained"),
        _ => return None,
    };
    let address = about.first().cloned().unwrap_or_else(|| Address::trusted(record.to_email.clone()));
    let subject = record.entity_id.clone().unwrap_or_else(|| subject_of(&address));
    Some(new_alert(kind, subject, address, record, reason(report, otherwise), now))
}

/// An address as the subject of an alert, the same however it is spelled.
pub fn subject_of(address: &Address) -> String {
    address.expose().to_ascii_lowercase()
}

/// The alert about an address that keeps failing.
pub fn repeated_failures(address: &Address, record: &Record, code: &str, now: Timestamp) -> Alert {
    let kind = AlertKind::RepeatedFailures;
    new_alert(kind, subject_of(address), address.clone(), record, code.to_owned(), now)
}

fn new_alert(
    kind: AlertKind,
    subject: String,
    address: Address,
    record: &Record,
    reason: String,
    now: Timestamp,
) -> Alert {
    Alert {
        id: AlertId::new(now),
        company: record.company,
        kind,
        subject,
        mode: record.mode,
        email: record.id,
        address,
        reason,
        created_at: now,
        repeats: 0,
        outcome: None,
    }
}

/// What a verdict counts against addresses: that the email was given up, or that the provider refused copies of it.
pub fn counted_failures(verdict: &Verdict) -> &[Failure] {
    match verdict {
        Verdict::Fail { failure, .. } if counts_against_address(failure) => std::slice::from_ref(failure),
        Verdict::Sent { refused, .. } => refused,
        _ => &[],
    }
}

/// What became of single recipients by this verdict, when it differs from what became of the email.
pub fn recipient_states(verdict: &Verdict, record: &Record) -> Vec<(Address, Status)> {
    let Verdict::Sent { refused, .. } = verdict else { return Vec::new() };
    refused
        .iter()
        .filter_map(|failure| failed_address(failure, record))
        .map(|address| (address, Status::Failed))
        .collect()
}

/// Whether an email that was given up so says something of its address. What we refused ourselves does not, nor what is
/// wrong with our set-up.
fn counts_against_address(failure: &Failure) -> bool {
    !matches!(failure.category, Category::Validation | Category::Configuration)
}

/// For whom such a failure counts: the recipient that was refused, or the only one there is.
/// Nobody where it may have been any of several, and for alerts of ours.
pub fn failed_address(failure: &Failure, record: &Record) -> Option<Address> {
    if record.detail.wishes.is_alert || !counts_against_address(failure) {
        return None;
    }
    let everybody = recipients(record);
    let is_refused =
        |address: &&Address| failure.refused.as_ref().is_some_and(|refused| refused.same_mailbox(address));
    match everybody.as_slice() {
        [only] => Some(only.clone()),
        several => several.iter().find(is_refused).cloned(),
    }
}

/// What makes an alert one of its kind: company, kind, mode, subject and this.
pub fn alert_window(alert: &Alert) -> i64 {
    window_of(alert.created_at)
}

/// The provider's id in a report whose email is known by another: it is kept beside that one, so that reports which bring
/// nothing else find the email too.
pub fn other_message_id<'a>(report: &'a Report, record: &Record) -> Option<&'a str> {
    let known = record.provider_message_id.as_deref()?;
    report.provider_message_id.as_deref().filter(|told| *told != known)
}
