//! The store on PostgreSQL (15 and later), for any number of processes.
//!
//! The hot verbs collect concurrent calls and do them together, one statement per group (`accept`, `settle`); claims are
//! in `claim`, reports in `feedback`. They work on connections of their own (`lane`). Everything else takes a connection of the pool, and what
//! writes does so on a task of its own, so that a caller that goes away leaves nothing half-open. `wake` tells other
//! processes of due emails. The roles of the port are in files of their own names.

#[cfg(test)]
extern crate self as store_postgres;

mod accept;
mod alerts;
mod claim;
mod companies;
mod config;
mod counts;
mod dead_letters;
mod erase;
mod error;
mod failures;
mod feedback;
mod history;
mod insert;
mod intake;
mod lane;
mod late;
mod lookup;
mod outbox;
mod paging;
mod people;
mod pool;
mod providers;
mod recipients;
mod row;
mod schema;
mod settle;
mod sockets;
mod suppressions;
mod take;
mod tallies;
mod templates;
mod tidy;
mod upkeep;
mod wake;
mod weaknesses;

use std::sync::{Arc, Mutex};

use sqlx::postgres::PgPool;
use sqlx::{Connection as _, PgConnection};
use store::fairness::Fairness;
use store::group::Group;
use store::task::{self, Asked, Attempt, on_its_own};
use store::thread::HotThread;
use store::trust::{Patience, Trust};
use store::{
    Accepted, AttemptStart, Begun, Opening, ReportArrival, Reported, Settled, Settlement, StoreError,
};
use tokio::sync::Mutex as AsyncMutex;

pub use crate::config::PostgresConfig;
use crate::error::Fault;
use crate::lane::{ANSWER, Lanes, left_open, no_answer};
use crate::tidy::Tidy;
use crate::wake::Wake;

/// How often a write is done again that collided with another.
const TRIES_MAX: u32 = 5;

/// Everything is kept in one PostgreSQL database.
pub struct PostgresStore {
    pool: PgPool,
    lanes: Lanes,
    trust: Arc<Trust>,
    wake: Arc<Wake>,
    accepting: Group<accept::Request, Accepted>,
    beginning: Group<AttemptStart, Begun>,
    settling: Group<Settlement, Settled>,
    reporting: Group<ReportArrival, Reported>,
    /// One claim at a time per process: the next one has to know what this one gave to whom.
    fairness: Arc<AsyncMutex<Fairness>>,
    tidy: Tidy,
    pruned_to: Mutex<upkeep::Walk>,
    pool_max: u32,
}

impl PostgresStore {
    /// Connects and brings the schema up to date.
    pub async fn open(config: &PostgresConfig) -> Result<Self, StoreError> {
        Self::open_on(config, HotThread::start()?).await
    }

    /// For who only looks: a database that is not as this program needs it is refused.
    pub async fn open_as_it_is(config: &PostgresConfig) -> Result<Self, StoreError> {
        Self::open_as(config, HotThread::start()?, Opening::LeavesAsItIs).await
    }

    /// As `open`, with the thread that is to do what many wait for.
    pub async fn open_on(config: &PostgresConfig, thread: HotThread) -> Result<Self, StoreError> {
        Self::open_as(config, thread, Opening::BringsUpToDate).await
    }

    async fn open_as(
        config: &PostgresConfig,
        thread: HotThread,
        opening: Opening,
    ) -> Result<Self, StoreError> {
        let mut connection = lane::connect(&config.session()).await.map_err(|error| named(config, error))?;
        schema::require_fitness(&mut connection).await?;
        match opening {
            Opening::BringsUpToDate => schema::migrate(&mut connection).await?,
            Opening::LeavesAsItIs => schema::require_current(&mut connection).await?,
        }
        // The server notices that it is gone either way.
        let _ = connection.close().await;
        let trust = Arc::new(Trust::default());
        let pool = pool::pool(config, &trust);
        let lanes = Lanes::new(config.hot_session(), thread.clone(), Arc::clone(&trust));
        let wake = Arc::new(Wake::start(config.session()));
        Ok(Self {
            accepting: accept::group(&thread, lanes.clone(), Arc::clone(&wake)),
            beginning: settle::group_of_begins(&thread, lanes.clone()),
            settling: settle::group_of_settlements(&thread, lanes.clone(), Arc::clone(&wake)),
            reporting: feedback::group(&thread, lanes.clone()),
            tidy: Tidy::new(pool.clone()),
            pool,
            lanes,
            trust,
            wake,
            fairness: Arc::default(),
            pruned_to: Mutex::default(),
            pool_max: config.pool_max(),
        })
    }

    /// A transaction on a task of its own; done again if it collided with another.
    async fn write<Q, T>(&self, on: Q, work: Work<Q, T>) -> Result<T, StoreError>
    where
        Q: Send + Sync + 'static,
        T: Send + 'static,
    {
        self.write_within(ANSWER, on, work).await
    }

    async fn write_within<Q, T>(&self, patience: Patience, on: Q, work: Work<Q, T>) -> Result<T, StoreError>
    where
        Q: Send + Sync + 'static,
        T: Send + 'static,
    {
        let (pool, trust) = (self.pool.clone(), Arc::clone(&self.trust));
        on_its_own(Box::pin(async move {
            let mut asked = Asked::new(&on, work);
            write_in_time(&pool, &trust, patience, &mut asked).await?;
            asked.done()
        }))
        .await
    }

    /// A question, answered within a bounded time.
    async fn read<T>(&self, question: impl Future<Output = Result<T, Fault>>) -> Result<T, StoreError> {
        match self.trust.within(ANSWER, question).await {
            Some(answer) => answer.map_err(Fault::into_store_error),
            None => Err(no_answer()),
        }
    }
}

/// Work on a connection and what it works on.
type Work<Q, T> = task::Work<PgConnection, Q, T, Fault>;

async fn write_in_time(
    pool: &PgPool,
    trust: &Trust,
    patience: Patience,
    work: &mut dyn Attempt<PgConnection, Fault>,
) -> Result<(), StoreError> {
    for try_number in 1.. {
        let mut is_committing = false;
        match trust.within(patience, write_once(pool, work, &mut is_committing)).await {
            None if is_committing => return Err(left_open()),
            None => return Err(no_answer()),
            Some(Err(fault)) if fault.is_collision() && try_number < TRIES_MAX => {}
            Some(Err(fault)) if is_committing => return Err(fault.into_doubt()),
            Some(outcome) => return outcome.map_err(Fault::into_store_error),
        }
    }
    unreachable!("the tries are bounded")
}

async fn write_once(
    pool: &PgPool,
    work: &mut dyn Attempt<PgConnection, Fault>,
    is_committing: &mut bool,
) -> Result<(), Fault> {
    // Dropping it undoes it.
    let mut transaction = pool.begin().await?;
    work.once(&mut transaction).await?;
    *is_committing = true;
    transaction.commit().await?;
    Ok(())
}

/// Names the database in what went wrong when it was first opened; what may pass by itself stays apart from what a
/// person has to mend.
fn named(config: &PostgresConfig, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(text) => StoreError::Unavailable(format!("cannot reach {config}: {text}")),
        StoreError::Unusable(text) => StoreError::Unusable(format!("cannot use {config}: {text}")),
        other => other,
    }
}

/// The tests' databases, for those that look at the statements themselves.
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
