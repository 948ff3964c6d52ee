//! From the start of an attempt to its recorded end: every write here names status, fence and version.

use model::attempt::LostLease;
use model::{EmailId, Event, EventKind, Failure, Guard, Move, Status, Timestamp, Verdict, WorkerId};
use rusqlite::{Connection, OptionalExtension};
use store::{AttemptStart, Begun, Settled, SettledBy, Settlement, StoreError};

use crate::SqliteStore;
use crate::error::from_sqlite;
use crate::owners::Owners;
use crate::row;
use crate::writer::Work;

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
    let change = Change::of(settlement);
    let Some(seq) = change.apply(work.connection, settlement)? else {
        if settlement.by == SettledBy::Worker {
            keep_late_result(work.connection, settlement)?;
        }
        return Ok(Settled::Late);
    };
    let to = row::moved(work, Status::Processing, change.step)?;
    row::add_events(work.connection, seq, &settlement.events)?;
    Ok(Settled::Done(to))
}

/// What a verdict means for the row; what is `None` stays as it is.
struct Change<'a> {
    step: Move,
    due_at: Option<Timestamp>,
    failed_at: Option<Timestamp>,
    provider: Option<&'a str>,
    provider_message_id: Option<&'a str>,
    duration_ms: Option<u64>,
    failure: Option<&'a Failure>,
    outcome_unknown: bool,
    attempts_given_back: u32,
    starts_given_back: u32,
}

impl<'a> Change<'a> {
    fn of(settlement: &'a Settlement) -> Self {
        let now = settlement.now;
        match &settlement.verdict {
            Verdict::Sent { provider, message_id, duration_ms } => Self {
                provider: Some(provider),
                provider_message_id: message_id.as_deref(),
                duration_ms: Some(*duration_ms),
                ..Self::to(Move::Send)
            },
            Verdict::Retry { due_at, failure, outcome_unknown } => Self {
                due_at: Some(*due_at),
                failure: Some(failure),
                outcome_unknown: *outcome_unknown,
                ..Self::to(Move::Defer)
            },
            Verdict::Hold { failure } => Self {
                due_at: Some(Timestamp::NEVER),
                failure: Some(failure),
                outcome_unknown: true,
                ..Self::to(Move::Defer)
            },
            Verdict::Fail { failure, outcome_unknown } => Self {
                failed_at: Some(now),
                failure: Some(failure),
                outcome_unknown: *outcome_unknown,
                ..Self::to(Move::Fail)
            },
            Verdict::Expire { failure } => Self { failure: failure.as_ref(), ..Self::to(Move::Expire) },
            Verdict::Release { outcome_unknown } => Self {
                due_at: Some(now),
                outcome_unknown: *outcome_unknown,
                attempts_given_back: 1,
                ..Self::to(Move::Release)
            },
            Verdict::PutBack { due_at } => Self {
                due_at: Some(*due_at),
                attempts_given_back: 1,
                starts_given_back: 1,
                ..Self::to(Move::Release)
            },
            Verdict::Requeue { due_at } => Self { due_at: Some(*due_at), ..Self::to(Move::Release) },
        }
    }

    fn to(step: Move) -> Self {
        Self {
            step,
            due_at: None,
            failed_at: None,
            provider: None,
            provider_message_id: None,
            duration_ms: None,
            failure: None,
            outcome_unknown: false,
            attempts_given_back: 0,
            starts_given_back: 0,
        }
    }

    /// Changes the row if it is still as the worker knew it; `None` when it is not. The common end, a success,
    /// has a statement of its own that touches few columns and so few indexes.
    fn apply(&self, connection: &Connection, settlement: &Settlement) -> Result<Option<i64>, StoreError> {
        if matches!(settlement.verdict, Verdict::Sent { .. }) {
            self.apply_sent(connection, settlement)
        } else {
            self.apply_other(connection, settlement)
        }
    }

    fn apply_sent(
        &self,
        connection: &Connection,
        settlement: &Settlement,
    ) -> Result<Option<i64>, StoreError> {
        let Guard { id, fence, version } = settlement.guard;
        connection
            .prepare_cached(
                "UPDATE email_outbox
                 SET status = 'SENT', version = version + 1, lease_until = NULL, lease_owner = NULL,
                     at_provider = 0, unfinished_starts = 0, sent_at = ?4, updated_at = ?4, provider = ?5,
                     provider_message_id = ?6, duration_ms = ?7
                 WHERE id = ?1 AND status = 'PROCESSING' AND fence = ?2 AND version = ?3
                 RETURNING seq",
            )
            .and_then(|mut statement| {
                let bound = (
                    id.to_string(),
                    fence,
                    version,
                    settlement.now.millis(),
                    self.provider,
                    self.provider_message_id,
                    self.duration_ms,
                );
                statement.query_row(bound, |row| row.get(0)).optional()
            })
            .map_err(from_sqlite)
    }

    fn apply_other(
        &self,
        connection: &Connection,
        settlement: &Settlement,
    ) -> Result<Option<i64>, StoreError> {
        let Guard { id, fence, version } = settlement.guard;
        let to =
            Status::Processing.after(self.step).map_err(|illegal| StoreError::Broken(illegal.to_string()))?;
        let lease_seen = match settlement.by {
            SettledBy::Worker => None,
            SettledBy::Sweep { lease_seen } => Some(lease_seen.millis()),
        };
        // A start has ended when its worker says how.
        let is_unfinished = lease_seen.is_some() || self.starts_given_back > 0;
        let dead_at = (to == Status::Failed).then_some(settlement.now.millis());
        connection
            .prepare_cached(
                "UPDATE email_outbox
                 SET status = ?4, version = version + 1, lease_until = NULL, lease_owner = NULL, at_provider = 0,
                     unfinished_starts = CASE WHEN ?5 THEN unfinished_starts - ?16 ELSE 0 END,
                     attempts = attempts - ?6, outcome_unknown = max(outcome_unknown, ?7), due_at = ?8,
                     failed_at = coalesce(?9, failed_at), dead_at = ?10, updated_at = ?11,
                     last_failure_code = coalesce(?12, last_failure_code),
                     last_failure_category = coalesce(?13, last_failure_category),
                     last_failure_reason = coalesce(?14, last_failure_reason),
                     last_failure_at = CASE WHEN ?12 IS NULL THEN last_failure_at ELSE ?11 END
                 WHERE id = ?1 AND status = 'PROCESSING' AND fence = ?2 AND version = ?3
                   AND (?15 IS NULL OR lease_until = ?15)
                 RETURNING seq",
            )
            .and_then(|mut statement| {
                let failure = self.failure;
                let bound = rusqlite::params![
                    id.to_string(),
                    fence,
                    version,
                    to.as_str(),
                    is_unfinished,
                    self.attempts_given_back,
                    self.outcome_unknown,
                    self.due_at.map(Timestamp::millis),
                    self.failed_at.map(Timestamp::millis),
                    dead_at,
                    settlement.now.millis(),
                    failure.map(|failure| failure.code.as_str()),
                    failure.map(|failure| failure.category.as_str()),
                    failure.map(|failure| failure.message.as_str()),
                    lease_seen,
                    self.starts_given_back,
                ];
                statement.query_row(bound, |row| row.get(0)).optional()
            })
            .map_err(from_sqlite)
    }
}

/// A worker that slept through its lease reports: kept, so that the provider's reports still find the email.
fn keep_late_result(connection: &Connection, settlement: &Settlement) -> Result<(), StoreError> {
    let Some(seq) = seq_of(connection, settlement.guard.id)? else { return Ok(()) };
    let event = Event::new(EventKind::LateResult, settlement.now).with("fence", settlement.guard.fence);
    let event = match &settlement.verdict {
        Verdict::Sent { provider, message_id, duration_ms } => event
            .with("result", "SENT")
            .with("provider", provider.as_str())
            .with("providerMessageId", message_id.clone())
            .with("durationMs", *duration_ms),
        Verdict::Retry { failure, .. } | Verdict::Hold { failure } | Verdict::Fail { failure, .. } => {
            event.with("result", "ERROR").with("errorCode", failure.code.as_str())
        }
        Verdict::Expire { .. } => event.with("result", "EXPIRED"),
        Verdict::Release { .. } | Verdict::PutBack { .. } | Verdict::Requeue { .. } => {
            event.with("result", "RELEASED")
        }
    };
    row::add_events(connection, seq, &[event])
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
        lost.push(row::lost_lease(row)?);
    }
    Ok(lost)
}
