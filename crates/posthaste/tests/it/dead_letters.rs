//! Thousands of dead letters at once: a replay that is interrupted, and ids that come by the million.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::time::Duration;

use model::{Clock as _, SystemClock, Verdict, WorkerId};
use rusqlite::{Connection, TransactionBehavior};
use store::{Acceptance, ClaimRequest, Companies as _, Outbox as _, SettledBy, Settlement, Upkeep as _};
use store_sqlite::SqliteStore;
use testkit::{a_failure, an_email_at};

use crate::support::{Place, Server};

/// Ten steps of a replay.
const LETTERS: usize = 5_000;

/// A company with that many dead letters.
fn with_dead_letters(place: &Place) {
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = SqliteStore::open(&place.path().join("posthaste.db")).await.expect("a store");
        let company = store.company_named("acme").await.expect("read").expect("there").id;
        let now = SystemClock.now();
        for _ in 0..LETTERS / 500 {
            let emails = (0..500).map(|_| an_email_at(company, now)).collect();
            let acceptance = Acceptance { company, emails, key: None, daily_limit: None, now };
            store.accept(acceptance).await.expect("accepted");
        }
        let mut failed = 0;
        while failed < LETTERS {
            let request = ClaimRequest {
                owner: WorkerId::new(now),
                now,
                lease_until: now.plus(Duration::from_secs(45)),
                limit: 500,
                size_bytes_max: u64::MAX,
                routes: Default::default(),
            };
            let claims = store.claim(request).await.expect("claims");
            assert!(!claims.is_empty(), "{failed} failed, and no more are due");
            failed += claims.len();
            let settlements = claims.iter().map(|claim| {
                store.settle(Settlement {
                    guard: claim.guard,
                    by: SettledBy::Worker,
                    verdict: Verdict::Fail {
                        failure: a_failure("SMTP_REJECTED_550"),
                        outcome_unknown: false,
                    },
                    events: Vec::new(),
                    now,
                })
            });
            futures_util::future::try_join_all(settlements).await.expect("settled");
        }
        store.close().await;
    });
}

fn database(place: &Place) -> Connection {
    let connection = Connection::open(place.path().join("posthaste.db")).expect("the database");
    connection.busy_timeout(Duration::from_secs(20)).expect("set");
    connection
}

fn count(connection: &Connection, sql: &str) -> usize {
    connection.query_row(sql, [], |row| row.get(0)).expect("a count")
}

const REPLAYED: &str = "SELECT count(*) FROM email_outbox WHERE status = 'ENQUEUED'";
const GO_ON: &str = "posthaste: interrupted; run it again to go on with the rest";
const DEAD: &str = "SELECT count(*) FROM email_outbox WHERE status = 'FAILED' AND dead_at IS NOT NULL";

/// A replay that waits for a database which the test holds, with some more replayed than before and some left, and with how
/// many it found. `act` is told what it says to a Ctrl-C.
fn interrupted(place: &Place, act: impl FnOnce(&mut Server, &str)) -> (Server, usize) {
    let mut connection = database(place);
    let (before, found) = (count(&connection, REPLAYED), count(&connection, DEAD));
    let mut replay = Server::start(place.command(&["dlq", "replay", "--company", "acme", "--all"]));
    while count(&connection, REPLAYED) == before {
        assert!(replay.is_running(), "it ended before it began");
        std::thread::yield_now();
    }
    let held = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("held");
    assert!(count(&held, DEAD) > 0, "it was over before it could be interrupted");
    replay.interrupt();
    // In the words of either answer, and in no other line.
    let said = replay.log_until("again");
    act(&mut replay, &said.join(" "));
    drop(held);
    (replay, found)
}

/// The same, with a step under way. A Ctrl-C that comes between two of them has nothing to wait for: that replay ends at
/// once, and the next one is tried.
fn interrupted_in_a_step(place: &Place, mut act: impl FnMut(&mut Server)) -> (Server, usize) {
    for _ in 0..LETTERS / 500 / 2 {
        let mut is_in_a_step = false;
        let (mut replay, found) = interrupted(place, |replay, said| {
            is_in_a_step = said.contains("stopping after this step");
            match is_in_a_step {
                true => act(replay),
                false => assert!(said.contains(GO_ON), "{said}"),
            }
        });
        if is_in_a_step {
            return (replay, found);
        }
        assert_eq!(replay.wait().code(), Some(1));
    }
    panic!("it was between two steps each time");
}

/// Ctrl-C: the step under way ends and is counted, the rest stays. Ctrl-C twice: it ends at once. Either way another run
/// goes on, and every dead letter is replayed once.
#[test]
fn process_a_replay_that_is_interrupted_goes_on() {
    let place = Place::new();
    with_dead_letters(&place);
    let connection = database(&place);
    assert_eq!(count(&connection, DEAD), LETTERS);

    let (mut first, found) = interrupted_in_a_step(&place, |_| ());
    assert_eq!(first.wait().code(), Some(1));
    first.log_until(GO_ON);
    let left = count(&connection, DEAD);
    assert_eq!(first.printed_until("replayed"), [format!("{} of {found} replayed", found - left)]);
    assert_eq!(count(&connection, REPLAYED), LETTERS - left, "none is lost");
    assert!(left > 0, "it stopped");

    let mut before = 0;
    interrupted_in_a_step(&place, |replay| {
        before = count(&connection, REPLAYED);
        replay.interrupt();
        assert_eq!(replay.wait().code(), Some(130));
    });
    assert_eq!(count(&connection, REPLAYED), before, "what was not committed is as it was");
    let left = LETTERS - before;
    assert_eq!(count(&connection, DEAD), left, "none is lost");

    let last = place.json(&["dlq", "replay", "--company", "acme", "--all"]).remove(0);
    assert_eq!(last, serde_json::json!({ "matched": left, "replayed": left }));
    assert_eq!((count(&connection, REPLAYED), count(&connection, DEAD)), (LETTERS, 0));
    assert_eq!(count(&connection, "SELECT count(*) FROM events WHERE type = 'REPLAYED'"), LETTERS);
    let emails = "SELECT count(DISTINCT email_seq) FROM events WHERE type = 'REPLAYED'";
    assert_eq!(count(&connection, emails), LETTERS, "each of them once");
}

/// Ids are answered as they come, and a million of them take no more memory than a few.
#[test]
fn process_a_million_ids_are_read_as_they_come() {
    const MANY: usize = 1_000_000;
    /// What the allocator may take meanwhile; the ids alone are nine times that.
    const GROWTH_KB_MAX: u64 = 4 * 1_024;
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let id = place.send("acme", "ana@example.com", &[]);
    let mut command = place.command(&["--json", "show", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("piped");
    let mut answers = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut memory_kb = Vec::new();
    let unknown = "not-an-id-not-an-id-not-an-id-not-an\n".repeat(1_000);
    for count in [MANY / 100, MANY - MANY / 100] {
        for _ in 0..count / 1_000 {
            stdin.write_all(unknown.as_bytes()).expect("taken");
        }
        // Its answer comes while the input is open, and says that all before it were read.
        writeln!(stdin, "{id}").expect("taken");
        let answer = answers.next().expect("an answer").expect("a line");
        assert!(answer.contains(&id), "{answer}");
        memory_kb.push(peak_memory_kb(&child));
    }
    drop(stdin);
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert!(memory_kb[1] < memory_kb[0] + GROWTH_KB_MAX, "{memory_kb:?}");
}

fn peak_memory_kb(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
