//! Reports of providers: kept once, matched to their emails, carried out, each in a transaction of its own.
//!
//! The email is locked first, as everybody does, and the report is written then: of those who bring the same report at
//! once, and of those who prune its email, each waits at the same place.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use model::{Address, CompanyId, EmailId, Report, Status, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, QueryBuilder};
use store::change::ses_message_id;
use store::consequence::{Consequence, failure_code, other_message_id, outranks, subject_of};
use store::feedback::REMATCH_FOR;
use store::group::{Group, GroupSize};
use store::record::{Record, damaged};
use store::thread::HotThread;
use store::{Feedback, KeptReport, RecipientState, ReportArrival, Reported, StoreError, report_codec};

use crate::error::Fault;
use crate::failures::{self, Failed};
use crate::lane::{Lane, Lanes};
use crate::row::{self, at, get, moment, parsed, portions, push_list};
use crate::tallies::{Notes, Subject};
use crate::{MysqlStore, alerts, messages, outbox, suppressions};

/// A report each, since what follows from it is its own; a few at once share the server's syncs to disk. Providers send
/// again what waits too long.
const SIZE: GroupSize =
    GroupSize { abreast: 4, lanes: 4, group_max: 1, waiting_max: 8_192, gather: Duration::ZERO };

/// How many ids are looked for with one statement.
const IDS_MAX: usize = 256;

const KEEP: &str =
    "INSERT INTO reports (id, provider, email_id, received_at, unmatched_since, report, payload)
     VALUES (?, ?, ?, ?, ?, ?, ?)";

/// What is known only from the report is filled in; nobody works on the email any more. MySQL assigns from left to right,
/// so what depends on a column stands before it.
const MOVE: &str = "UPDATE email_outbox
     SET status = ?, trouble = ?, version = version + 1, at_provider = FALSE, unfinished_starts = 0, updated_at = ?,
         ses_message_id = IF(provider_message_id IS NULL, ?, ses_message_id),
         provider_message_id = COALESCE(provider_message_id, ?), sent_at = COALESCE(sent_at, ?),
         delivered_at = COALESCE(delivered_at, ?), failed_at = COALESCE(?, failed_at), dead_at = ?,
         last_failure_code = COALESCE(?, last_failure_code),
         last_failure_category = COALESCE(?, last_failure_category),
         last_failure_reason = COALESCE(?, last_failure_reason), last_failure_at = COALESCE(?, last_failure_at)
     WHERE id = ? AND status = ?";

#[async_trait]
impl Feedback for MysqlStore {
    async fn report(&self, arrival: ReportArrival) -> Result<Reported, StoreError> {
        self.reporting.ask(arrival).await
    }

    async fn rematch(&self, now: Timestamp, limit: u32) -> Result<u32, StoreError> {
        let found = self.read((now, limit), |connection, &(now, limit)| {
            Box::pin(async move {
                let waiting = unmatched(connection, now, limit).await?;
                find_each(connection, waiting).await
            })
        });
        let mut matched = 0;
        for (report, id) in found.await? {
            let done = self.write((report, id, now), |lane, (report, id, now)| {
                Box::pin(match_one(lane, report, *id, *now))
            });
            matched += u32::from(done.await?);
        }
        Ok(matched)
    }

    async fn recipient_states(
        &self,
        company: CompanyId,
        id: EmailId,
    ) -> Result<Vec<RecipientState>, StoreError> {
        let read = self.read((company, id), |connection, &(company, id)| {
            Box::pin(async move {
                let sql = "SELECT s.address, s.status, s.at FROM email_outbox o JOIN recipient_states s ON s.email_id = o.id
                           WHERE o.id = ? AND o.company_id = ? ORDER BY s.address";
                let query = sqlx::query(sql).bind(id.to_string()).bind(company.to_string());
                let rows = query.fetch_all(connection).await?;
                Ok(rows.iter().map(state).collect::<Result<_, _>>()?)
            })
        });
        read.await
    }

    async fn reports(&self, company: CompanyId, id: EmailId) -> Result<Vec<KeptReport>, StoreError> {
        let read = self.read((company, id), |connection, &(company, id)| {
            Box::pin(async move {
                let sql = "SELECT r.id, r.provider, r.received_at, r.payload
                           FROM email_outbox o JOIN reports r ON r.email_id = o.id
                           WHERE o.id = ? AND o.company_id = ? ORDER BY r.received_at, r.id";
                let query = sqlx::query(sql).bind(id.to_string()).bind(company.to_string());
                let rows = query.fetch_all(connection).await?;
                Ok(rows.iter().map(kept_report).collect::<Result<_, _>>()?)
            })
        });
        read.await
    }

    async fn last_report(&self, provider: &str) -> Result<Option<Timestamp>, StoreError> {
        let read = self.read(provider.to_owned(), |connection, provider| {
            Box::pin(async move {
                let sql = "SELECT received_at FROM reports FORCE INDEX (reports_by_provider)
                           WHERE provider = ? ORDER BY received_at DESC LIMIT 1";
                let row = sqlx::query(sql).bind(provider).fetch_optional(connection).await?;
                Ok(row.map(|row| moment(&row, "received_at")).transpose()?)
            })
        });
        read.await
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

async fn report_all(
    lane: &mut Lane,
    arrivals: &[ReportArrival],
) -> Result<Vec<Result<Reported, StoreError>>, Fault> {
    let mut answers = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        answers.push(Ok(report(lane, arrival).await?));
    }
    Ok(answers)
}

async fn report(lane: &mut Lane, arrival: &ReportArrival) -> Result<Reported, Fault> {
    let record = find(&mut lane.connection, &arrival.report).await?;
    let is_new = keep(&mut lane.connection, arrival, record.as_ref().map(|record| record.id)).await?;
    match record {
        _ if !is_new => Ok(Reported::Repeated),
        None => Ok(Reported::Unmatched),
        Some(record) => carry_out(lane, &arrival.report, &record, arrival.now).await,
    }
}

/// By our own id, which travels with every email, or else by the provider's. The email is locked.
async fn find(connection: &mut MySqlConnection, report: &Report) -> Result<Option<Record>, Fault> {
    if let Some(id) = report.email
        && let Some(record) = lock(connection, id).await?
    {
        return Ok(Some(record));
    }
    let Some(message_id) = &report.provider_message_id else { return Ok(None) };
    match messages::find(connection, message_id).await? {
        Some(id) => lock(connection, id).await,
        None => Ok(None),
    }
}

/// The row in the queue first, if there is one.
async fn lock(connection: &mut MySqlConnection, id: EmailId) -> Result<Option<Record>, Fault> {
    let sql = "SELECT email_id FROM email_queue WHERE email_id = ? FOR UPDATE";
    let queued = sqlx::query(sql).bind(id.to_string()).fetch_optional(&mut *connection).await?;
    let sql = format!(
        "SELECT {}, CAST(NULL AS SIGNED) AS due_at, CAST(NULL AS SIGNED) AS lease_until
         FROM email_outbox o WHERE o.id = ? FOR UPDATE",
        row::COLUMNS
    );
    let row = sqlx::query(AssertSqlSafe(sql)).bind(id.to_string()).fetch_optional(connection).await?;
    let record = row.as_ref().map(row::record).transpose()?;
    let is_in_queue = |record: &Record| record.status.is_waiting() || record.status == Status::Processing;
    if queued.is_none() && record.as_ref().is_some_and(is_in_queue) {
        // It entered the queue between the two looks.
        return Err(Fault::Overtaken);
    }
    Ok(record)
}

/// `false` when it was kept before.
async fn keep(
    connection: &mut MySqlConnection,
    arrival: &ReportArrival,
    email: Option<EmailId>,
) -> Result<bool, Fault> {
    let is_unmatched = email.is_none();
    let kept = sqlx::query(KEEP)
        .bind(&arrival.report.id)
        .bind(&arrival.provider)
        .bind(email.map(|id| id.to_string()))
        .bind(at(arrival.now))
        .bind(is_unmatched.then(|| at(arrival.now)))
        .bind(is_unmatched.then(|| report_codec::encode(&arrival.report)))
        .bind(&arrival.payload)
        .execute(connection)
        .await;
    match kept.map_err(Fault::Sql) {
        Ok(_) => Ok(true),
        Err(fault) if fault.is_duplicate() => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// Writes down what a report means for an email that is locked.
async fn carry_out(
    lane: &mut Lane,
    report: &Report,
    record: &Record,
    now: Timestamp,
) -> Result<Reported, Fault> {
    let consequence = Consequence::of(report, record, now);
    match consequence.to {
        Some(to) => move_email(lane, report, record, &consequence, to, now).await?,
        None => fill_in(&mut lane.connection, report, record).await?,
    }
    let connection = &mut lane.connection;
    if let Some(message_id) = other_message_id(report, record) {
        messages::keep_once(connection, record.id, message_id).await?;
    }
    row::add_uncounted(connection, &[(record.id, &consequence.event)]).await?;
    let mut notes = Notes::default();
    notes.add(&Subject::of(record), &consequence.event);
    notes.write(connection).await?;
    note_states(connection, record.id, &consequence.states, consequence.at).await?;
    suppressions::add(connection, record.company, &consequence.suppressions).await?;
    let failed =
        |address: &Address| Failed { record, address: address.clone(), code: failure_code(report), now };
    let failed: Vec<Failed<'_>> = consequence.failed.iter().map(failed).collect();
    failures::count(connection, &failed).await?;
    alerts::raise(connection, consequence.alert.as_slice()).await?;
    Ok(Reported::Applied {
        email: record.id,
        company: record.company,
        status: consequence.to.unwrap_or(record.status),
        moved: consequence.to.is_some(),
    })
}

async fn move_email(
    lane: &mut Lane,
    report: &Report,
    record: &Record,
    consequence: &Consequence,
    to: Status,
    now: Timestamp,
) -> Result<(), Fault> {
    lane.counts.moved(record.status, to);
    let is_dead = to == Status::Failed;
    lane.counts.dead_letters(i64::from(is_dead) - i64::from(record.dead_at.is_some()));
    let connection = &mut lane.connection;
    outbox::leave_queue(connection, &[record.id]).await?;
    let failure = consequence.failure.as_ref();
    let happened = |when: bool| when.then(|| at(consequence.at));
    let moved = sqlx::query(MOVE)
        .bind(to.as_str())
        .bind(row::trouble(to))
        .bind(at(now))
        .bind(ses_message_id(&report.provider_kind, report.provider_message_id.as_deref()))
        .bind(&report.provider_message_id)
        .bind(happened(to != Status::Failed))
        .bind(happened(to == Status::Delivered))
        .bind(happened(to == Status::Failed))
        .bind(is_dead.then(|| at(now)))
        .bind(failure.map(|(code, _, _)| code))
        .bind(failure.map(|(_, category, _)| *category))
        .bind(failure.map(|(_, _, reason)| reason))
        .bind(happened(failure.is_some()))
        .bind(record.id.to_string())
        .bind(record.status.as_str())
        .execute(connection)
        .await?;
    outbox::all_of(1, moved.rows_affected())
}

/// The provider's id, where only the report knows it.
async fn fill_in(connection: &mut MySqlConnection, report: &Report, record: &Record) -> Result<(), Fault> {
    if record.provider_message_id.is_none()
        && let Some(message_id) = &report.provider_message_id
    {
        sqlx::query("UPDATE email_outbox SET provider_message_id = ?, ses_message_id = ? WHERE id = ?")
            .bind(message_id)
            .bind(ses_message_id(&report.provider_kind, Some(message_id)))
            .bind(record.id.to_string())
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// How it went with each of several recipients. The email is locked, so nobody else decides about them.
pub async fn note_states(
    connection: &mut MySqlConnection,
    id: EmailId,
    states: &[(Address, Status)],
    since: Timestamp,
) -> Result<(), Fault> {
    if states.is_empty() {
        return Ok(());
    }
    let sql = "SELECT address, status, at FROM recipient_states WHERE email_id = ?";
    let rows = sqlx::query(sql).bind(id.to_string()).fetch_all(&mut *connection).await?;
    let known: Vec<RecipientState> = rows.iter().map(state).collect::<Result<_, _>>()?;
    let is_news = |(address, status): &&(Address, Status)| {
        let known = known.iter().find(|known| known.address.same_mailbox(address));
        known.is_none_or(|known| outranks(*status, known.status))
    };
    let mut news: Vec<&(Address, Status)> = states.iter().filter(is_news).collect();
    news.sort_by_cached_key(|(address, _)| subject_of(address));
    for news in portions(&news) {
        let mut sql =
            QueryBuilder::<MySql>::new("INSERT INTO recipient_states (email_id, address, status, at) ");
        sql.push_values(news, |mut row, (address, status)| {
            row.push_bind(id.to_string()).push_bind(address.expose());
            row.push_bind(status.as_str()).push_bind(at(since));
        });
        sql.push(" ON DUPLICATE KEY UPDATE status = VALUES(status), at = VALUES(at)");
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

/// Reports without an email, newest first.
async fn unmatched(
    connection: &mut MySqlConnection,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Report>, Fault> {
    let sql = "SELECT report FROM reports FORCE INDEX (reports_unmatched)
               WHERE unmatched_since >= ? ORDER BY unmatched_since DESC LIMIT ?";
    let query = sqlx::query(sql).bind(at(now.minus(REMATCH_FOR))).bind(limit);
    let mut waiting = Vec::new();
    for row in query.fetch_all(connection).await? {
        let text = get::<Option<&str>>(&row, "report")?;
        waiting.push(text.and_then(report_codec::decode).ok_or_else(|| damaged("a report"))?);
    }
    Ok(waiting)
}

/// Those whose email is known by now.
async fn find_each(
    connection: &mut MySqlConnection,
    waiting: Vec<Report>,
) -> Result<Vec<(Report, EmailId)>, Fault> {
    let mut by_id: HashMap<String, EmailId> = HashMap::new();
    let ours: Vec<String> = waiting.iter().filter_map(|report| Some(report.email?.to_string())).collect();
    for ours in ours.chunks(IDS_MAX) {
        let sql = "SELECT id AS name, id FROM email_outbox FORCE INDEX (PRIMARY) WHERE id IN ";
        look_for(connection, sql, ours, &mut by_id).await?;
    }
    let mut by_message: HashMap<String, EmailId> = HashMap::new();
    let theirs: Vec<String> =
        waiting.iter().filter_map(|report| report.provider_message_id.clone()).collect();
    for theirs in theirs.chunks(IDS_MAX) {
        let sql = "SELECT provider_message_id AS name, id FROM email_outbox FORCE INDEX (outbox_by_message)
                   WHERE provider_message_id IN ";
        look_for(connection, sql, theirs, &mut by_message).await?;
        let sql = "SELECT message_id AS name, email_id AS id FROM provider_messages
                   FORCE INDEX (provider_messages_by_id) WHERE message_id IN ";
        look_for(connection, sql, theirs, &mut by_message).await?;
    }
    let found = |report: Report| {
        let by_id = report.email.and_then(|id| by_id.get(&id.to_string()));
        let by_message = || report.provider_message_id.as_ref().and_then(|id| by_message.get(id));
        let id = *by_id.or_else(by_message)?;
        Some((report, id))
    };
    Ok(waiting.into_iter().filter_map(found).collect())
}

/// Of several emails of one name the newest.
async fn look_for(
    connection: &mut MySqlConnection,
    sql: &str,
    names: &[String],
    found: &mut HashMap<String, EmailId>,
) -> Result<(), Fault> {
    let mut sql = QueryBuilder::<MySql>::new(sql);
    push_list(&mut sql, names.iter().cloned());
    for row in sql.build().fetch_all(connection).await? {
        let id: EmailId = parsed(&row, "id")?;
        let newest = found.entry(get(&row, "name")?).or_insert(id);
        *newest = id.max(*newest);
    }
    Ok(())
}

/// `false` when somebody else was first, or the email has gone meanwhile.
async fn match_one(lane: &mut Lane, report: &Report, id: EmailId, now: Timestamp) -> Result<bool, Fault> {
    let Some(record) = lock(&mut lane.connection, id).await? else { return Ok(false) };
    let sql = "UPDATE reports SET email_id = ?, report = NULL, unmatched_since = NULL
               WHERE id = ? AND unmatched_since IS NOT NULL";
    let query = sqlx::query(sql).bind(id.to_string()).bind(&report.id);
    if query.execute(&mut lane.connection).await?.rows_affected() == 0 {
        return Ok(false);
    }
    carry_out(lane, report, &record, now).await?;
    Ok(true)
}

fn state(row: &MySqlRow) -> Result<RecipientState, StoreError> {
    Ok(RecipientState {
        address: Address::trusted(get(row, "address")?),
        status: row::status(row)?,
        at: moment(row, "at")?,
    })
}

fn kept_report(row: &MySqlRow) -> Result<KeptReport, StoreError> {
    Ok(KeptReport {
        id: get(row, "id")?,
        provider: get(row, "provider")?,
        received_at: moment(row, "received_at")?,
        payload: get(row, "payload")?,
    })
}
