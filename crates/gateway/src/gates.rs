//! The gates in front of the providers: whether one is open, how fast it may be called, and passing on what a call has
//! shown. `health` has the rules; what all processes know is in the store and is read every half second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::Clock;
use provider::{Provider, SendError, Trouble};
use store::{Providers, StartsWish, StoreError};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use crate::health::{Health, OUTAGES_MAX};

/// How old the knowledge of this process may be.
const AGE_MAX: Duration = Duration::from_millis(500);
/// How often an account is asked what it allows, by one process for all.
const ALLOWANCE_AGE_MAX: Duration = Duration::from_secs(60);
/// A change that others keep overtaking is given up; the next piece of news brings it.
const TRIES: u32 = 5;
/// A start that was taken and not used counts for nothing this long after the store gave it.
const SPARE_AGE_MAX: Duration = Duration::from_millis(20);
/// Between two questions for a start.
const START_PAUSE_MIN: Duration = Duration::from_millis(5);
const START_PAUSE_MAX: Duration = Duration::from_millis(100);
/// The rate a provider is taken to have been going at when nothing else is known of it.
const PER_SEC_ASSUMED: u32 = 100;

pub struct Gates {
    store: Arc<dyn Providers>,
    clock: Arc<dyn Clock>,
    providers: Arc<BTreeMap<String, Arc<dyn Provider>>>,
    /// What the operator set, by provider.
    rates: BTreeMap<String, u32>,
    known: Mutex<Known>,
    starts: BTreeMap<String, Starts>,
}

#[derive(Debug, Default)]
struct Known {
    read_at: Option<Instant>,
    /// Version and health.
    notes: BTreeMap<String, (u64, Health)>,
    /// Outages in a row that this process has seen.
    outages: BTreeMap<String, u32>,
}

/// Starts of calls to one provider: who needs one stands in line here, and the first asks the store for all.
#[derive(Default)]
struct Starts {
    in_line: AsyncMutex<Spare>,
    waiting: std::sync::atomic::AtomicU32,
}

#[derive(Default)]
struct Spare {
    count: u32,
    taken_at: Option<Instant>,
}

impl Gates {
    pub fn new(
        store: Arc<dyn Providers>,
        clock: Arc<dyn Clock>,
        providers: Arc<BTreeMap<String, Arc<dyn Provider>>>,
        rates: BTreeMap<String, u32>,
    ) -> Self {
        let starts = providers.keys().map(|name| (name.clone(), Starts::default())).collect();
        Self { store, clock, providers, rates, known: Mutex::default(), starts }
    }

    /// Reads what all processes know, unless that was done a moment ago.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let is_fresh = |known: &Known| known.read_at.is_some_and(|read_at| read_at.elapsed() < AGE_MAX);
        if is_fresh(&self.known()) {
            return Ok(());
        }
        let read_at = Instant::now();
        let notes = self.store.provider_notes().await?;
        let mut known = self.known();
        known.read_at = Some(read_at);
        known.notes = notes
            .into_iter()
            .map(|note| (note.provider, (note.version, Health::decode(&note.note))))
            .collect();
        drop(known);
        for name in self.providers.keys() {
            crate::observe::provider_stands(name, self.per_sec(name), self.is_open(name));
        }
        Ok(())
    }

    /// Whether emails are given to the provider now. One that is not configured is for the attempt to complain of.
    pub fn is_open(&self, provider: &str) -> bool {
        self.health(provider).is_none_or(|health| health.rest.is_none())
    }

    /// Whether an email of this route can go anywhere now.
    pub fn is_passable(&self, route: &str) -> bool {
        let mut providers = providers_of(route).peekable();
        providers.peek().is_none() || providers.any(|provider| self.is_open(provider))
    }

    /// The first provider of the route that may be probed with an email now; the probe is this process's from then on.
    pub async fn begin_probe(&self, route: &str) -> Result<Option<String>, StoreError> {
        for name in providers_of(route) {
            let now = self.clock.now();
            let Some(probing) = self.health(name).and_then(|health| health.probing(now)) else { continue };
            if self.asks_its_account(name, &probing).await? {
                continue;
            }
            if self.replace(name, probing).await? {
                return Ok(Some(name.to_owned()));
            }
        }
        Ok(None)
    }

    /// There was no email to probe with.
    pub async fn probe_spent(&self, provider: &str) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.change(provider, |health| health.rest.is_some().then(|| health.clone().probe_spent(now))).await
    }

    /// Quota and pause are the account's to lift: it is asked, and no email is spent. `true` when that was possible.
    async fn asks_its_account(&self, name: &str, probing: &Health) -> Result<bool, StoreError> {
        let by_account = probing
            .rest
            .as_ref()
            .is_some_and(|rest| matches!(rest.cause, Trouble::QuotaUsedUp | Trouble::Paused));
        let Some(provider) = self.providers.get(name).filter(|_| by_account) else { return Ok(false) };
        match provider.account().await {
            Ok(Some(account)) => {
                let now = self.clock.now();
                self.change(name, |health| Some(health.clone().told(&account, now))).await?;
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => {
                tracing::warn!(provider = name, %error, "the account of a provider could not be asked");
                self.probe_spent(name).await?;
                Ok(true)
            }
        }
    }

    /// Waits for a start that takes so much of the provider's rate; `false` when none came before `until`.
    pub async fn start(&self, provider: &str, cost: u32, until: Instant) -> Result<bool, StoreError> {
        let Some(starts) = self.starts.get(provider) else { return Ok(true) };
        if self.per_sec(provider).is_none() {
            return Ok(true);
        }
        starts.waiting.fetch_add(cost, std::sync::atomic::Ordering::Relaxed);
        let started = self.next_start(provider, starts, cost, until).await;
        starts.waiting.fetch_sub(cost, std::sync::atomic::Ordering::Relaxed);
        started
    }

    async fn next_start(
        &self,
        provider: &str,
        starts: &Starts,
        cost: u32,
        until: Instant,
    ) -> Result<bool, StoreError> {
        let Ok(mut spare) = tokio::time::timeout_at(until, starts.in_line.lock()).await else {
            return Ok(false);
        };
        loop {
            let Some(per_sec) = self.per_sec(provider) else { return Ok(true) };
            // An email that costs more than a second's worth goes when nothing else does.
            let cost = cost.min(per_sec);
            if spare.take(cost) {
                return Ok(true);
            }
            let most = starts.waiting.load(std::sync::atomic::Ordering::Relaxed).clamp(cost, per_sec);
            let wish = StartsWish { least: cost, most, per_sec };
            let taken = self.store.take_starts(provider, wish, self.clock.now()).await?;
            // From now on, however long the store took: what a slow one gives is not too old when it comes.
            *spare = Spare { count: taken, taken_at: Some(Instant::now()) };
            if taken == 0 {
                if Instant::now() >= until {
                    return Ok(false);
                }
                let pause = Duration::from_secs(1) / per_sec.max(1);
                tokio::time::sleep(pause.clamp(START_PAUSE_MIN, START_PAUSE_MAX)).await;
            }
        }
    }

    /// How fast the provider may be called now; `None` is as fast as they come.
    pub fn per_sec(&self, provider: &str) -> Option<u32> {
        let configured = self.rates.get(provider).copied();
        let now = self.clock.now();
        match self.health(provider) {
            Some(health) => health.per_sec(configured, now),
            None => configured,
        }
    }

    /// What a call has shown of the provider. A store that fails forgets it; the next call shows it again.
    pub async fn report(&self, provider: &str, error: Option<&SendError>) {
        let reported = match error {
            None => self.report_success(provider).await,
            Some(error) => self.report_error(provider, error).await,
        };
        if let Err(error) = reported {
            tracing::warn!(provider, %error, "what is known of a provider could not be kept");
        }
    }

    async fn report_success(&self, provider: &str) -> Result<(), StoreError> {
        self.known().outages.remove(provider);
        if self.is_open(provider) {
            return Ok(());
        }
        tracing::info!(provider, "the provider works again");
        self.change(provider, |health| health.rest.is_some().then(|| health.clone().works_again())).await
    }

    async fn report_error(&self, provider: &str, error: &SendError) -> Result<(), StoreError> {
        let Some(trouble) = error.trouble else {
            // It answered, so it is not out of order; a probe that met this has shown as much.
            return self.report_success(provider).await;
        };
        let now = self.clock.now();
        if trouble == Trouble::Outage && self.is_open(provider) && !self.counts_as_outage(provider) {
            return Ok(());
        }
        let per_sec = self.per_sec(provider).unwrap_or(PER_SEC_ASSUMED);
        let code = error.code.as_str();
        self.change(provider, |health| {
            // Calls that were under way when the rest began say nothing new; the probe's answer does.
            let rest = health.rest.as_ref();
            let is_known = trouble != Trouble::Throttled
                && rest.is_some_and(|rest| rest.probing_until.is_none() && rest.cause == trouble);
            (!is_known).then(|| health.clone().after(trouble, code, error.retry_after, per_sec, now))
        })
        .await?;
        tracing::warn!(provider, code, trouble = crate::health::name(trouble), "the provider is in trouble");
        Ok(())
    }

    /// One more outage in a row; `true` when there were enough of them.
    fn counts_as_outage(&self, provider: &str) -> bool {
        let mut known = self.known();
        let outages = known.outages.entry(provider.to_owned()).or_default();
        *outages += 1;
        *outages >= OUTAGES_MAX
    }

    /// Asks accounts what they allow, those that have not been asked for a while.
    pub async fn read_allowances(&self) -> Result<(), StoreError> {
        self.refresh().await?;
        for (name, provider) in self.providers.iter() {
            let now = self.clock.now();
            let age =
                self.health(name).and_then(|health| health.allowance).map(|known| now.since(known.read_at));
            if age.is_some_and(|age| age < ALLOWANCE_AGE_MAX) {
                continue;
            }
            match provider.account().await {
                Ok(Some(account)) => {
                    self.change(name, |health| Some(health.clone().told(&account, now))).await?;
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(provider = name, %error, "the account could not be asked"),
            }
        }
        Ok(())
    }

    /// Changes what is known of a provider, over what others change meanwhile. `None` leaves it as it is.
    async fn change(
        &self,
        provider: &str,
        change: impl Fn(&Health) -> Option<Health> + Send,
    ) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let health = self.health(provider).unwrap_or_default();
            let Some(changed) = change(&health) else { return Ok(()) };
            if self.replace(provider, changed).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// `false` when somebody else was first; then what they wrote is read.
    async fn replace(&self, provider: &str, health: Health) -> Result<bool, StoreError> {
        let seen = self.known().notes.get(provider).map_or(0, |(version, _)| *version);
        let replaced = self.store.note_provider(provider, seen, &health.encode()).await?;
        if replaced {
            self.known().notes.insert(provider.to_owned(), (seen + 1, health));
        } else {
            self.known().read_at = None;
            self.refresh().await?;
        }
        Ok(replaced)
    }

    fn health(&self, provider: &str) -> Option<Health> {
        self.known().notes.get(provider).map(|(_, health)| health.clone())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spare {
    fn take(&mut self, cost: u32) -> bool {
        let is_fresh = self.taken_at.is_some_and(|taken_at| taken_at.elapsed() < SPARE_AGE_MAX);
        let has_enough = is_fresh && self.count >= cost;
        self.count = if has_enough { self.count - cost } else { 0 };
        has_enough
    }
}

/// The providers of a route, in order.
pub fn providers_of(route: &str) -> impl Iterator<Item = &str> {
    route.split(ROUTE_SEPARATOR).filter(|name| !name.is_empty())
}

/// Providers' names have none of these.
const ROUTE_SEPARATOR: char = '>';

/// The text of a route.
pub fn route_text(providers: &[&str]) -> String {
    providers.join(&ROUTE_SEPARATOR.to_string())
}

#[cfg(test)]
mod tests;
