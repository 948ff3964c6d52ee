//! What workers and the sweep do: claim, begin, settle in time or too late, renew, crash, and clean up after those
//! that crashed. Each asks the model first what the store must answer.

use std::time::Duration;

use ::model::attempt::LostLease;
use ::model::{EmailId, Event, EventKind, Guard, OnUnknown, Status, Timestamp, Verdict, WorkerId};
use rand::Rng;
use testkit::a_failure;

use super::model::{Checked, ensure};
use super::{InHand, LEASE_OFFSET, Simulation, Stage, TICK, failed, ids_of};
use crate::{AttemptStart, Begun, ClaimRequest, Routes, Settled, SettledBy, Settlement};

const PROVIDER: &str = "relay";
/// Routes by which emails wait here.
pub(super) const ROUTES: [&str; 3] = ["main", "main>relay", "other>relay"];
/// Settlements remembered to be made again.
const SETTLED_MAX: usize = 10;
/// Starts in a row that nobody finished, after which the sweep gives up.
const STARTS_MAX: u32 = 3;

impl Simulation<'_> {
    pub(super) async fn claim(&mut self) -> Checked<()> {
        let worker = self.dice.random_range(0..self.workers.len());
        let limit = self.dice.random_range(1..7);
        self.claim_for(worker, limit).await
    }

    async fn claim_for(&mut self, worker: usize, limit: u32) -> Checked<()> {
        let owner = self.workers[worker].id;
        let lease_secs = if self.dice.random_bool(0.3) { 5 } else { 45 };
        let request = ClaimRequest {
            owner,
            now: self.now,
            lease_until: self.now.plus(Duration::from_secs(lease_secs)).plus(LEASE_OFFSET),
            limit,
            size_bytes_max: 1 << 20,
            routes: self.some_routes(),
        };
        let claims = self.store.claim(request.clone()).await.map_err(failed)?;
        let ids = ids_of(&claims);
        let numbers = self.numbers(ids.iter().copied());
        self.note(format!("worker {worker} claims up to {limit} of {:?}: {numbers}", request.routes));
        ensure(claims.len() <= limit as usize, || format!("{} claimed, {limit} asked for", claims.len()))?;
        let expired = self.take_over_expired().await?;
        self.model.claim(&claims, owner, &request.routes, self.now)?;
        if claims.len() < limit as usize && !expired {
            let overlooked = self.model.overlooked(&request.routes, self.now);
            ensure(overlooked.is_none(), || format!("the claim overlooked {overlooked:?}"))?;
        }
        let (now, until) = (self.now, request.lease_until);
        for claim in claims {
            let times = (claim.claimed_at, claim.lease_until);
            ensure(times == (now, until), || format!("claim has times {times:?}"))?;
            let (guard, expires_at) = (claim.guard, claim.expires_at);
            self.workers[worker].hands.push(InHand {
                claimed: guard,
                guard,
                expires_at,
                stage: Stage::Claimed,
            });
        }
        self.touched.extend(ids);
        Ok(())
    }

    fn some_routes(&mut self) -> Routes {
        let route = ROUTES[self.dice.random_range(0..ROUTES.len())].to_owned();
        match self.dice.random_range(0..8) {
            0 => Routes::Only(vec![route]),
            1 => Routes::Except(vec![route]),
            2 => Routes::Except(ROUTES.map(str::to_owned).to_vec()),
            _ => Routes::All,
        }
    }

    /// A claim (or an expiry with a limit) may have moved emails whose time is over; which, is the store's choice.
    async fn take_over_expired(&mut self) -> Checked<bool> {
        let over = self.over();
        if over.is_empty() || self.nothing_ended().await? {
            return Ok(false);
        }
        let mut some = false;
        for id in over {
            let company = self.model.company_of(id)?;
            let email = self.store.email(company, id).await.map_err(failed)?;
            let row = self.model.row(id)?;
            if email.is_some_and(|email| email.status != row.status) {
                row.expire()?;
                self.touched.insert(id);
                some = true;
            }
        }
        Ok(some)
    }

    /// The cheap way to see that nothing expired: the counts of what is at its end are as they were.
    async fn nothing_ended(&self) -> Checked<bool> {
        let found = self.store.stats(self.now).await.map_err(failed)?.by_status;
        let expected = self.model.counts();
        let same = |status| found.get(&status).unwrap_or(&0) == expected.get(&status).unwrap_or(&0);
        Ok(same(Status::Expired) && same(Status::Failed))
    }

    /// What waits past its time.
    fn over(&self) -> Vec<EmailId> {
        let is_over = |row: &super::model::Row| row.status.is_waiting() && row.is_over(self.now);
        self.model.rows.iter().filter(|(_, row)| is_over(row)).map(|(id, _)| *id).collect()
    }

    pub(super) async fn expire(&mut self) -> Checked<()> {
        let limit = self.dice.random_range(1..9);
        let over = self.over();
        let expected = u32::try_from(over.len()).unwrap_or(u32::MAX).min(limit);
        let expired = self.store.expire(self.now, limit).await.map_err(failed)?;
        self.note(format!("expire up to {limit} of {}: {expired}", self.numbers(over.iter().copied())));
        ensure(expired == expected, || format!("{expired} expired, expected {expected}"))?;
        self.take_over_expired().await?;
        let left = over.len() - self.over().len();
        ensure(left == expired as usize, || format!("{expired} expired, {left} moved"))
    }

    pub(super) async fn begin(&mut self) -> Checked<()> {
        let claimed = |hand: &InHand, now| hand.stage == Stage::Claimed && hand.expires_at > now;
        let hands = self.hands(|hand, now| claimed(hand, now));
        let Some((worker, number)) = self.one_of(&hands) else { return Ok(()) };
        self.begin_for(worker, number).await
    }

    /// The work of a suspect begins, or a worker that lost it believes so; it may never come to a call.
    pub(super) async fn begin_suspect(&mut self) -> Checked<()> {
        let hands = self.hands(|hand, _| hand.stage == Stage::Claimed);
        let Some((worker, number)) = self.one_of(&hands) else { return Ok(()) };
        let guard = self.workers[worker].hands[number].guard;
        let begun = self.store.begin_suspect(guard).await.map_err(failed)?;
        self.note(format!("worker {worker} begins suspect {}: {begun}", self.numbers([guard.id])));
        self.touched.insert(guard.id);
        let expected = self.model.row(guard.id)?.begin_suspect(guard);
        ensure(begun == expected, || format!("the start of a suspect: {begun}, expected {expected}"))
    }

    async fn begin_for(&mut self, worker: usize, number: usize) -> Checked<()> {
        let guard = self.workers[worker].hands[number].guard;
        let events =
            vec![Event::new(EventKind::Validated, self.now), Event::new(EventKind::SentAttempt, self.now)];
        let start = AttemptStart { guard, provider: PROVIDER.into(), events: events.clone(), now: self.now };
        let begun = self.store.begin(start).await.map_err(failed)?;
        self.note(format!("worker {worker} begins {}: {begun:?}", self.numbers([guard.id])));
        self.touched.insert(guard.id);
        let may = self.model.row(guard.id)?.is_guarded_by(guard);
        match begun {
            Begun::Yes(guard) => {
                ensure(may, || "the store let an attempt begin that was lost".to_owned())?;
                self.model.row(guard.id)?.begin(guard, PROVIDER, &events)?;
                let took = self.dice.random_bool(0.6);
                if took {
                    self.model.sent_to_provider(guard)?;
                }
                let hand = &mut self.workers[worker].hands[number];
                (hand.guard, hand.stage) = (guard, Stage::AtProvider { took });
            }
            Begun::Lost => {
                ensure(!may, || "the store refused an attempt that was in order".to_owned())?;
                if self.dice.random_bool(0.5) {
                    self.workers[worker].hands.swap_remove(number);
                }
            }
        }
        Ok(())
    }

    pub(super) async fn settle(&mut self) -> Checked<()> {
        let hands = self.hands(|_, _| true);
        let Some((worker, number)) = self.one_of(&hands) else { return Ok(()) };
        let hand = self.workers[worker].hands.swap_remove(number);
        let (verdict, events) = self.verdict_of(&hand);
        // Now and then by a part of the worker that has not heard of the begin.
        let guard = if self.dice.random_bool(0.05) { hand.claimed } else { hand.guard };
        let settlement = Settlement { guard, by: SettledBy::Worker, verdict, events, now: self.now };
        self.settled.push(settlement.clone());
        if self.settled.len() > SETTLED_MAX {
            self.settled.remove(0);
        }
        self.settle_with(settlement).await
    }

    /// The answer to an earlier settlement got lost and it is made again.
    pub(super) async fn settle_again(&mut self) -> Checked<()> {
        let settled = self.settled.clone();
        let Some(settlement) = self.one_of(&settled) else { return Ok(()) };
        self.settle_with(settlement).await
    }

    async fn settle_with(&mut self, settlement: Settlement) -> Checked<()> {
        let Settlement { guard, by, verdict, events, now } = settlement.clone();
        let settled = self.store.settle(settlement).await.map_err(failed)?;
        self.note(format!("{by:?} settles {} {verdict:?}: {settled:?}", self.numbers([guard.id])));
        self.touched.insert(guard.id);
        let row = self.model.row(guard.id)?;
        let lease_is_as_seen = match by {
            SettledBy::Worker => true,
            SettledBy::Sweep { lease_seen } => row.lease.is_some_and(|lease| lease.until == lease_seen),
        };
        if row.is_guarded_by(guard) && lease_is_as_seen {
            row.settle(&verdict, guard, by == SettledBy::Worker, &events, now)?;
            let expected = Settled::Done(row.status);
            ensure(settled == expected, || format!("settled as {settled:?}, expected {expected:?}"))
        } else if let Some(status) = row.recorded(&verdict, guard, now)
            && by == SettledBy::Worker
        {
            let expected = Settled::Done(status);
            ensure(settled == expected, || format!("settled again as {settled:?}, expected {expected:?}"))
        } else {
            if by == SettledBy::Worker {
                row.events.push(EventKind::LateResult);
            }
            ensure(settled == Settled::Late, || format!("settled as {settled:?}, expected Late"))
        }
    }

    /// What a worker reports, honestly: known outcomes as they were, unknown ones as unknown.
    fn verdict_of(&mut self, hand: &InHand) -> (Verdict, Vec<Event>) {
        let now = self.now;
        let event = |kind| Event::new(kind, now);
        let due_at = now.plus(TICK * self.dice.random_range(0..6_000));
        let failure =
            a_failure(if self.dice.random_bool(0.5) { "SMTP_TRANSIENT_421" } else { "NETWORK_ERROR" });
        let choice = self.dice.random_range(0..10);
        let unknown = event(EventKind::OutcomeUnknown);
        match (hand.stage, choice) {
            (Stage::Claimed, _) if hand.expires_at < now => {
                (Verdict::Expire { failure: None }, vec![event(EventKind::Expired)])
            }
            (Stage::Claimed, 0..2) => {
                let route = self.dice.random_bool(0.3).then(|| "other>relay".to_owned());
                (Verdict::PutBack { due_at, route }, vec![event(EventKind::Released)])
            }
            (Stage::Claimed, 2..4) => {
                (Verdict::Release { outcome_unknown: false }, vec![event(EventKind::Released)])
            }
            (Stage::Claimed, 4..6) => {
                let retry = Verdict::Retry { due_at, failure, outcome_unknown: false };
                (retry, vec![event(EventKind::RetryScheduled)])
            }
            (Stage::Claimed, _) => (
                Verdict::Fail { failure: a_failure("INVALID_EMAIL"), outcome_unknown: false },
                vec![event(EventKind::ValidationFailed), event(EventKind::Failed)],
            ),
            (Stage::AtProvider { took: true }, 0..6) => {
                let message_id = Some(format!("m-{}", hand.guard.fence));
                (
                    Verdict::Sent {
                        provider: PROVIDER.into(),
                        provider_kind: "smtp",
                        message_id,
                        duration_ms: 5,
                        refused: Vec::new(),
                    },
                    vec![event(EventKind::Sent)],
                )
            }
            (Stage::AtProvider { took: false }, 0..3) => {
                let retry = Verdict::Retry { due_at, failure, outcome_unknown: false };
                (retry, vec![event(EventKind::RetryScheduled)])
            }
            (Stage::AtProvider { took: false }, 3..5) => {
                (Verdict::Fail { failure, outcome_unknown: false }, vec![event(EventKind::Failed)])
            }
            (Stage::AtProvider { took: false }, 5) => {
                (Verdict::Expire { failure: Some(failure) }, vec![event(EventKind::Expired)])
            }
            (_, 6) => (Verdict::Hold { failure }, vec![unknown]),
            (_, 7) => {
                (Verdict::Fail { failure, outcome_unknown: true }, vec![unknown, event(EventKind::Failed)])
            }
            (_, 8) => (Verdict::Release { outcome_unknown: true }, vec![unknown, event(EventKind::Released)]),
            _ => {
                let retry = Verdict::Retry { due_at, failure, outcome_unknown: true };
                (retry, vec![unknown, event(EventKind::RetryScheduled)])
            }
        }
    }

    pub(super) async fn renew(&mut self) -> Checked<()> {
        let worker = self.dice.random_range(0..self.workers.len());
        let owner = self.workers[worker].id;
        let guards: Vec<Guard> = self.workers[worker].hands.iter().map(|hand| hand.guard).collect();
        let until = self.now.plus(Duration::from_secs(45)).plus(LEASE_OFFSET);
        let mut expected = Vec::new();
        for guard in &guards {
            let row = self.model.row(guard.id)?;
            match &mut row.lease {
                Some(lease) if lease.owner == owner && row.fence == guard.fence => lease.until = until,
                _ => expected.push(guard.id),
            }
            self.touched.insert(guard.id);
        }
        let mut lost = self.store.renew(owner, guards, until).await.map_err(failed)?;
        self.note(format!("worker {worker} renews, lost: {}", self.numbers(lost.iter().copied())));
        lost.sort_unstable();
        lost.dedup();
        expected.sort_unstable();
        expected.dedup();
        ensure(lost == expected, || format!("lost {lost:?}, expected {expected:?}"))?;
        if self.dice.random_bool(0.5) {
            let hands = &mut self.workers[worker].hands;
            hands.retain(|hand| !lost.contains(&hand.guard.id));
        }
        Ok(())
    }

    /// A worker's process ends; another one starts in its place.
    pub(super) async fn crash(&mut self) -> Checked<()> {
        let worker = self.dice.random_range(0..self.workers.len());
        self.note(format!("worker {worker} crashes"));
        self.workers[worker] = self.a_worker().await?;
        Ok(())
    }

    /// A worker gives everything back and leaves; another one starts in its place.
    pub(super) async fn shut_down(&mut self) -> Checked<()> {
        let worker = self.dice.random_range(0..self.workers.len());
        for hand in std::mem::take(&mut self.workers[worker].hands) {
            let outcome_unknown = matches!(hand.stage, Stage::AtProvider { .. });
            let mut events = vec![Event::new(EventKind::Released, self.now)];
            if outcome_unknown {
                events.insert(0, Event::new(EventKind::OutcomeUnknown, self.now));
            }
            let verdict = Verdict::Release { outcome_unknown };
            let by = SettledBy::Worker;
            self.settle_with(Settlement { guard: hand.guard, by, verdict, events, now: self.now }).await?;
        }
        self.note(format!("worker {worker} leaves"));
        self.store.worker_leaves(self.workers[worker].id).await.map_err(failed)?;
        self.adopt_ends_of(self.workers[worker].id).await?;
        self.workers[worker] = self.a_worker().await?;
        Ok(())
    }

    /// A store may end what is left of a worker's leases when it leaves, or let them run out: its choice, and only that.
    async fn adopt_ends_of(&mut self, left: WorkerId) -> Checked<()> {
        for lost in self.store.lost_leases(self.now, 1_000).await.map_err(failed)? {
            let row = self.model.rows.get_mut(&lost.guard.id);
            if let Some(lease) = row.and_then(|row| row.lease.as_mut())
                && lease.owner == left
            {
                lease.until = lease.until.min(lost.lease_until);
            }
        }
        Ok(())
    }

    /// The list must be exactly the leases that ran out; acting on it may come later.
    pub(super) async fn look_for_lost_leases(&mut self) -> Checked<()> {
        let mut lost = self.store.lost_leases(self.now, 1_000).await.map_err(failed)?;
        self.note(format!("lost leases: {}", self.numbers(lost.iter().map(|lost| lost.guard.id))));
        lost.sort_by_key(|lost| lost.guard.id);
        let now = self.now;
        let ran_out = |row: &super::model::Row| row.lease.is_some_and(|lease| lease.until < now);
        let expected: Vec<_> = self.model.rows.iter().filter(|(_, row)| ran_out(row)).collect();
        let expected_ids: Vec<EmailId> = expected.iter().map(|(id, _)| **id).collect();
        let ids: Vec<EmailId> = lost.iter().map(|lost| lost.guard.id).collect();
        ensure(ids == expected_ids, || format!("lost leases {ids:?}, expected {expected_ids:?}"))?;
        for (lost, (_, row)) in lost.iter().zip(expected) {
            let found = (lost.attempt, lost.attempt_in_series, lost.unfinished_starts, lost.expires_at);
            let should = (row.attempts, row.in_series, row.unfinished_starts, row.expires_at);
            ensure(found == should, || format!("lost lease has {found:?}, expected {should:?}"))?;
            let lease = row.lease.as_ref().map(|lease| (lease.until, lease.at_provider));
            let found = (lost.lease_until, lost.at_provider);
            ensure(lease == Some(found), || format!("lost lease has {found:?}, expected {lease:?}"))?;
            ensure(row.is_guarded_by(lost.guard), || format!("lost lease has guard {:?}", lost.guard))?;
        }
        self.seen_lost.extend(lost);
        if self.dice.random_bool(0.6) { self.sweep_all().await } else { Ok(()) }
    }

    /// Acts on one lost lease, seen now or long ago.
    pub(super) async fn sweep(&mut self) -> Checked<()> {
        if self.seen_lost.is_empty() {
            return Ok(());
        }
        let number = self.dice.random_range(0..self.seen_lost.len());
        let lost = self.seen_lost.swap_remove(number);
        self.sweep_one(&lost).await
    }

    pub(super) async fn sweep_all(&mut self) -> Checked<()> {
        for lost in std::mem::take(&mut self.seen_lost) {
            self.sweep_one(&lost).await?;
        }
        Ok(())
    }

    async fn sweep_one(&mut self, lost: &LostLease) -> Checked<()> {
        let on_unknown = self.model.row(lost.guard.id)?.on_unknown;
        ensure(on_unknown == lost.wishes.on_unknown, || format!("lost lease has wishes {:?}", lost.wishes))?;
        let (verdict, kinds) = decide(lost, self.now);
        let events = kinds.into_iter().map(|kind| Event::new(kind, self.now)).collect();
        let by = SettledBy::Sweep { lease_seen: lost.lease_until };
        self.settle_with(Settlement { guard: lost.guard, by, verdict, events, now: self.now }).await
    }

    /// At rest everybody works: claims, begins, and the provider takes everything.
    pub(super) async fn work_everything_off(&mut self) -> Checked<()> {
        self.claim_for(0, 50).await?;
        for hand in std::mem::take(&mut self.workers[0].hands) {
            self.workers[0].hands.push(hand);
            self.begin_for(0, 0).await?;
            let Some(hand) = self.workers[0].hands.pop() else { continue };
            if hand.stage == (Stage::AtProvider { took: false }) {
                self.model.sent_to_provider(hand.guard)?;
            }
            let verdict = Verdict::Sent {
                provider: PROVIDER.into(),
                provider_kind: "smtp",
                message_id: None,
                duration_ms: 1,
                refused: Vec::new(),
            };
            let events = vec![Event::new(EventKind::Sent, self.now)];
            let by = SettledBy::Worker;
            self.settle_with(Settlement { guard: hand.guard, by, verdict, events, now: self.now }).await?;
        }
        Ok(())
    }

    /// Workers' claims that fit, as worker and number.
    fn hands(&self, fits: impl Fn(&InHand, Timestamp) -> bool) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for (worker, state) in self.workers.iter().enumerate() {
            for (number, hand) in state.hands.iter().enumerate() {
                if fits(hand, self.now) {
                    found.push((worker, number));
                }
            }
        }
        found
    }
}

/// The sweep's rule: give up after three starts, never send after the end, and mark what may have been sent.
fn decide(lost: &LostLease, now: Timestamp) -> (Verdict, Vec<EventKind>) {
    let outcome_unknown = lost.at_provider;
    let mut kinds = vec![EventKind::LeaseLost];
    if outcome_unknown {
        kinds.push(EventKind::OutcomeUnknown);
    }
    let verdict = if lost.unfinished_starts >= STARTS_MAX {
        kinds.push(EventKind::Failed);
        Verdict::Fail { failure: a_failure("QUARANTINED"), outcome_unknown }
    } else if outcome_unknown && lost.wishes.on_unknown == Some(OnUnknown::Hold) {
        Verdict::Hold { failure: a_failure("OUTCOME_UNKNOWN") }
    } else if lost.expires_at < now {
        kinds.push(EventKind::Expired);
        Verdict::Expire { failure: None }
    } else if outcome_unknown {
        kinds.push(EventKind::RetryScheduled);
        let due_at = now.plus(Duration::from_secs(5));
        Verdict::Retry { due_at, failure: a_failure("SMTP_TIMEOUT"), outcome_unknown }
    } else {
        Verdict::Requeue { due_at: now }
    };
    (verdict, kinds)
}
