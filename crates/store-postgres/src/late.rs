//! Reports of workers that settle nothing: those that are recorded already, and those that come too late.

use std::collections::{HashMap, HashSet};

use model::Verdict;
use sqlx::PgConnection;
use sqlx::postgres::PgRow;
use store::change::{Change, Standing, late_result};
use store::{SettledBy, Settlement, StoreError};
use uuid::Uuid;

use crate::error::Fault;
use crate::feedback::MESSAGE_ID_BYTES_MAX;
use crate::row::{self, History, clean};

const STANDINGS: &str =
    "SELECT id, status, fence, version, sent_at, updated_at FROM email_outbox WHERE id = ANY($1)";

/// Of those that are no longer there nothing is kept. The ids of the providers are, so that their reports find the email.
const KEEP_LATE: &str = "WITH messages AS (
         INSERT INTO provider_messages (message_id, email_id)
         SELECT message_id, email_id FROM UNNEST($1::uuid[], $5::text[]) AS sent (email_id, message_id)
         WHERE message_id IS NOT NULL AND EXISTS (SELECT 1 FROM email_outbox o WHERE o.id = email_id)
     )
     INSERT INTO events (email_id, type, created_at, metadata)
     SELECT email_id, type, created_at, metadata::jsonb
     FROM UNNEST($1::uuid[], $2::text[], $3::timestamptz[], $4::text[])
          WITH ORDINALITY AS event (email_id, type, created_at, metadata, line)
     WHERE EXISTS (SELECT 1 FROM email_outbox o WHERE o.id = email_id)
     ORDER BY line";

/// Those that are recorded already, and whose worker has not heard of it.
pub async fn find_repeated(
    connection: &mut PgConnection,
    unsettled: impl Iterator<Item = (usize, &Settlement)>,
) -> Result<HashSet<usize>, Fault> {
    let told: Vec<(usize, &Settlement)> =
        unsettled.filter(|(_, settlement)| settlement.by == SettledBy::Worker).collect();
    if told.is_empty() {
        return Ok(HashSet::new());
    }
    let ids: Vec<Uuid> = told.iter().map(|(_, settlement)| settlement.guard.id.uuid()).collect();
    let mut standings = HashMap::new();
    for row in sqlx::query(STANDINGS).bind(ids).fetch_all(connection).await? {
        standings.insert(row::email_id(&row, "id")?, standing(&row)?);
    }
    let mut repeated = HashSet::new();
    for (place, settlement) in told {
        let change = Change::of(settlement)?;
        if standings.get(&settlement.guard.id).is_some_and(|standing| standing.holds(settlement, &change)) {
            repeated.insert(place);
        }
    }
    Ok(repeated)
}

fn standing(row: &PgRow) -> Result<Standing, StoreError> {
    let count = |name| Ok::<u64, StoreError>(u64::try_from(row::get::<i64>(row, name)?).unwrap_or_default());
    Ok(Standing {
        status: row::status(row)?,
        fence: count("fence")?,
        version: count("version")?,
        sent_at: row::optional_moment(row, "sent_at")?,
        updated_at: row::moment(row, "updated_at")?,
    })
}

pub async fn keep_late(
    connection: &mut PgConnection,
    late: impl Iterator<Item = &Settlement>,
) -> Result<(), Fault> {
    let mut history = History::default();
    let mut messages = Vec::new();
    for settlement in late {
        history.add(0, settlement.guard.id, &late_result(settlement));
        messages.push(message_id(settlement));
    }
    if !history.ids.is_empty() {
        sqlx::query(KEEP_LATE)
            .bind(history.ids)
            .bind(history.types)
            .bind(history.times)
            .bind(history.metadata)
            .bind(messages)
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// The id under which the provider took it, unless nobody could look for it.
fn message_id(settlement: &Settlement) -> Option<String> {
    let Verdict::Sent { message_id, .. } = &settlement.verdict else { return None };
    let message_id = message_id.as_deref().filter(|id| id.len() <= MESSAGE_ID_BYTES_MAX)?;
    Some(clean(message_id).into_owned())
}
