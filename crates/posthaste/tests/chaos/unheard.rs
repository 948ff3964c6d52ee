//! The database records that a provider is about to be called, and its answer is lost. The worker knows that nothing was sent,
//! so the email goes on at once: it is not taken for one that the provider may have.

use std::sync::Arc;
use std::time::Duration;

use gateway::worker::Worker;
use gateway::{Gateway, Settings};
use model::{Clock as _, EmailId, EventKind, Status, SystemClock};
use provider_smtp::{SmtpConfig, SmtpProvider};
use testkit::wire::Wire;
use tokio_util::sync::CancellationToken;

use crate::database::{self, Engine};
use crate::pause::{a_gateway, acceptance, add_company};
use crate::rig::{COMPANY, Rig};
use crate::stored;

/// The event that is recorded with it, and with nothing else.
const BEGINNING: &str = "SENT_ATTEMPT";
/// Longer than the test.
const LEASE: Duration = Duration::from_secs(600);
const DRAIN_MAX: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long the database is away after that. The worker asks again long before.
const AWAY_FOR: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_start_nobody_heard_of_is_taken_back() {
    is_taken_back(Wire::Whole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_start_nobody_heard_of_is_taken_back_after_an_outage() {
    is_taken_back(Wire::Reset).await;
}

async fn is_taken_back(afterwards: Wire) {
    let rig = Rig::without_company(Engine::Postgres, 0).await;
    let directly = rig.database.open().await;
    let company = add_company(&*directly).await;
    // Without TLS, so that the wire understands what is said.
    let store = database::open(&format!("{}?sslmode=disable", rig.database.url())).await;
    let sink = SmtpProvider::new(SmtpConfig::parse(&rig.sink_url()).expect("a good address"));
    let sink = Arc::new(sink.expect("the sink's settings are good"));
    let gateway = a_gateway(Arc::clone(&store), sink, Arc::new(SystemClock));
    let settings = Settings { lease: LEASE, ..(*gateway.settings).clone() };
    let shutdown = CancellationToken::new();
    let worker = Worker::run(Gateway { settings: Arc::new(settings), ..gateway }, shutdown.clone());
    let working = tokio::spawn(worker);
    rig.database.set_wire(Wire::DeafAfter(BEGINNING));
    let id = EmailId::new(SystemClock.now());
    directly.accept(acceptance(company, id, "reader@inbox.test")).await.expect("accepted");
    let fell_deaf = tokio::time::timeout(DRAIN_MAX, async {
        while rig.database.deaf() == 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
    fell_deaf.await.expect("the worker begins");
    rig.database.set_wire(afterwards);
    if afterwards != Wire::Whole {
        tokio::time::sleep(AWAY_FOR).await;
        rig.database.set_wire(Wire::Whole);
    }
    let is_drained = stored::drained(&rig.database, DRAIN_MAX).await;
    shutdown.cancel();
    working.await.expect("the worker does not panic");
    store.close().await;
    directly.close().await;

    let emails = stored::read(&rig.database, COMPANY).await;
    let mut follower = rig.provider_ledger();
    follower.read_on();
    let copies = follower.ledger.copies.len();
    let email = &emails[&id];
    let kinds: Vec<EventKind> = email.events.iter().map(|event| event.kind).collect();
    let is_right = is_drained
        && (email.status, email.outcome_unknown, copies) == (Status::Sent, false, 1)
        && kinds.contains(&EventKind::Released);
    rig.tear_down(!is_right).await;
    assert!(is_right, "drained: {is_drained}, {copies} at the provider, {email:?}");
}
