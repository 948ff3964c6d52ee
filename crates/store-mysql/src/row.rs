//! Rows of the outbox as the shared record, the values that go into them, and the few statements that verbs share.

use chrono::{DateTime, NaiveDateTime, Utc};
use model::company::KeyMode;
use model::email::LastFailure;
use model::{EmailId, Event, Status, Timestamp};
use sqlx::mysql::{MySql, MySqlRow};
use sqlx::{Decode, MySqlConnection, QueryBuilder, Row as _, Type};
use store::StoreError;
use store::detail::Detail;
use store::record::{Record, damaged};

use crate::error::{Fault, from_sqlx};
use crate::tallies;

/// What `record` reads of email_outbox, as `o`; it also wants `due_at` and `lease_until`, which are in email_queue.
pub const COLUMNS: &str = "o.id, o.company_id, o.status, o.version, o.fence, o.priority, o.expires_at, o.at_provider, \
    o.unfinished_starts, o.outcome_unknown, o.attempts, o.attempts_before, o.series, o.mode, o.to_email, o.subject, \
    o.created_at, o.scheduled_at, o.sent_at, o.delivered_at, o.failed_at, o.dead_at, o.route, o.provider, \
    o.provider_message_id, o.ses_message_id, o.last_failure_code, o.last_failure_category, o.last_failure_reason, o.last_failure_at, \
    o.request_id, o.external_id, o.entity_id, o.recipient_id, o.size_bytes, o.detail";

/// How many rows one statement writes: far below the 65,535 values that a statement may have. A power of two.
const ROWS_MAX: usize = 256;

pub fn get<'r, T: Decode<'r, MySql> + Type<MySql>>(row: &'r MySqlRow, name: &str) -> Result<T, StoreError> {
    row.try_get(name).map_err(from_sqlx)
}

pub fn moment(row: &MySqlRow, name: &str) -> Result<Timestamp, StoreError> {
    get::<DateTime<Utc>>(row, name).map(|at| Timestamp::from_millis(at.timestamp_millis()))
}

pub fn optional_moment(row: &MySqlRow, name: &str) -> Result<Option<Timestamp>, StoreError> {
    let moment = get::<Option<DateTime<Utc>>>(row, name)?;
    Ok(moment.map(|at| Timestamp::from_millis(at.timestamp_millis())))
}

pub fn optional_millis(row: &MySqlRow, name: &str) -> Result<Option<Timestamp>, StoreError> {
    Ok(get::<Option<i64>>(row, name)?.map(Timestamp::from_millis))
}

/// Reads text that the store itself wrote; anything else means that the database was changed behind its back.
pub fn parsed<T: std::str::FromStr>(row: &MySqlRow, name: &str) -> Result<T, StoreError> {
    get::<&str>(row, name)?.parse().map_err(|_| damaged(name))
}

pub fn status(row: &MySqlRow) -> Result<Status, StoreError> {
    parsed(row, "status")
}

pub fn record(row: &MySqlRow) -> Result<Record, StoreError> {
    Ok(Record {
        id: parsed(row, "id")?,
        company: parsed(row, "company_id")?,
        status: status(row)?,
        version: get(row, "version")?,
        fence: get(row, "fence")?,
        priority: get(row, "priority")?,
        due_at: optional_millis(row, "due_at")?,
        expires_at: moment(row, "expires_at")?,
        lease_until: optional_millis(row, "lease_until")?,
        at_provider: get(row, "at_provider")?,
        unfinished_starts: get(row, "unfinished_starts")?,
        outcome_unknown: get(row, "outcome_unknown")?,
        attempts: get(row, "attempts")?,
        attempts_before: get(row, "attempts_before")?,
        series: get(row, "series")?,
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
        recipient_id: get::<Option<&str>>(row, "recipient_id")?
            .map(|text| text.parse().map_err(|_| damaged("recipient_id")))
            .transpose()?,
        size_bytes: get(row, "size_bytes")?,
        detail: Detail::decode(get(row, "detail")?).ok_or_else(|| damaged("detail"))?,
    })
}

fn last_failure(row: &MySqlRow) -> Result<Option<LastFailure>, StoreError> {
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

/// What a TIMESTAMP can be, in milliseconds: from the second second of 1970 to January 2038.
const TIMESTAMPS: (i64, i64) = (1_000, 2_147_483_647_999);

/// The moment as the database keeps it. One beyond its calendar, of a clock that went wrong, is the end of that: a time
/// that is off is better than an email that is refused.
pub fn at(moment: Timestamp) -> DateTime<Utc> {
    let (first, last) = TIMESTAMPS;
    DateTime::from_timestamp_millis(moment.millis().clamp(first, last)).unwrap_or_default()
}

/// The same for what may be far in the future: a DATETIME ends where our calendar does, with the year 9999. It is handed
/// over as what it is, since MariaDB makes NULL of a later TIMESTAMP.
pub fn until(moment: Timestamp) -> NaiveDateTime {
    let within = moment.millis().clamp(0, Timestamp::NEVER.millis());
    DateTime::from_timestamp_millis(within).unwrap_or_default().naive_utc()
}

pub fn ids(emails: &[EmailId]) -> Vec<String> {
    emails.iter().map(EmailId::to_string).collect()
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

/// The rows in portions for one statement each. Sizes are powers of two, so that there are few statements, which are
/// prepared once: one that the driver does not keep costs a round trip to prepare it and a packet to forget it.
pub fn portions<T>(rows: &[T]) -> Vec<&[T]> {
    let mut portions = Vec::new();
    let mut rest = rows;
    while !rest.is_empty() {
        let (portion, later) = rest.split_at(portion_size(rest.len()));
        portions.push(portion);
        rest = later;
    }
    portions
}

/// The largest size of a portion that is no more than `count`, which is not 0.
pub fn portion_size(count: usize) -> usize {
    let size = count.next_power_of_two();
    let size = if size > count { size / 2 } else { size };
    size.clamp(1, ROWS_MAX)
}

/// A list of values in parentheses, filled up with the last one to a power of two.
pub fn push_list(sql: &mut QueryBuilder<MySql>, values: impl IntoIterator<Item = String>) {
    sql.push("(");
    let mut list = sql.separated(", ");
    for value in filled_up(values.into_iter().collect()) {
        list.push_bind(value);
    }
    sql.push(")");
}

/// Filled up with the last one to a power of two, for the same reason as [`portions`].
pub fn filled_up<T: Clone>(mut values: Vec<T>) -> Vec<T> {
    if let Some(last) = values.last().cloned() {
        values.resize(values.len().next_power_of_two(), last);
    }
    values
}

/// Adds lines of history, each email's in the order given, and notes what is counted of them.
pub async fn add_events<'e>(
    connection: &mut MySqlConnection,
    events: impl IntoIterator<Item = (EmailId, &'e Event)>,
) -> Result<(), Fault> {
    let events: Vec<(EmailId, &Event)> = events.into_iter().collect();
    add_uncounted(connection, &events).await?;
    tallies::note(connection, &events).await
}

/// The same by one who notes himself what is counted.
pub async fn add_uncounted(
    connection: &mut MySqlConnection,
    events: &[(EmailId, &Event)],
) -> Result<(), Fault> {
    for rows in portions(events) {
        let mut sql =
            QueryBuilder::<MySql>::new("INSERT INTO events (email_id, type, created_at, metadata) ");
        sql.push_values(rows, |mut row, (id, event)| {
            let metadata = (!event.metadata.is_empty())
                .then(|| serde_json::to_string(&event.metadata).expect("a JSON object can be written"));
            row.push_bind(id.to_string())
                .push_bind(event.kind.as_str())
                .push_bind(at(event.at))
                .push_bind(metadata);
        });
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

/// The same line of history for each of the emails.
pub async fn add_event_to_each(
    connection: &mut MySqlConnection,
    emails: &[EmailId],
    event: &Event,
) -> Result<(), Fault> {
    add_events(connection, emails.iter().map(|id| (*id, event))).await
}
