//! Laws of leases: prolonged by their owner, listed when they run out, taken away only if nobody renewed them,
//! and counted when a worker never came back.

use std::task::Poll;
use std::time::Duration;

use model::{EmailId, EventKind, Guard, Status, Timestamp, Verdict};
use testkit::{START, an_email, at_millis, at_secs};

use super::stage::{
    LEASE, a_company, a_worker, attempted, backlog, begun, claim, claim_one, kinds, lost_leases, read,
    request, retry_at, sent, settle, stored, swept,
};
use crate::{SUSPECT_STARTS, Settled, Store};

/// A renewed lease lasts longer, and the guard its worker holds stays good.
pub async fn renewing_prolongs_the_lease(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let (worker, guard) = one_claim(store, START).await;
    let before = read(store, company, id).await;
    assert_eq!(renewed(store, worker, vec![guard], at_secs(100)).await, []);
    assert_eq!(read(store, company, id).await, before, "nothing a guard looks at has changed");
    assert_eq!(lost_ids(store, at_secs(99)).await, []);
    assert_eq!(lost_ids(store, at_secs(101)).await, [id]);
    let guard = begun(store, guard, at_secs(99)).await;
    assert_eq!(settle(store, guard, sent(), at_secs(99)).await, Settled::Done(Status::Sent));
}

/// Renewing goes on while the attempt is at the provider, with the guard of the begin or the one before it: who
/// renews may not have heard of the begin yet.
pub async fn renewing_works_at_the_provider(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    stored(store, an_email(company)).await;
    let (worker, claimed) = one_claim(store, START).await;
    let guard = begun(store, claimed, START).await;
    assert_eq!(renewed(store, worker, vec![guard], at_secs(100)).await, []);
    assert_eq!(lost_ids(store, at_secs(99)).await, []);
    assert_eq!(renewed(store, worker, vec![claimed], at_secs(200)).await, []);
    assert_eq!(lost_ids(store, at_secs(199)).await, []);
    assert_eq!(settle(store, guard, sent(), at_secs(199)).await, Settled::Done(Status::Sent));
}

/// Renewing names those that are lost and prolongs the others.
pub async fn renewing_names_the_lost(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    backlog(store, company, 5, START).await;
    let worker = a_worker(store).await;
    let guards: Vec<Guard> = store
        .claim(request(worker, START, 10))
        .await
        .expect("claim")
        .iter()
        .map(|claim| claim.guard)
        .collect();
    let done = begun(store, guards[0], START).await;
    assert_eq!(settle(store, done, sent(), START).await, Settled::Done(Status::Sent));
    let release = Verdict::Release { outcome_unknown: false };
    settle(store, guards[1], release, START).await;
    let stolen = claim_one(store, START).await;
    assert_eq!(stolen.id(), guards[1].id, "it is another's now");
    store.cancel(company, guards[2].id, START).await.expect("cancel");
    let unknown = Guard { id: an_email(company).id, ..guards[0] };

    let all = [guards.clone(), vec![unknown]].concat();
    let mut lost = renewed(store, worker, all, at_secs(100)).await;
    lost.sort_unstable();
    let mut expected = vec![guards[0].id, guards[1].id, guards[2].id, unknown.id];
    expected.sort_unstable();
    assert_eq!(lost, expected);
    let run_out = lost_ids(store, at_secs(99)).await;
    assert_eq!(run_out, [stolen.id()], "the two that are left were prolonged, the other's was not");
    assert_eq!(renewed(store, worker, vec![], at_secs(100)).await, []);
}

/// Nobody renews the lease of another, even with its guard.
pub async fn only_the_owner_renews(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let (owner, guard) = one_claim(store, START).await;
    let stranger = a_worker(store).await;
    assert_eq!(renewed(store, stranger, vec![guard], at_secs(500)).await, [id]);
    assert_eq!(lost_ids(store, at_secs(46)).await, [id], "it was not prolonged");
    assert_eq!(renewed(store, owner, vec![guard], at_secs(500)).await, [], "it ran out, but nobody took it");
    assert_eq!(lost_ids(store, at_secs(46)).await, []);
}

/// Exactly the leases that ran out are listed: not the running, not the finished, not the waiting.
pub async fn lost_leases_are_those_that_ran_out(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    backlog(store, company, 6, START).await;
    let early = claim(store, START, 2).await;
    let late = claim(store, at_secs(30), 2).await;
    let done = begun(store, early[0].guard, START).await;
    settle(store, done, sent(), START).await;
    assert_eq!(lost_ids(store, at_millis(44_999)).await, []);
    assert_eq!(lost_ids(store, at_millis(45_001)).await, [early[1].id()]);
    let mut all = lost_ids(store, at_secs(80)).await;
    all.sort_unstable();
    let mut expected = vec![early[1].id(), late[0].id(), late[1].id()];
    expected.sort_unstable();
    assert_eq!(all, expected);
    assert_eq!(store.lost_leases(at_secs(80), 2).await.expect("lost").len(), 2, "no more than asked for");
}

/// A lost lease says what the sweep has to know, and whether the provider was about to be called.
pub async fn a_lost_lease_tells_where_it_was(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut email = testkit::a_full_email(company);
    email.due_at = START;
    stored(store, email.clone()).await;
    attempted(store, retry_at(at_secs(1)), START).await;
    let claim = claim_one(store, at_secs(1)).await;
    let late = at_secs(600);
    let lost = lost_leases(store, late).await.remove(0);
    assert_eq!((lost.guard, lost.company), (claim.guard, company));
    assert_eq!(lost.request_id, email.request_id);
    assert_eq!((lost.attempt, lost.attempt_in_series), (2, 2));
    assert_eq!((lost.lease_until, lost.expires_at), (claim.lease_until, email.expires_at));
    assert_eq!(lost.wishes, email.wishes);
    assert!(!lost.at_provider, "this attempt has not begun, whatever the one before did");

    let guard = begun(store, claim.guard, late).await;
    let lost = lost_leases(store, late).await.remove(0);
    assert_eq!((lost.guard, lost.at_provider, lost.provider.as_deref()), (guard, true, Some("relay")));
}

/// The sweep is refused when the lease it saw was renewed, and leaves no trace then.
pub async fn the_sweep_is_refused_after_a_renewal(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let (worker, guard) = one_claim(store, START).await;
    let late = at_secs(60);
    let lost = lost_leases(store, late).await.remove(0);
    assert_eq!(renewed(store, worker, vec![guard], at_secs(120)).await, []);
    let before = (read(store, company, id).await, kinds(store, company, id).await);
    let sweep = swept(&lost, Verdict::Requeue { due_at: late }, late);
    assert_eq!(store.settle(sweep).await.expect("settle"), Settled::Late);
    assert_eq!((read(store, company, id).await, kinds(store, company, id).await), before);
    let guard = begun(store, guard, late).await;
    assert_eq!(settle(store, guard, sent(), late).await, Settled::Done(Status::Sent));
}

/// The sweep is refused, without a trace, when the email moved on meanwhile: two sweeps do not act twice.
pub async fn two_sweeps_act_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    claim_one(store, START).await;
    let late = at_secs(60);
    let lost = lost_leases(store, late).await.remove(0);
    let sweep = swept(&lost, Verdict::Requeue { due_at: late }, late);
    assert_eq!(store.settle(sweep.clone()).await.expect("settle"), Settled::Done(Status::Enqueued));
    let history = kinds(store, company, id).await;
    assert_eq!(history, [EventKind::Enqueued, EventKind::Received, EventKind::LeaseLost]);
    assert_eq!(store.settle(sweep.clone()).await.expect("settle"), Settled::Late);
    claim_one(store, late).await;
    assert_eq!(store.settle(sweep).await.expect("settle"), Settled::Late);
    let history = [history, vec![EventKind::Received]].concat();
    assert_eq!(kinds(store, company, id).await, history);
    assert_eq!(read(store, company, id).await.status, Status::Processing);
}

/// Starts that nobody finished are counted: none at the first claim, one more for each lease that the sweep took
/// back, and the lost lease counts itself; from the third on once its work began.
pub async fn unfinished_starts_are_counted(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    stored(store, an_email(company)).await;
    let mut now = START;
    for starts in 0..3 {
        let claim = claim_one(store, now).await;
        assert_eq!(claim.unfinished_starts, starts, "claims before this one that nobody finished");
        let is_suspect = starts >= SUSPECT_STARTS;
        assert_eq!(store.begin_suspect(claim.guard).await, Ok(is_suspect));
        let at_provider = starts % 2 == 1;
        if at_provider {
            begun(store, claim.guard, now).await;
        }
        now = now.plus(LEASE).plus(Duration::from_secs(1));
        let lost = lost_leases(store, now).await.remove(0);
        assert_eq!(lost.unfinished_starts, starts + 1, "this one is not finished either");
        let verdict = if at_provider { retry_at(now) } else { Verdict::Requeue { due_at: now } };
        assert!(matches!(store.settle(swept(&lost, verdict, now)).await, Ok(Settled::Done(_))));
    }
}

/// A suspect that was handed out and never touched is as it was, however often that happens and however it comes back.
pub async fn an_untouched_suspect_is_not_blamed(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let ids = backlog(store, company, 2, START).await;
    let mut now = START;
    for claims_before in 0..6 {
        let claims = claim(store, now, 10).await;
        assert_eq!(claims.len(), ids.len());
        let starts = SUSPECT_STARTS.min(claims_before);
        assert!(claims.iter().all(|claim| claim.unfinished_starts == starts));
        now = now.plus(LEASE).plus(Duration::from_secs(1));
        let put_back = Verdict::PutBack { due_at: now, route: None };
        if starts == SUSPECT_STARTS {
            assert!(matches!(settle(store, claims[0].guard, put_back, now).await, Settled::Done(_)));
        }
        for lost in lost_leases(store, now).await {
            assert_eq!(lost.unfinished_starts, SUSPECT_STARTS.min(claims_before + 1));
            let requeue = Verdict::Requeue { due_at: now };
            assert!(matches!(store.settle(swept(&lost, requeue, now)).await, Ok(Settled::Done(_))));
        }
    }
}

/// The start of a suspect counts once its work begins, once, under the guard of its claim, which stays good; and not at
/// all if it is put back.
pub async fn a_suspect_is_counted_when_its_work_begins(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    let mut now = START;
    for _ in 0..SUSPECT_STARTS {
        claim_one(store, now).await;
        now = now.plus(LEASE).plus(Duration::from_secs(1));
        let lost = lost_leases(store, now).await.remove(0);
        store.settle(swept(&lost, Verdict::Requeue { due_at: now }, now)).await.expect("settle");
    }
    let put_back = claim_one(store, now).await;
    assert_eq!(store.begin_suspect(put_back.guard).await, Ok(true));
    settle(store, put_back.guard, Verdict::PutBack { due_at: now, route: None }, now).await;
    assert_eq!(store.begin_suspect(put_back.guard).await, Ok(false), "it is no longer its worker's");

    let claim = claim_one(store, now).await;
    assert_eq!(claim.unfinished_starts, SUSPECT_STARTS);
    let before = read(store, company, id).await;
    assert_eq!(store.begin_suspect(put_back.guard).await, Ok(false), "it is another's");
    assert_eq!(store.begin_suspect(claim.guard).await, Ok(true));
    assert_eq!(store.begin_suspect(claim.guard).await, Ok(true), "the answer may have been lost");
    assert_eq!(read(store, company, id).await, before, "nothing a guard looks at has changed");
    let late = now.plus(LEASE).plus(Duration::from_secs(1));
    let lost = lost_leases(store, late).await.remove(0);
    assert_eq!((lost.guard, lost.unfinished_starts), (claim.guard, SUSPECT_STARTS + 1));
    let guard = begun(store, claim.guard, now).await;
    assert_eq!(lost_leases(store, late).await[0].unfinished_starts, SUSPECT_STARTS + 1);
    assert_eq!(settle(store, guard, sent(), now).await, Settled::Done(Status::Sent));
}

/// A worker that comes back, with whatever result, ends the count.
pub async fn a_finished_start_ends_the_count(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let due_now = |now: Timestamp| {
        [retry_at(now), Verdict::Release { outcome_unknown: false }, Verdict::Requeue { due_at: now }]
    };
    for number in 0..due_now(START).len() {
        let id = stored(store, an_email(company)).await;
        claim_one(store, START).await;
        let now = at_secs(60);
        let lost = lost_leases(store, now).await.remove(0);
        let requeue = Verdict::Requeue { due_at: now };
        store.settle(swept(&lost, requeue, now)).await.expect("settle");
        let second = claim_one(store, now).await;
        assert_eq!(second.unfinished_starts, 1);
        let verdict = due_now(now)[number].clone();
        assert!(matches!(settle(store, second.guard, verdict.clone(), now).await, Settled::Done(_)));
        let third = claim_one(store, now).await;
        assert_eq!((third.id(), third.unfinished_starts), (id, 0), "after {verdict:?}");
        let guard = begun(store, third.guard, now).await;
        settle(store, guard, sent(), now).await;
    }
}

/// Who joined and works is not swept before its time, whoever else comes and goes.
pub async fn comings_and_goings_disturb_nobody(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    stored(store, an_email(company)).await;
    let (worker, guard) = one_claim(store, START).await;
    let other = a_worker(store).await;
    store.worker_leaves(other).await.expect("leave");
    assert_eq!(lost_ids(store, at_secs(1)).await, []);
    let guard = begun(store, guard, at_secs(1)).await;
    assert_eq!(settle(store, guard, sent(), at_secs(1)).await, Settled::Done(Status::Sent));
    store.worker_leaves(worker).await.expect("leave");
    assert_eq!(lost_ids(store, at_secs(1_000)).await, []);
}

/// The one email that is due, claimed by a worker that is known.
async fn one_claim(store: &dyn Store, now: Timestamp) -> (model::WorkerId, Guard) {
    let worker = a_worker(store).await;
    let claims = store.claim(request(worker, now, 10)).await.expect("claim");
    assert_eq!(claims.len(), 1);
    (worker, claims[0].guard)
}

async fn renewed(
    store: &dyn Store,
    worker: model::WorkerId,
    guards: Vec<Guard>,
    until: Timestamp,
) -> Vec<EmailId> {
    store.renew(worker, guards, until).await.expect("a renewal is answered")
}

async fn lost_ids(store: &dyn Store, now: Timestamp) -> Vec<EmailId> {
    lost_leases(store, now).await.iter().map(|lost| lost.guard.id).collect()
}

/// A caller that stops waiting for its claim, at whatever moment, leaves no email leased to nobody: each can be claimed
/// again at once, and as if it had never been claimed.
pub async fn a_claim_nobody_waits_for_is_put_back(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let ids = backlog(store, company, 5, START).await;
    let worker = a_worker(store).await;
    let mut claims = Vec::new();
    // So often is it looked at before its caller goes, at once or when the answer may be there, until it is done sooner.
    'asking: for looks in 1..LOOKS_MAX {
        for lingering in [Duration::ZERO, LINGERING] {
            let claim = store.claim(request(worker, START, 10));
            if let Some(claimed) = asked_in_vain(claim, looks, lingering).await {
                claims = claimed.expect("a claim is answered");
                break 'asking;
            }
        }
    }
    // Those that nobody waited for may still be under way.
    for _ in 0..TRIES_MAX {
        if claims.len() == ids.len() {
            break;
        }
        for claim in &claims {
            let put_back = Verdict::PutBack { due_at: START, route: None };
            settle(store, claim.guard, put_back, START).await;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        claims = store.claim(request(worker, START, 10)).await.expect("a claim is answered");
    }
    assert_eq!(claims.len(), ids.len(), "some are leased to nobody");
    assert!(claims.iter().all(|claim| (claim.attempt, claim.unfinished_starts) == (1, 0)));
}

const LOOKS_MAX: u32 = 500;
const LINGERING: Duration = Duration::from_millis(20);
const TRIES_MAX: u32 = 2_000;

/// What the work came to, if it is done after so many looks at it; otherwise it is let go.
async fn asked_in_vain<T>(work: impl Future<Output = T>, looks: u32, lingering: Duration) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut left = looks;
    let done = std::future::poll_fn(|context| {
        left -= 1;
        match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    if done.is_none() {
        tokio::time::sleep(lingering).await;
    }
    done
}
