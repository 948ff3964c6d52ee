//! No accepted email is lost when the process is killed, however often: SIGKILL under load, a restart at once, and at
//! the end nothing is missing and every second copy is marked.

use std::time::{Duration, Instant};

use model::{Clock as _, SystemClock};
use rand::Rng as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

use crate::load::{Load, Refusal};
use crate::plan::{Plan, RUN_MAX, WORKER_CONCURRENCY};
use crate::provider_ledger::Follower;
use crate::rig::{COMPANY, Rig};
use crate::stored;
use crate::verdict::{Evidence, Verdict};

/// What is left after the last kill waits half a minute for a report of the provider, perhaps more than once.
const DRAIN_MAX: Duration = Duration::from_secs(150);
/// Between two looks at the ledgers.
pub const LOOK_EVERY: Duration = Duration::from_millis(10);
/// One kill in so many follows right on the one before, while the server is still getting up.
const KILLED_AT_START: u32 = 8;
/// Sets the dice for the moment of a fault apart from those for emails.
const FAULT_DICE: u64 = 0xFA00_0000;
/// A kill comes up to this long after it is due, so that it does not always follow a message.
const HESITATION_MS: u64 = 150;
/// Between the two signals; calls to the provider take longer.
const TWICE_WITHIN: Duration = Duration::from_millis(10);
/// How long a server that was restarted may take to show that it works again.
pub const COMEBACK_MAX: Duration = Duration::from_secs(60);
/// A dead worker's emails are taken over by the next process, within 5 seconds on a machine that is not busy. Who waited for
/// their leases (45 s) would take longer than this.
const RESUMED_MAX_MS: i64 = 30_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_kills_lose_nothing() {
    let plan = Plan::with_kills(2_000, 10);
    let started = Instant::now();
    let rig = Rig::set_up(plan.sink_latency_ms).await;
    let mut server = rig.start_server();
    let (load, clients) = Load::start(plan, &rig.api_addresses, &rig.key, Refusal::IsCertain);
    let mut follower = rig.provider_ledger();

    let mut run = Run { plan, load: &load, follower: &mut follower };
    let mut restarts = Vec::new();
    for fault in plan.fault_times() {
        run.await_moment(fault).await;
        server.kill_and_restart().await;
        restarts.push(SystemClock.now());
    }
    // A second SIGTERM means at once: one more sudden death, of the process's own making.
    run.await_progress(0).await;
    let hurried = server.terminate_twice(TWICE_WITHIN).await;
    assert!(hurried.code().is_some(), "a second SIGTERM ends the process in its own way: {hurried}");
    server.restart();
    restarts.push(SystemClock.now());
    run.await_clients(clients).await;
    load.ask_again_for_doubtful().await;
    let killed_for = started.elapsed();
    let is_drained = stored::drained(&rig.database, DRAIN_MAX).await;
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
    if !rig.database.is_intact().await {
        verdict.complain("the database is damaged".to_owned());
    }
    load.complaints().into_iter().for_each(|complaint| verdict.complain(complaint));
    let cut_off: u32 = evidence.receipts.iter().flatten().map(|receipt| receipt.cut_off).sum();
    let replayed = evidence.receipts.iter().flatten().filter(|receipt| receipt.replayed).count();
    println!("{verdict}");
    println!("requests cut off: {cut_off}, answered when asked again: {replayed}");
    println!("load {killed_for:?}, all {:?}, drained: {is_drained}, exit: {exit}", started.elapsed());

    let fails = verdict.breaks_promises()
        || !is_drained
        || exit.code() != Some(0)
        || verdict.in_flight > (plan.faults + 1) * WORKER_CONCURRENCY
        || verdict.resumed_ms_max > RESUMED_MAX_MS;
    rig.tear_down(fails).await;
    assert!(!fails, "a promise was broken: {}", verdict.in_full());
}

/// A run while its load is on.
pub struct Run<'a> {
    pub plan: Plan,
    pub load: &'a Load,
    pub follower: &'a mut Follower,
}

impl Run<'_> {
    /// Waits until the next fault is due: mostly when that many emails are at the provider and the server has shown
    /// that it works, sometimes almost at once. The load rises just before.
    pub async fn await_moment(&mut self, due: usize) {
        let mut dice = self.plan.dice(FAULT_DICE + due as u64);
        if !dice.random_ratio(1, KILLED_AT_START) {
            self.await_progress(due).await;
        }
        self.rush(&mut dice).await;
    }

    /// The same without surprises: the server works when the fault comes.
    pub async fn await_busy_moment(&mut self, due: usize) {
        self.await_progress(due).await;
        self.rush(&mut self.plan.dice(FAULT_DICE + due as u64)).await;
    }

    async fn rush(&self, dice: &mut StdRng) {
        self.load.reached_provider(self.follower.ledger.copies.len() + self.plan.rush());
        tokio::time::sleep(Duration::from_millis(dice.random_range(0..HESITATION_MS))).await;
    }

    /// Until the work is done, every client has an email to hand in.
    pub async fn keep_busy(&self, work: impl Future<Output = ()>) {
        let mut work = std::pin::pin!(work);
        loop {
            self.load.allow_more();
            tokio::select! {
                () = &mut work => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    async fn await_progress(&mut self, due: usize) {
        let (accepted, sent) = (self.load.accepted(), self.look());
        let deadline = Instant::now() + COMEBACK_MAX;
        loop {
            let sent_now = self.look();
            let accepts = self.load.accepted() > accepted || self.load.accepted() == self.plan.emails;
            if sent_now >= due && sent_now > sent && accepts {
                return;
            }
            assert!(Instant::now() < deadline, "the server accepts or sends nothing for {COMEBACK_MAX:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub async fn await_all_sent(&mut self) {
        let deadline = Instant::now() + COMEBACK_MAX;
        while self.look() < self.plan.emails {
            assert!(Instant::now() < deadline, "not everything reached the provider within {COMEBACK_MAX:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Reads the provider's ledger on, lets the load follow it, and says how many emails are in it.
    pub fn look(&mut self) -> usize {
        self.follower.read_on();
        let sent = self.follower.ledger.copies.len();
        self.load.reached_provider(sent);
        sent
    }

    pub async fn await_clients(&mut self, mut clients: JoinSet<()>) {
        let deadline = Instant::now() + RUN_MAX;
        while !clients.is_empty() {
            assert!(Instant::now() < deadline, "the clients never came to an end");
            self.look();
            tokio::select! {
                ended = clients.join_next() => ended.into_iter().for_each(|ended| ended.expect("no client panics")),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }
}
