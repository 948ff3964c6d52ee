//! Care with emails that may have brought a worker down before. Two starts that never ended make an email a suspect,
//! and suspects run one at a time, so that the next crash blames the right one; the others are given back at once,
//! since an email that only waited in a process that died would be blamed as well. Pure: `worker` carries it out.

use model::{Claim, EmailId};

/// From this many starts in a row that never ended, an email is a suspect.
const SUSPECT_STARTS: u32 = 2;
/// After this many claims in a row without a suspect, the worker claims in batches again.
const QUIET_CLAIMS: u32 = 64;

#[derive(Debug, Default)]
pub struct Caution {
    /// The suspect that runs now.
    running: Option<EmailId>,
    /// One claim at a time while there are several suspects: a batch of them would be given back again and again.
    /// Counts the claims left until that is over.
    careful_claims: u32,
    /// A suspect had to be given back while another runs.
    blocked: bool,
}

/// What to do with the emails of one claim.
#[derive(Debug, Default, PartialEq)]
pub struct Sorted {
    pub run: Vec<Claim>,
    pub give_back: Vec<Claim>,
}

impl Caution {
    /// How many emails the next claim may ask for, of those the worker has room for.
    pub fn limit(&self, room: u32) -> u32 {
        if self.careful_claims > 0 { room.min(1) } else { room }
    }

    /// Nothing should be claimed until the running suspect has ended, or a while has passed.
    pub fn is_blocked(&self) -> bool {
        self.blocked && self.running.is_some()
    }

    /// The while has passed: there may be emails behind the suspects by now.
    pub fn look_again(&mut self) {
        self.blocked = false;
    }

    pub fn sort(&mut self, claims: Vec<Claim>) -> Sorted {
        if claims.is_empty() {
            self.careful_claims = 0;
        }
        let mut sorted = Sorted::default();
        for claim in claims {
            if !is_suspect(&claim) {
                self.careful_claims = self.careful_claims.saturating_sub(1);
                sorted.run.push(claim);
            } else if self.running.is_none() {
                self.running = Some(claim.id());
                sorted.run.push(claim);
            } else {
                self.careful_claims = QUIET_CLAIMS;
                self.blocked = true;
                sorted.give_back.push(claim);
            }
        }
        sorted
    }

    pub fn ended(&mut self, id: EmailId) {
        if self.running == Some(id) {
            self.running = None;
            self.blocked = false;
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
    fn one_suspect_runs_and_the_others_are_given_back() {
        let mut caution = Caution::default();
        let sorted = caution.sort(claims(&[1, 2, 0, 3, 2]));
        assert_eq!((starts(&sorted.run), starts(&sorted.give_back)), (vec![1, 2, 0], vec![3, 2]));
        assert!(caution.is_blocked());
        assert_eq!(caution.limit(64), 1);
        caution.ended(sorted.run[0].id());
        assert!(caution.is_blocked(), "that was not the suspect");
        caution.ended(sorted.run[1].id());
        assert!(!caution.is_blocked());
        assert_eq!(starts(&caution.sort(claims(&[3])).run), [3]);
    }

    #[test]
    fn a_single_suspect_slows_nobody() {
        let mut caution = Caution::default();
        caution.sort(claims(&[2]));
        assert!(!caution.is_blocked());
        assert_eq!(caution.limit(64), 64);
    }

    #[test]
    fn batches_come_back_when_suspects_are_gone() {
        let cases = [("nothing left", 0, 1), ("many harmless ones", 1, 64)];
        for (case, per_claim, times) in cases {
            let mut caution = Caution::default();
            caution.sort(claims(&[2, 2]));
            caution.look_again();
            for _ in 0..times {
                assert_eq!(caution.limit(64), 1, "{case}");
                caution.sort(claims(&vec![1; per_claim]));
            }
            assert_eq!(caution.limit(64), 64, "{case}");
        }
    }
}
