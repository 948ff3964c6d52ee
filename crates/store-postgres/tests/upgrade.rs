//! What is there when the program is replaced by a newer one goes on: every migration runs over emails of each status,
//! also when whoever migrates is killed on the way.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use model::{CompanyId, Email, EmailId, Event, Report, ReportKind, Status, Verdict};
use sqlx::{PgConnection, Row as _};
use store::contract::dead_letters::replay;
use store::contract::feedback::{report, reported};
use store::contract::stage::{
    HOUR, LEASE, REACHABLE, a_company, claimed_ids, events, in_status, lost_leases, read, swept,
};
use store::{DeadLetterFilter, Outbox as _, Reported, Settled, StoreError, Tallies as _, Upkeep as _};
use store_postgres::PostgresStore;
use support::{Database, run};
use testkit::START;

const MIGRATIONS: [&str; 13] = [
    include_str!("../migrations/0001_init.sql"),
    include_str!("../migrations/0002_routes.sql"),
    include_str!("../migrations/0003_feedback.sql"),
    include_str!("../migrations/0004_search.sql"),
    include_str!("../migrations/0005_history.sql"),
    include_str!("../migrations/0006_dead_letters.sql"),
    include_str!("../migrations/0007_statistics.sql"),
    include_str!("../migrations/0008_narrower.sql"),
    include_str!("../migrations/0009_series.sql"),
    include_str!("../migrations/0010_packing.sql"),
    include_str!("../migrations/0011_lookups.sql"),
    include_str!("../migrations/0012_order.sql"),
    include_str!("../migrations/0013_people.sql"),
];

/// Takes away what the later migrations brought, the last first.
const FIRST_ALONE: &str = "
    DROP INDEX recipients_by_email;
    CREATE INDEX recipients_by_email ON recipients (company_id, lower(email));
    ALTER TABLE email_outbox DROP COLUMN series;
    CREATE INDEX email_tags_by_email ON email_tags (email_id);
    ALTER TABLE email_outbox SET (fillfactor = 60);
    DO $$
    DECLARE
        sampled record;
    BEGIN
        FOR sampled IN SELECT attrelid::regclass AS name, attname FROM pg_attribute
            JOIN pg_class ON pg_class.oid = attrelid
            WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
        LOOP
            EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS -1', sampled.name, sampled.attname);
        END LOOP;
    END
    $$;
    DROP TRIGGER dead_letter_came_or_went ON email_outbox;
    DROP TRIGGER dead_letter_deleted ON email_outbox;
    DROP FUNCTION count_dead_letter;
    DROP TABLE dead_letter_counts;
    DROP INDEX events_in_order;
    DROP INDEX outbox_by_request;
    DROP TRIGGER note_tally ON events;
    DROP FUNCTION note_tally;
    DROP TABLE provider_messages, reports, recipient_states, suppressions, address_failures, problems, alerts, templates,
        template_names, day_tallies, entity_tallies, entity_recipients, tally_notes;
    ALTER TABLE companies DROP COLUMN paused_at, DROP COLUMN pause_reason, DROP COLUMN resumed_at;
    DROP INDEX recipients_by_company;
    DROP TABLE provider_notes;
    DROP INDEX queue_waiting;
    ALTER TABLE email_queue DROP COLUMN route;
    ALTER TABLE email_outbox DROP COLUMN route;
    CREATE INDEX queue_waiting ON email_queue (company_id, priority, due_at, email_id) WHERE due_at IS NOT NULL;
    DELETE FROM posthaste_schema WHERE version > 1";

/// Everything a migration can make, a line each.
const SCHEMA: &str = "
    SELECT concat_ws(' ', 'column', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull,
                     attcollation::regcollation, attstattarget, attstorage) AS line
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v') AND attnum > 0 AND NOT attisdropped
    UNION ALL SELECT concat_ws(' ', 'relation', relname, relkind, relrowsecurity,
                               ARRAY(SELECT unnest(reloptions) ORDER BY 1))
    FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')
    UNION ALL SELECT concat_ws(' ', 'index', indexdef) FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT concat_ws(' ', 'trigger', pg_get_triggerdef(oid)) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT concat_ws(' ', 'function', pg_get_functiondef(oid))
    FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT concat_ws(' ', 'policy', tablename, policyname, cmd, qual)
    FROM pg_policies WHERE schemaname = 'public'
    ORDER BY line";

async fn schema(connection: &mut PgConnection) -> Vec<String> {
    let rows = sqlx::query(SCHEMA).fetch_all(connection).await.expect("asked");
    rows.iter().map(|row| row.get("line")).collect()
}

async fn versions(connection: &mut PgConnection) -> Vec<i32> {
    let rows =
        sqlx::query("SELECT version FROM posthaste_schema ORDER BY version").fetch_all(connection).await;
    rows.expect("the table is there").iter().map(|row| row.get(0)).collect()
}

fn up_to(version: usize) -> Vec<i32> {
    (1..=i32::try_from(version).expect("few")).collect()
}

/// The migrations after `from`, up to and with `to`, as a program did them that knew no more.
async fn migrate(connection: &mut PgConnection, from: usize, to: usize) {
    for (number, migration) in MIGRATIONS.iter().enumerate().take(to).skip(from) {
        run(connection, migration).await;
        run(connection, &format!("INSERT INTO posthaste_schema (version) VALUES ({})", number + 1)).await;
    }
}

/// An email of each status, and what was known of it.
struct Rows {
    company: CompanyId,
    emails: BTreeMap<EmailId, (Email, Vec<Event>)>,
}

impl Rows {
    async fn write(store: &PostgresStore) -> Self {
        let company = a_company(store, "acme").await;
        let mut emails = BTreeMap::new();
        for status in REACHABLE {
            let id = in_status(store, company, status, START).await;
            // What was accepted before there were routes has none.
            let email = Email { route: String::new(), ..read(store, company, id).await };
            emails.insert(id, (email, events(store, company, id).await));
        }
        Self { company, emails }
    }

    fn with(&self, status: Status) -> EmailId {
        let found = self.emails.iter().find(|(_, (email, _))| email.status == status);
        *found.expect("there is one of each status").0
    }

    /// Nothing is lost, and everything that is there can go on.
    async fn assert_go_on(&self, store: &PostgresStore) {
        for (id, (email, history)) in &self.emails {
            assert_eq!(read(store, self.company, *id).await, *email);
            assert_eq!(events(store, self.company, *id).await, *history);
        }
        let stats = store.stats(START).await.expect("stats");
        assert_eq!(stats.by_status, REACHABLE.into_iter().map(|status| (status, 1)).collect());
        assert_eq!(stats.dead_letters, 1);

        let sent = self.with(Status::Sent);
        let told = Report {
            email: None,
            provider_message_id: Some("relay-1".into()),
            ..report("r1", ReportKind::Delivered, sent)
        };
        let applied = reported(store, told, START).await;
        assert!(matches!(applied, Reported::Applied { email, .. } if email == sent), "{applied:?}");
        store.fold(100).await.expect("added up");
        let days = store.company_days(Some(self.company), None, 0).await.expect("asked");
        assert_eq!(days.iter().map(|day| day.total).sum::<u64>(), 1, "what came after is counted");

        let late = START.plus(LEASE).plus(Duration::from_secs(1));
        let lost = lost_leases(store, late).await;
        assert_eq!(
            lost.iter().map(|lost| lost.guard.id).collect::<Vec<_>>(),
            [self.with(Status::Processing)]
        );
        let requeue = swept(&lost[0], Verdict::Requeue { due_at: late }, late);
        assert_eq!(store.settle(requeue).await, Ok(Settled::Done(Status::Enqueued)));
        assert_eq!(replay(store, self.company, &DeadLetterFilter::default(), late).await, 1);
        assert_eq!(store.stats(late).await.expect("stats").dead_letters, 0);
        let mut waiting = [Status::Enqueued, Status::RetryScheduled, Status::Processing, Status::Failed]
            .map(|status| self.with(status));
        waiting.sort_unstable();
        let mut claimed = claimed_ids(store, START.plus(HOUR), 10).await;
        claimed.sort_unstable();
        assert_eq!(claimed, waiting);
    }
}

/// Whoever brings the schema up to date is killed within a migration: it waits for a table or an index that somebody else
/// holds.
async fn kill_on_the_way(database: &Database) {
    let mut other = database.connect().await;
    run(&mut other, "BEGIN").await;
    let tables = "email_outbox, companies, events, contents, recipients";
    run(&mut other, &format!("LOCK TABLE {tables} IN SHARE UPDATE EXCLUSIVE MODE")).await;
    // Who reads a table holds its indexes.
    run(&mut other, "SELECT FROM events").await;
    let config = database.config();
    let opening = tokio::spawn(async move { PostgresStore::open(&config).await });
    let mut admin = database.admin().await;
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = $1 AND wait_event_type = 'Lock' AND wait_event = 'relation'";
    while sqlx::query(kill).bind(&database.name).fetch_optional(&mut admin).await.expect("asked").is_none() {
        assert!(!opening.is_finished(), "it waits for nothing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let Err(error) = opening.await.expect("no panic") else { panic!("it was killed") };
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    run(&mut other, "COMMIT").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emails_of_every_earlier_schema_go_on() {
    let (first, newest) = (Database::new().await, Database::new().await);
    newest.open().await.close().await;
    let newest = schema(&mut newest.connect().await).await;
    let mut connection = first.connect().await;
    run(
        &mut connection,
        "CREATE TABLE posthaste_schema (version integer PRIMARY KEY,
                              applied_at timestamptz NOT NULL DEFAULT now())",
    )
    .await;
    migrate(&mut connection, 0, 1).await;
    let first = schema(&mut connection).await;
    for version in 1..MIGRATIONS.len() {
        let database = Database::new().await;
        let store = database.open().await;
        let rows = Rows::write(&store).await;
        store.close().await;
        let mut connection = database.connect().await;
        run(&mut connection, FIRST_ALONE).await;
        assert_eq!(schema(&mut connection).await, first, "this is the first schema");
        migrate(&mut connection, 1, version).await;
        kill_on_the_way(&database).await;
        assert_eq!(versions(&mut connection).await, up_to(version), "the next one was undone");
        let store = database.open().await;
        assert_eq!(versions(&mut connection).await, up_to(MIGRATIONS.len()));
        assert_eq!(schema(&mut connection).await, newest, "from version {version}");
        rows.assert_go_on(&store).await;
    }
}
