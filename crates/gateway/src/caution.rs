//! Care with emails that may have brought a worker down before. Two starts that never ended make an email a suspect,
//! and suspects run one at a time, so that the next crash blames the right one; the others are put back for a later
//! turn. Their claims count no start (`store::suspects`), so that one that only waited in a process that died is not
//! blamed. Emails that are no suspects are never held up. Pure: `worker` carries it out.

use std::time::Duration;

use model::{Claim, EmailId};
use store::SUSPECT_STARTS;

/// How far apart the suspects of one claim are put back: about what an attempt takes, so that most find their turn
/// when they come back.
const TURN: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub struct Caution {
    /// The suspect that runs now.
    running: Option<EmailId>,
}

/// What to do with the emails of one claim.
#[derive(Debug, Default, PartialEq)]
pub struct Sorted {
    pub run: Vec<Claim>,
    /// To be put back, and how long they wait for their turn.
    pub later: Vec<(Claim, Duration)>,
}

impl Caution {
    pub fn sort(&mut self, claims: Vec<Claim>) -> Sorted {
        let mut sorted = Sorted::default();
        let mut wait = Duration::ZERO;
        for claim in claims {
            if !is_suspect(&claim) {
                sorted.run.push(claim);
            } else if self.running.is_none() {
                self.running = Some(claim.id());
                sorted.run.push(claim);
            } else {
                wait += TURN;
                sorted.later.push((claim, wait));
            }
        }
        sorted
    }

    pub fn ended(&mut self, id: EmailId) {
        if self.running == Some(id) {
            self.running = None;
        }
    }
}

pub fn is_suspect(claim: &Claim) -> bool {
    claim.unfinished_starts >= SUSPECT_STARTS
}

#[cfg(test)]
mod tests {
    use testkit::a_company;

    use super::*;
    use crate::testing::a_claim;

    fn claims(starts: &[u32]) -> Vec<Claim> {
        let company = a_company("acme").id;
        starts.iter().map(|starts| Claim { unfinished_starts: *starts, ..a_claim(company) }).collect()
    }

    fn starts(claims: &[Claim]) -> Vec<u32> {
        claims.iter().map(|claim| claim.unfinished_starts).collect()
    }

    #[test]
    fn one_suspect_runs_and_the_others_wait_for_their_turns() {
        let mut caution = Caution::default();
        let sorted = caution.sort(claims(&[1, 2, 0, 3, 2]));
        assert_eq!(starts(&sorted.run), [1, 2, 0]);
        let later: Vec<(u32, Duration)> =
            sorted.later.iter().map(|(claim, wait)| (claim.unfinished_starts, *wait)).collect();
        assert_eq!(later, [(3, TURN), (2, 2 * TURN)]);
        caution.ended(sorted.run[0].id());
        assert!(caution.sort(claims(&[3])).run.is_empty(), "that was not the suspect");
        caution.ended(sorted.run[1].id());
        assert_eq!(starts(&caution.sort(claims(&[3])).run), [3]);
    }
}
