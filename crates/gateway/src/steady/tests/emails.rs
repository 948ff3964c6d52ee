//! What becomes of emails when the clock jumps: claims, attempts and sweeps on the real store, with both clocks turned
//! by the test.

use std::sync::atomic::{AtomicU64, Ordering};

use model::{Category, EmailId, EventKind, NewEmail, Status};
use provider::Taken;
use store::Acceptance;
use testkit::{ManualClock, an_email_at};

use super::*;
use crate::sweep::sweep_once;
use crate::testing::{FakeProvider, Stage, refused};
use crate::worker::run_once;

const DELAYED: usize = 1_000;

/// A gateway whose clock can be set.
struct World {
    stage: Stage,
    running: Arc<AtomicU64>,
}

impl World {
    async fn with(provider: FakeProvider) -> Self {
        let mut stage = Stage::with(provider).await;
        let running = Arc::new(AtomicU64::new(0));
        let steady = running.clone();
        let wall: Arc<ManualClock> = stage.clock.clone();
        let clock = SteadyClock::over(wall, move || Duration::from_millis(steady.load(Ordering::SeqCst)));
        stage.gateway.clock = Arc::new(clock);
        stage.gateway.clock.now();
        Self { stage, running }
    }

    /// Both clocks run on.
    fn pass(&self, time: Duration) {
        self.stage.pass(time);
        self.running.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Somebody sets the clock, a second later.
    fn jump(&self, by_secs: i64) {
        self.pass(secs(1));
        self.stage.clock.set(Timestamp::from_millis(self.stage.clock.now().millis() + by_secs * 1000));
    }

    fn email(&self) -> NewEmail {
        an_email_at(self.stage.company.id, self.stage.gateway.clock.now())
    }

    /// Emails that wait for twelve hours.
    async fn accept_delayed(&self) -> Vec<EmailId> {
        let now = self.stage.gateway.clock.now();
        let due_at = now.plus(secs(12 * 3600));
        let emails: Vec<NewEmail> =
            (0..DELAYED).map(|_| NewEmail { due_at, scheduled_at: Some(due_at), ..self.email() }).collect();
        let ids = emails.iter().map(|email| email.id).collect();
        let company = self.stage.company.id;
        let acceptance = Acceptance { company, emails, key: None, daily_limit: None, now };
        self.stage.gateway.store.accept(acceptance).await.expect("accepted");
        ids
    }

    /// Does all there is to do now, by workers and sweep.
    async fn work(&self) {
        loop {
            let claimed = run_once(&self.stage.gateway).await.expect("the store works");
            let swept = sweep_once(&self.stage.gateway).await.expect("the store works");
            if claimed == 0 && !swept.more {
                return;
            }
        }
    }

    /// The time has just leapt over the end of the email's lease.
    async fn lease_is_lost_after_its_time(&self, id: EmailId) {
        for _ in 0..4 {
            self.work().await;
            self.pass(secs(11));
        }
        assert_eq!(self.stage.status(id).await, Status::Processing, "its worker may still renew it");
        self.pass(secs(1));
        self.work().await;
        self.work().await;
        assert_eq!(self.stage.status(id).await, Status::Sent, "its worker did not come back");
    }

    async fn statuses(&self, ids: &[EmailId]) -> Vec<Status> {
        let mut statuses = Vec::new();
        for id in ids {
            statuses.push(self.stage.status(*id).await);
        }
        statuses.sort_unstable_by_key(|status| status.as_str());
        statuses.dedup();
        statuses
    }
}

/// A provider that is busy until so many calls were made.
fn busy_for(calls: u64) -> FakeProvider {
    let left = AtomicU64::new(calls);
    FakeProvider::answers(move || {
        match left.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => refused(Category::Transient, Taken::No),
            Err(_) => crate::testing::taken(),
        }
    })
}

#[tokio::test]
async fn a_jump_ahead_neither_expires_nor_sends_what_it_made_due_and_is_undone_without_a_trace() {
    let world = World::with(FakeProvider::takes_everything()).await;
    let delayed = world.accept_delayed().await;
    let waiting = world.stage.accept_one().await;
    let patient = NewEmail { expires_at: at(72 * HOUR), ..world.email() };
    let patient = world.stage.accept(patient).await;
    world.jump(25 * HOUR);
    for _ in 0..9 {
        world.work().await;
        world.pass(secs(60));
    }
    let new = world.stage.accept_one().await;
    world.work().await;
    assert_eq!(world.statuses(&delayed).await, [Status::Enqueued], "not due, not expired");
    assert_eq!(
        world.stage.status(waiting).await,
        Status::Enqueued,
        "too late if the clock is right: it waits"
    );
    assert_eq!(world.stage.provider.handed(), [patient, new], "what is in time by both clocks goes on");
    assert_eq!(world.stage.email(new).await.created_at, at(541), "dated by the time that is gone by");

    world.jump(-25 * HOUR);
    world.pass(secs(60));
    world.work().await;
    let sent = world.stage.email(waiting).await;
    assert_eq!((sent.status, sent.attempts), (Status::Sent, 1), "its wait cost no attempt");
    assert_eq!(world.statuses(&delayed).await, [Status::Enqueued]);
    world.pass(secs(12 * 3600));
    while world.stage.provider.handed().len() < DELAYED + 3 {
        assert_ne!(run_once(&world.stage.gateway).await, Ok(0), "all of them come, at their time");
    }
    assert_eq!(world.statuses(&delayed).await, [Status::Sent]);
}

#[tokio::test]
async fn a_jump_ahead_that_stays_is_believed_after_ten_minutes_and_nothing_is_sent_late() {
    let world = World::with(FakeProvider::takes_everything()).await;
    let waiting = world.stage.accept_one().await;
    let scheduled = NewEmail { due_at: at(12 * HOUR), expires_at: at(72 * HOUR), ..world.email() };
    let scheduled = world.stage.accept(scheduled).await;
    world.jump(25 * HOUR);
    world.work().await;
    world.pass(secs(599));
    world.work().await;
    assert_eq!(world.statuses(&[waiting, scheduled]).await, [Status::Enqueued]);
    let kinds = world.stage.kinds(waiting).await;
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::Released).count(), 1, "asked once: {kinds:?}");
    world.pass(secs(1));
    world.work().await;
    assert_eq!(world.stage.status(waiting).await, Status::Expired);
    assert_eq!(world.stage.status(scheduled).await, Status::Sent);
    assert_eq!(world.stage.provider.handed(), [scheduled]);
}

#[tokio::test]
async fn a_jump_back_stalls_nothing() {
    let world = World::with(busy_for(2)).await;
    let delayed = world.accept_delayed().await;
    let retried = world.stage.accept_one().await;
    world.work().await;
    world.pass(secs(1));
    world.work().await;
    assert_eq!(world.stage.status(retried).await, Status::RetryScheduled);
    let waiting = world.stage.accept_one().await;
    world.jump(-2 * HOUR);
    world.work().await;
    let handed = [retried, retried, waiting];
    assert_eq!(world.stage.provider.handed(), handed, "the one that waits goes, the retry is not due");
    world.pass(secs(4));
    world.work().await;
    assert_eq!(
        world.statuses(&[retried, waiting]).await,
        [Status::Sent],
        "at their time by the steady clock"
    );
    let new = world.stage.accept_one().await;
    world.work().await;
    assert_eq!(world.stage.status(new).await, Status::Sent);

    world.pass(secs(600));
    let after = world.stage.accept_one().await;
    world.work().await;
    let after = world.stage.email(after).await;
    assert_eq!(
        (after.status, after.created_at),
        (Status::Sent, at(606 - 2 * HOUR)),
        "by the clock as it was set"
    );
    assert_eq!(world.statuses(&delayed).await, [Status::Enqueued]);
    world.pass(secs(25 * 3600));
    sweep_once(&world.stage.gateway).await.expect("the store works");
    assert_eq!(world.statuses(&delayed).await, [Status::Enqueued], "their time is not over yet");
    world.pass(secs(3600));
    while sweep_once(&world.stage.gateway).await.expect("the store works").more {}
    assert_eq!(world.statuses(&delayed).await, [Status::Expired], "expiry works again");
}

#[tokio::test]
async fn leases_are_not_judged_by_a_time_that_leapt() {
    let world = World::with(FakeProvider::takes_everything()).await;
    world.stage.accept(NewEmail { expires_at: at(1000 * HOUR), ..world.email() }).await;
    world.jump(25 * HOUR);
    world.work().await;
    let first = world.stage.accept(NewEmail { expires_at: at(1000 * HOUR), ..world.email() }).await;
    world.pass(secs(590));
    world.stage.claim_and_vanish().await;
    world.pass(secs(10));
    world.lease_is_lost_after_its_time(first).await;

    let second = world.stage.accept_one().await;
    world.stage.claim_and_vanish().await;
    world.jump(60);
    world.lease_is_lost_after_its_time(second).await;
}

#[tokio::test]
async fn a_gateway_whose_clock_was_never_set_ends_and_deletes_nothing() {
    let world = World::with(FakeProvider::takes_everything()).await;
    let id = world.stage.accept_one().await;
    world.stage.clock.set(Timestamp::from_millis(0));
    let booted = SteadyClock::over(world.stage.clock.clone(), || Duration::ZERO);
    let gateway = crate::Gateway { clock: Arc::new(booted), ..world.stage.gateway.clone() };
    assert_eq!(sweep_once(&gateway).await, Ok(Default::default()));
    assert_eq!(run_once(&gateway).await, Ok(0), "nothing is due in 1970");
    world.stage.clock.set(START);
    assert_eq!(run_once(&gateway).await, Ok(1), "once it is set, all goes on");
    assert_eq!(world.stage.status(id).await, Status::Sent);
}
