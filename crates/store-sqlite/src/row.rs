//! Rows of the outbox as the model's types, and the few statements that every verb shares.

use std::str::FromStr;

use model::company::KeyMode;
use model::email::LastFailure;
use model::{Event, Move, Status, Timestamp};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row};
use store::detail::Detail;
use store::record::{Record, damaged};
use store::{StoreError, change};

use crate::error::from_sqlite;
use crate::tallies;
use crate::writer::Work;

/// What `record` reads, in this order, from the first column on.
pub const COLUMNS: &str = "seq, id, company_id, status, version, fence, priority, due_at, expires_at, lease_until, \
    at_provider, unfinished_starts, outcome_unknown, attempts, attempts_before, series, mode, to_email, subject, created_at, \
    scheduled_at, sent_at, delivered_at, failed_at, dead_at, provider, provider_message_id, ses_message_id, \
    last_failure_code, last_failure_category, last_failure_reason, last_failure_at, request_id, external_id, entity_id, recipient_id, \
    size_bytes, route, detail";

/// Reads a row column by column: a claim that looked for each by its name spent more time on names than on values.
struct Columns<'r, 's> {
    row: &'r Row<'s>,
    next: usize,
}

impl Columns<'_, '_> {
    fn get<T: FromSql>(&mut self) -> Result<T, StoreError> {
        let value = self.row.get(self.next).map_err(from_sqlite);
        self.next += 1;
        value
    }

    fn moment(&mut self) -> Result<Timestamp, StoreError> {
        self.get().map(Timestamp::from_millis)
    }

    fn optional_moment(&mut self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.get::<Option<i64>>()?.map(Timestamp::from_millis))
    }

    /// Reads text that the store itself wrote; anything else means the file was changed behind its back.
    fn parsed<T: FromStr>(&mut self, name: &str) -> Result<T, StoreError> {
        let text = self.row.get_ref(self.next).map_err(from_sqlite)?.as_str();
        self.next += 1;
        text.ok().and_then(|text| text.parse().ok()).ok_or_else(|| damaged(name))
    }

    fn last_failure(&mut self) -> Result<Option<LastFailure>, StoreError> {
        let Some(code) = self.get::<Option<String>>()? else {
            self.next += 3;
            return Ok(None);
        };
        Ok(Some(LastFailure { code, category: self.get()?, reason: self.get()?, at: self.moment()? }))
    }
}

pub fn status(row: &Row<'_>) -> Result<Status, StoreError> {
    let text: String = row.get("status").map_err(from_sqlite)?;
    text.parse().map_err(|_| damaged("status"))
}

/// Reads a row of `COLUMNS`; the fields stand in their order.
pub fn record(row: &Row<'_>) -> Result<Record, StoreError> {
    let mut columns = Columns { row, next: 1 };
    Ok(Record {
        id: columns.parsed("id")?,
        company: columns.parsed("company_id")?,
        status: columns.parsed("status")?,
        version: columns.get()?,
        fence: columns.get()?,
        priority: columns.get()?,
        due_at: columns.optional_moment()?,
        expires_at: columns.moment()?,
        lease_until: columns.optional_moment()?,
        at_provider: columns.get()?,
        unfinished_starts: columns.get()?,
        outcome_unknown: columns.get()?,
        attempts: columns.get()?,
        attempts_before: columns.get()?,
        series: columns.get()?,
        mode: KeyMode::parse(&columns.get::<String>()?).ok_or_else(|| damaged("mode"))?,
        to_email: columns.get()?,
        subject: columns.get()?,
        created_at: columns.moment()?,
        scheduled_at: columns.optional_moment()?,
        sent_at: columns.optional_moment()?,
        delivered_at: columns.optional_moment()?,
        failed_at: columns.optional_moment()?,
        dead_at: columns.optional_moment()?,
        provider: columns.get()?,
        provider_message_id: columns.get()?,
        ses_message_id: columns.get()?,
        last_failure: columns.last_failure()?,
        request_id: columns.get()?,
        external_id: columns.get()?,
        entity_id: columns.get()?,
        recipient_id: columns
            .get::<Option<String>>()?
            .map(|text| text.parse().map_err(|_| damaged("recipient_id")))
            .transpose()?,
        size_bytes: columns.get()?,
        route: columns.get()?,
        detail: Detail::decode(&columns.get::<String>()?).ok_or_else(|| damaged("detail"))?,
    })
}

/// The row that must be there.
pub fn at(connection: &Connection, seq: i64) -> Result<Record, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM email_outbox WHERE seq = ?1");
    let mut statement = connection.prepare_cached(&sql).map_err(from_sqlite)?;
    let mut rows = statement.query([seq]).map_err(from_sqlite)?;
    rows.next().map_err(from_sqlite)?.map_or_else(|| Err(damaged("row")), record)
}

/// The status a move leads to, by the model's table; keeps the counts.
pub fn moved(work: &mut Work<'_>, from: Status, step: Move) -> Result<Status, StoreError> {
    let to = change::moved(from, step)?;
    work.counts.moved(from, to);
    Ok(to)
}

pub fn add_events(connection: &Connection, seq: i64, events: &[Event]) -> Result<(), StoreError> {
    let mut statement = connection
        .prepare_cached("INSERT INTO events (email_seq, type, created_at, metadata) VALUES (?1, ?2, ?3, ?4)")
        .map_err(from_sqlite)?;
    for event in events {
        let metadata = (!event.metadata.is_empty())
            .then(|| serde_json::to_string(&event.metadata).expect("a JSON object can be written"));
        statement.execute((seq, event.kind.as_str(), event.at.millis(), metadata)).map_err(from_sqlite)?;
        tallies::count(connection, seq, event).map_err(from_sqlite)?;
    }
    Ok(())
}
