//! How many requests a company may make per second, counted in fixed windows of one second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use model::{CompanyId, Timestamp};

/// Locks, so that requests of different companies seldom wait for each other.
const SHARDS: usize = 16;
/// Windows per shard that may be of seconds past before they are cleared away.
const WINDOWS_MAX: usize = 1024;

const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// What the `RateLimit-*` headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateStatus {
    pub limit: u32,
    pub remaining: u32,
}

impl RateStatus {
    /// Where nobody is counted: before the caller is known, and for the operator.
    pub fn untouched(limit: u32) -> Self {
        Self { limit, remaining: limit }
    }

    /// The window ends within this second, so it is always 1 until a reset.
    pub fn write(self, headers: &mut HeaderMap) {
        headers.insert(LIMIT, HeaderValue::from(self.limit));
        headers.insert(REMAINING, HeaderValue::from(self.remaining));
        headers.insert(RESET, HeaderValue::from_static("1"));
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    second: i64,
    used: u32,
}

pub struct RateWindows {
    limit: u32,
    shards: [Mutex<HashMap<CompanyId, Window>>; SHARDS],
}

impl RateWindows {
    pub fn new(limit: u32) -> Self {
        Self { limit, shards: Default::default() }
    }

    /// Counts one request. `Err` when the second is used up.
    pub fn take(&self, company: CompanyId, now: Timestamp) -> Result<RateStatus, RateStatus> {
        let second = now.millis().div_euclid(1000);
        let shard = usize::from(company.uuid().as_bytes()[15]) % SHARDS;
        let mut windows = self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= WINDOWS_MAX && !windows.contains_key(&company) {
            windows.retain(|_, window| window.second == second);
        }
        let window = windows.entry(company).or_default();
        if window.second != second {
            *window = Window { second, used: 0 };
        }
        if window.used >= self.limit {
            return Err(RateStatus { limit: self.limit, remaining: 0 });
        }
        window.used += 1;
        Ok(RateStatus { limit: self.limit, remaining: self.limit - window.used })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_holds_so_many_requests_of_each_company() {
        let rate = RateWindows::new(2);
        let start = Timestamp::from_millis(5_000);
        let (one, other) = (CompanyId::new(start), CompanyId::new(start));
        let status = |remaining| RateStatus { limit: 2, remaining };
        assert_eq!(rate.take(one, start), Ok(status(1)));
        assert_eq!(rate.take(one, start.plus(Duration::from_millis(999))), Ok(status(0)));
        assert_eq!(rate.take(one, start.plus(Duration::from_millis(999))), Err(status(0)));
        assert_eq!(rate.take(other, start), Ok(status(1)), "companies do not share");
        assert_eq!(rate.take(one, start.plus(Duration::from_millis(1000))), Ok(status(1)));
    }

    #[test]
    fn old_windows_are_cleared_away() {
        let rate = RateWindows::new(2);
        for second in 0..200_000 {
            let now = Timestamp::from_millis(second * 1000);
            assert!(rate.take(CompanyId::new(now), now).is_ok());
        }
        let kept: usize = rate.shards.iter().map(|shard| shard.lock().expect("no panic").len()).sum();
        assert!(kept <= SHARDS * WINDOWS_MAX, "{kept}");
    }
}
