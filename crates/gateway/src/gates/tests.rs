//! Providers in trouble, on the real store, with a worker stepped on a clock that the test turns.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::join_all;
use model::{Category, EmailId, ErrorCode, EventKind, KeyMode, NewEmail, Status, Timestamp};
use provider::{Account, Quota, Taken};
use store::ProviderNote;
use testkit::{a_mailbox, an_email};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::testing::{Answer, FakeProvider, Stage, taken};
use crate::worker::Worker;

/// What a provider is told to say, and when it was called.
struct Script {
    trouble: Mutex<Option<(Category, Trouble)>>,
    calls: Mutex<Vec<Timestamp>>,
    clock: Arc<testkit::ManualClock>,
}

impl Script {
    fn new(stage: &Stage) -> Arc<Self> {
        Arc::new(Self { trouble: Mutex::default(), calls: Mutex::default(), clock: stage.clock.clone() })
    }

    fn says(&self, trouble: Option<(Category, Trouble)>) {
        *self.trouble.lock().expect("no test panics with it") = trouble;
    }

    fn calls(&self) -> Vec<Timestamp> {
        self.calls.lock().expect("no test panics with it").clone()
    }

    fn answer(&self) -> Answer {
        self.calls.lock().expect("no test panics with it").push(self.clock.now());
        match *self.trouble.lock().expect("no test panics with it") {
            None => taken(),
            Some((category, trouble)) => Err(SendError {
                code: ErrorCode::new("FAKE_IN_TROUBLE"),
                category,
                original_code: None,
                retry_after: None,
                detail: "not now".into(),
                taken: Taken::No,
                trouble: Some(trouble),
                refused: None,
            }),
        }
    }

    fn provider(self: &Arc<Self>) -> Arc<dyn Provider> {
        let script = self.clone();
        Arc::new(FakeProvider::answers(move || script.answer()))
    }
}

type Make<'a> = &'a dyn Fn(&Stage) -> Arc<dyn Provider>;

/// A stage whose company sends live mail through the given providers, in that order.
async fn stage_with(route: &[(&str, Make<'_>)]) -> Stage {
    let mut stage = Stage::with(FakeProvider::takes_everything()).await;
    let mut providers = (*stage.gateway.providers).clone();
    for (name, make) in route {
        providers.insert((*name).to_owned(), make(&stage));
    }
    stage.gateway.providers = Arc::new(providers);
    let mut company = stage.company.clone();
    company.settings.from = Some(a_mailbox("Acme <hi@acme.example>"));
    company.settings.route = Some(route.iter().map(|(name, _)| (*name).to_owned()).collect());
    stage.gateway.store.update_company(company.clone()).await.expect("the store works");
    stage.company = company;
    stage
}

async fn accept(stage: &Stage, route: &str, count: usize) -> Vec<EmailId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let email = NewEmail { mode: KeyMode::Live, route: route.to_owned(), ..an_email(stage.company.id) };
        ids.push(stage.accept(email).await);
    }
    ids
}

/// Lets the worker claim what it may and see it to its end.
async fn step(worker: &mut Worker) {
    worker.step(&CancellationToken::new()).await.expect("the store works");
}

async fn statuses(stage: &Stage, ids: &[EmailId], status: Status) -> usize {
    let mut count = 0;
    for &id in ids {
        count += usize::from(stage.status(id).await == status);
    }
    count
}

#[tokio::test]
async fn an_outage_burns_no_attempts_and_heals() {
    let script = Mutex::new(None);
    let make = |stage: &Stage| {
        let made = Script::new(stage);
        *script.lock().expect("set once") = Some(made.clone());
        made.provider()
    };
    let stage = stage_with(&[("main", &make)]).await;
    let script = script.lock().expect("set once").clone().expect("made");
    let ids = accept(&stage, "main", 60).await;
    script.says(Some((Category::Transient, Trouble::Outage)));
    let mut worker = Worker::new(stage.gateway.clone());
    for _ in 0..4 * 60 {
        step(&mut worker).await;
        stage.pass(Duration::from_millis(250));
    }
    assert_eq!(statuses(&stage, &ids, Status::Failed).await, 0);
    let calls = script.calls();
    let met_it = calls.iter().filter(|at| **at == calls[0]).count();
    assert!(met_it <= 8, "{met_it} were under way when it began");
    let probes = &calls[met_it..];
    assert!((4..=10).contains(&probes.len()), "{} probes in a minute", probes.len());
    assert!(probes.windows(2).all(|pair| pair[1].since(pair[0]) >= Duration::from_secs(1)), "{probes:?}");
    let mut untouched = 0;
    for &id in &ids {
        untouched += usize::from(stage.kinds(id).await == [EventKind::Enqueued]);
    }
    // Besides those that met it, a few were claimed already when it began, and were put back.
    assert!(untouched >= 60 - calls.len() - 8, "{untouched} of 60 wait as they came");

    script.says(None);
    for _ in 0..4 * 200 {
        step(&mut worker).await;
        stage.pass(Duration::from_millis(250));
    }
    assert_eq!(statuses(&stage, &ids, Status::Sent).await, 60, "all are sent when it has healed");
    assert_eq!(script.calls().len(), calls.len() + 60, "each once");
}

#[tokio::test]
async fn the_next_provider_takes_over_while_the_first_rests() {
    let broken = |stage: &Stage| {
        let script = Script::new(stage);
        script.says(Some((Category::Transient, Trouble::Outage)));
        script.provider()
    };
    let second = Arc::new(FakeProvider::takes_everything());
    let other = second.clone();
    let stage = stage_with(&[("main", &broken), ("second", &move |_| other.clone())]).await;
    let ids = accept(&stage, "main>second", 40).await;
    let mut worker = Worker::new(stage.gateway.clone());
    for _ in 0..4 * 40 {
        step(&mut worker).await;
        stage.pass(Duration::from_millis(250));
    }
    assert_eq!(statuses(&stage, &ids, Status::Sent).await, 40);
    let mut handed = second.handed();
    handed.sort_unstable();
    handed.dedup();
    assert_eq!(handed.len(), 40, "each by the second one, once");
    assert_eq!(second.handed().len(), 40);
}

#[tokio::test]
async fn a_route_that_was_changed_meanwhile_is_followed() {
    let broken = |stage: &Stage| {
        let script = Script::new(stage);
        script.says(Some((Category::Transient, Trouble::Outage)));
        script.provider()
    };
    let second = Arc::new(FakeProvider::takes_everything());
    let other = second.clone();
    let mut stage = stage_with(&[("main", &broken), ("second", &move |_| other.clone())]).await;
    let route = |stage: &Stage, names: &[&str]| {
        let mut company = stage.company.clone();
        company.settings.route = Some(names.iter().map(|&name| name.to_owned()).collect());
        company
    };
    stage.company = route(&stage, &["main"]);
    stage.gateway.store.update_company(stage.company.clone()).await.expect("the store works");
    let ids = accept(&stage, "main", 20).await;
    let mut worker = Worker::new(stage.gateway.clone());
    step(&mut worker).await;
    stage.pass(Duration::from_millis(250));
    assert_eq!(statuses(&stage, &ids, Status::Sent).await, 0);

    stage.gateway.store.update_company(route(&stage, &["second"])).await.expect("the store works");
    let mut worker = Worker::new(stage.gateway.clone());
    for _ in 0..4 * 60 {
        step(&mut worker).await;
        stage.pass(Duration::from_millis(250));
    }
    assert_eq!(statuses(&stage, &ids, Status::Sent).await, 20);
    assert_eq!(second.handed().len(), 20);
}

/// A provider whose account can be asked.
struct Asked {
    sends: FakeProvider,
    asked: AtomicU32,
    has_quota: AtomicBool,
}

#[async_trait::async_trait]
impl Provider for Asked {
    fn kind(&self) -> &'static str {
        "asked"
    }

    async fn send(&self, email: &model::email::Outgoing) -> Answer {
        if self.has_quota.load(Ordering::SeqCst) {
            return self.sends.send(email).await;
        }
        let error = SendError {
            code: ErrorCode::new("SES_DAILY_QUOTA_EXCEEDED"),
            category: Category::Quota,
            original_code: None,
            retry_after: None,
            detail: "Daily message quota exceeded".into(),
            taken: Taken::No,
            trouble: Some(Trouble::QuotaUsedUp),
            refused: None,
        };
        self.sends.send(email).await.and(Err(error))
    }

    async fn account(&self) -> Result<Option<Account>, SendError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let sent_24_hours = if self.has_quota.load(Ordering::SeqCst) { 0.0 } else { 200.0 };
        let quota = Some(Quota { max_24_hours: 200.0, sent_24_hours });
        Ok(Some(Account { rate_per_sec: None, quota, may_send: true, is_sandboxed: false }))
    }
}

#[tokio::test]
async fn a_used_up_quota_is_asked_about_and_costs_no_email() {
    let provider = Arc::new(Asked {
        sends: FakeProvider::takes_everything(),
        asked: AtomicU32::new(0),
        has_quota: AtomicBool::new(false),
    });
    let made = provider.clone();
    let stage = stage_with(&[("main", &move |_| made.clone())]).await;
    let ids = accept(&stage, "main", 30).await;
    let mut worker = Worker::new(stage.gateway.clone());
    for _ in 0..600 {
        step(&mut worker).await;
        stage.pass(Duration::from_secs(1));
    }
    let spent = provider.sends.handed().len();
    assert!(spent <= 8, "{spent} emails were spent on finding out");
    let asked = provider.asked.load(Ordering::SeqCst);
    assert!((8..=11).contains(&asked), "asked {asked} times in ten minutes");
    assert_eq!(statuses(&stage, &ids, Status::Failed).await, 0);

    provider.has_quota.store(true, Ordering::SeqCst);
    for _ in 0..600 {
        step(&mut worker).await;
        stage.pass(Duration::from_secs(1));
    }
    assert_eq!(statuses(&stage, &ids, Status::Sent).await, 30);
}

#[tokio::test]
async fn a_provider_that_does_not_answer_leaves_room_for_others() {
    let hangs = Arc::new(FakeProvider::new(|_| std::future::pending().boxed()));
    let made = hangs.clone();
    let stage = stage_with(&[("slow", &move |_| made.clone())]).await;
    accept(&stage, "slow", 50).await;
    let mut worker = Worker::new(stage.gateway.clone());
    let shutdown = CancellationToken::new();
    for _ in 0..10 {
        worker.claim_round(&shutdown).await.expect("the store works");
        tokio::task::yield_now().await;
    }
    let captured = NewEmail { route: "capture".into(), ..an_email(stage.company.id) };
    let id = stage.accept(captured).await;
    for _ in 0..200 {
        worker.claim_round(&shutdown).await.expect("the store works");
        tokio::time::sleep(Duration::from_millis(5)).await;
        if stage.status(id).await == Status::Sent {
            break;
        }
    }
    assert_eq!(stage.status(id).await, Status::Sent);
    assert_eq!(hangs.handed().len(), 6, "three quarters of eight slots");
}

#[tokio::test(start_paused = true)]
async fn throttling_slows_and_others_share_the_rate() {
    let script = Mutex::new(None);
    let make = |stage: &Stage| {
        let made = Script::new(stage);
        *script.lock().expect("set once") = Some(made.clone());
        made.provider()
    };
    let mut stage = stage_with(&[("main", &make)]).await;
    let mut settings = (*stage.gateway.settings).clone();
    settings.provider_rates = [("main".to_owned(), 40)].into();
    stage.gateway.settings = Arc::new(settings);
    let bench = crate::attempt::Bench::new(stage.gateway.clone(), CancellationToken::new());
    let other = crate::attempt::Bench::new(stage.gateway.clone(), CancellationToken::new());
    assert_eq!(bench.gates.per_sec("main"), Some(40));
    let script = script.lock().expect("set once").clone().expect("made");
    script.says(Some((Category::Quota, Trouble::Throttled)));
    let error = script.answer().expect_err("it is throttled");
    bench.gates.report("main", Some(&error)).await;
    assert_eq!(bench.gates.per_sec("main"), Some(20), "half at once");
    assert!(bench.gates.is_open("main"), "it goes on");
    other.gates.refresh().await.expect("the store works");
    assert_eq!(other.gates.per_sec("main"), Some(20), "for everybody");
    stage.pass(Duration::from_secs(4));
    assert_eq!(bench.gates.per_sec("main"), Some(29));
    stage.pass(Duration::from_secs(10));
    assert_eq!(bench.gates.per_sec("main"), Some(40), "and back");

    // Two processes, one rate: no more than forty within the second.
    let soon = || Instant::now() + Duration::from_millis(1);
    let mut started = 0;
    for _ in 0..50 {
        started += u32::from(bench.gates.start("main", 1, soon()).await.expect("the store works"));
        started += u32::from(other.gates.start("main", 1, soon()).await.expect("the store works"));
    }
    assert_eq!(started, 40);
}

/// A store that takes its time. Its own clock is tokio's, so that a test of minutes takes none.
struct Slow {
    answers_after: Duration,
    started: AtomicU32,
}

#[async_trait]
impl Providers for Slow {
    async fn take_starts(&self, _: &str, wish: StartsWish, _: Timestamp) -> Result<u32, StoreError> {
        tokio::time::sleep(self.answers_after).await;
        let taken = wish.granted(self.started.load(Ordering::SeqCst));
        self.started.fetch_add(taken, Ordering::SeqCst);
        Ok(taken)
    }

    async fn provider_notes(&self) -> Result<Vec<ProviderNote>, StoreError> {
        Ok(Vec::new())
    }

    async fn note_provider(&self, _: &str, _: u64, _: &str) -> Result<bool, StoreError> {
        Ok(true)
    }
}

/// A database far away, or on a slow disk: every start it gives is used, by who asked for it or by who stands in line.
#[tokio::test(start_paused = true)]
async fn a_slow_store_wastes_no_starts() {
    for answers_after in [1, 30, 300].map(Duration::from_millis) {
        let store = Arc::new(Slow { answers_after, started: AtomicU32::new(0) });
        let provider: Arc<dyn Provider> = Arc::new(FakeProvider::answers(taken));
        let providers = Arc::new(BTreeMap::from([("main".to_owned(), provider)]));
        let rates = BTreeMap::from([("main".to_owned(), 40)]);
        let gates = Gates::new(store, Arc::new(testkit::ManualClock::default()), providers, rates);
        let until = Instant::now() + Duration::from_secs(5);
        let started = join_all((0..50).map(|_| gates.start("main", 1, until))).await;
        let started = started.into_iter().filter(|started| started == &Ok(true)).count();
        assert_eq!(started, 40, "{answers_after:?}");
    }
}
