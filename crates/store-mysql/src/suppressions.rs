//! The addresses each company no longer writes to.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use model::{Address, CompanyId, Suppression, SuppressionSource};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::consequence::subject_of;
use store::record::damaged;
use store::{Cursor, Page, StoreError, Suppressions};

use crate::MysqlStore;
use crate::error::Fault;
use crate::paging::{before, page};
use crate::row::{at, get, moment, portions, push_list};

/// How many addresses are looked for with one statement.
const ADDRESSES_MAX: usize = 256;

#[async_trait]
impl Suppressions for MysqlStore {
    async fn suppress(&self, company: CompanyId, suppressions: Vec<Suppression>) -> Result<u32, StoreError> {
        let suppress = self.write((company, suppressions), |lane, (company, suppressions)| {
            Box::pin(add(&mut lane.connection, *company, suppressions))
        });
        suppress.await
    }

    async fn lift(&self, company: CompanyId, address: &Address) -> Result<bool, StoreError> {
        let lift = self.write((company, address.clone()), |lane, (company, address)| {
            Box::pin(async move {
                let sql = "DELETE FROM suppressions WHERE company_id = ? AND address = ?";
                let query = sqlx::query(sql).bind(company.to_string()).bind(address.expose());
                Ok(query.execute(&mut lane.connection).await?.rows_affected() > 0)
            })
        });
        lift.await
    }

    async fn suppressed(
        &self,
        company: CompanyId,
        addresses: &[Address],
    ) -> Result<Vec<Suppression>, StoreError> {
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let asked: Vec<String> = addresses.iter().map(subject_of).collect();
        let find = self.read((company, asked), |connection, (company, asked)| {
            Box::pin(async move {
                let mut listed = listed(connection, *company, asked).await?;
                Ok(asked.iter().filter_map(|address| listed.remove(address)).collect())
            })
        });
        find.await
    }

    async fn suppressions(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Suppression>, StoreError> {
        let list = self.read((company, before(after), limit), |connection, &(company, before, limit)| {
            Box::pin(async move {
                let sql = "SELECT * FROM suppressions FORCE INDEX (suppressions_by_company)
                           WHERE company_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?";
                let query = sqlx::query(sql).bind(company.to_string()).bind(before).bind(limit);
                let rows = query.fetch_all(connection).await?;
                let read = |row: &MySqlRow| Ok::<_, StoreError>((get(row, "seq")?, suppression(row)?));
                Ok(page(rows.iter().map(read).collect::<Result<_, _>>()?, limit))
            })
        });
        list.await
    }
}

/// How many of them are new. In the order of the addresses, in which everybody writes them: those who write the same ones
/// do not wait for each other in a circle.
pub async fn add(
    connection: &mut MySqlConnection,
    company: CompanyId,
    suppressions: &[Suppression],
) -> Result<u32, Fault> {
    let mut different: BTreeMap<String, &Suppression> = BTreeMap::new();
    for suppression in suppressions {
        different.entry(subject_of(&suppression.address)).or_insert(suppression);
    }
    let addresses: Vec<String> = different.keys().cloned().collect();
    let known = listed(connection, company, &addresses).await?;
    different.retain(|address, _| !known.contains_key(address));
    let new: Vec<&Suppression> = different.into_values().collect();
    for new in portions(&new) {
        insert(connection, company, new).await?;
    }
    Ok(u32::try_from(new.len()).unwrap_or(u32::MAX))
}

async fn insert(
    connection: &mut MySqlConnection,
    company: CompanyId,
    new: &[&Suppression],
) -> Result<(), Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "INSERT INTO suppressions (company_id, address, reason, source, email_id, created_at) ",
    );
    sql.push_values(new, |mut row, suppression| {
        row.push_bind(company.to_string()).push_bind(suppression.address.expose());
        row.push_bind(&suppression.reason).push_bind(suppression.source.as_str());
        row.push_bind(suppression.email.map(|id| id.to_string())).push_bind(at(suppression.created_at));
    });
    match sql.build().execute(connection).await.map_err(Fault::Sql) {
        // Somebody else has listed it just now.
        Err(fault) if fault.is_duplicate() => Err(Fault::Overtaken),
        inserted => inserted.map(|_| ()),
    }
}

/// Those of the addresses that are on the list, by their address in lower case.
async fn listed(
    connection: &mut MySqlConnection,
    company: CompanyId,
    addresses: &[String],
) -> Result<HashMap<String, Suppression>, Fault> {
    let mut listed = HashMap::new();
    for addresses in addresses.chunks(ADDRESSES_MAX) {
        let mut sql = QueryBuilder::<MySql>::new(
            "SELECT * FROM suppressions FORCE INDEX (suppressions_by_address) WHERE company_id = ",
        );
        sql.push_bind(company.to_string()).push(" AND address IN ");
        push_list(&mut sql, addresses.iter().cloned());
        for row in sql.build().fetch_all(&mut *connection).await? {
            let suppression = suppression(&row)?;
            listed.insert(subject_of(&suppression.address), suppression);
        }
    }
    Ok(listed)
}

fn suppression(row: &MySqlRow) -> Result<Suppression, StoreError> {
    let email = get::<Option<&str>>(row, "email_id")?;
    Ok(Suppression {
        address: Address::trusted(get(row, "address")?),
        reason: get(row, "reason")?,
        source: SuppressionSource::parse(get(row, "source")?).unwrap_or(SuppressionSource::Operator),
        email: email.map(|id| id.parse().map_err(|_| damaged("email_id"))).transpose()?,
        created_at: moment(row, "created_at")?,
    })
}
