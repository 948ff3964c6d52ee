//! The same on a database server, with several processes that take emails in and several that send: whoever is killed
//! (the database too), and while the wire to the database is cut, nothing is lost and every second copy is marked.

use std::time::{Duration, Instant};

use crate::database::Engine;
use crate::faults::{API_PROCESSES, Faults};
use crate::fleet::Fleet;
use crate::kills::Run;
use crate::load::{Load, Refusal};
use crate::plan::Plan;
use crate::rig::{COMPANY, LEASE_SECS, Rig};
use crate::stored;
use crate::verdict::{Evidence, Verdict};

/// The shortest there is, since the end of a run waits for those of the dead.
const LEASE_SECS_MIN: usize = 31;
/// A lease, then half a minute for a report of the provider, perhaps more than once.
const DRAIN_MAX: Duration = Duration::from_secs(180);
/// Sets the dice for who is hit apart from the others.
const VICTIM_DICE: u64 = 0xFB00_0000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_kills_on_postgres_lose_nothing() {
    lose_nothing(Engine::Postgres, 2_000, Faults::of_all_kinds(3), LEASE_SECS_MIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_kills_on_mariadb_lose_nothing() {
    lose_nothing(Engine::Mariadb, 2_000, Faults::of_all_kinds(3), LEASE_SECS_MIN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_cuts_on_postgres_double_nothing() {
    lose_nothing(Engine::Postgres, 1_000, Faults::cuts_alone(), LEASE_SECS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_cuts_on_mariadb_double_nothing() {
    lose_nothing(Engine::Mariadb, 1_000, Faults::cuts_alone(), LEASE_SECS).await;
}

async fn lose_nothing(engine: Engine, emails: usize, faults: Faults, lease_secs: usize) {
    let plan = Plan::with_faults(emails, &faults);
    let rig = Rig::on_server(engine, API_PROCESSES, plan.sink_latency_ms, lease_secs).await;
    let started = Instant::now();
    let mut fleet = Fleet::start(&rig);
    let (load, clients) = Load::start(plan, &rig.api_addresses, &rig.key, Refusal::IsUncertain);
    let mut follower = rig.provider_ledger();

    let mut run = Run { plan, load: &load, follower: &mut follower };
    for (number, (due, fault)) in faults.schedule(&plan).into_iter().enumerate() {
        run.await_moment(due).await;
        println!("{:>8.1?} {:>6} sent  {fault:?}", started.elapsed(), run.look());
        let mut dice = plan.dice(VICTIM_DICE + number as u64);
        let suffering = fleet.suffer(fault, faults.cut_for, &mut dice);
        if fault.is_of_database() { run.keep_busy(suffering).await } else { suffering.await }
    }
    run.await_clients(clients).await;
    load.ask_again_for_doubtful().await;
    let loaded_for = started.elapsed();
    let is_drained = stored::drained(&rig.database, DRAIN_MAX).await;
    let drained_at = started.elapsed();
    fleet.terminate().await;

    follower.read_on();
    let evidence = Evidence {
        seed: plan.seed,
        faults: plan.faults,
        restarts: std::mem::take(&mut fleet.worker_restarts),
        receipts: load.receipts(),
        provider: follower.ledger,
        stored: stored::read(&rig.database, COMPANY).await,
    };
    let mut verdict = Verdict::of(&evidence);
    load.complaints().into_iter().for_each(|complaint| verdict.complain(complaint));
    fleet.complaints.drain(..).for_each(|complaint| verdict.complain(complaint));
    for exit in fleet.exits.iter().filter(|exit| exit.code() != Some(0)) {
        verdict.complain(format!("asked to end, a process left with {exit}"));
    }
    println!("{engine:?} {verdict} late_results={}", verdict.late_results);
    print_requests(&evidence);
    println!(
        "load {loaded_for:.1?}, drained: {is_drained} after {drained_at:.1?}, all {:.1?}",
        started.elapsed()
    );

    let fails = verdict.breaks_promises()
        || !is_drained
        || verdict.dup_copies > faults.copies_max()
        || verdict.quarantined > faults.quarantined_max();
    drop(fleet);
    rig.tear_down(fails).await;
    assert!(!fails, "a promise was broken: {}", verdict.in_full());
}

/// What the clients went through.
fn print_requests(evidence: &Evidence) {
    let receipts = || evidence.receipts.iter().flatten();
    let cut_off: u32 = receipts().map(|receipt| receipt.cut_off + receipt.garbled).sum();
    let refused: u32 = receipts().map(|receipt| receipt.refused).sum();
    let replayed = receipts().filter(|receipt| receipt.replayed).count();
    println!("requests cut off: {cut_off}, refused: {refused}, answered when asked again: {replayed}");
}
