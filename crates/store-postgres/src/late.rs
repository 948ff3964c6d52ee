//! Reports of workers that settle nothing: those that are recorded already, and those that come too late.

use std::collections::HashSet;

use sqlx::PgConnection;
use store::Settlement;
use store::change::{late_result, reported_sent};

use crate::error::Fault;
use crate::row::{History, at, signed};
use crate::settle::{number, numbers};

const REPEATED: &str = "SELECT given.number
     FROM UNNEST($1::integer[], $2::uuid[], $3::bigint[], $4::timestamptz[]) AS given (number, id, fence, sent_at)
     JOIN email_outbox o ON o.id = given.id AND o.fence = given.fence AND o.sent_at = given.sent_at";

/// Of those that are no longer there nothing is kept.
const KEEP_LATE: &str = "INSERT INTO events (email_id, type, created_at, metadata)
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
    for settlement in late {
        history.add(0, settlement.guard.id, &late_result(settlement));
    }
    if !history.ids.is_empty() {
        sqlx::query(KEEP_LATE)
            .bind(history.ids)
            .bind(history.types)
            .bind(history.times)
            .bind(history.metadata)
            .execute(connection)
            .await?;
    }
    Ok(())
}
