//! What operators ask by hand works as it is written in their notes.

mod support;

use model::{Status, Verdict};
use sqlx::{AssertSqlSafe, Row as _};
use store::contract::stage::{a_company, attempted, in_status, stored};
use support::fresh;
use testkit::{START, an_email};

#[tokio::test]
async fn the_queries_of_the_notes_work() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let id = in_status(&*store, company, Status::Failed, START).await;
    let sent = in_status(&*store, company, Status::Sent, START).await;
    in_status(&*store, company, Status::RetryScheduled, START).await;
    // The tests' clock stands still; these ask for the last hour.
    let mut connection = store.database.connect().await;
    support::run(&mut connection, "UPDATE email_outbox SET failed_at = now() WHERE failed_at IS NOT NULL")
        .await;
    let queries = [
        (
            1,
            format!(
                "SELECT id, company_id, status, to_email, subject, attempts, created_at
                 FROM email_outbox WHERE id = '{id}'"
            ),
        ),
        (
            1,
            format!(
                "SELECT id, status, sent_at, ses_message_id, attempts FROM email_outbox WHERE id = '{sent}'"
            ),
        ),
        (
            1,
            "SELECT id, attempts, last_failure_reason, last_failure_code, last_failure_at
             FROM email_outbox WHERE status = 'RETRY_SCHEDULED' ORDER BY last_failure_at DESC"
                .into(),
        ),
        (
            1,
            "SELECT last_failure_code, COUNT(*) as count FROM email_outbox
             WHERE status = 'FAILED' GROUP BY last_failure_code ORDER BY count DESC"
                .into(),
        ),
        (
            1,
            "SELECT company_id, COUNT(*) as failed_count FROM email_outbox
             WHERE status = 'FAILED' AND failed_at > NOW() - INTERVAL '1 hour'
             GROUP BY company_id ORDER BY failed_count DESC"
                .into(),
        ),
        (
            1,
            format!(
                "SELECT status, provider, error_code, attempts, duration_ms, sent_at FROM email_logs
                 WHERE outbox_id = '{sent}'"
            ),
        ),
        (
            5,
            format!(
                "SELECT type, metadata, to_email, entity_id, created_at FROM email_events
                 WHERE email_log_id = '{sent}' ORDER BY id"
            ),
        ),
        (
            3,
            "SELECT email_log_id FROM email_events WHERE type = 'RECEIVED' AND metadata ->> 'attempt' = '1'"
                .into(),
        ),
    ];
    for (expected, sql) in queries {
        let rows = sqlx::query(AssertSqlSafe(sql.clone())).fetch_all(&mut connection).await;
        assert_eq!(rows.unwrap_or_else(|error| panic!("{sql}: {error}")).len(), expected, "{sql}");
    }
    let sql = "SELECT type FROM email_events WHERE email_log_id = $1 ORDER BY id";
    let rows = sqlx::query(sql).bind(sent.uuid()).fetch_all(&mut connection).await.expect("asked");
    let types: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(types, ["ENQUEUED", "RECEIVED", "VALIDATED", "SENT_ATTEMPT", "SENT"]);
}

/// Where it went out through SES, its id there is in the column that people ask for it.
#[tokio::test]
async fn the_id_of_ses_is_found() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let sent = stored(&*store, an_email(company)).await;
    let by_ses = Verdict::Sent {
        provider: "main".into(),
        provider_kind: "ses",
        message_id: Some("0100018c-1".into()),
        duration_ms: 12,
        refused: Vec::new(),
    };
    attempted(&*store, by_ses, START).await;
    let mut connection = store.database.connect().await;
    for (table, id) in [("email_outbox", "id"), ("email_logs", "outbox_id")] {
        let sql = format!("SELECT provider_message_id, ses_message_id FROM {table} WHERE {id} = '{sent}'");
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut connection).await.expect("asked");
        assert_eq!((row.get::<&str, _>(0), row.get::<&str, _>(1)), ("0100018c-1", "0100018c-1"), "{table}");
    }
}
