//! Recovery, expiry and intake on the real store.

use std::sync::Arc;

use model::{Content, EventKind, NewEmail, Status};
use store::{AttemptStart, Companies, Upkeep};
use store_sqlite::SqliteStore;
use testkit::{START, an_email};

use super::*;
use crate::caution::is_suspect;
use crate::testing::{FakeProvider, Stage};
use crate::worker::run_once;

#[tokio::test]
async fn what_a_worker_left_before_the_provider_is_sent_by_the_next() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept_one().await;
    stage.claim_and_vanish().await;
    assert_eq!(sweep_once(&stage.gateway).await.map(|swept| swept.leases), Ok(0), "the lease still lasts");
    stage.pass(Duration::from_secs(46));
    assert_eq!(sweep_once(&stage.gateway).await.map(|swept| swept.leases), Ok(1));
    assert_eq!(run_once(&stage.gateway).await, Ok(1));
    let email = stage.email(id).await;
    assert_eq!((email.status, email.attempts), (Status::Sent, 2));
    assert!(stage.kinds(id).await.contains(&EventKind::LeaseLost));
}

#[tokio::test]
async fn what_a_worker_left_at_the_provider_waits_out_its_grace() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept_one().await;
    let claim = stage.claim_and_vanish().await;
    let start = AttemptStart {
        guard: claim.guard,
        provider: "capture".into(),
        events: vec![],
        now: claim.claimed_at,
    };
    stage.gateway.store.begin(start).await.expect("the store works");
    stage.pass(Duration::from_secs(46));
    sweep_once(&stage.gateway).await.expect("the store works");
    stage.pass(Duration::from_secs(29));
    assert_eq!(run_once(&stage.gateway).await, Ok(0), "a report may still come");
    stage.pass(Duration::from_secs(1));
    assert_eq!(run_once(&stage.gateway).await, Ok(1));
    assert!(stage.email(id).await.outcome_unknown);
    let kinds = stage.kinds(id).await;
    let position = |kind| kinds.iter().position(|found| *found == kind).expect("it happened");
    assert!(position(EventKind::OutcomeUnknown) < position(EventKind::Sent));
}

/// A worker that is brought down by the first email it touches, before it calls the provider.
async fn begin_work_and_vanish(stage: &Stage) {
    let claim = stage.claim_and_vanish().await;
    if is_suspect(&claim) {
        assert_eq!(stage.gateway.store.begin_suspect(claim.guard).await, Ok(true));
    }
}

#[tokio::test]
async fn an_email_that_brings_its_worker_down_is_quarantined_after_three_starts() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept_one().await;
    for _ in 0..3 {
        assert_eq!(stage.status(id).await, Status::Enqueued);
        begin_work_and_vanish(&stage).await;
        stage.pass(Duration::from_secs(46));
        sweep_once(&stage.gateway).await.expect("the store works");
    }
    let email = stage.email(id).await;
    assert_eq!((email.status, email.attempts), (Status::Failed, 3));
    assert_eq!(email.last_failure.expect("a failure").code, "QUARANTINED");
    assert!(stage.provider.handed().is_empty());
}

/// Suspects are blamed for what they do, not for the worker that died, was stopped or lost its store before their turn.
#[tokio::test]
async fn suspects_that_never_ran_are_not_blamed() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let ids = [stage.accept_one().await, stage.accept_one().await, stage.accept_one().await];
    for _ in 0..3 {
        assert_eq!(stage.claim(8).await.len(), 3);
        stage.pass(Duration::from_secs(46));
        assert_eq!(sweep_once(&stage.gateway).await.map(|swept| swept.leases), Ok(3));
    }
    let claims = stage.claim(8).await;
    assert!(claims.len() == 3 && claims.iter().all(is_suspect));
    assert_eq!(stage.gateway.store.begin_suspect(claims[0].guard).await, Ok(true));
    stage.pass(Duration::from_secs(46));
    sweep_once(&stage.gateway).await.expect("the store works");
    let poison = stage.email(claims[0].id()).await;
    assert_eq!(poison.last_failure.expect("a failure").code, "QUARANTINED");
    for id in ids.into_iter().filter(|id| *id != claims[0].id()) {
        assert_eq!(stage.email(id).await.last_failure.map(|failure| failure.code), None);
    }
}

fn handed_in(stage: &Stage, eml: &str) -> NewEmail {
    let content = Content::Raw(eml.replace('\n', "\r\n").into_bytes());
    NewEmail { status: Status::Accepted, content, ..an_email(stage.company.id) }
}

#[tokio::test]
async fn intake_lets_in_what_can_be_read_and_refuses_the_rest() {
    let sound =
        "From: hi@acme.com\nTo: bob@example.com\nSubject: Raw\nContent-Type: text/html\n\n<p>hello</p>\n";
    let unsafe_html = sound.replace("<p>", "<p onclick=x()>");
    let cases = [
        ("sound", sound, Status::Enqueued, None),
        ("a script", unsafe_html.as_str(), Status::Invalid, Some("INVALID_TEMPLATE")),
        ("nobody to send it to", "From: hi@acme.com\n\nhello\n", Status::Invalid, Some("INVALID_PAYLOAD")),
    ];
    for (case, eml, status, code) in cases {
        let stage = Stage::with(FakeProvider::takes_everything()).await;
        let id = stage.accept(handed_in(&stage, eml)).await;
        assert_eq!(sweep_once(&stage.gateway).await.map(|swept| swept.intake), Ok(1), "{case}");
        let email = stage.email(id).await;
        assert_eq!(email.status, status, "{case}");
        assert_eq!(email.last_failure.map(|failure| failure.code).as_deref(), code, "{case}");
        assert!(stage.kinds(id).await.contains(&EventKind::Intaking), "{case}");
        let sent = run_once(&stage.gateway).await.expect("the store works");
        assert_eq!(sent, usize::from(code.is_none()), "{case}");
    }
}

const SOUND: &str = "From: hi@acme.com\nTo: bob@example.com\nSubject: Raw\n\nhello\n";

/// Somebody begins the intake of the email and never comes back.
async fn begin_and_vanish(stage: &Stage, id: model::EmailId) -> u32 {
    let (store, now) = (&stage.gateway.store, stage.gateway.clock.now());
    let items = store.awaiting_intake(now, 10).await.expect("the store works");
    let item = items.into_iter().find(|item| item.id == id).expect("it awaits intake");
    let begun = store.begin_intake((id, item.version), now).await.expect("the store works");
    assert!(begun.is_some());
    item.unfinished_starts
}

/// A message that brings down whoever reads it is not read a fourth time, and those behind it come in meanwhile.
#[tokio::test]
async fn a_message_that_nobody_survives_is_refused_unread() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let poison = stage.accept(handed_in(&stage, SOUND)).await;
    for starts in 0..3 {
        assert_eq!(begin_and_vanish(&stage, poison).await, starts);
        let other = stage.accept(handed_in(&stage, SOUND)).await;
        assert_eq!(sweep_once(&stage.gateway).await.map(|swept| swept.intake), Ok(1));
        assert_eq!(stage.status(other).await, Status::Enqueued);
        assert_eq!(stage.status(poison).await, Status::Accepted);
        stage.pass(store::INTAKE_LEASE);
    }
    assert_eq!(sweep_once(&stage.gateway).await.map(|swept| swept.intake), Ok(1));
    let email = stage.email(poison).await;
    assert_eq!(email.status, Status::Invalid);
    assert_eq!(email.last_failure.expect("a failure").code, "QUARANTINED");
}

/// Two starts that never ended are no proof: the message that is read at last goes its way.
#[tokio::test]
async fn a_message_that_is_read_at_last_is_let_in() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let id = stage.accept(handed_in(&stage, SOUND)).await;
    for starts in 0..2 {
        assert_eq!(begin_and_vanish(&stage, id).await, starts);
        stage.pass(store::INTAKE_LEASE);
    }
    sweep_once(&stage.gateway).await.expect("the store works");
    assert_eq!(run_once(&stage.gateway).await.expect("the store works"), 1);
    assert_eq!(stage.status(id).await, Status::Sent);
}

#[tokio::test]
async fn a_message_with_a_foreign_sender_is_refused_to_a_live_key() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let mut company = stage.company.clone();
    company.settings.from = Some(testkit::a_mailbox("hi@acme.com"));
    stage.gateway.store.update_company(company).await.expect("the store works");
    for header in ["From", "Sender", "Resent-From", "Resent-Sender"] {
        let own = if header == "From" { String::new() } else { "From: hi@acme.com\n".to_owned() };
        let eml = format!("{own}{header}: boss@elsewhere.com\nTo: bob@example.com\nSubject: Raw\n\nhello\n");
        let live = NewEmail { mode: model::KeyMode::Live, ..handed_in(&stage, &eml) };
        let id = stage.accept(live).await;
        sweep_once(&stage.gateway).await.expect("the store works");
        let failure = stage.email(id).await.last_failure.expect("a failure");
        assert_eq!(failure.code, "SENDER_NOT_ALLOWED", "{header}");
        assert!(failure.reason.contains(&format!("header {header} names")), "{}", failure.reason);
    }
}

/// More has outlived its time than one round deletes: the next round goes on at once, not a minute later.
#[tokio::test]
async fn retention_keeps_up_with_any_backlog() {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    let count = BATCHES_MAX as usize * PRUNED_PER_BATCH as usize + 10;
    let emails: Vec<NewEmail> = (0..count).map(|_| an_email(stage.company.id)).collect();
    for request in emails.chunks(500) {
        let acceptance = store::Acceptance {
            company: stage.company.id,
            emails: request.to_vec(),
            key: None,
            daily_limit: None,
            now: stage.gateway.clock.now(),
        };
        stage.gateway.store.accept(acceptance).await.expect("accepted");
    }
    stage.pass(Duration::from_secs(25 * 3600));
    let mut sweep = Sweep::new(stage.gateway.clone());
    let mut expired = 0;
    while expired < count {
        expired += sweep.round().await.expect("the store works").expired as usize;
    }
    stage.pass(Duration::from_secs(91 * 24 * 3600));
    let mut sweep = Sweep::new(stage.gateway.clone());
    let mut rounds = 0;
    while stage
        .gateway
        .store
        .stats(stage.gateway.clock.now())
        .await
        .expect("stats")
        .by_status
        .values()
        .sum::<u64>()
        > 0
    {
        rounds += 1;
        assert!(rounds < 20, "the emails are not deleted");
        sweep.round().await.expect("the store works");
    }
    assert!(rounds > 1, "one round does a bounded amount");
}

/// Retention is what makes room, so it goes on while there is little, also after the store has failed for that.
#[tokio::test]
async fn retention_goes_on_while_room_is_short() {
    let mut stage = Stage::with(FakeProvider::takes_everything()).await;
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("posthaste.db");
    let ample = SqliteStore::open_with_reserve(&file, Some(0)).await.expect("a new store opens");
    ample.add_company(stage.company.clone()).await.expect("a company");
    let free_bytes = ample.stats(START).await.expect("counted").room.expect("it is minded").free_bytes;
    stage.gateway.store = Arc::new(ample);
    let id = stage.accept_one().await;
    stage.gateway.store.cancel(stage.company.id, id, START).await.expect("it is cancelled");

    let short = SqliteStore::open_with_reserve(&file, Some(2 * free_bytes)).await.expect("it opens");
    assert!(matches!(short.check().await, Err(StoreError::Full(_))));
    stage.gateway.store = Arc::new(short);
    stage.pass(stage.gateway.settings.retention.content);
    let mut sweep = Sweep::new(stage.gateway.clone());
    sweep.after_trouble = true;
    assert_eq!(sweep.round().await.map(|swept| swept.pruned), Ok(1));
    assert!(sweep.after_trouble, "leases are not judged before there is room");
}
