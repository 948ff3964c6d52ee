//! An attempt as its worker sees it from outside: how far it is and under which guard. The attempt writes here; the
//! worker reads it to renew leases and to give back at shutdown what did not end in time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::email::Wishes;
use model::{Claim, CompanyId, EmailId, Guard};
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
    progress: Mutex<Progress>,
}

#[derive(Debug, Clone)]
struct Progress {
    guard: Guard,
    stage: Stage,
}

impl Flight {
    pub fn of(claim: &Claim) -> Self {
        let size_bytes = claim.content.as_ref().map_or(0, model::Content::size_bytes);
        let progress = Progress { guard: claim.guard, stage: Stage::Preparing };
        Self {
            id: claim.id(),
            company: claim.company,
            request_id: claim.request_id.clone(),
            facts: Facts::from(claim),
            wishes: claim.wishes.clone(),
            size_bytes: u64::try_from(size_bytes).unwrap_or(u64::MAX),
            progress: Mutex::new(progress),
        }
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

    /// The provider is called from now on, under this guard.
    pub fn begins(&self, guard: Guard) {
        let mut progress = self.progress();
        progress.guard = guard;
        progress.stage = Stage::AtProvider;
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
pub struct Flights(Arc<Mutex<BTreeMap<EmailId, Arc<Flight>>>>);

impl Flights {
    pub fn add(&self, flight: Arc<Flight>) {
        self.all_locked().insert(flight.id, flight);
    }

    pub fn remove(&self, id: EmailId) {
        self.all_locked().remove(&id);
    }

    pub fn all(&self) -> Vec<Arc<Flight>> {
        self.all_locked().values().cloned().collect()
    }

    pub fn size_bytes(&self) -> u64 {
        self.all_locked().values().map(|flight| flight.size_bytes).sum()
    }

    fn all_locked(&self) -> MutexGuard<'_, BTreeMap<EmailId, Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
