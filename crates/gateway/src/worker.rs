//! The claim loop: takes as many due emails as it has room for, runs an attempt for each in a task of its own, keeps
//! their leases alive, and winds down without losing anything. What happens in an attempt is in `attempt`.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use model::{Claim, EmailId, Event, EventKind, Verdict, WorkerId};
use store::{ClaimRequest, Routes, SettledBy, Settlement, StoreError};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::addressees::{self, Addressees};
use crate::attempt::{self, Bench, Finished};
use crate::caution::{Caution, is_suspect};
use crate::conclude::{Ending, Treatment, conclude};
use crate::flight::{Flight, Flights, Stage};
use crate::lineup::Lineup;
use crate::{Gateway, observe};

/// The most emails one claim asks for: a batch that is committed in a few milliseconds.
const CLAIM_MAX: u32 = 64;
/// What all emails in flight may weigh together, so that large attachments cannot fill the memory.
const IN_FLIGHT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// A finished attempt waits this long for others, so that the next claim is worth its transaction.
const GATHER: Duration = Duration::from_millis(5);
/// After a claim that took all there was, the next one waits until this long after it, for the same reason.
const PACE: Duration = Duration::from_millis(10);
/// How long sends in flight may take to end at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);
/// What is left of the shutdown after that: giving back, leaving.
const SHUTDOWN_REST: Duration = Duration::from_secs(3);
/// How long putting suspects back may hold up the worker.
const PUT_BACK_WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether an account has to be asked what it allows.
const ALLOWANCES_EVERY: Duration = Duration::from_secs(5);
const TROUBLE_PAUSE_MIN: Duration = Duration::from_millis(100);
const TROUBLE_PAUSE_MAX: Duration = Duration::from_secs(5);

pub struct Worker {
    id: WorkerId,
    bench: Arc<Bench>,
    flights: Flights,
    tasks: JoinSet<(EmailId, Finished)>,
    caution: Caution,
    /// The routes emails wait by, as far as this worker has met them.
    lineup: Lineup,
    /// When the last claim left nothing that was due.
    emptied_at: Option<Instant>,
    /// No claims before this: the store is in trouble.
    paused_until: Option<Instant>,
    trouble_pause: Duration,
}

impl Worker {
    /// Works until `shutdown` is cancelled, then winds down; returns within 35 seconds of that.
    pub async fn run(gateway: Gateway, shutdown: CancellationToken) {
        let mut worker = Self::new(gateway);
        if !worker.join(&shutdown).await {
            return;
        }
        let renewal = tokio::spawn(keep_leases(worker.bench.clone(), worker.id, worker.flights.clone()));
        let asking = tokio::spawn(keep_allowances(worker.bench.clone()));
        tracing::info!(worker = %worker.id, "worker started");
        while !shutdown.is_cancelled() {
            worker.fill_slots(&shutdown).await;
            worker.wait(&shutdown).await;
        }
        worker.wind_down().await;
        renewal.abort();
        asking.abort();
        worker.leave().await;
        tracing::info!(worker = %worker.id, "worker stopped");
    }

    /// One round of claims, seen to its end. For tests, which turn the clock between two of them.
    #[cfg(test)]
    pub(crate) async fn step(&mut self, shutdown: &CancellationToken) -> Result<(), StoreError> {
        self.claim_round(shutdown).await?;
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended);
        }
        Ok(())
    }

    pub(crate) fn new(gateway: Gateway) -> Self {
        let id = WorkerId::new(gateway.clock.now());
        let stop = CancellationToken::new();
        Self {
            id,
            bench: Arc::new(Bench::new(gateway, stop)),
            lineup: Lineup::default(),
            emptied_at: None,
            flights: Flights::default(),
            tasks: JoinSet::new(),
            caution: Caution::default(),
            paused_until: None,
            trouble_pause: TROUBLE_PAUSE_MIN,
        }
    }

    /// `false` when the shutdown came first.
    async fn join(&mut self, shutdown: &CancellationToken) -> bool {
        let mut pause = TROUBLE_PAUSE_MIN;
        while let Err(error) = self.bench.gateway.store.worker_joins(self.id).await {
            tracing::warn!(%error, "the worker cannot join yet");
            tokio::select! {
                () = shutdown.cancelled() => return false,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(TROUBLE_PAUSE_MAX),
            }
        }
        true
    }

    /// Claims until there is no room or nothing more is due.
    async fn fill_slots(&mut self, shutdown: &CancellationToken) {
        if self.paused_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.paused_until = None;
        if let Err(error) = self.claim_round(shutdown).await {
            tracing::warn!(%error, "nothing could be claimed");
            return self.trouble();
        }
        self.trouble_pause = TROUBLE_PAUSE_MIN;
    }

    pub(crate) async fn claim_round(&mut self, shutdown: &CancellationToken) -> Result<(), StoreError> {
        self.bench.gates.refresh().await?;
        self.probe().await?;
        while !shutdown.is_cancelled() {
            let in_flight = self.flights.by_route();
            let concurrency = self.bench.gateway.settings.worker_concurrency;
            let Some(share) = self.lineup.next(&self.bench.gates, &in_flight, concurrency, self.room())
            else {
                break;
            };
            let claims = self.claim(share.routes.clone(), share.limit).await?;
            self.emptied_at = (claims.len() < share.limit as usize).then(Instant::now);
            self.lineup.came(&share, &claims);
            self.start(claims).await?;
        }
        Ok(())
    }

    /// One email for each provider whose turn to be probed has come.
    async fn probe(&mut self) -> Result<(), StoreError> {
        for route in self.lineup.closed(&self.bench.gates) {
            if self.room() == 0 {
                return Ok(());
            }
            let Some(provider) = self.bench.gates.begin_probe(&route).await? else { continue };
            let claims = self.claim(Routes::Only(vec![route]), 1).await?;
            if claims.is_empty() {
                self.bench.gates.probe_spent(&provider).await?;
            }
            let mut addressees = self.addressees(&claims).await?;
            for claim in claims {
                self.spawn(claim, &mut addressees, Some(provider.clone()));
            }
        }
        Ok(())
    }

    /// How many more emails may be claimed now.
    fn room(&self) -> u32 {
        if self.flights.size_bytes() >= IN_FLIGHT_BYTES_MAX {
            return 0;
        }
        self.free_slots().min(CLAIM_MAX)
    }

    fn free_slots(&self) -> u32 {
        let used = u32::try_from(self.tasks.len()).unwrap_or(u32::MAX);
        self.bench.gateway.settings.worker_concurrency.saturating_sub(used)
    }

    async fn claim(&self, routes: Routes, limit: u32) -> Result<Vec<Claim>, StoreError> {
        let gateway = &self.bench.gateway;
        let now = gateway.clock.now();
        let request = ClaimRequest {
            owner: self.id,
            now,
            lease_until: now.plus(gateway.settings.lease),
            limit,
            size_bytes_max: IN_FLIGHT_BYTES_MAX.saturating_sub(self.flights.size_bytes()),
            routes,
        };
        let claims = gateway.queue.claim(request).await?;
        observe::claimed(claims.len());
        Ok(claims)
    }

    /// Suspects that have to wait are put back first: one that kills the process at once would otherwise take them
    /// with it, and they would wait until their leases run out.
    async fn start(&mut self, claims: Vec<Claim>) -> Result<(), StoreError> {
        let sorted = self.caution.sort(claims);
        if !sorted.later.is_empty() {
            let putting_back = join_all(
                sorted.later.iter().map(|(claim, wait)| put_back(&self.bench, claim, *wait, "suspect")),
            );
            if tokio::time::timeout(PUT_BACK_WAIT, putting_back).await.is_err() {
                tracing::warn!("some emails could not be put back in time; their leases run out");
            }
        }
        let mut addressees = match self.addressees(&sorted.run).await {
            Ok(addressees) => addressees,
            Err(error) => {
                for claim in &sorted.run {
                    self.caution.ended(claim.id());
                }
                return Err(error);
            }
        };
        for claim in sorted.run {
            self.spawn(claim, &mut addressees, None);
        }
        Ok(())
    }

    /// What is to be known of those the claims go to. A store that fails gets the claims back.
    async fn addressees(&self, claims: &[Claim]) -> Result<HashMap<EmailId, Addressees>, StoreError> {
        let gateway = &self.bench.gateway;
        let asked = addressees::of_claims(&gateway.suppressions, &*gateway.store, claims).await;
        if asked.is_err() {
            let returned =
                claims.iter().map(|claim| put_back(&self.bench, claim, TROUBLE_PAUSE_MIN, "store"));
            if tokio::time::timeout(PUT_BACK_WAIT, join_all(returned)).await.is_err() {
                tracing::warn!("some emails could not be put back in time; their leases run out");
            }
        }
        asked
    }

    fn spawn(&mut self, claim: Claim, addressees: &mut HashMap<EmailId, Addressees>, probe: Option<String>) {
        let addressees = addressees.remove(&claim.id()).expect("they were asked for with the claim");
        let flight = self.take_off(&claim, probe);
        let bench = self.bench.clone();
        self.tasks.spawn(async move {
            // An attempt catches the panics of its steps; this is for one in the recording of its end, whose lease
            // then runs out, so that the sweep takes it from there.
            let attempt = AssertUnwindSafe(attempt::run(&bench, claim, &addressees, &flight)).catch_unwind();
            (flight.id, attempt.await.unwrap_or(Finished::StoreTrouble))
        });
    }

    fn take_off(&mut self, claim: &Claim, probe: Option<String>) -> Arc<Flight> {
        let flight = Arc::new(Flight::of(claim, probe));
        self.flights.add(flight.clone());
        flight
    }

    /// Returns when it is time to claim again.
    async fn wait(&mut self, shutdown: &CancellationToken) {
        let may_claim = self.paused_until.is_none() && self.room() > 0;
        let gateway = &self.bench.gateway;
        let pause_ends = self.paused_until.unwrap_or_else(Instant::now);
        tokio::select! {
            () = shutdown.cancelled() => {}
            Some(ended) = self.tasks.join_next() => {
                self.ended(ended);
                self.gather(shutdown).await;
            }
            () = gateway.queue.wait_for_work(gateway.clock.now()), if may_claim => self.gather(shutdown).await,
            () = tokio::time::sleep_until(pause_ends), if self.paused_until.is_some() => {}
        }
    }

    /// Takes in what else has ended, for a moment: until enough slots are free, or, where all that was due is in flight,
    /// until there may be some more.
    async fn gather(&mut self, shutdown: &CancellationToken) {
        let enough = (self.bench.gateway.settings.worker_concurrency / 4).max(1);
        let until = match self.emptied_at {
            Some(emptied_at) => emptied_at + PACE,
            None => Instant::now() + GATHER,
        };
        while self.emptied_at.is_some() || self.free_slots() < enough {
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep_until(until) => break,
                Some(ended) = self.tasks.join_next() => self.ended(ended),
            }
        }
        while let Some(ended) = self.tasks.try_join_next() {
            self.ended(ended);
        }
    }

    fn ended(&mut self, ended: Result<(EmailId, Finished), JoinError>) {
        match ended {
            Ok((id, finished)) => {
                if let Some(flight) = self.flights.remove(id).filter(|flight| flight.is_stray()) {
                    self.lineup.strayed(&flight.route);
                }
                self.caution.ended(id);
                if finished == Finished::StoreTrouble {
                    self.trouble();
                }
            }
            // Without the words of a panic, which may quote an email.
            Err(_panic) => tracing::error!("the task of an attempt stopped"),
        }
    }

    /// The store failed: no claims for a while, longer each time.
    fn trouble(&mut self) {
        if self.paused_until.is_none_or(|until| until <= Instant::now()) {
            self.paused_until = Some(Instant::now() + self.trouble_pause);
            self.trouble_pause = (self.trouble_pause * 2).min(TROUBLE_PAUSE_MAX);
        }
    }

    /// No new claims; what has not begun is given back by its attempt, what has begun gets a while to end, and what
    /// has not ended by then is given back from here.
    async fn wind_down(&mut self) {
        self.bench.stop.cancel();
        let until = Instant::now() + SHUTDOWN_GRACE;
        while let Ok(Some(ended)) = tokio::time::timeout_at(until, self.tasks.join_next()).await {
            self.ended(ended);
        }
        self.tasks.abort_all();
        let until = Instant::now() + SHUTDOWN_REST / 3;
        while let Ok(Some(ended)) = tokio::time::timeout_at(until, self.tasks.join_next()).await {
            // One that ended just now has nothing left to give back; the stopped ones stay among the flights.
            if let Ok((id, _)) = ended {
                self.flights.remove(id);
            }
        }
        let flights = self.flights.all();
        let settling = join_all(flights.iter().map(|flight| last_settlement(&self.bench, flight)));
        if tokio::time::timeout(SHUTDOWN_REST / 3, settling).await.is_err() {
            tracing::error!("not everything could be given back; the next sweep will find it");
        }
    }

    async fn leave(&self) {
        let leaving = self.bench.gateway.store.worker_leaves(self.id);
        match tokio::time::timeout(SHUTDOWN_REST / 3, leaving).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the worker could not sign off"),
            Err(_) => tracing::warn!("the worker could not sign off in time"),
        }
    }
}

/// Claims one batch and sees it to its end, suspects one after the other. For tests and simulations, which step it;
/// nothing here waits for work. Returns how many emails were claimed.
pub async fn run_once(gateway: &Gateway) -> Result<usize, StoreError> {
    let mut worker = Worker::new(gateway.clone());
    gateway.store.worker_joins(worker.id).await?;
    worker.bench.gates.refresh().await?;
    let claims = worker.claim(Routes::All, gateway.settings.worker_concurrency.min(CLAIM_MAX)).await?;
    let count = claims.len();
    let (suspects, others): (Vec<_>, Vec<_>) = claims.into_iter().partition(is_suspect);
    let mut addressees = worker.addressees(&others).await?;
    addressees.extend(worker.addressees(&suspects).await?);
    for claim in others {
        worker.spawn(claim, &mut addressees, None);
    }
    while let Some(ended) = worker.tasks.join_next().await {
        worker.ended(ended);
    }
    for claim in suspects {
        worker.spawn(claim, &mut addressees, None);
        if let Some(ended) = worker.tasks.join_next().await {
            worker.ended(ended);
        }
    }
    gateway.store.worker_leaves(worker.id).await?;
    Ok(count)
}

/// Keeps what the providers' accounts allow up to date.
async fn keep_allowances(bench: Arc<Bench>) {
    loop {
        if let Err(error) = bench.gates.read_allowances().await {
            tracing::warn!(%error, "what the providers allow could not be kept");
        }
        tokio::time::sleep(ALLOWANCES_EVERY).await;
    }
}

/// Renews the leases of everything in flight, three times per lease, so that one failure is no loss.
async fn keep_leases(bench: Arc<Bench>, owner: WorkerId, flights: Flights) {
    let lease = bench.gateway.settings.lease;
    loop {
        tokio::time::sleep(lease / 3).await;
        if let Err(error) = renew(&bench.gateway, owner, &flights).await {
            tracing::warn!(%error, "leases could not be renewed; trying again soon");
            tokio::time::sleep(lease / 15).await;
            let _ = renew(&bench.gateway, owner, &flights).await;
        }
    }
}

async fn renew(gateway: &Gateway, owner: WorkerId, flights: &Flights) -> Result<(), StoreError> {
    let flying = flights.all();
    if flying.is_empty() {
        return Ok(());
    }
    let until = gateway.clock.now().plus(gateway.settings.lease);
    let guards = flying.iter().map(|flight| flight.guard()).collect();
    let lost = gateway.queue.extend(owner, guards, until).await?;
    for flight in flying.iter().filter(|flight| lost.contains(&flight.id)) {
        // Its writes are refused from now on, which is all that matters. One that ended a moment ago is also here.
        tracing::debug!(
            outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company,
            attempt = flight.facts.attempt,
            "a lease is no longer ours"
        );
    }
    Ok(())
}

/// What to record for a flight that did not end in time: its result if it is known, else that it is given back.
async fn last_settlement(bench: &Bench, flight: &Flight) {
    let settlement = match flight.stage() {
        Stage::Settling(settlement) => *settlement,
        Stage::Preparing | Stage::AtProvider => given_back(bench, flight, "shutdown").await,
    };
    let now = settlement.now;
    match bench.gateway.queue.settle(settlement).await {
        Ok(settled) => tracing::warn!(
            outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company,
            attempt = flight.facts.attempt, result = ?settled, at = %now,
            "an attempt did not end before the shutdown"
        ),
        Err(error) => tracing::error!(
            outboxId = %flight.id, requestId = flight.request_id, companyId = %flight.company,
            attempt = flight.facts.attempt, %error,
            "an attempt that did not end before the shutdown could not be given back"
        ),
    }
}

/// Puts an email back for a later turn: it keeps its attempts, and a suspect the starts that make it one.
async fn put_back(bench: &Bench, claim: &Claim, wait: Duration, reason: &'static str) {
    let now = bench.gateway.clock.now();
    let event = Event::new(EventKind::Released, now).with("attempt", claim.attempt).with("reason", reason);
    let verdict = Verdict::PutBack { due_at: now.plus(wait), route: None };
    let settlement =
        Settlement { guard: claim.guard, by: SettledBy::Worker, verdict, events: vec![event], now };
    attempt::record(bench, &Flight::of(claim, None), settlement, Instant::now()).await;
}

async fn given_back(bench: &Bench, flight: &Flight, reason: &'static str) -> Settlement {
    let gateway = &bench.gateway;
    // Without the company's settings an unknown outcome is retried, marked; the store is failing in that case anyway.
    let company = bench.companies.get(&*gateway.store, flight.company).await.ok().flatten();
    let settings = company.as_deref().map(|company| &company.settings);
    let treatment = Treatment::of(&flight.wishes, settings, &gateway.settings);
    let now = gateway.clock.now();
    let ending = Ending::GivenBack { reason, at_provider: flight.is_at_provider() };
    let (verdict, events) = conclude(flight.facts, ending, &treatment.rules(0.0, now));
    Settlement { guard: flight.guard(), by: SettledBy::Worker, verdict, events, now }
}

#[cfg(test)]
mod tests;
