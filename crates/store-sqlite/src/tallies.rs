//! Counts by day. A trigger on the events adds them up as they are written: there is one writer, so nobody waits.

use async_trait::async_trait;
use model::company::KeyMode;
use model::{CompanyId, EventKind};
use rusqlite::{Connection, Row};
use store::record::damaged;
use store::{DayTally, EntityRecord, EntityTally, StoreError, Tallies};

use crate::SqliteStore;
use crate::error::from_sqlite;

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
                    "SELECT entity_id, max(day) AS last_day FROM entity_tallies WHERE company_id = ?1
                     GROUP BY entity_id ORDER BY last_day DESC, entity_id LIMIT ?2",
                )?
                .query_map((company.to_string(), limit), record)?
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
