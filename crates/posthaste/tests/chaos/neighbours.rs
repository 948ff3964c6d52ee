//! Many companies with one email each, and one with a backlog that was there first: nobody waits for it. Judged by the order
//! at the provider, which holds at any speed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use model::{Clock as _, CompanyId, EmailId, SystemClock};
use store::{Acceptance, Store};

use crate::database::Engine;
use crate::pause::{acceptance, add_company_named};
use crate::plan::{BACKLOG, COMPANIES, setting};
use crate::provider_ledger::Follower;
use crate::rig::{LEASE_SECS, Rig};
use crate::watch;

/// What goes in at once while the run is prepared.
const BATCH: usize = 500;
/// The last of the others may come so much later for the backlog, in parts of them: as each company has the same share,
/// the backlog gets one turn in as many as there are companies, and what is left over when few others are left.
const LATER: usize = 4;
const MEMORY_MAX_MB: usize = 300;
/// Nothing at the provider for so long means that something hangs.
const SILENCE_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// As the configuration of a run names its only provider, and so the way all emails go.
const ROUTE: &str = "sink";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_backlog_keeps_no_neighbour_waiting() {
    let rig = Rig::without_company(Engine::Sqlite, 0).await;
    backlog_keeps_no_neighbour_waiting(rig, Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_backlog_on_postgres_keeps_no_neighbour_waiting() {
    let rig = Rig::on_server(Engine::Postgres, 1, 0, LEASE_SECS).await;
    backlog_keeps_no_neighbour_waiting(rig, Engine::Postgres).await;
}

async fn backlog_keeps_no_neighbour_waiting(rig: Rig, engine: Engine) {
    let companies = setting(COMPANIES).unwrap_or(500);
    let backlog = setting(BACKLOG).unwrap_or(5_000);
    let singles = prepare(&rig, companies, backlog).await;
    let mut server = rig.start_server();
    let began = Instant::now();
    let mut follower = rig.provider_ledger();
    await_all(&mut follower, &singles).await;
    let (took, memory_mb) = (began.elapsed(), watch::memory_peak_mb(server.id()));
    let exit = server.terminate().await;

    let order = &follower.ledger.order;
    let last = order.iter().rposition(|id| singles.contains(id)).expect("they all came");
    let before_last = last + 1 - singles.len();
    let twice = follower.ledger.copies.values().filter(|copies| copies.len() > 1).count();
    println!(
        "{engine:?} companies={companies} backlog={backlog} others_sent={} of_the_backlog_before_the_last={before_last} \
         twice={twice} memory_mb={memory_mb} in {took:?} exit: {exit}",
        singles.len()
    );
    // Otherwise nobody had anything to wait behind.
    let is_fair = before_last <= singles.len() / LATER && before_last < backlog / 2;
    let fails = !is_fair || twice > 0 || memory_mb > MEMORY_MAX_MB || exit.code() != Some(0);
    rig.tear_down(fails).await;
    assert!(!fails, "{before_last} of the backlog went before the last of {} others", singles.len());
}

/// The backlog first, then one email for each other company; returns those.
async fn prepare(rig: &Rig, companies: usize, backlog: usize) -> BTreeSet<EmailId> {
    let store = rig.database.open().await;
    let noisy = add_company_named(&*store, "noisy").await;
    for start in (0..backlog).step_by(BATCH) {
        let emails = (start..backlog.min(start + BATCH)).map(|_| an_email(noisy));
        let emails = emails.flat_map(|(_, acceptance)| acceptance.emails).collect();
        let all = Acceptance { emails, ..an_email(noisy).1 };
        store.accept(all).await.expect("accepted");
    }
    let mut singles = BTreeMap::new();
    for start in (1..companies).step_by(BATCH) {
        let numbers = start..companies.min(start + BATCH);
        singles.extend(join_all(numbers.map(|number| hand_in_single(&*store, number))).await);
    }
    store.close().await;
    singles.into_keys().collect()
}

async fn hand_in_single(store: &dyn Store, number: usize) -> (EmailId, CompanyId) {
    let company = add_company_named(store, &format!("company{number}")).await;
    let (id, email) = an_email(company);
    store.accept(email).await.expect("accepted");
    (id, company)
}

fn an_email(company: CompanyId) -> (EmailId, Acceptance) {
    let id = EmailId::new(SystemClock.now());
    let mut acceptance = acceptance(company, id, "reader@inbox.test");
    acceptance.emails.iter_mut().for_each(|email| email.route = ROUTE.to_owned());
    (id, acceptance)
}

async fn await_all(follower: &mut Follower, singles: &BTreeSet<EmailId>) {
    let (mut seen, mut came) = (0, 0);
    let mut deadline = Instant::now() + SILENCE_MAX;
    while came < singles.len() {
        follower.read_on();
        let order = &follower.ledger.order;
        came += order[seen..].iter().filter(|id| singles.contains(id)).count();
        if order.len() > seen {
            (seen, deadline) = (order.len(), Instant::now() + SILENCE_MAX);
        }
        assert!(
            Instant::now() < deadline,
            "nothing was sent for {SILENCE_MAX:?}; {came} of {}",
            singles.len()
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
