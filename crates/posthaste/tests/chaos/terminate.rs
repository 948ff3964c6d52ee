//! SIGTERM loses nothing and doubles nothing: asked to end under load, again and again, the process ends well within
//! its time, answers what it has begun, gives back what it has not, and the next one goes on.

use std::time::{Duration, Instant};

use crate::history::History;
use crate::kills::Run;
use crate::load::{Load, Refusal};
use crate::plan::Plan;
use crate::rig::{COMPANY, Rig};
use crate::stored::{self, Stored};
use crate::verdict::{Evidence, Verdict};

/// Nothing has to wait for anybody: an email that was given back is due at once.
const DRAIN_MAX: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_termination_loses_and_doubles_nothing() {
    let plan = Plan::with_rounds(200, 8);
    let started = Instant::now();
    let rig = Rig::set_up(plan.sink_latency_ms).await;
    let mut server = rig.start_server();
    let (load, clients) = Load::start(plan, &rig.api_addresses, &rig.key, Refusal::IsCertain);
    let mut follower = rig.provider_ledger();

    let mut run = Run { plan, load: &load, follower: &mut follower };
    let mut exits = Vec::new();
    for fault in plan.fault_times() {
        run.await_busy_moment(fault).await;
        exits.push(server.terminate().await);
        server.restart();
    }
    run.await_clients(clients).await;
    let is_drained = stored::drained(&rig.database, DRAIN_MAX).await;
    exits.push(server.terminate().await);

    follower.read_on();
    let evidence = Evidence {
        seed: plan.seed,
        faults: plan.faults,
        restarts: vec![],
        receipts: load.receipts(),
        provider: follower.ledger,
        stored: stored::read(&rig.database, COMPANY).await,
    };
    let mut verdict = Verdict::of(&evidence);
    load.complaints().into_iter().for_each(|complaint| verdict.complain(complaint));
    left_unanswered(&evidence).into_iter().for_each(|complaint| verdict.complain(complaint));
    for exit in exits.iter().filter(|exit| exit.code() != Some(0)) {
        verdict.complain(format!("asked to end, the server left with {exit}"));
    }
    println!("{verdict}");
    println!("all {:?}, drained: {is_drained}, exits: {}", started.elapsed(), exits.len());

    let not_zero = [verdict.dup, verdict.leases_lost, verdict.quarantined, verdict.vanished_attempts];
    if not_zero.iter().any(|count| *count > 0) {
        verdict.complain(format!("dup, leases lost, quarantined, attempts vanished: {not_zero:?}"));
    }
    let fails = verdict.breaks_promises() || !is_drained;
    rig.tear_down(fails).await;
    assert!(!fails, "a promise was broken: {}", verdict.in_full());
}

/// A provider that does not answer holds the process up only so long: its emails go back to waiting, marked, since the
/// provider has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_termination_does_not_hang_with_the_provider() {
    let plan = Plan::of(8, 0).to("slow.test");
    let rig = Rig::set_up(0).await;
    let mut server = rig.start_server();
    let (load, clients) = Load::start(plan, &rig.api_addresses, &rig.key, Refusal::IsCertain);
    let mut follower = rig.provider_ledger();
    let mut run = Run { plan, load: &load, follower: &mut follower };
    run.await_clients(clients).await;
    run.await_all_sent().await;

    let asked_at = Instant::now();
    let exit = server.terminate().await;
    println!("seed={} {} calls hung, exit after {:?}: {exit}", plan.seed, plan.emails, asked_at.elapsed());
    let emails = stored::read(&rig.database, COMPANY).await;
    let wrong: Vec<_> = emails.iter().filter(|(_, email)| !waits_marked(email)).collect();
    let fails = exit.code() != Some(0) || !wrong.is_empty() || emails.len() != plan.emails;
    rig.tear_down(fails).await;
    assert!(!fails, "not waiting, or not marked: {wrong:#?}");
}

/// Whether the call ran into its own time-out or was given back a moment before is all the same.
fn waits_marked(email: &Stored) -> bool {
    let history = History::of(&email.events);
    let is_right = history.illegal.is_empty() && history.end == Some(email.status);
    let is_counted = history.received == 1 && email.attempts + history.released == 1;
    email.status.is_waiting() && email.outcome_unknown && is_right && is_counted && !history.doubts.is_empty()
}

/// A request may find a closed door, and then it changed nothing. One that was stored, or whose answer broke off, had
/// been begun, and was owed its answer.
fn left_unanswered(evidence: &Evidence) -> Vec<String> {
    let receipts = evidence.receipts.iter().flatten();
    receipts
        .filter(|receipt| receipt.garbled > 0 || receipt.replayed)
        .map(|receipt| format!("{} was taken in and the connection closed without an answer", receipt.id))
        .collect()
}
