//! Looking at what is new reads what is new, however long the history is.

use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use store::contract::stage::{a_company, backlog};
use testkit::START;

use super::*;
use crate::support::{Fixture, fresh, run};
use crate::tidy::Tidy;

const LONG: &str = "INSERT INTO events (email_id, created_at, type)
    SELECT id, to_timestamp(1600000000 + n), 'RECEIVED' FROM generate_series(1, 150) AS n, email_outbox ORDER BY n;
    ANALYZE";
/// Neither in the statistics nor in the index yet, as what is new always is.
const NEW: &str = "INSERT INTO events (email_id, created_at, type)
    SELECT id, to_timestamp(1600001000 + n), 'RECEIVED' FROM generate_series(1, 5) AS n, email_outbox ORDER BY n";

/// Two thousand emails with a hundred and fifty events each, tidied up, and five more.
async fn long_history() -> Fixture {
    let fixture = fresh().await;
    let company = a_company(&*fixture, "acme").await;
    backlog(&*fixture, company, 2_000, START).await;
    let mut connection = fixture.database.connect().await;
    run(&mut connection, LONG).await;
    Tidy::new(fixture.pool.clone()).run().await;
    run(&mut connection, NEW).await;
    fixture
}

async fn plan_of(connection: &mut PgConnection, sql: &str) -> String {
    let sql = format!("EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) {sql}");
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await.expect("a plan");
    rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn new_events_are_found_without_the_old() {
    let fixture = long_history().await;
    let mut connection =
        crate::lane::connect(&fixture.database.config().session()).await.expect("a connection");
    let last = fixture.last_event().await.expect("a number");
    assert_eq!(last, 312_000);
    let span = |first: u64, last: u64| {
        HAPPENED.replace("$1", &first.to_string()).replace("$2", &last.to_string()).replace("$3", "1000")
    };
    let since = SINCE.replace("$1", "to_timestamp(1600000000 + 149)");
    run(&mut connection, "BEGIN").await;
    run(&mut connection, BY_BITMAP).await;
    for sql in [span(last - 500, last), span(100_000, 100_999), since] {
        let plan = plan_of(&mut connection, &sql).await;
        assert!(plan.contains("events_in_order") && !plan.contains("Seq Scan"), "{plan}");
        let looked_at: u64 = plan
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Rows Removed by Index Recheck: "))
            .map(|rows| rows.parse::<u64>().expect("a number"))
            .sum();
        assert!(looked_at < 30_000, "a tenth of all at most: {plan}");
    }
}
