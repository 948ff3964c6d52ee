//! Keeping the queue short. Every email leaves dead entries in the indexes of email_queue, and every claim walks past all that
//! there are. The server tidies up once a minute at best; at thousands of emails per second that is hundreds of pages
//! to walk through for each claim. So a process that has claimed many asks for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{Instant, timeout};

/// So many claimed emails are worth it: some thirty pages of dead entries.
const CLAIMED_MIN: usize = 5_000;
/// The server gives up before.
const TIME_MAX: Duration = Duration::from_secs(40);
const EVERY: Duration = Duration::from_secs(1);

/// What another process tidies up already is left to it. How much the server does about the indexes it decides by how much
/// of the table is dead: of a long backlog not every time.
const TIDY: &str = "VACUUM (SKIP_LOCKED, TRUNCATE OFF, PARALLEL 0) email_queue";

#[derive(Clone)]
pub struct Tidy {
    pool: PgPool,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Since it was last asked for.
    claimed: usize,
    is_under_way: bool,
    done_at: Option<Instant>,
}

impl Tidy {
    pub fn new(pool: PgPool) -> Self {
        Self { pool, state: Arc::default() }
    }

    /// Costs the caller nothing.
    pub fn claimed(&self, count: usize) {
        if self.state().is_time(count) {
            let tidy = self.clone();
            tokio::spawn(async move { tidy.run().await });
        }
    }

    /// If it fails, claims are slower until the server gets to it by itself.
    async fn run(&self) {
        let asked = sqlx::raw_sql(TIDY).execute(&self.pool);
        match timeout(TIME_MAX, asked).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the queue could not be tidied up"),
            Err(_) => tracing::debug!("tidying up the queue takes too long"),
        }
        let mut state = self.state();
        state.is_under_way = false;
        state.done_at = Some(Instant::now());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_time(&mut self, count: usize) -> bool {
        self.claimed += count;
        let is_early = self.done_at.is_some_and(|at| at.elapsed() < EVERY);
        if self.claimed < CLAIMED_MIN || self.is_under_way || is_early {
            return false;
        }
        self.claimed = 0;
        self.is_under_way = true;
        true
    }
}
