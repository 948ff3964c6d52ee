//! What a run does: how much load, how many faults, and the seed from which they are chosen. Everything can be set
//! from the environment, so that a run that failed can be repeated with its seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::faults::Faults;

/// How many emails the process under test works on at once.
pub const WORKER_CONCURRENCY: usize = 16;
/// How many connections the load comes over.
pub const CONNECTIONS: usize = 8;
/// No run lasts longer, whatever is set; reaching it means that something hangs.
pub const RUN_MAX: Duration = Duration::from_secs(60 * 60);

const EMAILS: &str = "POSTHASTE_CHAOS_EMAILS";
const KILLS: &str = "POSTHASTE_CHAOS_KILLS";
const CUTS: &str = "POSTHASTE_CHAOS_CUTS";
const ROUNDS: &str = "POSTHASTE_CHAOS_ROUNDS";
/// Read where they are used: runs without faults have no plan.
pub const CLIENTS: &str = "POSTHASTE_CHAOS_CLIENTS";
pub const COMPANIES: &str = "POSTHASTE_CHAOS_COMPANIES";
pub const BACKLOG: &str = "POSTHASTE_CHAOS_BACKLOG";
const SEED: &str = "POSTHASTE_CHAOS_SEED";
const SINK_LATENCY_MS: &str = "POSTHASTE_CHAOS_SINK_LATENCY_MS";

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub emails: usize,
    /// Faults of whatever kind the test injects.
    pub faults: usize,
    /// Emails that the dead may hold until their leases run out; they are no backlog.
    pub held_max: usize,
    pub sink_latency_ms: usize,
    pub domain: &'static str,
}

impl Plan {
    /// A run with that many kills, unless the environment says otherwise. Prints the seed.
    pub fn with_kills(emails: usize, kills: usize) -> Self {
        Self::of(setting(EMAILS).unwrap_or(emails), setting(KILLS).unwrap_or(kills))
    }

    /// A run with that many power cuts, unless the environment says otherwise. Prints the seed.
    pub fn with_cuts(emails: usize, cuts: usize) -> Self {
        Self::of(setting(EMAILS).unwrap_or(emails), setting(CUTS).unwrap_or(cuts))
    }

    /// A run with that many gentler faults, unless the environment says otherwise. Prints the seed.
    pub fn with_rounds(emails_per_round: usize, rounds: usize) -> Self {
        let rounds = setting(ROUNDS).unwrap_or(rounds);
        Self::of(emails_per_round * rounds, rounds)
    }

    /// A run with these faults, unless the environment says otherwise. Prints the seed.
    pub fn with_faults(emails: usize, faults: &Faults) -> Self {
        println!("{faults:?}");
        Self::holding(faults.held_max(), setting(EMAILS).unwrap_or(emails), faults.count())
    }

    /// Everything goes to addresses of this domain, by which the sink knows what to do.
    pub fn to(self, domain: &'static str) -> Self {
        Self { domain, ..self }
    }

    /// Just so. Prints the seed.
    pub fn of(emails: usize, faults: usize) -> Self {
        Self::holding(0, emails, faults)
    }

    fn holding(held_max: usize, emails: usize, faults: usize) -> Self {
        let plan = Self {
            seed: setting(SEED).unwrap_or_else(|| u64::from(rand::random::<u32>())),
            emails,
            faults,
            held_max,
            sink_latency_ms: setting(SINK_LATENCY_MS).unwrap_or(40),
            domain: "inbox.test",
        };
        println!("{plan:?}; repeat the choices of this run with {SEED}={}", plan.seed);
        plan
    }

    /// How far acceptance may run ahead of what reached the provider: enough to keep the workers busy, little
    /// enough that both halves are under load at every fault.
    pub fn backlog_max(&self) -> usize {
        (self.emails / 10).clamp(100, 500) + self.held_max
    }

    /// How many more emails come in all at once around a fault, so that it finds acceptance at its busiest.
    pub fn rush(&self) -> usize {
        self.emails / (2 * self.faults.max(1))
    }

    /// Choices that do not depend on how many others were made before.
    pub fn dice(&self, purpose: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(purpose))
    }

    /// After how many emails at the provider each fault is due, in order: one in each of equal shares of the run,
    /// none so late that the load would be over.
    pub fn fault_times(&self) -> Vec<usize> {
        let mut dice = self.dice(1);
        let share = self.fault_span() / self.faults.max(1) as f64;
        (0..self.faults).map(|fault| ((fault as f64 + dice.random::<f64>()) * share) as usize).collect()
    }

    /// How many emails are at the provider when it is too late for a fault.
    pub fn fault_span(&self) -> f64 {
        self.emails.saturating_sub(self.backlog_max() + self.rush()) as f64
    }
}

pub fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let Ok(value) = text.parse() else { panic!("{name} must be a whole number, not `{text}`") };
    Some(value)
}
