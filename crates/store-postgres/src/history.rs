//! All events in the order in which their numbers were given out. Numbers become visible when their transactions end, so
//! a lower one may come after a higher one.

use async_trait::async_trait;
use model::company::KeyMode;
use model::{Address, Event, Secret, Timestamp};
use sqlx::postgres::{PgPool, PgRow, Postgres};
use sqlx::{Row as _, Transaction};
use store::history::{SPAN_MAX, bounded};
use store::record::damaged;
use store::{Happening, History, StoreError};

use crate::PostgresStore;
use crate::error::Fault;
use crate::row::{self, at, get, signed};

/// The events first, then the email of each: `OFFSET 0` keeps the planner from reading all emails instead.
const HAPPENED: &str = "SELECT e.id AS number, e.type, e.created_at, e.metadata, o.id, o.company_id, o.mode, o.status, o.to_email, \
            o.subject, o.entity_id, o.provider \
     FROM (SELECT * FROM events WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3) AS e \
          CROSS JOIN LATERAL (SELECT * FROM email_outbox WHERE id = e.email_id OFFSET 0) AS o \
     ORDER BY e.id";

const SINCE: &str = "SELECT min(id) FROM events WHERE created_at >= $1";

/// An index of ranges of pages is read by bitmap, which is switched off for everything else.
const BY_BITMAP: &str = "SET LOCAL enable_bitmapscan = on";

async fn in_order(pool: &PgPool) -> Result<Transaction<'static, Postgres>, Fault> {
    let mut asking = pool.begin().await?;
    sqlx::query(BY_BITMAP).execute(&mut *asking).await?;
    Ok(asking)
}

#[async_trait]
impl History for PostgresStore {
    async fn last_event(&self) -> Result<u64, StoreError> {
        self.read(last_event(&self.pool)).await
    }

    async fn first_event_since(&self, since: Timestamp) -> Result<u64, StoreError> {
        self.read(async {
            let mut asking = in_order(&self.pool).await?;
            let first: Option<i64> =
                sqlx::query(SINCE).bind(at(since)).fetch_one(&mut *asking).await?.try_get(0)?;
            asking.commit().await?;
            match first {
                Some(first) => Ok(u64::try_from(first).unwrap_or(0)),
                None => Ok(last_event(&self.pool).await? + 1),
            }
        })
        .await
    }

    async fn happened(&self, first: u64, last: u64) -> Result<Vec<Happening>, StoreError> {
        let last = bounded(first, last);
        self.read(async {
            let mut asking = in_order(&self.pool).await?;
            let query = sqlx::query(HAPPENED).bind(signed(first)).bind(signed(last)).bind(signed(SPAN_MAX));
            let rows = query.fetch_all(&mut *asking).await?;
            asking.commit().await?;
            Ok(rows.iter().map(happening).collect::<Result<_, _>>()?)
        })
        .await
    }
}

/// The last number given out, whether its event is visible yet or not. Asking the table would read all of it.
async fn last_event(pool: &PgPool) -> Result<u64, Fault> {
    let sql = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('events', 'id')::regclass), 0)";
    let last: i64 = sqlx::query(sql).fetch_one(pool).await?.try_get(0)?;
    Ok(u64::try_from(last).unwrap_or(0))
}

fn happening(row: &PgRow) -> Result<Happening, StoreError> {
    let kind = get::<&str>(row, "type")?.parse().map_err(|_| damaged("an event"))?;
    let mut event = Event::new(kind, row::moment(row, "created_at")?);
    match get::<Option<serde_json::Value>>(row, "metadata")? {
        None => {}
        Some(serde_json::Value::Object(metadata)) => event.metadata = metadata,
        Some(_) => return Err(damaged("the metadata of an event")),
    }
    Ok(Happening {
        number: u64::try_from(get::<i64>(row, "number")?).map_err(|_| damaged("an event"))?,
        email: row::email_id(row, "id")?,
        company: row::company_id(row, "company_id")?,
        mode: KeyMode::parse(get(row, "mode")?).ok_or_else(|| damaged("mode"))?,
        status: row::status(row)?,
        to: Address::trusted(get(row, "to_email")?),
        subject: Secret::new(get(row, "subject")?),
        entity: get(row, "entity_id")?,
        provider: get(row, "provider")?,
        event,
    })
}

#[cfg(test)]
mod tests;
