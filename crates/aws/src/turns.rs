//! Looking for something together: one looks at a time, and those who waited meanwhile share how it ended. Were each to
//! look again in turn, the last of them would run out of time, and tell of that instead of what is wrong.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Mutex, MutexGuard};

use crate::failure::Failure;

#[derive(Debug, Default)]
pub struct Turns {
    /// Why the last search found nothing.
    failure: Mutex<Option<Failure>>,
    /// How often somebody looked, to the end.
    searches: AtomicU64,
}

/// The right to look.
pub struct Turn<'x> {
    failure: MutexGuard<'x, Option<Failure>>,
    searches: &'x AtomicU64,
    /// Whether somebody looked while this call waited.
    is_after_another: bool,
}

impl Turns {
    pub async fn wait(&self) -> Turn<'_> {
        let searches = self.searches.load(Ordering::SeqCst);
        let failure = self.failure.lock().await;
        let is_after_another = self.searches.load(Ordering::SeqCst) != searches;
        Turn { failure, searches: &self.searches, is_after_another }
    }

    /// None while somebody looks.
    pub fn try_take(&self) -> Option<Turn<'_>> {
        let failure = self.failure.try_lock().ok()?;
        Some(Turn { failure, searches: &self.searches, is_after_another: false })
    }
}

impl Turn<'_> {
    /// Why the one who looked meanwhile found nothing.
    pub fn shared(&self) -> Option<Failure> {
        self.failure.clone().filter(|_| self.is_after_another)
    }

    pub fn end<T>(mut self, found: Result<T, Failure>) -> Result<T, Failure> {
        *self.failure = found.as_ref().err().cloned();
        self.searches.fetch_add(1, Ordering::SeqCst);
        found
    }
}
