//! Time: one type (milliseconds since 1970) and one door through which it comes in, so that tests and the
//! simulation can turn the clock themselves.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};

/// A moment, in milliseconds since 1970 UTC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than anything that will ever be due: the year 9999. An email held for a person waits until then.
    pub const NEVER: Self = Self(253_402_300_799_000);

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    pub fn plus(self, duration: Duration) -> Self {
        Self(
            self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)).min(Self::NEVER.0),
        )
    }

    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Reads RFC 3339 with a zone, such as `2026-01-31T12:00:00Z`.
    pub fn parse(text: &str) -> Option<Self> {
        DateTime::parse_from_rfc3339(text).ok().map(|moment| Self(moment.timestamp_millis()))
    }

    /// RFC 3339 in UTC with milliseconds.
    pub fn to_rfc3339(self) -> String {
        DateTime::from_timestamp_millis(self.0)
            .unwrap_or_default()
            .to_rfc3339_opts(SecondsFormat::Millis, true)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// 2020-01-01: a clock that shows less was never set, and nothing is decided by it.
pub const CLOCK_MIN: Timestamp = Timestamp::from_millis(1_577_836_800_000);

/// Where the time comes from.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time to go by.
    fn now(&self) -> Timestamp;

    /// The machine's clock was set, and `now` does not follow it yet.
    fn doubt(&self) -> Option<Doubt> {
        None
    }

    /// `now` leapt to where the machine's clock is, less than so long ago: what was written before has other times.
    fn leapt_within(&self, _duration: Duration) -> bool {
        false
    }
}

/// A clock that was set: perhaps wrongly, perhaps rightly at last, perhaps the machine was asleep. Nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    /// When it began. This and `until` are times as they are told meanwhile.
    pub since: Timestamp,
    /// What the clock shows.
    pub shown: Timestamp,
    /// When the clock will be believed, if it is not set again.
    pub until: Timestamp,
}

impl Doubt {
    /// Whether the email is too late if the clock is right. What came in since is not: how old that is, is known.
    pub fn is_too_late(&self, created_at: Timestamp, expires_at: Timestamp) -> bool {
        created_at < self.since && expires_at <= self.shown
    }
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the one door through which wall time comes in")]
    fn now(&self) -> Timestamp {
        let since_epoch =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(0).plus(since_epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_rfc3339() {
        let moment = Timestamp::parse("2026-01-31T12:00:00.250+01:00").expect("valid");
        assert_eq!(moment.to_string(), "2026-01-31T11:00:00.250Z");
        assert_eq!(Timestamp::parse("2026-01-31T12:00:00"), None, "no zone");
        assert_eq!(Timestamp::parse("2025-02-30T12:00:00Z"), None, "no such day");
    }

    #[test]
    fn never_is_the_end_of_all_sums() {
        assert_eq!(Timestamp::NEVER.plus(Duration::from_secs(1)), Timestamp::NEVER);
        assert_eq!(Timestamp::from_millis(5).since(Timestamp::from_millis(9)), Duration::ZERO);
    }
}
