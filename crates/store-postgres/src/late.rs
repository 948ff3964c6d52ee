//! Reports of workers that settle nothing: those that are recorded already, and those that come too late.

use std::collections::HashSet;

use model::Verdict;
use sqlx::PgConnection;
use store::Settlement;
use store::change::{late_result, reported_sent};

use crate::error::Fault;
use crate::feedback::MESSAGE_ID_BYTES_MAX;
use crate::row::{History, at, clean, signed};
use crate::settle::{number, numbers};

const REPEATED: &str = "SELECT given.number
     FROM UNNEST($1::integer[], $2::uuid[], $3::bigint[], $4::timestamptz[]) AS given (number, id, fence, sent_at)
     JOIN email_outbox o ON o.id = given.id AND o.fence = given.fence AND o.sent_at = given.sent_at";

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
    let (mut places, mut ids, mut fences, mut times) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (place, settlement) in unsettled {
        if let Some(sent_at) = reported_sent(settlement) {
            places.push(number(place));
            ids.push(settlement.guard.id.uuid());
            fences.push(signed(settlement.guard.fence));
            times.push(at(sent_at));
        }
    }
    if places.is_empty() {
        return Ok(HashSet::new());
    }
    let rows =
        sqlx::query(REPEATED).bind(places).bind(ids).bind(fences).bind(times).fetch_all(connection).await?;
    numbers(rows)
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
