//! The starts of the last second of a company or provider with a rate limit, as the text a store keeps of them: pairs
//! of a step and a count. The rate holds over any second, since a step counts until all of it is a second old.

use std::time::Duration;

use model::Timestamp;

/// How long a company's start counts.
pub const SECOND: Duration = Duration::from_secs(1);
/// How long the start of a call to a provider counts: the call goes out a moment after its start was taken, and the
/// provider counts by its own clock.
pub const PROVIDER_SECOND: Duration = Duration::from_millis(1_100);

/// Starts are remembered in steps of this many milliseconds.
const STEP_MS: i64 = 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Starts(Vec<(i64, u32)>);

impl Starts {
    /// Those of the text that still count. A step of the near future was noted by a clock that is a little ahead, and
    /// counts; one of the far future was noted before the clock was set back.
    pub fn recent(text: &str, now: Timestamp, counts_for: Duration) -> Self {
        let counts_for_ms = i64::try_from(counts_for.as_millis()).unwrap_or(i64::MAX);
        let pair = |text: &str| -> Option<(i64, u32)> {
            let (step, count) = text.split_once(':')?;
            Some((step.parse().ok()?, count.parse().ok()?))
        };
        let recent = |&(step, _): &(i64, u32)| {
            (step + 1) * STEP_MS > now.millis() - counts_for_ms
                && step * STEP_MS <= now.millis() + counts_for_ms
        };
        Self(text.split(',').filter_map(pair).filter(recent).collect())
    }

    pub fn count(&self) -> u32 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    pub fn add(&mut self, now: Timestamp, count: u32) {
        let step = now.millis() / STEP_MS;
        match self.0.iter_mut().find(|(other, _)| *other == step) {
            Some((_, so_far)) => *so_far += count,
            None => self.0.push((step, count)),
        }
    }

    pub fn encode(&self) -> String {
        let pairs: Vec<String> = self.0.iter().map(|(step, count)| format!("{step}:{count}")).collect();
        pairs.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_counts_for_a_second() {
        let at = |millis: i64| Timestamp::from_millis(1_767_225_600_000 + millis);
        let mut starts = Starts::default();
        starts.add(at(0), 2);
        starts.add(at(5), 1);
        starts.add(at(500), 4);
        let text = starts.encode();
        let cases = [
            (500, 7),
            (999, 7),
            (1_009, 7),
            (1_010, 4),
            (1_509, 4),
            (1_510, 0),
            (-1, 7),
            (-501, 3),
            (-1_001, 0),
        ];
        for (millis, count) in cases {
            assert_eq!(Starts::recent(&text, at(millis), SECOND).count(), count, "{millis} ms later");
        }
    }
}
