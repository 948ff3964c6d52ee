//! Who is warned, who is paused, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use model::{Bounce, KeyMode, NewEmail, ReportKind, Status};
use testkit::an_email_at;

use super::*;
use crate::CAPTURE;
use crate::sandbox::play;
use crate::testing::{FakeProvider, Stage};
use crate::worker::run_once;

#[test]
fn the_table() {
    let limits = ReputationLimits::default();
    let record = |sent, bounced, complained| Record { sent, bounced, complained };
    let cases = [
        (record(0, 0, 0), "fine"),
        (record(499, 499, 499), "fine"),
        (record(500, 24, 0), "fine"),
        (record(500, 25, 0), "warn"),
        (record(500, 49, 0), "warn"),
        (record(500, 50, 0), "pause"),
        (record(10_000, 0, 9), "fine"),
        (record(10_000, 0, 10), "warn"),
        (record(10_000, 0, 50), "pause"),
        (record(10_000, 600, 50), "pause"),
        (record(u64::MAX, u64::MAX, 0), "pause"),
    ];
    for (record, expected) in cases {
        let judged = match judge(record, limits) {
            Judgement::Fine => "fine",
            Judgement::Warn(_) => "warn",
            Judgement::Pause(_) => "pause",
        };
        assert_eq!(judged, expected, "{record:?}");
    }
    let Judgement::Pause(why) = judge(record(500, 60, 0), limits) else { panic!("paused") };
    assert_eq!(why, "60 of 500 emails within 7 days bounced (12.0 %)");
}

async fn stage() -> Stage {
    let mut stage = Stage::with(FakeProvider::takes_everything()).await;
    let mut settings = (*stage.gateway.settings).clone();
    settings.reputation = Some(ReputationLimits { volume_min: 10, ..ReputationLimits::default() });
    stage.gateway.settings = Arc::new(settings);
    stage
}

/// Sends so many, of which so many bounce.
async fn traffic(stage: &Stage, mode: KeyMode, sent: usize, bounced: usize) {
    for number in 0..sent {
        let mut email = NewEmail { mode, ..an_email_at(stage.company.id, stage.clock_now()) };
        email.envelope.to = testkit::an_address(&format!("r{number}@example.com"));
        email.envelope.from = Some(testkit::a_mailbox("shop@example.com"));
        let id = stage.accept(email).await;
        run_once(&stage.gateway).await.expect("sent");
        if number < bounced {
            let kind = ReportKind::Bounced(Bounce::Unclear);
            play(&stage.gateway, CAPTURE, id, kind, format!("r-{id}")).await.expect("played");
        }
    }
}

async fn company(stage: &Stage) -> Company {
    stage.gateway.store.company(stage.company.id).await.expect("read").expect("there")
}

#[tokio::test]
async fn a_company_that_bounces_too_much_waits_until_it_is_resumed() {
    let stage = stage().await;
    traffic(&stage, KeyMode::Live, 20, 2).await;
    assert_eq!(look(&stage.gateway).await, Ok(1));
    assert_eq!(look(&stage.gateway).await, Ok(0), "once");
    let pause = company(&stage).await.pause.expect("paused");
    assert!(pause.reason.contains("2 of 20 emails within 7 days bounced"), "{}", pause.reason);
    let waiting = stage.accept_one().await;
    run_once(&stage.gateway).await.expect("the store works");
    assert_eq!(stage.status(waiting).await, Status::Enqueued);

    stage.gateway.store.resume_company(stage.company.id, stage.clock_now()).await.expect("resumed");
    assert_eq!(look(&stage.gateway).await, Ok(0), "what was before counts no more");
    run_once(&stage.gateway).await.expect("sent");
    assert_eq!(stage.status(waiting).await, Status::Sent);
    stage.pass(Duration::from_secs(24 * 3600));
    traffic(&stage, KeyMode::Live, 10, 5).await;
    assert_eq!(look(&stage.gateway).await, Ok(1), "what comes after does");
}

#[tokio::test]
async fn test_mail_and_old_mail_do_not_count() {
    let stage = stage().await;
    traffic(&stage, KeyMode::Test, 12, 12).await;
    assert_eq!(look(&stage.gateway).await, Ok(0));
    traffic(&stage, KeyMode::Live, 12, 12).await;
    stage.pass(Duration::from_secs(8 * 24 * 3600));
    assert_eq!(look(&stage.gateway).await, Ok(0));
    assert_eq!(company(&stage).await.pause, None);
}
