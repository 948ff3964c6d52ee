//! What the laws of reports, failures and tallies cannot see: several processes at once, and what is left in the tables.

mod support;

use std::collections::BTreeSet;

use model::{Bounce, CompanyId, EmailId, Event, EventKind, NewEmail, Report, ReportKind, Status};
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use store::contract::feedback::{report, reported};
use store::contract::stage::{
    a_company, attempted, begun, claim, claim_one, fail, race, read, sent, settle, settlement, start, stored,
};
use store::tallies::TALLIED;
use store::{
    Alerts as _, Begun, Feedback as _, Outbox as _, Pruned, Recipients as _, Reported, Retention, Settled,
    Settlement, Suppressions as _, Tallies as _, Templates as _, Upkeep as _,
};
use store_mysql::MysqlStore;
use support::{fresh, run};
use testkit::{START, an_address, an_email, an_entity, at_secs};

async fn number(connection: &mut MySqlConnection, sql: &str) -> i64 {
    let row = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_one(connection).await;
    row.unwrap_or_else(|error| panic!("{sql}: {error}")).get(0)
}

fn to(company: CompanyId, address: &str) -> NewEmail {
    let mut email = an_email(company);
    email.envelope.to = an_address(address);
    email
}

fn about(company: CompanyId, entity: &str, address: &str) -> NewEmail {
    NewEmail { entity: Some(an_entity(entity)), ..to(company, address) }
}

/// What is counted of the events of a settlement is what the program's list says, each as often as it happened.
#[tokio::test]
async fn what_is_tallied_is_noted() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    stored(&*store, an_email(company)).await;
    let claim = claim_one(&*store, START).await;
    let guard = begun(&*store, claim.guard, START).await;
    let twice = EventKind::ALL.iter().chain(EventKind::ALL).map(|kind| Event::new(*kind, START)).collect();
    let settlement = Settlement { events: twice, ..settlement(guard, sent(), START) };
    store.settle(settlement).await.expect("settled");
    let notes = "SELECT COUNT(*) FROM tally_notes";
    assert_eq!(number(&mut store.database.connect().await, notes).await, 12, "a note for each kind");
    while store.fold(5).await.expect("folded") == 5 {}
    let days = store.company_days(Some(company), None, 0).await.expect("read");
    assert!(days.iter().all(|tally| tally.total == 2), "{days:?}");
    let names = |kinds: &mut dyn Iterator<Item = EventKind>| -> BTreeSet<&'static str> {
        kinds.map(EventKind::as_str).collect()
    };
    assert_eq!(names(&mut days.iter().map(|tally| tally.kind)), names(&mut TALLIED.into_iter()));
}

/// Two processes add up at once while events are written: everything is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_are_added_up_once() {
    let store = fresh().await;
    let other = store.database.open().await;
    let company = a_company(&*store, "acme").await;
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(stored(&*store, about(company, "club-9", &format!("r{number}@example.com"))).await);
    }
    let folded: u32 = race(8, |task| {
        let (process, ids) = (if task % 4 < 2 { &store.store } else { &other }, &ids);
        async move {
            let mut folded = 0;
            for round in 0..10 {
                if task % 2 == 0 {
                    let told = report(&format!("{task}-{round}"), ReportKind::Opened, ids[round % 3]);
                    reported(process, told, at_secs(6)).await;
                } else {
                    folded += process.fold(2).await.expect("folded");
                }
            }
            folded
        }
    })
    .into_iter()
    .sum();
    let rest = store.fold(1_000).await.expect("folded");
    assert_eq!(folded + rest, 40, "a note for each report");
    assert_eq!(store.fold(1_000).await, Ok(0));
    let tally = store.entity_tally(company, "club-9", 0).await.expect("read");
    assert_eq!((tally[0].kind, tally[0].total, tally[0].unique_recipients), (EventKind::Opened, 40, 3));
}

/// Who adds up leaves alone what another is about to write, and does not wait for it.
#[tokio::test]
async fn folding_waits_for_nobody() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    stored(&*store, an_email(company)).await;
    attempted(&*store, sent(), START).await;
    let mut writing = store.database.connect().await;
    run(&mut writing, "BEGIN").await;
    let note = "INSERT INTO tally_notes (company_id, mode, day, type, total) SELECT id, 'live', 2, 'SENT', 1 FROM companies";
    run(&mut writing, note).await;
    assert_eq!(store.fold(100).await, Ok(1));
    run(&mut writing, "COMMIT").await;
    assert_eq!(store.fold(100).await, Ok(1));
}

/// Whoever is forgotten is in no note, and stays one person among the counts.
#[tokio::test]
async fn notes_forget_a_person() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    stored(&*store, about(company, "club-9", "Ana@example.com")).await;
    attempted(&*store, sent(), START).await;
    store.fold(100).await.expect("folded");
    for (entity, address) in
        [("club-9", "ana@example.com"), ("club-9", "bob@example.com"), ("club-8", "ana@example.com")]
    {
        stored(&*store, about(company, entity, address)).await;
        attempted(&*store, sent(), START).await;
    }
    store.erase(company, &an_address("ANA@example.com"), None, at_secs(9), 10).await.expect("erased");
    let mut connection = store.database.connect().await;
    for table in ["tally_notes", "entity_recipients"] {
        let sql = format!("SELECT COUNT(*) FROM {table} WHERE address = 'ana@example.com'");
        assert_eq!(number(&mut connection, &sql).await, 0, "{table}");
    }
    let sql = "SELECT COUNT(DISTINCT address) FROM entity_recipients WHERE address LIKE 'erased:%'";
    assert_eq!(number(&mut connection, sql).await, 2, "nothing tells that both were one person");
    store.fold(100).await.expect("folded");
    let tally = store.entity_tally(company, "club-9", 0).await.expect("read");
    assert_eq!((tally[0].total, tally[0].unique_recipients), (3, 2));
}

/// Three failures at once, told to two processes, are three: the third is somebody's third.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_at_once_are_all_counted() {
    let store = fresh().await;
    let other = store.database.open().await;
    let company = a_company(&*store, "acme").await;
    for round in 0..10 {
        let address = format!("r{round}@example.com");
        let mut ids: Vec<EmailId> = Vec::new();
        for _ in 0..3 {
            ids.push(stored(&*store, to(company, &address)).await);
            attempted(&*store, sent(), START).await;
        }
        race(3, |task| {
            let process = if task == 0 { &store.store } else { &other };
            let told = report(&format!("{round}-{task}"), ReportKind::Failed, ids[task]);
            async move { reported(process, told, at_secs(6)).await }
        });
        let problems = store.problems(company, None, 100).await.expect("read").items;
        assert_eq!(
            (problems.len(), problems[0].address.expose(), problems[0].failures),
            (round + 1, &*address, 3)
        );
    }
}

/// Successes and failures that are settled together: each failure counts, and so does each status.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_settled_together_count_one_by_one() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    for number in 0..16 {
        stored(&*store, to(company, if number % 2 == 0 { "ana@example.com" } else { "bob@example.com" }))
            .await;
    }
    let mut guards = Vec::new();
    for claim in claim(&*store, START, 16).await {
        let fails = claim.envelope.to.expose() == "ana@example.com";
        guards.push((begun(&*store, claim.guard, START).await, fails));
    }
    let answers = race(16, |task| {
        let (guard, fails) = guards[task];
        let verdict = if fails { fail("SMTP_REJECTED_550") } else { sent() };
        store.settle(settlement(guard, verdict, at_secs(1)))
    });
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Settled::Done(_)))), "{answers:?}");
    let problems = store.problems(company, None, 10).await.expect("read").items;
    assert_eq!(problems.iter().map(|found| found.failures).collect::<Vec<_>>(), [8]);
    let alerts = store.pending_alerts(10).await.expect("read");
    assert_eq!(alerts.iter().map(|alert| alert.repeats).collect::<Vec<_>>(), [5]);
    let mut counts = store.stats(START).await.expect("stats").by_status;
    counts.retain(|_, count| *count > 0);
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(Status::Sent, 8), (Status::Failed, 8)]);
}

const REPORTED: [ReportKind; 4] =
    [ReportKind::Delivered, ReportKind::Bounced(Bounce::Hard), ReportKind::Failed, ReportKind::Complained];

async fn work(process: &MysqlStore, round: usize) {
    for claim in claim(process, at_secs(1), 2).await {
        if let Ok(Begun::Yes(guard)) = process.begin(start(claim.guard, at_secs(1))).await {
            let verdict = if round.is_multiple_of(2) { sent() } else { fail("X_1") };
            settle(process, guard, verdict, at_secs(2)).await;
        }
    }
}

/// Workers, people and reports of two processes change the same emails: no report is lost, and the queue and the counts
/// fit what the emails say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_beside_workers_leave_everything_in_order() {
    let store = fresh().await;
    let other = store.database.open().await;
    let company = a_company(&*store, "acme").await;
    let mut ids: Vec<EmailId> = Vec::new();
    for number in 0..40 {
        ids.push(stored(&*store, to(company, &format!("r{}@example.com", number % 3))).await);
    }
    race(8, |task| {
        let (process, ids) = (if task % 2 == 0 { &store.store } else { &other }, &ids);
        async move {
            for (round, &id) in ids.iter().enumerate() {
                match task {
                    0 | 1 => work(process, round).await,
                    2 if round % 10 == 0 => {
                        process.cancel(company, id, at_secs(2)).await.expect("answered");
                    }
                    2 | 3 => {
                        process.retry_now(company, id, at_secs(2)).await.expect("answered");
                    }
                    _ => {
                        let kind = REPORTED[(round + task) % REPORTED.len()];
                        let told = report(&format!("{id}-{task}"), kind, id);
                        let answer = reported(process, told, at_secs(6)).await;
                        assert!(
                            matches!(answer, Reported::Applied { email, .. } if email == id),
                            "{answer:?}"
                        );
                    }
                }
            }
        }
    });
    let mut connection = store.database.connect().await;
    let told = "SELECT COUNT(*) FROM events WHERE metadata LIKE '%reportId%'";
    assert_eq!(number(&mut connection, told).await, 160, "every report is an event");
    let stray = "SELECT (SELECT COUNT(*) FROM email_outbox o LEFT JOIN email_queue q ON q.email_id = o.id
                         WHERE (o.status IN ('ENQUEUED', 'RETRY_SCHEDULED', 'PROCESSING')) <> (q.email_id IS NOT NULL))
                      + (SELECT COUNT(*) FROM email_queue q LEFT JOIN email_outbox o ON o.id = q.email_id WHERE o.id IS NULL)";
    assert_eq!(number(&mut connection, stray).await, 0, "the queue holds what waits or is in flight");
    let wrong = "SELECT COUNT(*) FROM (SELECT status, SUM(emails) AS kept FROM status_counts GROUP BY status) AS counted
                 WHERE kept <> (SELECT COUNT(*) FROM email_outbox o
                                WHERE IF(counted.status = 'DEAD_LETTER', o.dead_at IS NOT NULL, o.status = counted.status))";
    assert_eq!(number(&mut connection, wrong).await, 0, "the counts are right");
}

/// An id without end is kept all the same, and found by all of it.
#[tokio::test]
async fn a_message_id_without_end_does_no_harm() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let endless = (0..4_000_u32)
        .map(|n| char::from(b'!' + u8::try_from(n * n % 89).expect("small")))
        .collect::<String>();
    let id = stored(&*store, an_email(company)).await;
    let verdict = model::Verdict::Sent {
        provider: "relay".into(),
        provider_kind: "smtp",
        message_id: Some(endless.clone()),
        duration_ms: 1,
        refused: Vec::new(),
    };
    attempted(&*store, verdict, START).await;
    assert_eq!(read(&*store, company, id).await.status, Status::Sent);
    let told = |name: &str, message_id: String| Report {
        provider_message_id: Some(message_id),
        email: None,
        ..report(name, ReportKind::Delivered, id)
    };
    let similar = format!("{}!", &endless[..3_999]);
    for (number, name) in
        [similar, endless.to_ascii_lowercase(), format!("{endless} ")].into_iter().enumerate()
    {
        let answer = reported(&*store, told(&number.to_string(), name), at_secs(6)).await;
        assert_eq!(answer, Reported::Unmatched, "{number}");
    }
    assert_eq!(store.rematch(at_secs(7), 10).await, Ok(0));
    let answer = reported(&*store, told("r1", endless.clone()), at_secs(6)).await;
    assert!(matches!(answer, Reported::Applied { moved: true, .. }), "{answer:?}");
}

/// Nothing about an email stays when it goes, and failures go when they count no more.
#[tokio::test]
async fn retention_leaves_nothing_behind() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let mut email = to(company, "ana@example.com");
    email.envelope.cc = vec![an_address("bob@example.com")];
    let id = stored(&*store, email).await;
    attempted(&*store, sent(), START).await;
    let bounced = Report {
        recipients: ["ana@example.com", "bob@example.com"].map(an_address).to_vec(),
        provider_message_id: Some("relay-2".into()),
        ..report("r1", ReportKind::Bounced(Bounce::Hard), id)
    };
    reported(&*store, bounced, at_secs(6)).await;
    let lost = Report { email: None, ..report("r2", ReportKind::Delivered, id) };
    assert_eq!(reported(&*store, lost, at_secs(6)).await, Reported::Unmatched);
    let mut connection = store.database.connect().await;
    let tables =
        ["reports", "recipient_states", "provider_messages", "address_failures", "alerts", "email_outbox"];
    for table in tables {
        assert_ne!(number(&mut connection, &format!("SELECT COUNT(*) FROM {table}")).await, 0, "{table}");
    }
    let day = std::time::Duration::from_secs(24 * 3600);
    let retention = Retention { content: day, emails: 30 * day, dead_letters: 7 * day };
    let later = START.plus(31 * day);
    while store.prune(&retention, later, 10).await.expect("pruned") != Pruned::default() {}
    for table in tables {
        assert_eq!(number(&mut connection, &format!("SELECT COUNT(*) FROM {table}")).await, 0, "{table}");
    }
    assert_eq!(number(&mut connection, "SELECT COUNT(*) FROM suppressions").await, 2);
}

/// Names of templates that differ in case or by a space at the end are different, as on other stores.
#[tokio::test]
async fn names_that_differ_are_told_apart() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let names = ["welcome", "Welcome", "welcome ", "w\u{e9}lcome", "we\u{301}lcome"];
    for name in names {
        assert_eq!(store.put_template(company, name, name, START).await, Ok(1), "{name:?}");
    }
    for name in names {
        let found = store.template(company, name, None).await.expect("read").expect("it is there");
        assert_eq!(found.source, name);
    }
    assert_eq!(store.templates(company).await.expect("read").len(), names.len());
}

/// Lists that two processes write at once hold each address once, and nobody is told it was new in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_listed_at_once_are_listed_once() {
    let store = fresh().await;
    let other = store.database.open().await;
    let company = a_company(&*store, "acme").await;
    let new = race(4, |task| {
        let process = if task % 2 == 0 { &store.store } else { &other };
        let mut numbers: Vec<usize> = (0..300).collect();
        numbers.rotate_left(task * 70);
        let listed = numbers.into_iter().map(|number| model::Suppression {
            address: an_address(&format!("r{number}@example.com")),
            reason: format!("task {task}"),
            source: model::SuppressionSource::Operator,
            email: None,
            created_at: START,
        });
        process.suppress(company, listed.collect())
    });
    let new: u32 = new.into_iter().map(|answer| answer.expect("listed")).sum();
    assert_eq!(new, 300);
    let sql = "SELECT COUNT(*) FROM suppressions";
    assert_eq!(number(&mut store.database.connect().await, sql).await, 300);
}

/// A user with the rights to a database alone, where everything is logged, can make the schema: it has no trigger and no
/// function.
#[tokio::test]
async fn the_schema_needs_no_rights_beyond_its_database() {
    let store = fresh().await;
    let mut connection = store.database.connect().await;
    for table in ["triggers WHERE trigger_schema", "routines WHERE routine_schema"] {
        let sql = format!("SELECT COUNT(*) FROM information_schema.{table} = DATABASE()");
        assert_eq!(number(&mut connection, &sql).await, 0, "{table}");
    }
}
