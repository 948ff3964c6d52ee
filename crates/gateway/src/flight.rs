//! An attempt as its worker sees it from outside: how far it is and under which guard. The attempt writes here; the
//! worker reads it to renew leases and to give back at shutdown what did not end in time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::email::Wishes;
use model::{Claim, CompanyId, EmailId, Guard, TraceContext};
use store::Settlement;

use crate::conclude::Facts;

/// How far an attempt is.
#[derive(Debug, Clone)]
pub enum Stage {
    /// Nothing has left the house.
    Preparing,
    /// The provider is being called.
    AtProvider,
    /// The end is known and only has to be recorded.
    Settling(Box<Settlement>),
}

#[derive(Debug)]
pub struct Flight {
    pub id: EmailId,
    pub company: CompanyId,
    pub request_id: String,
    pub facts: Facts,
    pub wishes: Wishes,
    pub size_bytes: u64,
    pub route: String,
    /// Where its acceptance stands in a trace, if it is traced.
    pub trace: Option<TraceContext>,
    /// The provider this email probes, which gets nothing else for now.
    probe: Option<String>,
    /// It waited by a route that is no longer its own.
    is_stray: AtomicBool,
    progress: Mutex<Progress>,
}

#[derive(Debug, Clone)]
struct Progress {
    guard: Guard,
    stage: Stage,
}

impl Flight {
    pub fn of(claim: &Claim, probe: Option<String>) -> Self {
        let size_bytes = claim.content.as_ref().map_or(0, model::Content::size_bytes);
        let progress = Progress { guard: claim.guard, stage: Stage::Preparing };
        Self {
            id: claim.id(),
            company: claim.company,
            request_id: claim.request_id.clone(),
            facts: Facts::from(claim),
            wishes: claim.wishes.clone(),
            size_bytes: u64::try_from(size_bytes).unwrap_or(u64::MAX),
            route: claim.route.clone(),
            trace: claim.trace,
            probe,
            is_stray: AtomicBool::new(false),
            progress: Mutex::new(progress),
        }
    }

    pub fn probe(&self) -> Option<&str> {
        self.probe.as_deref()
    }

    pub fn probes(&self, provider: &str) -> bool {
        self.probe() == Some(provider)
    }

    pub fn strays(&self) {
        self.is_stray.store(true, Ordering::Relaxed);
    }

    pub fn is_stray(&self) -> bool {
        self.is_stray.load(Ordering::Relaxed)
    }

    pub fn guard(&self) -> Guard {
        self.progress().guard
    }

    pub fn stage(&self) -> Stage {
        self.progress().stage.clone()
    }

    pub fn is_at_provider(&self) -> bool {
        matches!(self.progress().stage, Stage::AtProvider)
    }

    /// The provider is called from now on.
    pub fn calls(&self) {
        self.progress().stage = Stage::AtProvider;
    }

    /// The store knows it under this guard by now, and the provider is not called yet.
    pub fn has_begun(&self, guard: Guard) {
        self.progress().guard = guard;
    }

    pub fn settles(&self, settlement: Settlement) {
        self.progress().stage = Stage::Settling(Box::new(settlement));
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything a worker has in flight.
#[derive(Debug, Clone, Default)]
pub struct Flights(Arc<Mutex<Sky>>);

#[derive(Debug, Default)]
struct Sky {
    flights: BTreeMap<EmailId, Arc<Flight>>,
    by_route: BTreeMap<String, u32>,
}

impl Flights {
    pub fn add(&self, flight: Arc<Flight>) {
        let mut sky = self.sky();
        *sky.by_route.entry(flight.route.clone()).or_default() += 1;
        sky.flights.insert(flight.id, flight);
    }

    pub fn remove(&self, id: EmailId) -> Option<Arc<Flight>> {
        let mut sky = self.sky();
        let flight = sky.flights.remove(&id)?;
        if let Some(count) = sky.by_route.get_mut(&flight.route) {
            *count -= 1;
            if *count == 0 {
                sky.by_route.remove(&flight.route);
            }
        }
        Some(flight)
    }

    pub fn all(&self) -> Vec<Arc<Flight>> {
        self.sky().flights.values().cloned().collect()
    }

    /// How many there are of each route.
    pub fn by_route(&self) -> BTreeMap<String, u32> {
        self.sky().by_route.clone()
    }

    pub fn size_bytes(&self) -> u64 {
        self.sky().flights.values().map(|flight| flight.size_bytes).sum()
    }

    fn sky(&self) -> MutexGuard<'_, Sky> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
