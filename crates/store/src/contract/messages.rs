//! Laws of the providers' ids: every id that a provider ever gave for an email finds it, whichever of several attempts it
//! was for, however late it came, for as long as the email is there.

use model::{Bounce, CompanyId, EmailId, Report, ReportKind, Status, Timestamp, Verdict};
use testkit::{START, an_email, at_secs};

use super::dead_letters::replay;
use super::feedback::{report, reported};
use super::stage::{
    DAY, LEASE, a_company, attempted, begun, claim_one, in_status, listed_ids, lost_leases, read, retry_at,
    settle, stored, swept,
};
use crate::{DeadLetterFilter, EmailFilter, Reported, Retention, Settled, Store};

fn sent_as(message_id: &str) -> Verdict {
    let message_id = Some(message_id.to_owned());
    Verdict::Sent {
        provider: "relay".into(),
        provider_kind: "smtp",
        message_id,
        duration_ms: 12,
        refused: Vec::new(),
    }
}

/// A report that brings nothing but the provider's id.
fn about(message_id: &str, number: u32, kind: ReportKind) -> Report {
    Report {
        email: None,
        provider_message_id: Some(message_id.to_owned()),
        ..report(&format!("{message_id}-{number}"), kind, EmailId::new(START))
    }
}

async fn found(store: &dyn Store, message_id: &str, number: u32, now: Timestamp) -> Option<EmailId> {
    match reported(store, about(message_id, number, ReportKind::Opened), now).await {
        Reported::Applied { email, .. } => Some(email),
        Reported::Unmatched => None,
        Reported::Repeated => panic!("{message_id} was reported before"),
    }
}

async fn listed(store: &dyn Store, company: CompanyId, message_id: &str) -> Vec<EmailId> {
    let filter = EmailFilter { message_id: Some(message_id.to_owned()), ..EmailFilter::default() };
    listed_ids(store, company, &filter).await
}

/// An email whose first worker sent it, slept through its lease, and says so now, as a second one has it.
async fn sent_late(store: &dyn Store, company: CompanyId, message_id: &str) -> EmailId {
    let id = stored(store, an_email(company)).await;
    let stale = begun(store, claim_one(store, START).await.guard, START).await;
    let late = START.plus(LEASE).plus(LEASE);
    let lost = lost_leases(store, late).await.remove(0);
    store.settle(swept(&lost, retry_at(late), late)).await.expect("settle");
    claim_one(store, late).await;
    assert_eq!(settle(store, stale, sent_as(message_id), late).await, Settled::Late);
    id
}

/// The id of a send that was told too late finds the email, though its row has none or another.
pub async fn the_id_of_a_late_send_finds_its_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    in_status(store, company, Status::Sent, START).await;
    let id = sent_late(store, company, "late-1").await;
    assert_eq!(read(store, company, id).await.provider_message_id, None);
    assert_eq!(listed(store, company, "late-1").await, [id]);
    let other = a_company(store, "other").await;
    assert_eq!(listed(store, other, "late-1").await, []);
    let delivered = reported(store, about("late-1", 1, ReportKind::Delivered), at_secs(200)).await;
    let status = Status::Delivered;
    assert_eq!(delivered, Reported::Applied { email: id, company, status, moved: true });
    assert_eq!(found(store, "late-1", 2, at_secs(200)).await, Some(id));
}

/// A report that came before the late result waits for it, like one that came before a timely one.
pub async fn an_early_report_waits_for_the_late_result(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let early = about("late-1", 1, ReportKind::Bounced(Bounce::Hard));
    assert_eq!(reported(store, early, START).await, Reported::Unmatched);
    assert_eq!(store.rematch(at_secs(1), 10).await, Ok(0));
    let id = sent_late(store, company, "late-1").await;
    assert_eq!(store.rematch(at_secs(100), 10).await, Ok(1));
    assert_eq!(read(store, company, id).await.status, Status::Bounced);
}

/// An email that was sent again is found by the id of each time, and by one that only a report has told.
pub async fn every_id_of_an_email_finds_it(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let mut now = START;
    for message_id in ["first", "second", "third"] {
        attempted(store, sent_as(message_id), now).await;
        reported(store, about(message_id, 1, ReportKind::Failed), now).await;
        assert_eq!(replay(store, company, &DeadLetterFilter::default(), now).await, 1);
        now = now.plus(LEASE);
    }
    attempted(store, sent_as("last"), now).await;
    let told =
        Report { provider_message_id: Some("told".into()), ..report("told-1", ReportKind::Opened, id) };
    for _twice in 0..2 {
        reported(store, told.clone(), now).await;
    }
    assert_eq!(read(store, company, id).await.provider_message_id.as_deref(), Some("last"));
    for message_id in ["first", "second", "third", "last", "told"] {
        assert_eq!(found(store, message_id, 2, now).await, Some(id), "{message_id}");
        assert_eq!(listed(store, company, message_id).await, [id], "{message_id}");
    }
}

/// With the email goes all that was known of it.
pub async fn ids_go_with_their_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = sent_late(store, company, "late-1").await;
    reported(store, about("late-1", 1, ReportKind::Delivered), at_secs(200)).await;
    let retention = Retention { content: DAY, emails: 2 * DAY, dead_letters: DAY };
    let now = START.plus(30 * DAY);
    for _step in 0..4 {
        store.prune(&retention, now, 100).await.expect("prune");
    }
    assert_eq!(store.company_of(id).await, Ok(None));
    assert_eq!(found(store, "late-1", 2, now).await, None);
    assert_eq!(listed(store, company, "late-1").await, []);
}
