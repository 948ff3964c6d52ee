//! A file of any earlier version becomes one of today with everything in it, whoever is killed on the way.
//!
//! Files of an earlier version are made by its own migrations and hold what today's store wrote, as far as that version
//! had a column for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{Bounce, Claim, CompanyId, Email, EmailId, Event, ReportKind, Status, Verdict};
use rusqlite::Connection;
use store::contract::feedback::{report, reported};
use store::contract::stage::{
    HOUR, REACHABLE, a_company, a_worker, backlog, claim, events, in_status, listed_ids, lost_leases, read,
    request, settle, stored,
};
use store::{ClaimRequest, EmailFilter, Outbox as _, Routes, StoreError, Upkeep as _};
use store_sqlite::SqliteStore;
use tempfile::TempDir;
use testkit::{START, an_email, at_secs};

const MIGRATIONS: [&str; 7] = [
    include_str!("../migrations/0001_init.sql"),
    include_str!("../migrations/0002_ended.sql"),
    include_str!("../migrations/0003_routes.sql"),
    include_str!("../migrations/0004_feedback.sql"),
    include_str!("../migrations/0005_search.sql"),
    include_str!("../migrations/0006_series.sql"),
    include_str!("../migrations/0007_messages.sql"),
];
/// "Post" in ASCII.
const APPLICATION_ID: i64 = 0x506F_7374;
/// Since this version emails have a route.
const ROUTES_SINCE: usize = 3;
/// Since this version reports are kept, and so the statuses that only they lead to.
const REPORTS_SINCE: usize = 4;

/// A folder with a file in it.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder can be made") }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

async fn open(file: &Path) -> SqliteStore {
    SqliteStore::open(file).await.expect("the file opens")
}

fn connect(file: &Path) -> Connection {
    Connection::open(file).expect("the file opens")
}

fn version(connection: &Connection) -> usize {
    connection.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a version")
}

/// Every table, index and view as the file itself describes it.
fn schema(file: &Path) -> Vec<String> {
    let connection = connect(file);
    let mut statement = connection
        .prepare("SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_schema ORDER BY 1")
        .expect("a good query");
    let lines = statement.query_map([], |row| row.get(0)).expect("asked");
    lines.collect::<rusqlite::Result<_>>().expect("read")
}

/// Does so many migrations, each as the program does it.
fn migrate_to(connection: &Connection, whole: usize) {
    for (number, migration) in MIGRATIONS.iter().enumerate().take(whole) {
        let stamp =
            format!("PRAGMA user_version = {}; PRAGMA application_id = {APPLICATION_ID};", number + 1);
        let batch = format!("BEGIN IMMEDIATE; {migration}; {stamp} COMMIT;");
        connection.execute_batch(&batch).expect("a migration is done");
    }
}

/// Makes `old` a file of that version with what `new` holds, as far as the version has room for it.
fn turned_back(new: &Path, old: &Path, version: usize) {
    let connection = connect(old);
    connection.pragma_update(None, "journal_mode", "WAL").expect("set");
    migrate_to(&connection, version);
    connection.execute("ATTACH ?1 AS new", [new.to_str().expect("text")]).expect("attached");
    for table in names(&connection, "SELECT name FROM main.sqlite_schema WHERE type = 'table'") {
        let columns = names(&connection, &format!("SELECT name FROM pragma_table_info('{table}', 'main')"));
        let columns = columns.join(", ");
        connection
            .execute_batch(&format!("INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}"))
            .expect("the rows are copied");
    }
}

fn names(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).expect("a good query");
    let names = statement.query_map([], |row| row.get(0)).expect("asked");
    names.collect::<rusqlite::Result<_>>().expect("read")
}

/// What a company has: every email with its history.
type Everything = BTreeMap<EmailId, (Email, Vec<Event>)>;

async fn everything(store: &SqliteStore, company: CompanyId) -> Everything {
    let mut all = BTreeMap::new();
    for id in listed_ids(store, company, &EmailFilter::default()).await {
        all.insert(id, (read(store, company, id).await, events(store, company, id).await));
    }
    all
}

/// A store with an email in every status a file of that version can hold.
async fn fill(store: &SqliteStore, version: usize) -> (CompanyId, BTreeMap<Status, EmailId>) {
    let company = a_company(store, "acme").await;
    let mut ids = BTreeMap::new();
    for status in REACHABLE {
        ids.insert(status, in_status(store, company, status, START).await);
    }
    let reports = [
        (ReportKind::Delivered, Status::Delivered),
        (ReportKind::Bounced(Bounce::Hard), Status::Bounced),
        (ReportKind::Complained, Status::Complained),
    ];
    for (kind, status) in reports.into_iter().filter(|_| version >= REPORTS_SINCE) {
        let id = in_status(store, company, Status::Sent, START).await;
        reported(store, report(&format!("report of {status}"), kind, id), at_secs(9)).await;
        ids.insert(status, id);
    }
    (company, ids)
}

#[tokio::test]
async fn everything_is_there_after_a_migration() {
    let fresh = Place::new();
    open(&fresh.file("posthaste.db")).await.close().await;
    let today = schema(&fresh.file("posthaste.db"));
    for version_before in 1..=MIGRATIONS.len() {
        let place = Place::new();
        let (new, old) = (place.file("new.db"), place.file("old.db"));
        let store = open(&new).await;
        let (company, ids) = fill(&store, version_before).await;
        let mut expected = everything(&store, company).await;
        store.close().await;
        if version_before < ROUTES_SINCE {
            expected.values_mut().for_each(|(email, _)| email.route.clear());
        }
        turned_back(&new, &old, version_before);

        let store = open(&old).await;
        assert_eq!(everything(&store, company).await, expected, "from version {version_before}");
        lists_and_counts_know(&store, company, &ids).await;
        the_rest_goes_on(&store, company, &ids).await;
        store.close().await;
        assert_eq!(version(&connect(&old)), MIGRATIONS.len(), "from version {version_before}");
        assert_eq!(schema(&old), today, "from version {version_before}");
    }
}

async fn lists_and_counts_know(store: &SqliteStore, company: CompanyId, ids: &BTreeMap<Status, EmailId>) {
    let counts = store.stats(START).await.expect("the store counts").by_status;
    for (&status, &id) in ids {
        let filter = EmailFilter { status: Some(status), ..EmailFilter::default() };
        assert_eq!(listed_ids(store, company, &filter).await, [id], "{status}");
        assert_eq!(counts.get(&status), Some(&1), "{status}");
    }
}

/// What waits is claimed with its content, what is unchecked is checked, and the lease of a dead worker is found.
async fn the_rest_goes_on(store: &SqliteStore, company: CompanyId, ids: &BTreeMap<Status, EmailId>) {
    let unchecked = store.awaiting_intake(START.plus(HOUR), 10).await.expect("answered");
    assert_eq!(unchecked.iter().map(|item| item.id).collect::<Vec<_>>(), [ids[&Status::Accepted]]);
    let lost = lost_leases(store, START.plus(HOUR)).await;
    let lost: Vec<EmailId> = lost.iter().map(|lost| lost.guard.id).collect();
    assert_eq!(lost, [ids[&Status::Processing]]);
    let claims = claim(store, START.plus(HOUR), 10).await;
    let mut claimed: Vec<EmailId> = claims.iter().map(Claim::id).collect();
    let mut waiting = vec![ids[&Status::Enqueued], ids[&Status::RetryScheduled]];
    claimed.sort_unstable();
    waiting.sort_unstable();
    assert_eq!(claimed, waiting);
    assert!(claims.iter().all(|claim| claim.content.is_some()), "with their contents");
    stored(store, an_email(company)).await;
}

/// What waits and what is in flight when the program is replaced by a newer one goes on, without a route until it is
/// given one.
#[tokio::test]
async fn emails_of_the_first_schema_are_claimed() {
    let place = Place::new();
    let (new, old) = (place.file("new.db"), place.file("old.db"));
    let store = open(&new).await;
    let company = a_company(&store, "acme").await;
    backlog(&store, company, 20, START).await;
    let in_flight = claim(&store, START, 1).await.remove(0);
    store.close().await;
    turned_back(&new, &old, 1);

    let store = open(&old).await;
    let worker = a_worker(&store).await;
    let by = |routes| ClaimRequest { routes, ..request(worker, at_secs(1), 100) };
    let claims = store.claim(by(Routes::Except(vec!["relay".into()]))).await.expect("claimed");
    assert_eq!(claims.len(), 19);
    assert!(claims.iter().all(|claim| claim.route.is_empty()));
    let put_back = || Verdict::PutBack { due_at: at_secs(1), route: Some("relay".into()) };
    let mut ids: Vec<EmailId> = Vec::new();
    for claim in claims.iter().chain([&in_flight]) {
        settle(&store, claim.guard, put_back(), at_secs(1)).await;
        ids.push(claim.id());
    }
    let claims = store.claim(by(Routes::Only(vec!["relay".into()]))).await.expect("claimed");
    let mut again: Vec<EmailId> = claims.iter().map(Claim::id).collect();
    ids.sort_unstable();
    again.sort_unstable();
    assert_eq!(again, ids, "all of them wait by their route now");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_open_an_old_file_at_once() {
    let place = Place::new();
    let (new, old) = (place.file("new.db"), place.file("old.db"));
    let store = open(&new).await;
    let (company, _) = fill(&store, 1).await;
    store.close().await;
    turned_back(&new, &old, 1);
    let opening: Vec<_> = (0..10)
        .map(|_| {
            let old = old.clone();
            tokio::spawn(async move { SqliteStore::open(&old).await })
        })
        .collect();
    for opening in opening {
        let store = opening.await.expect("no panic").expect("each of them opens");
        store.check().await.expect("and is fit for work");
        assert_eq!(everything(&store, company).await.len(), REACHABLE.len());
        store.close().await;
    }
    assert_eq!(version(&connect(&old)), MIGRATIONS.len(), "it was migrated once");
}

#[tokio::test]
async fn a_newer_file_is_refused_and_left_alone() {
    let place = Place::new();
    let file = place.file("posthaste.db");
    open(&file).await.close().await;
    connect(&file).pragma_update(None, "user_version", 99).expect("set");
    let Err(error) = SqliteStore::open(&file).await else { panic!("refused") };
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    assert_eq!(version(&connect(&file)), 99);
}
