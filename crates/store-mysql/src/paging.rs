//! Lists in the order of a number that is given to each row as it is written, newest first.

use store::{Cursor, Page};

/// Rows below this are still to come. A cursor that is none of ours ends the list.
pub fn before(after: Option<&Cursor>) -> u64 {
    after.map_or(u64::MAX, |cursor| cursor.0.parse().unwrap_or(0))
}

/// A page of rows and their numbers; where it is full there may be more.
pub fn page<T>(rows: Vec<(u64, T)>, limit: u32) -> Page<T> {
    let last = rows.last().map(|(number, _)| *number);
    let next = last.filter(|_| rows.len() == limit as usize).map(|number| Cursor(number.to_string()));
    Page { items: rows.into_iter().map(|(_, item)| item).collect(), next }
}
