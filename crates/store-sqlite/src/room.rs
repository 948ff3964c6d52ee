//! How much room the file system of the database has left, and what may be done with it.
//!
//! SQLite needs room even to delete: every change goes into the log first. So the last of the room is kept for what
//! must not fail: the results of calls to providers, leases, reports, retention. Below the reserve nothing is taken in
//! and nothing new is claimed; when next to nothing is left, no call begins either.
//!
//! The checkpointer looks, beside the writer; whoever accepts or claims reads one number that it left. What is accepted
//! between two looks is counted, so that a quick writer does not use up a small reserve before anybody looks.

use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use rusqlite::Connection;
use store::{RoomLeft, StoreError};

/// How often it is looked while nothing is written or much is left.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// With less than this above the reserve, every time the log has been moved: a busy writer could use up a small reserve
/// within a second.
const NEAR_BYTES: u64 = 512 * MIB;
/// After room was short, leases are not judged for this long: they could not be renewed, and those who hold them ask
/// every second to record their results.
const LEASE_GRACE: Duration = Duration::from_secs(10);
const MIB: u64 = 1024 * 1024;
/// What is accepted takes room twice until the log begins anew: there, and in the database.
const COPIES: u64 = 2;

/// The reserve where none is set: a tenth of the file system. It has to hold a log of full length and what is in
/// flight, which does not grow with the disk; and a small file system would be all reserve.
const RESERVE_MIN: u64 = 64 * MIB;
const RESERVE_MAX: u64 = 512 * MIB;

fn reserve_of(total: u64) -> u64 {
    (total / 10).clamp(RESERVE_MIN, RESERVE_MAX).min(total / 4)
}

/// What may be done with the room there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
enum Level {
    #[default]
    Enough,
    /// Below the reserve: what is in flight is brought to its end.
    Low,
    /// So little that a result might not fit: no call to a provider begins.
    Out,
}

/// What was seen at one look, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    /// On the file system, for us.
    free: u64,
    /// Pages of the database that retention has emptied and the next emails will fill.
    reusable: u64,
    reserve: u64,
}

impl Seen {
    fn left(&self) -> u64 {
        self.free.saturating_add(self.reusable)
    }

    /// Empty pages take emails, but the log that they go through is a file that grows: a quarter of the reserve has to
    /// be free whatever the database holds. Once short, it takes an eighth more to be enough again, so that the first
    /// email does not tip it over.
    fn level(&self, before: Level) -> Level {
        let margin = if before == Level::Enough { 0 } else { self.reserve / 8 };
        if self.free < self.reserve / 8 {
            Level::Out
        } else if self.left() < self.reserve + margin || self.free < self.reserve / 4 + margin {
            Level::Low
        } else {
            Level::Enough
        }
    }

    /// How much may be written before it is not enough any more.
    fn spare(&self) -> u64 {
        let above_reserve = self.left().saturating_sub(self.reserve);
        above_reserve.min(self.free.saturating_sub(self.reserve / 4))
    }

    /// Would it be enough without the log? Otherwise the log stays as long as it is: whoever else fills the disk cannot
    /// take that room away.
    fn is_short_for(&self, log: u64, before: Level) -> bool {
        let without = Self { free: self.free.saturating_add(log), ..*self };
        self.level(before) != Level::Enough && without.level(before) == Level::Enough
    }
}

pub struct Room {
    /// As the operator wants it.
    reserve_bytes: Option<u64>,
    level: AtomicU8,
    /// What may still be accepted until the next look.
    spare_bytes: AtomicI64,
    looks: Mutex<Looks>,
}

#[derive(Default)]
struct Looks {
    level: Level,
    seen: Option<Seen>,
    looked_at: Option<Instant>,
    /// When there was last too little.
    short_at: Option<Instant>,
    is_blind: bool,
}

impl Room {
    /// Without a reserve of the operator's choice it follows from the size of the file system; one of zero is none.
    pub fn with_reserve(reserve_bytes: Option<u64>) -> Self {
        Self {
            reserve_bytes,
            level: AtomicU8::new(Level::Enough as u8),
            spare_bytes: AtomicI64::new(i64::MAX),
            looks: Mutex::default(),
        }
    }

    /// Is there room for new work?
    pub fn is_enough(&self) -> bool {
        self.level.load(Ordering::Relaxed) == Level::Enough as u8
    }

    /// An error unless there is room for new work.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.is_enough() { Ok(()) } else { Err(self.short()) }
    }

    /// An error unless there is room for an acceptance of this size, which then counts as stored.
    pub fn take(&self, bytes: u64) -> Result<(), StoreError> {
        self.check()?;
        let bytes = i64::try_from(bytes.saturating_mul(COPIES)).unwrap_or(i64::MAX);
        let take = |spare: i64| spare.checked_sub(bytes).filter(|spare| *spare >= 0);
        match self.spare_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(_) => {
                // The next look is due at once; until then, whoever is smaller shall not slip through.
                self.spare_bytes.store(0, Ordering::Relaxed);
                Err(self.short())
            }
        }
    }

    /// An error when the result of a call to a provider might find no room.
    pub fn check_for_result(&self) -> Result<(), StoreError> {
        if self.level.load(Ordering::Relaxed) == Level::Out as u8 { Err(self.short()) } else { Ok(()) }
    }

    /// Does a lease that has run out say that its owner is gone? Without room it could not be renewed.
    pub fn leases_count(&self) -> bool {
        self.is_enough() && self.looks().short_at.is_none_or(|at| at.elapsed() >= LEASE_GRACE)
    }

    /// What the last look saw.
    pub fn left(&self) -> Option<RoomLeft> {
        let seen = self.looks().seen?;
        Some(RoomLeft { free_bytes: seen.left(), reserve_bytes: seen.reserve })
    }

    /// Looks, if it is time. `give_back_log` is called when the log has grown to what is missing.
    pub fn look(&self, connection: &Connection, give_back_log: impl Fn()) {
        if !self.is_time() {
            return;
        }
        let before = self.looks().level;
        let mut seen = see(connection, self.reserve_bytes);
        if matches!(&seen, Ok(Some(seen)) if seen.is_short_for(log_bytes(connection), before)) {
            give_back_log();
            seen = see(connection, self.reserve_bytes);
        }
        match seen {
            Ok(Some(seen)) => self.note(seen, seen.level(before), before),
            Ok(None) => self.note_blindness(None),
            Err(error) => self.note_blindness(Some(error)),
        }
    }

    fn is_time(&self) -> bool {
        let mut looks = self.looks();
        let is_near = looks.seen.is_some_and(|seen| seen.free < seen.reserve.saturating_add(NEAR_BYTES));
        let is_spent = self.spare_bytes.load(Ordering::Relaxed) == 0;
        let is_time = is_near || is_spent || looks.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        if is_time {
            looks.looked_at = Some(Instant::now());
        }
        is_time
    }

    fn note(&self, seen: Seen, level: Level, before: Level) {
        let mut looks = self.looks();
        looks.seen = Some(seen);
        looks.level = level;
        looks.is_blind = false;
        if level != Level::Enough {
            looks.short_at = Some(Instant::now());
        }
        drop(looks);
        self.spare_bytes.store(i64::try_from(seen.spare()).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.level.store(level as u8, Ordering::Relaxed);
        let (free, reserve) = (seen.left(), seen.reserve);
        match (before, level) {
            (Level::Enough, Level::Low | Level::Out) => tracing::error!(
                freeBytes = free,
                reserveBytes = reserve,
                "the disk of the database is almost full: nothing is taken in or sent until there is room"
            ),
            (Level::Low | Level::Out, Level::Enough) => tracing::warn!(
                freeBytes = free,
                reserveBytes = reserve,
                "there is room again on the disk of the database; emails are taken in and sent"
            ),
            _ => {}
        }
    }

    /// Who cannot see goes on: SQLite itself says when it finds no room.
    fn note_blindness(&self, error: Option<nix::Error>) {
        let mut looks = self.looks();
        let is_news = !std::mem::replace(&mut looks.is_blind, true);
        looks.seen = None;
        looks.level = Level::Enough;
        self.spare_bytes.store(i64::MAX, Ordering::Relaxed);
        self.level.store(Level::Enough as u8, Ordering::Relaxed);
        if let Some(error) = error.filter(|_| is_news) {
            tracing::warn!(%error, "it cannot be seen how much room the disk of the database has");
        }
    }

    fn short(&self) -> StoreError {
        let seen = self.looks().seen.unwrap_or_default();
        StoreError::Full(format!(
            "{} MiB are left on the disk of the database, the reserve is {} MiB",
            seen.left() / MIB,
            seen.reserve.div_ceil(MIB)
        ))
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None` where the file system does not say how large it is, or there is no file.
fn see(connection: &Connection, reserve_bytes: Option<u64>) -> nix::Result<Option<Seen>> {
    let Some(database) = database_of(connection) else { return Ok(None) };
    let sizes = statvfs(Path::new(database))?;
    let bytes = |blocks: u64| blocks.saturating_mul(sizes.fragment_size());
    let (total, free) = (bytes(sizes.blocks()), bytes(sizes.blocks_available()));
    if total == 0 {
        return Ok(None);
    }
    let reserve = reserve_bytes.unwrap_or_else(|| reserve_of(total));
    // Nothing is asked of the database while the disk alone has enough.
    let is_enough = free >= reserve.saturating_add(reserve / 8);
    let reusable = if is_enough { 0 } else { empty_pages(connection).unwrap_or(0) };
    Ok(Some(Seen { free, reusable, reserve }))
}

/// SQLite's own name for the file, with links followed.
fn database_of(connection: &Connection) -> Option<&str> {
    connection.path().filter(|path| !path.is_empty())
}

fn log_bytes(connection: &Connection) -> u64 {
    let log = database_of(connection).map(|database| format!("{database}-wal"));
    log.and_then(|log| std::fs::metadata(log).ok()).map_or(0, |log| log.len())
}

/// What the pages that hold nothing take up in the file.
fn empty_pages(connection: &Connection) -> rusqlite::Result<u64> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
    Ok(pragma("freelist_count")?.saturating_mul(pragma("page_size")?))
}

#[cfg(test)]
mod tests;
