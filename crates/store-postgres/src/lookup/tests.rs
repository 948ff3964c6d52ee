//! Each filter goes along the index that was made for it, never through all of a company's emails.

use model::Timestamp;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use store::contract::stage::{a_company, backlog};
use testkit::START;

use super::*;
use crate::support::{Fixture, fresh, run};

/// Emails that have everything a filter can name, most of it their own, and statistics of them.
async fn furnished() -> (Fixture, CompanyId) {
    let fixture = fresh().await;
    let company = a_company(&*fixture, "acme").await;
    backlog(&*fixture, company, 2_000, START).await;
    let mut connection = fixture.database.connect().await;
    run(
        &mut connection,
        "UPDATE email_outbox SET external_id = id, entity_id = id, recipient_external_id = id, recipient_id = id,
             to_email = id || '@example.com', last_failure_code = 'C' || right(id::text, 2), dead_at = created_at,
             trouble = (ARRAY['FAILED', 'BOUNCED', 'EXPIRED', 'INVALID'])[1 + get_byte(uuid_send(id), 15) % 4],
             due_after_intake = 1;
         UPDATE email_outbox SET request_id = id;
         INSERT INTO provider_messages SELECT id::text, id FROM email_outbox;
         INSERT INTO email_tags SELECT company_id, right(id::text, 2), id FROM email_outbox;
         ANALYZE",
    )
    .await;
    (fixture, company)
}

async fn plan_of(connection: &mut PgConnection, query: &Query) -> String {
    let sql = format!("EXPLAIN {}", query.statement());
    let rows = query.bind(sql, 26).fetch_all(connection).await.expect("a plan");
    rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn filters_use_their_indexes() {
    let (fixture, company) = furnished().await;
    let mut connection =
        crate::lane::connect(&fixture.database.config().session()).await.expect("a connection");
    let some = || Some("x".to_owned());
    let none = EmailFilter::default;
    let cases = [
        ("outbox_by_company", none()),
        ("outbox_by_external_id", EmailFilter { external_id: some(), ..none() }),
        ("outbox_by_request", EmailFilter { request_id: some(), ..none() }),
        ("provider_messages_by_id", EmailFilter { message_id: some(), ..none() }),
        ("email_tags_pkey", EmailFilter { tag: some(), ..none() }),
        ("outbox_by_to", EmailFilter { to: Some(model::Address::trusted("a@b.com".into())), ..none() }),
        ("outbox_by_entity", EmailFilter { entity: some(), ..none() }),
        ("outbox_by_code", EmailFilter { code: some(), ..none() }),
        ("outbox_by_recipient", EmailFilter { recipient: some(), ..none() }),
        ("outbox_by_recipient_id", EmailFilter { recipient: Some(company.to_string()), ..none() }),
        ("outbox_troubled", EmailFilter { status: Some(Status::Failed), ..none() }),
        ("queue_in_flight", EmailFilter { status: Some(Status::Processing), ..none() }),
        (
            "outbox_troubled",
            EmailFilter { status: Some(Status::Bounced), since: Some(Timestamp::NEVER), ..none() },
        ),
    ];
    for (index, filter) in cases {
        let plan = plan_of(&mut connection, &Query::of(company, &filter, None)).await;
        assert!(plan.contains(index), "{filter:?}: {plan}");
        // Who knows an email by its message looks its company up in that index, by the id.
        let may_walk = index == "outbox_by_company" || index == "provider_messages_by_id";
        let walks = !may_walk && plan.contains("outbox_by_company");
        assert!(!walks && !plan.contains("Seq Scan on email_outbox"), "{filter:?}: {plan}");
        // Few rows, out of two indexes or one without the order.
        let may_sort = index.starts_with("outbox_by_recipient")
            || ["provider_messages_by_id", "queue_in_flight"].contains(&index);
        assert!(!plan.contains("Sort") || may_sort, "{filter:?}: {plan}");
    }
}

/// One page of dead letters, and the oldest of the queue, as the operator sees them.
#[tokio::test]
async fn other_questions_use_their_indexes() {
    let (fixture, company) = furnished().await;
    let mut connection =
        crate::lane::connect(&fixture.database.config().session()).await.expect("a connection");
    let cases = [
        ("outbox_dead", "SELECT count(*) FROM email_outbox WHERE dead_at IS NOT NULL".to_owned()),
        (
            "outbox_dead",
            format!("SELECT id FROM email_outbox WHERE company_id = '{company}' AND dead_at IS NOT NULL ORDER BY id"),
        ),
        (
            "outbox_dead_since",
            "SELECT id FROM email_outbox WHERE dead_at <= now() ORDER BY dead_at LIMIT 10".to_owned(),
        ),
        (
            "outbox_intake",
            "SELECT id FROM email_outbox WHERE due_after_intake IS NOT NULL ORDER BY id LIMIT 10".to_owned(),
        ),
        (
            "queue_expiring",
            "SELECT email_id FROM email_queue WHERE due_at >= 0 AND expires_at <= 0 ORDER BY expires_at LIMIT 9"
                .to_owned(),
        ),
        (
            "queue_in_flight",
            "SELECT email_id FROM email_queue WHERE due_at IS NULL AND lease_until < 99 LIMIT 9".to_owned(),
        ),
    ];
    for (index, sql) in cases {
        let rows = sqlx::query(AssertSqlSafe(format!("EXPLAIN {sql}"))).fetch_all(&mut connection).await;
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
        let plan = rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n");
        assert!(plan.contains(index), "{sql}: {plan}");
    }
}
