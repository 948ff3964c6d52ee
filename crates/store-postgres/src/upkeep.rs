//! Numbers for the operator, retention, and whose database it is. How the server is set up is in `weaknesses`.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use async_trait::async_trait;
use model::alert::FAILURES_WITHIN;
use model::{EmailId, Secret, Status, Timestamp, WorkerId};
use sqlx::{PgConnection, PgPool, Row as _};
use store::detail::Detail;
use store::tallies::{kept_since, limits_kept_since};
use store::{Pruned, QueueStats, Retention, StoreError, Upkeep, Weakness};
use uuid::Uuid;

use crate::counts::Counts;
use crate::error::Fault;
use crate::insert::different_tags;
use crate::row::{self, at};
use crate::{PostgresStore, settle, tallies, weaknesses};

/// How many places (route and company) are looked at for the email that has been due longest.
const PLACES_MAX: i64 = 10_000;

/// How many lanes a busy process uses at once: one takes emails in, one claims, one begins and one settles.
const LANES_AT_START: usize = 4;

#[async_trait]
impl Upkeep for PostgresStore {
    async fn stats(&self, now: Timestamp) -> Result<QueueStats, StoreError> {
        self.read(stats(&self.pool, now)).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.read(check(&self.pool)).await
    }

    async fn weaknesses(&self) -> Result<Vec<Weakness>, StoreError> {
        self.read(weaknesses::find(&self.pool, self.pool_max)).await
    }

    async fn prune(&self, retention: &Retention, now: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
        let from = *self.pruned_to.lock().unwrap_or_else(PoisonError::into_inner);
        let (pruned, to) = self
            .write((retention.clone(), now, limit, from), |c, (retention, now, limit, from)| {
                Box::pin(prune(c, retention, *now, *limit, *from))
            })
            .await?;
        *self.pruned_to.lock().unwrap_or_else(PoisonError::into_inner) = to;
        Ok(pruned)
    }

    async fn environment(&self, or_set: &str) -> Result<String, StoreError> {
        self.write(or_set.to_owned(), |c, or_set| Box::pin(set_once(c, "environment", or_set))).await
    }

    async fn cursor_key(&self, or_set: Secret<String>) -> Result<Secret<String>, StoreError> {
        let key =
            self.write(or_set, |c, or_set| Box::pin(set_once(c, "cursor_key", or_set.expose()))).await?;
        Ok(Secret::new(key))
    }

    /// Leases alone decide: a connection that was lost says nothing about its worker.
    async fn worker_joins(&self, _: WorkerId) -> Result<(), StoreError> {
        Ok(())
    }

    async fn worker_leaves(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.write(worker, |connection, worker| Box::pin(settle::end_leases(connection, *worker))).await
    }

    async fn warm_up(&self) {
        self.lanes.warm_up(LANES_AT_START).await;
    }

    async fn close(&self) {
        self.accepting.close().await;
        self.beginning.close().await;
        self.settling.close().await;
        self.reporting.close().await;
        self.wake.close();
        self.lanes.close().await;
        self.pool.close().await;
    }
}

/// Hops from place to place (route and company) and from priority to priority: the first of each is its oldest.
const OLDEST_DUE: &str = "WITH RECURSIVE hop (route, company_id, looks) AS (
         SELECT ''::text COLLATE \"C\", '00000000-0000-0000-0000-000000000000'::uuid, 0::bigint
       UNION ALL
         SELECT next.route, next.company_id, hop.looks + 1
         FROM hop CROSS JOIN LATERAL (
             SELECT q.route, q.company_id FROM email_queue q
             WHERE q.due_at IS NOT NULL AND (q.route, q.company_id) > (hop.route, hop.company_id)
             ORDER BY q.route, q.company_id LIMIT 1
         ) AS next
         WHERE hop.looks < $2
     )
     SELECT min(first.due_at) FROM hop CROSS JOIN generate_series(1, 10) AS lane (priority)
          CROSS JOIN LATERAL (
              SELECT q.due_at FROM email_queue q
              WHERE q.route = hop.route AND q.company_id = hop.company_id AND q.priority = lane.priority
                AND q.due_at IS NOT NULL
              ORDER BY q.due_at LIMIT 1
          ) AS first
     WHERE first.due_at <= $1";

async fn stats(pool: &PgPool, now: Timestamp) -> Result<QueueStats, Fault> {
    let rows = sqlx::query("SELECT status, sum(emails)::bigint AS emails FROM status_counts GROUP BY status")
        .fetch_all(pool)
        .await?;
    let mut by_status = BTreeMap::new();
    for row in &rows {
        by_status.insert(row::status(row)?, u64::try_from(row.try_get::<i64, _>("emails")?).unwrap_or(0));
    }
    let dead_letters: i64 = sqlx::query("SELECT coalesce(sum(emails), 0)::bigint FROM dead_letter_counts")
        .fetch_one(pool)
        .await?
        .try_get(0)?;
    let oldest: Option<i64> =
        sqlx::query(OLDEST_DUE).bind(now.millis()).bind(PLACES_MAX).fetch_one(pool).await?.try_get(0)?;
    Ok(QueueStats {
        by_status,
        oldest_due_at: oldest.map(Timestamp::from_millis),
        dead_letters: u64::try_from(dead_letters).unwrap_or(0),
        room: None,
    })
}

/// A row is written in earnest: a standby, a full disk and a server that lost its disk all answer questions well. In one
/// statement: all processes write the same row, and a transaction whose process was lost would hold it against them.
async fn check(pool: &PgPool) -> Result<(), Fault> {
    let sql = "WITH written AS (INSERT INTO meta (name, value) VALUES ('checked', 'yes')
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value RETURNING name)
               SELECT count(*) FROM meta, written";
    sqlx::query(sql).fetch_one(pool).await?;
    Ok(())
}

/// What stands under this name: the first to write it decides.
async fn set_once(connection: &mut PgConnection, name: &str, or_set: &str) -> Result<String, Fault> {
    sqlx::query("INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING")
        .bind(name)
        .bind(or_set)
        .execute(&mut *connection)
        .await?;
    // What another process has just written is seen by a new statement only.
    let sql = "SELECT value FROM meta WHERE name = $1";
    Ok(sqlx::query(sql).bind(name).fetch_one(connection).await?.try_get(0)?)
}

/// How many rows retention looks at per call besides those it deletes.
const LOOKS_MAX: i64 = 2_000;

const OLDEST_CONTENTS: &str = "SELECT o.id, o.status, o.updated_at, o.dead_at IS NOT NULL AS is_dead_letter
     FROM (SELECT email_id FROM contents WHERE email_id > $1 AND email_id < $2 ORDER BY email_id LIMIT $3) AS c
          CROSS JOIN LATERAL (SELECT * FROM email_outbox WHERE id = c.email_id) AS o
     ORDER BY o.id";
const OLDEST_EMAILS: &str = "SELECT o.id, o.status, o.updated_at, o.dead_at IS NOT NULL AS is_dead_letter
     FROM email_outbox o WHERE o.id > $1 AND o.id < $2 ORDER BY o.id LIMIT $3";

/// How far retention has walked through the contents and the emails, in the order of acceptance. What may not go yet is
/// passed over, and met again in the next round. An index over what has ended would find it at once, and would cost
/// every email that is sent an entry in every index.
#[derive(Debug, Clone, Copy, Default)]
pub struct Walk {
    contents: Uuid,
    emails: Uuid,
}

async fn prune(
    connection: &mut PgConnection,
    retention: &Retention,
    now: Timestamp,
    limit: u32,
    mut walk: Walk,
) -> Result<(Pruned, Walk), Fault> {
    let (content_end, emails_end) = (now.minus(retention.content), now.minus(retention.emails));
    let contents = over(connection, OLDEST_CONTENTS, &mut walk.contents, content_end, limit).await?;
    let contents: Vec<Uuid> = contents.iter().map(|old| old.id).collect();
    let emails = over(connection, OLDEST_EMAILS, &mut walk.emails, emails_end, limit).await?;
    prune_traces(connection, retention, now, limit).await?;
    let pruned = Pruned {
        contents: delete_contents(connection, &contents).await?,
        idempotency_keys: delete_keys(connection, now, limit).await?,
        tallies: tallies::prune(connection, kept_since(now), limit).await?
            + tallies::prune_limits(connection, limits_kept_since(now), limit).await?,
        is_under_way: !(walk.contents.is_nil() && walk.emails.is_nil()),
        dead_letters: end_dead_letters(connection, now.minus(retention.dead_letters), limit).await?,
        // Last, since it ends with the counts.
        emails: delete_emails(connection, &emails).await?,
    };
    Ok((pruned, walk))
}

/// Up to `limit` whose time is over, from where the walk stopped; from the beginning when there are none from there on.
async fn over(
    connection: &mut PgConnection,
    sql: &'static str,
    from: &mut Uuid,
    end: Timestamp,
    limit: u32,
) -> Result<Vec<Old>, Fault> {
    loop {
        let was_at_the_beginning = from.is_nil();
        let mut looked = oldest(connection, sql, *from, end).await?;
        let last = looked.last().map_or(Uuid::nil(), |old| old.id);
        let is_at_the_end = looked.len() < usize::try_from(LOOKS_MAX).unwrap_or(usize::MAX);
        looked.retain(|old| old.is_over(end));
        let are_more = looked.len() > limit as usize;
        looked.truncate(limit as usize);
        *from = match looked.last() {
            Some(old) if are_more => old.id,
            _ if is_at_the_end => Uuid::nil(),
            _ => last,
        };
        if !looked.is_empty() || was_at_the_beginning || !is_at_the_end {
            return Ok(looked);
        }
    }
}

struct Old {
    id: Uuid,
    status: Status,
    updated_at: Timestamp,
    is_dead_letter: bool,
}

impl Old {
    /// What can still be replayed is kept whole.
    fn is_finished(&self) -> bool {
        self.status.is_final() && !self.is_dead_letter
    }

    fn is_over(&self, end: Timestamp) -> bool {
        self.is_finished() && self.updated_at <= end
    }
}

async fn oldest(
    connection: &mut PgConnection,
    sql: &'static str,
    from: Uuid,
    end: Timestamp,
) -> Result<Vec<Old>, Fault> {
    // What was accepted later has not ended before either; ids begin with the time of acceptance.
    let until = EmailId::from_parts(end.plus(Duration::from_millis(1)), [0; 10]).uuid();
    let rows = sqlx::query(sql).bind(from).bind(until).bind(LOOKS_MAX).fetch_all(connection).await?;
    let read = |row: &sqlx::postgres::PgRow| {
        Ok(Old {
            id: row.try_get("id")?,
            status: row::status(row)?,
            updated_at: row::moment(row, "updated_at")?,
            is_dead_letter: row.try_get("is_dead_letter")?,
        })
    };
    rows.iter().map(read).collect()
}

async fn delete_contents(connection: &mut PgConnection, ids: &[Uuid]) -> Result<u64, Fault> {
    let sql = "DELETE FROM contents WHERE email_id = ANY($1)";
    Ok(sqlx::query(sql).bind(ids).execute(connection).await?.rows_affected())
}

/// Those that are still as they were seen: a report or a person may have moved one meanwhile.
async fn delete_emails(connection: &mut PgConnection, emails: &[Old]) -> Result<u64, Fault> {
    let rows = sqlx::query(
        "WITH gone AS MATERIALIZED (
             SELECT o.id FROM email_outbox o JOIN UNNEST($1::uuid[], $2::text[]) AS old (id, status)
                 ON o.id = ANY (ARRAY[old.id]) AND o.status = old.status AND o.dead_at IS NULL
             ORDER BY o.id FOR UPDATE OF o
         )
         DELETE FROM email_outbox o USING gone WHERE o.id = ANY (ARRAY[gone.id])
         RETURNING o.id, o.status, o.company_id, o.detail",
    )
    .bind(emails.iter().map(|old| old.id).collect::<Vec<_>>())
    .bind(emails.iter().map(|old| old.status.as_str()).collect::<Vec<_>>())
    .fetch_all(&mut *connection)
    .await?;
    let mut counts = Counts::default();
    let mut ids: Vec<Uuid> = Vec::with_capacity(rows.len());
    let (mut tagged, mut tags, mut companies) = (Vec::new(), Vec::new(), Vec::new());
    for row in &rows {
        let id: Uuid = row.try_get("id")?;
        ids.push(id);
        counts.left(row::status(row)?);
        // Of an email whose detail is damaged the tags stay: they lead nowhere.
        let detail = Detail::decode(row.try_get("detail")?);
        for tag in different_tags(&detail.map(|detail| detail.tags).unwrap_or_default()) {
            tagged.push(id);
            tags.push(tag.into_owned());
            companies.push(row.try_get::<Uuid, _>("company_id")?);
        }
    }
    sqlx::query(
        "DELETE FROM email_tags t
         USING UNNEST($1::uuid[], $2::text[], $3::uuid[]) AS old (company_id, tag, email_id)
         WHERE t.company_id = old.company_id AND t.tag = old.tag AND t.email_id = old.email_id",
    )
    .bind(companies)
    .bind(tags)
    .bind(tagged)
    .execute(&mut *connection)
    .await?;
    for sql in [
        "DELETE FROM contents WHERE email_id = ANY($1)",
        "DELETE FROM events WHERE email_id = ANY($1)",
        "DELETE FROM provider_messages WHERE email_id = ANY($1)",
        "DELETE FROM reports WHERE email_id = ANY($1)",
        "DELETE FROM recipient_states WHERE email_id = ANY($1)",
    ] {
        sqlx::query(sql).bind(&ids).execute(&mut *connection).await?;
    }
    counts.flush(connection).await?;
    Ok(ids.len() as u64)
}

/// What is kept beside the emails, for no longer than they are; failures for as long as they count. Here and below the
/// old rows are chosen once: chosen anew for each row of the table, as a plan may have it, they would not end with the
/// limit.
async fn prune_traces(
    connection: &mut PgConnection,
    retention: &Retention,
    now: Timestamp,
    limit: u32,
) -> Result<(), Fault> {
    sqlx::query(
        "WITH old AS MATERIALIZED (
             SELECT company_id, address, at, email_id FROM address_failures WHERE at <= $1 ORDER BY at LIMIT $2
             FOR UPDATE SKIP LOCKED
         )
         DELETE FROM address_failures
         WHERE (company_id, address, at, email_id) IN (SELECT company_id, address, at, email_id FROM old)",
    )
    .bind(now.minus(FAILURES_WITHIN).millis())
    .bind(i64::from(limit))
    .execute(&mut *connection)
    .await?;
    for sql in [
        "WITH old AS MATERIALIZED (
             SELECT id FROM reports WHERE report IS NOT NULL AND received_at <= $1 ORDER BY received_at LIMIT $2
             FOR UPDATE SKIP LOCKED
         )
         DELETE FROM reports WHERE id IN (SELECT id FROM old)",
        "WITH old AS MATERIALIZED (
             SELECT id FROM alerts WHERE created_at <= $1 ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED
         )
         DELETE FROM alerts WHERE id IN (SELECT id FROM old)",
    ] {
        sqlx::query(sql)
            .bind(at(now.minus(retention.emails)))
            .bind(i64::from(limit))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

async fn end_dead_letters(connection: &mut PgConnection, end: Timestamp, limit: u32) -> Result<u64, Fault> {
    let ended = sqlx::query(
        "WITH old AS MATERIALIZED (
             SELECT id FROM email_outbox WHERE dead_at <= $1 ORDER BY dead_at LIMIT $2 FOR UPDATE SKIP LOCKED
         )
         UPDATE email_outbox SET dead_at = NULL WHERE id = ANY (ARRAY(SELECT id FROM old))",
    )
    .bind(at(end))
    .bind(i64::from(limit))
    .execute(connection)
    .await?;
    Ok(ended.rows_affected())
}

async fn delete_keys(connection: &mut PgConnection, now: Timestamp, limit: u32) -> Result<u64, Fault> {
    let deleted = sqlx::query(
        "WITH old AS MATERIALIZED (
             SELECT company_id, key FROM idempotency_keys WHERE keep_until <= $1 ORDER BY keep_until LIMIT $2
             FOR UPDATE SKIP LOCKED
         )
         DELETE FROM idempotency_keys WHERE (company_id, key) IN (SELECT company_id, key FROM old)",
    )
    .bind(now.millis())
    .bind(i64::from(limit))
    .execute(connection)
    .await?;
    Ok(deleted.rows_affected())
}
