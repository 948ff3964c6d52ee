//! Numbers for the operator, retention, and whose database it is.

use std::collections::BTreeMap;

use async_trait::async_trait;
use model::alert::FAILURES_WITHIN;
use model::{Secret, Status, Timestamp, WorkerId};
use rusqlite::Connection;
use store::tallies::{kept_since, limits_kept_since};
use store::{Pruned, QueueStats, Retention, RoomLeft, Routes, StoreError, Upkeep, Weakness};

use crate::error::from_sqlite;
use crate::writer::Work;
use crate::{SqliteStore, claim, row, tallies};

/// How many hops from lane to lane are made for the email that has been due longest.
const HOPS_MAX: usize = 20_000;
/// A round of retention that found no room is made again with this fraction of its size.
const PRUNE_LESS: u32 = 16;
const MIB: u64 = 1024 * 1024;

#[async_trait]
impl Upkeep for SqliteStore {
    async fn stats(&self, now: Timestamp) -> Result<QueueStats, StoreError> {
        let stats = self.reader.run(move |connection| stats(connection, now)).await?;
        Ok(QueueStats { room: self.room.left(), ..stats })
    }

    async fn check(&self) -> Result<(), StoreError> {
        // An empty transaction takes the write lock and proves that the writer answers.
        self.writer.run(|_| Ok(())).await?;
        let read = |connection: &Connection| {
            connection.query_row("SELECT count(*) FROM meta", [], |_| Ok(())).map_err(from_sqlite)
        };
        self.reader.run(read).await?;
        self.room.check()
    }

    async fn weaknesses(&self) -> Result<Vec<Weakness>, StoreError> {
        Ok(self.room.left().filter(|room| room.is_getting_short()).map(getting_short).into_iter().collect())
    }

    async fn prune(&self, retention: &Retention, now: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
        let mut limit = limit;
        loop {
            let retention = retention.clone();
            let pruned = self.writer.run(move |work| prune(work, &retention, now, limit)).await;
            // What is deleted is overwritten, and goes through the log: where there is room for little, little is
            // deleted at a time.
            if limit <= 1 || !matches!(pruned, Err(StoreError::Full(_))) {
                return pruned;
            }
            limit = (limit / PRUNE_LESS).max(1);
        }
    }

    async fn environment(&self, or_set: &str) -> Result<String, StoreError> {
        let or_set = or_set.to_owned();
        self.writer.run(move |work| set_once(work.connection, "environment", &or_set)).await
    }

    async fn cursor_key(&self, or_set: Secret<String>) -> Result<Secret<String>, StoreError> {
        let key =
            self.writer.run(move |work| set_once(work.connection, "cursor_key", or_set.expose())).await?;
        Ok(Secret::new(key))
    }

    async fn worker_joins(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.owners.join(worker)
    }

    async fn worker_leaves(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.owners.leave(worker);
        Ok(())
    }

    async fn close(&self) {
        let writer = self.writer.clone();
        // Only a panic of the writer thread could end this with an error, and then it is closed as well.
        let _ = tokio::task::spawn_blocking(move || writer.close()).await;
        self.reader.close();
    }
}

/// What stands under this name: the first to write it decides.
fn set_once(connection: &Connection, name: &str, or_set: &str) -> Result<String, StoreError> {
    let sql = "INSERT OR IGNORE INTO meta (name, value) VALUES (?1, ?2)";
    connection.execute(sql, [name, or_set]).map_err(from_sqlite)?;
    let sql = "SELECT value FROM meta WHERE name = ?1";
    connection.query_row(sql, [name], |row| row.get(0)).map_err(from_sqlite)
}

fn getting_short(room: RoomLeft) -> Weakness {
    let RoomLeft { free_bytes, reserve_bytes } = room;
    let text = format!(
        "{} MiB are left on the disk of the database; below {} MiB no emails are taken in or sent. Make room, or keep \
         less (retention)",
        free_bytes / MIB,
        reserve_bytes / MIB
    );
    Weakness { setting: "room".to_owned(), text, loses_data: false }
}

fn stats(connection: &Connection, now: Timestamp) -> Result<QueueStats, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT status, emails FROM status_counts").map_err(from_sqlite)?;
    let mut rows = statement.query([]).map_err(from_sqlite)?;
    let mut by_status = BTreeMap::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        by_status.insert(row::status(row)?, row.get("emails").map_err(from_sqlite)?);
    }
    let dead_letters = connection
        .prepare_cached("SELECT count(*) FROM email_outbox INDEXED BY outbox_dead WHERE dead_at IS NOT NULL")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(from_sqlite)?;
    Ok(QueueStats { by_status, oldest_due_at: oldest_due(connection, now)?, dead_letters, room: None })
}

/// Hops from lane to lane (route, company, priority): the first of each is its oldest.
fn oldest_due(connection: &Connection, now: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let mut oldest: Option<i64> = None;
    let (mut place, mut priority) = ((String::new(), String::new()), 0);
    for _ in 0..HOPS_MAX {
        let (route, company) = &place;
        match claim::first_of_next(connection, (route, company, priority))? {
            Some((next, due_at)) => {
                if due_at <= now.millis() {
                    oldest = Some(oldest.map_or(due_at, |oldest| oldest.min(due_at)));
                }
                priority = next;
            }
            None => {
                let Some(next) = claim::next_place(connection, &place, &Routes::All)? else { break };
                (place, priority) = (next, 0);
            }
        }
    }
    Ok(oldest.map(Timestamp::from_millis))
}

/// Finds what has ended by the time of its end, so that neither what waits nor what is too young is ever looked at.
fn prune(
    work: &mut Work<'_>,
    retention: &Retention,
    now: Timestamp,
    limit: u32,
) -> Result<Pruned, StoreError> {
    let mut pruned = Pruned::default();
    for email in ended(work.connection, Ended::WithContent, now.minus(retention.content), limit)? {
        let sql = "DELETE FROM contents WHERE email_seq = ?1";
        pruned.contents += execute(work.connection, sql, [email.seq])?;
        execute(work.connection, "UPDATE email_outbox SET content_ref = '' WHERE seq = ?1", [email.seq])?;
    }
    for email in ended(work.connection, Ended::All, now.minus(retention.emails), limit)? {
        delete_email(work, &email)?;
        pruned.emails += 1;
    }
    pruned.dead_letters = execute(
        work.connection,
        "UPDATE email_outbox SET dead_at = NULL WHERE seq IN (
             SELECT seq FROM email_outbox INDEXED BY outbox_dead
             WHERE dead_at IS NOT NULL AND dead_at <= ?1 LIMIT ?2)",
        (now.minus(retention.dead_letters).millis(), limit),
    )?;
    pruned.idempotency_keys = execute(
        work.connection,
        "DELETE FROM idempotency_keys WHERE (company_id, key) IN (
             SELECT company_id, key FROM idempotency_keys WHERE keep_until <= ?1 ORDER BY keep_until LIMIT ?2)",
        (now.millis(), limit),
    )?;
    prune_traces(work.connection, retention, now, limit)?;
    pruned.tallies = tallies::prune(work.connection, kept_since(now), limit)?
        + tallies::prune_limits(work.connection, limits_kept_since(now), limit)?;
    Ok(pruned)
}

/// What is kept beside the emails, for no longer than they are; failures for as long as they count.
fn prune_traces(
    connection: &Connection,
    retention: &Retention,
    now: Timestamp,
    limit: u32,
) -> Result<(), StoreError> {
    let old = now.minus(retention.emails).millis();
    let counted = now.minus(FAILURES_WITHIN).millis();
    for (sql, until) in [
        (
            "DELETE FROM address_failures WHERE (company_id, address, at, email_id) IN (
                 SELECT company_id, address, at, email_id FROM address_failures WHERE at <= ?1 LIMIT ?2)",
            counted,
        ),
        (
            "DELETE FROM reports WHERE id IN (
                 SELECT id FROM reports WHERE report IS NOT NULL AND received_at <= ?1 LIMIT ?2)",
            old,
        ),
        (
            "DELETE FROM alerts WHERE seq IN (SELECT seq FROM alerts WHERE created_at <= ?1 ORDER BY seq LIMIT ?2)",
            old,
        ),
    ] {
        execute(connection, sql, (until, limit))?;
    }
    Ok(())
}

enum Ended {
    WithContent,
    All,
}

struct Old {
    seq: i64,
    status: Status,
}

/// What ended by then and cannot be replayed. The statuses are those of the index, which SQLite uses only for the
/// very same condition.
fn ended(connection: &Connection, which: Ended, end: Timestamp, limit: u32) -> Result<Vec<Old>, StoreError> {
    let sql = match which {
        Ended::WithContent => {
            "SELECT seq, status FROM email_outbox INDEXED BY outbox_ended
             WHERE content_ref = 'db:' AND updated_at <= ?1 AND dead_at IS NULL
               AND (status = 'SENT' OR status = 'DELIVERED' OR status = 'BOUNCED' OR status = 'COMPLAINED'
                    OR status = 'FAILED' OR status = 'INVALID' OR status = 'EXPIRED' OR status = 'CANCELLED')
             LIMIT ?2"
        }
        Ended::All => {
            "SELECT seq, status FROM email_outbox INDEXED BY outbox_ended
             WHERE content_ref IN ('', 'db:') AND updated_at <= ?1 AND dead_at IS NULL
               AND (status = 'SENT' OR status = 'DELIVERED' OR status = 'BOUNCED' OR status = 'COMPLAINED'
                    OR status = 'FAILED' OR status = 'INVALID' OR status = 'EXPIRED' OR status = 'CANCELLED')
             LIMIT ?2"
        }
    };
    let mut statement = connection.prepare_cached(sql).map_err(from_sqlite)?;
    let mut rows = statement.query((end.millis(), limit)).map_err(from_sqlite)?;
    let mut old = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        old.push(Old { seq: row.get("seq").map_err(from_sqlite)?, status: row::status(row)? });
    }
    Ok(old)
}

fn delete_email(work: &mut Work<'_>, email: &Old) -> Result<(), StoreError> {
    for sql in [
        "DELETE FROM contents WHERE email_seq = ?1",
        "DELETE FROM events WHERE email_seq = ?1",
        "DELETE FROM email_tags WHERE email_seq = ?1",
        "DELETE FROM reports WHERE email_seq = ?1",
        "DELETE FROM recipient_states WHERE email_seq = ?1",
        "DELETE FROM provider_messages WHERE email_seq = ?1",
        "DELETE FROM email_outbox WHERE seq = ?1",
    ] {
        execute(work.connection, sql, [email.seq])?;
    }
    work.counts.left(email.status);
    Ok(())
}

pub fn execute(connection: &Connection, sql: &str, values: impl rusqlite::Params) -> Result<u64, StoreError> {
    let changed = connection.prepare_cached(sql).and_then(|mut statement| statement.execute(values));
    changed.map(|changed| changed as u64).map_err(from_sqlite)
}

#[cfg(test)]
mod tests {
    use store::contract::stage::{a_company, stored};
    use testkit::{START, an_email};

    use super::*;

    /// Some statuses are reached by no verb yet; retention must know them when they are.
    #[tokio::test]
    async fn every_final_status_has_ended() {
        let store = SqliteStore::in_memory().await.expect("opens");
        let company = a_company(&store, "acme").await;
        stored(&store, an_email(company)).await;
        for status in Status::ALL {
            let found = store.writer.run(move |work| {
                execute(work.connection, "UPDATE email_outbox SET status = ?1", [status.as_str()])?;
                ended(work.connection, Ended::All, START, 10)
            });
            assert_eq!(found.await.expect("read").len() == 1, status.is_final(), "{status}");
        }
    }
}
