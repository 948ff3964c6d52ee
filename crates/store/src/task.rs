//! Work of a store on a server: it runs on a task of its own, so that a caller who stops waiting cannot leave it half
//! done, and may be tried more than once.
//!
//! Tasks and tries are the same types for all verbs: a type per verb made a third of what the compiler wrote for a store.

use std::future::Future;
use std::pin::Pin;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::StoreError;

pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

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

/// What becomes of work that nobody takes.
pub type Unwanted<T> = Box<dyn FnOnce(T) -> Boxed<()> + Send>;

/// What the work came to, for a caller that may go away. What it does not take is given to `unwanted`, also when the caller
/// goes just after the work was done: a message that was sent is not yet one that was read.
pub async fn handed_over<T: Send + 'static>(
    work: Boxed<Result<T, StoreError>>,
    unwanted: Unwanted<T>,
) -> Result<T, StoreError> {
    let runtime = Handle::current();
    let parcel = on_its_own(Box::pin(async move {
        let made = work.await?;
        Ok(Parcel { inside: Some((made, unwanted)), runtime })
    }));
    parcel.await?.open()
}

/// Work on its way to the caller. Whoever drops it unopened, the caller or the channel, sees to what is inside.
struct Parcel<T: Send + 'static> {
    inside: Option<(T, Unwanted<T>)>,
    runtime: Handle,
}

impl<T: Send + 'static> Parcel<T> {
    fn open(mut self) -> Result<T, StoreError> {
        let opened_once = || StoreError::Broken("work was handed over twice".into());
        self.inside.take().map(|(made, _)| made).ok_or_else(opened_once)
    }
}

impl<T: Send + 'static> Drop for Parcel<T> {
    fn drop(&mut self) {
        if let Some((made, unwanted)) = self.inside.take() {
            self.runtime.spawn(unwanted(made));
        }
    }
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
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Poll;

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

    /// The caller goes before the work is done, and after it is done and before it was taken.
    #[tokio::test]
    async fn what_is_not_taken_is_seen_to() {
        for is_done_before in [false, true] {
            let (seen_to, seen) = oneshot::channel();
            let unwanted: Unwanted<u32> = Box::new(move |made| {
                Box::pin(async move {
                    let _ = seen_to.send(made);
                })
            });
            let (goes_on, wait) = oneshot::channel::<()>();
            let (is_done, done) = oneshot::channel::<()>();
            let work = handed_over(
                Box::pin(async move {
                    let _ = wait.await;
                    let _ = is_done.send(());
                    Ok(7)
                }),
                unwanted,
            );
            let mut work = Box::pin(work);
            let is_pending = poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_pending())).await;
            assert!(is_pending);
            if is_done_before {
                goes_on.send(()).expect("it waits");
                done.await.expect("it is done");
                tokio::task::yield_now().await;
                drop(work);
            } else {
                drop(work);
                goes_on.send(()).expect("it waits");
            }
            assert_eq!(seen.await, Ok(7), "done before the caller went: {is_done_before}");
        }
    }

    #[tokio::test]
    async fn what_is_taken_is_the_callers() {
        let unwanted: Unwanted<u32> = Box::new(|_| panic!("it was taken"));
        assert_eq!(handed_over(Box::pin(async { Ok(7) }), unwanted).await, Ok(7));
    }

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let outcome = on_its_own::<()>(Box::pin(async { panic!("on purpose") })).await;
        assert!(matches!(outcome, Err(StoreError::Broken(_))), "{outcome:?}");
    }
}
