//! No accepted email is lost when the power fails. The database is on a disk of its own (`disk`); at a moment of the
//! dice the process stops, what is really on the disk is copied, the process and the disk are taken away, and the next
//! process starts on the copy. Before it does, the real program is asked, on another copy, for every email that any
//! client was told of until then.
//!
//! A run would prove nothing if the disk kept what was never synced. So each begins with a control: rows committed
//! with `synchronous=NORMAL` must get lost on it, and those with FULL must not.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use model::{Clock as _, EmailId, SystemClock};
use tempfile::TempDir;

use crate::database::Database;
use crate::disk::{self, Disk};
use crate::http::{Connection, Exchange};
use crate::kills::{LOOK_EVERY, Run};
use crate::load::{Load, Refusal};
use crate::plan::Plan;
use crate::processes::{Server, posthaste};
use crate::rig::{COMPANY, Rig};
use crate::stored;
use crate::verdict::{Evidence, Verdict};

/// A run with more cuts than this waits until everything is sent. What was at the provider when the power failed waits
/// half a minute for a report first, and a short run has no half minute to spare.
const SHORT_CUTS: usize = 4;
const DRAIN_MAX: Duration = Duration::from_secs(150);
/// What an email and its history take at most, on average and with the log, and what is there besides.
const BYTES_PER_EMAIL: u64 = 32 * 1024;
const BYTES_BESIDES: u64 = 64 * 1024 * 1024;
const CONTROL_ROWS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_power_cuts_lose_nothing() {
    let bench = Bench::new();
    if !disk::can_be_had(bench.path()) {
        return;
    }
    let control_lost = bench.assert_unsynced_is_lost();
    let plan = Plan::with_cuts(600, SHORT_CUTS);
    let started = Instant::now();
    let mut disk =
        Disk::make(bench.path(), plan.emails as u64 * BYTES_PER_EMAIL + BYTES_BESIDES).expect("a disk");
    let rig = Rig::set_up_with_file_in(disk.path(), plan.sink_latency_ms).await;
    let mut server = rig.start_server();
    let (load, clients) = Load::start(plan, &rig.api_addresses, &rig.key, Refusal::IsCertain);
    let mut follower = rig.provider_ledger();

    let mut run = Run { plan, load: &load, follower: &mut follower };
    let (mut restarts, mut findings) = (Vec::new(), Vec::new());
    for (number, fault) in plan.fault_times().into_iter().enumerate() {
        run.await_moment(fault).await;
        let cut = bench.cut(&mut server, disk, number).await;
        disk = cut.disk;
        // Whatever a client has heard by now, it was told before the power failed.
        let told: Vec<EmailId> = load.receipts().iter().flatten().map(|receipt| receipt.id).collect();
        findings.push(bench.examine(&rig, &cut.evidence, &told).await);
        server.restart();
        restarts.push(SystemClock.now());
    }
    run.await_clients(clients).await;
    load.ask_again_for_doubtful().await;
    let waits = plan.faults > SHORT_CUTS;
    let is_drained = !waits || stored::drained(&rig.database, DRAIN_MAX).await;
    let exit = server.terminate().await;

    follower.read_on();
    let evidence = Evidence {
        seed: plan.seed,
        faults: plan.faults,
        restarts,
        receipts: load.receipts(),
        provider: follower.ledger,
        stored: stored::read(&rig.database, COMPANY).await,
    };
    let mut verdict = Verdict::of(&evidence);
    load.complaints().into_iter().for_each(|complaint| verdict.complain(complaint));
    let told: usize = findings.iter().map(|finding| finding.told).sum();
    let missing: usize = findings.iter().map(|finding| finding.missing).sum();
    let damaged = findings.iter().filter(|finding| !finding.is_intact).count();
    println!("{verdict}");
    println!(
        "power cuts={} looked_for={told} missing={missing} damaged={damaged} control_lost={control_lost}/{CONTROL_ROWS}",
        plan.faults
    );
    println!("all {:?}, drained: {}, exit: {exit}", started.elapsed(), waits && is_drained);

    let breaks = if waits { verdict.breaks_promises() } else { breaks_promises_so_far(&verdict, &load) };
    let fails = breaks || !is_drained || exit.code() != Some(0) || missing + damaged > 0;
    rig.tear_down(fails).await;
    drop(disk);
    assert!(!fails, "a promise was broken: {}", verdict.in_full());
}

/// What a command has said that it did is done, and the secret that a server has made when it first answers is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_what_was_set_up_outlives_a_power_cut() {
    let bench = Bench::new();
    if !disk::can_be_had(bench.path()) {
        return;
    }
    let disk = Disk::make(bench.path(), BYTES_BESIDES).expect("a disk");
    let rig = Rig::set_up_with_file_in(disk.path(), 0).await;
    let mut server = rig.start_api(0);
    let mut connection = Connection::to(&rig.api_addresses, 0);
    while !matches!(
        connection.exchange(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await,
        Exchange::Answered(_)
    ) {
        server.assert_runs();
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let secret = std::fs::read(disk.path().join("posthaste.secret")).expect("the server has made a secret");
    let Cut { disk, evidence } = bench.cut(&mut server, disk, 0).await;
    let found = Disk::mount(evidence, bench.path().join("evidence")).expect("it can be mounted");
    let config = rig.config_for("evidence", &found.path().join("posthaste.db"));
    let output = posthaste(&config).args(["--json", "key", "list", "--company", COMPANY]).output().await;
    let output = output.expect("the program can be run");
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let found_secret = std::fs::read(found.path().join("posthaste.secret")).ok();
    drop((found, disk));
    rig.tear_down(false).await;
    assert_eq!(listed.lines().count(), 1, "{}{listed}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(found_secret, Some(secret), "the secret is there, and the same");
}

/// A short run ends while what was at the provider still waits; the rest of the promises holds all the same.
fn breaks_promises_so_far(verdict: &Verdict, load: &Load) -> bool {
    let counts = [verdict.lost, verdict.dup_unflagged, verdict.regressions, verdict.failed];
    counts.iter().any(|count| *count > 0)
        || verdict.dup_copies > verdict.in_flight
        || verdict.accepted != load.receipts().len()
        || !load.complaints().is_empty()
}

/// What is left of a machine without power.
struct Cut {
    /// In its old place, as the next process finds it.
    disk: Disk,
    /// A second copy, which may be looked into.
    evidence: PathBuf,
}

struct Finding {
    told: usize,
    missing: usize,
    is_intact: bool,
}

/// The folder with the images; disks must have gone before it does.
struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("posthaste-power-").tempdir().expect("a temporary folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    async fn cut(&self, server: &mut Server, disk: Disk, number: usize) -> Cut {
        let (copy, evidence) =
            (self.path().join(format!("cut-{number}.img")), self.path().join("evidence.img"));
        server.freeze().await;
        disk.copy_to(&copy);
        server.kill().await;
        disk::copy_image(&copy, &evidence);
        Cut { disk: disk.replaced_by(copy), evidence }
    }

    /// Asks the real program for each of the emails, then another program whether the file is sound.
    async fn examine(&self, rig: &Rig, evidence: &Path, told: &[EmailId]) -> Finding {
        let disk = Disk::mount(evidence.to_owned(), self.path().join("evidence")).expect("it can be mounted");
        let database = disk.path().join("posthaste.db");
        let config = rig.config_for("evidence", &database);
        let list = self.path().join("told.txt");
        let lines: Vec<String> = told.iter().map(EmailId::to_string).collect();
        std::fs::write(&list, lines.join("\n")).expect("a list can be written");
        let output = posthaste(&config)
            .args(["--json", "show", "-"])
            .stdin(Stdio::from(File::open(&list).expect("the list can be read")))
            .output()
            .await
            .expect("the program can be run");
        let found = output.stdout.iter().filter(|byte| **byte == b'\n').count();
        let missing = told.len() - found;
        if missing > 0 || !output.status.success() {
            println!("after the cut: {}", last_line(&output.stderr));
        }
        Finding { told: told.len(), missing, is_intact: Database::Sqlite(database).is_intact().await }
    }

    /// The control; says how many rows got lost.
    fn assert_unsynced_is_lost(&self) -> usize {
        let synced = self.rows_left_of("FULL");
        assert_eq!(synced, CONTROL_ROWS, "what is synced survives a cut of this rig");
        let unsynced = self.rows_left_of("NORMAL");
        assert!(unsynced < CONTROL_ROWS, "what is not synced survives a cut of this rig: it proves nothing");
        CONTROL_ROWS - unsynced
    }

    /// Commits rows one by one, each with this setting, and says how many a power cut leaves.
    fn rows_left_of(&self, synchronous: &str) -> usize {
        let disk = Disk::make(self.path(), BYTES_BESIDES).expect("a disk");
        let connection = rusqlite::Connection::open(disk.path().join("control.db")).expect("a database");
        connection.pragma_update(None, "journal_mode", "WAL").expect("set");
        connection.pragma_update(None, "synchronous", "FULL").expect("set");
        connection.execute_batch("CREATE TABLE control (number INTEGER PRIMARY KEY)").expect("made");
        connection.pragma_update(None, "synchronous", synchronous).expect("set");
        for number in 0..CONTROL_ROWS {
            connection.execute("INSERT INTO control VALUES (?1)", [number]).expect("a row is committed");
        }
        let copy = self.path().join("control.img");
        disk.copy_to(&copy);
        drop(connection);
        let disk = disk.replaced_by(copy);
        let connection =
            rusqlite::Connection::open(disk.path().join("control.db")).expect("the database opens");
        let count = connection.query_row("SELECT count(*) FROM control", [], |row| row.get(0));
        let count = count.expect("the rows are counted");
        drop(connection);
        count
    }
}

fn last_line(output: &[u8]) -> String {
    String::from_utf8_lossy(output).lines().next_back().unwrap_or_default().to_owned()
}
