//! Keeping short what has to be walked through. Every email leaves dead entries in the indexes of email_queue, and every
//! claim walks past all that there are; it leaves events as well, and who looks for events of a moment reads all that the
//! index of their order does not tell yet. The server sees to both once a minute at best; at thousands of emails per second
//! that is hundreds of pages to walk through. So a process that has claimed many asks for it.

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

/// What was written of late is told in the index of the order of events, a range of 64 pages (`events_in_order`) at a time:
/// those that are full, since the last one would have to be told again with every event. A second at 10,000 emails per
/// second fills ten. What was not told here is told when the server vacuums the table.
const TELL: &str = "SELECT brin_summarize_range('events_in_order', page)
     FROM (SELECT pg_relation_size('events') / current_setting('block_size')::bigint AS pages) AS size,
          generate_series(greatest(pages / 64 - 64, 0) * 64, pages - 64, 64) AS page";
/// Who vacuums the table does the same in the end, and is not to be disturbed: the server would end that for us after a
/// second.
const TELL_UNLESS_LOCKED: &str = "SET LOCAL lock_timeout = '100ms'";

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

    pub async fn run(&self) {
        see_to("the queue", shorten_queue(&self.pool)).await;
        see_to("the order of events", tell_order(&self.pool)).await;
        let mut state = self.state();
        state.is_under_way = false;
        state.done_at = Some(Instant::now());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// If it fails, claims and looks at the history are slower until the server gets to it by itself.
async fn see_to(what: &str, work: impl Future<Output = Result<(), sqlx::Error>>) {
    match timeout(TIME_MAX, work).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "{what} could not be tidied up"),
        Err(_) => tracing::debug!("tidying up {what} takes too long"),
    }
}

async fn shorten_queue(pool: &PgPool) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(TIDY).execute(pool).await?;
    Ok(())
}

async fn tell_order(pool: &PgPool) -> Result<(), sqlx::Error> {
    let mut telling = pool.begin().await?;
    sqlx::query(TELL_UNLESS_LOCKED).execute(&mut *telling).await?;
    sqlx::query(TELL).execute(&mut *telling).await?;
    telling.commit().await
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
