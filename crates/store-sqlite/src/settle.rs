//! From the start of an attempt to its recorded end: every write here names status, fence and version.

use model::attempt::LostLease;
use model::{EmailId, EventKind, Guard, Status, Timestamp, WorkerId};
use rusqlite::{Connection, OptionalExtension};
use store::change::{Change, Standing, late_result};
use store::consequence::{counted_failures, failed_address, recipient_states};
use store::suspects::{AT_WORK, HANDED_OUT};
use store::{AttemptStart, Begun, Settled, SettledBy, Settlement, StoreError};

use crate::error::from_sqlite;
use crate::feedback::note_state;
use crate::owners::Owners;
use crate::tallies::SentEmail;
use crate::writer::Work;
use crate::{SqliteStore, alerts, messages, row};

/// Under the guard that it has: whoever hears nothing of it may ask again.
pub fn begin_suspect(work: &mut Work<'_>, guard: Guard) -> Result<bool, StoreError> {
    let changed = work
        .connection
        .prepare_cached(
            "UPDATE email_outbox SET unfinished_starts = ?4
             WHERE id = ?1 AND status = 'PROCESSING' AND fence = ?2 AND version = ?3 AND unfinished_starts >= ?5",
        )
        .and_then(|mut statement| {
            statement.execute((guard.id.to_string(), guard.fence, guard.version, AT_WORK, HANDED_OUT))
        })
        .map_err(from_sqlite)?;
    Ok(changed > 0)
}

pub fn begin(work: &mut Work<'_>, start: &AttemptStart) -> Result<Begun, StoreError> {
    let Guard { id, fence, version } = start.guard;
    let seq: Option<i64> = work
        .connection
        .prepare_cached(
            "UPDATE email_outbox SET at_provider = 1, provider = ?4, version = version + 1, updated_at = ?5
             WHERE id = ?1 AND status = 'PROCESSING' AND fence = ?2 AND version = ?3 AND at_provider = 0
             RETURNING seq",
        )
        .and_then(|mut statement| {
            let bound = (id.to_string(), fence, version, &start.provider, start.now.millis());
            statement.query_row(bound, |row| row.get(0)).optional()
        })
        .map_err(from_sqlite)?;
    let Some(seq) = seq else { return Ok(Begun::Lost) };
    row::add_events(work.connection, seq, &start.events)?;
    Ok(Begun::Yes(Guard { version: version + 1, ..start.guard }))
}

pub fn settle(work: &mut Work<'_>, settlement: &Settlement) -> Result<Settled, StoreError> {
    let change = Change::of(settlement)?;
    if change.provider.is_some() {
        messages::keep_earlier(work.connection, settlement.guard, change.provider_message_id)?;
    }
    let Some((seq, email)) = apply(work.connection, settlement, &change)? else {
        if is_repeated(work.connection, settlement, &change)? {
            return Ok(Settled::Done(change.to));
        }
        if settlement.by == SettledBy::Worker
            && let Some(seq) = seq_of(work.connection, settlement.guard.id)?
        {
            row::add_events(work.connection, seq, &[late_result(settlement)])?;
            if let Some(message_id) = change.provider_message_id {
                messages::keep(work.connection, seq, message_id)?;
            }
        }
        return Ok(Settled::Late);
    };
    work.counts.moved(Status::Processing, change.to);
    row::add_events(work.connection, seq, &settlement.events)?;
    if let Some(event) = settlement.events.iter().find(|event| event.kind == EventKind::Sent) {
        work.sent.note(work.connection, email, event.at)?;
    }
    if !counted_failures(&settlement.verdict).is_empty() {
        count_failures(work.connection, seq, settlement)?;
    }
    Ok(Settled::Done(change.to))
}

/// It is recorded already, and the worker has not heard of it.
fn is_repeated(
    connection: &Connection,
    settlement: &Settlement,
    change: &Change<'_>,
) -> Result<bool, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT status, fence, version, sent_at, updated_at FROM email_outbox WHERE id = ?1")
        .map_err(from_sqlite)?;
    let mut rows = statement.query([settlement.guard.id.to_string()]).map_err(from_sqlite)?;
    let Some(row) = rows.next().map_err(from_sqlite)? else { return Ok(false) };
    let sent_at: Option<i64> = row.get("sent_at").map_err(from_sqlite)?;
    let standing = Standing {
        status: row::status(row)?,
        fence: row.get("fence").map_err(from_sqlite)?,
        version: row.get("version").map_err(from_sqlite)?,
        sent_at: sent_at.map(Timestamp::from_millis),
        updated_at: Timestamp::from_millis(row.get("updated_at").map_err(from_sqlite)?),
    };
    Ok(standing.holds(settlement, change))
}

/// What was given up, or refused, counts against whom it was for.
fn count_failures(connection: &Connection, seq: i64, settlement: &Settlement) -> Result<(), StoreError> {
    let (record, now) = (row::at(connection, seq)?, settlement.now);
    for failure in counted_failures(&settlement.verdict) {
        if let Some(address) = failed_address(failure, &record) {
            alerts::count_failure(connection, &record, &address, failure.code.as_str(), now)?;
        }
    }
    for (address, status) in recipient_states(&settlement.verdict, &record) {
        note_state(connection, seq, &address, status, now)?;
    }
    Ok(())
}

/// Changes the row if it is still as the worker knew it; `None` when it is not. The common end, a success, has a
/// statement of its own that touches few columns and so few indexes.
fn apply(
    connection: &Connection,
    settlement: &Settlement,
    change: &Change<'_>,
) -> Result<Option<(i64, SentEmail)>, StoreError> {
    if change.sent_at.is_some() && change.lease_seen.is_none() {
        apply_sent(connection, settlement, change)
    } else {
        apply_other(connection, settlement, change)
    }
}

fn apply_sent(
    connection: &Connection,
    settlement: &Settlement,
    change: &Change<'_>,
) -> Result<Option<(i64, SentEmail)>, StoreError> {
    let Guard { id, fence, version } = settlement.guard;
    connection
        .prepare_cached(
            "UPDATE email_outbox
             SET status = 'SENT', version = version + 1, lease_until = NULL, lease_owner = NULL,
                 at_provider = 0, unfinished_starts = 0, sent_at = ?4, updated_at = ?4, provider = ?5,
                 provider_message_id = ?6, ses_message_id = ?8, duration_ms = ?7
             WHERE id = ?1 AND status = 'PROCESSING' AND fence = ?2 AND version = ?3
             RETURNING seq, company_id, mode, entity_id, to_email",
        )
        .and_then(|mut statement| {
            let bound = (
                id.to_string(),
                fence,
                version,
                settlement.now.millis(),
                change.provider,
                change.provider_message_id,
                change.duration_ms,
                change.ses_message_id,
            );
            statement.query_row(bound, settled_row).optional()
        })
        .map_err(from_sqlite)
}

fn apply_other(
    connection: &Connection,
    settlement: &Settlement,
    change: &Change<'_>,
) -> Result<Option<(i64, SentEmail)>, StoreError> {
    let Guard { id, fence, version } = settlement.guard;
    connection
        .prepare_cached(
            "UPDATE email_outbox
             SET status = ?4, version = version + 1, lease_until = NULL, lease_owner = NULL, at_provider = 0,
                 unfinished_starts = CASE WHEN ?5 IS NULL THEN 0 ELSE unfinished_starts - ?5 END,
                 attempts = attempts - ?6, outcome_unknown = max(outcome_unknown, ?7), due_at = ?8,
                 sent_at = coalesce(?16, sent_at), failed_at = coalesce(?9, failed_at), dead_at = ?10,
                 updated_at = ?11,
                 last_failure_code = coalesce(?12, last_failure_code),
                 last_failure_category = coalesce(?13, last_failure_category),
                 last_failure_reason = coalesce(?14, last_failure_reason),
                 last_failure_at = CASE WHEN ?12 IS NULL THEN last_failure_at ELSE ?11 END,
                 provider = coalesce(?17, provider), provider_message_id = coalesce(?18, provider_message_id),
                 ses_message_id = CASE WHEN ?17 IS NULL THEN ses_message_id ELSE ?21 END,
                 duration_ms = coalesce(?19, duration_ms), route = coalesce(?20, route)
             WHERE id = ?1 AND status = 'PROCESSING' AND fence = ?2 AND version = ?3
               AND (?15 IS NULL OR lease_until = ?15)
             RETURNING seq, company_id, mode, entity_id, to_email",
        )
        .and_then(|mut statement| {
            let failure = change.failure;
            let bound = rusqlite::params![
                id.to_string(),
                fence,
                version,
                change.to.as_str(),
                change.starts_given_back,
                change.attempts_given_back,
                change.outcome_unknown,
                change.due_at.map(Timestamp::millis),
                change.failed_at.map(Timestamp::millis),
                change.dead_at.map(Timestamp::millis),
                settlement.now.millis(),
                failure.map(|failure| failure.code.as_str()),
                failure.map(|failure| failure.category.as_str()),
                failure.map(|failure| failure.message.as_str()),
                change.lease_seen.map(Timestamp::millis),
                change.sent_at.map(Timestamp::millis),
                change.provider,
                change.provider_message_id,
                change.duration_ms,
                change.route,
                change.ses_message_id,
            ];
            statement.query_row(bound, settled_row).optional()
        })
        .map_err(from_sqlite)
}

/// What an update of a settled row gives back.
fn settled_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, SentEmail)> {
    let email = SentEmail { company: row.get(1)?, mode: row.get(2)?, entity: row.get(3)?, to: row.get(4)? };
    Ok((row.get(0)?, email))
}

pub fn seq_of(connection: &Connection, id: EmailId) -> Result<Option<i64>, StoreError> {
    connection
        .prepare_cached("SELECT seq FROM email_outbox WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([id.to_string()], |row| row.get(0)).optional())
        .map_err(from_sqlite)
}

/// Returns those whose lease is no longer the owner's.
pub fn renew(
    work: &mut Work<'_>,
    owner: WorkerId,
    guards: &[Guard],
    until: Timestamp,
) -> Result<Vec<EmailId>, StoreError> {
    let owner = owner.to_string();
    let mut statement = work
        .connection
        .prepare_cached(
            "UPDATE email_outbox SET lease_until = max(lease_until, ?4)
             WHERE id = ?1 AND status = 'PROCESSING' AND fence = ?2 AND lease_owner = ?3",
        )
        .map_err(from_sqlite)?;
    let mut lost = Vec::new();
    for guard in guards {
        let changed = statement
            .execute((guard.id.to_string(), guard.fence, &owner, until.millis()))
            .map_err(from_sqlite)?;
        if changed == 0 {
            lost.push(guard.id);
        }
    }
    Ok(lost)
}

impl SqliteStore {
    /// In flight is never more than the workers hold, so looking at all of it is cheap.
    pub(crate) async fn find_lost_leases(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<LostLease>, StoreError> {
        let owning = self.reader.run(lease_owners).await?;
        let dead = owning.iter().filter(|owner| self.owners.is_dead(owner)).cloned().collect::<Vec<_>>();
        // Those of the dead are lost in any case.
        let now = if self.room.leases_count() { now } else { Timestamp::from_millis(0) };
        let lost = self.reader.run(move |connection| lost_leases(connection, now, &dead, limit)).await?;
        if lost.is_empty() {
            Owners::forget_dead(&self.owners, &owning);
        }
        Ok(lost)
    }
}

fn lease_owners(connection: &Connection) -> Result<Vec<String>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT DISTINCT lease_owner FROM email_outbox INDEXED BY outbox_in_flight WHERE status = 'PROCESSING'",
        )
        .map_err(from_sqlite)?;
    let owners = statement.query_map([], |row| row.get(0)).map_err(from_sqlite)?;
    owners.collect::<Result<_, _>>().map_err(from_sqlite)
}

fn lost_leases(
    connection: &Connection,
    now: Timestamp,
    dead: &[String],
    limit: u32,
) -> Result<Vec<LostLease>, StoreError> {
    let dead = serde_json::to_string(dead).expect("a list of texts can be written");
    let sql = format!(
        "SELECT {} FROM email_outbox INDEXED BY outbox_in_flight
         WHERE status = 'PROCESSING'
           AND (lease_until < ?1 OR lease_owner IN (SELECT value FROM json_each(?2)))
         LIMIT ?3",
        row::COLUMNS
    );
    let mut statement = connection.prepare_cached(&sql).map_err(from_sqlite)?;
    let mut rows = statement.query((now.millis(), dead, limit)).map_err(from_sqlite)?;
    let mut lost = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        lost.push(row::record(row)?.lost_lease()?);
    }
    Ok(lost)
}
