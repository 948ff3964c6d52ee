//! Whether a connection still lives, for stores that speak to a server.
//!
//! Where packets vanish without a word, each connection would have to be waited for in turn, for seconds, long after the
//! network is well again. So one that does not answer speaks for all that fell idle before it was found out, and for those
//! whose answer was awaited then.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// For an answer to the smallest of questions. A server that is this slow costs a new connection and nothing else. Less
/// than callers have patience for (the check of `readyz` has 2 s): who has gone by then leaves nobody found out.
const PING_TIMEOUT: Duration = Duration::from_millis(1_500);
/// So long an answer is awaited even while others are found out: almost all take milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an answer is awaited: when another connection was found out meanwhile, and when none was.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    least: Duration,
    most: Duration,
}

impl Patience {
    /// For work that others can speak for.
    pub const fn up_to(most: Duration) -> Self {
        Self { least: PATIENCE, most }
    }

    /// Whatever others say.
    pub const fn whole(time: Duration) -> Self {
        Self { least: time, most: time }
    }
}

#[derive(Debug, Default)]
pub struct Trust {
    /// When a connection was found out last.
    silent_at: watch::Sender<Option<Instant>>,
}

impl Trust {
    /// Asks a connection that has been idle for so long, unless there is no hope.
    pub async fn lives(&self, idle_for: Duration, ping: impl Future<Output = bool>) -> bool {
        let idle_since = Instant::now().checked_sub(idle_for);
        let silent_at = *self.silent_at.borrow();
        if silent_at.is_some_and(|at| idle_since.is_none_or(|since| since <= at)) {
            return false;
        }
        let answered = timeout(PING_TIMEOUT, ping).await;
        if answered.is_err() {
            self.is_lost();
        }
        answered.unwrap_or(false)
    }

    /// A connection did not answer in its time.
    pub fn is_lost(&self) {
        self.silent_at.send_replace(Some(Instant::now()));
    }

    /// Waits for work on a connection. `None` when the patience has run out.
    pub async fn within<T>(&self, patience: Patience, work: impl Future<Output = T>) -> Option<T> {
        let (since, mut silent_at) = (Instant::now(), self.silent_at.subscribe());
        let another_is_found_out = async {
            sleep(patience.least).await;
            // It lasts as long as `self` does.
            let _ = silent_at.wait_for(|at| at.is_some_and(|at| at > since)).await;
        };
        tokio::select! {
            biased;
            done = work => return Some(done),
            () = another_is_found_out => {}
            () = sleep(patience.most) => self.is_lost(),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn one_that_is_silent_speaks_for_those_idle_before() {
        let trust = Trust::default();
        assert!(trust.lives(SECOND, ready(true)).await);
        assert!(!trust.lives(SECOND, ready(false)).await, "a reset is about one connection");
        assert!(trust.lives(SECOND, ready(true)).await);
        assert!(!trust.lives(SECOND, pending()).await);
        assert!(!trust.lives(SECOND, ready(true)).await, "it was idle before");
        tokio::time::advance(SECOND * 3).await;
        assert!(trust.lives(SECOND, ready(true)).await, "it was made or used since");
    }
    #[tokio::test(start_paused = true)]
    async fn one_that_is_silent_speaks_for_those_awaited() {
        let (trust, most) = (Trust::default(), SECOND * 40);
        let patience = Patience::up_to(most);
        assert_eq!(trust.within(patience, ready(1)).await, Some(1));
        let begun = Instant::now();
        assert_eq!(trust.within(patience, pending::<()>()).await, None);
        assert_eq!(begun.elapsed(), most, "nobody knew better");

        let asked = Instant::now();
        let found_out = async {
            sleep(SECOND).await;
            trust.is_lost();
        };
        let (awaited, short, whole, ()) = tokio::join!(
            async { (trust.within(patience, pending::<()>()).await, asked.elapsed()) },
            trust.within(patience, sleep(SECOND * 4)),
            trust.within(Patience::whole(SECOND * 20), sleep(SECOND * 19)),
            found_out
        );
        assert_eq!(awaited, (None, PATIENCE));
        assert_eq!((short, whole), (Some(()), Some(())));

        let asked_since = trust.within(patience, sleep(SECOND * 30)).await;
        assert_eq!(asked_since, Some(()), "what was asked since is waited for");
    }
}
