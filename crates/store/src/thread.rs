//! A thread of its own for the statements that many wait for. On the threads that serve requests such work stands in line
//! behind all requests of the moment, and the database has nothing to do meanwhile.

use std::convert::Infallible;
use std::future::Future;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::StoreError;

/// It lives as long as anybody holds it, and tasks that run on it hold it themselves.
#[derive(Clone)]
pub struct HotThread {
    runtime: Handle,
    held: mpsc::Sender<Infallible>,
}

impl HotThread {
    pub fn start() -> Result<Self, StoreError> {
        let cannot =
            |error: std::io::Error| StoreError::Unavailable(format!("cannot start a thread: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let (held, mut holders) = mpsc::channel(1);
        let thread = Self { runtime: runtime.handle().clone(), held };
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || runtime.block_on(holders.recv()))
            .map_err(cannot)?;
        Ok(thread)
    }

    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        let held = self.held.clone();
        self.runtime.spawn(async move {
            let done = work.await;
            drop(held);
            done
        })
    }

    /// The thread of a test, which goes on as long as the test does.
    #[cfg(test)]
    pub fn of_test() -> Self {
        Self { runtime: Handle::current(), held: mpsc::channel(1).0 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_is_done_on_it_while_the_caller_is_busy() {
        let thread = HotThread::start().expect("a thread");
        let (ask, asked) = oneshot::channel();
        let work = thread.spawn(async {
            asked.await.expect("a question");
            std::thread::current().name().map(str::to_owned)
        });
        ask.send(()).expect("it waits");
        // Nothing else runs on the caller's thread here.
        while !work.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(work.await.expect("no panic").as_deref(), Some("store"));
    }

    #[tokio::test]
    async fn it_lives_until_its_work_is_done_and_no_longer() {
        let thread = HotThread::start().expect("a thread");
        let (go_on, wait) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let gone = {
            let held = thread.held.downgrade();
            move || held.upgrade().is_none()
        };
        let work = thread.spawn(async move {
            wait.await.expect("the word");
            done.send(()).expect("somebody waits");
        });
        drop(thread);
        assert!(!gone(), "its work goes on");
        go_on.send(()).expect("it waits");
        is_done.await.expect("it is done");
        work.await.expect("no panic");
        assert!(gone());
    }
}
