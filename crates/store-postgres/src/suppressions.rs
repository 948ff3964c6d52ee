//! The addresses each company no longer writes to.

use async_trait::async_trait;
use model::{Address, CompanyId, EmailId, Suppression, SuppressionSource};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use store::consequence::subject_of;
use store::{Cursor, Page, StoreError, Suppressions};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::Fault;
use crate::paging::{before, page};
use crate::row::{at, clean, get, moment};

/// In the order of the addresses, in which everybody writes them: those who write the same ones do not wait for each
/// other in a circle.
const ADD: &str = "INSERT INTO suppressions (company_id, address, reason, source, email_id, created_at)
     SELECT $1, address, reason, source, email_id, created_at
     FROM UNNEST($2::text[], $3::text[], $4::text[], $5::uuid[], $6::timestamptz[])
         WITH ORDINALITY AS given (address, reason, source, email_id, created_at, line)
     ORDER BY lower(address COLLATE \"C\"), line
     ON CONFLICT DO NOTHING";

const SUPPRESSED: &str = "SELECT s.address, s.reason, s.source, s.email_id, s.created_at
     FROM UNNEST($2::text[]) WITH ORDINALITY AS asked (address, line)
          CROSS JOIN LATERAL (
              SELECT * FROM suppressions s
              WHERE s.company_id = $1 AND lower(s.address) = asked.address COLLATE \"C\"
          ) AS s
     ORDER BY asked.line";

#[async_trait]
impl Suppressions for PostgresStore {
    async fn suppress(&self, company: CompanyId, suppressions: Vec<Suppression>) -> Result<u32, StoreError> {
        self.write((company, suppressions), |c, (company, suppressions)| {
            Box::pin(add(c, *company, suppressions))
        })
        .await
    }

    async fn lift(&self, company: CompanyId, address: &Address) -> Result<bool, StoreError> {
        self.write((company, subject_of(address)), |c, (company, address)| {
            Box::pin(lift(c, *company, address))
        })
        .await
    }

    async fn suppressed(
        &self,
        company: CompanyId,
        addresses: &[Address],
    ) -> Result<Vec<Suppression>, StoreError> {
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let mut asked: Vec<String> = Vec::with_capacity(addresses.len());
        for address in addresses.iter().map(subject_of) {
            if !asked.contains(&address) {
                asked.push(address);
            }
        }
        self.read(async {
            let query = sqlx::query(SUPPRESSED).bind(company.uuid()).bind(asked);
            let rows = query.fetch_all(&self.pool).await?;
            Ok(rows.iter().map(suppression).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn suppressions(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Suppression>, StoreError> {
        self.read(async {
            let rows = sqlx::query(
                "SELECT seq, address, reason, source, email_id, created_at FROM suppressions
                 WHERE company_id = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3",
            )
            .bind(company.uuid())
            .bind(before(after))
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await?;
            let read = |row: &PgRow| Ok::<_, Fault>((row.try_get("seq")?, suppression(row)?));
            Ok(page(rows.iter().map(read).collect::<Result<_, _>>()?, limit))
        })
        .await
    }
}

/// How many of them are new.
pub async fn add(
    connection: &mut PgConnection,
    company: CompanyId,
    suppressions: &[Suppression],
) -> Result<u32, Fault> {
    if suppressions.is_empty() {
        return Ok(0);
    }
    let each = || suppressions.iter();
    let added = sqlx::query(ADD)
        .bind(company.uuid())
        .bind(each().map(|given| clean(given.address.expose())).collect::<Vec<_>>())
        .bind(each().map(|given| clean(&given.reason)).collect::<Vec<_>>())
        .bind(each().map(|given| given.source.as_str()).collect::<Vec<_>>())
        .bind(each().map(|given| given.email.map(EmailId::uuid)).collect::<Vec<_>>())
        .bind(each().map(|given| at(given.created_at)).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(u32::try_from(added.rows_affected()).unwrap_or(u32::MAX))
}

async fn lift(connection: &mut PgConnection, company: CompanyId, address: &str) -> Result<bool, Fault> {
    let sql = "DELETE FROM suppressions WHERE company_id = $1 AND lower(address) = $2";
    let lifted = sqlx::query(sql).bind(company.uuid()).bind(address).execute(connection).await?;
    Ok(lifted.rows_affected() > 0)
}

fn suppression(row: &PgRow) -> Result<Suppression, StoreError> {
    Ok(Suppression {
        address: Address::trusted(get(row, "address")?),
        reason: get(row, "reason")?,
        source: SuppressionSource::parse(get(row, "source")?).unwrap_or(SuppressionSource::Operator),
        email: get::<Option<Uuid>>(row, "email_id")?.map(EmailId::from_uuid),
        created_at: moment(row, "created_at")?,
    })
}
