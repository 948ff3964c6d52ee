//! The whole port played against a model: from a seed come companies, workers that crash, oversleep and report
//! late, people that cancel and replay, and a clock that jumps. After every step the store must hold what the model
//! holds. A failing seed says `seed=… step=…`, what differed and how it came to that, and replays exactly.
//!
//! `model` says what should be, `steps` what workers and the sweep do, `people` what everybody else does.

mod ledger;
mod model;
mod people;
mod steps;

use std::collections::BTreeSet;
use std::time::Duration;

use ::model::attempt::LostLease;
use ::model::{Claim, Company, CompanyId, CompanySettings, Email, EmailId, Guard, Timestamp, WorkerId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use testkit::START;

use crate::{Cursor, EmailFilter, Settlement, Store, StoreError};
use model::{Checked, Model, ensure};

/// How many seeds a run tries on an embedded store unless POSTHASTE_SIM_SEEDS says otherwise: about a minute on two
/// cores.
pub const SEEDS: u64 = 3_200;
pub const STEPS: u32 = 150;

/// The run keeps clear of the very millisecond of an end, where "before" and "at" would have to be told apart: its
/// clock moves in steps of ten, lives end at three past and leases at seven past.
const TICK: Duration = Duration::from_millis(10);
const END_OFFSET: Duration = Duration::from_millis(3);
const LEASE_OFFSET: Duration = Duration::from_millis(7);

/// How often every email is compared, not only those a step was about. Histories of all come at the end.
const COMPARE_ALL_EVERY: u32 = 25;
const WORKERS: usize = 3;
/// Rounds after the last step within which everything must have come to its end.
const ROUNDS_MAX: u32 = 120;
/// How much of what led to a failure is shown.
const TRACE_SHOWN: usize = 30;

/// Tests that play every seed, in several parts so that they run side by side. `$fresh` as in [`store_contract!`],
/// awaited once per seed; `$seeds` how many seeds are tried where the environment does not say.
#[macro_export]
macro_rules! store_simulation {
    ($fresh:expr) => {
        $crate::store_simulation! { $fresh, $crate::contract::simulation::SEEDS }
    };
    ($fresh:expr, $seeds:expr) => {
        $crate::store_simulation! { @parts $fresh; $seeds; 8;
            part_1 0, part_2 1, part_3 2, part_4 3, part_5 4, part_6 5, part_7 6, part_8 7
        }
    };
    (@parts $fresh:expr; $seeds:expr; $parts:literal; $($name:ident $number:literal),*) => {
        $(#[tokio::test]
        async fn $name() {
            for seed in $crate::contract::simulation::seeds($number, $parts, $seeds) {
                let fixture = $fresh.await;
                $crate::contract::simulation::run(&*fixture, seed, $crate::contract::simulation::STEPS).await;
            }
        })*
    };
}

/// The seeds of one part of several: the one that POSTHASTE_SIM_SEED names, or the first POSTHASTE_SIM_SEEDS, or the
/// first so many.
pub fn seeds(part: u64, parts: u64, otherwise: u64) -> Vec<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
    };
    match number("POSTHASTE_SIM_SEED") {
        Some(seed) => (part == 0).then_some(seed).into_iter().collect(),
        None => {
            let seeds = number("POSTHASTE_SIM_SEEDS").unwrap_or(otherwise);
            (0..seeds).filter(|seed| seed % parts == part).collect()
        }
    }
}

/// Plays one seed on an empty store.
pub async fn run(store: &dyn Store, seed: u64, steps: u32) {
    let mut simulation = Simulation::new(store, seed);
    let outcome = simulation.play(steps).await;
    if let Err(difference) = outcome {
        let trace = &simulation.trace;
        let shown = trace[trace.len().saturating_sub(TRACE_SHOWN)..].join("\n  ");
        panic!("seed={seed} step={} {difference}\n  {shown}", simulation.step);
    }
}

/// A claim in a worker's hands.
#[derive(Debug, Clone)]
struct InHand {
    /// As the claim gave it; outdated once the attempt has begun.
    claimed: Guard,
    guard: Guard,
    expires_at: Timestamp,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Claimed,
    /// Called; whether the provider took it is the provider's secret until it answers.
    AtProvider {
        took: bool,
    },
}

#[derive(Debug)]
struct Worker {
    id: WorkerId,
    hands: Vec<InHand>,
}

struct Simulation<'a> {
    store: &'a dyn Store,
    dice: StdRng,
    now: Timestamp,
    step: u32,
    model: Model,
    workers: Vec<Worker>,
    /// Settlements that were made, to be made again.
    settled: Vec<Settlement>,
    /// Lost leases that a sweep has seen and not yet acted on.
    seen_lost: Vec<LostLease>,
    /// Emails the step was about.
    touched: BTreeSet<EmailId>,
    trace: Vec<String>,
}

impl<'a> Simulation<'a> {
    fn new(store: &'a dyn Store, seed: u64) -> Self {
        Self {
            store,
            dice: StdRng::seed_from_u64(seed),
            now: START,
            step: 0,
            model: Model::default(),
            workers: Vec::new(),
            settled: Vec::new(),
            seen_lost: Vec::new(),
            touched: BTreeSet::new(),
            trace: Vec::new(),
        }
    }

    async fn play(&mut self, steps: u32) -> Checked<()> {
        self.set_up().await?;
        for step in 1..=steps {
            self.step = step;
            self.one_step().await?;
            self.compare_touched().await?;
            if step % COMPARE_ALL_EVERY == 0 {
                self.compare_all().await?;
            }
        }
        self.come_to_rest().await?;
        self.compare_all().await?;
        self.touched.extend(self.model.rows.keys().copied());
        self.compare_touched().await?;
        self.model.check_ledger()
    }

    /// Three companies: one plain with more weight, one that is narrow, one that is slow.
    async fn set_up(&mut self) -> Checked<()> {
        let plain = CompanySettings::default();
        let settings = [
            CompanySettings { weight: 3, ..plain.clone() },
            CompanySettings { concurrency_max: Some(2), ..plain.clone() },
            CompanySettings { rate_per_sec: Some(3), ..plain },
        ];
        for (settings, name) in settings.into_iter().zip(["plain", "narrow", "slow"]) {
            let id = CompanyId::from_parts(START, self.dice.random());
            let company = Company {
                id,
                name: name.into(),
                settings,
                created_at: START,
                disabled_at: None,
                pause: None,
                resumed_at: None,
            };
            self.store.add_company(company.clone()).await.map_err(failed)?;
            self.model.companies.push(company);
        }
        for _ in 0..WORKERS {
            let worker = self.a_worker().await?;
            self.workers.push(worker);
        }
        Ok(())
    }

    async fn a_worker(&mut self) -> Checked<Worker> {
        let id = WorkerId::from_parts(self.now, self.dice.random());
        self.store.worker_joins(id).await.map_err(failed)?;
        Ok(Worker { id, hands: Vec::new() })
    }

    async fn one_step(&mut self) -> Checked<()> {
        match self.dice.random_range(0..100) {
            0..16 => self.accept().await,
            16..32 => self.claim().await,
            32..35 => self.begin_suspect().await,
            35..46 => self.begin().await,
            46..62 => self.settle().await,
            62..64 => self.settle_again().await,
            64..68 => self.renew().await,
            68..72 => self.look_for_lost_leases().await,
            72..75 => self.sweep().await,
            75..77 => self.crash().await,
            77 => self.shut_down().await,
            78..80 => self.expire().await,
            80..84 => self.cancel().await,
            84..87 => self.retry_now().await,
            87..90 => self.replay().await,
            90 => self.drop_dead_letter().await,
            91 => self.switch_company().await,
            _ => {
                self.let_time_pass();
                Ok(())
            }
        }
    }

    /// Mostly moments, sometimes minutes, rarely hours; never backwards.
    fn let_time_pass(&mut self) {
        let ticks = match self.dice.random_range(0..20) {
            0..5 => self.dice.random_range(1..100),
            5..12 => self.dice.random_range(100..1_000),
            12..17 => self.dice.random_range(1_000..6_000),
            17..19 => self.dice.random_range(6_000..60_000),
            _ => self.dice.random_range(360_000..720_000),
        };
        self.now = self.now.plus(TICK * ticks);
        self.note(format!("{} ms pass", TICK.as_millis() * u128::from(ticks)));
    }

    async fn compare_touched(&mut self) -> Checked<()> {
        for id in std::mem::take(&mut self.touched) {
            self.compare(id).await?;
        }
        Ok(())
    }

    /// Every email as a list has it, and the store's own counts.
    async fn compare_all(&mut self) -> Checked<()> {
        for company in self.model.companies.clone() {
            for email in self.listed(company.id).await? {
                self.model.row(email.id)?.compare(&email)?;
            }
        }
        let stats = self.store.stats(self.now).await.map_err(failed)?;
        let expected = self.model.counts();
        let mut found = stats.by_status;
        found.retain(|_, count| *count > 0);
        ensure(found == expected, || format!("counts should be {expected:?}, are {found:?}"))?;
        let dead = self.model.rows.values().filter(|row| row.is_dead_letter).count();
        ensure(stats.dead_letters == dead as u64, || {
            format!("{dead} dead letters, not {}", stats.dead_letters)
        })
    }

    /// A company's emails; as many as it handed in.
    async fn listed(&self, company: CompanyId) -> Checked<Vec<Email>> {
        let mut emails = Vec::new();
        let mut after: Option<Cursor> = None;
        loop {
            let filter = EmailFilter::default();
            let page = self.store.emails(company, &filter, after.as_ref(), 100).await.map_err(failed)?;
            emails.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expected = self.model.rows.values().filter(|row| self.model.companies[row.company].id == company);
        let (expected, found) = (expected.count(), emails.len());
        ensure(found == expected, || format!("{found} emails are listed, expected {expected}"))?;
        Ok(emails)
    }

    async fn compare(&mut self, id: EmailId) -> Checked<()> {
        let company = self.model.company_of(id)?;
        let (email, events) = tokio::join!(self.store.email(company, id), self.store.events(company, id));
        let (Some(email), Some(events)) = (email.map_err(failed)?, events.map_err(failed)?) else {
            return Err(format!("email {id} is gone"));
        };
        let row = self.model.row(id)?;
        row.compare(&email)?;
        row.compare_history(&events)
    }

    /// Everybody does their work from now on, until nothing waits and nothing flies. What is held fails in the end.
    async fn come_to_rest(&mut self) -> Checked<()> {
        self.switch_everybody_on().await?;
        for worker in &mut self.workers {
            worker.hands.clear();
        }
        for _ in 0..ROUNDS_MAX {
            self.step += 1;
            let at_rest = self.model.rows.values().all(|row| row.status.is_final() || row.is_held());
            if at_rest {
                return self.let_the_held_end().await;
            }
            self.now = self.now.plus(TICK * 1_000);
            self.look_for_lost_leases().await?;
            self.sweep_all().await?;
            self.work_everything_off().await?;
            self.compare_touched().await?;
        }
        let stuck = self.model.rows.values().find(|row| !row.status.is_final() && !row.is_held());
        Err(format!("stuck for ever: {stuck:?}"))
    }

    async fn let_the_held_end(&mut self) -> Checked<()> {
        self.now = self.now.plus(Duration::from_secs(30 * 24 * 3600));
        while self.model.rows.values().any(|row| row.status.is_waiting()) {
            self.expire().await?;
            self.compare_touched().await?;
        }
        let unfinished = self.model.rows.values().find(|row| !row.status.is_final());
        ensure(unfinished.is_none(), || format!("not at its end: {unfinished:?}"))
    }

    /// One that is chosen by the dice, if there is any.
    fn one_of<T: Clone>(&mut self, things: &[T]) -> Option<T> {
        if things.is_empty() {
            return None;
        }
        let number = self.dice.random_range(0..things.len());
        things.get(number).cloned()
    }

    fn note(&mut self, what: String) {
        self.trace.push(format!("{}. {what}", self.step));
    }

    /// Emails by their numbers, for the trace.
    fn numbers(&self, ids: impl IntoIterator<Item = EmailId>) -> String {
        let number =
            |id| self.model.rows.get(&id).map_or_else(|| "?".to_owned(), |row| format!("#{}", row.number));
        ids.into_iter().map(number).collect::<Vec<_>>().join(" ")
    }
}

/// A store that fails has failed the run: nothing here is out of order.
fn failed(error: StoreError) -> String {
    format!("the store failed: {error}")
}

fn ids_of(claims: &[Claim]) -> Vec<EmailId> {
    claims.iter().map(Claim::id).collect()
}
