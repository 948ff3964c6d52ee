//! A worker that was stopped for longer than its lease can never overwrite its successor: two worker processes on one
//! database, one of them stopped (SIGSTOP) until the other has taken its emails over, then let go on (SIGCONT).
//!
//! The configuration allows no lease below the time-out of a provider call, so the processes are not the binary but
//! this test program again, which runs the gateway's worker and sweep with a lease of two seconds.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gateway::worker::Worker;
use gateway::{EnvironmentGuard, Gateway, Settings, sweep};
use model::email::Wishes;
use model::{
    Address, Clock, Company, CompanyId, CompanySettings, Content, EmailId, Envelope, KeyMode, Mailbox,
    NewEmail, RetryPolicy, Secret, Status, SystemClock,
};
use provider::Provider;
use provider_smtp::{SmtpConfig, SmtpProvider};
use queue_store::StoreQueue;
use rand::Rng as _;
use store::{Acceptance, Retention, Store};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal as listen_for};
use tokio_util::sync::CancellationToken;

use crate::database::{self, Database, Engine};
use crate::load::Receipt;
use crate::plan::{Plan, RUN_MAX, WORKER_CONCURRENCY};
use crate::processes::{TERMINATION_MAX, signal};
use crate::provider_ledger::Follower;
use crate::rig::{COMPANY, Rig};
use crate::stored;
use crate::verdict::{Evidence, Verdict};

/// How often a run is made again that proved nothing.
const RUNS_MAX: usize = 5;
const LEASE: Duration = Duration::from_secs(2);
/// Longer than the lease and two rounds of the sweep.
const STOPPED_FOR: Duration = Duration::from_secs(5);
/// What was at the provider waits half a minute for a report, perhaps more than once.
const DRAIN_MAX: Duration = Duration::from_secs(150);
const PAUSE: Duration = Duration::from_millis(20);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Tells this test program that it is a worker, and of which database and provider.
const DATABASE: &str = "POSTHASTE_TEST_WORKER_DATABASE";
const PROVIDER: &str = "POSTHASTE_TEST_WORKER_PROVIDER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_paused_worker_changes_nothing() {
    paused_worker_changes_nothing(Engine::Sqlite, 4).await;
}

/// Here a worker that is stopped within a transaction holds its locks on the server meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_paused_worker_on_postgres_changes_nothing() {
    paused_worker_changes_nothing(Engine::Postgres, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_paused_worker_on_mariadb_changes_nothing() {
    paused_worker_changes_nothing(Engine::Mariadb, 2).await;
}

/// Whether a worker is stopped at the one moment that matters, between the provider's answer and its record, is chance;
/// a run in which none was proves nothing and is made again.
async fn paused_worker_changes_nothing(engine: Engine, rounds: usize) {
    for _ in 0..RUNS_MAX {
        if late_results_of_a_run(engine, rounds).await > 0 {
            return;
        }
    }
    panic!("no worker came back too late in {RUNS_MAX} runs: they prove nothing");
}

async fn late_results_of_a_run(engine: Engine, rounds: usize) -> usize {
    let plan = Plan::with_rounds(0, rounds);
    let rig = Rig::without_company(engine, plan.sink_latency_ms).await;
    let feed = Arc::new(Feed::open(&rig.database).await);
    let feeding = tokio::spawn(Arc::clone(&feed).hand_in());
    let mut follower = rig.provider_ledger();
    let mut workers = [start_worker(&rig), start_worker(&rig)];

    let mut dice = plan.dice(2);
    for _ in 0..plan.faults {
        feed.await_progress(&mut follower).await;
        tokio::time::sleep(Duration::from_millis(dice.random_range(0..200))).await;
        let paused = &workers[dice.random_range(0..workers.len())];
        signal(paused, "STOP").await;
        feed.follow(&mut follower, STOPPED_FOR).await;
        signal(paused, "CONT").await;
    }
    feed.is_over.store(true, Ordering::Relaxed);
    let receipts = feeding.await.expect("the feed does not panic");
    let is_drained = stored::drained(&rig.database, DRAIN_MAX).await;
    for worker in &mut workers {
        end_worker(worker).await;
    }

    follower.read_on();
    let stored = stored::read(&rig.database, COMPANY).await;
    let evidence = Evidence {
        seed: plan.seed,
        faults: plan.faults,
        restarts: vec![],
        receipts,
        provider: follower.ledger,
        stored,
    };
    let verdict = Verdict::of(&evidence);
    println!("{engine:?} {verdict} late_results={}", verdict.late_results);
    let fails = verdict.breaks_promises() || !is_drained;
    rig.tear_down(fails).await;
    assert!(!fails, "a promise was broken: {}", verdict.in_full());
    verdict.late_results
}

/// Not a test of its own: the worker process that the test above starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_worker_of_the_pause_run() {
    let Some((store, sink)) = surroundings().await else { return };
    work(a_gateway(store, Arc::new(sink), Arc::new(SystemClock))).await;
}

/// What the test that started this process told it; `None` when nobody did.
pub async fn surroundings() -> Option<(Arc<dyn Store>, SmtpProvider)> {
    let (Ok(database), Ok(provider)) = (std::env::var(DATABASE), std::env::var(PROVIDER)) else {
        return None;
    };
    let config = SmtpConfig::parse(&provider).expect("the sink's address is good");
    let sink = SmtpProvider::new(config).expect("the sink's settings are good");
    Some((database::open(&database).await, sink))
}

/// Works until it is asked to end.
pub async fn work(gateway: Gateway) {
    let store = Arc::clone(&gateway.store);
    let shutdown = CancellationToken::new();
    let mut asked_to_end = listen_for(SignalKind::terminate()).expect("signals can be heard");
    let working = tokio::spawn(Worker::run(gateway.clone(), shutdown.clone()));
    let sweeping = tokio::spawn(sweep::run(gateway, shutdown.clone()));
    // Bounded like the run itself, should the test die and leave this process alone.
    let _ = tokio::time::timeout(RUN_MAX, asked_to_end.recv()).await;
    shutdown.cancel();
    working.await.expect("the worker does not panic");
    sweeping.await.expect("the sweep does not panic");
    store.close().await;
}

pub fn a_gateway(store: Arc<dyn Store>, sink: Arc<dyn Provider>, clock: Arc<dyn Clock>) -> Gateway {
    let policy = RetryPolicy { max_attempts: 30, ..RetryPolicy::fast() };
    Gateway {
        queue: Arc::new(StoreQueue::new(Arc::clone(&store))),
        store,
        providers: Arc::new(BTreeMap::from([("sink".to_owned(), sink)])),
        clock,
        suppressions: Arc::default(),
        templates: Arc::default(),
        tracer: Default::default(),
        dice: Arc::new(|| rand::rng().random_range(-1.0..=1.0)),
        settings: Arc::new(Settings {
            default_retry_policy: policy.name.clone(),
            retry_policies: BTreeMap::from([(policy.name.clone(), policy)]),
            default_route: vec!["sink".to_owned()],
            ttl: DAY,
            worker_concurrency: WORKER_CONCURRENCY as u32,
            lease: LEASE,
            retention: Retention { content: DAY, emails: DAY, dead_letters: DAY },
            guard: EnvironmentGuard::Open,
            provider_rates: Default::default(),
            alerts: Default::default(),
            reputation: None,
        }),
    }
}

fn start_worker(rig: &Rig) -> Child {
    let mut command = this_program_as("pause::process_worker_of_the_pause_run", rig);
    command.spawn().expect("a worker process can be started")
}

/// This test program again, as the process that the named test is.
pub fn this_program_as(test: &str, rig: &Rig) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program knows itself"));
    command
        .args(["--exact", test, "--nocapture"])
        .env(DATABASE, rig.database.url())
        .env(PROVIDER, rig.sink_url())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    command
}

pub async fn end_worker(worker: &mut Child) {
    signal(worker, "TERM").await;
    let ended = tokio::time::timeout(TERMINATION_MAX, worker.wait()).await;
    let status = ended.expect("the worker ends in time").expect("the worker can be waited for");
    assert!(status.success(), "the worker process failed: {status}");
}

/// Hands emails in at the store itself, as long as the run lasts.
struct Feed {
    store: Arc<dyn Store>,
    company: CompanyId,
    allowed: AtomicUsize,
    accepted: AtomicUsize,
    is_over: AtomicBool,
}

impl Feed {
    /// How far acceptance runs ahead of what reached the provider.
    const BACKLOG_MAX: usize = 200;
    /// Both workers have done something since, if this many more emails are at the provider.
    const PROGRESS: usize = 100;

    async fn open(database: &Database) -> Self {
        let store = database.open().await;
        let company = add_company(&*store).await;
        let allowed = AtomicUsize::new(Self::BACKLOG_MAX);
        Self { store, company, allowed, accepted: AtomicUsize::new(0), is_over: AtomicBool::new(false) }
    }

    async fn hand_in(self: Arc<Self>) -> Vec<Option<Receipt>> {
        let mut receipts = Vec::new();
        let deadline = Instant::now() + RUN_MAX;
        while !self.is_over.load(Ordering::Relaxed) && Instant::now() < deadline {
            if receipts.len() >= self.allowed.load(Ordering::Relaxed) {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let id = EmailId::new(SystemClock.now());
            // A process that is stopped within a transaction holds the lock; nothing was stored then.
            if self.store.accept(acceptance(self.company, id, "reader@inbox.test")).await.is_ok() {
                receipts.push(Some(Receipt { id, cut_off: 0, garbled: 0, refused: 0, replayed: false }));
                self.accepted.store(receipts.len(), Ordering::Relaxed);
            }
        }
        self.store.close().await;
        receipts
    }

    fn look(&self, follower: &mut Follower) -> usize {
        follower.read_on();
        let sent = follower.ledger.copies.len();
        self.allowed.store(sent + Self::BACKLOG_MAX, Ordering::Relaxed);
        sent
    }

    async fn await_progress(&self, follower: &mut Follower) {
        let target = self.look(follower) + Self::PROGRESS;
        let deadline = Instant::now() + DRAIN_MAX;
        while self.look(follower) < target {
            assert!(Instant::now() < deadline, "the workers send nothing for {DRAIN_MAX:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Lets the load go on for a while.
    async fn follow(&self, follower: &mut Follower, duration: Duration) {
        let until = Instant::now() + duration;
        while Instant::now() < until {
            self.look(follower);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

pub async fn add_company(store: &dyn Store) -> CompanyId {
    add_company_named(store, COMPANY).await
}

pub async fn add_company_named(store: &dyn Store, name: &str) -> CompanyId {
    let sender = Mailbox::parse("Chaos <chaos@sender.test>").expect("a good sender");
    let company = Company {
        id: CompanyId::new(SystemClock.now()),
        name: name.to_owned(),
        settings: CompanySettings { from: Some(sender), ..CompanySettings::default() },
        created_at: SystemClock.now(),
        disabled_at: None,
        pause: None,
        resumed_at: None,
    };
    let id = company.id;
    store.add_company(company).await.expect("the company is new");
    id
}

pub fn acceptance(company: CompanyId, id: EmailId, to: &str) -> Acceptance {
    let now = SystemClock.now();
    let envelope = Envelope {
        from: None,
        to: Address::parse(to).expect("a good address"),
        cc: vec![],
        bcc: vec![],
        reply_to: None,
        subject: Secret::new("Chaos".to_owned()),
        headers: vec![],
        tags: vec![],
    };
    let email = NewEmail {
        id,
        company,
        request_id: id.to_string(),
        mode: KeyMode::Live,
        status: Status::Enqueued,
        envelope,
        recipient: None,
        external_id: None,
        entity: None,
        route: String::new(),
        priority: 5,
        created_at: now,
        due_at: now,
        scheduled_at: None,
        expires_at: now.plus(DAY),
        wishes: Wishes::default(),
        content: Content::Composed { html: "<p>Chaos</p>".to_owned(), text: None, attachments: vec![] },
        trace: None,
    };
    Acceptance { company, emails: vec![email], key: None, daily_limit: None, now }
}
