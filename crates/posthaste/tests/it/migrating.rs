//! `posthaste migrate` killed at any moment is finished by the next start, and a program that is too old for a file says
//! so in one line and leaves it alone.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rusqlite::Connection;

use crate::support::{Place, err};

const MIGRATIONS: [&str; 7] = [
    include_str!("../../../store-sqlite/migrations/0001_init.sql"),
    include_str!("../../../store-sqlite/migrations/0002_ended.sql"),
    include_str!("../../../store-sqlite/migrations/0003_routes.sql"),
    include_str!("../../../store-sqlite/migrations/0004_feedback.sql"),
    include_str!("../../../store-sqlite/migrations/0005_search.sql"),
    include_str!("../../../store-sqlite/migrations/0006_series.sql"),
    include_str!("../../../store-sqlite/migrations/0007_messages.sql"),
];
/// "Post" in ASCII.
const APPLICATION_ID: i64 = 0x506F_7374;
/// Enough that most of the time of `posthaste migrate` is spent on migrating.
const EMAILS: usize = 40_000;
/// From each earlier version.
const KILLS: usize = 6;
/// A run that was over before its kill is made again, so often.
const TRIES_MAX: usize = 300;
const SIGKILL: i32 = 9;

/// What must not change.
#[derive(Debug, PartialEq, Eq)]
struct Rows {
    by_status: Vec<(String, usize)>,
    events: usize,
    contents: usize,
    /// The sum of something of each row.
    subjects: usize,
}

#[test]
fn process_killed_migrations_are_finished_by_the_next_start() {
    let place = Place::new();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let whole = a_whole_migration(&place);
    for version in 1..MIGRATIONS.len() {
        let old = place.path().join(format!("version-{version}.db"));
        make(&old, version);
        let expected = rows(&Connection::open(&old).expect("opens"));
        let (mut killed, mut began, mut tries) = (0, 0, 0);
        let longest = time_of_migration(&place, &old);
        while killed < KILLS {
            tries += 1;
            assert!(tries < TRIES_MAX, "hardly any migration was still going on when it was killed");
            let file = put(&place, &old);
            if !killed_after(&place, longest.mul_f64(dice.random())) {
                continue;
            }
            killed += 1;
            let log = file.with_file_name("posthaste.db-wal");
            began += usize::from(std::fs::metadata(log).is_ok_and(|log| log.len() > 0));
            place.print(&["migrate"]);
            let connection = Connection::open(&file).expect("opens");
            let case = format!("seed {seed}, from version {version}, kill {killed}");
            assert_eq!(rows(&connection), expected, "{case}");
            assert_eq!(schema(&connection), whole, "{case}");
            let check: String =
                connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checked");
            assert_eq!(check, "ok", "{case}");
        }
        println!("from version {version}: killed {killed} within {longest:?}, {began} of them had written");
    }
}

#[test]
fn process_a_program_too_old_for_the_file_says_so_in_one_line() {
    let place = Place::new();
    place.print(&["migrate"]);
    let file = place.path().join("posthaste.db");
    let connection = Connection::open(&file).expect("opens");
    let known = MIGRATIONS.len();
    connection.pragma_update(None, "user_version", known + 1).expect("set");
    let before = schema(&connection);
    let id = "0190c3d2-7b7e-7000-8000-000000000000";
    for args in [&["serve"][..], &["migrate"], &["show", id], &["company", "list"]] {
        let mut command = place.command(args);
        let output = command.env("POSTHASTE_LISTEN", "127.0.0.1:0").output().expect("it runs");
        let said = err(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        let complaint = said.lines().last().unwrap_or_default();
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        let versions = format!("schema version {}, this program knows up to {known}", known + 1);
        assert!(complaint.contains(&versions) && complaint.contains("newer posthaste"), "{complaint}");
    }
    assert_eq!(schema(&connection), before, "it is left alone");
}

/// A file of that version, with many emails in it.
fn make(file: &Path, version: usize) {
    let connection = Connection::open(file).expect("opens");
    connection.pragma_update(None, "journal_mode", "WAL").expect("set");
    connection.execute_batch(MIGRATIONS[0]).expect("the first schema");
    let fill = format!(
        "BEGIN;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {EMAILS})
         INSERT INTO email_outbox (id, company_id, status, priority, due_at, expires_at, mode, to_email, subject,
             created_at, updated_at, ttl_ms, provider_message_id, request_id, size_bytes, content_ref, detail)
         SELECT printf('0190c3d2-7b7e-7000-8000-%012d', i), 'company-' || (i % 10),
             CASE i % 3 WHEN 0 THEN 'ENQUEUED' WHEN 1 THEN 'SENT' ELSE 'FAILED' END,
             3, CASE i % 3 WHEN 0 THEN i END, i + 1000, 'live', 'reader' || i || '@example.com', 'Subject ' || i,
             i, i, 1000, 'message-' || i, 'request-' || i, 100, 'db:', '{{}}'
         FROM n;
         INSERT INTO events (email_seq, type, created_at) SELECT seq, 'ENQUEUED', seq FROM email_outbox;
         INSERT INTO contents (email_seq, body) SELECT seq, zeroblob(100) FROM email_outbox;
         COMMIT;"
    );
    connection.execute_batch(&fill).expect("filled");
    for migration in &MIGRATIONS[1..version] {
        connection.execute_batch(&format!("BEGIN; {migration}; COMMIT;")).expect("migrated");
    }
    connection.pragma_update(None, "user_version", version).expect("set");
    connection.pragma_update(None, "application_id", APPLICATION_ID).expect("set");
    let checkpoint = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    checkpoint.expect("all is in the file");
}

/// Puts a copy of the file where the commands look for it.
fn put(place: &Place, old: &Path) -> PathBuf {
    let file = place.path().join("posthaste.db");
    for rest in ["posthaste.db-wal", "posthaste.db-shm"] {
        let _ = std::fs::remove_file(place.path().join(rest));
    }
    std::fs::copy(old, &file).expect("copied");
    file
}

/// Starts a migration and kills it after that time; `false` when it was over by then.
fn killed_after(place: &Place, time: Duration) -> bool {
    let mut child = place.command(&["migrate"]).stdout(Stdio::null()).spawn().expect("it runs");
    std::thread::sleep(time);
    child.kill().expect("it can be killed");
    child.wait().expect("it can be waited for").signal() == Some(SIGKILL)
}

fn time_of_migration(place: &Place, old: &Path) -> Duration {
    put(place, old);
    let started = Instant::now();
    place.print(&["migrate"]);
    started.elapsed()
}

/// The schema of a file that nobody disturbed.
fn a_whole_migration(place: &Place) -> Vec<String> {
    place.print(&["migrate"]);
    schema(&Connection::open(place.path().join("posthaste.db")).expect("opens"))
}

fn schema(connection: &Connection) -> Vec<String> {
    let version: usize =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a version");
    let mut statement = connection
        .prepare("SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_schema ORDER BY 1")
        .expect("a good query");
    let lines = statement.query_map([], |row| row.get(0)).expect("asked");
    let lines: rusqlite::Result<Vec<String>> = lines.collect();
    [vec![format!("version {version}")], lines.expect("read")].concat()
}

fn rows(connection: &Connection) -> Rows {
    let count =
        |sql: &str| -> usize { connection.query_row(sql, [], |row| row.get(0)).expect("it is counted") };
    let mut statement = connection
        .prepare("SELECT status, count(*) FROM email_outbox GROUP BY status ORDER BY status")
        .expect("a good query");
    let by_status = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("asked");
    Rows {
        by_status: by_status.collect::<rusqlite::Result<_>>().expect("read"),
        events: count("SELECT count(*) FROM events"),
        contents: count("SELECT count(*) FROM contents WHERE length(body) = 100"),
        subjects: count("SELECT sum(length(subject || to_email || id)) FROM email_outbox"),
    }
}
