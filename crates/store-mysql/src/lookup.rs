//! Reading emails back. A list looks at a bounded number of rows per call, along the index that fits its most
//! telling filter, so that it answers quickly however many emails there are.

use async_trait::async_trait;
use model::{CompanyId, Content, Email, EmailId, Event, RecipientId, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::{Cursor, EmailFilter, KeptAnswer, Lookup, Page, StoreError, content_codec};

use crate::MysqlStore;
use crate::error::Fault;
use crate::row::{self, at, get, moment, parsed};

/// How many rows one page may cost when a filter matches few of them.
const ROWS_LOOKED_AT_MAX: u32 = 20_000;

#[async_trait]
impl Lookup for MysqlStore {
    async fn email(&self, company: CompanyId, id: EmailId) -> Result<Option<Email>, StoreError> {
        self.read((company, id), |connection, &(company, id)| Box::pin(email(connection, company, id))).await
    }

    async fn kept_answer(
        &self,
        company: CompanyId,
        key: &str,
        now: Timestamp,
    ) -> Result<Option<KeptAnswer>, StoreError> {
        self.read((company, key.to_owned(), now), |connection, (company, key, now)| {
            Box::pin(kept_answer(connection, *company, key, *now))
        })
        .await
    }

    async fn emails(
        &self,
        company: CompanyId,
        filter: &EmailFilter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Email>, StoreError> {
        let Some(before) = before(after) else { return Ok(Page { items: Vec::new(), next: None }) };
        let query = Query { company: company.to_string(), filter: filter.clone(), before, limit };
        self.read(query, |connection, query| Box::pin(query.page(connection))).await
    }

    async fn events(&self, company: CompanyId, id: EmailId) -> Result<Option<Vec<Event>>, StoreError> {
        self.read((company, id), |connection, &(company, id)| Box::pin(events(connection, company, id))).await
    }

    async fn content(&self, company: CompanyId, id: EmailId) -> Result<Option<Content>, StoreError> {
        self.read((company, id), |connection, &(company, id)| Box::pin(content(connection, company, id)))
            .await
    }

    async fn company_of(&self, id: EmailId) -> Result<Option<CompanyId>, StoreError> {
        let find = self.read(id, |connection, id| {
            Box::pin(async move {
                let sql = "SELECT company_id FROM email_outbox WHERE id = ?";
                let row = sqlx::query(sql).bind(id.to_string()).fetch_optional(connection).await?;
                Ok(row.map(|row| parsed(&row, "company_id")).transpose()?)
            })
        });
        find.await
    }
}

async fn kept_answer(
    connection: &mut MySqlConnection,
    company: CompanyId,
    key: &str,
    now: Timestamp,
) -> Result<Option<KeptAnswer>, Fault> {
    let sql = "SELECT body_hash, answer FROM idempotency_keys WHERE company_id = ? AND `key` = ? AND keep_until > ?";
    let query = sqlx::query(sql).bind(company.to_string()).bind(key).bind(now.millis());
    let row = query.fetch_optional(connection).await?;
    let kept =
        |row: MySqlRow| Ok(KeptAnswer { body_hash: get(&row, "body_hash")?, answer: get(&row, "answer")? });
    row.map(kept).transpose()
}

async fn email(
    connection: &mut MySqlConnection,
    company: CompanyId,
    id: EmailId,
) -> Result<Option<Email>, Fault> {
    let mut sql = QueryBuilder::<MySql>::new(format!(
        "SELECT {}, q.due_at, q.lease_until FROM email_outbox o LEFT JOIN email_queue q ON q.email_id = o.id
         WHERE o.id = ",
        row::COLUMNS
    ));
    sql.push_bind(id.to_string()).push(" AND o.company_id = ").push_bind(company.to_string());
    let row = sql.build().fetch_optional(connection).await?;
    Ok(row.map(|row| row::record(&row)).transpose()?.map(store::record::Record::email))
}

/// The history and whether there is such an email, in one question: an email without a line of history has one of NULLs.
async fn events(
    connection: &mut MySqlConnection,
    company: CompanyId,
    id: EmailId,
) -> Result<Option<Vec<Event>>, Fault> {
    let rows = sqlx::query(
        "SELECT e.type, e.created_at, e.metadata FROM email_outbox o LEFT JOIN events e ON e.email_id = o.id
         WHERE o.id = ? AND o.company_id = ? ORDER BY e.id",
    )
    .bind(id.to_string())
    .bind(company.to_string())
    .fetch_all(connection)
    .await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let event = |row: &MySqlRow| -> Result<Option<Event>, StoreError> {
        let Some(kind) = get::<Option<&str>>(row, "type")? else { return Ok(None) };
        let metadata: Option<&str> = get(row, "metadata")?;
        Ok(Some(Event {
            kind: kind.parse().map_err(|_| StoreError::Broken("an event's type cannot be read".into()))?,
            at: moment(row, "created_at")?,
            metadata: metadata.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
        }))
    };
    let events: Vec<Option<Event>> = rows.iter().map(event).collect::<Result<_, _>>()?;
    Ok(Some(events.into_iter().flatten().collect()))
}

async fn content(
    connection: &mut MySqlConnection,
    company: CompanyId,
    id: EmailId,
) -> Result<Option<Content>, Fault> {
    let row = sqlx::query(
        "SELECT c.body FROM email_outbox o JOIN contents c ON c.email_id = o.id WHERE o.id = ? AND o.company_id = ?",
    )
    .bind(id.to_string())
    .bind(company.to_string())
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let content = content_codec::decode(get(&row, "body")?);
    Ok(Some(content.map_err(|error| StoreError::Broken(error.to_string()))?))
}

/// One page of a list.
struct Query {
    company: String,
    filter: EmailFilter,
    /// Ids below this are still to come.
    before: String,
    limit: u32,
}

/// The index a list goes along, and what it looks for in it.
enum Driving<'f> {
    Company,
    Tag(&'f str),
    /// Any of the ids that a provider gave for it.
    Message(&'f str),
    /// The index, the column, the value.
    Column(&'static str, &'static str, &'f str),
    /// Named by either of the recipient's ids.
    Recipient {
        external_id: &'f str,
        id: RecipientId,
    },
}

impl<'f> Driving<'f> {
    fn column(index: &'static str, column: &'static str, value: Option<&'f str>) -> Option<Self> {
        value.map(|value| Self::Column(index, column, value))
    }
}

impl Query {
    /// In the order of how few rows they leave.
    fn driving(&self) -> Driving<'_> {
        let filter = &self.filter;
        let status = filter.status.and_then(row::trouble);
        let message = filter.message_id.as_deref().map(Driving::Message);
        message
            .or_else(|| Driving::column("outbox_by_request", "request_id", filter.request_id.as_deref()))
            .or_else(|| {
                Driving::column("outbox_by_external_id", "external_id", filter.external_id.as_deref())
            })
            .or_else(|| filter.tag.as_deref().map(Driving::Tag))
            .or_else(|| {
                Driving::column("outbox_by_to", "to_email", filter.to.as_ref().map(model::Address::expose))
            })
            .or_else(|| Driving::column("outbox_by_entity", "entity_id", filter.entity.as_deref()))
            .or_else(|| Driving::column("outbox_by_code", "last_failure_code", filter.code.as_deref()))
            .or_else(|| Driving::column("outbox_troubled", "trouble", status))
            .or_else(|| self.driving_recipient())
            .unwrap_or(Driving::Company)
    }

    fn driving_recipient(&self) -> Option<Driving<'_>> {
        let external_id = self.filter.recipient.as_deref()?;
        Some(match external_id.parse() {
            Ok(id) => Driving::Recipient { external_id, id },
            Err(_) => Driving::Column("outbox_by_recipient", "recipient_external_id", external_id),
        })
    }

    /// The emails that the driving index has, up to but without the condition's end.
    fn push_source(&self, sql: &mut QueryBuilder<MySql>) {
        match self.driving() {
            Driving::Company => {
                sql.push(" FROM email_outbox o FORCE INDEX (outbox_by_company) WHERE o.company_id = ");
                sql.push_bind(&self.company).push(" AND o.id < ").push_bind(&self.before);
            }
            Driving::Column(index, column, value) => {
                sql.push(format_args!(" FROM email_outbox o FORCE INDEX ({index}) WHERE o.company_id = "));
                sql.push_bind(&self.company).push(format_args!(" AND o.{column} = ")).push_bind(value);
                sql.push(" AND o.id < ").push_bind(&self.before);
            }
            Driving::Tag(tag) => {
                sql.push(" FROM email_tags t FORCE INDEX (PRIMARY) STRAIGHT_JOIN email_outbox o ON o.id = t.email_id");
                sql.push(" WHERE t.company_id = ")
                    .push_bind(&self.company)
                    .push(" AND t.tag = ")
                    .push_bind(tag);
                sql.push(" AND t.email_id < ").push_bind(&self.before);
                sql.push(" AND o.company_id = ").push_bind(&self.company);
            }
            Driving::Message(message_id) => {
                sql.push(" FROM (SELECT id FROM email_outbox FORCE INDEX (outbox_by_message) WHERE provider_message_id = ");
                sql.push_bind(message_id);
                sql.push(" UNION SELECT email_id FROM provider_messages FORCE INDEX (provider_messages_by_id) WHERE message_id = ");
                sql.push_bind(message_id);
                sql.push(") m STRAIGHT_JOIN email_outbox o ON o.id = m.id WHERE o.company_id = ");
                sql.push_bind(&self.company).push(" AND o.id < ").push_bind(&self.before);
            }
            Driving::Recipient { external_id, id } => {
                sql.push(" FROM (SELECT id FROM email_outbox FORCE INDEX (outbox_by_recipient) WHERE company_id = ");
                sql.push_bind(&self.company).push(" AND recipient_external_id = ").push_bind(external_id);
                sql.push(" UNION SELECT id FROM email_outbox FORCE INDEX (outbox_by_recipient_id) WHERE company_id = ");
                sql.push_bind(&self.company).push(" AND recipient_id = ").push_bind(id.to_string());
                sql.push(") r STRAIGHT_JOIN email_outbox o ON o.id = r.id WHERE o.id < ")
                    .push_bind(&self.before);
            }
        }
    }

    /// The order that goes along the driving index.
    fn order(&self) -> &'static str {
        match self.driving() {
            Driving::Tag(_) => " ORDER BY t.email_id DESC",
            _ => " ORDER BY o.id DESC",
        }
    }

    /// What each row is tested for; all filters, since testing again what drives costs nothing. Gives back how many.
    fn push_tests(&self, sql: &mut QueryBuilder<MySql>) -> u32 {
        let filter = &self.filter;
        let mut tests = Tests { sql, count: 0 };
        tests.equal("o.external_id", filter.external_id.as_deref());
        tests.equal("o.to_email", filter.to.as_ref().map(model::Address::expose));
        tests.equal("o.entity_id", filter.entity.as_deref());
        tests.equal("o.last_failure_code", filter.code.as_deref());
        tests.equal("o.status", filter.status.map(model::Status::as_str));
        tests.equal("o.request_id", filter.request_id.as_deref());
        tests.among("o.provider", filter.providers.as_deref());
        tests.moment("o.created_at >= ", filter.since);
        tests.moment("o.created_at < ", filter.until);
        if let Some(tag) = &filter.tag {
            tests.and("EXISTS (SELECT 1 FROM email_tags x WHERE x.email_id = o.id AND x.company_id = ");
            tests.sql.push_bind(&self.company).push(" AND x.tag = ").push_bind(tag).push(")");
        }
        if let Some(recipient) = &filter.recipient {
            tests.and("(o.recipient_external_id = ");
            tests.sql.push_bind(recipient);
            if let Ok(id) = recipient.parse::<RecipientId>() {
                tests.sql.push(" OR o.recipient_id = ").push_bind(id.to_string());
            }
            tests.sql.push(")");
        }
        tests.count
    }

    async fn page(&self, connection: &mut MySqlConnection) -> Result<Page<Email>, Fault> {
        let end = self.end_of_look(connection).await?;
        let mut sql = QueryBuilder::<MySql>::new(format!(
            "SELECT {}, (SELECT q.due_at FROM email_queue q WHERE q.email_id = o.id) AS due_at,
                    CAST(NULL AS SIGNED) AS lease_until",
            row::COLUMNS
        ));
        self.push_source(&mut sql);
        self.push_tests(&mut sql);
        if let Some(end) = &end {
            sql.push(" AND o.id >= ").push_bind(end);
        }
        sql.push(self.order()).push(" LIMIT ").push_bind(u64::from(self.limit) + 1);
        let rows = sql.build().persistent(false).fetch_all(connection).await?;
        let (items, next) = page_of(&rows, self.limit)?;
        Ok(Page { items, next: next.or(end.map(Cursor)) })
    }

    /// Where the look has to stop, if there are more rows than one page may cost. Where nothing is tested but what the
    /// index was asked for, every row matches, and the page's own limit stops it.
    async fn end_of_look(&self, connection: &mut MySqlConnection) -> Result<Option<String>, Fault> {
        let tested_by_index = u32::from(!matches!(self.driving(), Driving::Company));
        if self.push_tests(&mut QueryBuilder::new("")) == tested_by_index {
            return Ok(None);
        }
        let mut sql = QueryBuilder::<MySql>::new("SELECT o.id");
        self.push_source(&mut sql);
        sql.push(self.order()).push(" LIMIT 1 OFFSET ").push_bind(ROWS_LOOKED_AT_MAX - 1);
        let row = sql.build().fetch_optional(connection).await?;
        Ok(row.map(|row| get(&row, "id")).transpose()?)
    }
}

/// Conditions added to a statement.
struct Tests<'a> {
    sql: &'a mut QueryBuilder<MySql>,
    count: u32,
}

impl Tests<'_> {
    fn and(&mut self, condition: &str) {
        self.sql.push(" AND ").push(condition);
        self.count += 1;
    }

    fn equal(&mut self, column: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.and(column);
            self.sql.push(" = ").push_bind(value);
        }
    }

    /// One of them; with none to choose from, nothing matches.
    fn among(&mut self, column: &str, values: Option<&[String]>) {
        let Some(values) = values else { return };
        self.and(column);
        self.sql.push(" IN (NULL");
        for value in values {
            self.sql.push(", ").push_bind(value);
        }
        self.sql.push(")");
    }

    fn moment(&mut self, condition: &str, value: Option<Timestamp>) {
        if let Some(value) = value {
            self.and(condition);
            self.sql.push_bind(at(value));
        }
    }
}

/// The first rows as emails, and where the next page begins if there is one more row.
pub fn page_of(rows: &[MySqlRow], limit: u32) -> Result<(Vec<Email>, Option<Cursor>), StoreError> {
    let items: Vec<Email> = rows
        .iter()
        .take(limit as usize)
        .map(|row| Ok(row::record(row)?.email()))
        .collect::<Result<_, StoreError>>()?;
    let is_more = rows.len() > items.len();
    let next = items.last().filter(|_| is_more).map(|email| Cursor(email.id.to_string()));
    Ok((items, next))
}

/// Ids below this are still to come; `None` for a cursor that is none of ours, which ends the list.
pub fn before(after: Option<&Cursor>) -> Option<String> {
    match after {
        None => Some("g".to_owned()),
        Some(cursor) => cursor.0.parse::<EmailId>().ok().map(|id| id.to_string()),
    }
}
