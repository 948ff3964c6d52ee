//! Telling other processes that emails have become due, and hearing it from them, through LISTEN and NOTIFY.
//!
//! A NOTIFY makes its transaction take a lock that the whole database shares while it commits. So it is sent after the
//! commit and on its own, and what is due within a few milliseconds shares one.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use store::StoreError;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::config::{ACQUIRE_TIMEOUT, CONNECT_TIMEOUT, Session};
use crate::error::from_sqlx;
use crate::lane::{connect, no_answer};

const CHANNEL: &str = "posthaste_due";
/// At most one NOTIFY per process in this time.
const NOTIFY_EVERY: Duration = Duration::from_millis(10);
/// How long to wait before the listener tries to connect again. Workers look by themselves meanwhile.
const RECONNECT_EVERY: Duration = Duration::from_secs(1);

pub struct Wake {
    session: Session,
    /// Holds one permit: what is reported while a NOTIFY is under way is sent by the next.
    made_due: Arc<Notify>,
    /// Holds one permit: a notification that comes while nobody waits is not missed.
    heard: OnceLock<Arc<Notify>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Wake {
    pub fn start(session: Session) -> Self {
        let made_due = Arc::new(Notify::new());
        let notifier = tokio::spawn(notify_others(session.clone(), Arc::clone(&made_due)));
        Self { session, made_due, heard: OnceLock::new(), tasks: Mutex::new(vec![notifier]) }
    }

    /// Something is due now. Costs the caller nothing.
    pub fn made_due(&self) {
        self.made_due.notify_one();
    }

    /// Returns when a notification has come since the last time this returned.
    pub async fn arrival(&self) {
        let heard = self.heard.get_or_init(|| {
            let heard = Arc::new(Notify::new());
            let listener = tokio::spawn(listen(self.session.options.clone(), Arc::clone(&heard)));
            self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
            heard
        });
        heard.notified().await;
    }

    pub fn close(&self) {
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        self.close();
    }
}

/// On a connection of its own, whose commits do not wait for the disk: nothing is lost with a notification.
async fn notify_others(session: Session, made_due: Arc<Notify>) {
    let session = session.with("synchronous_commit", "off");
    let mut connection = None;
    loop {
        made_due.notified().await;
        // One that was idle may have been lost.
        let is_told = connection.is_some() && notify(&session, &mut connection).await.is_ok();
        if !is_told && let Err(error) = notify(&session, &mut connection).await {
            tracing::debug!(%error, "other processes could not be told that emails are due; they look by themselves");
        }
        tokio::time::sleep(NOTIFY_EVERY).await;
    }
}

/// Keeps a connection that works, and none that failed.
async fn notify(session: &Session, kept: &mut Option<PgConnection>) -> Result<(), StoreError> {
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => connect(session).await?,
    };
    let notified = sqlx::query("NOTIFY posthaste_due").execute(&mut connection);
    timeout(CONNECT_TIMEOUT, notified).await.map_err(|_| no_answer())?.map_err(from_sqlx)?;
    *kept = Some(connection);
    Ok(())
}

/// Listens on a connection of its own, so that it takes none from the pool.
async fn listen(options: PgConnectOptions, heard: Arc<Notify>) {
    loop {
        if let Err(error) = listen_once(&options, &heard).await {
            tracing::debug!(%error, "the connection that hears of due emails was lost; it is made again");
        }
        tokio::time::sleep(RECONNECT_EVERY).await;
    }
}

async fn listen_once(options: &PgConnectOptions, heard: &Notify) -> Result<(), sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    // What was told before this was not heard.
    heard.notify_one();
    loop {
        let notification = listener.try_recv().await?;
        // Without a notification the connection was lost, and one may have been missed.
        heard.notify_one();
        if notification.is_none() {
            return Ok(());
        }
    }
}
