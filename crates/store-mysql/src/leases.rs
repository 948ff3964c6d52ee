//! Leases while they last and once they are lost. How they end is in `settle`.

use std::collections::HashMap;

use model::attempt::LostLease;
use model::{EmailId, Guard, Timestamp, WorkerId};
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::StoreError;

use crate::MysqlStore;
use crate::error::Fault;
use crate::row::{self, get, ids, parsed, push_list};
use crate::settle::in_order;

/// Returns those whose lease is no longer the owner's.
pub async fn renew(
    connection: &mut MySqlConnection,
    owner: WorkerId,
    guards: &[Guard],
    until: Timestamp,
) -> Result<Vec<EmailId>, Fault> {
    let emails = in_order(guards.iter().copied());
    if emails.is_empty() {
        return Ok(Vec::new());
    }
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT q.email_id, o.fence FROM email_queue q FORCE INDEX (PRIMARY)
         STRAIGHT_JOIN email_outbox o ON o.id = q.email_id
         WHERE q.lease_until IS NOT NULL AND q.lease_owner = ",
    );
    sql.push_bind(owner.to_string()).push(" AND q.email_id IN ");
    push_list(&mut sql, ids(&emails));
    sql.push(" ORDER BY q.email_id FOR UPDATE");
    let mut fences: HashMap<EmailId, u64> = HashMap::new();
    for row in sql.build().fetch_all(&mut *connection).await? {
        fences.insert(parsed(&row, "email_id")?, get(&row, "fence")?);
    }
    let (mine, lost): (Vec<Guard>, Vec<Guard>) =
        guards.iter().partition(|guard| fences.get(&guard.id) == Some(&guard.fence));
    if !mine.is_empty() {
        let mut sql =
            QueryBuilder::<MySql>::new("UPDATE email_queue SET lease_until = GREATEST(lease_until, ");
        sql.push_bind(until.millis()).push(") WHERE email_id IN ");
        push_list(&mut sql, mine.iter().map(|guard| guard.id.to_string()));
        sql.build().execute(connection).await?;
    }
    Ok(lost.into_iter().map(|guard| guard.id).collect())
}

impl MysqlStore {
    /// Leases alone decide: a lost connection says nothing about its worker. One that left has ended its leases.
    pub(crate) async fn find_lost_leases(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<LostLease>, StoreError> {
        let find = self.read((now, limit), |connection, &(now, limit)| {
            Box::pin(async move {
                let mut sql = QueryBuilder::<MySql>::new(format!(
                    "SELECT {}, q.due_at, q.lease_until FROM email_queue q FORCE INDEX (queue_leased)
                     STRAIGHT_JOIN email_outbox o ON o.id = q.email_id AND o.status = 'PROCESSING' WHERE q.lease_until < ",
                    row::COLUMNS
                ));
                sql.push_bind(now.millis()).push(" ORDER BY q.lease_until LIMIT ").push_bind(limit);
                let rows = sql.build().fetch_all(connection).await?;
                let lost = rows.iter().map(|row| row::record(row)?.lost_lease());
                Ok(lost.collect::<Result<_, _>>()?)
            })
        });
        find.await
    }
}
