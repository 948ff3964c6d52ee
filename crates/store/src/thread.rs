//! A thread of its own for the statements that many wait for. On the threads that serve requests such work stands in line
//! behind all requests of the moment, and the database has nothing to do meanwhile.

use std::convert::Infallible;
use std::future::Future;
use std::io;

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
        let cannot = |error: io::Error| StoreError::Unavailable(format!("cannot start a thread: {error}"));
        let (held, mut holders) = mpsc::channel(1);
        // Made on the thread where it is used: elsewhere it could not even be dropped.
        let (made, runtime) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let is_wanted = made.send(Ok(runtime.handle().clone())).is_ok();
                    if is_wanted {
                        runtime.block_on(holders.recv());
                    }
                }
                Err(error) => drop(made.send(Err(error))),
            })
            .map_err(cannot)?;
        let gone = |_| io::Error::other("it ended at once");
        let runtime = runtime.recv().map_err(gone).flatten().map_err(cannot)?;
        Ok(Self { runtime, held })
    }

    /// The threads of the caller's runtime, for tests that decide what comes together.
    pub fn of_caller() -> Self {
        Self { runtime: Handle::current(), held: mpsc::channel(1).0 }
    }

    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        let held = self.held.clone();
        self.runtime.spawn(async move {
            let done = work.await;
            drop(held);
            done
        })
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

    /// Tells when the runtime that holds it is gone.
    struct Told(Option<oneshot::Sender<()>>);

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.take().expect("dropped once").send(());
        }
    }

    #[tokio::test]
    async fn it_lives_until_its_work_is_done_and_no_longer() {
        let thread = HotThread::start().expect("a thread");
        let (gone, mut is_gone) = oneshot::channel();
        let told = Told(Some(gone));
        // Held by nobody, so that it ends with the thread.
        thread.runtime.spawn(async move {
            let _told = told;
            std::future::pending::<()>().await;
        });
        let (go_on, wait) = oneshot::channel::<()>();
        let work = thread.spawn(wait);
        drop(thread);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(is_gone.try_recv().is_err(), "its work goes on");
        go_on.send(()).expect("it waits");
        work.await.expect("no panic").expect("the word");
        let ended = tokio::time::timeout(Duration::from_secs(30), is_gone).await;
        ended.expect("the thread ends").expect("it was told");
    }
}
