//! The connections to one server: never more than its limit, idle ones closed after a while. A connection belongs to
//! whoever took it and comes back only when it is known to be good; one that is dropped on the way is closed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lettre::transport::smtp::client::AsyncSmtpConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

/// A server gets this long to say goodbye.
const QUIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection and what there is to know about it.
pub struct Connection {
    pub smtp: AsyncSmtpConnection,
    /// A refused transaction is still open and has to be reset before the next one.
    pub is_unfinished: bool,
    messages: u32,
}

pub struct Pool {
    slots: Arc<Semaphore>,
    idle: Arc<Mutex<Idle>>,
    messages_per_connection_max: u32,
    idle_max: Duration,
}

#[derive(Default)]
struct Idle {
    /// The one used last is at the end, and taken first, so that the others grow old and go.
    connections: Vec<(Connection, Instant)>,
    is_swept: bool,
}

impl Connection {
    pub fn new(smtp: AsyncSmtpConnection) -> Self {
        Self { smtp, is_unfinished: false, messages: 0 }
    }
}

impl Pool {
    pub fn new(connections_max: usize, messages_per_connection_max: u32, idle_max: Duration) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(connections_max)),
            idle: Arc::default(),
            messages_per_connection_max,
            idle_max,
        }
    }

    /// Waits for the right to use a connection, in turn; it is given up when dropped.
    pub async fn slot(&self) -> OwnedSemaphorePermit {
        let slots = Arc::clone(&self.slots);
        slots.acquire_owned().await.expect("the semaphore is never closed")
    }

    pub fn take_idle(&self) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        close(idle.overdue(self.idle_max));
        idle.connections.pop().map(|(connection, _)| connection)
    }

    /// Takes a connection back after a message, while its slot is still held.
    pub fn give_back(&self, mut connection: Connection) {
        connection.messages += 1;
        if connection.messages >= self.messages_per_connection_max || connection.smtp.has_broken() {
            return close(vec![connection]);
        }
        let mut idle = lock(&self.idle);
        idle.connections.push((connection, Instant::now()));
        if !idle.is_swept {
            idle.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(&self.idle), self.idle_max));
        }
    }
}

impl Idle {
    fn overdue(&mut self, idle_max: Duration) -> Vec<Connection> {
        let now = Instant::now();
        let kept = self.connections.iter().position(|(_, since)| now < *since + idle_max);
        let kept = kept.unwrap_or(self.connections.len());
        self.connections.drain(..kept).map(|(connection, _)| connection).collect()
    }
}

/// Closes idle connections when they are due, until there are none or the pool is gone.
async fn sweep(idle: Weak<Mutex<Idle>>, idle_max: Duration) {
    loop {
        let due = {
            let Some(idle) = idle.upgrade() else { return };
            let mut idle = lock(&idle);
            close(idle.overdue(idle_max));
            match idle.connections.first() {
                Some((_, since)) => *since + idle_max,
                None => {
                    idle.is_swept = false;
                    return;
                }
            }
        };
        sleep_until(due).await;
    }
}

/// Says goodbye behind the caller's back, in bounded time.
fn close(connections: Vec<Connection>) {
    for mut connection in connections {
        tokio::spawn(async move { timeout(QUIT_TIMEOUT, connection.smtp.abort()).await });
    }
}

/// A panic elsewhere leaves the list as it was: every change to it is a single step.
fn lock(idle: &Mutex<Idle>) -> MutexGuard<'_, Idle> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}
