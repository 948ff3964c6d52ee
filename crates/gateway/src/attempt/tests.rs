//! Attempts on the real store, stepped by `run_once` on a clock that the test turns.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use model::email::Wishes;
use model::{Clock, EventKind, Failure, NewEmail, OnUnknown, RetryPolicy, Status};
use provider::Taken;
use store::{Cancelled, SettledBy};
use testkit::{a_failure, a_recipient, an_address, an_email};

use super::*;
use crate::sweep::sweep_once;
use crate::testing::{FakeProvider, Stage, refused, taken};
use crate::worker::run_once;

const DAY: u64 = 24 * 3600;
const DAY_AND_MORE: Duration = Duration::from_secs(DAY + 1);

/// Lets time pass in steps until no attempt is left or the day is over, working at every step.
async fn work_through(stage: &Stage, step: Duration) {
    for _ in 0..DAY / step.as_secs() {
        run_once(&stage.gateway).await.expect("the store works");
        stage.pass(step);
    }
}

#[tokio::test]
async fn an_email_is_sent_and_its_history_told() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept_one().await;
    assert_eq!(run_once(&stage.gateway).await, Ok(1));
    assert_eq!(stage.status(id).await, Status::Sent);
    let kinds = stage.kinds(id).await;
    let attempt = [EventKind::Received, EventKind::Validated, EventKind::SentAttempt, EventKind::Sent];
    assert_eq!(kinds[kinds.len() - 4..], attempt);
    assert_eq!(stage.email(id).await.provider_message_id.as_deref(), Some("m-1"));
    assert_eq!(run_once(&stage.gateway).await, Ok(0));
    assert_eq!(stage.provider.handed(), [id]);
}

#[tokio::test]
async fn the_fast_policy_gives_up_after_five_attempts() {
    let stage = Stage::with(FakeProvider::answers(|| refused(Category::Transient, Taken::No))).await;
    let id = stage.accept_one().await;
    for _ in 0..200 {
        run_once(&stage.gateway).await.expect("the store works");
        stage.pass(Duration::from_secs(1));
    }
    assert_eq!(stage.status(id).await, Status::Failed);
    // After 1, 5, 30 and 120 seconds.
    assert_eq!(stage.seconds_of(id, EventKind::SentAttempt).await, [0, 1, 6, 36, 156]);
    assert_eq!(stage.email(id).await.last_failure.expect("a failure").code, "FAKE_SAYS_NO");
    assert_eq!(stage.provider.handed().len(), 5);
}

#[tokio::test]
async fn the_patient_policy_waits_for_hours() {
    let stage = Stage::with(FakeProvider::answers(|| refused(Category::Quota, Taken::No))).await;
    let wishes = Wishes { retry_policy: Some("patient".into()), ..Wishes::default() };
    let id = stage.accept(NewEmail { wishes, ..an_email(stage.company.id) }).await;
    work_through(&stage, Duration::from_secs(900)).await;
    assert_eq!(stage.status(id).await, Status::Failed);
    assert_eq!(stage.seconds_of(id, EventKind::SentAttempt).await, [0, 900, 4_500, 26_100]);
}

/// A copy that may yet be taken is waited for; when no other attempt follows, by the policy or in its time, the email goes
/// without it, and its history says so.
#[tokio::test]
async fn the_last_attempt_leaves_out_a_refused_copy() {
    for (ttl_secs, attempts) in [(DAY, 5), (120, 4)] {
        let copy = an_address("bob@example.com");
        let refusal = Failure { refused: Some(Box::new(copy.clone())), ..a_failure("SMTP_TRANSIENT_450") };
        let provider = FakeProvider::new(move |email: Outgoing| {
            let answer = if email.is_last_attempt {
                Ok(Receipt { refused: vec![refusal.clone()], ..taken().expect("taken") })
            } else {
                refused(Category::Transient, Taken::No)
            };
            std::future::ready(answer).boxed()
        });
        let stage = Stage::with(provider).await;
        let mut email = an_email(stage.company.id);
        email.envelope.cc = vec![copy.clone()];
        email.expires_at = stage.gateway.clock.now().plus(Duration::from_secs(ttl_secs));
        let id = stage.accept(email).await;
        for _ in 0..300 {
            run_once(&stage.gateway).await.expect("the store works");
            stage.pass(Duration::from_secs(1));
        }
        let handed = stage.provider.handed().len();
        assert_eq!((stage.status(id).await, handed), (Status::Sent, attempts), "{ttl_secs} s");
        let last = stage.events(id).await.pop().expect("a history");
        let told = &last.metadata["copiesRefused"][0];
        assert_eq!(
            (&told["recipient"], &told["errorCode"]),
            (&"b***@e***.com".into(), &"SMTP_TRANSIENT_450".into())
        );
        let states = stage.gateway.store.recipient_states(stage.company.id, id).await.expect("read");
        let states: Vec<_> = states.into_iter().map(|state| (state.address, state.status)).collect();
        assert_eq!(states, [(copy, Status::Failed)]);
    }
}

#[tokio::test]
async fn a_retry_that_would_come_too_late_expires_the_email_now() {
    let stage = Stage::with(FakeProvider::answers(|| refused(Category::Quota, Taken::No))).await;
    let email = an_email(stage.company.id);
    let expires_at = stage.gateway.clock.now().plus(Duration::from_secs(3));
    let id = stage.accept(NewEmail { expires_at, ..email }).await;
    for _ in 0..3 {
        run_once(&stage.gateway).await.expect("the store works");
        stage.pass(Duration::from_secs(1));
    }
    assert_eq!(stage.status(id).await, Status::Expired);
    let last = stage.events(id).await.pop().expect("a history");
    assert_eq!((last.kind, last.metadata["wouldRetryAt"].clone()), {
        (EventKind::Expired, "2026-01-01T00:00:06.000Z".into())
    });
}

#[tokio::test]
async fn an_email_that_waited_too_long_is_never_sent() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept_one().await;
    stage.pass(Duration::from_secs(DAY));
    run_once(&stage.gateway).await.expect("the store works");
    sweep_once(&stage.gateway).await.expect("the store works");
    assert_eq!(stage.status(id).await, Status::Expired);
    assert!(stage.provider.handed().is_empty());
}

/// An attempt by hand, so that things can happen between its claim and its end.
async fn attempt(stage: &Stage, claim: Claim) -> Finished {
    let stop = CancellationToken::new();
    let bench = Bench::new(stage.gateway.clone(), stop);
    let flight = Flight::of(&claim, None);
    run(&bench, claim, &Addressees::default(), &flight).await
}

#[tokio::test]
async fn one_that_expires_after_the_claim_is_not_sent_either() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept_one().await;
    let claim = stage.claim_and_vanish().await;
    stage.pass(Duration::from_secs(DAY));
    assert_eq!(attempt(&stage, claim).await, Finished::Recorded(Status::Expired));
    assert_eq!(stage.kinds(id).await.last(), Some(&EventKind::Expired));
    assert!(stage.provider.handed().is_empty());
}

/// A clock that leaps to the next day at one of its readings.
#[derive(Debug)]
struct Leaping {
    left: AtomicU32,
}

impl Leaping {
    fn is_over(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

impl Clock for Leaping {
    fn now(&self) -> Timestamp {
        let earlier = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if earlier.is_ok_and(|left| left > 1) { testkit::START } else { testkit::START.plus(DAY_AND_MORE) }
    }
}

#[tokio::test]
async fn wherever_the_time_goes_nothing_is_sent_after_its_end() {
    let mut sent = 0;
    for readings in 2..20 {
        let clock = Arc::new(Leaping { left: AtomicU32::new(readings) });
        let (looked_at, is_late) = (clock.clone(), Arc::new(AtomicBool::new(false)));
        let late = is_late.clone();
        let behaviour = move |_| {
            late.store(looked_at.is_over(), Ordering::SeqCst);
            std::future::ready(taken()).boxed()
        };
        let mut stage = Stage::with(FakeProvider::new(behaviour)).await;
        stage.accept_one().await;
        let claim = stage.claim_and_vanish().await;
        stage.gateway.clock = clock;
        let finished = attempt(&stage, claim).await;
        assert!(!is_late.load(Ordering::SeqCst), "reading {readings} said that its time was over");
        sent += u32::from(finished == Finished::Recorded(Status::Sent));
        assert_eq!(stage.provider.handed().is_empty(), finished == Finished::Recorded(Status::Expired));
    }
    assert!((1..18).contains(&sent), "some in time and some not: {sent}");
}

#[tokio::test]
async fn one_that_is_cancelled_after_the_claim_is_not_sent() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept_one().await;
    let claim = stage.claim_and_vanish().await;
    let now = stage.gateway.clock.now();
    assert_eq!(stage.gateway.store.cancel(stage.company.id, id, now).await, Ok(Cancelled::Done));
    assert_eq!(attempt(&stage, claim).await, Finished::Lost);
    assert_eq!(stage.status(id).await, Status::Cancelled);
    assert!(stage.provider.handed().is_empty());
}

#[tokio::test]
async fn a_result_that_comes_too_late_is_kept_as_an_event() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept_one().await;
    let claim = stage.claim_and_vanish().await;
    let start = AttemptStart {
        guard: claim.guard,
        provider: "capture".into(),
        events: vec![],
        now: claim.claimed_at,
    };
    let Ok(Begun::Yes(guard)) = stage.gateway.store.begin(start).await else { panic!("it is ours") };
    // The worker sleeps through its lease while the provider takes the email.
    stage.pass(Duration::from_secs(46));
    assert_eq!(sweep_once(&stage.gateway).await.map(|swept| swept.leases), Ok(1));
    assert_eq!(stage.status(id).await, Status::RetryScheduled);
    let verdict = model::Verdict::Sent {
        provider: "capture".into(),
        provider_kind: "capture",
        message_id: Some("m-9".into()),
        duration_ms: 1,
        refused: Vec::new(),
    };
    let now = stage.gateway.clock.now();
    let settlement = Settlement { guard, by: SettledBy::Worker, verdict, events: vec![], now };
    assert_eq!(stage.gateway.queue.settle(settlement).await, Ok(Settled::Late));
    assert_eq!(stage.status(id).await, Status::RetryScheduled);
    let last = stage.events(id).await.pop().expect("a history");
    assert_eq!(
        (last.kind, last.metadata["providerMessageId"].clone()),
        (EventKind::LateResult, "m-9".into())
    );
}

#[tokio::test]
async fn an_unknown_outcome_is_marked_and_tried_again_after_its_grace() {
    let stage = Stage::with(FakeProvider::answers(|| refused(Category::Timeout, Taken::Unknown))).await;
    let id = stage.accept_one().await;
    for _ in 0..60 {
        run_once(&stage.gateway).await.expect("the store works");
        stage.pass(Duration::from_secs(1));
    }
    assert_eq!(stage.seconds_of(id, EventKind::SentAttempt).await, [0, 30]);
    assert_eq!(stage.seconds_of(id, EventKind::OutcomeUnknown).await, [0, 30]);
    assert!(stage.email(id).await.outcome_unknown);
}

#[tokio::test]
async fn an_unknown_outcome_is_held_where_no_second_copy_may_be_risked() {
    let stage = Stage::with(FakeProvider::answers(|| refused(Category::Timeout, Taken::Unknown))).await;
    let wishes = Wishes { on_unknown: Some(OnUnknown::Hold), ..Wishes::default() };
    let id = stage.accept(NewEmail { wishes, ..an_email(stage.company.id) }).await;
    work_through(&stage, Duration::from_secs(600)).await;
    assert_eq!(stage.provider.handed(), [id]);
    assert_eq!(stage.email(id).await.last_failure.expect("a failure").code, "OUTCOME_UNKNOWN");
    // Nobody came: at the end of its life it is a dead letter, not an expired email.
    sweep_once(&stage.gateway).await.expect("the store works");
    assert_eq!(stage.status(id).await, Status::Failed);
}

#[tokio::test]
async fn an_email_that_makes_us_panic_harms_only_itself() {
    let behaviour = |email: Outgoing| {
        let is_poison = email.envelope.to.expose().starts_with("poison");
        async move { if is_poison { panic!("poison") } else { taken() } }.boxed()
    };
    let stage = Stage::with(FakeProvider::new(behaviour)).await;
    let mut poison = an_email(stage.company.id);
    poison.envelope.to = testkit::an_address("poison@example.com");
    let poison = stage.accept(poison).await;
    let harmless = stage.accept_one().await;
    for _ in 0..200 {
        run_once(&stage.gateway).await.expect("the store works");
        stage.pass(Duration::from_secs(1));
    }
    assert_eq!(stage.status(harmless).await, Status::Sent);
    assert_eq!(stage.status(poison).await, Status::Failed);
    assert_eq!(stage.email(poison).await.last_failure.expect("a failure").code, "QUARANTINED");
    assert_eq!(stage.seconds_of(poison, EventKind::SentAttempt).await.len(), 3);
}

#[tokio::test]
async fn an_email_that_fails_validation_never_reaches_the_provider() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let mut email = an_email(stage.company.id);
    email.content =
        model::Content::Composed { html: "<script>x()</script>".into(), text: None, attachments: vec![] };
    let id = stage.accept(email).await;
    run_once(&stage.gateway).await.expect("the store works");
    assert_eq!(stage.status(id).await, Status::Failed);
    let kinds = stage.kinds(id).await;
    assert_eq!(
        kinds[kinds.len() - 3..],
        [EventKind::Received, EventKind::ValidationFailed, EventKind::Failed]
    );
    assert!(stage.provider.handed().is_empty());
}

#[tokio::test]
async fn a_recipient_who_moved_is_not_written_to_at_the_old_address() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let mut first = an_email(stage.company.id);
    first.recipient = Some(a_recipient("r-1"));
    let mut second = first.clone();
    second.id = model::EmailId::new(stage.gateway.clock.now());
    second.envelope.to = testkit::an_address("ana@example.org");
    let first = stage.accept(first).await;
    let second = stage.accept(second).await;
    run_once(&stage.gateway).await.expect("the store works");
    assert_eq!(stage.status(second).await, Status::Sent);
    assert_eq!(stage.status(first).await, Status::Failed);
    assert_eq!(stage.email(first).await.last_failure.expect("a failure").code, "INVALID_EMAIL");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_hangs_is_cut_off_and_its_outcome_unknown() {
    let provider = FakeProvider::new(|_| std::future::pending().boxed());
    let claim = crate::testing::a_claim(testkit::a_company("acme").id);
    let from = testkit::a_mailbox("hi@acme.com");
    let route = Route { provider: "main".into(), from, redirect_to: None };
    let content = claim.content.clone().expect("content");
    let ending = send(
        &provider,
        "main".into(),
        &route.outgoing(&claim, content, &RetryPolicy::fast(), testkit::START),
    )
    .await;
    let Ending::NotSent(error) = ending else { panic!("{ending:?}") };
    assert_eq!((error.code.as_str(), error.category), ("PROVIDER_TIMEOUT", Category::Timeout));
    assert_eq!(error.taken, Taken::Unknown);
}

/// A queue whose store fails to record results for a while.
struct ForgetfulQueue {
    inner: Arc<dyn queue::Queue>,
    failures_left: std::sync::atomic::AtomicU32,
    failure: StoreError,
}

#[async_trait::async_trait]
impl queue::Queue for ForgetfulQueue {
    async fn offer(&self, emails: &[(model::EmailId, Timestamp)]) -> Result<(), StoreError> {
        self.inner.offer(emails).await
    }

    async fn claim(&self, request: store::ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        self.inner.claim(request).await
    }

    async fn extend(
        &self,
        owner: model::WorkerId,
        guards: Vec<model::Guard>,
        until: Timestamp,
    ) -> Result<Vec<model::EmailId>, StoreError> {
        self.inner.extend(owner, guards, until).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        use std::sync::atomic::Ordering::SeqCst;
        let take_one = |left: u32| left.checked_sub(1);
        if self.failures_left.fetch_update(SeqCst, SeqCst, take_one).is_ok() {
            return Err(self.failure.clone());
        }
        self.inner.settle(settlement).await
    }

    async fn wait_for_work(&self, now: Timestamp) {
        self.inner.wait_for_work(now).await;
    }
}

/// What becomes of an email whose result could not be recorded that many times; the tries are about a second apart.
async fn after_failures(failures: u32, failure: StoreError) -> Status {
    let mut stage = Stage::with(FakeProvider::takes_everything()).await;
    let inner = stage.gateway.queue.clone();
    stage.gateway.queue = Arc::new(ForgetfulQueue { inner, failures_left: failures.into(), failure });
    let id = stage.accept_one().await;
    assert_eq!(run_once(&stage.gateway).await, Ok(1));
    assert_eq!(stage.provider.handed(), [id]);
    stage.status(id).await
}

#[tokio::test(start_paused = true)]
async fn a_result_is_not_lost_when_the_store_fails_for_a_while() {
    let away = StoreError::Unavailable("not now".into());
    assert_eq!(after_failures(10, away.clone()).await, Status::Sent);
    assert_eq!(
        after_failures(2_000, away).await,
        Status::Processing,
        "given up; the sweep takes it from there"
    );
}

/// A disk may be full for a weekend. While it is, nobody else can take the email over either.
#[tokio::test(start_paused = true)]
async fn a_result_waits_for_room_as_long_as_it_takes() {
    assert_eq!(after_failures(200_000, StoreError::Full("no room".into())).await, Status::Sent);
}
