//! What the store reads for its verbs does not grow with what waits and what is past: the server counts what each
//! connection reads. Claims are counted in `claim`.

use std::time::Duration;

use model::{CompanyId, CompanySettings, NewEmail, Status};
use sqlx::{Executor as _, MySqlConnection, Row as _};
use store::contract::stage::{a_company, a_company_with, a_worker, acceptance, request};
use store::{EmailFilter, Lookup as _, Outbox as _, Retention, StoreError, Tallies as _, Upkeep as _};
use testkit::{START, an_email_at, at_secs};

use crate::lane::Lanes;
use crate::support::{Database, run};
use crate::{MysqlConfig, MysqlStore};

/// Without pushing conditions down, the server counts all that it reads of an index, not only what it finds good.
pub const COUNT_ALL: &str = "SET optimizer_switch = 'index_condition_pushdown=off'";

/// Rows and index entries that this connection has read so far.
pub async fn rows_read(connection: &mut MySqlConnection) -> i64 {
    let rows = sqlx::raw_sql("SHOW SESSION STATUS LIKE 'Handler_read%'").fetch_all(connection).await;
    let count = |row: &sqlx::mysql::MySqlRow| row.get::<String, _>(1).parse::<i64>().expect("a count");
    rows.expect("counted").iter().map(count).sum()
}

/// More than a step of retention looks at, so that what it reads is at its bound in both.
const FEW: usize = 2_500;
const MANY: usize = 2 * FEW;
/// Less than a walk along what they differ by.
const SLACK: i64 = 400;
/// How many emails the company with a limit has; it may have twice as many in flight.
const IN_FLIGHT: u32 = 3;

/// A store that asks through one connection, and writes and claims through one each.
struct Counted {
    store: MysqlStore,
    database: Database,
}

impl Counted {
    async fn new() -> Self {
        let database = Database::new().await;
        let config = MysqlConfig::parse(&database.url_with("pool_max=1")).expect("a good URL");
        let store = MysqlStore::open(&config).await.expect("a new store opens");
        let counted = Self { store, database };
        counted.store.pool.acquire().await.expect("connected").execute(COUNT_ALL).await.expect("set");
        for lanes in [&counted.store.lanes, &counted.store.claiming] {
            let count_all = lanes.run(&(), |lane, ()| {
                Box::pin(async move {
                    lane.connection.execute(COUNT_ALL).await?;
                    Ok(())
                })
            });
            count_all.await.expect("set");
        }
        counted
    }

    /// Rows and index entries read so far.
    async fn read(&self) -> i64 {
        let of = |lanes: &Lanes| {
            let lanes = lanes.clone();
            async move {
                let read = lanes
                    .run(&(), |lane, ()| Box::pin(async move { Ok(rows_read(&mut lane.connection).await) }));
                read.await.expect("counted")
            }
        };
        let asked = rows_read(&mut self.store.pool.acquire().await.expect("connected")).await;
        asked + of(&self.store.lanes).await + of(&self.store.claiming).await
    }

    async fn accept(&self, company: CompanyId, count: usize) {
        let email = |_| NewEmail { expires_at: at_secs(86_400), ..an_email_at(company, START) };
        let emails: Vec<NewEmail> = (0..count).map(email).collect();
        for batch in emails.chunks(500) {
            self.store.accept(acceptance(batch.to_vec(), START)).await.expect("accepted");
        }
    }

    /// So many that were sent and so many that failed, and as many that wait, beside a few of a company that has limits.
    async fn fill(&self, count: usize) -> CompanyId {
        let company = a_company(&self.store, "acme").await;
        self.accept(company, 2 * count).await;
        let mut connection = self.database.connect().await;
        for sql in [
            "DELETE FROM email_queue",
            "UPDATE email_outbox SET status = 'SENT', sent_at = created_at",
            &format!(
                "UPDATE email_outbox SET status = 'FAILED', trouble = 'FAILED', failed_at = created_at,
                     last_failure_code = 'SMTP_REJECTED_550', last_failure_at = created_at ORDER BY id LIMIT {count}"
            ),
        ] {
            run(&mut connection, sql).await;
        }
        self.accept(company, count).await;
        let settings = CompanySettings { concurrency_max: Some(2 * IN_FLIGHT), ..Default::default() };
        let narrow = a_company_with(&self.store, "narrow", settings).await.id;
        let urgent = NewEmail { priority: 1, ..an_email_at(narrow, START) };
        let emails = (0..IN_FLIGHT).map(|_| NewEmail { id: an_email_at(narrow, START).id, ..urgent.clone() });
        self.store.accept(acceptance(emails.collect(), START)).await.expect("accepted");
        company
    }
}

/// What each verb read, by its name.
struct Reads<'a> {
    counted: &'a Counted,
    all: Vec<(&'static str, i64)>,
}

impl Reads<'_> {
    async fn count<T>(&mut self, name: &'static str, verb: impl Future<Output = Result<T, StoreError>>) -> T {
        let before = self.counted.read().await;
        let done = verb.await.expect(name);
        self.all.push((name, self.counted.read().await - before));
        done
    }
}

async fn read_beside(count: usize) -> Vec<(&'static str, i64)> {
    let counted = Counted::new().await;
    let company = counted.fill(count).await;
    let store = &counted.store;
    let worker = a_worker(store).await;
    let mut reads = Reads { counted: &counted, all: Vec::new() };
    let any = EmailFilter::default;
    let to = Some(an_email_at(company, START).envelope.to);
    let code = Some("SMTP_REJECTED_550".to_owned());
    for (filter, found) in [
        (any(), 20),
        (EmailFilter { status: Some(Status::Failed), ..any() }, 20),
        (EmailFilter { code, ..any() }, 20),
        (EmailFilter { to, ..any() }, 20),
        (EmailFilter { external_id: Some("nobody's".into()), ..any() }, 0),
        (EmailFilter { request_id: Some("nobody's".into()), ..any() }, 0),
    ] {
        let page = reads.count("a list", store.emails(company, &filter, None, 20)).await;
        assert_eq!(page.items.len(), found, "{filter:?}");
    }
    let asked = request(worker, at_secs(1), 2 * IN_FLIGHT);
    let claims = reads.count("a claim beside a limit", store.claim(asked)).await;
    assert_eq!(claims.len(), 2 * IN_FLIGHT as usize);
    assert_eq!(reads.count("lost leases, none", store.lost_leases(at_secs(2), 100)).await.len(), 0);
    assert_eq!(reads.count("lost leases", store.lost_leases(at_secs(3_600), 100)).await.len(), claims.len());
    assert_eq!(reads.count("nothing to expire", store.expire(at_secs(2), 100)).await, 0);
    assert_eq!(reads.count("expiry", store.expire(at_secs(86_400), 10)).await, 10);
    reads.count("the numbers", store.stats(at_secs(2))).await;
    let year = Duration::from_secs(365 * 86_400);
    let retention = Retention { content: year, emails: year, dead_letters: year };
    let (early, late) = (at_secs(86_400), START.plus(2 * year));
    assert_eq!(reads.count("nothing to prune", store.prune(&retention, early, 10)).await.emails, 0);
    assert_eq!(reads.count("retention", store.prune(&retention, late, 10)).await.emails, 10);
    assert_eq!(reads.count("retention, the next step", store.prune(&retention, late, 10)).await.emails, 10);
    reads.all
}

#[tokio::test]
async fn nothing_reads_more_beside_many_emails_than_beside_few() {
    let (few, many) = (read_beside(FEW).await, read_beside(MANY).await);
    for ((name, few), (_, many)) in few.iter().zip(&many) {
        assert!(*many <= few + SLACK, "{name}: {many} read beside many, {few} beside few");
    }
}

/// Rows of tallies, a thousand a day.
async fn entities_among(days: u32) -> i64 {
    let counted = Counted::new().await;
    let company = a_company(&counted.store, "acme").await;
    let mut connection = counted.database.connect().await;
    for day in 0..days {
        let sql = format!(
            "INSERT INTO entity_tallies (company_id, entity_id, day, type, total)
             WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 1000)
             SELECT '{company}', CONCAT('entity-', n), {day}, 'SENT', 1 FROM number"
        );
        run(&mut connection, &sql).await;
    }
    let before = counted.read().await;
    let entities = counted.store.entities(company, 50).await.expect("asked");
    assert_eq!(entities.len(), 50);
    assert!(entities.iter().all(|entity| entity.last_day == i64::from(days) - 1));
    counted.read().await - before
}

/// Entities are found among what happened lately, however much there was before.
#[tokio::test]
async fn entities_are_listed_without_reading_all_that_was() {
    let (few, many) = (entities_among(25).await, entities_among(50).await);
    assert!(many <= few + SLACK, "{many} read among many, {few} among few");
}
