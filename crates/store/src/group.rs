//! Group commit for stores that speak to a server: what is waiting when a lane is free is done together, in one
//! transaction, and answered after its commit. So a hundred concurrent callers share a few statements and one sync.
//! A lone caller is served at once; who comes while a group is under way waits for its end, but no longer than `LONG`. Where
//! callers come in flocks and none of them is in a hurry, the first waits a moment for the others (`gather`).
//!
//! Lanes are tasks of their own: a caller that stops waiting cancels nothing half-way.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::StoreError;
use crate::task::Boxed;
use crate::thread::HotThread;

/// Nobody waits longer than this for the group that is under way.
const LONG: Duration = Duration::from_millis(10);

/// How much is done at once and how much may wait; each has its reason where the group is made.
#[derive(Debug, Clone, Copy)]
pub struct GroupSize {
    /// How many groups are under way at the same time as a rule: what comes meanwhile makes the next group larger, and
    /// larger groups are cheaper.
    pub abreast: usize,
    /// How many at most, when those under way take long: nobody waits behind one that waits for a lock.
    pub lanes: usize,
    /// How many callers share a group at most.
    pub group_max: usize,
    /// How many may wait; past this the store says that it is busy.
    pub waiting_max: usize,
    /// How long a group waits for others to join, if the last one was shared: those of one flock come within a moment of
    /// each other, from other threads, and would otherwise make two or three groups. Zero where somebody waits.
    pub gather: Duration,
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
pub type Answers<A> = Boxed<Vec<Result<A, StoreError>>>;

impl<Q: Send + 'static, A: Send + 'static> Group<Q, A> {
    /// `work` answers a whole group, on `thread`; it must give as many answers as there are questions.
    pub fn start(
        size: GroupSize,
        thread: &HotThread,
        work: impl Fn(Vec<Q>) -> Answers<A> + Send + Sync + 'static,
    ) -> Self {
        let (waiting, questions) = mpsc::channel(size.waiting_max);
        let line = Arc::new(Line {
            head: AsyncMutex::new(Head { questions, was_shared: false }),
            turns: Arc::new(Semaphore::new(size.abreast)),
            group_max: size.group_max,
            gather: size.gather,
        });
        let work = Arc::new(work);
        let lanes = (0..size.lanes)
            .map(|_| {
                let (line, work) = (Arc::clone(&line), Arc::clone(&work));
                thread.spawn(async move {
                    while let Some((group, _turn)) = line.next_group().await {
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

/// Those who wait, and the lanes that serve them.
struct Line<Q, A> {
    head: AsyncMutex<Head<Q, A>>,
    turns: Arc<Semaphore>,
    group_max: usize,
    gather: Duration,
}

/// Where the next group is made.
struct Head<Q, A> {
    questions: mpsc::Receiver<Asked<Q, A>>,
    /// The last group had several callers.
    was_shared: bool,
}

impl<Q, A> Line<Q, A> {
    /// All that waits, once something does, and the turn of the lane. It has none if the lanes before it take long. `None`
    /// when nobody can ask any more.
    async fn next_group(&self) -> Option<(Vec<Asked<Q, A>>, Option<OwnedSemaphorePermit>)> {
        // The lane that holds this lock is the next one to be served; the others are at work or stand in line behind it.
        let mut head = self.head.lock().await;
        let mut group = vec![head.questions.recv().await?];
        let turn = match Arc::clone(&self.turns).try_acquire_owned() {
            // A lane on the thread of those who ask is woken by the first, before the others of the same moment could
            // ask: they come along.
            Ok(turn) => {
                tokio::task::yield_now().await;
                if head.was_shared && !self.gather.is_zero() {
                    sleep(self.gather).await;
                }
                Some(turn)
            }
            Err(_) => timeout(LONG, Arc::clone(&self.turns).acquire_owned()).await.ok().and_then(Result::ok),
        };
        while group.len() < self.group_max
            && let Ok(asked) = head.questions.try_recv()
        {
            group.push(asked);
        }
        head.was_shared = group.len() > 1;
        Some((group, turn))
    }
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

    const SIZE: GroupSize =
        GroupSize { abreast: 1, lanes: 1, group_max: 4, waiting_max: 8, gather: Duration::ZERO };

    fn doubling() -> Group<u32, (u32, usize)> {
        Group::start(SIZE, &HotThread::of_caller(), |questions| {
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

    /// The first group ends when the second has: it would wait for ever if the second waited for it.
    #[tokio::test(start_paused = true)]
    async fn a_group_that_takes_long_is_not_waited_for() {
        let size = GroupSize { lanes: 2, ..SIZE };
        let passed = Arc::new(tokio::sync::Notify::new());
        let group = Group::start(size, &HotThread::of_caller(), move |questions: Vec<u32>| {
            let passed = Arc::clone(&passed);
            Box::pin(async move {
                if questions.contains(&1) {
                    passed.notified().await;
                } else {
                    passed.notify_one();
                }
                questions.into_iter().map(Ok).collect()
            })
        });
        let later = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            group.ask(2).await
        };
        let both = timeout(Duration::from_secs(60), async { tokio::join!(group.ask(1), later) }).await;
        assert_eq!(both, Ok((Ok(1), Ok(2))));
    }

    /// A second lane does not cut the groups in two.
    #[tokio::test(start_paused = true)]
    async fn those_who_come_meanwhile_share_the_next_group() {
        let size = GroupSize { lanes: 2, ..SIZE };
        let group = Group::start(size, &HotThread::of_caller(), |questions: Vec<u32>| {
            Box::pin(async move {
                let together = questions.len();
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                questions.into_iter().map(|_| Ok(together)).collect()
            })
        });
        let later = |turns: usize| {
            let group = &group;
            async move {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                group.ask(2).await
            }
        };
        let together = tokio::join!(group.ask(1), later(4), later(6), later(8));
        assert_eq!(together, (Ok(1), Ok(3), Ok(3), Ok(3)));
    }

    /// Two share a group, so the third waits for the fourth; the fifth, alone when its wait is over, is followed by a sixth
    /// that is served at once.
    #[tokio::test(start_paused = true)]
    async fn those_of_a_flock_wait_for_each_other_and_a_lone_caller_does_not() {
        let gather = Duration::from_millis(10);
        let group =
            Group::start(GroupSize { gather, ..SIZE }, &HotThread::of_caller(), |questions: Vec<u32>| {
                let together = questions.len();
                Box::pin(async move { questions.into_iter().map(|_| Ok(together)).collect() })
            });
        let begun = tokio::time::Instant::now();
        let asked_after = |millis| {
            let group = &group;
            async move {
                sleep(Duration::from_millis(millis)).await;
                (group.ask(1).await, begun.elapsed().as_millis())
            }
        };
        let answers = tokio::join!(
            asked_after(0),
            asked_after(0),
            asked_after(20),
            asked_after(27),
            asked_after(50),
            asked_after(80)
        );
        let expected = ((Ok(2), 0), (Ok(2), 0), (Ok(2), 30), (Ok(2), 30), (Ok(1), 60), (Ok(1), 80));
        assert_eq!(answers, expected);
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
