//! What admins are to hear of, and the list of addresses that keep failing. How failures are counted is in `failures`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use model::company::KeyMode;
use model::{Address, Alert, AlertId, AlertKind, AlertOutcome, CompanyId};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::consequence::alert_window;
use store::record::damaged;
use store::{Alerts, Cursor, Page, Problem, StoreError};

use crate::MysqlStore;
use crate::error::Fault;
use crate::paging::{before, page};
use crate::row::{at, get, moment, parsed, portions};

const PENDING: &str =
    "SELECT * FROM alerts FORCE INDEX (alerts_pending) WHERE pending = TRUE ORDER BY seq LIMIT ?";
const END: &str = "UPDATE alerts SET pending = FALSE, sent_as = ?, shown = ? WHERE id = ? AND pending = TRUE";
const ALERTS: &str = "SELECT * FROM alerts FORCE INDEX (alerts_by_company)
     WHERE company_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?";
const PROBLEMS: &str = "SELECT * FROM problems FORCE INDEX (problems_by_company)
     WHERE company_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?";

#[async_trait]
impl Alerts for MysqlStore {
    async fn pending_alerts(&self, limit: u32) -> Result<Vec<Alert>, StoreError> {
        let list = self.read(limit, |connection, limit| {
            Box::pin(async move {
                let rows = sqlx::query(PENDING).bind(limit).fetch_all(connection).await?;
                Ok(rows.iter().map(alert).collect::<Result<_, _>>()?)
            })
        });
        list.await
    }

    async fn end_alert(&self, id: AlertId, outcome: AlertOutcome) -> Result<bool, StoreError> {
        let end = self.write((id, outcome), |lane, (id, outcome)| {
            Box::pin(async move {
                let (sent_as, shown) = match outcome {
                    AlertOutcome::Sent(email) => (Some(email.to_string()), None),
                    AlertOutcome::Shown(why) => (None, Some(why)),
                };
                let query = sqlx::query(END).bind(sent_as).bind(shown).bind(id.to_string());
                Ok(query.execute(&mut lane.connection).await?.rows_affected() > 0)
            })
        });
        end.await
    }

    async fn alerts(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Alert>, StoreError> {
        let list = self.read((company, before(after), limit), |connection, &(company, before, limit)| {
            Box::pin(async move {
                let query = sqlx::query(ALERTS).bind(company.to_string()).bind(before).bind(limit);
                let rows = query.fetch_all(connection).await?;
                let read = |row: &MySqlRow| Ok::<_, StoreError>((get(row, "seq")?, alert(row)?));
                Ok(page(rows.iter().map(read).collect::<Result<_, _>>()?, limit))
            })
        });
        list.await
    }

    async fn problems(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Problem>, StoreError> {
        let list = self.read((company, before(after), limit), |connection, &(company, before, limit)| {
            Box::pin(async move {
                let query = sqlx::query(PROBLEMS).bind(company.to_string()).bind(before).bind(limit);
                let rows = query.fetch_all(connection).await?;
                let read = |row: &MySqlRow| Ok::<_, StoreError>((get(row, "seq")?, problem(row)?));
                Ok(page(rows.iter().map(read).collect::<Result<_, _>>()?, limit))
            })
        });
        list.await
    }

    async fn clear_problem(&self, company: CompanyId, address: &Address) -> Result<bool, StoreError> {
        let clear = self.write((company, address.clone()), |lane, (company, address)| {
            Box::pin(clear(&mut lane.connection, *company, address))
        });
        clear.await
    }
}

async fn clear(
    connection: &mut MySqlConnection,
    company: CompanyId,
    address: &Address,
) -> Result<bool, Fault> {
    let sql = "DELETE FROM address_failures WHERE company_id = ? AND address = ?";
    sqlx::query(sql).bind(company.to_string()).bind(address.expose()).execute(&mut *connection).await?;
    let sql = "DELETE FROM problems WHERE company_id = ? AND address = ?";
    let query = sqlx::query(sql).bind(company.to_string()).bind(address.expose());
    Ok(query.execute(connection).await?.rows_affected() > 0)
}

/// One alert about a subject within a window; what happens again is counted. In one order for everybody.
pub async fn raise(connection: &mut MySqlConnection, alerts: &[Alert]) -> Result<(), Fault> {
    // Each once, with how many times more it is in the list.
    let mut different: BTreeMap<_, (&Alert, u32)> = BTreeMap::new();
    for alert in alerts {
        let key =
            (alert.company, alert.kind.as_str(), alert.mode.as_str(), &alert.subject, alert_window(alert));
        different.entry(key).and_modify(|(_, repeats)| *repeats += 1).or_insert((alert, 0));
    }
    let different: Vec<(&Alert, u32)> = different.into_values().collect();
    for different in portions(&different) {
        let mut sql = QueryBuilder::<MySql>::new(
            "INSERT INTO alerts (id, company_id, kind, mode, subject, time_window, email_id, address, reason, created_at,
                 repeats) ",
        );
        sql.push_values(different, |mut row, (alert, repeats)| {
            row.push_bind(alert.id.to_string()).push_bind(alert.company.to_string());
            row.push_bind(alert.kind.as_str()).push_bind(alert.mode.as_str()).push_bind(&alert.subject);
            row.push_bind(alert_window(alert)).push_bind(alert.email.to_string());
            row.push_bind(alert.address.expose()).push_bind(&alert.reason);
            row.push_bind(at(alert.created_at)).push_bind(repeats);
        });
        sql.push(" ON DUPLICATE KEY UPDATE repeats = repeats + 1 + VALUES(repeats)");
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

fn alert(row: &MySqlRow) -> Result<Alert, StoreError> {
    let unreadable = || damaged("an alert");
    let sent_as = get::<Option<&str>>(row, "sent_as")?;
    let sent_as = sent_as.map(|id| id.parse().map_err(|_| unreadable())).transpose()?;
    let shown: Option<String> = get(row, "shown")?;
    Ok(Alert {
        id: parsed(row, "id")?,
        company: parsed(row, "company_id")?,
        kind: AlertKind::parse(get(row, "kind")?).ok_or_else(unreadable)?,
        subject: get(row, "subject")?,
        mode: KeyMode::parse(get(row, "mode")?).ok_or_else(unreadable)?,
        email: parsed(row, "email_id")?,
        address: Address::trusted(get(row, "address")?),
        reason: get(row, "reason")?,
        created_at: moment(row, "created_at")?,
        repeats: get(row, "repeats")?,
        outcome: sent_as.map(AlertOutcome::Sent).or(shown.map(AlertOutcome::Shown)),
    })
}

fn problem(row: &MySqlRow) -> Result<Problem, StoreError> {
    Ok(Problem {
        address: Address::trusted(get(row, "address")?),
        failures: get(row, "failures")?,
        since: moment(row, "since")?,
        last_failure_at: moment(row, "last_failure_at")?,
        last_failure_code: get(row, "last_failure_code")?,
    })
}
