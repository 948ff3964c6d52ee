//! The outbox: acceptance, expiry, cancelling. Claims are in `claim`, attempts in `settle`, checking what was
//! accepted unchecked in `intake`.

use async_trait::async_trait;
use model::attempt::LostLease;
use model::{
    Claim, CompanyId, EmailId, ErrorCode, Event, EventKind, Guard, Move, NewEmail, Status, Timestamp,
    WorkerId,
};
use rusqlite::{Connection, OptionalExtension};
use store::change::expiry;
use store::detail::Detail;
use store::tallies::day_of;
use store::{
    Acceptance, Accepted, AttemptStart, Begun, Cancelled, ClaimRequest, IdempotencyKey, IntakeItem,
    IntakeStart, IntakeVerdict, KeptAnswer, Outbox, RetriedNow, Settled, Settlement, StoreError,
    content_codec, count_towards_day, first_id_of,
};

use crate::error::from_sqlite;
use crate::writer::Work;
use crate::{SqliteStore, intake, recipients, row, settle};

/// About what the rows of an email take beside its content, with their entries in indexes.
const ROWS_BYTES: u64 = 4096;

#[async_trait]
impl Outbox for SqliteStore {
    async fn accept(&self, acceptance: Acceptance) -> Result<Accepted, StoreError> {
        self.room.check()?;
        // Compressing is work for the many callers, not for the one writer.
        let blocks: Vec<Vec<u8>> =
            acceptance.emails.iter().map(|email| content_codec::encode(&email.content)).collect();
        self.room.take(blocks.iter().map(|block| block.len() as u64 + ROWS_BYTES).sum())?;
        self.writer.take_in(move |work| accept(work, &acceptance, &blocks)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        self.claim_due(request).await
    }

    async fn begin_suspect(&self, guard: Guard) -> Result<bool, StoreError> {
        self.writer.run(move |work| settle::begin_suspect(work, guard)).await
    }

    async fn begin(&self, start: AttemptStart) -> Result<Begun, StoreError> {
        self.room.check_for_result()?;
        self.writer.run(move |work| settle::begin(work, &start)).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        self.writer.run(move |work| settle::settle(work, &settlement)).await
    }

    async fn renew(
        &self,
        owner: WorkerId,
        guards: Vec<Guard>,
        until: Timestamp,
    ) -> Result<Vec<EmailId>, StoreError> {
        self.writer.run(move |work| settle::renew(work, owner, &guards, until)).await
    }

    async fn lost_leases(&self, now: Timestamp, limit: u32) -> Result<Vec<LostLease>, StoreError> {
        self.find_lost_leases(now, limit).await
    }

    async fn expire(&self, now: Timestamp, limit: u32) -> Result<u32, StoreError> {
        self.writer.run(move |work| expire(work, now, limit)).await
    }

    async fn awaiting_intake(&self, now: Timestamp, limit: u32) -> Result<Vec<IntakeItem>, StoreError> {
        self.reader.run(move |connection| intake::awaiting(connection, now, limit)).await
    }

    async fn begin_intake(
        &self,
        item: (EmailId, u64),
        now: Timestamp,
    ) -> Result<Option<IntakeStart>, StoreError> {
        let begun = self.writer.run(move |work| intake::begin(work, item, now)).await?;
        Ok(begun.map(|(version, block)| IntakeStart::of(version, block.as_deref())))
    }

    async fn settle_intake(
        &self,
        item: (EmailId, u64),
        verdict: IntakeVerdict,
        events: Vec<Event>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.writer.run(move |work| intake::settle(work, item, &verdict, &events, now)).await
    }

    async fn cancel(&self, company: CompanyId, id: EmailId, now: Timestamp) -> Result<Cancelled, StoreError> {
        self.writer.run(move |work| cancel(work, company, id, now)).await
    }

    async fn retry_now(
        &self,
        company: CompanyId,
        id: EmailId,
        now: Timestamp,
    ) -> Result<RetriedNow, StoreError> {
        self.writer.run(move |work| retry_now(work, company, id, now)).await
    }
}

fn accept(work: &mut Work<'_>, acceptance: &Acceptance, blocks: &[Vec<u8>]) -> Result<Accepted, StoreError> {
    if let Some(key) = &acceptance.key
        && let Some(kept) = kept_answer(work.connection, acceptance.company, &key.key, acceptance.now)?
    {
        return Ok(kept.to(&key.body_hash));
    }
    if let Some(limit) = acceptance.daily_limit
        && let Some(refused) = take_from_day(work.connection, acceptance, limit)?
    {
        return Ok(refused);
    }
    if let Some(key) = &acceptance.key {
        keep_key(work.connection, acceptance.company, key)?;
    }
    for (email, block) in acceptance.emails.iter().zip(blocks) {
        insert_email(work, email, block)?;
    }
    Ok(Accepted::Stored)
}

/// What an earlier request with this key was answered, unless its time is over.
pub fn kept_answer(
    connection: &Connection,
    company: CompanyId,
    key: &str,
    now: Timestamp,
) -> Result<Option<KeptAnswer>, StoreError> {
    connection
        .prepare_cached(
            "SELECT body_hash, answer FROM idempotency_keys
             WHERE company_id = ?1 AND key = ?2 AND keep_until > ?3",
        )
        .and_then(|mut statement| {
            let bound = (company.to_string(), key, now.millis());
            let kept =
                |row: &rusqlite::Row<'_>| Ok(KeptAnswer { body_hash: row.get(0)?, answer: row.get(1)? });
            statement.query_row(bound, kept).optional()
        })
        .map_err(from_sqlite)
}

fn keep_key(connection: &Connection, company: CompanyId, key: &IdempotencyKey) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO idempotency_keys (company_id, key, body_hash, answer, keep_until)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (company_id, key) DO UPDATE
             SET body_hash = excluded.body_hash, answer = excluded.answer, keep_until = excluded.keep_until",
        )
        .and_then(|mut statement| {
            let bound =
                (company.to_string(), &key.key, &key.body_hash[..], &key.answer, key.keep_until.millis());
            statement.execute(bound)
        })
        .map_err(from_sqlite)?;
    Ok(())
}

/// Counts the emails towards the company's day, or says why not.
fn take_from_day(
    connection: &Connection,
    acceptance: &Acceptance,
    limit: u32,
) -> Result<Option<Accepted>, StoreError> {
    let (company, day) = (acceptance.company.to_string(), day_of(acceptance.now));
    let kept: Option<i64> = connection
        .prepare_cached("SELECT accepted FROM company_days WHERE company_id = ?1 AND day = ?2")
        .and_then(|mut statement| statement.query_row((&company, day), |row| row.get(0)).optional())
        .map_err(from_sqlite)?;
    let handed_in = match kept {
        Some(handed_in) => handed_in,
        None => handed_in_since(connection, &company, day)?,
    };
    let counted = count_towards_day(handed_in, acceptance.emails.len(), limit);
    // Kept also for those that are refused, so that a day is counted once.
    let after = *counted.as_ref().unwrap_or(&handed_in);
    connection
        .prepare_cached(
            "INSERT INTO company_days (company_id, day, accepted) VALUES (?1, ?2, ?3)
             ON CONFLICT (company_id, day) DO UPDATE SET accepted = excluded.accepted",
        )
        .and_then(|mut statement| statement.execute((&company, day, after)))
        .map_err(from_sqlite)?;
    Ok(counted.err())
}

/// What the company handed in before anybody counted: those from the first email of the day on, in the order of
/// acceptance, which the index alone tells.
fn handed_in_since(connection: &Connection, company: &str, day: i64) -> Result<i64, StoreError> {
    let Some(first) = first_accepted(connection, day).map_err(from_sqlite)? else { return Ok(0) };
    let sql =
        "SELECT count(*) FROM email_outbox INDEXED BY outbox_by_company WHERE company_id = ?1 AND seq >= ?2";
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.query_row((company, first), |row| row.get(0)))
        .map_err(from_sqlite)
}

/// The first email of the day in the order of acceptance, of whatever company. It need not be the one with the first id: those
/// of one millisecond are in any order, and of two requests the later may be stored first, though never by so much.
fn first_accepted(connection: &Connection, day: i64) -> rusqlite::Result<Option<i64>> {
    const OUT_OF_ORDER_MS: i64 = 60_000;
    let from = first_id_of(day).to_string();
    let begin: Option<i64> = connection
        .prepare_cached("SELECT created_at FROM email_outbox WHERE id >= ?1 ORDER BY id LIMIT 1")?
        .query_row([&from], |row| row.get(0))
        .optional()?;
    let Some(begin) = begin else { return Ok(None) };
    let until = Timestamp::from_millis(begin.saturating_add(OUT_OF_ORDER_MS));
    let until = EmailId::from_parts(until, [0; 10]).to_string();
    connection
        .prepare_cached("SELECT min(seq) FROM email_outbox WHERE id >= ?1 AND id < ?2")?
        .query_row([&from, &until], |row| row.get(0))
}

fn insert_email(work: &mut Work<'_>, email: &NewEmail, block: &[u8]) -> Result<(), StoreError> {
    let recipient_id = recipients::upsert(work.connection, email)?;
    let waits = email.status == Status::Enqueued;
    let ttl = email.expires_at.since(email.scheduled_at.unwrap_or(email.created_at));
    work.connection
        .prepare_cached(
            "INSERT INTO email_outbox
                 (id, company_id, status, priority, due_at, expires_at, mode, to_email, subject, created_at,
                  updated_at, scheduled_at, ttl_ms, request_id, external_id, entity_id, recipient_id,
                  recipient_external_id, size_bytes, content_ref, detail, due_after_intake, route)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, 'db:', ?19,
                     ?20, ?21)",
        )
        .and_then(|mut statement| {
            statement.execute(rusqlite::params![
                email.id.to_string(),
                email.company.to_string(),
                email.status.as_str(),
                email.priority,
                waits.then_some(email.due_at.millis()),
                email.expires_at.millis(),
                email.mode.as_str(),
                email.envelope.to.expose(),
                email.envelope.subject.expose(),
                email.created_at.millis(),
                email.scheduled_at.map(Timestamp::millis),
                i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX),
                email.request_id,
                email.external_id,
                email.entity.as_ref().map(|entity| &entity.id),
                recipient_id.map(|id| id.to_string()),
                email.recipient.as_ref().and_then(|recipient| recipient.external_id.as_ref()),
                u64::try_from(email.content.size_bytes()).unwrap_or(u64::MAX),
                Detail::of(email).encode(),
                (!waits).then_some(email.due_at.millis()),
                email.route,
            ])
        })
        .map_err(from_sqlite)?;
    let seq = work.connection.last_insert_rowid();
    work.counts.arrived(email.status);
    work.connection
        .prepare_cached("INSERT INTO contents (email_seq, body) VALUES (?1, ?2)")
        .and_then(|mut statement| statement.execute((seq, block)))
        .map_err(from_sqlite)?;
    add_tags(work.connection, &email.company.to_string(), seq, &email.envelope.tags)?;
    let kind = if waits { EventKind::Enqueued } else { EventKind::Accepted };
    row::add_events(work.connection, seq, &[Event::new(kind, email.created_at)])
}

pub fn add_tags(connection: &Connection, company: &str, seq: i64, tags: &[String]) -> Result<(), StoreError> {
    for tag in tags {
        connection
            .prepare_cached(
                "INSERT OR IGNORE INTO email_tags (company_id, tag, email_seq) VALUES (?1, ?2, ?3)",
            )
            .and_then(|mut statement| statement.execute((company, tag, seq)))
            .map_err(from_sqlite)?;
    }
    Ok(())
}

fn expire(work: &mut Work<'_>, now: Timestamp, limit: u32) -> Result<u32, StoreError> {
    let mut statement = work
        .connection
        .prepare_cached(
            "SELECT seq, status, due_at FROM email_outbox INDEXED BY outbox_expiring
             WHERE due_at IS NOT NULL AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2",
        )
        .map_err(from_sqlite)?;
    let mut rows = statement.query((now.millis(), limit)).map_err(from_sqlite)?;
    let mut expired = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        let seq: i64 = row.get("seq").map_err(from_sqlite)?;
        let due_at: i64 = row.get("due_at").map_err(from_sqlite)?;
        expired.push((seq, row::status(row)?, Timestamp::from_millis(due_at)));
    }
    drop(rows);
    for &(seq, status, due_at) in &expired {
        expire_row(work, seq, status, due_at, now)?;
    }
    Ok(u32::try_from(expired.len()).unwrap_or(u32::MAX))
}

/// Ends a waiting email whose time is over.
pub fn expire_row(
    work: &mut Work<'_>,
    seq: i64,
    status: Status,
    due_at: Timestamp,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (step, event) = expiry(due_at, now);
    let to = row::moved(work, status, step)?;
    let code = ErrorCode::OUTCOME_UNKNOWN;
    let unknown = (to == Status::Failed).then_some(code.as_str());
    work.connection
        .prepare_cached(
            "UPDATE email_outbox
             SET status = ?2, version = version + 1, due_at = NULL, updated_at = ?3,
                 failed_at = CASE WHEN ?4 IS NULL THEN failed_at ELSE ?3 END,
                 dead_at = CASE WHEN ?4 IS NULL THEN NULL ELSE ?3 END,
                 last_failure_code = coalesce(?4, last_failure_code),
                 last_failure_at = CASE WHEN ?4 IS NULL THEN last_failure_at ELSE ?3 END
             WHERE seq = ?1 AND status = ?5",
        )
        .and_then(|mut statement| {
            statement.execute((seq, to.as_str(), now.millis(), unknown, status.as_str()))
        })
        .map_err(from_sqlite)?;
    row::add_events(work.connection, seq, &[event])
}

/// The row of a company's email, as far as cancelling and retrying need it.
fn standing(
    connection: &Connection,
    company: CompanyId,
    id: EmailId,
) -> Result<Option<(i64, Status, bool)>, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT seq, status, at_provider FROM email_outbox WHERE id = ?1 AND company_id = ?2")
        .map_err(from_sqlite)?;
    let mut rows = statement.query((id.to_string(), company.to_string())).map_err(from_sqlite)?;
    let Some(row) = rows.next().map_err(from_sqlite)? else { return Ok(None) };
    let seq = row.get("seq").map_err(from_sqlite)?;
    let at_provider = row.get("at_provider").map_err(from_sqlite)?;
    Ok(Some((seq, row::status(row)?, at_provider)))
}

fn cancel(
    work: &mut Work<'_>,
    company: CompanyId,
    id: EmailId,
    now: Timestamp,
) -> Result<Cancelled, StoreError> {
    let Some((seq, status, at_provider)) = standing(work.connection, company, id)? else {
        return Ok(Cancelled::NotFound);
    };
    if at_provider || status.after(Move::Cancel).is_err() {
        return Ok(Cancelled::TooLate(status));
    }
    cancel_row(work, seq, status, Event::new(EventKind::Cancelled, now))?;
    Ok(Cancelled::Done)
}

pub fn cancel_row(work: &mut Work<'_>, seq: i64, status: Status, event: Event) -> Result<(), StoreError> {
    let to = row::moved(work, status, Move::Cancel)?;
    work.connection
        .prepare_cached(
            "UPDATE email_outbox SET status = ?2, version = version + 1, due_at = NULL, lease_until = NULL,
                 lease_owner = NULL, updated_at = ?3
             WHERE seq = ?1 AND status = ?4",
        )
        .and_then(|mut statement| statement.execute((seq, to.as_str(), event.at.millis(), status.as_str())))
        .map_err(from_sqlite)?;
    row::add_events(work.connection, seq, &[event])
}

fn retry_now(
    work: &mut Work<'_>,
    company: CompanyId,
    id: EmailId,
    now: Timestamp,
) -> Result<RetriedNow, StoreError> {
    let Some((seq, status, _)) = standing(work.connection, company, id)? else {
        return Ok(RetriedNow::NotFound);
    };
    if status.after(Move::RetryNow).is_err() {
        return Ok(RetriedNow::NotWaiting(status));
    }
    let to = row::moved(work, status, Move::RetryNow)?;
    work.connection
        .prepare_cached(
            "UPDATE email_outbox SET status = ?2, version = version + 1, due_at = ?3, updated_at = ?3
             WHERE seq = ?1 AND status = ?4",
        )
        .and_then(|mut statement| statement.execute((seq, to.as_str(), now.millis(), status.as_str())))
        .map_err(from_sqlite)?;
    row::add_events(work.connection, seq, &[Event::new(EventKind::RetryRequested, now)])?;
    Ok(RetriedNow::Done)
}
