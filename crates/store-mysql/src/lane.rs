//! Connections of their own for whatever writes. A connection of the pool would be asked whether it lives after each
//! use, a round trip too many for work that is a few.
//!
//! A piece of work is one transaction, on a task of the store, never on a caller's: nobody can walk away half-way
//! through it. What collided with other work is done again as a whole.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{Connection as _, Executor as _, MySqlConnection};
use store::StoreError;
use store::task::{self, Asked, Attempt, Work};
use store::thread::HotThread;
use store::trust::{Patience, Trust};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::config::CONNECT_TIMEOUT;
use crate::counts::{self, Counts};
use crate::error::{Fault, from_sqlx};
use crate::schema::Server;
use crate::sockets;

/// A transaction that the server does not end by itself in this time has lost its server.
pub const ANSWER: Patience = Patience::up_to(Duration::from_secs(60));
/// For the answer to one piece of hot work. A healthy server stores the largest batch (a thousand emails, some statements of
/// 8 MB) in a second or two, and gives up itself on a lock after 10 s; one that has said nothing by now has lost its way
/// to us. The client had better hear so than wait, and a worker has to record its results elsewhere before its leases
/// run out.
pub const HOT: Patience = Patience::up_to(Duration::from_secs(12));
/// For a claim. Longer, since one that is given up and done all the same holds its emails until their leases run out.
pub const CLAIM: Patience = Patience::whole(Duration::from_secs(20));
/// A connection that was idle this long is asked whether it still lives: the server may have been restarted.
const TRUSTED_FOR: Duration = Duration::from_millis(500);
/// How often work is done again that collided with other work.
const TRIES_MAX: u32 = 8;
/// And for how long: waiting for a lock takes 10 s each time, and the caller has waited long enough after two of them.
const AGAIN_WITHIN: Duration = Duration::from_secs(15);
/// The longest pause before the second try; it grows with every further one.
const PAUSE_MS_MAX: u64 = 10;

/// Work under way on a connection.
pub type Step<'c, T> = task::Step<'c, T, Fault>;

/// Work in a transaction and what it works on.
pub type LaneWork<Q, T> = Work<Lane, Q, T, Fault>;

/// A connection in a transaction, and the counts to be written at its end.
pub struct Lane {
    pub connection: MySqlConnection,
    pub counts: Counts,
    /// The order to commit is out: if the connection is lost now, nobody knows whether it was followed.
    is_committing: bool,
    server: Server,
    shard: u8,
    idle_since: Instant,
}

#[derive(Clone)]
pub struct Lanes {
    inner: Arc<Inner>,
    patience: Patience,
}

struct Inner {
    options: MySqlConnectOptions,
    /// Where the connections belong: what comes on them is noticed there, whoever waits for it.
    thread: HotThread,
    trust: Arc<Trust>,
    server: Server,
    idle: Mutex<Option<Vec<Lane>>>,
    made: AtomicU8,
}

impl Lanes {
    pub fn new(options: MySqlConnectOptions, server: Server, thread: HotThread, trust: Arc<Trust>) -> Self {
        // Processes begin at different rows of the counts.
        let made = AtomicU8::new(Uuid::new_v4().as_bytes()[0]);
        let inner = Inner { options, thread, trust, server, idle: Mutex::new(Some(Vec::new())), made };
        Self { inner: Arc::new(inner), patience: ANSWER }
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
        work: LaneWork<[Q], Vec<Result<A, StoreError>>>,
    ) -> Vec<Result<A, StoreError>> {
        match self.run(&questions[..], work).await {
            Ok(answers) => answers,
            Err(error) if questions.len() == 1 || error.is_temporary() => {
                questions.iter().map(|_| Err(error.clone())).collect()
            }
            Err(_) => {
                let mut answers = Vec::with_capacity(questions.len());
                for question in &questions {
                    let alone = self.run(std::slice::from_ref(question), work).await;
                    let unanswered = || StoreError::Broken("a question was not answered".into());
                    answers.push(alone.and_then(|mut answers| answers.pop().ok_or_else(unanswered)?));
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

    /// Does the work in a transaction, again if it collided with other work or met a connection that had died since
    /// its last use. A connection that is in doubt is given up.
    async fn attempt(&self, work: &mut dyn Attempt<Lane, Fault>) -> Result<(), StoreError> {
        let begun = Instant::now();
        for try_number in 1.. {
            let mut lane = self.take().await?;
            let fault = match self.inner.trust.within(self.patience, lane.transaction(work)).await {
                None => return Err(if lane.is_committing { left_open() } else { no_answer() }),
                Some(Ok(())) => {
                    self.give_back(lane);
                    return Ok(());
                }
                Some(Err(fault)) => fault,
            };
            if fault.is_lost_connection() {
                // The others went the same way.
                self.forget_idle();
            } else if lane.roll_back().await {
                self.give_back(lane);
            }
            let again = fault.is_collision() || (fault.is_lost_connection() && try_number == 1);
            if !again || try_number == TRIES_MAX || begun.elapsed() > AGAIN_WITHIN {
                return Err(fault.into_store_error());
            }
            tokio::time::sleep(pause(try_number)).await;
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
        let (options, server) = (self.inner.options.clone(), self.inner.server);
        let connecting = self.inner.thread.spawn(async move { connect(&options, server.session()).await });
        let connection = connecting.await.map_err(|_| StoreError::Broken("connecting panicked".into()))??;
        let shard = counts::shard(self.inner.made.fetch_add(1, Ordering::Relaxed));
        let (counts, idle_since) = (Counts::default(), Instant::now());
        Ok(Lane { connection, counts, is_committing: false, server, shard, idle_since })
    }

    fn give_back(&self, mut lane: Lane) {
        lane.idle_since = Instant::now();
        if let Some(idle) = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            idle.push(lane);
        }
    }

    fn forget_idle(&self) {
        if let Some(idle) = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            idle.clear();
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
    async fn transaction(&mut self, work: &mut dyn Attempt<Lane, Fault>) -> Result<(), Fault> {
        (self.counts, self.is_committing) = (Counts::default(), false);
        self.connection.execute(self.server.begin()).await?;
        work.once(self).await?;
        let Self { connection, counts, shard, .. } = self;
        counts.flush(connection, *shard).await?;
        self.is_committing = true;
        match self.connection.execute(self.server.commit()).await.map_err(Fault::Sql) {
            Ok(_) => Ok(()),
            // A refusal is an answer: nothing was kept.
            Err(fault) if fault.is_collision() => Err(fault),
            // Anything else leaves open whether it was.
            Err(fault) => Err(StoreError::InDoubt(fault.into_store_error().to_string()).into()),
        }
    }

    /// `false` when the connection is not to be used again.
    async fn roll_back(&mut self) -> bool {
        matches!(timeout(CONNECT_TIMEOUT, self.connection.execute(self.server.roll_back())).await, Ok(Ok(_)))
    }
}

/// Of random length, so that those who collided do not meet again.
fn pause(try_number: u32) -> Duration {
    let random = u64::from(Uuid::new_v4().as_bytes()[0]);
    Duration::from_millis(1 + random % (PAUSE_MS_MAX * u64::from(try_number)))
}

pub async fn connect(
    options: &MySqlConnectOptions,
    session: &'static str,
) -> Result<MySqlConnection, StoreError> {
    let connecting = async {
        let mut connection = MySqlConnection::connect_with(options).await?;
        sockets::tune(options.get_port());
        connection.execute(session).await?;
        Ok(connection)
    };
    match timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => connected.map_err(from_sqlx),
        Err(_) => Err(StoreError::Unavailable("the database does not answer".into())),
    }
}

pub fn no_answer() -> StoreError {
    StoreError::Unavailable("the database does not answer any more".into())
}

/// The same, of what may have been kept.
pub fn left_open() -> StoreError {
    StoreError::InDoubt("the database does not answer any more".into())
}

pub fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}
