//! Repairs what crashes leave behind and ends what has outlived its time: lost leases, expiry, intake, retention; sees to
//! what follows from reports: early ones, tallies, alerts, the standing of companies. Runs
//! beside the workers of every process; several at once do no harm, since each write names what it expects to find.

use std::time::Duration;

use model::CLOCK_MIN;
use model::attempt::LostLease;
use store::{Settled, SettledBy, Settlement, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::company_cache::CompanyCache;
use crate::conclude::{Ending, Facts, Treatment, conclude};
use crate::{Gateway, alerts, intake, observe, reputation};

/// How often leases are looked after.
const ROUND: Duration = Duration::from_secs(1);
/// At shutdown a round has this long to end. A server that vanished without a word would hold it up for a minute; what the
/// store was asked for is done as a whole or not at all, whoever waits for it. A message whose intake is left like that
/// counts one start that never ended.
const LAST_ROUND_MAX: Duration = Duration::from_secs(20);
const LEASES_PER_BATCH: u32 = 100;
const EXPIRED_PER_BATCH: u32 = 200;
const PRUNED_PER_BATCH: u32 = 200;
/// No round does more of one thing than this many batches, so that the others get their turn.
const BATCHES_MAX: u32 = 20;
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const STATS_EVERY: Duration = Duration::from_secs(5);
const REMATCH_EVERY: Duration = Duration::from_secs(5);
const REMATCHED_PER_BATCH: u32 = 200;
const FOLDED_PER_BATCH: u32 = 2_000;
const REPUTATION_EVERY: Duration = Duration::from_secs(60);

/// What one round did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    pub leases: u32,
    pub expired: u32,
    pub intake: u32,
    pub pruned: u64,
    pub alerts: u32,
    /// There is more to do: do not wait for the next round.
    pub more: bool,
}

/// One round of everything, on its own. For tests and commands.
pub async fn sweep_once(gateway: &Gateway) -> Result<Swept, StoreError> {
    Sweep::new(gateway.clone()).round().await
}

/// Sweeps until `shutdown` is cancelled, the first time at once, so that a restart recovers within seconds.
pub async fn run(gateway: Gateway, shutdown: CancellationToken) {
    let too_late = async {
        shutdown.cancelled().await;
        tokio::time::sleep(LAST_ROUND_MAX).await;
    };
    tokio::select! {
        () = sweep(gateway, &shutdown) => {}
        () = too_late => tracing::warn!("the last round of the sweep did not end in time"),
    }
}

async fn sweep(gateway: Gateway, shutdown: &CancellationToken) {
    let mut sweep = Sweep::new(gateway);
    while !shutdown.is_cancelled() {
        let pause = match sweep.round().await {
            Ok(swept) if swept.more => Duration::ZERO,
            Ok(_) => ROUND,
            Err(error) => {
                tracing::warn!(%error, "a round of the sweep failed");
                sweep.after_trouble = true;
                ROUND
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct Sweep {
    gateway: Gateway,
    companies: CompanyCache,
    pruned_at: Option<Instant>,
    counted_at: Option<Instant>,
    rematched_at: Option<Instant>,
    judged_at: Option<Instant>,
    after_trouble: bool,
}

impl Sweep {
    fn new(gateway: Gateway) -> Self {
        Self {
            gateway,
            companies: CompanyCache::default(),
            pruned_at: None,
            counted_at: None,
            rematched_at: None,
            judged_at: None,
            after_trouble: false,
        }
    }

    async fn round(&mut self) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        if self.gateway.clock.now() < CLOCK_MIN {
            return Ok(swept);
        }
        if self.is_store_back().await? {
            self.take_over(&mut swept).await?;
        }
        let done = self.move_on(&mut swept).await;
        if !matches!(done, Err(StoreError::Full(_))) {
            done.clone()?;
        }
        // Retention is what makes room: it does not wait for those who find none.
        self.prune(&mut swept).await?;
        self.count().await?;
        done.map(|()| swept)
    }

    /// What brings emails further.
    async fn move_on(&mut self, swept: &mut Swept) -> Result<(), StoreError> {
        if self.gateway.clock.doubt().is_none() {
            self.expire(swept).await?;
        }
        self.take_in(swept).await?;
        self.follow_up(swept).await
    }

    /// When the time leaps, all leases seem to be lost: their workers get the time to renew them by the new one.
    fn may_judge_leases(&self) -> bool {
        !self.gateway.clock.leapt_within(self.gateway.settings.lease)
    }

    /// After the store failed, its workers hold results that they could not record: they get one round's time for
    /// that before their leases are judged. While it has no room they have to wait longer; the rest goes on.
    async fn is_store_back(&mut self) -> Result<bool, StoreError> {
        if !self.after_trouble {
            return Ok(true);
        }
        match self.gateway.store.check().await {
            Ok(()) => self.after_trouble = false,
            Err(StoreError::Full(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// Ends the attempts whose workers did not come back.
    async fn take_over(&mut self, swept: &mut Swept) -> Result<(), StoreError> {
        for _ in 0..BATCHES_MAX {
            let now = self.gateway.clock.now();
            if !self.may_judge_leases() {
                return Ok(());
            }
            let lost = self.gateway.store.lost_leases(now, LEASES_PER_BATCH).await?;
            let mut ended = 0;
            for lease in lost {
                let (id, company, attempt) = (lease.guard.id, lease.company, lease.attempt);
                let request_id = lease.request_id.clone();
                match self.end_attempt(lease).await {
                    Ok(done) => ended += u32::from(done),
                    Err(error) if error.is_temporary() => return Err(error),
                    // One row that cannot be dealt with must not keep the others waiting.
                    Err(error) => tracing::error!(
                        outboxId = %id, requestId = request_id, companyId = %company, attempt, %error,
                        "a lost lease could not be ended"
                    ),
                }
            }
            swept.leases += ended;
            if ended < LEASES_PER_BATCH {
                return Ok(());
            }
        }
        swept.more = true;
        Ok(())
    }

    /// `false` when its worker came back after all.
    async fn end_attempt(&self, lost: LostLease) -> Result<bool, StoreError> {
        let gateway = &self.gateway;
        let company = self.companies.get(&*gateway.store, lost.company).await?;
        let settings = company.as_deref().map(|company| &company.settings);
        let treatment = Treatment::of(&lost.wishes, settings, &gateway.settings);
        let now = gateway.clock.now();
        let ending = Ending::LeaseLost { at_provider: lost.at_provider };
        let rules = treatment.rules((gateway.dice)(), now);
        let (verdict, events) = conclude(Facts::from(&lost), ending, &rules);
        let by = SettledBy::Sweep { lease_seen: lost.lease_until };
        let settlement = Settlement { guard: lost.guard, by, verdict, events, now };
        let Settled::Done(status) = gateway.queue.settle(settlement.clone()).await? else {
            return Ok(false);
        };
        observe::recorded(&settlement.events);
        observe::ended(&settlement.verdict, status, lost.attempt);
        tracing::warn!(
            outboxId = %lost.guard.id, requestId = lost.request_id, companyId = %lost.company,
            attempt = lost.attempt, state = %status, atProvider = lost.at_provider,
            starts = lost.unfinished_starts, errorCode = observe::code_of(&settlement.verdict),
            "the worker of this email did not come back"
        );
        Ok(true)
    }

    async fn expire(&self, swept: &mut Swept) -> Result<(), StoreError> {
        for _ in 0..BATCHES_MAX {
            let now = self.gateway.clock.now();
            let count = self.gateway.store.expire(now, EXPIRED_PER_BATCH).await?;
            observe::expired(count);
            swept.expired += count;
            if count < EXPIRED_PER_BATCH {
                return Ok(());
            }
        }
        swept.more = true;
        Ok(())
    }

    async fn take_in(&self, swept: &mut Swept) -> Result<(), StoreError> {
        for _ in 0..BATCHES_MAX {
            let count = intake::take_in_batch(&self.gateway, &self.companies).await?;
            swept.intake += count;
            if count < intake::BATCH {
                return Ok(());
            }
        }
        swept.more = true;
        Ok(())
    }

    /// What follows from reports and failures.
    async fn follow_up(&mut self, swept: &mut Swept) -> Result<(), StoreError> {
        let (store, now) = (&self.gateway.store, self.gateway.clock.now());
        if is_due(self.rematched_at, REMATCH_EVERY) {
            self.rematched_at = Some(Instant::now());
            let matched = store.rematch(now, REMATCHED_PER_BATCH).await?;
            if matched > 0 {
                tracing::info!(matched, "reports that came early found their emails");
            }
        }
        for _ in 0..BATCHES_MAX {
            if store.fold(FOLDED_PER_BATCH).await? < FOLDED_PER_BATCH {
                break;
            }
        }
        swept.alerts = alerts::see_to(&self.gateway, &self.companies).await?;
        swept.more |= swept.alerts == alerts::BATCH;
        if is_due(self.judged_at, REPUTATION_EVERY) {
            self.judged_at = Some(Instant::now());
            reputation::look(&self.gateway).await?;
        }
        Ok(())
    }

    async fn prune(&mut self, swept: &mut Swept) -> Result<(), StoreError> {
        if !is_due(self.pruned_at, PRUNE_EVERY) {
            return Ok(());
        }
        let gateway = &self.gateway;
        for _ in 0..BATCHES_MAX {
            let now = gateway.clock.now();
            if gateway.clock.doubt().is_some() {
                self.pruned_at = Some(Instant::now());
                return Ok(());
            }
            let pruned = gateway.store.prune(&gateway.settings.retention, now, PRUNED_PER_BATCH).await?;
            let touched = pruned.contents
                + pruned.emails
                + pruned.dead_letters
                + pruned.idempotency_keys
                + pruned.tallies;
            swept.pruned += touched;
            if touched == 0 && !pruned.is_under_way {
                self.pruned_at = Some(Instant::now());
                return Ok(());
            }
        }
        // There may be more: retention has to keep up with any rate of arrivals, so the next round goes on.
        Ok(())
    }

    async fn count(&mut self) -> Result<(), StoreError> {
        if !is_due(self.counted_at, STATS_EVERY) {
            return Ok(());
        }
        let now = self.gateway.clock.now();
        observe::waiting(&self.gateway.store.stats(now).await?, now);
        self.counted_at = Some(Instant::now());
        Ok(())
    }
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|at| at.elapsed() >= every)
}

#[cfg(test)]
mod tests;
