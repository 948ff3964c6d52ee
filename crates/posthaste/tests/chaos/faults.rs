//! What is done to a gateway that consists of several processes and a database server, and when.

use std::time::Duration;

use rand::Rng as _;

use crate::plan::{Plan, WORKER_CONCURRENCY, setting};
use testkit::wire::Wire;

const API_KILLS: &str = "POSTHASTE_CHAOS_API_KILLS";
const WORKER_KILLS: &str = "POSTHASTE_CHAOS_WORKER_KILLS";
const DATABASE_KILLS: &str = "POSTHASTE_CHAOS_DATABASE_KILLS";
const CUT_SECS: &str = "POSTHASTE_CHAOS_CUT_SECS";

pub const API_PROCESSES: usize = 2;
pub const WORKER_PROCESSES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    KillApi,
    KillWorker,
    /// SIGTERM, and a new one.
    ReplaceWorker,
    KillDatabase,
    Cut(Wire),
}

impl Fault {
    /// Nothing can be stored meanwhile.
    pub fn is_of_database(self) -> bool {
        matches!(self, Self::KillDatabase | Self::Cut(_))
    }
}

/// How often each is done.
#[derive(Debug, Clone)]
pub struct Faults {
    pub api_kills: usize,
    pub worker_kills: usize,
    pub worker_replacements: usize,
    pub database_kills: usize,
    /// How the wire to the database is cut, each time.
    pub cuts: Vec<Wire>,
    pub cut_for: Duration,
}

impl Faults {
    /// Everything, that often unless the environment says otherwise.
    pub fn of_all_kinds(kills: usize) -> Self {
        Self {
            api_kills: setting(API_KILLS).unwrap_or(kills),
            worker_kills: setting(WORKER_KILLS).unwrap_or(kills),
            worker_replacements: 1,
            database_kills: setting(DATABASE_KILLS).unwrap_or(kills),
            cuts: vec![Wire::Reset],
            cut_for: cut_for(),
        }
    }

    /// Nobody dies; the wire to the database is cut, with a word, without one, and so that the connections of before
    /// never pass anything again.
    pub fn cuts_alone() -> Self {
        Self {
            api_kills: 0,
            worker_kills: 0,
            worker_replacements: 0,
            database_kills: 0,
            cuts: vec![Wire::Reset, Wire::Silent, Wire::HalfOpen],
            cut_for: cut_for(),
        }
    }

    pub fn count(&self) -> usize {
        let kills = self.api_kills + self.worker_kills + self.database_kills;
        kills + self.worker_replacements + self.cuts.len()
    }

    /// Emails that are with nobody until their lease runs out: those of dead workers, and those whose claim was
    /// committed while the worker was told otherwise.
    pub fn held_max(&self) -> usize {
        self.copies_max() + (self.database_kills + self.cuts.len()) * WORKER_PROCESSES * WORKER_CONCURRENCY
    }

    /// Second copies are of emails that were at the provider when their worker was killed. A worker that loses its
    /// database keeps its results until it can record them.
    pub fn copies_max(&self) -> usize {
        self.worker_kills * WORKER_CONCURRENCY
    }

    /// Who brings its worker down three times is given up. Suspects run alone, so each death of a worker ends one of them
    /// at most; a database that was lost is nobody's fault.
    pub fn quarantined_max(&self) -> usize {
        self.worker_kills
    }

    /// After how many emails at the provider each is due. Leases have to run out after a worker's death, so workers
    /// die early: the rest of the run is part of the wait.
    pub fn schedule(&self, plan: &Plan) -> Vec<(usize, Fault)> {
        let mut kinds = vec![
            (vec![Fault::KillWorker; self.worker_kills], 0.4),
            (vec![Fault::KillDatabase; self.database_kills], 0.7),
            (vec![Fault::ReplaceWorker; self.worker_replacements], 0.8),
            (vec![Fault::KillApi; self.api_kills], 1.0),
        ];
        kinds.push((self.cuts.iter().map(|wire| Fault::Cut(*wire)).collect(), 0.7));
        let mut dice = plan.dice(3);
        let mut schedule = Vec::new();
        for (faults, until) in kinds {
            let share = plan.fault_span() * until / faults.len().max(1) as f64;
            for (number, fault) in faults.into_iter().enumerate() {
                schedule.push((((number as f64 + dice.random::<f64>()) * share) as usize, fault));
            }
        }
        schedule.sort_by_key(|(due, _)| *due);
        schedule
    }
}

fn cut_for() -> Duration {
    Duration::from_secs(setting(CUT_SECS).unwrap_or(3))
}
