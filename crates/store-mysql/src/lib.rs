//! The store on MySQL (8.0.17 and later) and MariaDB (10.6 and later), for any number of processes. One code serves
//! both: what only one of them has (RETURNING, LATERAL) is not used.
//!
//! The hot verbs collect concurrent calls and do them together, a few statements per group (`accept`, `settle`); claims
//! are in `claim`, reports in `feedback`. Whatever writes does so in a transaction on a connection of its own (`lane`), on a task of the store;
//! questions take a connection of the pool. The roles of the port are in files of their own names.
//!
//! Everybody locks in one order: rows of email_queue, then rows of email_outbox, each by id, then what is kept by address,
//! then alerts, and the counts last. A row of the queue is the email's own lock: whoever holds it may trust what the
//! outbox says of an email that waits.

#[cfg(test)]
extern crate self as store_mysql;

mod accept;
mod alerts;
mod claim;
mod claim_candidates;
mod claim_limits;
mod claim_routes;
mod companies;
mod config;
mod counts;
mod dead_letters;
mod erase;
mod error;
mod failures;
mod feedback;
mod history;
mod intake;
mod keys;
mod lane;
mod leases;
mod lookup;
mod messages;
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
mod tallies;
mod templates;
mod upkeep;
mod weaknesses;

use std::sync::{Arc, Mutex};

use sqlx::mysql::MySqlPool;
use sqlx::{Connection as _, Executor as _, MySqlConnection, Row as _};
use store::group::Group;
use store::task::on_its_own;
use store::thread::HotThread;
use store::trust::Trust;
use store::{
    Accepted, AttemptStart, Begun, Opening, ReportArrival, Reported, Settled, Settlement, StoreError,
};
use tokio::sync::Semaphore;

pub use crate::config::MysqlConfig;
use crate::error::{Fault, from_sqlx};
use crate::lane::{ANSWER, CLAIM, HOT, LaneWork, Lanes, Step, no_answer};
use crate::schema::Server;

/// How many of the verbs that do not go in groups write at once; each holds a connection beside the pool.
const WRITES_MAX: usize = 4;

/// Everything is kept in one database of a MySQL or MariaDB server.
pub struct MysqlStore {
    pool: MySqlPool,
    trust: Arc<Trust>,
    lanes: Lanes,
    claiming: Lanes,
    /// Those of the groups, to be closed after them.
    group_lanes: [Lanes; 4],
    writes: Arc<Semaphore>,
    accepting: Group<accept::Request, Accepted>,
    beginning: Group<AttemptStart, Begun>,
    settling: Group<Settlement, Settled>,
    reporting: Group<ReportArrival, Reported>,
    turns: Arc<claim::Turns>,
    /// How far retention has walked, so that what may not go yet is not looked at again and again.
    pruned_to: Mutex<upkeep::Walk>,
    pool_max: u32,
}

impl MysqlStore {
    /// Connects and brings the schema up to date.
    pub async fn open(config: &MysqlConfig) -> Result<Self, StoreError> {
        Self::open_on(config, HotThread::start()?).await
    }

    /// For who only looks: a database that is not as this program needs it is refused.
    pub async fn open_as_it_is(config: &MysqlConfig) -> Result<Self, StoreError> {
        Self::open_as(config, HotThread::start()?, Opening::LeavesAsItIs).await
    }

    /// As `open`, with the thread that is to do what many wait for.
    pub async fn open_on(config: &MysqlConfig, thread: HotThread) -> Result<Self, StoreError> {
        Self::open_as(config, thread, Opening::BringsUpToDate).await
    }

    async fn open_as(config: &MysqlConfig, thread: HotThread, opening: Opening) -> Result<Self, StoreError> {
        let mut connection =
            lane::connect(&config.options(), "DO 1").await.map_err(|error| named(config, error))?;
        let server = Server::of(&mut connection).await?;
        connection.execute(server.session()).await.map_err(from_sqlx)?;
        match opening {
            Opening::BringsUpToDate => schema::migrate(&mut connection, server).await?,
            Opening::LeavesAsItIs => schema::require_current(&mut connection).await?,
        }
        let packet_max = packet_max(&mut connection).await?;
        // The server notices that it is gone either way.
        let _ = connection.close().await;
        let trust = Arc::new(Trust::default());
        let pool = pool::pool(config, server.session(), &trust);
        // Each kind of work has connections of its own, which keep its statements prepared.
        let lanes = || Lanes::new(config.options(), server, thread.clone(), Arc::clone(&trust));
        let hot = || lanes().within(HOT);
        let [accepting, beginning, settling, reporting] = [hot(), hot(), hot(), hot()];
        Ok(Self {
            accepting: accept::group(&thread, accepting.clone(), packet_max),
            beginning: settle::group_of_begins(&thread, beginning.clone()),
            settling: settle::group_of_settlements(&thread, settling.clone()),
            reporting: feedback::group(&thread, reporting.clone()),
            group_lanes: [accepting, beginning, settling, reporting],
            pool,
            lanes: lanes(),
            claiming: lanes().within(CLAIM),
            trust,
            writes: Arc::new(Semaphore::new(WRITES_MAX)),
            turns: Arc::default(),
            pruned_to: Mutex::default(),
            pool_max: config.pool_max(),
        })
    }

    /// A transaction on a task of its own; done again if it collided with another.
    async fn write<Q, T>(&self, on: Q, work: LaneWork<Q, T>) -> Result<T, StoreError>
    where
        Q: Send + Sync + 'static,
        T: Send + 'static,
    {
        let (lanes, writes) = (self.lanes.clone(), Arc::clone(&self.writes));
        on_its_own(Box::pin(async move {
            let _turn = writes.acquire().await.map_err(|_| lane::closed())?;
            lanes.run(&on, work).await
        }))
        .await
    }

    /// The same for what workers cannot wait with while others erase and prune.
    async fn write_at_once<Q, T>(&self, on: Q, work: LaneWork<Q, T>) -> Result<T, StoreError>
    where
        Q: Send + Sync + 'static,
        T: Send + 'static,
    {
        let lanes = self.claiming.clone();
        on_its_own(Box::pin(async move { lanes.run(&on, work).await })).await
    }

    /// A question, answered within a bounded time; asked again if its connection had died since its last use.
    async fn read<Q, T>(&self, on: Q, question: Question<Q, T>) -> Result<T, StoreError> {
        let asked = || self.trust.within(ANSWER, ask(&self.pool, &on, question));
        let answer = match asked().await {
            Some(Err(fault)) if fault.is_lost_connection() => asked().await,
            answer => answer,
        };
        answer.ok_or_else(no_answer)?.map_err(Fault::into_store_error)
    }
}

/// A question to the database and what it is about.
type Question<Q, T> = for<'a> fn(&'a mut MySqlConnection, &'a Q) -> Step<'a, T>;

async fn ask<Q, T>(pool: &MySqlPool, on: &Q, question: Question<Q, T>) -> Result<T, Fault> {
    let mut connection = pool.acquire().await?;
    question(&mut connection, on).await
}

/// The longest statement that the server takes, in bytes.
async fn packet_max(connection: &mut MySqlConnection) -> Result<usize, StoreError> {
    let row = sqlx::query("SELECT CAST(@@max_allowed_packet AS SIGNED) AS bytes").fetch_one(connection).await;
    let bytes: i64 = row.and_then(|row| row.try_get("bytes")).map_err(from_sqlx)?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Names the database in what went wrong when it was first opened; what may pass by itself stays apart from what a
/// person has to mend.
fn named(config: &MysqlConfig, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(text) => StoreError::Unavailable(format!("cannot reach {config}: {text}")),
        StoreError::Unusable(text) => StoreError::Unusable(format!("cannot use {config}: {text}")),
        other => other,
    }
}

#[cfg(test)]
mod reads;

/// The tests' databases, for those that look at the statements themselves.
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
