//! The ids by which providers know an email: the one in its row and, for the few that have more, `provider_messages`.

use model::Guard;
use rusqlite::{Connection, OptionalExtension};
use store::StoreError;

use crate::error::from_sqlite;

/// Keeps an id that is not to stand in the row.
pub fn keep(connection: &Connection, seq: i64, message_id: &str) -> Result<(), StoreError> {
    connection
        .prepare_cached("INSERT OR IGNORE INTO provider_messages (email_seq, message_id) VALUES (?1, ?2)")
        .and_then(|mut statement| statement.execute((seq, message_id)))
        .map_err(from_sqlite)?;
    Ok(())
}

/// Keeps the id that is in the row before another takes its place. Only who claimed an email again can meet one.
pub fn keep_earlier(connection: &Connection, guard: Guard, new: Option<&str>) -> Result<(), StoreError> {
    if guard.fence < 2 {
        return Ok(());
    }
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO provider_messages (email_seq, message_id)
             SELECT seq, provider_message_id FROM email_outbox
             WHERE id = ?1 AND status = 'PROCESSING' AND fence = ?2 AND version = ?3
               AND provider_message_id IS NOT NULL AND provider_message_id IS NOT ?4",
        )
        .and_then(|mut statement| statement.execute((guard.id.to_string(), guard.fence, guard.version, new)))
        .map_err(from_sqlite)?;
    Ok(())
}

/// The newest email that has the id.
pub fn find(connection: &Connection, message_id: &str) -> Result<Option<i64>, StoreError> {
    connection
        .prepare_cached(
            "SELECT max(seq) FROM (
                 SELECT seq FROM email_outbox WHERE provider_message_id = ?1
                 UNION ALL SELECT email_seq FROM provider_messages WHERE message_id = ?1
             )",
        )
        .and_then(|mut statement| statement.query_row([message_id], |row| row.get(0)).optional())
        .map(Option::flatten)
        .map_err(from_sqlite)
}
