//! Whether a connection that was idle still lives, for stores that speak to a server.
//!
//! Where packets vanish without a word, each idle connection would have to be waited for in turn, for seconds, long after
//! the network is well again. So one that does not answer speaks for all that fell idle before it was found out.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// For an answer to the smallest of questions. A server that is this slow costs a new connection and nothing else.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Trust {
    /// When a connection was found out last.
    silent_at: Mutex<Option<Instant>>,
}

impl Trust {
    /// Asks a connection that has been idle for so long, unless there is no hope.
    pub async fn lives(&self, idle_for: Duration, ping: impl Future<Output = bool>) -> bool {
        let idle_since = Instant::now().checked_sub(idle_for);
        let silent_at = *self.silent_at.lock().unwrap_or_else(PoisonError::into_inner);
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
        *self.silent_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
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
}
