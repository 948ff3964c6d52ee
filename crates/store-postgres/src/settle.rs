//! From the start of an attempt to its recorded end, many at a time: every write here names status, fence and version.
//!
//! The rows of emails in flight are locked in email_outbox first and then in email_queue, each in the order of their ids.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use model::attempt::LostLease;
use model::{EmailId, EventKind, Guard, Status, Timestamp, WorkerId};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};
use store::change::Change;
use store::consequence::{counted_failures, failed_address, recipient_states};
use store::group::{Group, GroupSize};
use store::record::Record;
use store::suspects::{AT_WORK, HANDED_OUT};
use store::tallies::day_of;
use store::task::on_its_own;
use store::thread::HotThread;
use store::{AttemptStart, Begun, Settled, SettledBy, Settlement, StoreError};
use uuid::Uuid;

use crate::PostgresStore;
use crate::counts::Counts;
use crate::error::Fault;
use crate::failures::{self, Failed};
use crate::feedback::{MESSAGE_ID_BYTES_MAX, note_states};
use crate::lane::{Lane, Lanes};
use crate::late::{find_repeated, keep_late};
use crate::row::{self, History, at, clean, signed, trouble};
use crate::wake::Wake;

/// A claim brings up to 64 emails, which begin and end side by side: no client waits for them.
const SIZE: GroupSize =
    GroupSize { abreast: 1, lanes: 2, group_max: 256, waiting_max: 8_192, gather: Duration::from_millis(1) };

/// `IS TRUE` keeps the planner from making a loop of what is a look into a hash table.
const BEGIN: &str = "WITH start AS (
         SELECT unnest($1::integer[]) AS number, unnest($2::uuid[]) AS id, unnest($3::bigint[]) AS fence,
                unnest($4::bigint[]) AS version, unnest($5::text[]) AS provider, unnest($6::timestamptz[]) AS now
     ), begun AS (
         UPDATE email_outbox o
         SET at_provider = true, provider = start.provider, version = o.version + 1, updated_at = start.now
         FROM start
         WHERE o.id = ANY (ARRAY[start.id]) AND o.status = 'PROCESSING' AND o.fence = start.fence
           AND o.version = start.version AND NOT o.at_provider
         RETURNING start.number
     ), history AS (
         INSERT INTO events (email_id, type, created_at, metadata)
         SELECT email_id, type, created_at, metadata::jsonb
         FROM (SELECT unnest($7::integer[]) AS number, unnest($8::uuid[]) AS email_id, unnest($9::text[]) AS type,
                      unnest($10::timestamptz[]) AS created_at, unnest($11::text[]) AS metadata,
                      generate_subscripts($7::integer[], 1) AS line) AS event
         WHERE (number IN (SELECT number FROM begun)) IS TRUE
         ORDER BY line
     )
     SELECT number FROM begun";

/// What is NULL in an array stays as it is in the row, but for `due_at` and `dead_at`, which are set or cleared. Without a
/// shard (`$27`) the counts are left to the caller.
const SETTLE: &str = "WITH given AS (
         SELECT unnest($1::integer[]) AS number, unnest($2::uuid[]) AS id, unnest($3::bigint[]) AS fence,
                unnest($4::bigint[]) AS version, unnest($5::text[]) AS status, unnest($6::text[]) AS trouble,
                unnest($7::integer[]) AS starts_given_back, unnest($8::integer[]) AS attempts_given_back,
                unnest($9::boolean[]) AS outcome_unknown, unnest($10::bigint[]) AS due_at,
                unnest($11::timestamptz[]) AS now, unnest($12::timestamptz[]) AS sent_at,
                unnest($13::timestamptz[]) AS failed_at, unnest($14::timestamptz[]) AS dead_at,
                unnest($15::text[]) AS code, unnest($16::text[]) AS category, unnest($17::text[]) AS reason,
                unnest($18::text[]) AS provider, unnest($19::text[]) AS provider_message_id,
                unnest($20::bigint[]) AS duration_ms, unnest($21::text[]) AS route, unnest($29::bigint[]) AS sent_day,
                unnest($30::boolean[]) AS by_ses
     ), settled AS (
         UPDATE email_outbox o
         SET status = given.status, trouble = given.trouble, version = o.version + 1, at_provider = false,
             unfinished_starts = coalesce(o.unfinished_starts - given.starts_given_back, 0),
             attempts = o.attempts - given.attempts_given_back,
             outcome_unknown = o.outcome_unknown OR given.outcome_unknown,
             updated_at = given.now, sent_at = coalesce(given.sent_at, o.sent_at),
             failed_at = coalesce(given.failed_at, o.failed_at), dead_at = given.dead_at,
             last_failure_code = coalesce(given.code, o.last_failure_code),
             last_failure_category = coalesce(given.category, o.last_failure_category),
             last_failure_reason = coalesce(given.reason, o.last_failure_reason),
             last_failure_at = CASE WHEN given.code IS NULL THEN o.last_failure_at ELSE given.now END,
             provider = coalesce(given.provider, o.provider),
             provider_message_id = coalesce(given.provider_message_id, o.provider_message_id),
             ses_message_id = CASE WHEN given.provider IS NULL THEN o.ses_message_id
                                   WHEN given.by_ses THEN given.provider_message_id END,
             duration_ms = coalesce(given.duration_ms, o.duration_ms), route = coalesce(given.route, o.route)
         FROM given
         WHERE o.id = ANY (ARRAY[given.id]) AND o.status = 'PROCESSING' AND o.fence = given.fence
           AND o.version = given.version
         RETURNING given.number, o.id, o.status, o.route, given.due_at, given.provider_message_id AS message_id,
                   given.sent_day, o.company_id, o.mode, o.entity_id,
                   CASE WHEN o.entity_id IS NOT NULL THEN lower(o.to_email) END AS address
     ), ended AS (
         DELETE FROM email_queue q USING settled
         WHERE q.email_id = ANY (ARRAY[settled.id]) AND settled.due_at IS NULL
     ), waiting AS (
         UPDATE email_queue q
         SET due_at = settled.due_at, lease_until = NULL, lease_owner = NULL,
             retrying = settled.status = 'RETRY_SCHEDULED', route = settled.route
         FROM settled WHERE q.email_id = ANY (ARRAY[settled.id]) AND settled.due_at IS NOT NULL
     ), messages AS (
         INSERT INTO provider_messages (message_id, email_id)
         SELECT message_id, id FROM settled WHERE octet_length(message_id) <= $28
     ), notes AS (
         INSERT INTO tally_notes (company_id, mode, entity_id, address, day, type, total)
         SELECT company_id, mode, entity_id, address, sent_day, 'SENT', count(*) FROM settled
         WHERE sent_day IS NOT NULL GROUP BY company_id, mode, entity_id, address, sent_day
     ), history AS (
         INSERT INTO events (email_id, type, created_at, metadata)
         SELECT email_id, type, created_at, metadata::jsonb
         FROM (SELECT unnest($22::integer[]) AS number, unnest($23::uuid[]) AS email_id, unnest($24::text[]) AS type,
                      unnest($25::timestamptz[]) AS created_at, unnest($26::text[]) AS metadata,
                      generate_subscripts($22::integer[], 1) AS line) AS event
         WHERE (number IN (SELECT number FROM settled)) IS TRUE
         ORDER BY line
     ), counts AS (
         INSERT INTO status_counts (status, shard, emails)
         SELECT status, $27, sum(change) FROM (
             SELECT status, 1 AS change FROM settled UNION ALL SELECT 'PROCESSING', -1 FROM settled
         ) AS change WHERE $27::smallint IS NOT NULL GROUP BY status ORDER BY status
         ON CONFLICT (status, shard) DO UPDATE SET emails = status_counts.emails + excluded.emails
     )
     SELECT number FROM settled";

/// Which of the sweep's leases still stand as it saw them; nobody renews or ends those until the commit.
const LOCK_SWEPT: &str = "WITH mine AS (
         SELECT o.id, seen.number, seen.lease_seen
         FROM UNNEST($1::integer[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[])
                  AS seen (number, id, fence, version, lease_seen)
              JOIN email_outbox o ON o.id = ANY (ARRAY[seen.id])
         WHERE o.status = 'PROCESSING' AND o.fence = seen.fence AND o.version = seen.version
         ORDER BY o.id FOR UPDATE OF o
     )
     SELECT mine.number FROM mine JOIN email_queue q ON q.email_id = ANY (ARRAY[mine.id])
     WHERE q.lease_until = mine.lease_seen FOR UPDATE OF q";

pub fn group_of_begins(thread: &HotThread, lanes: Lanes) -> Group<AttemptStart, Begun> {
    Group::start(SIZE, thread, move |starts| {
        let lanes = lanes.clone();
        Box::pin(async move { lanes.answer(starts, |lane, starts| Box::pin(begin(lane, starts))).await })
    })
}

pub fn group_of_settlements(thread: &HotThread, lanes: Lanes, wake: Arc<Wake>) -> Group<Settlement, Settled> {
    Group::start(SIZE, thread, move |settlements| {
        let (lanes, wake) = (lanes.clone(), Arc::clone(&wake));
        Box::pin(async move {
            let makes_due = settlements.iter().any(makes_due);
            let settled =
                lanes.answer(settlements, |lane, settlements| Box::pin(settle(lane, settlements))).await;
            if makes_due {
                wake.made_due();
            }
            settled
        })
    })
}

/// The email waits again and is due at once.
fn makes_due(settlement: &Settlement) -> bool {
    let due_at = Change::of(settlement).ok().and_then(|change| change.due_at);
    due_at.is_some_and(|due_at| due_at <= settlement.now)
}

/// The places of `guards` in the order of their ids, in which everybody locks rows.
fn in_order_of_ids<'a>(guards: impl Iterator<Item = &'a Guard>) -> Vec<usize> {
    let mut places: Vec<(EmailId, usize)> =
        guards.enumerate().map(|(place, guard)| (guard.id, place)).collect();
    places.sort_unstable();
    places.into_iter().map(|(_, place)| place).collect()
}

pub fn number(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX)
}

/// Under the guard that it has: whoever hears nothing of it may ask again.
pub async fn begin_suspect(connection: &mut PgConnection, guard: Guard) -> Result<bool, Fault> {
    let count = |starts: u32| i32::try_from(starts).unwrap_or(i32::MAX);
    let begun = sqlx::query(
        "UPDATE email_outbox SET unfinished_starts = $4
         WHERE id = $1 AND status = 'PROCESSING' AND fence = $2 AND version = $3 AND unfinished_starts >= $5",
    )
    .bind(guard.id.uuid())
    .bind(signed(guard.fence))
    .bind(signed(guard.version))
    .bind(count(AT_WORK))
    .bind(count(HANDED_OUT))
    .execute(connection)
    .await?;
    Ok(begun.rows_affected() > 0)
}

async fn begin(lane: &mut Lane, starts: &[AttemptStart]) -> Result<Vec<Begun>, Fault> {
    let order = in_order_of_ids(starts.iter().map(|start| &start.guard));
    let each = || order.iter().map(|&place| &starts[place]);
    let mut history = History::default();
    for &place in &order {
        for event in &starts[place].events {
            history.add(place, starts[place].guard.id, event);
        }
    }
    let rows = sqlx::query(BEGIN)
        .bind(order.iter().map(|&place| number(place)).collect::<Vec<_>>())
        .bind(each().map(|start| start.guard.id.uuid()).collect::<Vec<_>>())
        .bind(each().map(|start| signed(start.guard.fence)).collect::<Vec<_>>())
        .bind(each().map(|start| signed(start.guard.version)).collect::<Vec<_>>())
        .bind(each().map(|start| clean(&start.provider)).collect::<Vec<_>>())
        .bind(each().map(|start| at(start.now)).collect::<Vec<_>>())
        .bind(history.of)
        .bind(history.ids)
        .bind(history.types)
        .bind(history.times)
        .bind(history.metadata)
        .fetch_all(&mut lane.connection)
        .await?;
    let begun = numbers(rows)?;
    let answer = |(place, start): (usize, &AttemptStart)| {
        if begun.contains(&place) {
            Begun::Yes(Guard { version: start.guard.version + 1, ..start.guard })
        } else {
            Begun::Lost
        }
    };
    Ok(starts.iter().enumerate().map(answer).collect())
}

pub fn numbers(rows: Vec<sqlx::postgres::PgRow>) -> Result<HashSet<usize>, Fault> {
    let read =
        |row: &sqlx::postgres::PgRow| Ok(usize::try_from(row.try_get::<i32, _>(0)?).unwrap_or(usize::MAX));
    rows.iter().map(read).collect()
}

pub async fn settle(lane: &mut Lane, settlements: &[Settlement]) -> Result<Vec<Settled>, Fault> {
    let is_swept = |settlement: &Settlement| settlement.by != SettledBy::Worker;
    let connection = &mut lane.connection;
    let mut order = in_order_of_ids(settlements.iter().map(|settlement| &settlement.guard));
    let (has_swept, has_failed) = (
        settlements.iter().any(is_swept),
        settlements.iter().any(|settlement| !counted_failures(&settlement.verdict).is_empty()),
    );
    let is_more = has_swept || has_failed;
    if is_more {
        sqlx::query("BEGIN").execute(&mut *connection).await?;
    }
    if has_swept {
        let standing = lock_swept(connection, settlements, &order).await?;
        order.retain(|place| !is_swept(&settlements[*place]) || standing.contains(place));
    }
    // The counts come last; where something failed there is more to write before.
    let shard = (!has_failed).then_some(lane.shard);
    let settled = apply(connection, shard, settlements, &order).await?;
    let unsettled = || settlements.iter().enumerate().filter(|(place, _)| !settled.contains(place));
    let repeated = find_repeated(connection, unsettled()).await?;
    let late = unsettled().filter(|(place, settlement)| !repeated.contains(place) && !is_swept(settlement));
    keep_late(connection, late.map(|(_, settlement)| settlement)).await?;
    if has_failed {
        count_failed(connection, settlements, &settled).await?;
    }
    if is_more {
        sqlx::query("COMMIT").execute(&mut *connection).await?;
    }
    let answer = |(place, settlement): (usize, &Settlement)| {
        let is_done = settled.contains(&place) || repeated.contains(&place);
        Ok(if is_done { Settled::Done(Change::of(settlement)?.to) } else { Settled::Late })
    };
    settlements.iter().enumerate().map(answer).collect()
}

/// What was given up, or refused, counts against whom it was for. Then come the counts of all.
async fn count_failed(
    connection: &mut PgConnection,
    settlements: &[Settlement],
    settled: &HashSet<usize>,
) -> Result<(), Fault> {
    let mut counts = Counts::default();
    let mut counted: BTreeMap<EmailId, &Settlement> = BTreeMap::new();
    for &place in settled {
        let settlement = &settlements[place];
        counts.moved(Status::Processing, Change::of(settlement)?.to);
        if !counted_failures(&settlement.verdict).is_empty() {
            counted.insert(settlement.guard.id, settlement);
        }
    }
    let records = records(connection, counted.keys()).await?;
    let mut failed = Vec::with_capacity(records.len());
    for record in &records {
        let Some(Settlement { verdict, now, .. }) = counted.remove(&record.id) else { continue };
        for failure in counted_failures(verdict) {
            if let Some(address) = failed_address(failure, record) {
                failed.push(Failed { record, address, code: failure.code.as_str().to_owned(), now: *now });
            }
        }
        note_states(connection, record.id, &recipient_states(verdict, record), *now).await?;
    }
    failures::count(connection, &failed).await?;
    counts.flush(connection).await
}

/// In the order of their ids.
async fn records(
    connection: &mut PgConnection,
    ids: impl Iterator<Item = &EmailId>,
) -> Result<Vec<Record>, Fault> {
    let ids: Vec<Uuid> = ids.map(|id| id.uuid()).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT {}, NULL::bigint AS due_at, NULL::bigint AS lease_until FROM email_outbox o
         WHERE o.id = ANY($1) ORDER BY o.id",
        row::COLUMNS
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(ids).fetch_all(connection).await?;
    rows.iter().map(|row| Ok(row::record(row)?)).collect()
}

async fn lock_swept(
    connection: &mut PgConnection,
    settlements: &[Settlement],
    order: &[usize],
) -> Result<HashSet<usize>, Fault> {
    let lease_seen = |place: &usize| match settlements[*place].by {
        SettledBy::Sweep { lease_seen } => Some((*place, settlements[*place].guard, lease_seen)),
        SettledBy::Worker => None,
    };
    let swept: Vec<(usize, Guard, Timestamp)> = order.iter().filter_map(lease_seen).collect();
    let rows = sqlx::query(LOCK_SWEPT)
        .bind(swept.iter().map(|(place, _, _)| number(*place)).collect::<Vec<_>>())
        .bind(swept.iter().map(|(_, guard, _)| guard.id.uuid()).collect::<Vec<_>>())
        .bind(swept.iter().map(|(_, guard, _)| signed(guard.fence)).collect::<Vec<_>>())
        .bind(swept.iter().map(|(_, guard, _)| signed(guard.version)).collect::<Vec<_>>())
        .bind(swept.iter().map(|(_, _, lease_seen)| lease_seen.millis()).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    numbers(rows)
}

/// Changes the rows that are still as their workers knew them; gives back the places of those.
async fn apply(
    connection: &mut PgConnection,
    shard: Option<i16>,
    settlements: &[Settlement],
    order: &[usize],
) -> Result<HashSet<usize>, Fault> {
    let mut changes = Vec::with_capacity(order.len());
    let mut history = History::default();
    for &place in order {
        let settlement = &settlements[place];
        changes.push((place, settlement, Change::of(settlement)?));
        for event in &settlement.events {
            history.add(place, settlement.guard.id, event);
        }
    }
    let each = || changes.iter().map(|(_, _, change)| change);
    let guards = || changes.iter().map(|(_, settlement, _)| &settlement.guard);
    let failures = || each().map(|change| change.failure);
    let count = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let rows = sqlx::query(SETTLE)
        .bind(changes.iter().map(|(place, _, _)| number(*place)).collect::<Vec<_>>())
        .bind(guards().map(|guard| guard.id.uuid()).collect::<Vec<_>>())
        .bind(guards().map(|guard| signed(guard.fence)).collect::<Vec<_>>())
        .bind(guards().map(|guard| signed(guard.version)).collect::<Vec<_>>())
        .bind(each().map(|change| change.to.as_str()).collect::<Vec<_>>())
        .bind(each().map(|change| trouble(change.to)).collect::<Vec<_>>())
        .bind(each().map(|change| change.starts_given_back.map(count)).collect::<Vec<_>>())
        .bind(each().map(|change| count(change.attempts_given_back)).collect::<Vec<_>>())
        .bind(each().map(|change| change.outcome_unknown).collect::<Vec<_>>())
        .bind(each().map(|change| change.due_at.map(Timestamp::millis)).collect::<Vec<_>>())
        .bind(changes.iter().map(|(_, settlement, _)| at(settlement.now)).collect::<Vec<_>>())
        .bind(each().map(|change| change.sent_at.map(at)).collect::<Vec<_>>())
        .bind(each().map(|change| change.failed_at.map(at)).collect::<Vec<_>>())
        .bind(each().map(|change| change.dead_at.map(at)).collect::<Vec<_>>())
        .bind(failures().map(|failure| failure.map(|failure| failure.code.as_str())).collect::<Vec<_>>())
        .bind(failures().map(|failure| failure.map(|failure| failure.category.as_str())).collect::<Vec<_>>())
        .bind(failures().map(|failure| failure.map(|failure| clean(&failure.message))).collect::<Vec<_>>())
        .bind(each().map(|change| change.provider.map(clean)).collect::<Vec<_>>())
        .bind(each().map(|change| change.provider_message_id.map(clean)).collect::<Vec<_>>())
        .bind(each().map(|change| change.duration_ms.map(signed)).collect::<Vec<_>>())
        .bind(each().map(|change| change.route.map(clean)).collect::<Vec<_>>())
        .bind(history.of)
        .bind(history.ids)
        .bind(history.types)
        .bind(history.times)
        .bind(history.metadata)
        .bind(shard)
        .bind(i32::try_from(MESSAGE_ID_BYTES_MAX).unwrap_or(i32::MAX))
        .bind(changes.iter().map(|(_, settlement, _)| sent_day(settlement)).collect::<Vec<_>>())
        .bind(each().map(|change| change.ses_message_id.is_some()).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    numbers(rows)
}

/// The day on which it was sent, as its history says.
fn sent_day(settlement: &Settlement) -> Option<i64> {
    settlement.events.iter().find(|event| event.kind == EventKind::Sent).map(|event| day_of(event.at))
}

impl PostgresStore {
    /// Returns those whose lease is no longer the owner's.
    pub(crate) async fn renew_leases(
        &self,
        owner: WorkerId,
        guards: Vec<Guard>,
        until: Timestamp,
    ) -> Result<Vec<EmailId>, StoreError> {
        let (lanes, asked) = (self.lanes.clone(), (owner, guards.clone(), until));
        let renewed = on_its_own(Box::pin(async move {
            let renew = lanes.run(&asked, |lane, (owner, guards, until)| {
                Box::pin(renew(&mut lane.connection, *owner, guards, *until))
            });
            renew.await
        }));
        let renewed = renewed.await?;
        let is_lost = |guard: &&Guard| !renewed.contains(&(guard.id.uuid(), signed(guard.fence)));
        Ok(guards.iter().filter(is_lost).map(|guard| guard.id).collect())
    }

    pub(crate) async fn find_lost_leases(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<LostLease>, StoreError> {
        let sql = format!(
            "SELECT {}, q.due_at, q.lease_until
             FROM email_queue q CROSS JOIN LATERAL (SELECT * FROM email_outbox WHERE id = q.email_id OFFSET 0) AS o
             WHERE q.due_at IS NULL AND q.lease_until < $1 AND o.status = 'PROCESSING' LIMIT $2",
            row::COLUMNS
        );
        self.read(async {
            let query = sqlx::query(AssertSqlSafe(sql)).bind(now.millis()).bind(i64::from(limit));
            let rows = query.fetch_all(&self.pool).await?;
            rows.iter().map(|row| Ok(row::record(row)?.lost_lease()?)).collect()
        })
        .await
    }
}

/// Each by its id, locked in their order. As a join it might be planned as a walk through the queue for every email in it:
/// the server takes the queue for empty if it was when last tidied up. Who waits has no owner.
async fn renew(
    connection: &mut PgConnection,
    owner: WorkerId,
    guards: &[Guard],
    until: Timestamp,
) -> Result<HashSet<(Uuid, i64)>, Fault> {
    let mut guards = guards.to_vec();
    guards.sort_unstable_by_key(|guard| guard.id);
    let rows = sqlx::query(
        "UPDATE email_queue SET lease_until = greatest(lease_until, $4)
         WHERE email_id = ANY (ARRAY(
             SELECT held.email_id
             FROM UNNEST($1::uuid[], $2::bigint[]) AS mine (id, fence) CROSS JOIN LATERAL (
                 SELECT email_id FROM email_queue
                 WHERE email_id = mine.id AND lease_owner = $3 AND fence = mine.fence
                 FOR UPDATE
             ) AS held
         ))
         RETURNING email_id, fence",
    )
    .bind(guards.iter().map(|guard| guard.id.uuid()).collect::<Vec<_>>())
    .bind(guards.iter().map(|guard| signed(guard.fence)).collect::<Vec<_>>())
    .bind(owner.uuid())
    .bind(until.millis())
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// The leases of a worker that went end now, so that they are taken over at once.
pub async fn end_leases(connection: &mut PgConnection, owner: WorkerId) -> Result<(), Fault> {
    sqlx::query(
        "UPDATE email_queue SET lease_until = 0
         WHERE email_id = ANY (ARRAY(
             SELECT email_id FROM email_queue WHERE due_at IS NULL AND lease_owner = $1 ORDER BY email_id FOR UPDATE
         ))",
    )
    .bind(owner.uuid())
    .execute(connection)
    .await?;
    Ok(())
}
