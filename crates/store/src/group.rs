//! Group commit for stores that speak to a server: what is waiting when a lane is free is done together, in one
//! transaction, and answered after its commit. So a hundred concurrent callers share a few statements and one sync,
//! and nobody waits for a timer: a lone caller is served at once.
//!
//! Lanes are tasks of their own: a caller that stops waiting cancels nothing half-way.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::StoreError;

/// How much is done at once and how much may wait; each has its reason where the group is made.
#[derive(Debug, Clone, Copy)]
pub struct GroupSize {
    /// How many groups are under way at the same time.
    pub lanes: usize,
    /// How many callers share a group at most.
    pub group_max: usize,
    /// How many may wait; past this the store says that it is busy.
    pub waiting_max: usize,
}

/// Questions of one kind, answered together.
pub struct Group<Q, A> {
    waiting: Mutex<Option<mpsc::Sender<Asked<Q, A>>>>,
    lanes: AsyncMutex<Vec<JoinHandle<()>>>,
}

struct Asked<Q, A> {
    question: Q,
    answer: oneshot::Sender<Result<A, StoreError>>,
}

/// The answers to a group, in the order of its questions.
pub type Answers<A> = Pin<Box<dyn Future<Output = Vec<Result<A, StoreError>>> + Send>>;

impl<Q: Send + 'static, A: Send + 'static> Group<Q, A> {
    /// `work` answers a whole group; it must give as many answers as there are questions.
    pub fn start(size: GroupSize, work: impl Fn(Vec<Q>) -> Answers<A> + Send + Sync + 'static) -> Self {
        let (waiting, questions) = mpsc::channel(size.waiting_max);
        let questions = Arc::new(AsyncMutex::new(questions));
        let work = Arc::new(work);
        let lanes = (0..size.lanes)
            .map(|_| {
                let (questions, work) = (Arc::clone(&questions), Arc::clone(&work));
                tokio::spawn(async move {
                    while let Some(group) = next_group(&questions, size.group_max).await {
                        answer(group, &*work).await;
                    }
                })
            })
            .collect();
        Self { waiting: Mutex::new(Some(waiting)), lanes: AsyncMutex::new(lanes) }
    }

    pub async fn ask(&self, question: Q) -> Result<A, StoreError> {
        let (answer, answered) = oneshot::channel();
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let waiting = waiting.ok_or_else(closed)?;
        waiting.try_send(Asked { question, answer }).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => {
                StoreError::Unavailable("too much is waiting to be written".into())
            }
            mpsc::error::TrySendError::Closed(_) => closed(),
        })?;
        drop(waiting);
        answered.await.map_err(|_| StoreError::Broken("a write panicked and was undone".into()))?
    }

    /// Finishes what is waiting and ends the lanes.
    pub async fn close(&self) {
        drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take());
        for lane in self.lanes.lock().await.drain(..) {
            // A lane that panicked has ended as well.
            let _ = lane.await;
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

/// All that waits, once something does. `None` when nobody can ask any more.
async fn next_group<Q, A>(
    questions: &AsyncMutex<mpsc::Receiver<Asked<Q, A>>>,
    group_max: usize,
) -> Option<Vec<Asked<Q, A>>> {
    // The lane that holds this lock is the next one to be served; the others are at work or stand in line behind it.
    let mut questions = questions.lock().await;
    let mut group = vec![questions.recv().await?];
    // A lane is woken by the first who asks, before the others of the same moment have had their turn: they come along.
    tokio::task::yield_now().await;
    while group.len() < group_max
        && let Ok(asked) = questions.try_recv()
    {
        group.push(asked);
    }
    Some(group)
}

/// A panic in `work` ends as an error for this group's callers and nobody else.
async fn answer<Q: Send + 'static, A: Send + 'static>(
    group: Vec<Asked<Q, A>>,
    work: &(impl Fn(Vec<Q>) -> Answers<A> + Send + Sync + 'static),
) {
    let (questions, callers): (Vec<_>, Vec<_>) =
        group.into_iter().map(|asked| (asked.question, asked.answer)).unzip();
    let Ok(answers) = tokio::spawn(work(questions)).await else { return };
    for (caller, answer) in callers.into_iter().zip(answers) {
        // The caller may have gone; what was committed stays committed.
        let _ = caller.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: GroupSize = GroupSize { lanes: 1, group_max: 4, waiting_max: 8 };

    fn doubling() -> Group<u32, (u32, usize)> {
        Group::start(SIZE, |questions| {
            Box::pin(async move {
                let together = questions.len();
                tokio::task::yield_now().await;
                assert!(!questions.contains(&13), "a question that breaks the work");
                questions.into_iter().map(|question| Ok((question * 2, together))).collect()
            })
        })
    }

    #[tokio::test]
    async fn callers_share_a_group_and_each_gets_its_own_answer() {
        let group = doubling();
        let (one, two, three, four, five) =
            tokio::join!(group.ask(1), group.ask(2), group.ask(3), group.ask(4), group.ask(5));
        let answers: Vec<(u32, usize)> =
            [one, two, three, four, five].into_iter().map(|answer| answer.expect("an answer")).collect();
        assert_eq!(answers, [(2, 4), (4, 4), (6, 4), (8, 4), (10, 1)]);
    }

    /// Tokio runs what a task wakes before what it started earlier.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn tasks_of_one_moment_share_a_group() {
        let group = Arc::new(doubling());
        let together = tokio::spawn(async move {
            let ask = |number| {
                let group = Arc::clone(&group);
                tokio::spawn(async move { group.ask(number).await.expect("an answer").1 })
            };
            let tasks: Vec<_> = (0..4).map(ask).collect();
            let mut together = Vec::new();
            for task in tasks {
                together.push(task.await.expect("no panic"));
            }
            together
        });
        assert_eq!(together.await.expect("no panic"), [4; 4]);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_for_its_group_alone() {
        let group = doubling();
        let (broken, beside) = tokio::join!(group.ask(13), group.ask(1));
        assert!(matches!(broken, Err(StoreError::Broken(_))), "{broken:?}");
        assert!(matches!(beside, Err(StoreError::Broken(_))), "{beside:?}");
        assert_eq!(group.ask(2).await, Ok((4, 1)));
    }

    #[tokio::test]
    async fn too_many_are_refused_and_a_closed_group_refuses_all() {
        let group = Arc::new(doubling());
        let asking: Vec<_> = (0..20).map(|number| group.ask(number + 20)).collect();
        let answers = futures_join(asking).await;
        assert!(answers.iter().any(|answer| matches!(answer, Err(StoreError::Unavailable(_)))));
        assert!(answers.iter().any(Result::is_ok));
        group.close().await;
        assert!(matches!(group.ask(1).await, Err(StoreError::Unavailable(_))));
    }

    /// Polls them all before any is answered.
    async fn futures_join<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
        let mut pinned: Vec<_> = futures.into_iter().map(Box::pin).collect();
        let mut done: Vec<Option<T>> = pinned.iter().map(|_| None).collect();
        std::future::poll_fn(|context| {
            for (future, done) in pinned.iter_mut().zip(&mut done) {
                if done.is_none()
                    && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
                {
                    *done = Some(value);
                }
            }
            if done.iter().all(Option::is_some) {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        done.into_iter().flatten().collect()
    }
}
