//! A process that may open no more files: it serves those it has, tells the others, goes on sending, does not spin, and
//! takes connections again as soon as it can.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::http::{Connection, Exchange};
use crate::overload::{ARE_YOU_THERE, an_email, await_answers, id_in};
use crate::provider_ledger::Follower;
use crate::rig::{COMPANY, Rig};
use crate::{stored, watch};

const OPEN_FILES_MAX: usize = 96;
/// Several times as many as fit.
const CROWD: usize = 300;
const EMAILS: usize = 40;
/// While it cannot take connections: looks at what it does, so far apart.
const LOOKS: usize = 20;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Nothing here takes so long.
const STEP_MAX: Duration = Duration::from_secs(60);

/// However many connect, what is left of the files is enough to send: no email needs a second attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_a_crowd_leaves_files_for_sending() {
    let rig = Rig::set_up(0).await;
    let mut server = rig.start_server_with_files(OPEN_FILES_MAX);
    let mut held = Connection::to(&rig.api_addresses, 0);
    await_answers(&mut server, &mut held).await;

    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        let mut connection = Connection::to(&rig.api_addresses, 0);
        crowd.spawn(async move { (connection.exchange(ARE_YOU_THERE).await, connection) });
    }
    let (mut served, mut refused, mut others) = (Vec::new(), 0, Vec::new());
    while let Some(ended) = crowd.join_next().await {
        match ended.expect("no client panics") {
            (Exchange::Answered(answer), connection) if answer.status == 200 => served.push(connection),
            (Exchange::Answered(answer), _) if answer.status == 503 && answer.retry_after_secs.is_some() => {
                refused += 1
            }
            (other, _) => others.push(other),
        }
    }
    let mut follower = rig.provider_ledger();
    for number in 0..EMAILS {
        let request = an_email(&rig.key, &format!("held-{number}"), false);
        let answer = held.exchange(&request).await;
        assert!(matches!(&answer, Exchange::Answered(answer) if answer.status == 202), "{answer:?}");
    }
    await_sent(&mut follower).await;
    println!("served={} refused={refused} memory_mb={}", served.len(), watch::memory_peak_mb(server.id()));
    let (was_served, exit) = (served.len(), server.terminate().await);
    drop(served);
    let emails = stored::read(&rig.database, COMPANY).await;
    let again: Vec<_> = emails.values().filter(|email| email.attempts != 1).collect();
    let fails =
        !others.is_empty() || was_served == 0 || refused == 0 || !again.is_empty() || exit.code() != Some(0);
    rig.tear_down(fails).await;
    assert!(
        !fails,
        "{was_served} served, {refused} refused, exit: {exit}, {others:?}, tried again: {again:#?}"
    );
}

async fn await_sent(follower: &mut Follower) {
    let deadline = Instant::now() + STEP_MAX;
    while follower.ledger.copies.len() < EMAILS {
        assert!(Instant::now() < deadline, "{} of {EMAILS} were sent", follower.ledger.copies.len());
        follower.read_on();
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The limit is lowered below what is open: not one connection can be taken until it is raised again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_without_files_waits_and_recovers() {
    let rig = Rig::set_up(0).await;
    let mut server = rig.start_server_with_files(OPEN_FILES_MAX);
    let mut held = Connection::to(&rig.api_addresses, 0);
    await_answers(&mut server, &mut held).await;
    watch::limit_open_files(server.id(), 1).await;

    let mut waiting = JoinSet::new();
    for _ in 0..LOOKS {
        let mut connection = Connection::to(&rig.api_addresses, 0);
        waiting.spawn(async move { connection.exchange(ARE_YOU_THERE).await });
    }
    let (began, cpu_before) = (Instant::now(), watch::cpu_time(server.id()));
    let mut ids = Vec::new();
    for number in 0..LOOKS {
        let answer = held.exchange(&an_email(&rig.key, &format!("held-{number}"), false)).await;
        let Exchange::Answered(answer) = answer else { panic!("who has a connection keeps it: {answer:?}") };
        ids.push(id_in(&answer).unwrap_or_else(|| panic!("an id: {answer:?}")));
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let (took, cpu) = (began.elapsed(), watch::cpu_time(server.id()) - cpu_before);
    let (told, early) = (rig.logged("no connection could be taken"), waiting.try_join_next());

    watch::limit_open_files(server.id(), OPEN_FILES_MAX).await;
    while let Some(ended) = waiting.join_next().await {
        let answer = ended.expect("no client panics");
        assert!(matches!(&answer, Exchange::Answered(answer) if answer.status == 200), "{answer:?}");
    }
    let is_drained = stored::drained(&rig.database, STEP_MAX).await;
    let exit = server.terminate().await;
    let emails = stored::read(&rig.database, COMPANY).await;
    println!("cpu={cpu:?} of {took:?} logged={told} drained={is_drained} exit: {exit}");
    let lost = ids.iter().filter(|id| !emails.contains_key(id)).count();
    let is_right = early.is_none() && told > 0 && lost == 0 && is_drained && exit.code() == Some(0);
    let fails = !is_right || cpu > took / 2;
    rig.tear_down(fails).await;
    assert!(
        !fails,
        "{cpu:?} of {took:?}, {told} lines, taken early: {early:?}, lost {lost}, drained: {is_drained}"
    );
}
