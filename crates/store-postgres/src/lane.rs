//! Connections of their own for the hot verbs (accept, claim, begin, settle). A connection of the pool would be asked
//! whether it lives before each use and tidied after it, two round trips for work that is one.
//!
//! Work on a lane runs on a task of the store, never on a caller's: nobody can walk away half-way through it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::{Connection as _, PgConnection};
use store::StoreError;
use store::task::{Asked, Attempt, Work};
use store::thread::HotThread;
use store::trust::{Patience, Trust};
use tokio::time::{Instant, timeout};

use crate::config::{CONNECT_TIMEOUT, Session};
use crate::counts;
use crate::error::{Fault, from_sqlx};
use crate::sockets;

/// A statement that the server does not end by itself in time has lost its server.
pub const ANSWER: Patience = Patience::up_to(Duration::from_secs(40));
/// For the answer to one piece of hot work. A healthy server stores the largest batch (a thousand emails, some statements of
/// 8 MB) in a second or two, and gives up itself on a lock after 10 s; one that has said nothing by now has lost its way
/// to us. The client had better hear so than wait, and a worker has to record its results elsewhere before its leases
/// run out.
pub const HOT: Patience = Patience::up_to(Duration::from_secs(12));
/// For a claim. Longer, since one that is given up and done all the same holds its emails until their leases run out.
pub const CLAIM: Patience = Patience::whole(Duration::from_secs(20));
/// A connection that was idle this long is asked whether it still lives: the server may have been restarted.
const TRUSTED_FOR: Duration = Duration::from_millis(500);
/// How often work is done again that collided with other work, and the pause before it.
const TRIES_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(5);

/// A connection and the row of the counts it writes to.
pub struct Lane {
    pub connection: PgConnection,
    pub shard: i16,
    /// A transaction is under way, and the order to commit it is not: if the connection is lost now, nothing is kept.
    /// (Or there is nothing to keep.)
    is_in_transaction: bool,
    /// Something went wrong on it although its work is done: it is not to be used again.
    pub is_doubtful: bool,
    idle_since: Instant,
}

#[derive(Clone)]
pub struct Lanes {
    inner: Arc<Inner>,
    patience: Patience,
}

struct Inner {
    session: Session,
    /// Where the connections belong: what comes on them is noticed there, whoever waits for it.
    thread: HotThread,
    trust: Arc<Trust>,
    idle: Mutex<Option<Vec<Lane>>>,
    made: AtomicU8,
}

/// Work on a lane and what it works on.
pub type LaneWork<Q, T> = Work<Lane, Q, T, Fault>;

impl Lanes {
    pub fn new(session: Session, thread: HotThread, trust: Arc<Trust>) -> Self {
        // Processes begin at different rows of the counts.
        let made = AtomicU8::new(uuid::Uuid::new_v4().as_bytes()[0]);
        let inner = Inner { session, thread, trust, idle: Mutex::new(Some(Vec::new())), made };
        Self { inner: Arc::new(inner), patience: HOT }
    }

    /// The same lanes for those who wait so long for their work.
    pub fn within(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// Answers the questions together. If that fails and not for want of a database, each is asked alone, so that only
    /// the guilty one fails.
    pub async fn answer<Q: Send + Sync, A: Send>(
        &self,
        questions: Vec<Q>,
        work: LaneWork<[Q], Vec<A>>,
    ) -> Vec<Result<A, StoreError>> {
        match self.run(&questions[..], work).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) if questions.len() == 1 || error.is_temporary() => {
                questions.iter().map(|_| Err(error.clone())).collect()
            }
            Err(_) => {
                let mut answers = Vec::with_capacity(questions.len());
                for question in &questions {
                    let alone = self.run(std::slice::from_ref(question), work).await;
                    let unanswered = || StoreError::Broken("a question was not answered".into());
                    answers.push(alone.and_then(|mut answers| answers.pop().ok_or_else(unanswered)));
                }
                answers
            }
        }
    }

    pub async fn run<Q: ?Sized + Sync, T: Send>(
        &self,
        on: &Q,
        work: LaneWork<Q, T>,
    ) -> Result<T, StoreError> {
        let mut asked = Asked::new(on, work);
        self.attempt(&mut asked).await?;
        asked.done()
    }

    /// Does the work, again if it collided with other work. A connection that is in doubt is given up.
    async fn attempt(&self, work: &mut dyn Attempt<Lane, Fault>) -> Result<(), StoreError> {
        for try_number in 1.. {
            let mut lane = self.take().await?;
            lane.is_in_transaction = false;
            let fault = match self.inner.trust.within(self.patience, work.once(&mut lane)).await {
                None => return Err(if lane.is_in_transaction { no_answer() } else { left_open() }),
                Some(Ok(())) => {
                    self.give_back(lane);
                    return Ok(());
                }
                Some(Err(fault)) => fault,
            };
            let is_undone = lane.is_in_transaction;
            if fault.leaves_connection_usable() && roll_back(&mut lane.connection).await {
                self.give_back(lane);
            }
            if !fault.is_collision() || try_number == TRIES_MAX {
                return Err(if is_undone { fault.into_store_error() } else { fault.into_doubt() });
            }
            tokio::time::sleep(PAUSE * try_number).await;
        }
        unreachable!("the tries are bounded")
    }

    async fn take(&self) -> Result<Lane, StoreError> {
        loop {
            let kept = {
                let mut idle = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner);
                idle.as_mut().ok_or_else(closed)?.pop()
            };
            let Some(mut lane) = kept else { return self.connect().await };
            let idle_for = lane.idle_since.elapsed();
            let lives = idle_for < TRUSTED_FOR
                || self.inner.trust.lives(idle_for, async { lane.connection.ping().await.is_ok() }).await;
            if lives {
                return Ok(lane);
            }
        }
    }

    /// Makes connections until so many are idle.
    pub async fn warm_up(&self, count: usize) {
        let made = join_all((0..count).map(|_| self.connect())).await;
        for lane in made.into_iter().flatten() {
            self.give_back(lane);
        }
    }

    async fn connect(&self) -> Result<Lane, StoreError> {
        let session = self.inner.session.clone();
        let connecting = self.inner.thread.spawn(async move { connect(&session).await });
        let connection = connecting.await.map_err(|_| StoreError::Broken("connecting panicked".into()))??;
        let shard = counts::shard(self.inner.made.fetch_add(1, Ordering::Relaxed));
        Ok(Lane {
            connection,
            shard,
            is_in_transaction: false,
            is_doubtful: false,
            idle_since: Instant::now(),
        })
    }

    fn give_back(&self, mut lane: Lane) {
        if lane.is_doubtful {
            return;
        }
        lane.idle_since = Instant::now();
        if let Some(idle) = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            idle.push(lane);
        }
    }

    pub async fn close(&self) {
        let idle = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        for lane in idle.unwrap_or_default() {
            // The server notices that it is gone either way.
            let _ = timeout(CONNECT_TIMEOUT, lane.connection.close()).await;
        }
    }
}

impl Lane {
    /// From here on nothing is kept unless `commit` is reached.
    pub async fn begin(&mut self) -> Result<(), Fault> {
        self.is_in_transaction = true;
        sqlx::query("BEGIN").execute(&mut self.connection).await?;
        Ok(())
    }

    /// What follows only reads: whatever happens, there is nothing to undo.
    pub fn only_reads(&mut self) -> &mut PgConnection {
        self.is_in_transaction = true;
        &mut self.connection
    }

    /// Ends the transaction, if one is under way, without anything of it.
    pub async fn undo(&mut self) -> Result<(), Fault> {
        if self.is_in_transaction {
            sqlx::query("ROLLBACK").execute(&mut self.connection).await?;
        }
        Ok(())
    }

    pub async fn commit(&mut self) -> Result<(), Fault> {
        self.is_in_transaction = false;
        sqlx::query("COMMIT").execute(&mut self.connection).await?;
        Ok(())
    }
}

pub async fn connect(session: &Session) -> Result<PgConnection, StoreError> {
    let connected = timeout(CONNECT_TIMEOUT, session.connect()).await;
    sockets::tune(session.options.get_port());
    match connected {
        Ok(connected) => connected.map_err(from_sqlx),
        Err(_) => Err(StoreError::Unavailable("PostgreSQL does not answer".into())),
    }
}

/// `false` when the connection is not to be used again.
pub async fn roll_back(connection: &mut PgConnection) -> bool {
    // Outside of a transaction this is a warning and no more.
    let rolled_back = timeout(CONNECT_TIMEOUT, sqlx::query("ROLLBACK").execute(connection)).await;
    matches!(rolled_back, Ok(Ok(_)))
}

pub fn no_answer() -> StoreError {
    StoreError::Unavailable("PostgreSQL does not answer any more".into())
}

/// The same, of what may have been kept.
pub fn left_open() -> StoreError {
    StoreError::InDoubt("PostgreSQL does not answer any more".into())
}

pub fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}
