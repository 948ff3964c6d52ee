//! The outbox: what each verb of the port comes to here, expiry, and what people ask for one email. Acceptance is in
//! `accept`, claims in `claim`, attempts in `settle`, checking what was accepted unchecked in `intake`.
//!
//! The rows of a waiting email are locked in email_queue first and then in email_outbox, as a claim does; those of one
//! in flight the other way round, as a settlement does.

use async_trait::async_trait;
use model::attempt::LostLease;
use model::{
    Claim, CompanyId, EmailId, ErrorCode, Event, EventKind, Guard, Move, Status, Timestamp, WorkerId,
};
use sqlx::{PgConnection, Row as _};
use store::change::{expiry, moved};
use store::{
    Acceptance, Accepted, AttemptStart, Begun, Cancelled, ClaimRequest, IntakeItem, IntakeStart,
    IntakeVerdict, Outbox, RetriedNow, Settled, Settlement, StoreError,
};

use crate::accept::Request;
use crate::counts::{Counts, any_shard};
use crate::error::Fault;
use crate::row::{self, History, at, trouble};
use crate::{PostgresStore, intake, settle};

#[async_trait]
impl Outbox for PostgresStore {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted, StoreError> {
        self.accepting.ask(Request::of(acceptance)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        self.claim_due(request).await
    }

    async fn begin_suspect(&self, guard: Guard) -> Result<bool, StoreError> {
        self.write(guard, |c, &guard| Box::pin(settle::begin_suspect(c, guard))).await
    }

    async fn begin(&self, start: AttemptStart) -> Result<Begun, StoreError> {
        self.beginning.ask(start).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        self.settling.ask(settlement).await
    }

    async fn renew(
        &self,
        owner: WorkerId,
        guards: Vec<Guard>,
        until: Timestamp,
    ) -> Result<Vec<EmailId>, StoreError> {
        self.renew_leases(owner, guards, until).await
    }

    async fn lost_leases(&self, now: Timestamp, limit: u32) -> Result<Vec<LostLease>, StoreError> {
        self.find_lost_leases(now, limit).await
    }

    async fn expire(&self, now: Timestamp, limit: u32) -> Result<u32, StoreError> {
        self.write((now, limit), |c, &(now, limit)| Box::pin(expire(c, now, limit))).await
    }

    async fn awaiting_intake(&self, now: Timestamp, limit: u32) -> Result<Vec<IntakeItem>, StoreError> {
        self.read(intake::awaiting(&self.pool, now, limit)).await
    }

    async fn begin_intake(
        &self,
        item: (EmailId, u64),
        now: Timestamp,
    ) -> Result<Option<IntakeStart>, StoreError> {
        let begin = self.write((item, now), |c, &(item, now)| Box::pin(intake::begin(c, item, now)));
        Ok(begin.await?.map(|(version, block)| IntakeStart::of(version, block.as_deref())))
    }

    async fn settle_intake(
        &self,
        item: (EmailId, u64),
        verdict: IntakeVerdict,
        events: Vec<Event>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let passed = matches!(verdict, IntakeVerdict::Passed { .. });
        let settled = self
            .write((item, verdict, events, now), |c, (item, verdict, events, now)| {
                Box::pin(intake::settle(c, *item, verdict, events, *now))
            })
            .await?;
        if settled && passed {
            self.wake.made_due();
        }
        Ok(settled)
    }

    async fn cancel(&self, company: CompanyId, id: EmailId, now: Timestamp) -> Result<Cancelled, StoreError> {
        self.write((company, id, now), |c, &(company, id, now)| Box::pin(cancel(c, company, id, now))).await
    }

    async fn arrival(&self) {
        self.wake.arrival().await;
    }

    async fn retry_now(
        &self,
        company: CompanyId,
        id: EmailId,
        now: Timestamp,
    ) -> Result<RetriedNow, StoreError> {
        let retried = self
            .write((company, id, now), |c, &(company, id, now)| Box::pin(retry_now(c, company, id, now)))
            .await?;
        if retried == RetriedNow::Done {
            self.wake.made_due();
        }
        Ok(retried)
    }
}

/// One that is held (due never) fails, the others expire: `change::expiry` says so, and what is written of it.
const EXPIRE: &str = "WITH over AS MATERIALIZED (
         SELECT email_id, retrying, due_at = $3 AS is_held FROM email_queue
         WHERE due_at >= 0 AND expires_at <= $1 ORDER BY expires_at LIMIT $2
         FOR UPDATE SKIP LOCKED
     ), ended AS (
         UPDATE email_outbox o
         SET status = CASE WHEN is_held THEN 'FAILED' ELSE 'EXPIRED' END,
             trouble = CASE WHEN is_held THEN 'FAILED' ELSE 'EXPIRED' END,
             version = o.version + 1, updated_at = $4,
             failed_at = CASE WHEN is_held THEN $4 ELSE o.failed_at END,
             dead_at = CASE WHEN is_held THEN $4 END,
             last_failure_code = CASE WHEN is_held THEN $5 ELSE o.last_failure_code END,
             last_failure_at = CASE WHEN is_held THEN $4 ELSE o.last_failure_at END
         FROM (SELECT * FROM over ORDER BY email_id) AS over
         WHERE o.id = ANY (ARRAY[over.email_id]) AND o.status IN ('ENQUEUED', 'RETRY_SCHEDULED')
         RETURNING o.id, o.status, over.retrying, over.is_held
     ), removed AS (
         DELETE FROM email_queue q USING ended WHERE q.email_id = ANY (ARRAY[ended.id])
     ), history AS (
         INSERT INTO events (email_id, type, created_at, metadata)
         SELECT id, CASE WHEN is_held THEN $6 ELSE $7 END, $4, CASE WHEN is_held THEN $8::jsonb END FROM ended
     ), counts AS (
         INSERT INTO status_counts (status, shard, emails)
         SELECT status, $9, sum(change) FROM (
             SELECT status, 1 AS change FROM ended
             UNION ALL SELECT CASE WHEN retrying THEN 'RETRY_SCHEDULED' ELSE 'ENQUEUED' END, -1 FROM ended
         ) AS change GROUP BY status ORDER BY status
         ON CONFLICT (status, shard) DO UPDATE SET emails = status_counts.emails + excluded.emails
     )
     SELECT count(*) FROM ended";

async fn expire(connection: &mut PgConnection, now: Timestamp, limit: u32) -> Result<u32, Fault> {
    let (_, failed) = expiry(Timestamp::NEVER, now);
    let (_, expired) = expiry(now, now);
    let count: i64 = sqlx::query(EXPIRE)
        .bind(now.millis())
        .bind(i64::from(limit))
        .bind(Timestamp::NEVER.millis())
        .bind(at(now))
        .bind(ErrorCode::OUTCOME_UNKNOWN.as_str())
        .bind(failed.kind.as_str())
        .bind(expired.kind.as_str())
        .bind(row::metadata(&failed))
        .bind(any_shard())
        .fetch_one(connection)
        .await?
        .try_get(0)?;
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// The row of a company's email, as far as cancelling and retrying need it. Not locked.
async fn standing(
    connection: &mut PgConnection,
    company: CompanyId,
    id: EmailId,
) -> Result<Option<(Status, bool)>, Fault> {
    let row = sqlx::query("SELECT status, at_provider FROM email_outbox WHERE id = $1 AND company_id = $2")
        .bind(id.uuid())
        .bind(company.uuid())
        .fetch_optional(connection)
        .await?;
    row.map(|row| Ok((row::status(&row)?, row.try_get("at_provider")?))).transpose()
}

/// Locks the row that says an email waits. `Changed` when it does not any more.
pub async fn lock_waiting(connection: &mut PgConnection, id: EmailId) -> Result<(), Fault> {
    let locked =
        sqlx::query("SELECT 1 FROM email_queue WHERE email_id = $1 AND due_at IS NOT NULL FOR UPDATE")
            .bind(id.uuid())
            .fetch_optional(connection)
            .await?;
    locked.map(|_| ()).ok_or(Fault::Changed)
}

async fn cancel(
    connection: &mut PgConnection,
    company: CompanyId,
    id: EmailId,
    now: Timestamp,
) -> Result<Cancelled, Fault> {
    let Some((status, at_provider)) = standing(connection, company, id).await? else {
        return Ok(Cancelled::NotFound);
    };
    if at_provider || status.after(Move::Cancel).is_err() {
        return Ok(Cancelled::TooLate(status));
    }
    if status.is_waiting() {
        lock_waiting(connection, id).await?;
    }
    let mut counts = Counts::default();
    cancel_row(connection, &mut counts, id, status, Event::new(EventKind::Cancelled, now)).await?;
    counts.flush(connection).await?;
    Ok(Cancelled::Done)
}

/// Withdraws an email that is still as it was seen; one that waits is locked already.
pub async fn cancel_row(
    connection: &mut PgConnection,
    counts: &mut Counts,
    id: EmailId,
    status: Status,
    event: Event,
) -> Result<(), Fault> {
    let to = moved(status, Move::Cancel)?;
    let cancelled = sqlx::query(
        "UPDATE email_outbox SET status = $2, trouble = $3, version = version + 1, updated_at = $4,
             due_after_intake = NULL
         WHERE id = $1 AND status = $5 AND NOT at_provider",
    )
    .bind(id.uuid())
    .bind(to.as_str())
    .bind(trouble(to))
    .bind(at(event.at))
    .bind(status.as_str())
    .execute(&mut *connection)
    .await?;
    if cancelled.rows_affected() == 0 {
        return Err(Fault::Changed);
    }
    sqlx::query("DELETE FROM email_queue WHERE email_id = $1")
        .bind(id.uuid())
        .execute(&mut *connection)
        .await?;
    counts.moved(status, to);
    History::of_email(id, &[event]).write(connection).await
}

async fn retry_now(
    connection: &mut PgConnection,
    company: CompanyId,
    id: EmailId,
    now: Timestamp,
) -> Result<RetriedNow, Fault> {
    let Some((status, _)) = standing(connection, company, id).await? else {
        return Ok(RetriedNow::NotFound);
    };
    if status.after(Move::RetryNow).is_err() {
        return Ok(RetriedNow::NotWaiting(status));
    }
    let to = moved(status, Move::RetryNow)?;
    lock_waiting(connection, id).await?;
    let changed = sqlx::query(
        "UPDATE email_outbox SET status = $2, trouble = $3, version = version + 1, updated_at = $4
         WHERE id = $1 AND status = $5",
    )
    .bind(id.uuid())
    .bind(to.as_str())
    .bind(trouble(to))
    .bind(at(now))
    .bind(status.as_str())
    .execute(&mut *connection)
    .await?;
    if changed.rows_affected() == 0 {
        return Err(Fault::Changed);
    }
    sqlx::query("UPDATE email_queue SET due_at = $2, retrying = false WHERE email_id = $1")
        .bind(id.uuid())
        .bind(now.millis())
        .execute(&mut *connection)
        .await?;
    History::of_email(id, &[Event::new(EventKind::RetryRequested, now)]).write(connection).await?;
    let mut counts = Counts::default();
    counts.moved(status, to);
    counts.flush(connection).await?;
    Ok(RetriedNow::Done)
}
