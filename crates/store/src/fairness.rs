//! Who is next: companies share the workers by weight. Every company has a clock of its own that moves on by
//! 1/weight with each email it is given; the one whose clock is furthest behind is served next, and one that
//! comes back after a pause starts at the present, so that nobody saves up turns. The clocks live in memory:
//! losing them costs nothing but one uneven round.

use std::collections::HashMap;

/// How many companies' clocks are remembered.
const CLOCKS_MAX: usize = 20_000;

#[derive(Debug, Default)]
pub struct Fairness {
    clocks: HashMap<String, f64>,
    present: f64,
    /// The route and the company after which the next round begins to look.
    pub cursor: (String, String),
    /// What was there before work that may still be undone, the innermost last.
    before: Vec<Before>,
}

/// What work changes that may be undone, as it was.
#[derive(Debug)]
struct Before {
    clocks: HashMap<String, Option<f64>>,
    present: f64,
    cursor: (String, String),
}

/// A company with due emails, and how many it may be given now.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub company: String,
    /// The routes of its due emails.
    pub routes: Vec<String>,
    pub weight: u32,
    pub room: u32,
}

impl Fairness {
    /// Begins work that may be undone, within such work or not: the emails it gives may have to be given again, and then
    /// nobody was served yet.
    pub fn begin(&mut self) {
        let before = Before { clocks: HashMap::new(), present: self.present, cursor: self.cursor.clone() };
        self.before.push(before);
    }

    /// The innermost work is done.
    pub fn keep(&mut self) {
        let Some(done) = self.before.pop() else { return };
        match self.before.last_mut() {
            Some(around) => {
                for (company, clock) in done.clocks {
                    around.clocks.entry(company).or_insert(clock);
                }
            }
            None => self.forget_some(),
        }
    }

    /// As if the innermost work had not begun. `false` when there is none.
    pub fn undo(&mut self) -> bool {
        let Some(before) = self.before.pop() else { return false };
        for (company, clock) in before.clocks {
            match clock {
                Some(clock) => self.clocks.insert(company, clock),
                None => self.clocks.remove(&company),
            };
        }
        (self.present, self.cursor) = (before.present, before.cursor);
        true
    }

    /// Divides `slots` among the candidates; gives as many shares as there are candidates.
    pub fn share(&mut self, candidates: &[Candidate], slots: u32) -> Vec<u32> {
        let mut shares = vec![0; candidates.len()];
        let mut clocks: Vec<f64> =
            candidates.iter().map(|candidate| self.clock_of(&candidate.company)).collect();
        for _ in 0..slots {
            let has_room = |&index: &usize| shares[index] < candidates[index].room;
            let behind = |&a: &usize, &b: &usize| clocks[a].total_cmp(&clocks[b]);
            let Some(next) = (0..candidates.len()).filter(has_room).min_by(behind) else { break };
            shares[next] += 1;
            clocks[next] += 1.0 / f64::from(candidates[next].weight.max(1));
        }
        shares
    }

    fn clock_of(&self, company: &str) -> f64 {
        self.clocks.get(company).copied().unwrap_or(0.0).max(self.present)
    }

    /// Records what was really given. The present is the furthest-behind clock of those that could have been
    /// served.
    pub fn given(&mut self, candidates: &[Candidate], given: &[u32]) {
        let mut present = f64::INFINITY;
        for (candidate, &count) in candidates.iter().zip(given) {
            let clock =
                self.clock_of(&candidate.company) + f64::from(count) / f64::from(candidate.weight.max(1));
            present = present.min(clock);
            let last = self.clocks.insert(candidate.company.clone(), clock);
            if let Some(before) = self.before.last_mut() {
                before.clocks.entry(candidate.company.clone()).or_insert(last);
            }
        }
        if present.is_finite() {
            self.present = self.present.max(present);
        }
        if self.before.is_empty() {
            self.forget_some();
        }
    }

    /// Clocks at or behind the present tell nothing.
    fn forget_some(&mut self) {
        if self.clocks.len() > CLOCKS_MAX {
            let present = self.present;
            self.clocks.retain(|_, clock| *clock > present);
        }
    }
}

/// Companies that did not come short and have room for more; one that got no share at all among them.
pub fn still_hungry(candidates: Vec<Candidate>, shares: &[u32], given: &[u32]) -> Vec<Candidate> {
    let used_up = |(candidate, (&share, &count)): (Candidate, (&u32, &u32))| {
        let room = candidate.room - count.min(candidate.room);
        (count == share && room > 0).then_some(Candidate { room, ..candidate })
    };
    candidates.into_iter().zip(shares.iter().zip(given)).filter_map(used_up).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(company: &str, weight: u32) -> Candidate {
        Candidate { company: company.into(), routes: vec![], weight, room: u32::MAX }
    }

    #[test]
    fn weights_hold_for_single_slots() {
        let mut fairness = Fairness::default();
        let both = [candidate("a", 3), candidate("b", 1)];
        let mut total = [0, 0];
        for _ in 0..400 {
            let shares = fairness.share(&both, 1);
            fairness.given(&both, &shares);
            total[0] += shares[0];
            total[1] += shares[1];
        }
        assert_eq!(total, [300, 100]);
    }

    #[test]
    fn a_newcomer_is_served_at_once_but_saves_up_no_turns() {
        let mut fairness = Fairness::default();
        let alone = [candidate("a", 1)];
        for _ in 0..1_000 {
            let shares = fairness.share(&alone, 64);
            fairness.given(&alone, &shares);
        }
        let both = [candidate("a", 1), candidate("b", 1)];
        let shares = fairness.share(&both, 20);
        assert_eq!(shares, [10, 10]);
    }

    /// What is undone was never given, whatever was kept within it; what was kept counts.
    #[test]
    fn work_that_is_undone_serves_nobody() {
        let both = [candidate("a", 1), candidate("b", 1)];
        let mut fairness = Fairness::default();
        fairness.given(&both, &[3, 0]);
        fairness.cursor = ("main".into(), "a".into());
        let picture = |fairness: &Fairness| {
            let mut clocks: Vec<_> = fairness.clocks.clone().into_iter().collect();
            clocks.sort_by(|a, b| a.0.cmp(&b.0));
            (clocks, fairness.present, fairness.cursor.clone())
        };
        let before = picture(&fairness);
        fairness.begin();
        fairness.given(&both, &[0, 7]);
        fairness.begin();
        fairness.given(&[candidate("c", 2)], &[9]);
        fairness.cursor = ("relay".into(), "c".into());
        fairness.keep();
        fairness.begin();
        fairness.given(&both, &[50, 50]);
        assert!(fairness.undo());
        assert_eq!(fairness.cursor.1, "c", "only the innermost");
        assert!(fairness.undo());
        assert_eq!(picture(&fairness), before);
        assert!(!fairness.undo(), "there is nothing left to undo");

        fairness.begin();
        fairness.given(&both, &[0, 3]);
        fairness.keep();
        assert!(!fairness.undo());
        assert_eq!(fairness.share(&both, 2), [1, 1], "both have had three");
    }

    #[test]
    fn a_company_without_room_leaves_its_slots_to_the_others() {
        let mut fairness = Fairness::default();
        let both = [Candidate { room: 2, ..candidate("a", 5) }, candidate("b", 1)];
        assert_eq!(fairness.share(&both, 10), [2, 8]);
    }
}
