//! What the laws of reports, failures and tallies cannot see: several processes at once, and what is left in the tables.

mod support;

use std::collections::BTreeSet;

use model::{Bounce, CompanyId, EmailId, EventKind, NewEmail, Report, ReportKind, Status};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use store::contract::feedback::{arrival, report, reported};
use store::contract::stage::{
    a_company, attempted, begun, claim, fail, race, read, sent, settle, settlement, stored,
};
use store::tallies::TALLIED;
use store::{
    Alerts as _, Feedback as _, Outbox as _, Pruned, Recipients as _, Reported, Retention, Settled,
    Tallies as _, Upkeep as _,
};
use support::{fresh, run};
use testkit::{START, an_address, an_email, an_entity, at_secs};

async fn number(connection: &mut PgConnection, sql: &str) -> i64 {
    let row = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_one(connection).await;
    row.unwrap_or_else(|error| panic!("{sql}: {error}")).get(0)
}

fn to(company: CompanyId, address: &str) -> NewEmail {
    let mut email = an_email(company);
    email.envelope.to = an_address(address);
    email
}

/// What the trigger and the settlements count is the program's list.
#[tokio::test]
async fn the_trigger_counts_what_is_tallied() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let id = stored(&*store, an_email(company)).await;
    let mut connection = store.database.connect().await;
    for kind in EventKind::ALL {
        let sql = format!(
            "INSERT INTO events (email_id, type, created_at) VALUES ('{id}', '{kind}', '1970-01-03'), ('{id}', '{kind}', '1970-01-03')"
        );
        run(&mut connection, &sql).await;
    }
    while store.fold(5).await.expect("folded") == 5 {}
    let days = store.company_days(Some(company), None, 0).await.expect("read");
    assert!(days.iter().all(|tally| (tally.day, tally.total) == (2, 2)), "{days:?}");
    attempted(&*store, sent(), START).await;
    store.fold(5).await.expect("folded");
    let days = store.company_days(Some(company), None, 0).await.expect("read");
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
    let id = stored(&*store, NewEmail { entity: Some(an_entity("club-9")), ..an_email(company) }).await;
    let insert = format!(
        "INSERT INTO events (email_id, type, created_at) SELECT '{id}', 'OPENED', '1970-01-03' FROM generate_series(1, 3)"
    );
    let folded: u32 = race(8, |task| {
        let (store, other, insert) = (&store, &other, &insert);
        async move {
            let mut folded = 0;
            for _ in 0..10 {
                if task % 2 == 0 {
                    run(&mut store.database.connect().await, insert).await;
                } else {
                    let process = if task % 4 == 1 { &store.store } else { other };
                    folded += process.fold(2).await.expect("folded");
                }
            }
            folded
        }
    })
    .into_iter()
    .sum();
    let rest = store.fold(1_000).await.expect("folded");
    assert_eq!(folded + rest, 120);
    let tally = store.entity_tally(company, "club-9", 0).await.expect("read");
    assert_eq!((tally[0].kind, tally[0].total, tally[0].unique_recipients), (EventKind::Opened, 120, 1));
}

/// Whoever is forgotten is in no note, and stays one person among the counts.
#[tokio::test]
async fn notes_forget_a_person() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let about = |address: &str| NewEmail { entity: Some(an_entity("club-9")), ..to(company, address) };
    stored(&*store, about("Ana@example.com")).await;
    attempted(&*store, sent(), START).await;
    store.fold(100).await.expect("folded");
    for address in ["ana@example.com", "bob@example.com"] {
        stored(&*store, about(address)).await;
        attempted(&*store, sent(), START).await;
    }
    store.erase(company, &an_address("ANA@example.com"), None, at_secs(9), 10).await.expect("erased");
    let mut connection = store.database.connect().await;
    for table in ["tally_notes", "entity_recipients"] {
        let sql = format!("SELECT count(*) FROM {table} WHERE address = 'ana@example.com'");
        assert_eq!(number(&mut connection, &sql).await, 0, "{table}");
    }
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
    let kinds = [
        ReportKind::Delivered,
        ReportKind::Bounced(Bounce::Hard),
        ReportKind::Failed,
        ReportKind::Complained,
    ];
    race(8, |task| {
        let (process, ids) = (if task % 2 == 0 { &store.store } else { &other }, &ids);
        async move {
            for (number, &id) in ids.iter().enumerate() {
                match task {
                    0 | 1 => {
                        for claim in claim(process, at_secs(1), 2).await {
                            if let Ok(store::Begun::Yes(guard)) =
                                process.begin(store::contract::stage::start(claim.guard, at_secs(1))).await
                            {
                                settle(
                                    process,
                                    guard,
                                    if number % 2 == 0 { sent() } else { fail("X_1") },
                                    at_secs(2),
                                )
                                .await;
                            }
                        }
                    }
                    2 if number % 10 == 0 => {
                        _ = process.cancel(company, id, at_secs(2)).await.expect("answered");
                    }
                    2 | 3 => {
                        _ = process.retry_now(company, id, at_secs(2)).await.expect("answered");
                    }
                    _ => {
                        let kind = kinds[(number + task) % kinds.len()];
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
    let told = "SELECT count(*) FROM events WHERE metadata ? 'reportId'";
    assert_eq!(number(&mut connection, told).await, 160, "every report is an event");
    let stray = "SELECT count(*) FROM email_outbox o FULL JOIN email_queue q ON q.email_id = o.id
                 WHERE (o.status IN ('ENQUEUED', 'RETRY_SCHEDULED', 'PROCESSING')) IS DISTINCT FROM (q.email_id IS NOT NULL)";
    assert_eq!(number(&mut connection, stray).await, 0, "the queue holds what waits or is in flight");
    let wrong = "SELECT count(*) FROM (SELECT status, count(*) AS emails FROM email_outbox GROUP BY status) AS found
                 FULL JOIN (SELECT status, sum(emails) AS emails FROM status_counts GROUP BY status) AS kept USING (status)
                 WHERE coalesce(found.emails, 0) <> coalesce(kept.emails, 0)";
    assert_eq!(number(&mut connection, wrong).await, 0, "the counts are right");
}

/// What no index could hold is kept all the same, and found by our own id alone.
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
    let told = |name: &str, email| Report {
        provider_message_id: Some(endless.clone()),
        email,
        ..report(name, ReportKind::Delivered, id)
    };
    assert_eq!(reported(&*store, told("r1", None), at_secs(6)).await, Reported::Unmatched);
    assert_eq!(store.rematch(at_secs(7), 10).await, Ok(0));
    let answer = reported(&*store, told("r2", Some(id)), at_secs(6)).await;
    assert!(matches!(answer, Reported::Applied { moved: true, .. }), "{answer:?}");
    let mut nul = arrival(report("r3\0", ReportKind::Opened, id), at_secs(8));
    nul.report.metadata.insert("link".into(), "a\0b".into());
    assert!(matches!(store.report(nul).await, Ok(Reported::Applied { .. })));
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
    let recipients = vec![an_address("ana@example.com"), an_address("bob@example.com")];
    let bounce = Report { recipients, ..report("r1", ReportKind::Bounced(Bounce::Hard), id) };
    reported(&*store, bounce, at_secs(6)).await;
    let lost = Report { email: None, ..report("r2", ReportKind::Delivered, id) };
    assert_eq!(reported(&*store, lost, at_secs(6)).await, Reported::Unmatched);
    let mut connection = store.database.connect().await;
    let tables =
        ["reports", "recipient_states", "provider_messages", "address_failures", "alerts", "email_outbox"];
    for table in tables {
        assert_ne!(number(&mut connection, &format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    let day = std::time::Duration::from_secs(24 * 3600);
    let retention = Retention { content: day, emails: 30 * day, dead_letters: 7 * day };
    let later = START.plus(31 * day);
    while store.prune(&retention, later, 10).await.expect("pruned") != Pruned::default() {}
    for table in tables {
        assert_eq!(number(&mut connection, &format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    assert_eq!(number(&mut connection, "SELECT count(*) FROM suppressions").await, 2);
}
