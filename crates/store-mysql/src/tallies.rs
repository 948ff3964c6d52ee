//! Counts by day. Whoever writes events that are counted notes them in the same transaction, in rows of its own, so that
//! nobody waits for anybody; `fold` adds the notes up.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use model::{CompanyId, EmailId, Event, EventKind, KeyMode};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::record::{Record, damaged};
use store::tallies::{ENTITY_ROWS_LOOKED_AT_MAX, TALLIED, day_of};
use store::{DayTally, EntityRecord, EntityTally, StoreError, Tallies};
use uuid::Uuid;

use crate::MysqlStore;
use crate::error::Fault;
use crate::row::{get, ids, parsed, portions, push_list};

const ENTITY_TALLY: &str = "SELECT tallied.type, CAST(tallied.total AS UNSIGNED) AS total,
            CAST((SELECT COUNT(*) FROM entity_recipients met
                  WHERE met.company_id = ? AND met.entity_id = ? AND met.type = tallied.type AND met.last_day >= ?)
                 AS UNSIGNED) AS unique_recipients
     FROM (SELECT type, SUM(total) AS total FROM entity_tallies
           WHERE company_id = ? AND entity_id = ? AND day >= ? GROUP BY type) AS tallied
     ORDER BY tallied.total DESC, tallied.type";
const ENTITY_DAYS: &str = "SELECT day, type, total FROM entity_tallies
     WHERE company_id = ? AND entity_id = ? AND day >= ? ORDER BY day, type";
const COMPANY_DAYS: &str = "SELECT day, type, CAST(SUM(total) AS UNSIGNED) AS total FROM day_tallies
     WHERE company_id = ? AND (? IS NULL OR mode = ?) AND day >= ? GROUP BY day, type ORDER BY day, type";
const ALL_DAYS: &str = "SELECT day, type, CAST(SUM(total) AS UNSIGNED) AS total FROM day_tallies
     WHERE (? IS NULL OR mode = ?) AND day >= ? GROUP BY day, type ORDER BY day, type";
const ENTITIES: &str = "SELECT entity_id, MAX(day) AS last_day
     FROM (SELECT entity_id, day FROM entity_tallies FORCE INDEX (entity_tallies_by_day)
           WHERE company_id = ? ORDER BY day DESC LIMIT ?) AS lately
     GROUP BY entity_id ORDER BY last_day DESC, entity_id LIMIT ?";

/// Those under way elsewhere, being written or added up, are left alone.
const OLDEST_NOTES: &str = "SELECT * FROM tally_notes ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED";
const NOTES_OF_PERSON: &str = "SELECT id FROM tally_notes WHERE company_id = ? AND address = ?";
/// Another for each row, so that nothing tells that they were one person. The salt is nowhere kept.
const FORGET: &str =
    "UPDATE entity_recipients SET address = CONCAT('erased:', SHA2(CONCAT_WS(' ', ?, entity_id, type), 256))
     WHERE company_id = ? AND address = ?";

#[async_trait]
impl Tallies for MysqlStore {
    async fn fold(&self, limit: u32) -> Result<u32, StoreError> {
        let fold = self.write(limit, |lane, limit| {
            Box::pin(async move {
                let rows = sqlx::query(OLDEST_NOTES).bind(limit).fetch_all(&mut lane.connection).await?;
                add_up(&mut lane.connection, &rows).await
            })
        });
        fold.await
    }

    async fn entity_tally(
        &self,
        company: CompanyId,
        entity: &str,
        since_day: i64,
    ) -> Result<Vec<EntityTally>, StoreError> {
        let asked = (company.to_string(), entity.to_owned(), since_day);
        let read = self.read(asked, |connection, (company, entity, since_day)| {
            Box::pin(async move {
                let query = sqlx::query(ENTITY_TALLY).bind(company).bind(entity).bind(since_day);
                let rows = query.bind(company).bind(entity).bind(since_day).fetch_all(connection).await?;
                let tally = |row: &MySqlRow| -> Result<EntityTally, StoreError> {
                    let (total, unique_recipients) = (get(row, "total")?, get(row, "unique_recipients")?);
                    Ok(EntityTally { kind: kind(row)?, total, unique_recipients })
                };
                Ok(rows.iter().map(tally).collect::<Result<_, _>>()?)
            })
        });
        read.await
    }

    async fn entity_days(
        &self,
        company: CompanyId,
        entity: &str,
        since_day: i64,
    ) -> Result<Vec<DayTally>, StoreError> {
        let asked = (company.to_string(), entity.to_owned(), since_day);
        let read = self.read(asked, |connection, (company, entity, since_day)| {
            Box::pin(async move {
                let query = sqlx::query(ENTITY_DAYS).bind(company).bind(entity).bind(since_day);
                let rows = query.fetch_all(connection).await?;
                Ok(rows.iter().map(day).collect::<Result<_, _>>()?)
            })
        });
        read.await
    }

    async fn company_days(
        &self,
        company: Option<CompanyId>,
        mode: Option<KeyMode>,
        since_day: i64,
    ) -> Result<Vec<DayTally>, StoreError> {
        let asked = (company.map(|id| id.to_string()), mode.map(KeyMode::as_str), since_day);
        let read = self.read(asked, |connection, (company, mode, since_day)| {
            Box::pin(async move {
                let query = match company {
                    Some(company) => sqlx::query(COMPANY_DAYS).bind(company),
                    None => sqlx::query(ALL_DAYS),
                };
                let rows = query.bind(mode).bind(mode).bind(since_day).fetch_all(connection).await?;
                Ok(rows.iter().map(day).collect::<Result<_, _>>()?)
            })
        });
        read.await
    }

    async fn entities(&self, company: CompanyId, limit: u32) -> Result<Vec<EntityRecord>, StoreError> {
        let read = self.read((company, limit), |connection, (company, limit)| {
            Box::pin(async move {
                let query = sqlx::query(ENTITIES).bind(company.to_string()).bind(ENTITY_ROWS_LOOKED_AT_MAX);
                let rows = query.bind(limit).fetch_all(connection).await?;
                let record = |row: &MySqlRow| -> Result<EntityRecord, StoreError> {
                    Ok(EntityRecord { id: get(row, "entity_id")?, last_day: get(row, "last_day")? })
                };
                Ok(rows.iter().map(record).collect::<Result<_, _>>()?)
            })
        });
        read.await
    }
}

fn kind(row: &MySqlRow) -> Result<EventKind, StoreError> {
    get::<&str>(row, "type")?.parse().map_err(|_| damaged("a tally"))
}

fn day(row: &MySqlRow) -> Result<DayTally, StoreError> {
    Ok(DayTally { day: get(row, "day")?, kind: kind(row)?, total: get(row, "total")? })
}

/// Whose events are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    company: String,
    mode: String,
    /// Of an email about an entity: its id, and the recipient's address in lower case.
    entity: Option<(String, String)>,
}

impl Subject {
    /// Reads `company_id`, `mode`, `entity_id` and `to_email`.
    pub fn read(row: &MySqlRow) -> Result<Self, StoreError> {
        let entity: Option<String> = get(row, "entity_id")?;
        let address = get::<&str>(row, "to_email")?.to_ascii_lowercase();
        Ok(Self {
            company: get(row, "company_id")?,
            mode: get(row, "mode")?,
            entity: entity.map(|id| (id, address)),
        })
    }

    pub fn of(record: &Record) -> Self {
        let address = record.to_email.to_ascii_lowercase();
        Self {
            company: record.company.to_string(),
            mode: record.mode.as_str().to_owned(),
            entity: record.entity_id.clone().map(|id| (id, address)),
        }
    }
}

pub fn is_counted(event: &Event) -> bool {
    TALLIED.contains(&event.kind)
}

/// What is to be noted: how often an event happened on a day.
#[derive(Debug, Default)]
pub struct Notes(BTreeMap<(Subject, i64, &'static str), u64>);

impl Notes {
    pub fn add(&mut self, subject: &Subject, event: &Event) {
        if is_counted(event) {
            *self.0.entry((subject.clone(), day_of(event.at), event.kind.as_str())).or_default() += 1;
        }
    }

    pub async fn write(self, connection: &mut MySqlConnection) -> Result<(), Fault> {
        let notes: Vec<_> = self.0.into_iter().collect();
        for notes in portions(&notes) {
            let mut sql = QueryBuilder::<MySql>::new(
                "INSERT INTO tally_notes (company_id, mode, day, type, entity_id, address, total) ",
            );
            sql.push_values(notes, |mut row, ((subject, day, kind), total)| {
                let entity = subject.entity.as_ref();
                row.push_bind(&subject.company).push_bind(&subject.mode);
                row.push_bind(day).push_bind(*kind);
                row.push_bind(entity.map(|(id, _)| id)).push_bind(entity.map(|(_, address)| address));
                row.push_bind(total);
            });
            sql.build().execute(&mut *connection).await?;
        }
        Ok(())
    }
}

/// Notes what is counted of these events. Costs nothing when nothing is.
pub async fn note(connection: &mut MySqlConnection, events: &[(EmailId, &Event)]) -> Result<(), Fault> {
    let counted: Vec<(EmailId, &Event)> =
        events.iter().filter(|(_, event)| is_counted(event)).copied().collect();
    if counted.is_empty() {
        return Ok(());
    }
    let mut notes = Notes::default();
    for counted in portions(&counted) {
        let emails: Vec<EmailId> = counted.iter().map(|(id, _)| *id).collect();
        let mut sql = QueryBuilder::<MySql>::new(
            "SELECT id, company_id, mode, entity_id, to_email FROM email_outbox FORCE INDEX (PRIMARY) WHERE id IN ",
        );
        push_list(&mut sql, ids(&emails));
        let mut subjects: HashMap<EmailId, Subject> = HashMap::with_capacity(emails.len());
        for row in sql.build().fetch_all(&mut *connection).await? {
            subjects.insert(parsed(&row, "id")?, Subject::read(&row)?);
        }
        for (id, event) in counted {
            if let Some(subject) = subjects.get(id) {
                notes.add(subject, event);
            }
        }
    }
    notes.write(connection).await
}

/// Tallies as they are kept, in the order in which everybody writes them: by company, mode, day and type; by company,
/// entity, day and type; by company, entity, type and address.
#[derive(Default)]
struct Sums {
    days: BTreeMap<(String, String, i64, String), u64>,
    entities: BTreeMap<(String, String, i64, String), u64>,
    recipients: BTreeMap<(String, String, String, String), i64>,
}

impl Sums {
    fn add(&mut self, row: &MySqlRow) -> Result<(), StoreError> {
        let (company, mode): (String, String) = (get(row, "company_id")?, get(row, "mode")?);
        let (day, kind): (i64, String) = (get(row, "day")?, get(row, "type")?);
        let total: u64 = get(row, "total")?;
        *self.days.entry((company.clone(), mode, day, kind.clone())).or_default() += total;
        let entity: Option<String> = get(row, "entity_id")?;
        let address: Option<String> = get(row, "address")?;
        if let (Some(entity), Some(address)) = (entity, address) {
            let by_day = (company.clone(), entity.clone(), day, kind.clone());
            *self.entities.entry(by_day).or_default() += total;
            let last_day = self.recipients.entry((company, entity, kind, address)).or_insert(day);
            *last_day = day.max(*last_day);
        }
        Ok(())
    }

    async fn write(self, connection: &mut MySqlConnection) -> Result<(), Fault> {
        let days: Vec<_> = self.days.into_iter().collect();
        for days in portions(&days) {
            let mut sql =
                QueryBuilder::<MySql>::new("INSERT INTO day_tallies (company_id, mode, day, type, total) ");
            sql.push_values(days, |mut row, ((company, mode, day, kind), total)| {
                row.push_bind(company).push_bind(mode).push_bind(day).push_bind(kind).push_bind(total);
            });
            sql.push(" ON DUPLICATE KEY UPDATE total = total + VALUES(total)");
            sql.build().execute(&mut *connection).await?;
        }
        let entities: Vec<_> = self.entities.into_iter().collect();
        for entities in portions(&entities) {
            let mut sql = QueryBuilder::<MySql>::new(
                "INSERT INTO entity_tallies (company_id, entity_id, day, type, total) ",
            );
            sql.push_values(entities, |mut row, ((company, entity, day, kind), total)| {
                row.push_bind(company).push_bind(entity).push_bind(day).push_bind(kind).push_bind(total);
            });
            sql.push(" ON DUPLICATE KEY UPDATE total = total + VALUES(total)");
            sql.build().execute(&mut *connection).await?;
        }
        let recipients: Vec<_> = self.recipients.into_iter().collect();
        for recipients in portions(&recipients) {
            let mut sql = QueryBuilder::<MySql>::new(
                "INSERT INTO entity_recipients (company_id, entity_id, type, address, last_day) ",
            );
            sql.push_values(recipients, |mut row, ((company, entity, kind, address), day)| {
                row.push_bind(company).push_bind(entity).push_bind(kind).push_bind(address).push_bind(day);
            });
            sql.push(" ON DUPLICATE KEY UPDATE last_day = GREATEST(last_day, VALUES(last_day))");
            sql.build().execute(&mut *connection).await?;
        }
        Ok(())
    }
}

/// Moves notes, whose rows are locked, into the tallies. Gives how many there were.
async fn add_up(connection: &mut MySqlConnection, rows: &[MySqlRow]) -> Result<u32, Fault> {
    let mut sums = Sums::default();
    let mut notes: Vec<u64> = Vec::with_capacity(rows.len());
    for row in rows {
        sums.add(row)?;
        notes.push(get(row, "id")?);
    }
    for notes in portions(&notes) {
        let mut sql = QueryBuilder::<MySql>::new("DELETE FROM tally_notes WHERE id IN (");
        let mut list = sql.separated(", ");
        for id in notes {
            list.push_bind(id);
        }
        sql.push(")");
        sql.build().execute(&mut *connection).await?;
    }
    sums.write(connection).await?;
    Ok(u32::try_from(rows.len()).unwrap_or(u32::MAX))
}

/// Somebody is forgotten: counts stay, and where the address stood there is one of nobody. What is noted of them is added
/// up first, so that one person stays one.
pub async fn forget(
    connection: &mut MySqlConnection,
    company: CompanyId,
    address: &str,
) -> Result<(), Fault> {
    let query = sqlx::query(NOTES_OF_PERSON).bind(company.to_string()).bind(address);
    let rows = query.fetch_all(&mut *connection).await?;
    let notes: Vec<u64> = rows.iter().map(|row| get(row, "id")).collect::<Result<_, _>>()?;
    for notes in portions(&notes) {
        // Those that somebody adds up just now are waited for, and are found among the tallies then.
        let mut sql = QueryBuilder::<MySql>::new("SELECT * FROM tally_notes WHERE id IN (");
        let mut list = sql.separated(", ");
        for id in notes {
            list.push_bind(id);
        }
        sql.push(") ORDER BY id FOR UPDATE");
        let rows = sql.build().fetch_all(&mut *connection).await?;
        add_up(connection, &rows).await?;
    }
    let query = sqlx::query(FORGET).bind(Uuid::new_v4().to_string()).bind(company.to_string()).bind(address);
    query.execute(connection).await?;
    Ok(())
}

/// Takes away up to `limit` counts of days before that one, each with those it was about; those of one company at a time,
/// as the index has them. A count goes when all those are gone.
pub async fn prune(connection: &mut MySqlConnection, before_day: i64, limit: u32) -> Result<u64, Fault> {
    let sql = "DELETE FROM day_tallies WHERE day < ? ORDER BY day LIMIT ?";
    let days = sqlx::query(sql).bind(before_day).bind(limit).execute(&mut *connection).await?;
    let mut gone = 0;
    for (company, entity, day, kind) in old_tallies(connection, before_day, limit).await? {
        if gone >= u64::from(limit) {
            break;
        }
        let sql = "DELETE FROM entity_recipients
                   WHERE company_id = ? AND entity_id = ? AND type = ? AND last_day < ? LIMIT ?";
        let query = sqlx::query(sql).bind(&company).bind(&entity).bind(&kind).bind(before_day).bind(limit);
        let people = query.execute(&mut *connection).await?.rows_affected();
        gone += people;
        if people < u64::from(limit) {
            let sql =
                "DELETE FROM entity_tallies WHERE company_id = ? AND entity_id = ? AND day = ? AND type = ?";
            let query = sqlx::query(sql).bind(&company).bind(&entity).bind(day).bind(&kind);
            gone += query.execute(&mut *connection).await?.rows_affected();
        }
    }
    Ok(days.rows_affected() + gone)
}

/// Takes away what companies with a daily limit handed in on up to `limit` days before that one. They are named, so that
/// the statement which deletes meets no row of today, which somebody may hold.
pub async fn prune_limits(
    connection: &mut MySqlConnection,
    before_day: i64,
    limit: u32,
) -> Result<u64, Fault> {
    let sql = "SELECT company_id, day FROM company_days WHERE day < ? ORDER BY company_id, day LIMIT ?";
    let rows = sqlx::query(sql).bind(before_day).bind(limit).fetch_all(&mut *connection).await?;
    let old: Vec<(String, i64)> = rows
        .iter()
        .map(|row| Ok((get(row, "company_id")?, get(row, "day")?)))
        .collect::<Result<_, Fault>>()?;
    for old in portions(&old) {
        let mut sql = QueryBuilder::<MySql>::new("DELETE FROM company_days WHERE (company_id, day) IN ");
        sql.push_tuples(old, |mut row, (company, day)| {
            row.push_bind(company).push_bind(day);
        });
        sql.build().execute(&mut *connection).await?;
    }
    Ok(old.len() as u64)
}

type OldTally = (String, String, i64, String);

async fn old_tallies(
    connection: &mut MySqlConnection,
    before_day: i64,
    limit: u32,
) -> Result<Vec<OldTally>, Fault> {
    let sql = "SELECT id FROM companies WHERE EXISTS (
                   SELECT 1 FROM entity_tallies WHERE company_id = companies.id AND day < ?) LIMIT 1";
    let Some(company) = sqlx::query(sql).bind(before_day).fetch_optional(&mut *connection).await? else {
        return Ok(Vec::new());
    };
    let company: String = get(&company, "id")?;
    let sql =
        "SELECT company_id, entity_id, day, type FROM entity_tallies FORCE INDEX (entity_tallies_by_day)
               WHERE company_id = ? AND day < ? ORDER BY day LIMIT ?";
    let rows = sqlx::query(sql).bind(company).bind(before_day).bind(limit).fetch_all(connection).await?;
    let read = |row: &MySqlRow| {
        Ok((get(row, "company_id")?, get(row, "entity_id")?, get(row, "day")?, get(row, "type")?))
    };
    rows.iter().map(read).collect()
}
