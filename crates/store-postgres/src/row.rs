//! Rows of the outbox as the shared record, and the values that go into them.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use model::company::KeyMode;
use model::email::LastFailure;
use model::{CompanyId, EmailId, Event, RecipientId, Status, Timestamp};
use sqlx::postgres::{PgRow, Postgres};
use sqlx::{Decode, PgConnection, Row as _, Type};
use store::StoreError;
use store::detail::Detail;
use store::record::{Record, damaged};
use uuid::Uuid;

use crate::error::{Fault, from_sqlx};

/// What `record` reads of email_outbox, as `o`; it also wants `due_at` and `lease_until`, which are in email_queue.
pub const COLUMNS: &str = "o.id, o.company_id, o.status, o.version, o.fence, o.priority, o.expires_at, o.at_provider, \
    o.unfinished_starts, o.outcome_unknown, o.attempts, o.attempts_before, o.series, o.mode, o.to_email, o.subject, \
    o.created_at, o.scheduled_at, o.sent_at, o.delivered_at, o.failed_at, o.dead_at, o.route, o.provider, \
    o.provider_message_id, o.ses_message_id, o.last_failure_code, o.last_failure_category, o.last_failure_reason, o.last_failure_at, \
    o.request_id, o.external_id, o.entity_id, o.recipient_id, o.size_bytes, o.detail";

pub fn get<'r, T: Decode<'r, Postgres> + Type<Postgres>>(
    row: &'r PgRow,
    name: &str,
) -> Result<T, StoreError> {
    row.try_get(name).map_err(from_sqlx)
}

pub fn moment(row: &PgRow, name: &str) -> Result<Timestamp, StoreError> {
    get::<DateTime<Utc>>(row, name).map(|at| Timestamp::from_millis(at.timestamp_millis()))
}

pub fn optional_moment(row: &PgRow, name: &str) -> Result<Option<Timestamp>, StoreError> {
    let moment = get::<Option<DateTime<Utc>>>(row, name)?;
    Ok(moment.map(|at| Timestamp::from_millis(at.timestamp_millis())))
}

fn optional_millis(row: &PgRow, name: &str) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<i64>>(row, name)?.map(Timestamp::from_millis))
}

fn number<T: TryFrom<i64>>(row: &PgRow, name: &str) -> Result<T, StoreError> {
    T::try_from(get::<i64>(row, name)?).map_err(|_| damaged(name))
}

fn count(row: &PgRow, name: &str) -> Result<u32, StoreError> {
    u32::try_from(get::<i32>(row, name)?).map_err(|_| damaged(name))
}

pub fn email_id(row: &PgRow, name: &str) -> Result<EmailId, StoreError> {
    get(row, name).map(EmailId::from_uuid)
}

pub fn company_id(row: &PgRow, name: &str) -> Result<CompanyId, StoreError> {
    get(row, name).map(CompanyId::from_uuid)
}

pub fn status(row: &PgRow) -> Result<Status, StoreError> {
    get::<&str>(row, "status")?.parse().map_err(|_| damaged("status"))
}

pub fn record(row: &PgRow) -> Result<Record, StoreError> {
    Ok(Record {
        id: email_id(row, "id")?,
        company: company_id(row, "company_id")?,
        status: status(row)?,
        version: number(row, "version")?,
        fence: number(row, "fence")?,
        priority: u8::try_from(get::<i16>(row, "priority")?).map_err(|_| damaged("priority"))?,
        due_at: optional_millis(row, "due_at")?,
        expires_at: Timestamp::from_millis(get(row, "expires_at")?),
        lease_until: optional_millis(row, "lease_until")?,
        at_provider: get(row, "at_provider")?,
        unfinished_starts: count(row, "unfinished_starts")?,
        outcome_unknown: get(row, "outcome_unknown")?,
        attempts: count(row, "attempts")?,
        attempts_before: count(row, "attempts_before")?,
        series: count(row, "series")?,
        mode: KeyMode::parse(get(row, "mode")?).ok_or_else(|| damaged("mode"))?,
        to_email: get(row, "to_email")?,
        subject: get(row, "subject")?,
        created_at: moment(row, "created_at")?,
        scheduled_at: optional_moment(row, "scheduled_at")?,
        sent_at: optional_moment(row, "sent_at")?,
        delivered_at: optional_moment(row, "delivered_at")?,
        failed_at: optional_moment(row, "failed_at")?,
        dead_at: optional_moment(row, "dead_at")?,
        route: get(row, "route")?,
        provider: get(row, "provider")?,
        provider_message_id: get(row, "provider_message_id")?,
        ses_message_id: get(row, "ses_message_id")?,
        last_failure: last_failure(row)?,
        request_id: get(row, "request_id")?,
        external_id: get(row, "external_id")?,
        entity_id: get(row, "entity_id")?,
        recipient_id: get::<Option<Uuid>>(row, "recipient_id")?.map(RecipientId::from_uuid),
        size_bytes: number(row, "size_bytes")?,
        detail: Detail::decode(get(row, "detail")?).ok_or_else(|| damaged("detail"))?,
    })
}

fn last_failure(row: &PgRow) -> Result<Option<LastFailure>, StoreError> {
    let Some(code) = get::<Option<String>>(row, "last_failure_code")? else {
        return Ok(None);
    };
    Ok(Some(LastFailure {
        code,
        category: get::<Option<String>>(row, "last_failure_category")?.unwrap_or_default(),
        reason: get::<Option<String>>(row, "last_failure_reason")?.unwrap_or_default(),
        at: moment(row, "last_failure_at")?,
    }))
}

/// The moment as PostgreSQL keeps it; one beyond the calendar is the end of time.
pub fn at(moment: Timestamp) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(moment.millis()).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// Numbers of ours never come near the end of a signed one.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// PostgreSQL keeps any text but a NUL, which would make it refuse the whole statement. A provider's answer may hold
/// one.
pub fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// The statuses a person searches for, which have an index; the others are found near the top of the company's list.
pub fn trouble(status: Status) -> Option<&'static str> {
    match status {
        Status::RetryScheduled
        | Status::Failed
        | Status::Invalid
        | Status::Expired
        | Status::Cancelled
        | Status::Bounced
        | Status::Complained => Some(status.as_str()),
        Status::Accepted | Status::Enqueued | Status::Processing | Status::Sent | Status::Delivered => None,
    }
}

/// Lines of history as arrays to bind, in the order they are to be written in.
#[derive(Default)]
pub struct History {
    /// Which of the emails at hand each is about.
    pub of: Vec<i32>,
    pub ids: Vec<Uuid>,
    pub types: Vec<&'static str>,
    pub times: Vec<DateTime<Utc>>,
    pub metadata: Vec<Option<String>>,
}

impl History {
    pub fn add(&mut self, of: usize, email: EmailId, event: &Event) {
        self.of.push(i32::try_from(of).unwrap_or(i32::MAX));
        self.ids.push(email.uuid());
        self.types.push(event.kind.as_str());
        self.times.push(at(event.at));
        self.metadata.push(metadata(event));
    }

    pub fn of_email(email: EmailId, events: &[Event]) -> Self {
        let mut history = Self::default();
        for event in events {
            history.add(0, email, event);
        }
        history
    }

    pub async fn write(&self, connection: &mut PgConnection) -> Result<(), Fault> {
        if self.ids.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO events (email_id, type, created_at, metadata)
             SELECT email_id, type, created_at, metadata::jsonb
             FROM UNNEST($1::uuid[], $2::text[], $3::timestamptz[], $4::text[])
                  WITH ORDINALITY AS event (email_id, type, created_at, metadata, line)
             ORDER BY line",
        )
        .bind(&self.ids)
        .bind(&self.types)
        .bind(&self.times)
        .bind(&self.metadata)
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// As JSON, or nothing. PostgreSQL refuses a NUL inside it, however it is written.
pub fn metadata(event: &Event) -> Option<String> {
    if event.metadata.is_empty() {
        return None;
    }
    let text = serde_json::to_string(&event.metadata).expect("a JSON object can be written");
    if !text.contains("\\u0000") {
        return Some(text);
    }
    let clean = without_nul(serde_json::Value::Object(event.metadata.clone()));
    Some(clean.to_string())
}

fn without_nul(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => Value::String(clean(&text).into_owned()),
        Value::Array(items) => items.into_iter().map(without_nul).collect(),
        Value::Object(fields) => Value::Object(
            fields.into_iter().map(|(name, value)| (clean(&name).into_owned(), without_nul(value))).collect(),
        ),
        other => other,
    }
}
