//! Credentials that were found, kept until they are about to expire. One call looks for new ones at a time; the others
//! wait for what it finds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::{Clock, Timestamp};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::credentials::Credentials;
use crate::failure::{Failure, none_found};

/// For finding credentials, which may mean a call to STS or to the machine.
const FIND_TIMEOUT: Duration = Duration::from_secs(10);
/// So long before credentials expire new ones are looked for. Machines have new ones five minutes before.
const REFRESH_BEFORE: Duration = Duration::from_secs(4 * 60);
/// So soon it is tried again, when there were no new ones or those found expire at once.
const REFRESH_AGAIN_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Keeper {
    kept: Mutex<Kept>,
    /// How often somebody looked, to the end.
    searches: AtomicU64,
}

#[derive(Debug, Default)]
struct Kept {
    credentials: Option<Arc<Credentials>>,
    refresh_at: Timestamp,
    /// Why the last search found nothing.
    failure: Option<Failure>,
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
        let searches = self.searches.load(Ordering::SeqCst);
        let mut kept = self.kept.lock().await;
        if let Some(fresh) = kept.fresh(clock.now()) {
            return Ok(fresh);
        }
        // Somebody looked while this call waited. Looking again in turn would make the last of them wait for ever.
        if self.searches.load(Ordering::SeqCst) != searches
            && let Some(failure) = &kept.failure
        {
            return Err(failure.clone());
        }
        let found = timeout(FIND_TIMEOUT, find()).await;
        let found = found.unwrap_or_else(|_| Err(none_found("no credentials were found in time")));
        self.searches.fetch_add(1, Ordering::SeqCst);
        kept.keep(found, clock.now())
    }
}

impl Kept {
    fn fresh(&self, now: Timestamp) -> Option<Arc<Credentials>> {
        self.credentials.clone().filter(|_| now < self.refresh_at)
    }

    fn keep(
        &mut self,
        found: Result<Credentials, Failure>,
        now: Timestamp,
    ) -> Result<Arc<Credentials>, Failure> {
        let soonest = now.plus(REFRESH_AGAIN_AFTER);
        match found {
            Ok(credentials) => {
                let expires_at = credentials.expires_at.unwrap_or(Timestamp::NEVER);
                // Machines whose metadata service is in trouble hand out expired ones, which AWS goes on to accept.
                self.refresh_at = expires_at.minus(REFRESH_BEFORE).max(soonest);
                self.failure = None;
                Ok(self.credentials.insert(Arc::new(credentials)).clone())
            }
            Err(failure) => {
                let last =
                    self.credentials.as_ref().filter(|kept| kept.expires_at.is_some_and(|at| now < at));
                if let Some(last) = last {
                    self.refresh_at = soonest;
                    return Ok(last.clone());
                }
                self.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
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
        let steps = [
            // minutes that pass, what would be found, whose are used then
            (0, hour(), "FIRST"),
            (55, lasting(), "FIRST"),
            (2, lack(), "FIRST"),
            (0, lasting(), "FIRST"),
            (1, lasting(), "SECOND"),
            (100_000, lack(), "SECOND"),
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

    #[tokio::test]
    async fn a_failure_is_not_kept_for_those_who_come_later() {
        let (keeper, clock) = (Keeper::default(), ManualClock::default());
        keeper.get(&clock, || async { lack() }).await.expect_err("none");
        keeper.get(&clock, || async { Ok(Credentials::new("AKID", "s")) }).await.expect("credentials");
    }
}
