//! Whose turn it is among the routes: a slow or slowed provider must not fill the whole worker, and one that rests is not
//! looked at. Pure but for asking the gates; `worker` claims what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::Claim;
use store::Routes;
use tokio::time::Instant;

use crate::gates::{Gates, providers_of};

/// Of how many routes this is remembered; more would mean that routes are made per email.
const ROUTES_MAX: usize = 1_024;
/// While the routes we know fill their shares, this often it is looked whether there are others.
const OTHERS_EVERY: Duration = Duration::from_millis(50);
/// Emails of a route with a rate are held for at most this much of it, so that few wait in a worker that others could
/// send.
const RATE_HELD_SECS: u32 = 2;

#[derive(Debug, Default)]
pub struct Lineup {
    known: BTreeSet<String>,
    /// What has been asked for in this round and came short.
    exhausted: Vec<Routes>,
    others_looked_at: Option<Instant>,
    /// Closed routes where emails were met that have another route by now: the others there are looked through.
    strayed: BTreeSet<String>,
}

/// One claim to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub routes: Routes,
    pub limit: u32,
}

impl Lineup {
    /// Known routes none of whose providers is open.
    pub fn closed(&self, gates: &Gates) -> Vec<String> {
        self.known.iter().filter(|route| !gates.is_passable(route)).cloned().collect()
    }

    /// What to claim next, given how many emails of each route are in flight and how many more there may be in all.
    /// `None` ends the round.
    pub fn next(
        &mut self,
        gates: &Gates,
        in_flight: &BTreeMap<String, u32>,
        concurrency: u32,
        room: u32,
    ) -> Option<Share> {
        let share = self
            .shares(gates, in_flight, concurrency, room)
            .into_iter()
            .find(|share| share.limit > 0 && !self.exhausted.contains(&share.routes));
        if share.is_none() {
            self.exhausted.clear();
        }
        share
    }

    /// An email waited by this route that was no longer its own: the operator may have led its company around a
    /// provider that rests.
    pub fn strayed(&mut self, route: &str) {
        self.strayed.insert(route.to_owned());
    }

    /// What came of a claim.
    pub fn came(&mut self, share: &Share, claims: &[Claim]) {
        // One look through them for each stray that is found; those that are none are put back.
        self.strayed.clear();
        for claim in claims {
            if self.known.len() < ROUTES_MAX {
                self.known.insert(claim.route.clone());
            }
        }
        if claims.len() < share.limit as usize {
            self.exhausted.push(share.routes.clone());
            if matches!(share.routes, Routes::Except(_)) {
                self.others_looked_at = Some(Instant::now());
            }
        }
    }

    /// The routes that need watching each by itself, and all others together: a quarter of the worker is always left
    /// for other routes than the busiest.
    fn shares(
        &self,
        gates: &Gates,
        in_flight: &BTreeMap<String, u32>,
        concurrency: u32,
        room: u32,
    ) -> Vec<Share> {
        let most = (concurrency - concurrency / 4).max(1);
        let mut apart = Vec::new();
        let mut shares = Vec::new();
        for route in &self.known {
            let flying = in_flight.get(route).copied().unwrap_or(0);
            let per_sec =
                providers_of(route).find(|name| gates.is_open(name)).and_then(|name| gates.per_sec(name));
            let held = per_sec.map_or(most, |per_sec| most.min(per_sec.saturating_mul(RATE_HELD_SECS)));
            if !gates.is_passable(route) && !self.strayed.contains(route) {
                apart.push(route.clone());
            } else if per_sec.is_some() || flying >= most.div_ceil(2) {
                apart.push(route.clone());
                let limit = room.min(held.saturating_sub(flying));
                shares.push(Share { routes: Routes::Only(vec![route.clone()]), limit });
            }
        }
        let others = if apart.is_empty() { Routes::All } else { Routes::Except(apart) };
        let is_due = self.others_looked_at.is_none_or(|at| at.elapsed() >= OTHERS_EVERY);
        if others == Routes::All || is_due {
            shares.insert(0, Share { routes: others, limit: room.min(most.div_ceil(2)) });
        }
        shares
    }
}

#[cfg(test)]
mod tests;
