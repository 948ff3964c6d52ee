//! All events in the order in which they were written: the order of their row numbers.

use async_trait::async_trait;
use model::company::KeyMode;
use model::{Address, Event, Secret, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, Row};
use store::history::{Halving, bounded};
use store::record::damaged;
use store::{Happening, History, StoreError};

use crate::SqliteStore;
use crate::error::from_sqlite;

#[async_trait]
impl History for SqliteStore {
    async fn last_event(&self) -> Result<u64, StoreError> {
        self.reader.run(last_event).await
    }

    async fn first_event_since(&self, since: Timestamp) -> Result<u64, StoreError> {
        self.reader.run(move |connection| first_event_since(connection, since)).await
    }

    async fn happened(&self, first: u64, last: u64) -> Result<Vec<Happening>, StoreError> {
        self.reader.run(move |connection| happened(connection, first, bounded(first, last))).await
    }
}

fn last_event(connection: &Connection) -> Result<u64, StoreError> {
    connection
        .prepare_cached("SELECT coalesce(max(id), 0) FROM events")
        .and_then(|mut statement| statement.query_row((), |row| row.get(0)))
        .map_err(from_sqlite)
}

fn first_event_since(connection: &Connection, since: Timestamp) -> Result<u64, StoreError> {
    let mut halving = Halving::new(last_event(connection)?);
    let mut statement = connection
        .prepare_cached("SELECT id, created_at FROM events WHERE id >= ?1 ORDER BY id LIMIT 1")
        .map_err(from_sqlite)?;
    while let Some(number) = halving.next() {
        let read = |row: &Row<'_>| -> rusqlite::Result<(u64, i64)> { Ok((row.get(0)?, row.get(1)?)) };
        let event = statement.query_row([signed(number)], read).optional().map_err(from_sqlite)?;
        halving.found(number, event.map(|(number, at)| (number, Timestamp::from_millis(at))), since);
    }
    Ok(halving.answer())
}

/// From the events to their emails, never the other way round.
fn happened(connection: &Connection, first: u64, last: u64) -> Result<Vec<Happening>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT e.id AS number, e.type, e.created_at, e.metadata, o.id, o.company_id, o.mode, o.status, o.to_email,
                    o.subject, o.entity_id, o.provider
             FROM events e CROSS JOIN email_outbox o ON o.seq = e.email_seq
             WHERE e.id BETWEEN ?1 AND ?2 ORDER BY e.id",
        )
        .map_err(from_sqlite)?;
    let mut rows = statement.query([signed(first), signed(last)]).map_err(from_sqlite)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        found.push(happening(row)?);
    }
    Ok(found)
}

fn happening(row: &Row<'_>) -> Result<Happening, StoreError> {
    let text = |name: &str| row.get::<_, String>(name).map_err(from_sqlite);
    let optional = |name: &str| row.get::<_, Option<String>>(name).map_err(from_sqlite);
    let at = Timestamp::from_millis(row.get("created_at").map_err(from_sqlite)?);
    let mut event = Event::new(text("type")?.parse().map_err(|_| damaged("an event"))?, at);
    event.metadata =
        optional("metadata")?.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    Ok(Happening {
        number: row.get("number").map_err(from_sqlite)?,
        email: text("id")?.parse().map_err(|_| damaged("id"))?,
        company: text("company_id")?.parse().map_err(|_| damaged("company_id"))?,
        mode: KeyMode::parse(&text("mode")?).ok_or_else(|| damaged("mode"))?,
        status: text("status")?.parse().map_err(|_| damaged("status"))?,
        to: Address::trusted(text("to_email")?),
        subject: Secret::new(text("subject")?),
        entity: optional("entity_id")?,
        provider: optional("provider")?,
        event,
    })
}

/// SQLite's numbers are signed; no event has one beyond them.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use crate::schema;

    /// A look costs the same however many events there are.
    #[test]
    fn events_are_found_by_number() {
        let mut connection = schema::connect_in_memory().expect("opens");
        schema::migrate(&mut connection).expect("migrates");
        let sql = "EXPLAIN QUERY PLAN SELECT e.id, o.id FROM events e CROSS JOIN email_outbox o ON o.seq = e.email_seq
                   WHERE e.id BETWEEN 1 AND 9 ORDER BY e.id";
        let mut statement = connection.prepare(sql).expect("a statement");
        let rows = statement.query_map((), |row| row.get::<_, String>("detail")).expect("a plan");
        let plan = rows.collect::<Result<Vec<_>, _>>().expect("a plan").join("; ");
        assert!(!plan.contains("SCAN") && !plan.contains("TEMP B-TREE"), "{plan}");
    }
}
