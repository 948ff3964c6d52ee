//! The one thread that writes. Whatever is waiting when it looks is done in one transaction and answered after
//! its commit, so that a hundred concurrent requests share one sync to disk and none is answered before it.
//!
//! Each piece of work has a savepoint of its own: one that fails, or panics, is undone alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use store::StoreError;
use tokio::sync::oneshot;

use crate::counts::Counts;
use crate::error::from_sqlite;
use crate::schema;
use crate::tallies::SentNotes;

/// How many pieces of work may wait; past this the store says that it is busy.
const WAITING_MAX: usize = 8_192;
/// How many share one commit: more gains nothing and makes the first wait for the last.
const GROUP_MAX: usize = 512;
/// How often the checkpointer looks whether there is something to move out of the log.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(500);
/// A log of this many pages is worth stopping the writer for: readers and a steady stream of writes can keep
/// the checkpointer from ever starting it anew.
const LOG_PAGES_MAX: i64 = 32 * 1024;

/// What a piece of work sees: the connection inside the transaction, and the counts it must keep.
pub struct Work<'a> {
    pub connection: &'a Connection,
    pub counts: &'a mut Counts,
    pub sent: &'a mut SentNotes,
}

/// Given how the transaction ended, tells the caller.
type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Without a transaction to work in (`None`) nothing is done and the answer is the transaction's error.
type Job = Box<dyn FnOnce(Option<&mut Work<'_>>) -> Answer + Send>;

/// The handle by which work is handed to the thread.
#[derive(Clone)]
pub struct Writer {
    jobs: Arc<Mutex<Option<SyncSender<Job>>>>,
    finished: Arc<Mutex<Option<thread::JoinHandle<()>>>>,
}

impl Writer {
    pub fn start(connection: Connection, file: Option<&Path>) -> Result<Self, StoreError> {
        let (jobs, waiting) = sync_channel(WAITING_MAX);
        let log_pages = Arc::new(AtomicI64::new(0));
        if let Some(file) = file {
            start_checkpointer(schema::connect(file)?, Arc::downgrade(&log_pages))?;
        }
        let thread = thread::Builder::new()
            .name("sqlite-writer".into())
            .spawn(move || write_in_groups(&connection, &waiting, &log_pages))
            .map_err(cannot_start)?;
        Ok(Self { jobs: Arc::new(Mutex::new(Some(jobs))), finished: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Does `work` in a transaction and returns what it gave back, after the commit. A caller that stops
    /// waiting changes nothing: the work is done as a whole or not at all.
    pub async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Work<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |context| {
            let outcome = context.map(|context| in_savepoint(context, work));
            Box::new(move |ended| {
                let outcome = match (ended, outcome) {
                    (Ok(()), Some(outcome)) => outcome,
                    (Ok(()), None) => Err(StoreError::Unavailable("the transaction ended early".into())),
                    (Err(error), _) => Err(error),
                };
                // The caller may have gone; what was committed stays committed.
                let _ = answer.send(outcome);
            })
        });
        self.hand_over(job)?;
        answered.await.map_err(|_| StoreError::Unavailable("the store was closed meanwhile".into()))?
    }

    fn hand_over(&self, job: Job) -> Result<(), StoreError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let jobs = jobs.as_ref().ok_or_else(|| StoreError::Unavailable("the store is closed".into()))?;
        jobs.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(_) => StoreError::Unavailable("too much is waiting to be written".into()),
            TrySendError::Disconnected(_) => StoreError::Unavailable("the store is closed".into()),
        })
    }

    /// Finishes what is waiting, tidies the log and ends the thread.
    pub fn close(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
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

fn in_savepoint<T>(
    context: &mut Work<'_>,
    work: impl FnOnce(&mut Work<'_>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let connection = context.connection;
    let run = |sql: &str| connection.prepare_cached(sql)?.execute([]).map(|_| ());
    let (counts_before, sent_before) = (*context.counts, context.sent.len());
    run("SAVEPOINT work").map_err(from_sqlite)?;
    let outcome = catch_unwind(AssertUnwindSafe(|| work(context)))
        .unwrap_or_else(|_| Err(StoreError::Broken("a write panicked and was undone".into())));
    if outcome.is_err() {
        *context.counts = counts_before;
        context.sent.forget_after(sent_before);
        run("ROLLBACK TO work").map_err(from_sqlite)?;
    }
    run("RELEASE work").map_err(from_sqlite)?;
    outcome
}

fn write_in_groups(connection: &Connection, waiting: &Receiver<Job>, log_pages: &AtomicI64) {
    while let Ok(first) = waiting.recv() {
        let (answers, ended) = write_group(connection, first, waiting);
        for answer in answers {
            answer(ended.clone());
        }
        if log_pages.load(Ordering::Relaxed) > LOG_PAGES_MAX {
            checkpoint(connection, "RESTART", log_pages);
        }
    }
    // Every handle is gone: leave a tidy file behind.
    checkpoint(connection, "TRUNCATE", log_pages);
}

/// One transaction over all that waits, and the answers to give now that it is known how it ended.
fn write_group(
    connection: &Connection,
    first: Job,
    waiting: &Receiver<Job>,
) -> (Vec<Answer>, Result<(), StoreError>) {
    let (mut counts, mut sent) = (Counts::default(), SentNotes::default());
    let begun = connection.execute_batch("BEGIN IMMEDIATE");
    let mut answers = Vec::new();
    let mut next = Some(first);
    while let Some(job) = next {
        // SQLite may end the whole transaction by itself (a full disk, a failing one). Whatever ran after that
        // would be committed on its own while its caller is told that nothing was stored.
        let open = begun.is_ok() && !connection.is_autocommit();
        answers.push(job(open.then_some(&mut Work { connection, counts: &mut counts, sent: &mut sent })));
        next = if answers.len() < GROUP_MAX { waiting.try_recv().ok() } else { None };
    }
    if begun.is_ok() && connection.is_autocommit() {
        let full = "the database ended the transaction by itself, most likely for want of room".to_owned();
        return (answers, Err(StoreError::Full(full)));
    }
    let ended = begun
        .and_then(|()| counts.flush(connection))
        .and_then(|()| sent.flush(connection))
        .and_then(|()| connection.execute_batch("COMMIT"));
    if ended.is_err() && !connection.is_autocommit() {
        // Nothing else can be done if this fails too: the next BEGIN will say so.
        let _ = connection.execute_batch("ROLLBACK");
    }
    (answers, ended.map_err(from_sqlite))
}

/// Moves what is in the log into the database beside the writer, so that a commit seldom has to.
fn start_checkpointer(connection: Connection, log_pages: Weak<AtomicI64>) -> Result<(), StoreError> {
    let run = move || {
        while let Some(log_pages) = log_pages.upgrade() {
            checkpoint(&connection, "PASSIVE", &log_pages);
            drop(log_pages);
            thread::sleep(CHECKPOINT_EVERY);
        }
    };
    thread::Builder::new().name("sqlite-checkpoint".into()).spawn(run).map_err(cannot_start)?;
    Ok(())
}

/// A checkpoint that fails is tried again by the next one; the log just stays longer until then.
fn checkpoint(connection: &Connection, mode: &str, log_pages: &AtomicI64) {
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
    match connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], read) {
        Ok((in_log, moved)) if mode == "PASSIVE" && in_log > moved => {
            log_pages.store(in_log, Ordering::Relaxed)
        }
        Ok(_) => log_pages.store(0, Ordering::Relaxed),
        Err(error) => {
            tracing::warn!(%error, mode, "a checkpoint of the database failed; it will be tried again")
        }
    }
}

#[cfg(test)]
mod tests;
