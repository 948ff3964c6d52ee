//! The third witness: what the store says, read through the store's own port.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::{Clock as _, CompanyId, EmailId, Event, Status, SystemClock};
use store::{EmailFilter, Store};

use crate::database::Database;

const PAGE: u32 = 500;
/// Pages that may be read: far more than any run fills.
const PAGES_MAX: usize = 100_000;
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// An email as it stands.
#[derive(Debug)]
pub struct Stored {
    pub status: Status,
    pub attempts: usize,
    pub outcome_unknown: bool,
    pub failure_code: Option<String>,
    pub events: Vec<Event>,
}

pub type Emails = BTreeMap<EmailId, Stored>;

/// Waits until nothing is on its way any more. `false` when that takes longer than `at_most`.
pub async fn drained(database: &Database, at_most: Duration) -> bool {
    let store = database.open().await;
    let deadline = Instant::now() + at_most;
    let mut is_drained = false;
    while !is_drained && Instant::now() < deadline {
        tokio::time::sleep(LOOK_EVERY).await;
        let stats = store.stats(SystemClock.now()).await.expect("the store counts");
        is_drained = stats.by_status.iter().all(|(status, count)| status.is_final() || *count == 0);
    }
    store.close().await;
    is_drained
}

/// Every email of the company with its history. Panics when the store's own counts disagree with its rows.
pub async fn read(database: &Database, company: &str) -> Emails {
    let store = database.open().await;
    let company =
        store.company_named(company).await.expect("the store answers").expect("the company is there");
    let emails = read_all(&*store, company.id).await;
    let mut counted: BTreeMap<Status, u64> = BTreeMap::new();
    for email in emails.values() {
        *counted.entry(email.status).or_default() += 1;
    }
    let mut kept = store.stats(SystemClock.now()).await.expect("the store counts").by_status;
    kept.retain(|_, count| *count > 0);
    store.close().await;
    assert_eq!(kept, counted, "the counts that the store keeps are those of its rows");
    emails
}

async fn read_all(store: &dyn Store, company: CompanyId) -> Emails {
    let mut emails = BTreeMap::new();
    let mut cursor = None;
    for _ in 0..PAGES_MAX {
        let filter = EmailFilter::default();
        let page = store.emails(company, &filter, cursor.as_ref(), PAGE).await.expect("the store lists");
        for email in page.items {
            let events = store.events(company, email.id).await.expect("the store answers");
            let stored = Stored {
                status: email.status,
                attempts: email.attempts as usize,
                outcome_unknown: email.outcome_unknown,
                failure_code: email.last_failure.map(|failure| failure.code),
                events: events.expect("an email that is listed has a history"),
            };
            emails.insert(email.id, stored);
        }
        cursor = page.next;
        if cursor.is_none() {
            return emails;
        }
    }
    panic!("the list of emails has no end");
}
