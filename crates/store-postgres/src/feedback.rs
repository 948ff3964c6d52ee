//! Reports of providers: kept once, matched to their emails, carried out, each in a transaction of its own.
//!
//! A transaction locks the report, then the email (as everybody does: see `outbox`), then what is kept by address in the
//! order of the addresses, then alerts, and the counts last.

use std::time::Duration;

use async_trait::async_trait;
use model::{Address, CompanyId, EmailId, Report, Status, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row as _};
use store::change::ses_message_id;
use store::consequence::{Consequence, failure_code, other_message_id, outranks, subject_of};
use store::feedback::REMATCH_FOR;
use store::group::{Group, GroupSize};
use store::record::{Record, damaged};
use store::thread::HotThread;
use store::{Feedback, KeptReport, RecipientState, ReportArrival, Reported, StoreError, report_codec};
use uuid::Uuid;

use crate::PostgresStore;
use crate::counts::Counts;
use crate::error::Fault;
use crate::failures::{self, Failed};
use crate::lane::{Lane, Lanes};
use crate::outbox::lock_waiting;
use crate::row::{self, History, at, clean, moment, trouble};
use crate::{alerts, suppressions};

/// A report each, since what follows from it is its own; a few at once share the server's syncs to disk. Providers send
/// again what waits too long.
const SIZE: GroupSize =
    GroupSize { abreast: 4, lanes: 4, group_max: 1, waiting_max: 8_192, gather: Duration::ZERO };

/// Longer ones are no provider's, and would not fit into an index.
pub const MESSAGE_ID_BYTES_MAX: usize = 1_000;

/// By our own id, which travels with every email, or else by the provider's: of `$id` and `$message`.
macro_rules! find {
    ($id:literal, $message:literal) => {
        concat!(
            "SELECT id, status FROM (
                 SELECT 1 AS turn, o.id, o.status FROM email_outbox o WHERE o.id = ",
            $id,
            " UNION ALL
                 (SELECT 2, o.id, o.status
                  FROM (SELECT email_id FROM provider_messages WHERE message_id = ",
            $message,
            " OFFSET 0) AS m JOIN email_outbox o ON o.id = ANY (ARRAY[m.email_id])
                  ORDER BY m.email_id DESC LIMIT 1)
             ) AS either ORDER BY turn LIMIT 1"
        )
    };
}

const KEEP: &str = concat!(
    "WITH found AS MATERIALIZED (",
    find!("$1", "$2"),
    "), kept AS (
         INSERT INTO reports (id, provider, email_id, received_at, payload, report)
         SELECT $3, $4, (SELECT id FROM found), $5, $6, CASE WHEN NOT EXISTS (SELECT 1 FROM found) THEN $7 END
         ON CONFLICT DO NOTHING RETURNING 1
     )
     SELECT EXISTS (SELECT 1 FROM kept) AS is_new, found.id, found.status
     FROM (SELECT) AS always LEFT JOIN found ON true"
);

const FIND_EACH: &str = concat!(
    "SELECT given.number, found.id
     FROM UNNEST($1::uuid[], $2::text[]) WITH ORDINALITY AS given (id, message_id, number)
          CROSS JOIN LATERAL (",
    find!("given.id", "given.message_id COLLATE \"C\""),
    ") AS found ORDER BY given.number"
);

/// What is known only from the report is filled in; nobody works on the email any more.
const MOVE: &str = "WITH moved AS (
         UPDATE email_outbox
         SET status = $2, trouble = $3, version = version + 1, at_provider = false, unfinished_starts = 0,
             updated_at = $4, provider_message_id = coalesce(provider_message_id, $5),
             ses_message_id = CASE WHEN provider_message_id IS NULL THEN $11 ELSE ses_message_id END,
             sent_at = CASE WHEN $2 = 'FAILED' THEN sent_at ELSE coalesce(sent_at, $6) END,
             delivered_at = CASE WHEN $2 = 'DELIVERED' THEN coalesce(delivered_at, $6) ELSE delivered_at END,
             failed_at = CASE WHEN $2 = 'FAILED' THEN $6 ELSE failed_at END,
             dead_at = CASE WHEN $2 = 'FAILED' THEN $4 END,
             last_failure_code = coalesce($7, last_failure_code),
             last_failure_category = coalesce($8, last_failure_category),
             last_failure_reason = coalesce($9, last_failure_reason),
             last_failure_at = CASE WHEN $7 IS NULL THEN last_failure_at ELSE $6 END
         WHERE id = $1 AND status = $10
         RETURNING id
     )
     DELETE FROM email_queue q USING moved WHERE q.email_id = ANY (ARRAY[moved.id])";

#[async_trait]
impl Feedback for PostgresStore {
    async fn report(&self, arrival: ReportArrival) -> Result<Reported, StoreError> {
        self.reporting.ask(arrival).await
    }

    async fn rematch(&self, now: Timestamp, limit: u32) -> Result<u32, StoreError> {
        let found = self.read(unmatched(&self.pool, now, limit)).await?;
        let mut matched = 0;
        for (report, id) in found {
            let done = self
                .write((report, id, now), |c, (report, id, now)| Box::pin(match_one(c, report, *id, *now)))
                .await?;
            matched += u32::from(done);
        }
        Ok(matched)
    }

    async fn recipient_states(
        &self,
        company: CompanyId,
        id: EmailId,
    ) -> Result<Vec<RecipientState>, StoreError> {
        self.read(states(&self.pool, company, id)).await
    }

    async fn reports(&self, company: CompanyId, id: EmailId) -> Result<Vec<KeptReport>, StoreError> {
        self.read(reports(&self.pool, company, id)).await
    }

    async fn last_report(&self, provider: &str) -> Result<Option<Timestamp>, StoreError> {
        self.read(async {
            let sql = "SELECT received_at FROM reports WHERE provider = $1 ORDER BY received_at DESC LIMIT 1";
            let row = sqlx::query(sql).bind(clean(provider)).fetch_optional(&self.pool).await?;
            Ok(row.map(|row| moment(&row, "received_at")).transpose()?)
        })
        .await
    }
}

pub fn group(thread: &HotThread, lanes: Lanes) -> Group<ReportArrival, Reported> {
    Group::start(SIZE, thread, move |arrivals| {
        let lanes = lanes.clone();
        Box::pin(async move {
            lanes.answer(arrivals, |lane, arrivals| Box::pin(report_all(lane, arrivals))).await
        })
    })
}

async fn report_all(lane: &mut Lane, arrivals: &[ReportArrival]) -> Result<Vec<Reported>, Fault> {
    let mut answers = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        sqlx::query("BEGIN").execute(&mut lane.connection).await?;
        answers.push(report(&mut lane.connection, arrival).await?);
        sqlx::query("COMMIT").execute(&mut lane.connection).await?;
    }
    Ok(answers)
}

async fn report(connection: &mut PgConnection, arrival: &ReportArrival) -> Result<Reported, Fault> {
    let report = &arrival.report;
    let kept = sqlx::query(KEEP)
        .bind(report.email.map(EmailId::uuid))
        .bind(message_id(report))
        .bind(clean(&report.id))
        .bind(clean(&arrival.provider))
        .bind(at(arrival.now))
        .bind(&arrival.payload)
        .bind(report_codec::encode(report))
        .fetch_one(&mut *connection)
        .await?;
    if !kept.try_get::<bool, _>("is_new")? {
        return Ok(Reported::Repeated);
    }
    let Some(id) = kept.try_get::<Option<Uuid>, _>("id")? else { return Ok(Reported::Unmatched) };
    let seen = Seen { id: EmailId::from_uuid(id), status: row::status(&kept)? };
    let record = lock(connection, seen).await?;
    carry_out(connection, report, &record, arrival.now).await
}

/// As the provider wrote it, unless it cannot be looked for.
fn message_id(report: &Report) -> Option<std::borrow::Cow<'_, str>> {
    report.provider_message_id.as_deref().filter(|id| id.len() <= MESSAGE_ID_BYTES_MAX).map(clean)
}

/// An email as it was found, before it was locked.
#[derive(Debug, Clone, Copy)]
struct Seen {
    id: EmailId,
    status: Status,
}

async fn lock(connection: &mut PgConnection, seen: Seen) -> Result<Record, Fault> {
    if seen.status.is_waiting() {
        lock_waiting(connection, seen.id).await?;
    }
    let sql = format!(
        "SELECT {}, NULL::bigint AS due_at, NULL::bigint AS lease_until FROM email_outbox o
         WHERE o.id = $1 FOR UPDATE",
        row::COLUMNS
    );
    let row = sqlx::query(AssertSqlSafe(sql)).bind(seen.id.uuid()).fetch_optional(connection).await?;
    let record = row::record(&row.ok_or(Fault::Changed)?)?;
    if record.status.is_waiting() && !seen.status.is_waiting() {
        return Err(Fault::Changed);
    }
    Ok(record)
}

/// Writes down what a report means for an email that is locked.
async fn carry_out(
    connection: &mut PgConnection,
    report: &Report,
    record: &Record,
    now: Timestamp,
) -> Result<Reported, Fault> {
    let consequence = Consequence::of(report, record, now);
    match consequence.to {
        Some(to) => move_email(connection, report, record, &consequence, to, now).await?,
        None => fill_in(connection, report, record).await?,
    }
    remember_message(connection, report, record).await?;
    History::of_email(record.id, std::slice::from_ref(&consequence.event)).write(connection).await?;
    note_states(connection, record.id, &consequence.states, consequence.at).await?;
    suppressions::add(connection, record.company, &consequence.suppressions).await?;
    let failed =
        |address: &Address| Failed { record, address: address.clone(), code: failure_code(report), now };
    let failed: Vec<Failed<'_>> = consequence.failed.iter().map(failed).collect();
    failures::count(connection, &failed).await?;
    alerts::raise(connection, consequence.alert.as_slice()).await?;
    if let Some(to) = consequence.to {
        let mut counts = Counts::default();
        counts.moved(record.status, to);
        counts.flush(connection).await?;
    }
    Ok(Reported::Applied {
        email: record.id,
        company: record.company,
        status: consequence.to.unwrap_or(record.status),
        moved: consequence.to.is_some(),
    })
}

async fn move_email(
    connection: &mut PgConnection,
    report: &Report,
    record: &Record,
    consequence: &Consequence,
    to: Status,
    now: Timestamp,
) -> Result<(), Fault> {
    let failure = consequence.failure.as_ref();
    sqlx::query(MOVE)
        .bind(record.id.uuid())
        .bind(to.as_str())
        .bind(trouble(to))
        .bind(at(now))
        .bind(message_id(report))
        .bind(at(consequence.at))
        .bind(failure.map(|(code, _, _)| clean(code)))
        .bind(failure.map(|(_, category, _)| *category))
        .bind(failure.map(|(_, _, reason)| clean(reason)))
        .bind(record.status.as_str())
        .bind(ses_message_id(&report.provider_kind, message_id(report).as_deref()))
        .execute(connection)
        .await?;
    Ok(())
}

/// The provider's id, where only the report knows it.
async fn fill_in(connection: &mut PgConnection, report: &Report, record: &Record) -> Result<(), Fault> {
    if record.provider_message_id.is_none()
        && let Some(message_id) = message_id(report)
    {
        sqlx::query("UPDATE email_outbox SET provider_message_id = $2, ses_message_id = $3 WHERE id = $1")
            .bind(record.id.uuid())
            .bind(&*message_id)
            .bind(ses_message_id(&report.provider_kind, Some(&message_id)))
            .execute(connection)
            .await?;
    }
    Ok(())
}

async fn remember_message(
    connection: &mut PgConnection,
    report: &Report,
    record: &Record,
) -> Result<(), Fault> {
    if (record.provider_message_id.is_none() || other_message_id(report, record).is_some())
        && let Some(message_id) = message_id(report)
    {
        let sql = "INSERT INTO provider_messages (message_id, email_id) SELECT $1::text, $2::uuid
                   WHERE NOT EXISTS (SELECT 1 FROM provider_messages WHERE message_id = $1 AND email_id = $2)";
        sqlx::query(sql).bind(message_id).bind(record.id.uuid()).execute(connection).await?;
    }
    Ok(())
}

/// How it went with each of several recipients. The email is locked, so nobody else decides about them.
pub async fn note_states(
    connection: &mut PgConnection,
    id: EmailId,
    states: &[(Address, Status)],
    since: Timestamp,
) -> Result<(), Fault> {
    if states.is_empty() {
        return Ok(());
    }
    let rows = sqlx::query("SELECT address, status, at FROM recipient_states WHERE email_id = $1")
        .bind(id.uuid())
        .fetch_all(&mut *connection)
        .await?;
    let known: Vec<RecipientState> = rows.iter().map(state).collect::<Result<_, _>>()?;
    let mut new: Vec<&(Address, Status)> = Vec::new();
    for told in states {
        let (address, status) = told;
        let is_known =
            |known: &RecipientState| known.address.same_mailbox(address) && !outranks(*status, known.status);
        let is_told = |(other, _): &&(Address, Status)| other.same_mailbox(address);
        if !known.iter().any(is_known) && !new.iter().any(is_told) {
            new.push(told);
        }
    }
    if new.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO recipient_states (email_id, address, status, at)
         SELECT $1, address, status, $4 FROM UNNEST($2::text[], $3::text[]) AS told (address, status)
         ON CONFLICT (email_id, lower(address)) DO UPDATE SET status = excluded.status, at = excluded.at",
    )
    .bind(id.uuid())
    .bind(new.iter().map(|(address, _)| clean(address.expose())).collect::<Vec<_>>())
    .bind(new.iter().map(|(_, status)| status.as_str()).collect::<Vec<_>>())
    .bind(at(since))
    .execute(connection)
    .await?;
    Ok(())
}

/// Reports without an email, oldest first, whose email is known by now.
async fn unmatched(pool: &PgPool, now: Timestamp, limit: u32) -> Result<Vec<(Report, EmailId)>, Fault> {
    let rows = sqlx::query(
        "SELECT report FROM reports WHERE report IS NOT NULL AND received_at >= $1 ORDER BY received_at DESC LIMIT $2",
    )
    .bind(at(now.minus(REMATCH_FOR)))
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?;
    let mut waiting: Vec<Report> = Vec::with_capacity(rows.len());
    for row in &rows {
        waiting.push(report_codec::decode(row.try_get("report")?).ok_or_else(|| damaged("a report"))?);
    }
    if waiting.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(FIND_EACH)
        .bind(waiting.iter().map(|report| report.email.map(EmailId::uuid)).collect::<Vec<_>>())
        .bind(waiting.iter().map(message_id).collect::<Vec<_>>())
        .fetch_all(pool)
        .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let place = usize::try_from(row.try_get::<i64, _>("number")? - 1).unwrap_or(usize::MAX);
        let report = waiting.get(place).ok_or_else(|| damaged("a report"))?;
        found.push((report.clone(), row::email_id(row, "id")?));
    }
    Ok(found)
}

/// `false` when somebody else was first, or the email has gone meanwhile.
async fn match_one(
    connection: &mut PgConnection,
    report: &Report,
    id: EmailId,
    now: Timestamp,
) -> Result<bool, Fault> {
    let sql = "SELECT status FROM email_outbox WHERE id = $1";
    let Some(row) = sqlx::query(sql).bind(id.uuid()).fetch_optional(&mut *connection).await? else {
        return Ok(false);
    };
    let seen = Seen { id, status: row::status(&row)? };
    let sql = "UPDATE reports SET email_id = $2, report = NULL WHERE id = $1 AND report IS NOT NULL";
    let taken = sqlx::query(sql).bind(clean(&report.id)).bind(id.uuid()).execute(&mut *connection).await?;
    if taken.rows_affected() == 0 {
        return Ok(false);
    }
    let record = lock(connection, seen).await?;
    carry_out(connection, report, &record, now).await?;
    Ok(true)
}

async fn states(pool: &PgPool, company: CompanyId, id: EmailId) -> Result<Vec<RecipientState>, Fault> {
    let rows = sqlx::query(
        "SELECT s.address, s.status, s.at FROM email_outbox o JOIN recipient_states s ON s.email_id = o.id
         WHERE o.id = $1 AND o.company_id = $2",
    )
    .bind(id.uuid())
    .bind(company.uuid())
    .fetch_all(pool)
    .await?;
    let mut states: Vec<RecipientState> = rows.iter().map(state).collect::<Result<_, _>>()?;
    states.sort_by_cached_key(|state| subject_of(&state.address));
    Ok(states)
}

fn state(row: &PgRow) -> Result<RecipientState, StoreError> {
    Ok(RecipientState {
        address: Address::trusted(row::get(row, "address")?),
        status: row::status(row)?,
        at: moment(row, "at")?,
    })
}

async fn reports(pool: &PgPool, company: CompanyId, id: EmailId) -> Result<Vec<KeptReport>, Fault> {
    let rows = sqlx::query(
        "SELECT r.id, r.provider, r.received_at, r.payload
         FROM email_outbox o JOIN reports r ON r.email_id = o.id
         WHERE o.id = $1 AND o.company_id = $2 ORDER BY r.received_at, r.id",
    )
    .bind(id.uuid())
    .bind(company.uuid())
    .fetch_all(pool)
    .await?;
    let read = |row: &PgRow| {
        Ok(KeptReport {
            id: row.try_get("id")?,
            provider: row.try_get("provider")?,
            received_at: moment(row, "received_at")?,
            payload: row.try_get("payload")?,
        })
    };
    rows.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::fresh;
    use crate::take::tests::plan_of;

    /// A report reads the one email it is about, however many there are.
    #[tokio::test]
    async fn a_report_finds_its_email_along_indexes() {
        let fixture = fresh().await;
        let keep = plan_of(
            &fixture,
            KEEP,
            "uuid, text, text, text, timestamptz, bytea, text",
            "NULL, 'm-1', 'r-1', 'relay', now(), '', ''",
        )
        .await;
        let each = plan_of(&fixture, FIND_EACH, "uuid[], text[]", "'{NULL}', '{m-1}'").await;
        for plan in [keep, each] {
            for index in ["provider_messages_by_id", "email_outbox_pkey"] {
                assert!(plan.contains(index), "{plan}");
            }
            assert!(!plan.contains("Seq Scan"), "{plan}");
        }
    }
}
