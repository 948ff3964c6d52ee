//! What a claim reads does not grow with what is waiting: the server counts the entries that are read of the
//! queue's indexes.

mod support;

use model::{CompanyId, NewEmail};
use sqlx::{PgConnection, Row as _};
use store::contract::stage::{a_company, a_worker, acceptance, request};
use store::{Outbox as _, Upkeep as _};
use store_postgres::PostgresStore;
use support::{Database, run};
use testkit::{START, an_email_at, at_secs};

const BACKLOG: usize = 2_000;
const CLAIMS: i64 = 20;
/// Places are few here, and ten priorities of each are looked up.
const READ_PER_CLAIM_MAX: i64 = 100;

async fn waiting(store: &PostgresStore, company: CompanyId, count: usize) {
    let emails: Vec<NewEmail> = (0..count).map(|_| an_email_at(company, START)).collect();
    for batch in emails.chunks(500) {
        store.accept(acceptance(batch.to_vec(), START)).await.expect("accepted");
    }
}

async fn claim_one(store: &PostgresStore) {
    let worker = a_worker(store).await;
    assert_eq!(store.claim(request(worker, at_secs(1), 1)).await.expect("answered").len(), 1);
}

/// A backend hands in its counts when it ends at the latest.
async fn read_of_indexes(database: &Database, connection: &mut PgConnection) -> i64 {
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()
                  AND backend_type = 'client backend'";
    loop {
        let row = sqlx::query(others).bind(&database.name).fetch_one(&mut *connection).await.expect("read");
        if row.get::<i64, _>(0) == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    run(connection, "SELECT pg_stat_clear_snapshot()").await;
    let sql = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'email_queue'";
    sqlx::query(sql).fetch_one(connection).await.expect("read").get(0)
}

/// Neither what is left, nor what is behind the place where the last claim stopped, is walked along.
#[tokio::test]
async fn a_claim_reads_little_of_a_large_backlog() {
    let database = Database::new().await;
    let store = database.open().await;
    let (first, second) = (a_company(&store, "first").await, a_company(&store, "second").await);
    waiting(&store, first, 50).await;
    claim_one(&store).await;
    for company in [first, second] {
        waiting(&store, company, BACKLOG).await;
    }
    for _ in 0..CLAIMS {
        claim_one(&store).await;
    }
    store.close().await;
    let read = read_of_indexes(&database, &mut database.connect().await).await;
    assert!(read < CLAIMS * READ_PER_CLAIM_MAX, "{read} entries read for {CLAIMS} claims");
}
