//! The time that everything here goes by: the machine's clock, unless that was just set by more than an hour.
//!
//! Nobody can tell a clock that was set wrongly from one that was put right, or from a machine that slept. What follows
//! from believing a wrong one cannot be undone: delayed emails go out early, waiting ones expire, old ones are deleted.
//! So for ten minutes after such a jump the time of before is told, carried on by the steady clock, and the log says
//! so; whoever finds the clock wrong can put it right, and nothing has happened. After that the clock is believed.
//!
//! The rule stands at this one door, so that due times, leases, expiry, retention and new emails agree with each other
//! and with the processes whose clocks were not set; no store knows of it. Its price: if the new time was the right
//! one, what happens meanwhile is dated by the old one. One thing is judged by both clocks, in `attempt`: an email that
//! is too late if the new time is right is not sent, it waits until that is settled ([`model::Doubt`]).
//!
//! A clock that shows a time before 2020 was never set and is never believed. A process that starts with one has no
//! other: `accept` takes nothing in and `sweep` rests until it is set, which is then believed at once.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::{CLOCK_MIN, Clock, Doubt, SystemClock, Timestamp};

/// A clock that moved further than this against the steady one was set. It also bounds what a smaller jump can do.
const JUMP_MIN: Duration = Duration::from_secs(3600);
/// Clocks of different machines may be as far apart; what moves further leaps.
const SLIP_MAX: Duration = Duration::from_secs(10);
/// Time for a person or NTP to put a wrong clock right.
const DOUBTED_FOR: Duration = Duration::from_secs(10 * 60);

/// The machine's clock with the rule above.
pub struct SteadyClock {
    wall: Arc<dyn Clock>,
    /// How long it has been running, by the clock that cannot be set.
    running: Box<dyn Fn() -> Duration + Send + Sync>,
    watch: Mutex<Watch>,
}

impl SteadyClock {
    pub fn of_machine() -> Self {
        let started = Instant::now();
        Self::over(Arc::new(SystemClock), move || started.elapsed())
    }

    pub fn over(wall: Arc<dyn Clock>, running: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { wall, running: Box::new(running), watch: Mutex::default() }
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        let wall = self.wall.now();
        let (told, news) = self.watch().tell(wall, (self.running)());
        if let Some(news) = news {
            news.log(wall, told);
        }
        told
    }

    fn doubt(&self) -> Option<Doubt> {
        self.now();
        self.watch().doubt(self.wall.now())
    }

    fn leapt_within(&self, duration: Duration) -> bool {
        self.now();
        let running = (self.running)();
        self.watch().leapt_at.is_some_and(|at| running.saturating_sub(at) < duration)
    }
}

impl fmt::Debug for SteadyClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteadyClock").field("wall", &self.wall).field("watch", &self.watch()).finish()
    }
}

/// What is remembered from one look at the clocks to the next; pure.
#[derive(Debug, Default)]
struct Watch {
    /// The last time that was believed, and when that was.
    sure: Option<(Timestamp, Duration)>,
    doubted: Option<Doubted>,
    leapt_at: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Doubted {
    began: Duration,
    /// Both times then.
    told: Timestamp,
    shown: Timestamp,
}

/// What there is to say about the clock, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    NeverSet,
    SetAtLast,
    Doubted,
    AgreesAgain,
    Believed,
}

impl Watch {
    /// The time to go by.
    fn tell(&mut self, wall: Timestamp, running: Duration) -> (Timestamp, Option<News>) {
        let Some((last, at)) = self.sure else {
            self.sure = Some((wall, running));
            return (wall, (wall < CLOCK_MIN).then_some(News::NeverSet));
        };
        if last < CLOCK_MIN {
            self.sure = Some((wall, running));
            return (wall, (wall >= CLOCK_MIN).then(|| self.leap(wall, running, News::SetAtLast)));
        }
        // Counted from the last believed time, not from the last told one: rounding must not add up.
        let told = last.plus(running.saturating_sub(at));
        if apart(told, wall) <= JUMP_MIN {
            self.sure = Some((wall, running));
            if apart(told, wall) > SLIP_MAX {
                self.leapt_at = Some(running);
            }
            return (wall, self.doubted.take().map(|_| News::AgreesAgain));
        }
        match self.doubted.filter(|doubted| doubted.runs_on(wall, running)) {
            None => {
                self.doubted = Some(Doubted { began: running, told, shown: wall });
                (told, Some(News::Doubted))
            }
            Some(doubted) if doubted.is_over(running) && wall >= CLOCK_MIN => {
                (wall, Some(self.leap(wall, running, News::Believed)))
            }
            Some(_) => (told, None),
        }
    }

    fn leap(&mut self, wall: Timestamp, running: Duration, news: News) -> News {
        self.sure = Some((wall, running));
        self.doubted = None;
        self.leapt_at = Some(running);
        news
    }

    fn doubt(&self, shown: Timestamp) -> Option<Doubt> {
        let doubted = self.doubted?;
        Some(Doubt { since: doubted.told, shown, until: doubted.told.plus(DOUBTED_FOR) })
    }
}

impl Doubted {
    /// Whether the clock still shows what was doubted, and was not set again.
    fn runs_on(&self, wall: Timestamp, running: Duration) -> bool {
        apart(self.shown.plus(running.saturating_sub(self.began)), wall) <= JUMP_MIN
    }

    fn is_over(&self, running: Duration) -> bool {
        running.saturating_sub(self.began) >= DOUBTED_FOR
    }
}

fn apart(one: Timestamp, other: Timestamp) -> Duration {
    one.since(other).max(other.since(one))
}

impl News {
    fn log(self, shown: Timestamp, told: Timestamp) {
        match self {
            Self::NeverSet => tracing::error!(
                %shown,
                "the clock was never set; nothing is taken in, expired or deleted until it is"
            ),
            Self::Doubted if shown < CLOCK_MIN => tracing::error!(
                %shown, %told,
                "the clock shows a time before 2020 and is not believed; nothing expires or is deleted until it is set"
            ),
            Self::Doubted => tracing::warn!(
                %shown, %told, believedInSecs = DOUBTED_FOR.as_secs(),
                "the clock was set by more than an hour; for ten minutes the old time is gone by and nothing expires or \
                 is deleted"
            ),
            Self::AgreesAgain => tracing::info!(%shown, "the clock agrees with the steady one again"),
            Self::SetAtLast => tracing::info!(%shown, "the clock is set now and is gone by"),
            Self::Believed => {
                tracing::warn!(%shown, "the clock stayed as it was set and is gone by from now on")
            }
        }
    }
}

#[cfg(test)]
mod tests;
