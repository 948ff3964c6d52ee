//! Reading emails back. A list looks at a bounded number of rows per call, along the index that fits its most
//! telling filter, so that it answers quickly however many emails there are.

use async_trait::async_trait;
use model::{CompanyId, Content, Email, EmailId, Event, Status, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};
use store::record::Record;
use store::{Cursor, EmailFilter, KeptAnswer, Lookup, Page, StoreError, content_codec};

use crate::SqliteStore;
use crate::error::from_sqlite;
use crate::{outbox, row};

/// How many rows one page may cost when a filter matches few of them: some fifty milliseconds.
const ROWS_LOOKED_AT_MAX: i64 = 10_000;

/// What conditions look at. Reading all columns of every row that is looked at would cost several times as much.
const TESTED: &str = "seq, status, to_email, external_id, entity_id, last_failure_code, recipient_external_id, \
    recipient_id, created_at, provider, provider_message_id, request_id";

#[async_trait]
impl Lookup for SqliteStore {
    async fn email(&self, company: CompanyId, id: EmailId) -> Result<Option<Email>, StoreError> {
        self.reader.run(move |connection| email(connection, company, id)).await
    }

    async fn kept_answer(
        &self,
        company: CompanyId,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, StoreError> {
        let key = key.to_owned();
        self.reader.run(move |connection| outbox::kept_answer(connection, company, &key, now)).await
    }

    async fn emails(
        &self,
        company: CompanyId,
        filter: &EmailFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Email>, StoreError> {
        let query = Query::of(company, filter, after);
        self.reader.run(move |connection| query.led_by_waiting(connection)?.page(connection, limit)).await
    }

    async fn events(&self, company: CompanyId, id: EmailId) -> Result<Option<Vec<Event>>, StoreError> {
        self.reader.run(move |connection| events(connection, company, id)).await
    }

    async fn content(&self, company: CompanyId, id: EmailId) -> Result<Option<Content>, StoreError> {
        self.reader.run(move |connection| content(connection, company, id)).await
    }

    async fn company_of(&self, id: EmailId) -> Result<Option<CompanyId>, StoreError> {
        let read = move |connection: &Connection| -> Result<Option<String>, StoreError> {
            connection
                .prepare_cached("SELECT company_id FROM email_outbox WHERE id = ?1")
                .and_then(|mut statement| statement.query_row([id.to_string()], |row| row.get(0)).optional())
                .map_err(from_sqlite)
        };
        let company = self.reader.run(read).await?;
        company
            .map(|text| text.parse().map_err(|_| StoreError::Broken("a company's id cannot be read".into())))
            .transpose()
    }
}

fn email(connection: &Connection, company: CompanyId, id: EmailId) -> Result<Option<Email>, StoreError> {
    let sql = format!("SELECT {} FROM email_outbox WHERE id = ?1 AND company_id = ?2", row::COLUMNS);
    let mut statement = connection.prepare_cached(&sql).map_err(from_sqlite)?;
    let mut rows = statement.query((id.to_string(), company.to_string())).map_err(from_sqlite)?;
    Ok(rows.next().map_err(from_sqlite)?.map(row::record).transpose()?.map(Record::email))
}

pub fn seq_of(connection: &Connection, company: CompanyId, id: EmailId) -> Result<Option<i64>, StoreError> {
    connection
        .prepare_cached("SELECT seq FROM email_outbox WHERE id = ?1 AND company_id = ?2")
        .and_then(|mut statement| {
            statement.query_row((id.to_string(), company.to_string()), |row| row.get(0)).optional()
        })
        .map_err(from_sqlite)
}

fn events(
    connection: &Connection,
    company: CompanyId,
    id: EmailId,
) -> Result<Option<Vec<Event>>, StoreError> {
    let Some(seq) = seq_of(connection, company, id)? else { return Ok(None) };
    let mut statement = connection
        .prepare_cached("SELECT type, created_at, metadata FROM events WHERE email_seq = ?1 ORDER BY id")
        .map_err(from_sqlite)?;
    let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(String, i64, Option<String>)> {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    };
    let mut events = Vec::new();
    for row in statement.query_map([seq], read).map_err(from_sqlite)? {
        let (kind, at, metadata) = row.map_err(from_sqlite)?;
        events.push(Event {
            kind: kind.parse().map_err(|_| StoreError::Broken("an event's type cannot be read".into()))?,
            at: Timestamp::from_millis(at),
            metadata: metadata.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        });
    }
    Ok(Some(events))
}

fn content(connection: &Connection, company: CompanyId, id: EmailId) -> Result<Option<Content>, StoreError> {
    let Some(seq) = seq_of(connection, company, id)? else { return Ok(None) };
    let block: Option<Vec<u8>> = connection
        .prepare_cached("SELECT body FROM contents WHERE email_seq = ?1")
        .and_then(|mut statement| statement.query_row([seq], |row| row.get(0)).optional())
        .map_err(from_sqlite)?;
    block
        .map(|block| content_codec::decode(&block).map_err(|error| StoreError::Broken(error.to_string())))
        .transpose()
}

/// A list's conditions: those the chosen index answers (`driving`), and those each row is tested for.
pub struct Query {
    driving: Vec<&'static str>,
    testing: Vec<&'static str>,
    values: Vec<Value>,
    /// It asks for ENQUEUED and nothing that an index tells.
    wants_waiting: bool,
}

/// The emails of a company that wait, by the index of claims, which begins with the route: from route to route.
const WAITING: &str = "WITH RECURSIVE routes (route) AS (
         SELECT min(route) FROM email_outbox WHERE due_at IS NOT NULL
         UNION ALL
         SELECT (SELECT min(route) FROM email_outbox WHERE due_at IS NOT NULL AND route > routes.route) FROM routes
         WHERE routes.route IS NOT NULL
     )
     SELECT o.seq FROM routes CROSS JOIN email_outbox o INDEXED BY outbox_due
         ON o.route = routes.route AND o.company_id = ?1 AND o.due_at IS NOT NULL
     LIMIT ?2";

/// What the conditions name by number.
fn values(company: CompanyId, filter: &EmailFilter, after: Option<&Cursor>) -> Vec<Value> {
    let text = |value: &Option<String>| value.clone().map_or(Value::Null, Value::Text);
    let millis = |value: Option<Timestamp>| value.map_or(Value::Null, |at| Value::Integer(at.millis()));
    let to = filter.to.as_ref().map(|to| to.expose().to_owned());
    let status = filter.status.map(|status| status.as_str().to_owned());
    vec![
        Value::Text(company.to_string()),
        Value::Integer(before(after)),
        text(&filter.tag),
        text(&filter.external_id),
        text(&filter.entity),
        text(&filter.recipient),
        text(&to),
        text(&filter.code),
        text(&status),
        millis(filter.since),
        millis(filter.until),
        text(&filter.request_id),
        text(&filter.message_id),
        filter
            .providers
            .as_ref()
            .map_or(Value::Null, |names| Value::Text(serde_json::json!(names).to_string())),
    ]
}

impl Query {
    /// Conditions name their values by number; the company is always ?1 and the cursor ?2.
    fn of(company: CompanyId, filter: &EmailFilter, after: Option<&Cursor>) -> Self {
        // No more than are looked at: a tag may be on half of a company's emails.
        const TAGGED: &str = "seq IN (SELECT email_seq FROM email_tags WHERE company_id = ?1 AND tag = ?3
             AND email_seq < ?2 ORDER BY email_seq DESC LIMIT 10000)";
        const BY_MESSAGE: &str = "seq IN (SELECT seq FROM email_outbox WHERE provider_message_id = ?13
             UNION SELECT email_seq FROM provider_messages WHERE message_id = ?13)";
        const TAG_OF_ROW: &str =
            "EXISTS (SELECT 1 FROM email_tags WHERE company_id = ?1 AND tag = ?3 AND email_seq = seq)";
        let troubled = filter.status.and_then(troubled);
        // In the order of how few rows they leave. The bare comparison lets a partial index be used; the `+` of
        // the second form keeps SQLite from choosing an index for what is only to be tested.
        let conditions = [
            // The first to drive, so it is never one to be tested.
            (filter.message_id.is_some(), true, BY_MESSAGE, ""),
            (filter.request_id.is_some(), true, "request_id = ?12", "+request_id = ?12"),
            (filter.external_id.is_some(), true, "external_id = ?4", "+external_id = ?4"),
            (filter.tag.is_some(), true, TAGGED, TAG_OF_ROW),
            (filter.to.is_some(), true, "to_email = ?7", "+to_email = ?7"),
            (filter.entity.is_some(), true, "entity_id = ?5", "+entity_id = ?5"),
            (filter.code.is_some(), true, "last_failure_code = ?8", "+last_failure_code = ?8"),
            (filter.status.is_some(), troubled.is_some(), troubled.unwrap_or_default(), "+status = ?9"),
            (filter.recipient.is_some(), false, "", "(recipient_external_id = ?6 OR recipient_id = ?6)"),
            (filter.since.is_some(), false, "", "created_at >= ?10"),
            (filter.until.is_some(), false, "", "created_at < ?11"),
            (filter.providers.is_some(), false, "", "provider IN (SELECT value FROM json_each(?14))"),
        ];
        let mut query = Self {
            driving: vec!["company_id = ?1", "seq < ?2"],
            testing: vec![],
            values: values(company, filter, after),
            wants_waiting: false,
        };
        for (wanted, may_drive, driving, testing) in conditions {
            if wanted && may_drive && query.driving.len() == 2 {
                query.driving.push(driving);
            } else if wanted {
                query.testing.push(testing);
            }
        }
        if filter.recipient.is_some() && query.driving.len() == 2 {
            query.testing.retain(|condition| !condition.contains("recipient_id"));
            query.driving.push(
                "seq IN (SELECT seq FROM email_outbox WHERE company_id = ?1 AND recipient_external_id = ?6
                         UNION SELECT seq FROM email_outbox WHERE company_id = ?1 AND recipient_id = ?6)",
            );
        }
        let knows_rows = |condition: &&str| condition.starts_with("seq IN") || **condition == *ACCEPTED;
        if query.driving.last().is_some_and(knows_rows) {
            // The rows are known by number, or by an index without the company; the company's own index would be walked
            // from end to end.
            query.driving[0] = "+company_id = ?1";
        }
        query.wants_waiting = filter.status == Some(Status::Enqueued) && query.driving.len() == 2;
        query
    }

    /// Those that wait are few among all emails, or they are the newest: if they are few, they are named.
    fn led_by_waiting(mut self, connection: &Connection) -> Result<Self, StoreError> {
        if !self.wants_waiting {
            return Ok(self);
        }
        let company = self.values.first().cloned().unwrap_or(Value::Null);
        let seqs: Vec<i64> = connection
            .prepare_cached(WAITING)
            .and_then(|mut statement| {
                statement.query_map((company, ROWS_LOOKED_AT_MAX), |row| row.get(0))?.collect()
            })
            .map_err(from_sqlite)?;
        if (seqs.len() as i64) < ROWS_LOOKED_AT_MAX {
            self.driving = vec!["+company_id = ?1", "seq < ?2", "seq IN (SELECT value FROM json_each(?15))"];
            self.values.push(Value::Text(serde_json::json!(seqs).to_string()));
        }
        Ok(self)
    }

    fn statement(&self, limit: u32) -> String {
        let testing = if self.testing.is_empty() { "1".to_owned() } else { self.testing.join(" AND ") };
        format!(
            "SELECT {columns} FROM email_outbox WHERE seq IN (
                 SELECT seq FROM (
                     SELECT {TESTED} FROM email_outbox WHERE {driving} ORDER BY seq DESC LIMIT {ROWS_LOOKED_AT_MAX}
                 ) WHERE {testing} ORDER BY seq DESC LIMIT {more}
             ) ORDER BY seq DESC",
            columns = row::COLUMNS,
            driving = self.driving.join(" AND "),
            more = u64::from(limit) + 1,
        )
    }

    fn page(&self, connection: &Connection, limit: u32) -> Result<Page<Email>, StoreError> {
        let sql = self.statement(limit);
        let mut statement = connection.prepare_cached(&sql).map_err(from_sqlite)?;
        let mut rows = statement.query(params_from_iter(self.values_for(&sql))).map_err(from_sqlite)?;
        let mut items = Vec::new();
        let mut last_seq = 0;
        let mut next = None;
        while let Some(row) = rows.next().map_err(from_sqlite)? {
            if items.len() == limit as usize {
                next = Some(cursor(last_seq));
                break;
            }
            last_seq = row.get("seq").map_err(from_sqlite)?;
            items.push(row::record(row)?.email());
        }
        if next.is_none() && !self.testing.is_empty() {
            next = self.end_of_look(connection)?.map(cursor);
        }
        Ok(Page { items, next })
    }

    /// SQLite wants exactly as many values as the highest number the statement names.
    fn values_for(&self, sql: &str) -> Vec<Value> {
        let named = (1..=self.values.len()).rev().find(|n| {
            sql.match_indices(&format!("?{n}"))
                .any(|(at, name)| !sql[at + name.len()..].starts_with(|next: char| next.is_ascii_digit()))
        });
        self.values[..named.unwrap_or(0)].to_vec()
    }

    /// Where the look stopped, if it stopped before the end.
    fn end_of_look(&self, connection: &Connection) -> Result<Option<i64>, StoreError> {
        let sql = format!(
            "SELECT seq FROM email_outbox WHERE {} ORDER BY seq DESC LIMIT 1 OFFSET {}",
            self.driving.join(" AND "),
            ROWS_LOOKED_AT_MAX - 1
        );
        let mut statement = connection.prepare_cached(&sql).map_err(from_sqlite)?;
        let values = self.values_for(&sql);
        statement.query_row(params_from_iter(values), |row| row.get(0)).optional().map_err(from_sqlite)
    }
}

/// Its index is of all companies: there are never many.
const ACCEPTED: &str = "status = 'ACCEPTED'";

/// The condition for a status that has an index, spelled out: SQLite sees that a partial index fits only when the
/// value stands in the statement.
fn troubled(status: Status) -> Option<&'static str> {
    match status {
        Status::RetryScheduled => Some("status = 'RETRY_SCHEDULED'"),
        Status::Failed => Some("status = 'FAILED'"),
        Status::Invalid => Some("status = 'INVALID'"),
        Status::Expired => Some("status = 'EXPIRED'"),
        Status::Cancelled => Some("status = 'CANCELLED'"),
        Status::Bounced => Some("status = 'BOUNCED'"),
        Status::Complained => Some("status = 'COMPLAINED'"),
        Status::Accepted => Some(ACCEPTED),
        Status::Processing => Some("status = 'PROCESSING'"),
        Status::Enqueued | Status::Sent | Status::Delivered => None,
    }
}

pub fn cursor(seq: i64) -> Cursor {
    Cursor(seq.to_string())
}

/// Rows below this are still to come. A cursor that is none of ours ends the list.
pub fn before(after: Option<&Cursor>) -> i64 {
    after.map_or(i64::MAX, |cursor| cursor.0.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    /// Each filter goes along the index that was made for it, never through all of a company's emails.
    #[test]
    fn filters_use_their_indexes() {
        let mut connection = schema::connect_in_memory().expect("opens");
        schema::migrate(&mut connection).expect("migrates");
        let some = || Some("x".to_owned());
        let none = EmailFilter::default;
        let cases = [
            ("outbox_by_company", none()),
            ("outbox_by_external_id", EmailFilter { external_id: some(), ..none() }),
            ("outbox_by_request", EmailFilter { request_id: some(), ..none() }),
            ("outbox_by_message", EmailFilter { message_id: some(), ..none() }),
            (
                "outbox_by_to",
                EmailFilter {
                    providers: Some(vec!["capture".into()]),
                    to: Some(model::Address::trusted("a@b.com".into())),
                    ..none()
                },
            ),
            ("email_tags", EmailFilter { tag: some(), ..none() }),
            ("outbox_by_to", EmailFilter { to: Some(model::Address::trusted("a@b.com".into())), ..none() }),
            ("outbox_by_entity", EmailFilter { entity: some(), ..none() }),
            ("outbox_by_code", EmailFilter { code: some(), ..none() }),
            ("outbox_by_recipient", EmailFilter { recipient: some(), ..none() }),
            ("outbox_troubled", EmailFilter { status: Some(Status::Failed), ..none() }),
            ("outbox_intake", EmailFilter { status: Some(Status::Accepted), ..none() }),
            ("outbox_in_flight", EmailFilter { status: Some(Status::Processing), ..none() }),
            (
                "outbox_troubled",
                EmailFilter { status: Some(Status::Bounced), since: Some(Timestamp::NEVER), ..none() },
            ),
        ];
        for (index, filter) in cases {
            let query = Query::of(model::CompanyId::new(Timestamp::NEVER), &filter, None);
            let sql = format!("EXPLAIN QUERY PLAN {}", query.statement(25));
            let mut statement = connection.prepare(&sql).expect("a statement");
            let rows = statement
                .query_map(params_from_iter(query.values_for(&sql)), |row| row.get::<_, String>("detail"))
                .expect("a plan");
            let plan = rows.collect::<Result<Vec<_>, _>>().expect("a plan").join("; ");
            assert!(plan.contains(index), "{filter:?}: {plan}");
            let walks = index != "outbox_by_company" && plan.contains("outbox_by_company");
            assert!(!walks && !plan.contains("SCAN email_outbox"), "{filter:?}: {plan}");
            let looks = sql.matches(&format!("LIMIT {ROWS_LOOKED_AT_MAX}")).count();
            assert_eq!(looks, 1 + usize::from(filter.tag.is_some()), "no look goes further: {sql}");
        }
    }
}
