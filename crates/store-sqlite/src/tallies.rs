//! Counts by day, added up as events are written: there is one writer, so nobody waits. SENT, which every email has, is
//! added up once per transaction.

use std::collections::BTreeMap;

use async_trait::async_trait;
use model::company::KeyMode;
use model::{CompanyId, Event, EventKind, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};
use store::record::damaged;
use store::tallies::{ENTITY_ROWS_LOOKED_AT_MAX, TALLIED, day_of};
use store::{DayTally, EntityRecord, EntityTally, StoreError, Tallies};

use crate::SqliteStore;
use crate::error::from_sqlite;
use crate::upkeep::execute;

/// What was sent in one transaction, by company, mode and day.
#[derive(Debug, Default)]
pub struct SentNotes(Vec<(String, String, i64)>);

/// An email that was sent, as far as it is counted.
pub struct SentEmail {
    pub company: String,
    pub mode: String,
    pub entity: Option<String>,
    pub to: String,
}

impl SentNotes {
    /// Notes an email; those about an entity are rarer and counted at once.
    pub fn note(
        &mut self,
        connection: &Connection,
        email: SentEmail,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let day = day_of(at);
        if let Some(entity) = &email.entity {
            count_for_entity(connection, &email, entity, day).map_err(from_sqlite)?;
        }
        self.0.push((email.company, email.mode, day));
        Ok(())
    }

    /// How many there are, to go back to with `forget_after`.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets those noted after there were so many.
    pub fn forget_after(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Writes the counts and forgets them.
    pub fn flush(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut totals: BTreeMap<(String, String, i64), u64> = BTreeMap::new();
        for note in self.0.drain(..) {
            *totals.entry(note).or_default() += 1;
        }
        for ((company, mode, day), total) in totals {
            connection
                .prepare_cached(
                    "INSERT INTO day_tallies (company_id, mode, day, type, total) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO UPDATE SET total = total + excluded.total",
                )?
                .execute((company, mode, day, EventKind::Sent.as_str(), total))?;
        }
        Ok(())
    }
}

/// Counts an event of an email, unless it is of a kind that is not counted, or SENT.
pub fn count(connection: &Connection, seq: i64, event: &Event) -> rusqlite::Result<()> {
    if event.kind == EventKind::Sent || !TALLIED.contains(&event.kind) {
        return Ok(());
    }
    let (kind, day) = (event.kind.as_str(), day_of(event.at));
    connection
        .prepare_cached(
            "INSERT INTO day_tallies (company_id, mode, day, type, total)
             SELECT company_id, mode, ?3, ?2, 1 FROM email_outbox WHERE seq = ?1
             ON CONFLICT DO UPDATE SET total = total + 1",
        )?
        .execute((seq, kind, day))?;
    connection
        .prepare_cached(
            "INSERT INTO entity_tallies (company_id, entity_id, day, type, total)
             SELECT company_id, entity_id, ?3, ?2, 1 FROM email_outbox WHERE seq = ?1 AND entity_id IS NOT NULL
             ON CONFLICT DO UPDATE SET total = total + 1",
        )?
        .execute((seq, kind, day))?;
    connection
        .prepare_cached(
            "INSERT INTO entity_recipients (company_id, entity_id, type, address, last_day)
             SELECT company_id, entity_id, ?2, to_email, ?3 FROM email_outbox
             WHERE seq = ?1 AND entity_id IS NOT NULL
             ON CONFLICT DO UPDATE SET last_day = max(last_day, excluded.last_day)",
        )?
        .execute((seq, kind, day))?;
    Ok(())
}

fn count_for_entity(
    connection: &Connection,
    email: &SentEmail,
    entity: &str,
    day: i64,
) -> rusqlite::Result<()> {
    let kind = EventKind::Sent.as_str();
    connection
        .prepare_cached(
            "INSERT INTO entity_tallies (company_id, entity_id, day, type, total) VALUES (?1, ?2, ?3, ?4, 1)
             ON CONFLICT DO UPDATE SET total = total + 1",
        )?
        .execute((&email.company, entity, day, kind))?;
    connection
        .prepare_cached(
            "INSERT INTO entity_recipients (company_id, entity_id, type, address, last_day)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET last_day = max(last_day, excluded.last_day)",
        )?
        .execute((&email.company, entity, kind, &email.to, day))?;
    Ok(())
}

#[async_trait]
impl Tallies for SqliteStore {
    async fn entity_tally(
        &self,
        company: CompanyId,
        entity: &str,
        since_day: i64,
    ) -> Result<Vec<EntityTally>, StoreError> {
        let entity = entity.to_owned();
        let read = move |connection: &Connection| -> rusqlite::Result<Vec<(String, u64, u64)>> {
            connection
                .prepare_cached(
                    "SELECT tallied.type, tallied.total,
                            (SELECT count(*) FROM entity_recipients met
                             WHERE met.company_id = ?1 AND met.entity_id = ?2 AND met.type = tallied.type
                               AND met.last_day >= ?3)
                     FROM (SELECT type, sum(total) AS total FROM entity_tallies
                           WHERE company_id = ?1 AND entity_id = ?2 AND day >= ?3 GROUP BY type) tallied
                     ORDER BY tallied.total DESC, tallied.type",
                )?
                .query_map((company.to_string(), entity, since_day), |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })?
                .collect()
        };
        let rows = self.reader.run(move |connection| read(connection).map_err(from_sqlite)).await?;
        rows.into_iter()
            .map(|(kind, total, unique_recipients)| {
                Ok(EntityTally { kind: event_kind(&kind)?, total, unique_recipients })
            })
            .collect()
    }

    async fn entity_days(
        &self,
        company: CompanyId,
        entity: &str,
        since_day: i64,
    ) -> Result<Vec<DayTally>, StoreError> {
        let entity = entity.to_owned();
        let read = move |connection: &Connection| -> rusqlite::Result<Vec<(i64, String, u64)>> {
            connection
                .prepare_cached(
                    "SELECT day, type, total FROM entity_tallies
                     WHERE company_id = ?1 AND entity_id = ?2 AND day >= ?3 ORDER BY day, type",
                )?
                .query_map((company.to_string(), entity, since_day), day_row)?
                .collect()
        };
        days(self.reader.run(move |connection| read(connection).map_err(from_sqlite)).await?)
    }

    async fn company_days(
        &self,
        company: Option<CompanyId>,
        mode: Option<KeyMode>,
        since_day: i64,
    ) -> Result<Vec<DayTally>, StoreError> {
        let (company, mode) = (company.map(|id| id.to_string()), mode.map(KeyMode::as_str));
        let read = move |connection: &Connection| -> rusqlite::Result<Vec<(i64, String, u64)>> {
            connection
                .prepare_cached(if company.is_some() {
                    "SELECT day, type, sum(total) FROM day_tallies
                     WHERE company_id = ?1 AND (?2 IS NULL OR mode = ?2) AND day >= ?3
                     GROUP BY day, type ORDER BY day, type"
                } else {
                    "SELECT day, type, sum(total) FROM day_tallies
                     WHERE ?1 IS NULL AND (?2 IS NULL OR mode = ?2) AND day >= ?3
                     GROUP BY day, type ORDER BY day, type"
                })?
                .query_map((company, mode, since_day), day_row)?
                .collect()
        };
        days(self.reader.run(move |connection| read(connection).map_err(from_sqlite)).await?)
    }

    async fn entities(&self, company: CompanyId, limit: u32) -> Result<Vec<EntityRecord>, StoreError> {
        let read = move |connection: &Connection| -> rusqlite::Result<Vec<EntityRecord>> {
            let record = |row: &Row<'_>| Ok(EntityRecord { id: row.get(0)?, last_day: row.get(1)? });
            connection
                .prepare_cached(
                    "SELECT entity_id, max(day) AS last_day FROM (
                         SELECT entity_id, day FROM entity_tallies WHERE company_id = ?1 ORDER BY day DESC LIMIT ?3
                     ) GROUP BY entity_id ORDER BY last_day DESC, entity_id LIMIT ?2",
                )?
                .query_map((company.to_string(), limit, ENTITY_ROWS_LOOKED_AT_MAX), record)?
                .collect()
        };
        self.reader.run(move |connection| read(connection).map_err(from_sqlite)).await
    }
}

fn day_row(row: &Row<'_>) -> rusqlite::Result<(i64, String, u64)> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

fn days(rows: Vec<(i64, String, u64)>) -> Result<Vec<DayTally>, StoreError> {
    rows.into_iter().map(|(day, kind, total)| Ok(DayTally { day, kind: event_kind(&kind)?, total })).collect()
}

fn event_kind(text: &str) -> Result<EventKind, StoreError> {
    text.parse().map_err(|_| damaged("a tally"))
}

/// Takes away up to `limit` counts of days before that one, each with those it was about; those of one company at a time,
/// as the index has them. A count goes when all those are gone.
pub fn prune(connection: &Connection, before_day: i64, limit: u32) -> Result<u64, StoreError> {
    let days = execute(
        connection,
        "DELETE FROM day_tallies WHERE (company_id, mode, day, type) IN (
             SELECT company_id, mode, day, type FROM day_tallies WHERE day < ?1 LIMIT ?2)",
        (before_day, limit),
    )?;
    let mut gone = 0;
    for (company, entity, day, kind) in old_tallies(connection, before_day, limit)? {
        if gone >= u64::from(limit) {
            break;
        }
        let people = execute(
            connection,
            "DELETE FROM entity_recipients WHERE (company_id, entity_id, type, address) IN (
                 SELECT company_id, entity_id, type, address FROM entity_recipients
                 WHERE company_id = ?1 AND entity_id = ?2 AND type = ?3 AND last_day < ?4 LIMIT ?5)",
            (&company, &entity, &kind, before_day, limit),
        )?;
        gone += people;
        if people < u64::from(limit) {
            gone += execute(
                connection,
                "DELETE FROM entity_tallies WHERE company_id = ?1 AND entity_id = ?2 AND day = ?3 AND type = ?4",
                (&company, &entity, day, &kind),
            )?;
        }
    }
    Ok(days + gone)
}

/// Takes away what companies with a daily limit handed in on up to `limit` days before that one.
pub fn prune_limits(connection: &Connection, before_day: i64, limit: u32) -> Result<u64, StoreError> {
    execute(
        connection,
        "DELETE FROM company_days WHERE (company_id, day) IN (
             SELECT company_id, day FROM company_days WHERE day < ?1 LIMIT ?2)",
        (before_day, limit),
    )
}

type OldTally = (String, String, i64, String);

fn old_tallies(connection: &Connection, before_day: i64, limit: u32) -> Result<Vec<OldTally>, StoreError> {
    let company: Option<String> = connection
        .prepare_cached(
            "SELECT id FROM companies WHERE EXISTS (
                 SELECT 1 FROM entity_tallies WHERE company_id = companies.id AND day < ?1) LIMIT 1",
        )
        .and_then(|mut statement| statement.query_row([before_day], |row| row.get(0)).optional())
        .map_err(from_sqlite)?;
    let Some(company) = company else { return Ok(Vec::new()) };
    let mut statement = connection
        .prepare_cached(
            "SELECT company_id, entity_id, day, type FROM entity_tallies
             WHERE company_id = ?1 AND day < ?2 ORDER BY day LIMIT ?3",
        )
        .map_err(from_sqlite)?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    statement.query_map((company, before_day, limit), read).and_then(Iterator::collect).map_err(from_sqlite)
}
