//! When to look for work: a bounded memory of the times at which emails fall due, and a polling interval that is
//! short while there is work and long while there is none. Knows nothing of the store; `lib` feeds it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Due times this close together wake the worker once.
const DUE_STEP_MS: i64 = 10;
/// How many due times are remembered: 40 s of fully packed ones. What is dropped is found by polling.
const DUE_TIMES_MAX: usize = 4_096;
/// Right after work was found there is probably more.
const POLL_MIN: Duration = Duration::from_millis(50);
/// Other processes on the same database are heard this late at worst.
const POLL_MAX: Duration = Duration::from_millis(250);
/// A company that was given all its rate allows may be given as much again after this.
const RATE_SPAN: Duration = Duration::from_secs(1);
/// Such looks are this far apart at least, so that busy times do not make many of them.
const RATE_STEP_MS: i64 = 100;

#[derive(Debug)]
pub(crate) struct Alarm {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// Something is due already.
    ready: bool,
    /// Due times to come, in milliseconds, rounded up to the step.
    due: BTreeSet<i64>,
    /// What time it was, and when that was, by the clock that does not jump.
    seen: Option<(Timestamp, Instant)>,
    poll_every: Duration,
    poll_at: Instant,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        let state = State {
            ready: false,
            due: BTreeSet::new(),
            seen: None,
            poll_every: POLL_MIN,
            poll_at: Instant::now(),
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Remembers that something falls due, and wakes the waiting worker if that changes how long it waits.
    pub(crate) fn set(&self, due_times: impl IntoIterator<Item = Timestamp>) {
        let mut state = self.state();
        let mut wakes = false;
        for due_at in due_times {
            wakes |= state.remember(due_at);
        }
        drop(state);
        if wakes {
            self.changed.notify_one();
        }
    }

    /// Notes that a worker looked, and whether it found anything: this sets the pace of polling. What it found may
    /// have been all that the rate of a company allows, so that there is more a second later.
    pub(crate) fn looked(&self, now: Timestamp, found: bool) {
        let mut state = self.state();
        state.seen = Some((now, Instant::now()));
        state.poll_every = if found { POLL_MIN } else { (state.poll_every * 2).min(POLL_MAX) };
        state.poll_at = Instant::now() + state.poll_every;
        if found {
            let again_at = round_up(now.plus(RATE_SPAN).millis(), RATE_STEP_MS);
            state.remember(Timestamp::from_millis(again_at));
        }
    }

    /// Returns when something is due, or when it is time to poll.
    pub(crate) async fn wait(&self, now: Timestamp) {
        self.state().seen = Some((now, Instant::now()));
        loop {
            let changed = self.changed.notified();
            let Some(wake_at) = self.state().next_wake() else {
                return;
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The wall time now, carried on from when it was last told.
    fn now(&self) -> Option<Timestamp> {
        self.seen.map(|(wall, at)| wall.plus(at.elapsed()))
    }

    /// `true` when a waiting worker has to think again.
    fn remember(&mut self, due_at: Timestamp) -> bool {
        if due_at == Timestamp::NEVER {
            return false;
        }
        if self.now().is_none_or(|now| due_at <= now) {
            self.ready = true;
            return true;
        }
        let rounded = round_up(due_at.millis(), DUE_STEP_MS);
        self.due.insert(rounded);
        if self.due.len() > DUE_TIMES_MAX {
            self.due.pop_last();
        }
        self.due.first() == Some(&rounded)
    }

    /// When to wake up next; `None` when that is now.
    fn next_wake(&mut self) -> Option<Instant> {
        let now = self.now()?;
        let later = self.due.split_off(&(now.millis() + 1));
        let fell_due = !std::mem::replace(&mut self.due, later).is_empty();
        let was_ready = std::mem::take(&mut self.ready);
        if self.poll_at <= Instant::now() {
            // Who is woken need not look: it may have no room.
            self.poll_at = Instant::now() + self.poll_every;
            return None;
        }
        if was_ready || fell_due {
            return None;
        }
        let until_due = self.due.first().map(|due| Timestamp::from_millis(*due).since(now));
        let due_at = until_due.map(|duration| Instant::now() + duration);
        Some(due_at.map_or(self.poll_at, |due_at| due_at.min(self.poll_at)))
    }
}

fn round_up(millis: i64, step: i64) -> i64 {
    millis.saturating_add(step - 1).div_euclid(step) * step
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// An alarm of a worker that has been idle for long.
    fn idle() -> Alarm {
        let alarm = Alarm::new();
        for _ in 0..8 {
            alarm.looked(NOW, false);
        }
        alarm
    }

    /// How long a wait takes on tokio's virtual clock.
    async fn waits(alarm: &Alarm, now: Timestamp) -> Duration {
        let start = Instant::now();
        alarm.wait(now).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn waits_as_long_as_it_should() {
        let cases: [(&str, &[u64], u64); 5] = [
            ("nothing known: the longest poll", &[], 250),
            ("due now", &[0], 0),
            ("due soon, rounded up", &[123], 130),
            ("the earliest counts", &[240, 150, 230], 150),
            ("due after the poll", &[5_000], 250),
        ];
        for (case, due, expected) in cases {
            let alarm = idle();
            alarm.set(due.iter().map(|millis| NOW.plus(ms(*millis))));
            let waited = waits(&alarm, NOW).await;
            // Tokio's timer has steps of a millisecond and rounds up.
            assert!(waited >= ms(expected) && waited <= ms(expected + 1), "{case}: {waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_offer_wakes_a_worker_that_waits() {
        let alarm = std::sync::Arc::new(idle());
        let waiting = tokio::spawn({
            let alarm = alarm.clone();
            async move { waits(&alarm, NOW).await }
        });
        tokio::time::sleep(ms(20)).await;
        alarm.set([NOW.plus(ms(20))]);
        assert!(waiting.await.expect("no panic") <= ms(21));
        assert!(waits(&alarm, NOW.plus(ms(20))).await > ms(200), "one offer wakes once");
    }

    #[tokio::test(start_paused = true)]
    async fn an_offer_made_while_nobody_waits_is_not_forgotten() {
        let alarm = idle();
        alarm.set([NOW]);
        alarm.looked(NOW, true);
        assert!(waits(&alarm, NOW).await < ms(2));
    }

    #[tokio::test(start_paused = true)]
    async fn polling_is_eager_after_work_and_lazy_without() {
        let alarm = Alarm::new();
        let mut expected = 50;
        alarm.looked(NOW, true);
        for _ in 0..8 {
            let waited = waits(&alarm, NOW).await;
            assert!(waited >= ms(expected) && waited <= ms(expected + 1), "{expected}: {waited:?}");
            alarm.looked(NOW, false);
            expected = (expected * 2).min(250);
        }
        alarm.looked(NOW, true);
        assert!(waits(&alarm, NOW).await <= ms(51));
    }

    /// A company with a rate is given all it may have at once; the polls since then say nothing of the next second.
    #[tokio::test(start_paused = true)]
    async fn looks_again_a_second_after_work_was_found() {
        let alarm = idle();
        let start = Instant::now();
        alarm.looked(NOW.plus(ms(20)), true);
        let mut looks = Vec::new();
        while start.elapsed() < ms(1_050) {
            let now = NOW.plus(ms(20)).plus(start.elapsed());
            alarm.wait(now).await;
            alarm.looked(now, false);
            looks.push(start.elapsed().as_millis());
        }
        assert!(looks.iter().any(|look| (1_080..=1_082).contains(look)), "{looks:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_and_keeps_the_earliest() {
        let alarm = idle();
        alarm.set((1..=10_000).rev().map(|n| NOW.plus(ms(n * 10))));
        let state = alarm.state();
        assert_eq!(state.due.len(), DUE_TIMES_MAX);
        assert_eq!(state.due.first().copied(), Some(NOW.millis() + 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_email_is_never_waited_for() {
        let alarm = idle();
        alarm.set([Timestamp::NEVER]);
        assert!(alarm.state().due.is_empty() && !alarm.state().ready);
    }
}
