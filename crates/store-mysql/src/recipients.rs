//! People known to a company. How acceptance makes them known is in `people`, how they are forgotten in `erase`.

use async_trait::async_trait;
use model::{Address, CompanyId, RecipientId, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::erasure::Reached;
use store::{Cursor, Erased, Page, RecipientRecord, Recipients, StoreError};

use crate::MysqlStore;
use crate::erase::{Person, erase};
use crate::error::Fault;
use crate::row::{get, optional_moment, parsed};

/// Behind every id.
const END_OF_IDS: &str = "g";

#[async_trait]
impl Recipients for MysqlStore {
    async fn recipients_by_id(
        &self,
        company: CompanyId,
        ids: &[RecipientId],
    ) -> Result<Vec<RecipientRecord>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let asked = (company, ids.to_vec());
        self.read(asked, |connection, (company, ids)| Box::pin(by_id(connection, *company, ids))).await
    }

    async fn recipients(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<RecipientRecord>, StoreError> {
        let before = match after {
            None => END_OF_IDS.to_owned(),
            Some(cursor) => match cursor.0.parse::<RecipientId>() {
                Ok(id) => id.to_string(),
                // A cursor that is none of ours ends the list.
                Err(_) => return Ok(Page { items: Vec::new(), next: None }),
            },
        };
        let list = self.read((company, before, limit), |connection, (company, before, limit)| {
            Box::pin(list(connection, *company, before, *limit))
        });
        list.await
    }

    async fn erase(
        &self,
        company: CompanyId,
        address: &Address,
        after: Option<&Cursor>,
        now: Timestamp,
        limit: u32,
    ) -> Result<Erased, StoreError> {
        let person = Person { company, address: address.clone(), now };
        self.write((person, Reached::of(after), limit), |lane, (person, reached, limit)| {
            Box::pin(erase(lane, person, reached, *limit))
        })
        .await
    }
}

async fn by_id(
    connection: &mut MySqlConnection,
    company: CompanyId,
    ids: &[RecipientId],
) -> Result<Vec<RecipientRecord>, Fault> {
    let mut query =
        QueryBuilder::<MySql>::new("SELECT id, email, external_id, deleted_at FROM recipients WHERE id IN (");
    let mut separated = query.separated(", ");
    for id in ids {
        separated.push_bind(id.to_string());
    }
    query.push(") AND company_id = ").push_bind(company.to_string());
    let rows = query.build().fetch_all(connection).await?;
    let record = |row: &MySqlRow| {
        Ok(RecipientRecord {
            id: parsed(row, "id")?,
            email: Address::trusted(get(row, "email")?),
            external_id: get(row, "external_id")?,
            deleted_at: optional_moment(row, "deleted_at")?,
        })
    };
    rows.iter().map(record).collect()
}

async fn list(
    connection: &mut MySqlConnection,
    company: CompanyId,
    before: &str,
    limit: u32,
) -> Result<Page<RecipientRecord>, Fault> {
    let sql = "SELECT id, email, external_id FROM recipients FORCE INDEX (recipients_by_company)
               WHERE company_id = ? AND deleted_at IS NULL AND id < ? ORDER BY id DESC LIMIT ?";
    let query = sqlx::query(sql).bind(company.to_string()).bind(before).bind(limit);
    let mut items = Vec::new();
    for row in query.fetch_all(connection).await? {
        items.push(RecipientRecord {
            id: parsed(&row, "id")?,
            email: Address::trusted(get(&row, "email")?),
            external_id: get(&row, "external_id")?,
            deleted_at: None,
        });
    }
    let last = items.last().filter(|_| items.len() == limit as usize);
    let next = last.map(|record| Cursor(record.id.to_string()));
    Ok(Page { items, next })
}
