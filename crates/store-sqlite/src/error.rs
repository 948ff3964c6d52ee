//! SQLite's errors in the words of the port.

use rusqlite::ErrorCode;
use store::StoreError;

/// SQLite's message is about the database, never about the values in it.
pub fn from_sqlite(error: rusqlite::Error) -> StoreError {
    let text = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full(text),
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly,
        ) => StoreError::Unavailable(text),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => StoreError::Unusable(text),
        _ => StoreError::Broken(text),
    }
}
