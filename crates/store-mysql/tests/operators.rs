//! What operators ask by hand works as it is written in their notes.

mod support;

use model::{EmailId, Status, Timestamp, Verdict};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use store::contract::stage::{REACHABLE, a_company, attempted, in_status, read, stored};
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
    support::run(&mut connection, "UPDATE email_outbox SET failed_at = NOW(3) WHERE failed_at IS NOT NULL")
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
             WHERE status = 'FAILED' AND failed_at > NOW() - INTERVAL 1 HOUR
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
            "SELECT email_log_id FROM email_events WHERE type = 'RECEIVED' AND JSON_EXTRACT(metadata, '$.attempt') = 1"
                .into(),
        ),
    ];
    for (expected, sql) in queries {
        let rows = sqlx::query(AssertSqlSafe(sql.clone())).fetch_all(&mut connection).await;
        assert_eq!(rows.unwrap_or_else(|error| panic!("{sql}: {error}")).len(), expected, "{sql}");
    }
    assert_history(&mut connection, sent).await;
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

async fn assert_history(connection: &mut MySqlConnection, sent: EmailId) {
    let sql = "SELECT type FROM email_events WHERE email_log_id = ? ORDER BY id";
    let rows = sqlx::query(sql).bind(sent.to_string()).fetch_all(connection).await.expect("asked");
    let types: Vec<&str> = rows.iter().map(|row| row.get("type")).collect();
    assert_eq!(types, ["ENQUEUED", "RECEIVED", "VALIDATED", "SENT_ATTEMPT", "SENT"]);
}

/// The last hour is the last hour in a session of any time zone, in the table and in the views.
#[tokio::test]
async fn the_last_hour_is_right_in_every_time_zone() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let mut connection = store.database.connect().await;
    let sql = "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) AS now";
    let now: i64 = sqlx::query(sql).fetch_one(&mut connection).await.expect("asked").get("now");
    for minutes in [120, 30] {
        let ago = Timestamp::from_millis(now - minutes * 60_000);
        in_status(&*store, company, Status::Failed, ago).await;
    }
    for zone in ["+00:00", "-03:00", "+05:30"] {
        support::run(&mut connection, &format!("SET time_zone = '{zone}'")).await;
        for (expected, condition) in [
            (1, "email_outbox WHERE status = 'FAILED' AND failed_at > NOW() - INTERVAL 1 HOUR"),
            (1, "email_outbox WHERE created_at > NOW() - INTERVAL 1 HOUR"),
            (1, "email_outbox WHERE last_failure_at > NOW() - INTERVAL 1 HOUR"),
            (2, "email_outbox WHERE failed_at < NOW() - INTERVAL 10 MINUTE"),
            (1, "email_logs WHERE failed_at > NOW() - INTERVAL 1 HOUR"),
            (1, "email_events WHERE type = 'FAILED' AND created_at > NOW() - INTERVAL 1 HOUR"),
        ] {
            let sql = format!("SELECT COUNT(*) AS found FROM {condition}");
            let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut connection).await.expect("asked");
            assert_eq!(row.get::<i64, _>("found"), expected, "{condition} in {zone}");
        }
    }
}

/// A clock that went beyond what the server's calendar of moments holds makes times wrong, and stops nothing.
#[tokio::test]
async fn a_clock_beyond_the_calendar_stops_nothing() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    for year in [1970, 2040] {
        let now = Timestamp::from_millis((year - 1970) * 365 * 86_400_000);
        for status in REACHABLE {
            let id = in_status(&*store, company, status, now).await;
            assert_eq!(read(&*store, company, id).await.status, status, "{year}");
        }
    }
}

/// The views have the columns they have on the other stores.
#[tokio::test]
async fn the_views_have_the_known_columns() {
    let store = fresh().await;
    let mut connection = store.database.connect().await;
    let views = [
        ("email_events", "id email_log_id type metadata to_email entity_id created_at"),
        (
            "email_logs",
            "outbox_id company_id recipient_id to_email subject status provider provider_message_id ses_message_id \
             error_code error_reason attempts duration_ms request_id created_at sent_at failed_at",
        ),
    ];
    for (view, expected) in views {
        let sql = "SELECT column_name AS name FROM information_schema.columns
                   WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position";
        let rows = sqlx::query(sql).bind(view).fetch_all(&mut connection).await.expect("asked");
        let columns: Vec<String> = rows.iter().map(|row| row.get("name")).collect();
        assert_eq!(columns.join(" "), expected, "{view}");
    }
}
