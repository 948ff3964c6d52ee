//! Credentials that were found, kept until they are about to expire or AWS refuses them. One call looks for new ones at
//! a time; the others go on with those kept while these are good, else they wait for what it finds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{Clock, Timestamp};
use tokio::time::timeout;

use crate::credentials::Credentials;
use crate::failure::{Failure, none_found};
use crate::turns::Turns;

/// For finding credentials, which may mean a call to STS or to the machine.
const FIND_TIMEOUT: Duration = Duration::from_secs(10);
/// So long before credentials expire new ones are looked for. Machines have new ones five minutes before.
const REFRESH_BEFORE: Duration = Duration::from_secs(4 * 60);
/// So soon it is tried again, when there were no new ones or those found expire at once.
const REFRESH_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Those that do not say when they expire are looked for anew after this, as AWS's own SDK does: somebody may have put
/// other keys into the file, or the command may print others.
const REFRESH_LASTING_AFTER: Duration = Duration::from_secs(15 * 60);
/// Credentials that are good for so long still can sign while others are looked for: longer than a call takes.
const GOOD_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct Keeper {
    kept: Mutex<Kept>,
    turns: Turns,
}

#[derive(Debug, Default)]
struct Kept {
    credentials: Option<Arc<Credentials>>,
    refresh_at: Timestamp,
}

/// What the kept credentials are good for.
enum State {
    Fresh(Arc<Credentials>),
    /// Others are due, but these do meanwhile.
    Good(Arc<Credentials>),
    None,
}

impl Keeper {
    /// The credentials, found by `find` where those kept are none or old.
    pub async fn get<F>(
        &self,
        clock: &dyn Clock,
        find: impl FnOnce() -> F,
    ) -> Result<Arc<Credentials>, Failure>
    where
        F: Future<Output = Result<Credentials, Failure>>,
    {
        let state = self.kept().state(clock.now());
        let turn = match state {
            State::Fresh(credentials) => return Ok(credentials),
            State::Good(credentials) => match self.turns.try_take() {
                Some(turn) => turn,
                None => return Ok(credentials),
            },
            State::None => self.turns.wait().await,
        };
        // Somebody may have looked since.
        if let State::Fresh(credentials) = self.kept().state(clock.now()) {
            return Ok(credentials);
        }
        if let Some(failure) = turn.shared() {
            return Err(failure);
        }
        let found = timeout(FIND_TIMEOUT, find()).await;
        let found = found.unwrap_or_else(|_| Err(none_found("no credentials were found in time")));
        let kept = self.kept().keep(found, clock.now());
        turn.end(kept)
    }

    /// AWS refused these: the next call looks for others. Those found meanwhile stay.
    pub fn refused(&self, refused: &Arc<Credentials>) {
        let mut kept = self.kept();
        if kept.credentials.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, refused)) {
            kept.credentials = None;
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn state(&self, now: Timestamp) -> State {
        match self.credentials.clone() {
            Some(credentials) if now < self.refresh_at => State::Fresh(credentials),
            Some(credentials) if !credentials.is_expired(now.plus(GOOD_FOR)) => State::Good(credentials),
            _ => State::None,
        }
    }

    fn keep(
        &mut self,
        found: Result<Credentials, Failure>,
        now: Timestamp,
    ) -> Result<Arc<Credentials>, Failure> {
        let soonest = now.plus(REFRESH_AGAIN_AFTER);
        match found {
            Ok(credentials) => {
                // Machines whose metadata service is in trouble hand out expired ones, which AWS goes on to accept.
                self.refresh_at = match credentials.expires_at {
                    Some(expires_at) => expires_at.minus(REFRESH_BEFORE).max(soonest),
                    None => now.plus(REFRESH_LASTING_AFTER),
                };
                Ok(self.credentials.insert(Arc::new(credentials)).clone())
            }
            Err(failure) => {
                let last = self.credentials.as_ref().filter(|kept| !kept.is_expired(now));
                let last = last.cloned().ok_or(failure)?;
                self.refresh_at = soonest;
                Ok(last)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use testkit::{ManualClock, START};

    fn minutes(count: u64) -> Duration {
        Duration::from_secs(60 * count)
    }

    fn lack() -> Result<Credentials, Failure> {
        Err(none_found("nobody had any"))
    }

    #[tokio::test]
    async fn kept_until_they_are_about_to_expire() {
        let (keeper, clock) = (Keeper::default(), ManualClock::default());
        let hour = || Ok(Credentials::new("FIRST", "s").until(START.plus(minutes(60))));
        let lasting = || Ok(Credentials::new("SECOND", "s"));
        let rotated = || Ok(Credentials::new("THIRD", "s"));
        let steps = [
            // minutes that pass, what would be found, whose are used then
            (0, hour(), "FIRST"),
            (55, lasting(), "FIRST"),
            (2, lack(), "FIRST"),
            (0, lasting(), "FIRST"),
            (1, lasting(), "SECOND"),
            // Keys that say nothing of an end are looked for again as well, and kept where there are no others.
            (14, rotated(), "SECOND"),
            (1, lack(), "SECOND"),
            (0, rotated(), "SECOND"),
            (1, rotated(), "THIRD"),
            (100_000, lack(), "THIRD"),
        ];
        for (passed, found, expected) in steps {
            clock.advance(minutes(passed));
            let used = keeper.get(&clock, || async { found }).await.expect("credentials");
            assert_eq!(used.access_key_id, expected, "at {}", clock.now());
        }
    }

    #[tokio::test]
    async fn expired_ones_are_used_for_a_moment_where_there_are_no_others() {
        let (keeper, clock) = (Keeper::default(), ManualClock::default());
        let expired = Credentials::new("OLD", "s").until(START.minus(minutes(1)));
        for found in [Ok(expired), lack()] {
            let used = keeper.get(&clock, || async { found }).await.expect("credentials");
            assert_eq!(used.access_key_id, "OLD");
        }
        clock.advance(minutes(1));
        keeper.get(&clock, || async { lack() }).await.expect_err("too old");
    }

    #[tokio::test]
    async fn one_looks_and_the_others_get_what_it_found() {
        for (found, expected) in [(Ok(Credentials::new("AKID", "s")), true), (lack(), false)] {
            let (keeper, clock) = (Keeper::default(), ManualClock::default());
            let searches = AtomicUsize::new(0);
            let find = || async {
                searches.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                found.clone()
            };
            let (first, second, third) =
                tokio::join!(keeper.get(&clock, find), keeper.get(&clock, find), keeper.get(&clock, find));
            assert_eq!([first.is_ok(), second.is_ok(), third.is_ok()], [expected; 3]);
            assert_eq!(searches.load(Ordering::SeqCst), 1);
        }
    }

    /// The search that is under way ends only after the other call has its answer.
    #[tokio::test]
    async fn nobody_waits_for_new_ones_while_the_old_ones_are_good() {
        let ends_in = |minutes_left| Credentials::new("OLD", "s").until(START.plus(minutes(minutes_left)));
        for old in [Credentials::new("OLD", "s"), ends_in(18)] {
            let (keeper, clock) = (Keeper::default(), ManualClock::default());
            keeper.get(&clock, || async { Ok(old) }).await.expect("credentials");
            clock.advance(minutes(15));
            let (answered, wait) = tokio::sync::oneshot::channel();
            let search = || async {
                wait.await.expect("the other call was answered");
                Ok(Credentials::new("NEW", "s"))
            };
            let beside = async {
                let used = keeper.get(&clock, || async { lack() }).await.expect("credentials");
                answered.send(()).expect("the search goes on");
                used
            };
            let (new, used) = tokio::join!(keeper.get(&clock, search), beside);
            assert_eq!(used.access_key_id, "OLD");
            assert_eq!(new.expect("credentials").access_key_id, "NEW");
        }
    }

    #[tokio::test]
    async fn those_that_were_refused_are_looked_for_anew_once() {
        let (keeper, clock) = (Keeper::default(), ManualClock::default());
        let old =
            keeper.get(&clock, || async { Ok(Credentials::new("OLD", "s")) }).await.expect("credentials");
        keeper.refused(&old);
        keeper.get(&clock, || async { lack() }).await.expect_err("the refused ones are gone");
        let new =
            keeper.get(&clock, || async { Ok(Credentials::new("NEW", "s")) }).await.expect("credentials");
        // The answer to an older call comes late.
        keeper.refused(&old);
        let used = keeper.get(&clock, || async { lack() }).await.expect("credentials");
        assert!(Arc::ptr_eq(&used, &new));
    }

    #[tokio::test]
    async fn a_failure_is_not_kept_for_those_who_come_later() {
        let (keeper, clock) = (Keeper::default(), ManualClock::default());
        keeper.get(&clock, || async { lack() }).await.expect_err("none");
        keeper.get(&clock, || async { Ok(Credentials::new("AKID", "s")) }).await.expect("credentials");
    }
}
