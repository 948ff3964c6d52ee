//! An email that brings down every process that touches it harms only itself: it is given up after three starts, and all
//! others are sent.
//!
//! No email of ours does that, so the processes are this test program again, with a provider that ends its own process
//! when it meets the one address. Their clock runs fast: what had an unknown outcome waits half a minute, and nothing is
//! learned by waiting with it.

use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gateway::{Gateway, Settings};
use model::email::Outgoing;
use model::{Clock, EmailId, EventKind, Status, SystemClock, Timestamp};
use provider::{Provider, Receipt, SendError};
use provider_smtp::SmtpProvider;
use tokio::process::Child;

use crate::database::Engine;
use crate::pause::{a_gateway, acceptance, add_company, end_worker, surroundings, this_program_as, work};
use crate::rig::{COMPANY, Rig};
use crate::stored::{self, Emails};

const OTHERS: usize = 200;
const POISON: &str = "poison@inbox.test";
/// After so many starts that it did not survive, nobody touches an email again.
const STARTS_MAX: usize = 3;
/// What kills a process that aborts.
const SIGABRT: i32 = 6;
const SINK_LATENCY_MS: usize = 10;
/// So many times as fast as other clocks.
const SPEED: u32 = 20;
/// By the fast clock; nothing takes so long.
const LEASE: Duration = Duration::from_secs(600);
/// No process of the run takes longer to die or to send everything.
const STEP_MAX: Duration = Duration::from_secs(120);
/// From when on the clock of the processes is fast.
const FAST_SINCE: &str = "POSTHASTE_TEST_CLOCK_FAST_SINCE";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_poison_harms_only_itself() {
    let rig = Rig::without_company(Engine::Sqlite, SINK_LATENCY_MS).await;
    let poison = hand_in(&rig).await;
    let fast_since = SystemClock.now();
    let mut deaths = 0;
    let (mut worker, is_drained) = loop {
        let mut worker = start_worker(&rig, fast_since);
        let died = tokio::select! {
            status = worker.wait() => Some(status.expect("a process can be waited for")),
            is_drained = stored::drained(&rig.database, STEP_MAX) => break (worker, is_drained),
        };
        let signal = died.and_then(|status| status.signal());
        assert_eq!(signal, Some(SIGABRT), "the email ends the process, and nothing else does: {died:?}");
        deaths += 1;
        assert!(deaths <= STARTS_MAX, "nobody starts it again after {STARTS_MAX} starts");
    };
    end_worker(&mut worker).await;
    let emails = stored::read(&rig.database, COMPANY).await;
    let ledger = {
        let mut follower = rig.provider_ledger();
        follower.read_on();
        follower.ledger
    };
    let at_provider = ledger.copies.len();
    println!("deaths={deaths} drained={is_drained} at the provider={at_provider}");
    let troubles = troubles(&emails, poison);
    let fails = !is_drained || deaths != STARTS_MAX || at_provider != OTHERS || !troubles.is_empty();
    rig.tear_down(fails).await;
    assert!(!fails, "{deaths} deaths, drained: {is_drained}, {at_provider} at the provider, {troubles:#?}");
}

/// The poison in the midst of all others.
async fn hand_in(rig: &Rig) -> EmailId {
    let store = rig.database.open().await;
    let company = add_company(&*store).await;
    let mut poison = None;
    for number in 0..=OTHERS {
        let id = EmailId::new(SystemClock.now());
        let others = format!("reader{number}@inbox.test");
        let to = if number == OTHERS / 2 { POISON } else { &others };
        if to == POISON {
            poison = Some(id);
        }
        store.accept(acceptance(company, id, to)).await.expect("accepted");
    }
    store.close().await;
    poison.expect("one of them is the poison")
}

fn troubles(emails: &Emails, poison: EmailId) -> Vec<String> {
    let mut troubles = Vec::new();
    for (id, email) in emails {
        let is_right = if *id == poison {
            let starts = email.events.iter().filter(|event| event.kind == EventKind::SentAttempt).count();
            let code = email.failure_code.as_deref();
            (email.status, code, starts) == (Status::Failed, Some("QUARANTINED"), STARTS_MAX)
        } else {
            email.status == Status::Sent
        };
        if !is_right {
            troubles.push(format!("{id}: {email:?}"));
        }
    }
    if emails.len() != OTHERS + 1 {
        troubles.push(format!("{} emails are stored", emails.len()));
    }
    troubles
}

fn start_worker(rig: &Rig, fast_since: Timestamp) -> Child {
    let mut command = this_program_as("poison::process_worker_of_the_poison_run", rig);
    command.env(FAST_SINCE, fast_since.millis().to_string());
    command.spawn().expect("a worker process can be started")
}

/// Not a test of its own: the worker process that the test above starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_worker_of_the_poison_run() {
    let Some((store, sink)) = surroundings().await else { return };
    let since = std::env::var(FAST_SINCE).expect("set by the test").parse().expect("a number");
    let clock = FastClock { since: Timestamp::from_millis(since) };
    let gateway = a_gateway(store, Arc::new(Deadly(sink)), Arc::new(clock));
    let settings = Settings { lease: LEASE, ..(*gateway.settings).clone() };
    work(Gateway { settings: Arc::new(settings), ..gateway }).await;
}

/// The same for all processes.
#[derive(Debug)]
struct FastClock {
    since: Timestamp,
}

impl Clock for FastClock {
    fn now(&self) -> Timestamp {
        self.since.plus(SystemClock.now().since(self.since) * SPEED)
    }
}

/// Hands emails to the sink, and does not survive one of them.
struct Deadly(SmtpProvider);

#[async_trait]
impl Provider for Deadly {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    async fn send(&self, email: &Outgoing) -> Result<Receipt, SendError> {
        if email.envelope.to.expose() == POISON {
            std::process::abort();
        }
        self.0.send(email).await
    }
}
