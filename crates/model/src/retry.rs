//! When to try again: named schedules, jitter, and what a provider's Retry-After does to them.

use std::time::Duration;

/// How far jitter may move a delay, as a share of it.
pub const JITTER: f64 = 0.25;

/// A named schedule: after attempt n the email waits `delays[n-1]` (the last one repeats), and at most
/// `max_attempts` are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    pub name: String,
    pub max_attempts: u32,
    pub delays: Vec<Duration>,
}

impl RetryPolicy {
    /// `fast`, the default: 5 attempts within minutes.
    pub fn fast() -> Self {
        Self {
            name: "fast".into(),
            max_attempts: 5,
            delays: [1, 5, 30, 120, 600].map(Duration::from_secs).to_vec(),
        }
    }

    /// `patient`: 4 attempts within hours.
    pub fn patient() -> Self {
        Self {
            name: "patient".into(),
            max_attempts: 4,
            delays: [900, 3600, 21_600].map(Duration::from_secs).to_vec(),
        }
    }

    /// No other attempt may follow `attempt` (counted from 1), by its number or because the time that is left does not do
    /// for the longest that the wait can be.
    pub fn may_be_last(&self, attempt: u32, left: Duration) -> bool {
        self.delay_after(attempt, 1.0, None).is_none_or(|delay| delay >= left)
    }

    /// How long to wait after `attempt` (counted from 1) failed, or `None` when it was the last one.
    /// `dice` is a random number from -1 to 1 that decides the jitter. A provider's `retry_after` is never
    /// undercut.
    pub fn delay_after(&self, attempt: u32, dice: f64, retry_after: Option<Duration>) -> Option<Duration> {
        if attempt >= self.max_attempts {
            return None;
        }
        let step = usize::try_from(attempt.max(1) - 1).unwrap_or(usize::MAX);
        let base = self.delays.get(step).or(self.delays.last()).copied().unwrap_or(Duration::from_secs(1));
        let jittered = base.mul_f64(1.0 + JITTER * dice.clamp(-1.0, 1.0));
        Some(jittered.max(retry_after.unwrap_or(Duration::ZERO)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_tables_as_promised() {
        let cases = [
            ("fast after 1", RetryPolicy::fast(), 1, Some(secs(1))),
            ("fast after 2", RetryPolicy::fast(), 2, Some(secs(5))),
            ("fast after 3", RetryPolicy::fast(), 3, Some(secs(30))),
            ("fast after 4", RetryPolicy::fast(), 4, Some(secs(120))),
            ("fast, none left", RetryPolicy::fast(), 5, None),
            ("six allowed", RetryPolicy { max_attempts: 7, ..RetryPolicy::fast() }, 5, Some(secs(600))),
            (
                "the last delay repeats",
                RetryPolicy { max_attempts: 9, ..RetryPolicy::fast() },
                8,
                Some(secs(600)),
            ),
            ("patient after 1", RetryPolicy::patient(), 1, Some(secs(900))),
            ("patient after 3", RetryPolicy::patient(), 3, Some(secs(21_600))),
            ("patient, none left", RetryPolicy::patient(), 4, None),
        ];
        for (case, policy, attempt, expected) in cases {
            assert_eq!(policy.delay_after(attempt, 0.0, None), expected, "{case}");
        }
    }

    /// 10,000 waits on a virtual clock: all within 25 %, the mean within 2 %, never before Retry-After.
    #[test]
    fn jitter_stays_within_its_bounds() {
        let policy = RetryPolicy::fast();
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        for attempt in 1..=4 {
            let base = policy.delays[attempt as usize - 1].as_secs_f64();
            let mut sum = 0.0;
            for _ in 0..10_000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let dice = (seed >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
                let delay = policy.delay_after(attempt, dice, None).expect("tries left").as_secs_f64();
                assert!((delay - base).abs() <= base * JITTER + 1e-9, "attempt {attempt}: {delay}");
                let asked = policy.delay_after(attempt, dice, Some(secs(60))).expect("tries left");
                assert!(asked >= secs(60), "attempt {attempt}: undercut {asked:?}");
                sum += delay;
            }
            let mean = sum / 10_000.0;
            assert!((mean - base).abs() < base * 0.02, "attempt {attempt}: mean {mean}");
        }
    }
}
