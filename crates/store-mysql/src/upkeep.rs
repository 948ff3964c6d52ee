//! Numbers for the operator, retention, and whose database it is. What may be wrong with the server is in `weaknesses`.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use model::alert::FAILURES_WITHIN;
use model::{EmailId, Secret, Status, Timestamp, WorkerId};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder, Row as _};
use store::tallies::{kept_since, limits_kept_since};
use store::{Pruned, QueueStats, Retention, StoreError, Upkeep, Weakness};
use uuid::Uuid;

use crate::counts::DEAD_LETTER;
use crate::error::Fault;
use crate::lane::Lane;
use crate::row::{self, at, get, ids, moment, parsed, push_list};
use crate::{MysqlStore, tallies, weaknesses};

#[async_trait]
impl Upkeep for MysqlStore {
    async fn stats(&self, now: Timestamp) -> Result<QueueStats, StoreError> {
        self.read(now, |connection, now| Box::pin(stats(connection, *now))).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        // Without a transaction: all processes write the same row, and one that was lost would hold it against them.
        let check = self.read(Uuid::new_v4().to_string(), |connection, written| {
            Box::pin(async move {
                let sql = "INSERT INTO meta (name, value) VALUES ('checked', ?) ON DUPLICATE KEY UPDATE value = VALUES(value)";
                sqlx::query(sql).bind(written).execute(&mut *connection).await?;
                sqlx::query("SELECT value FROM meta WHERE name = 'checked'").fetch_one(connection).await?;
                Ok(())
            })
        });
        check.await
    }

    async fn weaknesses(&self) -> Result<Vec<Weakness>, StoreError> {
        self.read(self.pool_max, |connection, pool_max| Box::pin(weaknesses::find(connection, *pool_max)))
            .await
    }

    async fn prune(&self, retention: &Retention, now: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
        let walk = self.pruned_to.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pruning = Pruning { retention: retention.clone(), now, limit, walk };
        let (pruned, to) = self.write(pruning, |lane, pruning| Box::pin(prune(lane, pruning))).await?;
        *self.pruned_to.lock().unwrap_or_else(PoisonError::into_inner) = to;
        Ok(pruned)
    }

    async fn environment(&self, or_set: &str) -> Result<String, StoreError> {
        self.write(or_set.to_owned(), |lane, or_set| Box::pin(set_once(lane, "environment", or_set))).await
    }

    async fn cursor_key(&self, or_set: Secret<String>) -> Result<Secret<String>, StoreError> {
        let set_once =
            self.write(or_set, |lane, or_set| Box::pin(set_once(lane, "cursor_key", or_set.expose())));
        Ok(Secret::new(set_once.await?))
    }

    /// Leases alone decide: a lost connection says nothing about its worker.
    async fn worker_joins(&self, _worker: WorkerId) -> Result<(), StoreError> {
        Ok(())
    }

    /// What it still holds is taken over at once.
    async fn worker_leaves(&self, worker: WorkerId) -> Result<(), StoreError> {
        let leave = self.write(worker, |lane, worker| {
            Box::pin(async move {
                let sql = "SELECT email_id FROM email_queue FORCE INDEX (queue_leased)
                           WHERE lease_until IS NOT NULL AND lease_owner = ?";
                let rows = sqlx::query(sql).bind(worker.to_string()).fetch_all(&mut lane.connection).await?;
                let left: Vec<EmailId> =
                    rows.iter().map(|row| parsed(row, "email_id")).collect::<Result<_, _>>()?;
                if left.is_empty() {
                    return Ok(());
                }
                let mut sql =
                    QueryBuilder::<MySql>::new("UPDATE email_queue SET lease_until = 0 WHERE lease_owner = ");
                sql.push_bind(worker.to_string()).push(" AND lease_until IS NOT NULL AND email_id IN ");
                push_list(&mut sql, ids(&left));
                sql.build().execute(&mut lane.connection).await?;
                Ok(())
            })
        });
        leave.await
    }

    async fn warm_up(&self) {
        join_all(self.group_lanes.iter().chain([&self.claiming]).map(|lanes| lanes.warm_up(1))).await;
    }

    async fn close(&self) {
        self.accepting.close().await;
        self.beginning.close().await;
        self.settling.close().await;
        self.reporting.close().await;
        self.writes.close();
        for lanes in self.group_lanes.iter().chain([&self.claiming, &self.lanes]) {
            lanes.close().await;
        }
        self.pool.close().await;
    }
}

/// What stands under this name: the first to write it decides.
async fn set_once(lane: &mut Lane, name: &str, or_set: &str) -> Result<String, Fault> {
    let sql = "INSERT IGNORE INTO meta (name, value) VALUES (?, ?)";
    sqlx::query(sql).bind(name).bind(or_set).execute(&mut lane.connection).await?;
    let sql = "SELECT value FROM meta WHERE name = ?";
    Ok(sqlx::query(sql).bind(name).fetch_one(&mut lane.connection).await?.try_get("value")?)
}

async fn stats(connection: &mut MySqlConnection, now: Timestamp) -> Result<QueueStats, Fault> {
    let sql = "SELECT status, CAST(SUM(emails) AS SIGNED) AS emails FROM status_counts GROUP BY status";
    let (mut by_status, mut dead_letters) = (BTreeMap::new(), 0);
    for row in sqlx::query(sql).fetch_all(&mut *connection).await? {
        let emails = u64::try_from(get::<i64>(&row, "emails")?).unwrap_or(0);
        if get::<&str>(&row, "status")? == DEAD_LETTER {
            dead_letters = emails;
        } else {
            by_status.insert(row::status(&row)?, emails);
        }
    }
    let sql =
        "SELECT due_at FROM email_queue FORCE INDEX (queue_due) WHERE due_at <= ? ORDER BY due_at LIMIT 1";
    let oldest = sqlx::query(sql).bind(now.millis()).fetch_optional(connection).await?;
    let oldest_due_at = oldest.map(|row| get(&row, "due_at")).transpose()?.map(Timestamp::from_millis);
    Ok(QueueStats { by_status, oldest_due_at, dead_letters, room: None })
}

/// How many rows retention looks at per call besides those it deletes.
const LOOKS_MAX: u32 = 2_000;

/// How far retention has walked through the contents and the emails, in the order of acceptance. What may not go yet is
/// passed over, and met again in the next round. An index over what has ended would find it at once, and would cost
/// every email that is sent a change of that index.
#[derive(Debug, Clone, Default)]
pub struct Walk {
    contents: String,
    emails: String,
}

/// What one step of retention goes by.
struct Pruning {
    retention: Retention,
    now: Timestamp,
    limit: u32,
    walk: Walk,
}

async fn prune(lane: &mut Lane, pruning: &Pruning) -> Result<(Pruned, Walk), Fault> {
    let Pruning { retention, now, limit, walk } = pruning;
    let (now, limit, mut walk) = (*now, *limit, walk.clone());
    let connection = &mut lane.connection;
    let content_end = now.minus(retention.content);
    let contents = over(connection, OLDEST_CONTENTS, &mut walk.contents, content_end, limit).await?;
    let emails =
        over(connection, OLDEST_EMAILS, &mut walk.emails, now.minus(retention.emails), limit).await?;
    delete(connection, "DELETE FROM contents WHERE email_id IN ", &contents).await?;
    let pruned = Pruned {
        contents: contents.len() as u64,
        emails: delete_emails(lane, &emails).await?,
        dead_letters: forget_dead_letters(lane, now.minus(retention.dead_letters), limit).await?,
        idempotency_keys: delete_keys(&mut lane.connection, now, limit).await?,
        tallies: tallies::prune(&mut lane.connection, kept_since(now), limit).await?
            + tallies::prune_limits(&mut lane.connection, limits_kept_since(now), limit).await?,
        is_under_way: !(walk.contents.is_empty() && walk.emails.is_empty()),
    };
    prune_traces(&mut lane.connection, retention, now, limit).await?;
    Ok((pruned, walk))
}

const OLDEST_CONTENTS: &str = "SELECT o.id, o.status, o.updated_at, o.dead_at IS NOT NULL AS is_dead
     FROM contents c FORCE INDEX (PRIMARY) STRAIGHT_JOIN email_outbox o ON o.id = c.email_id
     WHERE c.email_id > ? AND c.email_id < ? ORDER BY c.email_id LIMIT ?";
const OLDEST_EMAILS: &str = "SELECT id, status, updated_at, dead_at IS NOT NULL AS is_dead
     FROM email_outbox FORCE INDEX (PRIMARY) WHERE id > ? AND id < ? ORDER BY id LIMIT ?";

/// Up to `limit` whose time is over, from where the walk stopped; from the beginning when there are none from there on.
async fn over(
    connection: &mut MySqlConnection,
    sql: &'static str,
    from: &mut String,
    end: Timestamp,
    limit: u32,
) -> Result<Vec<EmailId>, Fault> {
    loop {
        let was_at_the_beginning = from.is_empty();
        let looked = oldest(connection, sql, from, end).await?;
        let last = looked.last().map(|old| old.id.to_string()).unwrap_or_default();
        let is_at_the_end = looked.len() < LOOKS_MAX as usize;
        let mut over: Vec<EmailId> = looked.iter().filter(|old| old.is_over(end)).map(|old| old.id).collect();
        let are_more = over.len() > limit as usize;
        over.truncate(limit as usize);
        *from = match over.last() {
            Some(id) if are_more => id.to_string(),
            _ if is_at_the_end => String::new(),
            _ => last,
        };
        if !over.is_empty() || was_at_the_beginning || !is_at_the_end {
            return Ok(over);
        }
    }
}

async fn oldest(
    connection: &mut MySqlConnection,
    sql: &'static str,
    from: &str,
    end: Timestamp,
) -> Result<Vec<Old>, Fault> {
    // What was accepted later has not ended before either; ids begin with the time of acceptance.
    let until = EmailId::from_parts(end.plus(Duration::from_millis(1)), [0; 10]).to_string();
    let rows = sqlx::query(sql).bind(from).bind(until).bind(LOOKS_MAX).fetch_all(connection).await?;
    Ok(rows.iter().map(Old::of).collect::<Result<_, _>>()?)
}

async fn delete_keys(connection: &mut MySqlConnection, now: Timestamp, limit: u32) -> Result<u64, Fault> {
    let sql = "DELETE FROM idempotency_keys WHERE keep_until <= ? ORDER BY keep_until LIMIT ?";
    Ok(sqlx::query(sql).bind(now.millis()).bind(limit).execute(connection).await?.rows_affected())
}

/// What is kept beside the emails, for no longer than they are; failures for as long as they count.
async fn prune_traces(
    connection: &mut MySqlConnection,
    retention: &Retention,
    now: Timestamp,
    limit: u32,
) -> Result<(), Fault> {
    let sql = "DELETE FROM address_failures WHERE at <= ? ORDER BY at LIMIT ?";
    let counted = now.minus(FAILURES_WITHIN).millis();
    sqlx::query(sql).bind(counted).bind(limit).execute(&mut *connection).await?;
    for sql in [
        "DELETE FROM reports WHERE unmatched_since <= ? ORDER BY unmatched_since LIMIT ?",
        "DELETE FROM alerts WHERE created_at <= ? ORDER BY created_at LIMIT ?",
    ] {
        let old = at(now.minus(retention.emails));
        sqlx::query(sql).bind(old).bind(limit).execute(&mut *connection).await?;
    }
    Ok(())
}

struct Old {
    id: EmailId,
    status: Status,
    updated_at: Timestamp,
    is_dead_letter: bool,
}

impl Old {
    fn of(row: &MySqlRow) -> Result<Self, StoreError> {
        Ok(Self {
            id: parsed(row, "id")?,
            status: row::status(row)?,
            updated_at: moment(row, "updated_at")?,
            is_dead_letter: get(row, "is_dead")?,
        })
    }

    /// What can still be replayed is kept whole.
    fn is_finished(&self) -> bool {
        self.status.is_final() && !self.is_dead_letter
    }

    fn is_over(&self, end: Timestamp) -> bool {
        self.is_finished() && self.updated_at <= end
    }
}

async fn delete(connection: &mut MySqlConnection, sql: &str, emails: &[EmailId]) -> Result<(), Fault> {
    if !emails.is_empty() {
        let mut sql = QueryBuilder::<MySql>::new(sql);
        push_list(&mut sql, ids(emails));
        sql.build().execute(connection).await?;
    }
    Ok(())
}

/// Nothing moves a finished email that is no dead letter back into the queue, so what was found may go.
async fn delete_emails(lane: &mut Lane, emails: &[EmailId]) -> Result<u64, Fault> {
    if emails.is_empty() {
        return Ok(0);
    }
    let connection = &mut lane.connection;
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT id, status, updated_at, dead_at IS NOT NULL AS is_dead FROM email_outbox FORCE INDEX (PRIMARY)
         WHERE id IN ",
    );
    push_list(&mut sql, ids(emails));
    sql.push(" ORDER BY id FOR UPDATE");
    let rows = sql.build().fetch_all(&mut *connection).await?;
    let locked: Vec<Old> = rows.iter().map(Old::of).collect::<Result<_, _>>()?;
    let over: Vec<EmailId> = locked.iter().filter(|old| old.is_finished()).map(|old| old.id).collect();
    for sql in [
        "DELETE FROM contents WHERE email_id IN ",
        "DELETE FROM events WHERE email_id IN ",
        "DELETE FROM email_tags WHERE email_id IN ",
        "DELETE FROM reports WHERE email_id IN ",
        "DELETE FROM recipient_states WHERE email_id IN ",
        "DELETE FROM provider_messages WHERE email_id IN ",
        "DELETE FROM email_outbox WHERE id IN ",
    ] {
        delete(connection, sql, &over).await?;
    }
    for old in locked.iter().filter(|old| old.is_finished()) {
        lane.counts.left(old.status);
    }
    Ok(over.len() as u64)
}

async fn forget_dead_letters(lane: &mut Lane, end: Timestamp, limit: u32) -> Result<u64, Fault> {
    let connection = &mut lane.connection;
    let sql =
        "SELECT id FROM email_outbox FORCE INDEX (outbox_dead) WHERE dead_at <= ? ORDER BY dead_at LIMIT ?";
    let rows = sqlx::query(sql).bind(at(end)).bind(limit).fetch_all(&mut *connection).await?;
    let mut over: Vec<EmailId> = rows.iter().map(|row| parsed(row, "id")).collect::<Result<_, _>>()?;
    if over.is_empty() {
        return Ok(0);
    }
    over.sort_unstable();
    let mut sql = QueryBuilder::<MySql>::new(
        "UPDATE email_outbox SET dead_at = NULL WHERE dead_at IS NOT NULL AND id IN ",
    );
    push_list(&mut sql, ids(&over));
    let forgotten = sql.build().execute(connection).await?.rows_affected();
    lane.counts.dead_letters(-i64::try_from(forgotten).unwrap_or(i64::MAX));
    Ok(forgotten)
}
