//! What a claim reads does not grow with what is waiting, and what an acceptance reads not with who is known: the server
//! counts the entries that are read of the indexes.

mod support;

use futures_util::future::join_all;
use model::{CompanyId, Envelope, Guard, NewEmail, Recipient, Secret};
use sqlx::{Decode, Postgres, Row as _, Type};
use store::contract::stage::{DAY, a_company, a_key, a_worker, acceptance, begun, request, sent, settle};
use store::{Acceptance, ClaimRequest, Outbox as _, Pruned, Retention, Routes, Upkeep as _};
use store_postgres::PostgresStore;
use support::{Database, run};
use testkit::{START, a_recipient, an_email_at, at_secs};

const BACKLOG: usize = 2_000;
const CLAIMS: i64 = 20;
const SIZES: i64 = 40;
/// Places are few here, and ten priorities of each are looked up.
const READ_PER_CLAIM_MAX: i64 = 100;

async fn waiting_by(store: &PostgresStore, company: CompanyId, route: &str, count: usize) {
    let email = |_| NewEmail { route: route.into(), ..an_email_at(company, START) };
    let emails: Vec<NewEmail> = (0..count).map(email).collect();
    for batch in emails.chunks(500) {
        store.accept(acceptance(batch.to_vec(), START)).await.expect("accepted");
    }
}

async fn claim_one(store: &PostgresStore, routes: Routes) {
    let worker = a_worker(store).await;
    let request = ClaimRequest { routes, ..request(worker, at_secs(1), 1) };
    assert_eq!(store.claim(request).await.expect("answered").len(), 1);
}

/// A backend hands in its counts when it ends at the latest.
async fn counted<T>(database: &Database, sql: &'static str) -> T
where
    T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
{
    let connection = &mut database.connect().await;
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
    sqlx::query(sql).fetch_one(connection).await.expect("read").get(0)
}

/// Neither what is asked for and left, nor what is not asked for, nor what is behind the place where the last claim
/// stopped, is walked along.
#[tokio::test]
async fn a_claim_reads_little_of_a_large_backlog() {
    let database = Database::new().await;
    let store = database.open().await;
    let (first, second) = (a_company(&store, "first").await, a_company(&store, "second").await);
    waiting_by(&store, first, "a", 50).await;
    claim_one(&store, Routes::All).await;
    for company in [first, second] {
        waiting_by(&store, company, "main", BACKLOG).await;
    }
    waiting_by(&store, second, "relay", 50).await;
    for _ in 0..CLAIMS / 2 {
        claim_one(&store, Routes::All).await;
        claim_one(&store, Routes::Except(vec!["main".into()])).await;
    }
    store.close().await;
    let sql = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'email_queue'";
    let read: i64 = counted(&database, sql).await;
    assert!(read < CLAIMS * READ_PER_CLAIM_MAX, "{read} entries read for {CLAIMS} claims");
}

/// A few of these fill a page: the table is then larger than its indexes, which look as if they cost nothing.
fn a_long_email(company: CompanyId) -> NewEmail {
    let email = an_email_at(company, START);
    let subject = Secret::new("an order that is on its way ".repeat(9));
    NewEmail { route: "main".into(), envelope: Envelope { subject, ..email.envelope }, ..email }
}

/// A process plans its claims, and what follows them, once, when it makes the first one; many more emails may come after that.
/// So at whatever size of the outbox they are planned, it is read for the emails of the claim alone.
#[tokio::test]
async fn a_claim_reads_no_other_emails_whenever_it_was_planned() {
    let database = Database::new().await;
    let store = database.open().await;
    // The server would look at the table from time to time, and the planner would know better.
    run(&mut database.connect().await, "ALTER TABLE email_outbox SET (autovacuum_enabled = false)").await;
    let company = a_company(&store, "acme").await;
    for _ in 0..SIZES {
        let emails = (0..5).map(|_| a_long_email(company)).collect();
        store.accept(acceptance(emails, START)).await.expect("accepted");
        let newcomer = database.open().await;
        let worker = a_worker(&newcomer).await;
        let claims = newcomer.claim(request(worker, at_secs(1), 1)).await.expect("answered");
        let guard = begun(&newcomer, claims[0].guard, at_secs(1)).await;
        assert_eq!(newcomer.renew(worker, vec![guard], at_secs(60)).await, Ok(vec![]));
        settle(&newcomer, guard, sent(), at_secs(2)).await;
        newcomer.close().await;
    }
    store.close().await;
    // Those that end with the id.
    let sql = "SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes WHERE indexrelname LIKE 'outbox_by_%'";
    assert_eq!(
        counted::<i64>(&database, sql).await,
        0,
        "claims looked for emails in an index that is not by id"
    );
}

/// So are acceptances: whoever is named is looked for by the name or the document, never among all of the company's people,
/// and a key not among all of its keys.
#[tokio::test]
async fn an_acceptance_reads_no_other_people_or_keys_whenever_it_was_planned() {
    let database = Database::new().await;
    let store = database.open().await;
    let mut connection = database.connect().await;
    for table in ["recipients", "idempotency_keys"] {
        run(&mut connection, &format!("ALTER TABLE {table} SET (autovacuum_enabled = false)")).await;
    }
    let company = a_company(&store, "acme").await;
    let naming = |number: i64| {
        let document_hmac = Some(format!("{number:064x}"));
        let recipient = Recipient { document_hmac, ..a_recipient(&format!("customer-{number}")) };
        NewEmail { recipient: Some(recipient), ..an_email_at(company, START) }
    };
    let keyed = |number: i64, emails: Vec<NewEmail>| {
        let key = Some(a_key(&format!("key-{number}"), 1, "", START));
        Acceptance { key, ..acceptance(emails, START) }
    };
    for size in 0..SIZES {
        let emails = (0..5).map(|number| naming(5 * size + number)).collect();
        store.accept(keyed(size, emails)).await.expect("accepted");
        if size % 2 == 1 {
            run(&mut connection, "ANALYZE recipients, idempotency_keys").await;
        }
        let newcomer = database.open().await;
        let emails = vec![naming(5 * size), naming(-size - 1)];
        newcomer.accept(keyed(-size - 1, emails)).await.expect("accepted");
        newcomer.close().await;
    }
    store.close().await;
    drop(connection);
    let sql = "SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes
               WHERE indexrelname IN ('recipients_by_email', 'recipients_by_company', 'idempotency_keys_by_end')";
    assert_eq!(counted::<i64>(&database, sql).await, 0, "they were looked for in an index of all of them");
    let sql = "SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables
               WHERE relname IN ('recipients', 'idempotency_keys')";
    assert_eq!(counted::<i64>(&database, sql).await, 0, "they were looked for in the whole table");
    // By name, by document and by id, each of seven.
    let sql = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'recipients'";
    let read: i64 = counted(&database, sql).await;
    assert!(read <= SIZES * 7 * 3, "{read} entries read for {} emails", SIZES * 7);
    // None of the keys was there.
    let sql = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'idempotency_keys'";
    assert_eq!(counted::<i64>(&database, sql).await, 0, "entries read for keys that nobody had used");
}

/// Everything an email meets on its way is planned on a server that knows the tables to be empty, as after a quiet night:
/// then two thousand come. What is read of each index is what their number asks for, not their square.
#[tokio::test]
async fn an_email_reads_no_others_when_all_was_planned_for_none() {
    let (database, store) = known_to_be_empty().await;
    let company = a_company(&store, "acme").await;
    let mut connection = database.connect().await;
    // Pages that stay when all their rows have gone, as the queue's do, are taken for empty whatever comes into them.
    for number in 0..10 {
        way_of(&store, company, number..number + 1).await;
        run(&mut connection, "VACUUM (TRUNCATE OFF) email_queue").await;
    }
    drop(connection);
    way_of(&store, company, 100..100 + BACKLOG).await;
    store.close().await;
    assert_few_read(&database).await;
}

/// The same where nothing makes the server plan again after the first of them.
#[tokio::test]
async fn an_email_reads_no_others_when_the_first_found_nothing() {
    let (database, store) = known_to_be_empty().await;
    let company = a_company(&store, "acme").await;
    way_of(&store, company, 0..BACKLOG).await;
    store.close().await;
    assert_few_read(&database).await;
}

async fn known_to_be_empty() -> (Database, PostgresStore) {
    let database = Database::new().await;
    let mut connection = database.connect().await;
    database.open().await.close().await;
    run(&mut connection, NOT_BY_ITSELF).await;
    run(&mut connection, "VACUUM ANALYZE").await;
    let store = database.open().await;
    (database, store)
}

async fn assert_few_read(database: &Database) {
    let sql = "SELECT string_agg(format('%s read %s', indexrelname, idx_tup_read), ', ')
               FROM pg_stat_user_indexes WHERE idx_tup_read > 20 * 2000";
    assert_eq!(counted::<Option<String>>(database, sql).await, None, "for {BACKLOG} emails");
}

/// The server would look at the tables from time to time, and the planner would know better.
const NOT_BY_ITSELF: &str = "DO $$
    DECLARE
        ours record;
    BEGIN
        FOR ours IN SELECT oid::regclass AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
        LOOP
            EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', ours.name);
        END LOOP;
    END
    $$";

/// Accepted, claimed, renewed, begun, renewed, sent and deleted, by the hundred.
async fn way_of(store: &PostgresStore, company: CompanyId, numbers: std::ops::Range<usize>) {
    let naming = |number: usize| {
        let document_hmac = Some(format!("{number:064x}"));
        let recipient = Recipient { document_hmac, ..a_recipient(&format!("customer-{number}")) };
        let email = NewEmail { recipient: Some(recipient), ..an_email_at(company, START) };
        let key = Some(a_key(&format!("key-{number}"), 1, "", START));
        Acceptance { key, ..acceptance(vec![email], START) }
    };
    let requests: Vec<Acceptance> = numbers.map(naming).collect();
    for requests in requests.chunks(100) {
        for answer in join_all(requests.iter().map(|request| store.accept(request.clone()))).await {
            answer.expect("accepted");
        }
    }
    let worker = a_worker(store).await;
    loop {
        let claims = store.claim(request(worker, at_secs(1), 100)).await.expect("answered");
        assert_eq!(store.lost_leases(at_secs(1), 10).await, Ok(vec![]));
        assert_eq!(store.expire(at_secs(1), 10).await, Ok(0));
        if claims.is_empty() {
            break;
        }
        let guards: Vec<Guard> = claims.iter().map(|claim| claim.guard).collect();
        assert_eq!(store.renew(worker, guards.clone(), at_secs(60)).await, Ok(vec![]));
        let begun: Vec<Guard> = join_all(guards.iter().map(|guard| begun(store, *guard, at_secs(1)))).await;
        assert_eq!(store.renew(worker, begun.clone(), at_secs(90)).await, Ok(vec![]));
        join_all(begun.iter().map(|guard| settle(store, *guard, sent(), at_secs(2)))).await;
    }
    let retention = Retention { content: DAY, emails: DAY, dead_letters: DAY };
    while store.prune(&retention, START.plus(3 * DAY), 2_000).await.expect("pruned") != Pruned::default() {}
}
