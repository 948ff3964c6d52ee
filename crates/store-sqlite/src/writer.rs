//! The one thread that writes. Whatever is waiting when it looks is done in one transaction and answered after
//! its commit, so that a hundred concurrent requests share one sync to disk and none is answered before it.
//!
//! A piece of work that fails, or panics, is undone alone: the group is undone and done again with a savepoint around each
//! piece. Savepoints from the start would copy every page that each piece touches, for what hardly ever happens.
//!
//! What comes in waits apart from all other work: were there one line, thousands of clients that hand in emails at once
//! would stand in front of every step by which one is sent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use store::StoreError;
use store::fairness::Fairness;
use tokio::sync::oneshot;

use crate::counts::Counts;
use crate::error::from_sqlite;
use crate::room::{self, Room};
use crate::schema;
use crate::tallies::SentNotes;

/// How many pieces of work may wait in each line; past this the store says that it is busy.
const WAITING_MAX: usize = 8_192;
/// While both lines are long, one piece in so many is an acceptance.
const ACCEPTANCE_EVERY: usize = 4;
/// How many share one commit: more gains nothing and makes the first wait for the last.
const GROUP_MAX: usize = 512;
/// What is written within this time is moved out of the log together. The sync of a checkpoint holds up those of the log
/// for as long as it has much to write, so it is given little at a time.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(25);
/// A log of this many pages is worth stopping the writer for: readers and a steady stream of writes can keep
/// the checkpointer from ever starting it anew.
const LOG_PAGES_MAX: i64 = 32 * 1024;
/// When room is short: how long a checkpoint is tried, and the pause between two tries.
const CHECKPOINT_WITHIN: Duration = Duration::from_millis(50);
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(5);

/// What a piece of work sees: the connection inside the transaction, and the counts it must keep.
pub struct Work<'a> {
    pub connection: &'a Connection,
    pub counts: &'a mut Counts,
    pub sent: &'a mut SentNotes,
    /// Whose turn it is. Undone with the work.
    pub fairness: &'a mut Fairness,
}

/// A piece of work and whoever waits for it.
trait Job: Send {
    /// Does the work; `false` when it failed, and what it wrote is to be undone. It may be done again after that.
    fn run(&mut self, work: &mut Work<'_>) -> bool;

    /// Did the work itself find no room?
    fn found_no_room(&self) -> bool;

    /// Given how the transaction ended, tells the caller.
    fn answer(self: Box<Self>, ended: Result<(), StoreError>);
}

type AnyJob = Box<dyn Job>;

struct Asked<T, F> {
    work: F,
    outcome: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Job for Asked<T, F>
where
    T: Send,
    F: FnMut(&mut Work<'_>) -> Result<T, StoreError> + Send,
{
    fn run(&mut self, work: &mut Work<'_>) -> bool {
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.work)(work)))
            .unwrap_or_else(|_| Err(StoreError::Broken("a write panicked and was undone".into())));
        self.outcome.insert(outcome).is_ok()
    }

    fn found_no_room(&self) -> bool {
        matches!(self.outcome, Some(Err(StoreError::Full(_))))
    }

    fn answer(self: Box<Self>, ended: Result<(), StoreError>) {
        let outcome = match (ended, self.outcome) {
            (Ok(()), Some(outcome)) => outcome,
            (Ok(()), None) => Err(StoreError::Unavailable("the transaction ended early".into())),
            (Err(error), _) => Err(error),
        };
        // The caller may have gone; what was committed stays committed.
        let _ = self.answer.send(outcome);
    }
}

/// The two lines, from the side of those who join them.
struct Lines {
    acceptances: SyncSender<AnyJob>,
    others: SyncSender<AnyJob>,
    /// Rung after a line was joined.
    bell: SyncSender<()>,
}

/// The two lines, from the writer's side.
struct Waiting {
    acceptances: Receiver<AnyJob>,
    others: Receiver<AnyJob>,
    bell: Receiver<()>,
    taken: usize,
}

impl Waiting {
    /// Who is next, if anybody waits.
    fn next(&mut self) -> Option<AnyJob> {
        self.taken += 1;
        let (first, second) = if self.taken.is_multiple_of(ACCEPTANCE_EVERY) {
            (&self.acceptances, &self.others)
        } else {
            (&self.others, &self.acceptances)
        };
        first.try_recv().or_else(|_| second.try_recv()).ok()
    }

    /// The first of the next group; `None` when nobody can come any more.
    fn first(&mut self) -> Option<AnyJob> {
        loop {
            let is_over = self.bell.recv().is_err();
            // Whoever joined a line before the bell rang is seen here; whoever comes later rings again.
            match self.next() {
                Some(job) => return Some(job),
                None if is_over => return None,
                None => {}
            }
        }
    }
}

fn lines() -> (Lines, Waiting) {
    let (acceptances, accepted) = sync_channel(WAITING_MAX);
    let (others, other) = sync_channel(WAITING_MAX);
    let (bell, rung) = sync_channel(1);
    let waiting = Waiting { acceptances: accepted, others: other, bell: rung, taken: 0 };
    (Lines { acceptances, others, bell }, waiting)
}

/// The handle by which work is handed to the thread.
#[derive(Clone)]
pub struct Writer {
    lines: Arc<Mutex<Option<Lines>>>,
    finished: Arc<Mutex<Option<thread::JoinHandle<()>>>>,
}

impl Writer {
    /// A database in a file needs looking after: its log is kept short, and its room is watched.
    pub fn start(connection: Connection, file: Option<(&Path, Arc<Room>)>) -> Result<Self, StoreError> {
        let (lines, waiting) = lines();
        let log = Arc::new(Log::default());
        let (written, news) = sync_channel(1);
        if let Some((path, room)) = file {
            start_checkpointer(schema::connect(path)?, news, Arc::clone(&log), room)?;
        }
        let thread = thread::Builder::new()
            .name("sqlite-writer".into())
            .spawn(move || write_in_groups(&connection, waiting, &written, &log))
            .map_err(cannot_start)?;
        Ok(Self { lines: Arc::new(Mutex::new(Some(lines))), finished: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Does `work` in a transaction and returns what it gave back, after the commit. A caller that stops
    /// waiting changes nothing: the work is done as a whole or not at all.
    pub async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Work<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.hand_over(work, |lines| &lines.others).await
    }

    /// The same for what comes in from outside, in whatever numbers.
    pub async fn take_in<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Work<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        self.hand_over(work, |lines| &lines.acceptances).await
    }

    async fn hand_over<T, F>(&self, work: F, line: fn(&Lines) -> &SyncSender<AnyJob>) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Work<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.join(Box::new(Asked { work, outcome: None, answer }), line)?;
        answered.await.map_err(|_| StoreError::Unavailable("the store was closed meanwhile".into()))?
    }

    fn join(&self, job: AnyJob, line: fn(&Lines) -> &SyncSender<AnyJob>) -> Result<(), StoreError> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines.as_ref().ok_or_else(|| StoreError::Unavailable("the store is closed".into()))?;
        line(lines).try_send(job).map_err(|refused| match refused {
            TrySendError::Full(_) => StoreError::Unavailable("too much is waiting to be written".into()),
            TrySendError::Disconnected(_) => StoreError::Unavailable("the store is closed".into()),
        })?;
        // One that was rung already and not heard yet will do.
        let _ = lines.bell.try_send(());
        Ok(())
    }

    /// Finishes what is waiting, tidies the log and ends the thread.
    pub fn close(&self) {
        drop(self.lines.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.finished.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the writer has already answered its callers with an error.
            let _ = thread.join();
        }
    }
}

fn cannot_start(error: std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("cannot start a thread of the store: {error}"))
}

fn write_in_groups(connection: &Connection, mut waiting: Waiting, written: &SyncSender<()>, log: &Log) {
    let mut fairness = Fairness::default();
    while let Some(first) = waiting.next().or_else(|| waiting.first()) {
        let mut jobs = vec![first];
        let ended = match write_together(connection, &mut fairness, &mut jobs, &mut waiting) {
            Ending::Known(ended) => ended,
            Ending::OneFailed => write_apart(connection, &mut fairness, &mut jobs),
        };
        if matches!(ended, Err(StoreError::Full(_))) || jobs.iter().any(|job| job.found_no_room()) {
            // The log has room as well, once it begins anew, and whoever asks again should find it. It is not given
            // back to the disk: if somebody else fills that, it is all the room there is for results.
            checkpoint_soon(connection, "RESTART", log);
        }
        for job in jobs {
            job.answer(ended.clone());
        }
        // A checkpointer that has not heard of the last one yet hears of both, and without a file there is none.
        let _ = written.try_send(());
        if log.pages.load(Ordering::Relaxed) > LOG_PAGES_MAX {
            checkpoint(connection, "RESTART", log);
        }
    }
    // Every handle is gone: leave a tidy file behind.
    checkpoint(connection, "TRUNCATE", log);
}

/// How a transaction over a group ended.
enum Ending {
    Known(Result<(), StoreError>),
    /// Nothing was kept, for one piece of work failed.
    OneFailed,
}

/// One transaction over all that waits; adds it to the jobs.
fn write_together(
    connection: &Connection,
    fairness: &mut Fairness,
    jobs: &mut Vec<AnyJob>,
    waiting: &mut Waiting,
) -> Ending {
    let mut transaction = match Transaction::begin(connection, fairness) {
        Ok(transaction) => transaction,
        Err(error) => return Ending::Known(Err(error)),
    };
    let mut next = 0;
    while let Some(job) = jobs.get_mut(next) {
        let is_done = job.run(&mut transaction.work());
        if transaction.was_ended() {
            return Ending::Known(Err(no_room()));
        }
        if !is_done {
            return Ending::OneFailed;
        }
        next += 1;
        if jobs.len() < GROUP_MAX {
            jobs.extend(waiting.next());
        }
    }
    Ending::Known(transaction.commit())
}

/// One transaction over these, with a savepoint around each: what fails is undone alone.
fn write_apart(
    connection: &Connection,
    fairness: &mut Fairness,
    jobs: &mut [AnyJob],
) -> Result<(), StoreError> {
    let mut transaction = Transaction::begin(connection, fairness)?;
    for job in jobs {
        let (counts, sent) = (transaction.counts, transaction.sent.len());
        transaction.fairness.begin();
        transaction.run("SAVEPOINT work")?;
        let is_done = job.run(&mut transaction.work());
        // SQLite may end the whole transaction by itself (a full disk, a failing one). Whatever ran after that
        // would be committed on its own while its caller is told that nothing was stored.
        if transaction.was_ended() {
            return Err(no_room());
        }
        if is_done {
            transaction.fairness.keep();
        } else {
            transaction.counts = counts;
            transaction.sent.forget_after(sent);
            transaction.fairness.undo();
            transaction.run("ROLLBACK TO work")?;
        }
        transaction.run("RELEASE work")?;
    }
    transaction.commit()
}

/// A transaction of the writer's and what is written once at its end. One that is not committed is rolled back.
struct Transaction<'c> {
    connection: &'c Connection,
    counts: Counts,
    sent: SentNotes,
    fairness: &'c mut Fairness,
}

impl<'c> Transaction<'c> {
    fn begin(connection: &'c Connection, fairness: &'c mut Fairness) -> Result<Self, StoreError> {
        fairness.begin();
        let transaction =
            Self { connection, counts: Counts::default(), sent: SentNotes::default(), fairness };
        transaction.run("BEGIN IMMEDIATE")?;
        Ok(transaction)
    }

    fn work(&mut self) -> Work<'_> {
        Work {
            connection: self.connection,
            counts: &mut self.counts,
            sent: &mut self.sent,
            fairness: self.fairness,
        }
    }

    fn was_ended(&self) -> bool {
        self.connection.is_autocommit()
    }

    fn run(&self, sql: &str) -> Result<(), StoreError> {
        let ran = self.connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        ran.map(|_| ()).map_err(from_sqlite)
    }

    fn commit(mut self) -> Result<(), StoreError> {
        self.counts
            .flush(self.connection)
            .and_then(|()| self.sent.flush(self.connection))
            .map_err(from_sqlite)
            .and_then(|()| self.run("COMMIT"))?;
        self.fairness.keep();
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // Nothing is left of it after a commit.
        while self.fairness.undo() {}
        if !self.was_ended() {
            // Nothing else can be done if this fails: the next BEGIN will say so.
            let _ = self.run("ROLLBACK");
        }
    }
}

fn no_room() -> StoreError {
    StoreError::Full("the database ended the transaction by itself, most likely for want of room".to_owned())
}

/// What is known of the log.
#[derive(Default)]
struct Log {
    /// How long it was, if it could not be moved as a whole.
    pages: AtomicI64,
    /// The last checkpoint failed.
    is_stuck: AtomicBool,
}

/// Moves what is in the log into the database beside the writer, so that a commit seldom has to, and looks after the
/// room on the disk. It ends with the writer; while nothing is written it only looks.
fn start_checkpointer(
    connection: Connection,
    news: Receiver<()>,
    log: Arc<Log>,
    room: Arc<Room>,
) -> Result<(), StoreError> {
    let look = move |connection: &Connection, log: &Log| {
        room.look(connection, || checkpoint_soon(connection, "TRUNCATE", log));
    };
    look(&connection, &log);
    let run = move || {
        loop {
            match news.recv_timeout(room::LOOK_EVERY) {
                Ok(()) => {
                    thread::sleep(CHECKPOINT_EVERY);
                    checkpoint(&connection, "PASSIVE", &log);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            look(&connection, &log);
        }
    };
    thread::Builder::new().name("sqlite-checkpoint".into()).spawn(run).map_err(cannot_start)?;
    Ok(())
}

/// Lets the log begin anew, or gives it back to the disk. Another checkpoint may be in the way, which SQLite, unlike for
/// readers, does not wait for.
fn checkpoint_soon(connection: &Connection, mode: &str, log: &Log) {
    let until = Instant::now() + CHECKPOINT_WITHIN;
    while !checkpoint(connection, mode, log) && Instant::now() < until {
        thread::sleep(CHECKPOINT_PAUSE);
    }
}

/// `false` when it was hindered or failed. It is tried again by the next one; the log just stays longer until then.
fn checkpoint(connection: &Connection, mode: &str, log: &Log) -> bool {
    let read =
        |row: &rusqlite::Row<'_>| Ok((row.get::<_, bool>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
    let outcome = connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], read);
    let was_stuck = log.is_stuck.swap(outcome.is_err(), Ordering::Relaxed);
    match outcome {
        Ok((is_hindered, in_log, moved)) => {
            let is_rest = mode == "PASSIVE" && in_log > moved;
            log.pages.store(if is_rest { in_log } else { 0 }, Ordering::Relaxed);
            !is_hindered
        }
        Err(error) => {
            // Said once: without room on the disk the next ones fail alike, many times per second.
            if !was_stuck {
                tracing::warn!(%error, mode, "a checkpoint of the database failed; it will be tried again");
            }
            false
        }
    }
}

#[cfg(test)]
mod tests;
