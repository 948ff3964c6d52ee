//! A full disk is refused cleanly and heals by itself: under load the disk of the database fills up, to below the reserve
//! or to the last byte. Clients are told to come back, no call to the provider begins, what was in flight is recorded;
//! and once there is room everything goes on in the process that was running, with nothing lost and nothing doubled.

use std::any::Any;
use std::time::{Duration, Instant};

use model::{Clock as _, Status, SystemClock};
use store::QueueStats;
use testkit::small_disk::SmallDisk;

use crate::http::{Answer, Connection, Exchange};
use crate::kills::{COMEBACK_MAX, LOOK_EVERY, Run};
use crate::load::{Load, Refusal};
use crate::plan::Plan;
use crate::rig::{COMPANY, Rig};
use crate::stored;
use crate::verdict::{Evidence, Verdict};

const DISK_MIB: u32 = 64;
/// Below the reserve of such a disk, a quarter, and far from nothing.
const LEFT_BYTES: u64 = 8 * 1024 * 1024;
/// So many requests are refused while it is watched whether anything begins: some seconds of eight busy clients.
const REFUSALS: usize = 500;
/// How long the provider takes for an email.
const LATENCY_MS: usize = 40;
const STORAGE_LOW: &str = "STORAGE_LOW";
/// Nothing has to wait for anybody.
const DRAIN_MAX: Duration = Duration::from_secs(60);

type Fill = fn(&SmallDisk) -> Box<dyn Any + Send>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_disk_below_its_reserve_refuses_and_heals() {
    let Some(rig) = Rig::on_small_disk(DISK_MIB, None, LATENCY_MS).await else { return };
    a_disk_fills_up(rig, |disk| Box::new(disk.fill_up(LEFT_BYTES)), Guard::Minds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_disk_without_a_byte_refuses_and_heals() {
    let Some(rig) = Rig::on_small_disk(DISK_MIB, None, LATENCY_MS).await else { return };
    a_disk_fills_up(rig, |disk| Box::new(disk.keep_full()), Guard::MindsTooLate).await;
}

/// Nobody looks at the disk: SQLite itself finds no room, in whatever it is just writing, for as long as that lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_disk_without_a_byte_or_a_reserve_loses_nothing() {
    let Some(rig) = Rig::on_small_disk(DISK_MIB, Some(0), LATENCY_MS).await else { return };
    a_disk_fills_up(rig, |disk| Box::new(disk.keep_full()), Guard::IsOff).await;
}

/// Who looks after the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// The reserve is there for the results of calls.
    Minds,
    /// Somebody takes the reserve as well, so that results may have to wait.
    MindsTooLate,
    IsOff,
}

async fn a_disk_fills_up(rig: Rig, fill: Fill, guard: Guard) {
    let plan = Plan { sink_latency_ms: LATENCY_MS, ..Plan::of(1_000, 1) };
    let disk = rig.disk.as_ref().expect("it is on a small disk");
    let mut server = rig.start_server();
    let (load, clients) = Load::start(plan, &rig.api_addresses, &rig.key, Refusal::IsCertain);
    let mut follower = rig.provider_ledger();
    let mut run = Run { plan, load: &load, follower: &mut follower };

    run.await_busy_moment(plan.fault_times()[0]).await;
    let filler = fill(disk);
    run.keep_busy(refusals(&load, REFUSALS)).await;
    if guard != Guard::IsOff {
        nothing_begins(&mut run, &rig, guard).await;
    }
    server.assert_runs();

    drop(filler);
    let (freed_at, accepted) = (Instant::now(), load.accepted());
    run.keep_busy(accepted_more_than(&load, accepted)).await;
    println!("taken in again {:?} after there was room", freed_at.elapsed());
    assert_eq!(ready(&rig).await.status, 200, "what is taken in is ready");
    run.await_clients(clients).await;
    let is_drained = stored::drained(&rig.database, DRAIN_MAX).await;
    let exit = server.terminate().await;

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
    complain_of_the_disk(&mut verdict, &rig, &load, guard).await;
    if exit.code() != Some(0) {
        verdict.complain(format!("asked to end, the server left with {exit}"));
    }
    println!("{verdict}, drained: {is_drained}, refusals: {:?}", load.refusals());
    let not_zero = [verdict.dup, verdict.leases_lost, verdict.quarantined, verdict.vanished_attempts];
    if not_zero.iter().any(|count| *count > 0) {
        verdict.complain(format!("dup, leases lost, quarantined, attempts vanished: {not_zero:?}"));
    }
    let fails = verdict.breaks_promises() || !is_drained;
    rig.tear_down(fails).await;
    assert!(!fails, "a promise was broken: {}", verdict.in_full());
}

/// While there is no room: it says why it is not ready, what is in flight is recorded, and no call begins.
async fn nothing_begins(run: &mut Run<'_>, rig: &Rig, guard: Guard) {
    let not_ready = ready(rig).await;
    assert_eq!(not_ready.status, 503, "{not_ready:?}");
    assert!(not_ready.body.contains("store: its disk is almost full"), "{not_ready:?}");
    let since = Instant::now();
    let (waiting, flying) = loop {
        let stats = stats(rig).await;
        let flying = stats.by_status.get(&Status::Processing).copied().unwrap_or(0);
        if guard == Guard::MindsTooLate || flying == 0 {
            break (stats.waiting(), flying);
        }
        assert!(since.elapsed() < COMEBACK_MAX, "the reserve is for results: {stats:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    };
    assert!(waiting > 0, "with nothing to send it proves nothing that nothing is sent");
    println!("{waiting} wait, the results of {flying} calls are not recorded yet");
    let sent = run.look();
    run.keep_busy(refusals(run.load, REFUSALS)).await;
    assert_eq!(run.look(), sent, "no call begins unless its result can be stored");
}

async fn complain_of_the_disk(verdict: &mut Verdict, rig: &Rig, load: &Load, guard: Guard) {
    if !rig.database.is_intact().await {
        verdict.complain("the database is damaged".to_owned());
    }
    for (code, count) in load.refusals().into_iter().filter(|(code, _)| code != STORAGE_LOW) {
        verdict.complain(format!("{count} requests were refused with {code}, which was not the reason"));
    }
    for words in ["the disk of the database is almost full", "there is room again"] {
        let (times, expected) = (rig.logged(words), usize::from(guard != Guard::IsOff));
        if times != expected {
            verdict.complain(format!("an operator reads {times} times that {words}"));
        }
    }
}

/// Returns when so many more requests were refused for want of room.
async fn refusals(load: &Load, more: usize) {
    let count = || load.refusals().get(STORAGE_LOW).copied().unwrap_or(0);
    let target = count() + more;
    let deadline = Instant::now() + COMEBACK_MAX;
    while count() < target {
        assert!(Instant::now() < deadline, "the disk is full, and clients hear {:?}", load.refusals());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn accepted_more_than(load: &Load, count: usize) {
    let deadline = Instant::now() + COMEBACK_MAX;
    while load.accepted() <= count {
        assert!(Instant::now() < deadline, "there is room again, and nothing is taken in");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn stats(rig: &Rig) -> QueueStats {
    let store = rig.database.open().await;
    let stats = store.stats(SystemClock.now()).await.expect("the store counts");
    store.close().await;
    stats
}

/// What the server says of itself.
async fn ready(rig: &Rig) -> Answer {
    let request = b"GET /readyz HTTP/1.1\r\nHost: chaos.test\r\n\r\n";
    match Connection::to(&rig.api_addresses, 0).exchange(request).await {
        Exchange::Answered(answer) => answer,
        other => panic!("readyz does not answer: {other:?}"),
    }
}
