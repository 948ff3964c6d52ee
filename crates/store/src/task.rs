//! Work of a store on a server: it runs on a task of its own, so that a caller who stops waiting cannot leave it half
//! done, and may be tried more than once.
//!
//! Tasks and tries are the same types for all verbs: a type per verb made a third of what the compiler wrote for a store.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::oneshot;

use crate::StoreError;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What the work came to. A panic in it is an error of this caller alone.
pub async fn on_its_own<T: Send + 'static>(work: Boxed<Result<T, StoreError>>) -> Result<T, StoreError> {
    let (done, outcome) = oneshot::channel();
    let task: Boxed<()> = Box::pin(async move {
        // The caller may have gone; what was written stays written.
        let _ = done.send(work.await);
    });
    tokio::spawn(task);
    outcome.await.map_err(|_| StoreError::Broken("a write panicked and was undone".into()))?
}

/// Work under way on a connection.
pub type Step<'c, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>;
/// Work on a connection and what it works on.
pub type Work<C, Q, T, E> = for<'a> fn(&'a mut C, &'a Q) -> Step<'a, T, E>;

/// Work with its types hidden.
pub trait Attempt<C, E>: Send {
    fn once<'a>(&'a mut self, connection: &'a mut C) -> Step<'a, (), E>;
}

/// Work, and what it came to once it is done.
pub struct Asked<'q, C, Q: ?Sized, T, E> {
    on: &'q Q,
    work: Work<C, Q, T, E>,
    done: Option<T>,
}

impl<'q, C, Q: ?Sized, T, E> Asked<'q, C, Q, T, E> {
    pub fn new(on: &'q Q, work: Work<C, Q, T, E>) -> Self {
        Self { on, work, done: None }
    }

    pub fn done(self) -> Result<T, StoreError> {
        self.done.ok_or_else(|| StoreError::Broken("work was not done".into()))
    }
}

impl<C: Send, Q: ?Sized + Sync, T: Send, E> Attempt<C, E> for Asked<'_, C, Q, T, E> {
    fn once<'a>(&'a mut self, connection: &'a mut C) -> Step<'a, (), E> {
        Box::pin(async move {
            self.done = Some((self.work)(connection, self.on).await?);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_caller_who_goes_leaves_nothing_half_done() {
        let (goes_on, done) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (wait, set) = (Arc::clone(&goes_on), Arc::clone(&done));
        let work = on_its_own(Box::pin(async move {
            wait.notified().await;
            set.store(true, Ordering::SeqCst);
            wait.notify_one();
            Ok(())
        }));
        let caller = tokio::spawn(work);
        tokio::task::yield_now().await;
        caller.abort();
        assert!(caller.await.expect_err("it was cancelled").is_cancelled());
        goes_on.notify_one();
        while !done.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let outcome = on_its_own::<()>(Box::pin(async { panic!("on purpose") })).await;
        assert!(matches!(outcome, Err(StoreError::Broken(_))), "{outcome:?}");
    }
}
