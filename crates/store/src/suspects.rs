//! How the starts that no worker ended are counted in the column `unfinished_starts`, the same for every store. After
//! two in a row an email is a suspect: it runs alone, and one that only lay in the hands of a worker that died, or
//! slept, must not be blamed for that. So a claim counts a start up to there; that of a suspect counts once its work
//! begins (`begin_suspect`).
//!
//! The column is 0, 1 or 2 for so many starts. A suspect that was handed out has 3, however often, and 4 from when
//! its work began.

/// From this many starts in a row that never ended, an email is a suspect.
pub const SUSPECT_STARTS: u32 = 2;
/// In the column: a suspect that was handed out. No claim counts beyond this.
pub const HANDED_OUT: u32 = SUSPECT_STARTS + 1;
/// In the column: a suspect whose work began.
pub const AT_WORK: u32 = HANDED_OUT + 1;

/// The starts before the claim that has just been written.
pub fn before_claim(column: u32) -> u32 {
    column.saturating_sub(1).min(SUSPECT_STARTS)
}

/// The starts that nobody ended, with that of a lease that is lost now.
pub fn with_lost(column: u32) -> u32 {
    if column < HANDED_OUT { column } else { column - 1 }
}
