//! A reporting role sees the companies it is named for, and nothing else, whatever it tries.

mod support;

use model::{Bounce, CompanyId, NewEmail, Recipient, Report, ReportKind};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use store::contract::feedback::{report, reported};
use store::contract::stage::{a_company, attempted, fail, sent, stored};
use store::{Companies, Tallies, Upkeep};
use store_postgres::{PostgresConfig, PostgresStore};
use support::{Database, Fixture, fresh, run};
use testkit::{START, a_key, a_recipient, an_address, an_email, an_entity, at_secs};

/// A role of its own for a test, dropped with it as far as that goes.
struct Reporter {
    name: String,
    connection: PgConnection,
}

const GRANTED: [&str; 8] = [
    "email_outbox",
    "email_queue",
    "email_tags",
    "events",
    "recipients",
    "companies",
    "email_logs",
    "email_events",
];

async fn reporter(database: &Database) -> Reporter {
    let name = format!("reporter_{}", uuid::Uuid::new_v4().simple());
    let mut owner = database.connect().await;
    run(&mut owner, &format!("CREATE ROLE {name} LOGIN")).await;
    run(&mut owner, &format!("GRANT SELECT ON {} TO {name}", GRANTED.join(", "))).await;
    let connection = PgConnection::connect(&database.url_of_role(&name)).await.expect("it is let in");
    Reporter { name, connection }
}

impl Reporter {
    async fn count(&mut self, of: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM {of}");
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut self.connection).await;
        row.unwrap_or_else(|error| panic!("{of}: {error}")).get(0)
    }

    async fn refused(&mut self, sql: &str) {
        match sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut self.connection).await {
            Err(sqlx::Error::Database(error)) => {
                assert_eq!(error.code().as_deref(), Some("42501"), "{sql}: {error}");
            }
            other => panic!("{sql}: {other:?}"),
        }
    }

    /// Cleans up behind itself; a role belongs to the whole server.
    async fn drop(self, database: &Database) {
        self.connection.close().await.expect("closed");
        let mut owner = database.connect().await;
        run(&mut owner, &format!("DROP OWNED BY {}", self.name)).await;
        run(&mut owner, &format!("DROP ROLE {}", self.name)).await;
    }
}

/// Two companies with an email that failed, a recipient, a tag and a key each.
async fn two_companies(store: &Fixture) -> [CompanyId; 2] {
    let companies = [a_company(&**store, "acme").await, a_company(&**store, "other").await];
    for (company, byte) in companies.into_iter().zip([1, 2]) {
        let mut email = an_email(company);
        email.envelope.tags = vec!["welcome".into()];
        email.recipient = Some(Recipient { ..a_recipient("customer-7") });
        stored(&**store, email).await;
        attempted(&**store, fail("SMTP_REJECTED_550"), START).await;
        stored(&**store, an_email(company)).await;
        // Waits far ahead, so that the next company's attempt does not meet it.
        let queue = "UPDATE email_queue SET due_at = due_at + 86400000 WHERE due_at < 253402300799000";
        run(&mut store.database.connect().await, queue).await;
        store.add_key(a_key(company, byte)).await.expect("a key");
    }
    companies
}

async fn name_for(database: &Database, role: &str, company: CompanyId) {
    let sql = format!("INSERT INTO reporting_roles (role_name, company_id) VALUES ('{role}', '{company}')");
    run(&mut database.connect().await, &sql).await;
}

#[tokio::test]
async fn a_role_sees_its_own_company_alone() {
    let store = fresh().await;
    let [acme, other] = two_companies(&store).await;
    let mut role = reporter(&store.database).await;
    for table in GRANTED {
        assert_eq!(role.count(table).await, 0, "{table}, before it is named for anybody");
    }
    name_for(&store.database, &role.name, acme).await;
    let expected = [2, 1, 1, 6, 1, 1, 2, 6];
    for (table, expected) in GRANTED.into_iter().zip(expected) {
        assert_eq!(role.count(table).await, expected, "{table}");
    }
    for condition in [
        format!("email_outbox WHERE company_id <> '{acme}'"),
        format!("email_logs WHERE company_id = '{other}'"),
        format!("email_events JOIN email_outbox o ON o.id = email_log_id WHERE company_id = '{other}'"),
        format!("companies WHERE id = '{other}'"),
    ] {
        assert_eq!(role.count(&condition).await, 0, "{condition}");
    }
    let sql = "SELECT status, error_code FROM email_logs WHERE status = 'FAILED'";
    let row = sqlx::query(sql).fetch_one(&mut role.connection).await.expect("a line of the log");
    assert_eq!(row.get::<&str, _>("error_code"), "SMTP_REJECTED_550");
    role.drop(&store.database).await;
}

#[tokio::test]
async fn a_role_cannot_help_itself() {
    let store = fresh().await;
    let [acme, other] = two_companies(&store).await;
    let mut role = reporter(&store.database).await;
    name_for(&store.database, &role.name, acme).await;
    for sql in [
        "SELECT * FROM contents".to_owned(),
        "SELECT * FROM api_keys".to_owned(),
        "SELECT * FROM idempotency_keys".to_owned(),
        "SELECT * FROM meta".to_owned(),
        "UPDATE email_outbox SET status = 'SENT'".to_owned(),
        "DELETE FROM events".to_owned(),
        "INSERT INTO companies (id, name, settings, weight, created_at) SELECT id, 'x', '', 1, now() FROM companies"
            .to_owned(),
        "UPDATE email_logs SET status = 'SENT'".to_owned(),
        format!("INSERT INTO reporting_roles VALUES ('{}', '{other}')", role.name),
        format!("UPDATE reporting_roles SET company_id = '{other}'"),
        "DELETE FROM reporting_roles".to_owned(),
        "ALTER TABLE email_outbox DISABLE ROW LEVEL SECURITY".to_owned(),
        "DROP POLICY own_companies ON email_outbox".to_owned(),
    ] {
        role.refused(&sql).await;
    }
    assert_eq!(role.count("reporting_roles").await, 1, "it sees the line about itself");
    for setting in [
        "SET row_security = off".to_owned(),
        format!("SET posthaste.company_id = '{other}'"),
        "SET search_path = pg_catalog, public".to_owned(),
        "SET session_replication_role = replica".to_owned(),
        "SET ROLE postgres".to_owned(),
        "SET SESSION AUTHORIZATION DEFAULT".to_owned(),
        "RESET ALL".to_owned(),
    ] {
        // Some are refused; none may open anything.
        let _ = sqlx::query(AssertSqlSafe(setting.clone())).execute(&mut role.connection).await;
        let sql = format!("SELECT count(*) FROM email_outbox WHERE company_id = '{other}'");
        if let Ok(row) = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut role.connection).await {
            assert_eq!(row.get::<i64, _>(0), 0, "{setting}");
        }
    }
    role.drop(&store.database).await;
}

/// What follows from reports is the company's own; the reports themselves are nobody's.
#[tokio::test]
async fn a_role_sees_what_became_of_its_own_emails() {
    let store = fresh().await;
    let companies = [a_company(&*store, "acme").await, a_company(&*store, "other").await];
    for company in companies {
        let mut email = NewEmail { entity: Some(an_entity("club-9")), ..an_email(company) };
        email.envelope.cc = vec![an_address("bob@example.com")];
        let id = stored(&*store, email).await;
        attempted(&*store, sent(), START).await;
        for number in 0..3 {
            let recipients = vec![an_address("ana@example.com"), an_address("bob@example.com")];
            let told = report(&format!("{id}-{number}"), ReportKind::Bounced(Bounce::Hard), id);
            reported(&*store, Report { recipients, ..told }, at_secs(6 + number)).await;
        }
    }
    while store.fold(100).await.expect("folded") == 100 {}
    let mut role = reporter(&store.database).await;
    name_for(&store.database, &role.name, companies[0]).await;
    let mut owner = store.database.connect().await;
    let shown = [
        ("suppressions", 2),
        ("problems", 2),
        ("alerts", 3),
        ("day_tallies", 2),
        ("entity_tallies", 2),
        ("entity_recipients", 2),
        ("recipient_states", 2),
    ];
    let hidden =
        ["reports", "tally_notes", "address_failures", "provider_messages", "templates", "template_names"];
    let all: Vec<&str> = shown.iter().map(|(table, _)| *table).chain(hidden).collect();
    run(&mut owner, &format!("GRANT ALL ON {} TO {}", all.join(", "), role.name)).await;
    for (table, expected) in shown {
        assert_eq!(role.count(table).await, expected, "{table}");
    }
    for table in hidden {
        assert_eq!(role.count(table).await, 0, "{table}");
    }
    let sql = "INSERT INTO suppressions (company_id, address, reason, source, created_at)
               SELECT id, 'x@example.com', '', 'company', now() FROM companies";
    role.refused(sql).await;
    role.drop(&store.database).await;
}

/// Even if somebody grants what is not to be granted, nothing shows.
#[tokio::test]
async fn a_grant_by_mistake_shows_nothing() {
    let store = fresh().await;
    let [acme, _] = two_companies(&store).await;
    let mut role = reporter(&store.database).await;
    name_for(&store.database, &role.name, acme).await;
    let mut owner = store.database.connect().await;
    let tables = [
        "contents",
        "api_keys",
        "idempotency_keys",
        "meta",
        "status_counts",
        "dead_letter_counts",
        "company_days",
    ];
    run(&mut owner, &format!("GRANT ALL ON {} TO {}", tables.join(", "), role.name)).await;
    for table in tables {
        assert_eq!(role.count(table).await, 0, "{table}");
    }
    role.refused("INSERT INTO meta (name, value) VALUES ('environment', 'theirs')").await;
    role.drop(&store.database).await;
}

/// The program itself, connected as such a role, is told so.
#[tokio::test]
async fn the_program_is_warned_when_rows_are_hidden_from_it() {
    let store = fresh().await;
    assert_eq!(store.weaknesses().await.expect("asked"), [], "the owner sees everything");
    let role = reporter(&store.database).await;
    let mut owner = store.database.connect().await;
    run(&mut owner, &format!("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}", role.name)).await;
    let config = PostgresConfig::parse(&store.database.url_of_role(&role.name)).expect("a good URL");
    let restricted = PostgresStore::open(&config).await.expect("it opens");
    let found = restricted.weaknesses().await.expect("asked");
    assert!(found.iter().any(|weakness| weakness.setting == "row_security"), "{found:?}");
    restricted.close().await;
    role.drop(&store.database).await;
}
