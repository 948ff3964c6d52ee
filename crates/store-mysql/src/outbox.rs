//! The outbox: expiry, cancelling, retrying. Acceptance is in `accept`, claims in `claim`, attempts in `settle`, checking
//! what was accepted unchecked in `intake`.

use async_trait::async_trait;
use model::attempt::LostLease;
use model::{
    Claim, CompanyId, EmailId, ErrorCode, Event, EventKind, Guard, Move, Status, Timestamp, WorkerId,
};
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::change::{expiry, moved};
use store::{
    Acceptance, Accepted, AttemptStart, Begun, Cancelled, ClaimRequest, IntakeItem, IntakeStart,
    IntakeVerdict, Outbox, RetriedNow, Settled, Settlement, StoreError,
};

use crate::error::Fault;
use crate::lane::Lane;
use crate::row::{self, at, get, ids, parsed, push_list};
use crate::{MysqlStore, accept, intake, leases, settle};

#[async_trait]
impl Outbox for MysqlStore {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted, StoreError> {
        self.accepting.ask(accept::Request::new(acceptance)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        self.claim_due(request).await
    }

    async fn begin_suspect(&self, guard: Guard) -> Result<bool, StoreError> {
        let begin = self.write_at_once(guard, |lane, &guard| {
            Box::pin(settle::begin_suspect(&mut lane.connection, guard))
        });
        begin.await
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
        let renew = self.write_at_once((owner, guards, until), |lane, (owner, guards, until)| {
            Box::pin(leases::renew(&mut lane.connection, *owner, guards, *until))
        });
        renew.await
    }

    async fn lost_leases(&self, now: Timestamp, limit: u32) -> Result<Vec<LostLease>, StoreError> {
        self.find_lost_leases(now, limit).await
    }

    async fn expire(&self, now: Timestamp, limit: u32) -> Result<u32, StoreError> {
        self.write((now, limit), |lane, &(now, limit)| Box::pin(expire(lane, now, limit))).await
    }

    async fn awaiting_intake(&self, now: Timestamp, limit: u32) -> Result<Vec<IntakeItem>, StoreError> {
        self.read((now, limit), |connection, &(now, limit)| {
            Box::pin(intake::awaiting(connection, now, limit))
        })
        .await
    }

    async fn begin_intake(
        &self,
        item: (EmailId, u64),
        now: Timestamp,
    ) -> Result<Option<IntakeStart>, StoreError> {
        let begin = self.write((item, now), |lane, &(item, now)| Box::pin(intake::begin(lane, item, now)));
        Ok(begin.await?.map(|(version, block)| IntakeStart::of(version, block.as_deref())))
    }

    async fn settle_intake(
        &self,
        item: (EmailId, u64),
        verdict: IntakeVerdict,
        events: Vec<Event>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let settle = self.write((item, verdict, events, now), |lane, (item, verdict, events, now)| {
            Box::pin(intake::settle(lane, *item, verdict, events, *now))
        });
        settle.await
    }

    async fn cancel(&self, company: CompanyId, id: EmailId, now: Timestamp) -> Result<Cancelled, StoreError> {
        self.write((company, id, now), |lane, &(company, id, now)| Box::pin(cancel(lane, company, id, now)))
            .await
    }

    async fn retry_now(
        &self,
        company: CompanyId,
        id: EmailId,
        now: Timestamp,
    ) -> Result<RetriedNow, StoreError> {
        let retry = self.write((company, id, now), |lane, &(company, id, now)| {
            Box::pin(retry_now(lane, company, id, now))
        });
        retry.await
    }
}

/// A statement over several emails changed them all, or somebody changed one meanwhile.
pub fn all_of(wanted: usize, changed: u64) -> Result<(), Fault> {
    if u64::try_from(wanted) == Ok(changed) { Ok(()) } else { Err(Fault::Overtaken) }
}

/// Takes emails out of the queue.
pub async fn leave_queue(connection: &mut MySqlConnection, emails: &[EmailId]) -> Result<(), Fault> {
    if emails.is_empty() {
        return Ok(());
    }
    let mut sql = QueryBuilder::<MySql>::new("DELETE FROM email_queue WHERE email_id IN ");
    push_list(&mut sql, ids(emails));
    sql.build().execute(connection).await?;
    Ok(())
}

async fn expire(lane: &mut Lane, now: Timestamp, limit: u32) -> Result<u32, Fault> {
    let sql = "SELECT email_id, due_at FROM email_queue FORCE INDEX (queue_expiring)
               WHERE expires_at <= ? AND due_at IS NOT NULL ORDER BY expires_at LIMIT ? FOR UPDATE SKIP LOCKED";
    let rows = sqlx::query(sql).bind(now.millis()).bind(limit).fetch_all(&mut lane.connection).await?;
    let mut emails = Vec::with_capacity(rows.len());
    for row in &rows {
        emails.push((parsed(row, "email_id")?, Timestamp::from_millis(get(row, "due_at")?)));
    }
    expire_emails(lane, &emails, now).await?;
    Ok(u32::try_from(emails.len()).unwrap_or(u32::MAX))
}

/// Ends waiting emails whose time is over, given with their due times. Their rows in the queue are locked.
pub async fn expire_emails(
    lane: &mut Lane,
    emails: &[(EmailId, Timestamp)],
    now: Timestamp,
) -> Result<(), Fault> {
    if emails.is_empty() {
        return Ok(());
    }
    let all: Vec<EmailId> = emails.iter().map(|(id, _)| *id).collect();
    let statuses = statuses(&mut lane.connection, &all).await?;
    let (mut expired, mut failed) = (Vec::new(), Vec::new());
    for (id, due_at) in emails {
        let status = statuses.iter().find(|(other, _)| other == id).map(|(_, status)| *status);
        // One that does not wait was changed by hand: it leaves the queue and is left alone.
        let Some(status) = status.filter(|status| status.is_waiting()) else { continue };
        let (step, _) = expiry(*due_at, now);
        let to = moved(status, step)?;
        lane.counts.moved(status, to);
        if to == Status::Failed { failed.push(*id) } else { expired.push(*id) }
    }
    leave_queue(&mut lane.connection, &all).await?;
    if !expired.is_empty() {
        end_expired(&mut lane.connection, &expired, now).await?;
    }
    if !failed.is_empty() {
        end_held(&mut lane.connection, &failed, now).await?;
        lane.counts.dead_letters(i64::try_from(failed.len()).unwrap_or(i64::MAX));
    }
    Ok(())
}

async fn statuses(
    connection: &mut MySqlConnection,
    emails: &[EmailId],
) -> Result<Vec<(EmailId, Status)>, Fault> {
    let mut sql = QueryBuilder::<MySql>::new("SELECT id, status FROM email_outbox WHERE id IN ");
    push_list(&mut sql, ids(emails));
    let rows = sql.build().fetch_all(connection).await?;
    let read = |row| -> Result<(EmailId, Status), StoreError> { Ok((parsed(row, "id")?, row::status(row)?)) };
    Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
}

async fn end_expired(
    connection: &mut MySqlConnection,
    emails: &[EmailId],
    now: Timestamp,
) -> Result<(), Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "UPDATE email_outbox SET status = 'EXPIRED', trouble = 'EXPIRED', version = version + 1, updated_at = ",
    );
    sql.push_bind(at(now)).push(" WHERE status IN ('ENQUEUED', 'RETRY_SCHEDULED') AND id IN ");
    push_list(&mut sql, ids(emails));
    let ended = sql.build().execute(&mut *connection).await?;
    all_of(emails.len(), ended.rows_affected())?;
    row::add_event_to_each(connection, emails, &expiry(now, now).1).await
}

/// One that is held may have been sent: it is a dead letter for a person to look at.
async fn end_held(connection: &mut MySqlConnection, emails: &[EmailId], now: Timestamp) -> Result<(), Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "UPDATE email_outbox SET status = 'FAILED', trouble = 'FAILED', version = version + 1, updated_at = ",
    );
    sql.push_bind(at(now)).push(", failed_at = ").push_bind(at(now)).push(", dead_at = ").push_bind(at(now));
    sql.push(", last_failure_at = ").push_bind(at(now));
    sql.push(", last_failure_code = ").push_bind(ErrorCode::OUTCOME_UNKNOWN.as_str().to_owned());
    sql.push(" WHERE status = 'RETRY_SCHEDULED' AND id IN ");
    push_list(&mut sql, ids(emails));
    let ended = sql.build().execute(&mut *connection).await?;
    all_of(emails.len(), ended.rows_affected())?;
    row::add_event_to_each(connection, emails, &expiry(Timestamp::NEVER, now).1).await
}

/// Locks a company's email, its row in the queue first if it has one; gives its status and whether it is at a provider.
async fn lock_email(
    connection: &mut MySqlConnection,
    company: CompanyId,
    id: EmailId,
) -> Result<Option<(Status, bool)>, Fault> {
    let sql = "SELECT email_id FROM email_queue WHERE email_id = ? FOR UPDATE";
    sqlx::query(sql).bind(id.to_string()).fetch_optional(&mut *connection).await?;
    let sql = "SELECT status, at_provider FROM email_outbox WHERE id = ? AND company_id = ? FOR UPDATE";
    let row =
        sqlx::query(sql).bind(id.to_string()).bind(company.to_string()).fetch_optional(connection).await?;
    let read =
        |row| -> Result<(Status, bool), StoreError> { Ok((row::status(&row)?, get(&row, "at_provider")?)) };
    Ok(row.map(read).transpose()?)
}

async fn cancel(
    lane: &mut Lane,
    company: CompanyId,
    id: EmailId,
    now: Timestamp,
) -> Result<Cancelled, Fault> {
    let Some((status, at_provider)) = lock_email(&mut lane.connection, company, id).await? else {
        return Ok(Cancelled::NotFound);
    };
    if at_provider || status.after(Move::Cancel).is_err() {
        return Ok(Cancelled::TooLate(status));
    }
    cancel_email(lane, id, status, Event::new(EventKind::Cancelled, now)).await?;
    Ok(Cancelled::Done)
}

/// Withdraws an email whose rows are locked.
pub async fn cancel_email(lane: &mut Lane, id: EmailId, status: Status, event: Event) -> Result<(), Fault> {
    let to = moved(status, Move::Cancel)?;
    lane.counts.moved(status, to);
    let connection = &mut lane.connection;
    leave_queue(connection, &[id]).await?;
    sqlx::query("DELETE FROM email_intake WHERE email_id = ?")
        .bind(id.to_string())
        .execute(&mut *connection)
        .await?;
    sqlx::query(
        "UPDATE email_outbox SET status = ?, trouble = ?, version = version + 1, due_after_intake = NULL, updated_at = ?
         WHERE id = ? AND status = ?",
    )
    .bind(to.as_str())
    .bind(row::trouble(to))
    .bind(at(event.at))
    .bind(id.to_string())
    .bind(status.as_str())
    .execute(&mut *connection)
    .await?;
    row::add_event_to_each(connection, &[id], &event).await
}

async fn retry_now(
    lane: &mut Lane,
    company: CompanyId,
    id: EmailId,
    now: Timestamp,
) -> Result<RetriedNow, Fault> {
    let Some((status, _)) = lock_email(&mut lane.connection, company, id).await? else {
        return Ok(RetriedNow::NotFound);
    };
    let Ok(to) = status.after(Move::RetryNow) else { return Ok(RetriedNow::NotWaiting(status)) };
    lane.counts.moved(status, to);
    let connection = &mut lane.connection;
    let sql = "UPDATE email_queue SET due_at = ? WHERE email_id = ? AND due_at IS NOT NULL";
    let waits = sqlx::query(sql).bind(now.millis()).bind(id.to_string()).execute(&mut *connection).await?;
    all_of(1, waits.rows_affected())?;
    sqlx::query(
        "UPDATE email_outbox SET status = ?, trouble = ?, version = version + 1, updated_at = ?
         WHERE id = ? AND status = ?",
    )
    .bind(to.as_str())
    .bind(row::trouble(to))
    .bind(at(now))
    .bind(id.to_string())
    .bind(status.as_str())
    .execute(&mut *connection)
    .await?;
    row::add_event_to_each(connection, &[id], &Event::new(EventKind::RetryRequested, now)).await?;
    Ok(RetriedNow::Done)
}
