//! People known to a company. How acceptance makes them known is in `people`, how they are forgotten in `erase`.

use async_trait::async_trait;
use model::{Address, CompanyId, RecipientId, Timestamp};
use sqlx::{PgConnection, PgPool, Row as _};
use store::erasure::Reached;
use store::task::on_its_own;
use store::{Cursor, Erased, Page, RecipientRecord, Recipients, StoreError};
use uuid::Uuid;

use crate::PostgresStore;
use crate::erase::{Person, erase};
use crate::error::Fault;
use crate::lookup::{before, cursor};
use crate::row;

#[async_trait]
impl Recipients for PostgresStore {
    async fn recipients_by_id(
        &self,
        company: CompanyId,
        ids: &[RecipientId],
    ) -> Result<Vec<RecipientRecord>, StoreError> {
        let (lanes, asked) = (self.lanes.clone(), (company, ids.to_vec()));
        on_its_own(Box::pin(async move {
            lanes.run(&asked, |lane, (company, ids)| Box::pin(by_id(lane.only_reads(), *company, ids))).await
        }))
        .await
    }

    async fn recipients(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<RecipientRecord>, StoreError> {
        self.read(list(&self.pool, company, before(after), limit)).await
    }

    async fn erase(
        &self,
        company: CompanyId,
        address: &Address,
        after: Option<&Cursor>,
        now: Timestamp,
        limit: u32,
    ) -> Result<Erased, StoreError> {
        let person = Person { company, address: address.clone() };
        self.write((person, Reached::of(after), now, limit), |connection, (person, reached, now, limit)| {
            Box::pin(erase(connection, person, reached, *now, *limit))
        })
        .await
    }
}

async fn by_id(
    connection: &mut PgConnection,
    company: CompanyId,
    ids: &[RecipientId],
) -> Result<Vec<RecipientRecord>, Fault> {
    // `OFFSET 0`: by their ids, and then it is looked whose they are. The server would rather walk through all people of
    // the company where its statistics say that there are few.
    let rows = sqlx::query(
        "SELECT id, email, external_id, deleted_at
         FROM (SELECT * FROM recipients WHERE id = ANY ($1) OFFSET 0) AS named WHERE company_id = $2",
    )
    .bind(ids.iter().map(|id| id.uuid()).collect::<Vec<_>>())
    .bind(company.uuid())
    .fetch_all(connection)
    .await?;
    let record = |row: &sqlx::postgres::PgRow| {
        Ok(RecipientRecord {
            id: RecipientId::from_uuid(row.try_get("id")?),
            email: Address::trusted(row.try_get("email")?),
            external_id: row.try_get("external_id")?,
            deleted_at: row::optional_moment(row, "deleted_at")?,
        })
    };
    rows.iter().map(record).collect()
}

async fn list(
    pool: &PgPool,
    company: CompanyId,
    before: Uuid,
    limit: u32,
) -> Result<Page<RecipientRecord>, Fault> {
    let rows = sqlx::query(
        "SELECT id, email, external_id FROM recipients
         WHERE company_id = $1 AND deleted_at IS NULL AND id < $2 ORDER BY id DESC LIMIT $3",
    )
    .bind(company.uuid())
    .bind(before)
    .bind(i64::from(limit))
    .fetch_all(pool)
    .await?;
    let record = |row: &sqlx::postgres::PgRow| {
        Ok::<_, Fault>(RecipientRecord {
            id: RecipientId::from_uuid(row.try_get("id")?),
            email: Address::trusted(row.try_get("email")?),
            external_id: row.try_get("external_id")?,
            deleted_at: None,
        })
    };
    let items: Vec<RecipientRecord> = rows.iter().map(record).collect::<Result<_, _>>()?;
    let last = items.last().filter(|_| items.len() == limit as usize);
    let next = last.map(|record| cursor(record.id.uuid()));
    Ok(Page { items, next })
}
