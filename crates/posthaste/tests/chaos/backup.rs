//! A copy made while the gateway is at work can be restored elsewhere: everything that was accepted before the copy
//! began is in it, what waits in it is sent, and what it knows as SENT is not sent again.

use std::path::Path;
use std::time::{Duration, Instant};

use model::{Clock as _, EmailId, Status, SystemClock};
use tokio::process::Command;

use crate::database::Database;
use crate::kills::{COMEBACK_MAX, LOOK_EVERY, Run};
use crate::load::{Load, Refusal};
use crate::plan::Plan;
use crate::processes::python;
use crate::provider_ledger::ProviderLedger;
use crate::rig::{COMPANY, Rig};
use crate::stored::{self, Emails};

const README: &str = include_str!("../../../../README.md");
/// What README tells people to do.
const STATEMENT: &str = "VACUUM INTO 'copy.db'";
/// A copy that takes longer under this load never ends.
const COPY_MAX: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_copy_made_under_load_can_be_restored() {
    assert!(README.contains(&format!("sqlite3 posthaste.db \"{STATEMENT}\"")), "README says how to copy");
    let plan = Plan::of(1_500, 1);
    let rig = Rig::set_up(plan.sink_latency_ms).await;
    let Database::Sqlite(original) = &rig.database else { panic!("a file") };
    let mut server = rig.start_server();
    let (load, mut clients) = Load::start(plan, &rig.api_addresses, &rig.key, Refusal::IsCertain);
    let mut follower = rig.provider_ledger();
    let mut run = Run { plan, load: &load, follower: &mut follower };

    run.await_busy_moment(plan.emails / 3).await;
    let told: Vec<EmailId> = load.receipts().iter().flatten().map(|receipt| receipt.id).collect();
    run.keep_busy(copy(original)).await;
    // The gateway has gone on for a while when its machine is lost with all that is on it but the copy.
    run.await_busy_moment(plan.emails / 2).await;
    server.kill().await;
    clients.shutdown().await;
    run.look();
    let sent_before = counts(&follower.ledger);

    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let restored = elsewhere.path().join("posthaste.db");
    copy_file(&original.with_file_name("copy.db"), &restored);
    copy_file(&original.with_file_name("posthaste.secret"), &elsewhere.path().join("posthaste.secret"));
    let database = Database::Sqlite(restored.clone());
    let is_intact = database.is_intact().await;
    let in_copy = stored::read(&database, COMPANY).await;
    let mut server = rig.start_server_with(rig.config_for("restored", &restored));
    let (sent, waiting) = (ids(&in_copy, Status::Sent).count(), ids(&in_copy, Status::Enqueued).count());
    await_sent(&database, sent + waiting).await;
    let exit = server.terminate().await;

    follower.read_on();
    let sent_after = counts(&follower.ledger);
    let after = stored::read(&database, COMPANY).await;
    let missing = told.iter().filter(|id| !in_copy.contains_key(id)).count();
    let is_sent_again = |id: &EmailId| sent_after.get(id) != sent_before.get(id);
    let sent_again = ids(&in_copy, Status::Sent).filter(is_sent_again).count();
    let unsent = ids(&in_copy, Status::Enqueued).filter(|id| after[id].status != Status::Sent).count();
    println!(
        "seed={} accepted_before_copy={} in_copy={} missing={missing} sent_in_copy={sent} sent_again={sent_again} \
         waiting_in_copy={waiting} unsent={unsent} intact={is_intact} exit={exit}",
        plan.seed,
        told.len(),
        in_copy.len(),
    );
    let proves_nothing = sent == 0 || waiting == 0 || told.is_empty();
    let fails = missing + sent_again + unsent > 0 || !is_intact || exit.code() != Some(0) || proves_nothing;
    rig.tear_down(fails).await;
    assert!(!fails, "the copy is not what it should be; see above");
}

/// As an operator would, in the folder of the database.
async fn copy(database: &Path) {
    let script = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute(sys.argv[2])";
    let mut command = Command::new(python());
    command.args(["-c", script]).arg(database).arg(STATEMENT).kill_on_drop(true);
    command.current_dir(database.parent().expect("a file is in a folder"));
    let output = tokio::time::timeout(COPY_MAX, command.output()).await;
    let output = output.expect("the copy comes to an end under load").expect("python3 can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn copy_file(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

/// Waits until that many are SENT. What was in flight waits for its lease and then for a report; it is not waited for.
async fn await_sent(database: &Database, count: usize) {
    let store = database.open().await;
    let deadline = Instant::now() + COMEBACK_MAX;
    loop {
        let counts = store.stats(SystemClock.now()).await.expect("the store counts").by_status;
        if counts.get(&Status::Sent).is_some_and(|sent| *sent >= count as u64) {
            break;
        }
        assert!(Instant::now() < deadline, "what waited in the copy is not sent: {counts:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    store.close().await;
}

fn counts(ledger: &ProviderLedger) -> std::collections::BTreeMap<EmailId, usize> {
    ledger.copies.iter().map(|(id, copies)| (*id, copies.len())).collect()
}

fn ids(emails: &Emails, status: Status) -> impl Iterator<Item = EmailId> {
    emails.iter().filter(move |(_, email)| email.status == status).map(|(id, _)| *id)
}
