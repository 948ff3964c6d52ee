//! All events in the order in which their numbers were given out. Numbers become visible when their transactions end, so
//! a lower one may come after a higher one.

use async_trait::async_trait;
use model::company::KeyMode;
use model::{Address, Event, Secret, Timestamp};
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlRow;
use store::history::{Halving, bounded};
use store::record::damaged;
use store::{Happening, History, StoreError};

use crate::MysqlStore;
use crate::error::Fault;
use crate::row::{self, get, moment, parsed};

#[async_trait]
impl History for MysqlStore {
    async fn last_event(&self) -> Result<u64, StoreError> {
        self.read((), |connection, ()| Box::pin(last_event(connection))).await
    }

    async fn first_event_since(&self, since: Timestamp) -> Result<u64, StoreError> {
        self.read(since, |connection, &since| Box::pin(first_event_since(connection, since))).await
    }

    async fn happened(&self, first: u64, last: u64) -> Result<Vec<Happening>, StoreError> {
        let span = (first, bounded(first, last));
        self.read(span, |connection, &(first, last)| Box::pin(happened(connection, first, last))).await
    }
}

async fn last_event(connection: &mut MySqlConnection) -> Result<u64, Fault> {
    let row = sqlx::query("SELECT MAX(id) AS last FROM events").fetch_one(connection).await?;
    Ok(get::<Option<u64>>(&row, "last")?.unwrap_or(0))
}

async fn first_event_since(connection: &mut MySqlConnection, since: Timestamp) -> Result<u64, Fault> {
    let mut halving = Halving::new(last_event(connection).await?);
    while let Some(number) = halving.next() {
        let sql = "SELECT id, created_at FROM events WHERE id >= ? ORDER BY id LIMIT 1";
        let row = sqlx::query(sql).bind(number).fetch_optional(&mut *connection).await?;
        let event = match &row {
            Some(row) => Some((get::<u64>(row, "id")?, moment(row, "created_at")?)),
            None => None,
        };
        halving.found(number, event, since);
    }
    Ok(halving.answer())
}

/// From the events to their emails, never the other way round.
async fn happened(connection: &mut MySqlConnection, first: u64, last: u64) -> Result<Vec<Happening>, Fault> {
    let sql =
        "SELECT STRAIGHT_JOIN e.id AS number, e.type, e.created_at, e.metadata, o.id, o.company_id, o.mode,
                      o.status, o.to_email, o.subject, o.entity_id, o.provider
               FROM events e JOIN email_outbox o ON o.id = e.email_id
               WHERE e.id BETWEEN ? AND ? ORDER BY e.id";
    let rows = sqlx::query(sql).bind(first).bind(last).fetch_all(connection).await?;
    Ok(rows.iter().map(happening).collect::<Result<_, _>>()?)
}

fn happening(row: &MySqlRow) -> Result<Happening, StoreError> {
    let mut event = Event::new(parsed(row, "type")?, moment(row, "created_at")?);
    let metadata: Option<&str> = get(row, "metadata")?;
    event.metadata = metadata.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    Ok(Happening {
        number: get(row, "number")?,
        email: parsed(row, "id")?,
        company: parsed(row, "company_id")?,
        mode: KeyMode::parse(get(row, "mode")?).ok_or_else(|| damaged("mode"))?,
        status: row::status(row)?,
        to: Address::trusted(get(row, "to_email")?),
        subject: Secret::new(get(row, "subject")?),
        entity: get(row, "entity_id")?,
        provider: get(row, "provider")?,
        event,
    })
}
