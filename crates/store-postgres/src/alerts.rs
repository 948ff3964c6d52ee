//! What admins are to hear of, and the list of addresses that keep failing. How failures are counted is in `failures`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use model::company::KeyMode;
use model::{Address, Alert, AlertId, AlertKind, AlertOutcome, CompanyId, EmailId};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use store::consequence::{alert_window, subject_of};
use store::record::damaged;
use store::{Alerts, Cursor, Page, Problem, StoreError};
use uuid::Uuid;

use crate::PostgresStore;
use crate::error::Fault;
use crate::paging::{before, page};
use crate::row::{at, clean, company_id, email_id, get, moment};

#[async_trait]
impl Alerts for PostgresStore {
    async fn pending_alerts(&self, limit: u32) -> Result<Vec<Alert>, StoreError> {
        self.read(async {
            let sql = "SELECT * FROM alerts WHERE sent_as IS NULL AND shown IS NULL ORDER BY seq LIMIT $1";
            let rows = sqlx::query(sql).bind(i64::from(limit)).fetch_all(&self.pool).await?;
            Ok(rows.iter().map(alert).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn end_alert(&self, id: AlertId, outcome: AlertOutcome) -> Result<bool, StoreError> {
        self.write((id, outcome), |c, (id, outcome)| Box::pin(end(c, *id, outcome))).await
    }

    async fn alerts(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Alert>, StoreError> {
        self.read(async {
            let sql = "SELECT * FROM alerts WHERE company_id = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3";
            let query = sqlx::query(sql).bind(company.uuid()).bind(before(after)).bind(i64::from(limit));
            let rows = query.fetch_all(&self.pool).await?;
            let read = |row: &PgRow| Ok::<_, Fault>((row.try_get("seq")?, alert(row)?));
            Ok(page(rows.iter().map(read).collect::<Result<_, _>>()?, limit))
        })
        .await
    }

    async fn problems(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Problem>, StoreError> {
        self.read(async {
            let sql = "SELECT * FROM problems WHERE company_id = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3";
            let query = sqlx::query(sql).bind(company.uuid()).bind(before(after)).bind(i64::from(limit));
            let rows = query.fetch_all(&self.pool).await?;
            let read = |row: &PgRow| Ok::<_, Fault>((row.try_get("seq")?, problem(row)?));
            Ok(page(rows.iter().map(read).collect::<Result<_, _>>()?, limit))
        })
        .await
    }

    async fn clear_problem(&self, company: CompanyId, address: &Address) -> Result<bool, StoreError> {
        self.write((company, subject_of(address)), |c, (company, address)| {
            Box::pin(clear(c, *company, address))
        })
        .await
    }
}

async fn end(connection: &mut PgConnection, id: AlertId, outcome: &AlertOutcome) -> Result<bool, Fault> {
    let (sent_as, shown) = match outcome {
        AlertOutcome::Sent(email) => (Some(email.uuid()), None),
        AlertOutcome::Shown(why) => (None, Some(clean(why))),
    };
    let ended = sqlx::query(
        "UPDATE alerts SET sent_as = $2, shown = $3 WHERE id = $1 AND sent_as IS NULL AND shown IS NULL",
    )
    .bind(id.uuid())
    .bind(sent_as)
    .bind(shown)
    .execute(connection)
    .await?;
    Ok(ended.rows_affected() > 0)
}

async fn clear(connection: &mut PgConnection, company: CompanyId, address: &str) -> Result<bool, Fault> {
    sqlx::query("DELETE FROM address_failures WHERE company_id = $1 AND address = $2")
        .bind(company.uuid())
        .bind(address)
        .execute(&mut *connection)
        .await?;
    let cleared = sqlx::query("DELETE FROM problems WHERE company_id = $1 AND lower(address) = $2")
        .bind(company.uuid())
        .bind(address)
        .execute(connection)
        .await?;
    Ok(cleared.rows_affected() > 0)
}

/// One alert about a subject within a window; what happens again is counted. In one order for everybody.
pub async fn raise(connection: &mut PgConnection, alerts: &[Alert]) -> Result<(), Fault> {
    // Each once, with how many times more it is in the list.
    let mut different: BTreeMap<_, (&Alert, i64)> = BTreeMap::new();
    for alert in alerts {
        let key =
            (alert.company, alert.kind.as_str(), alert.mode.as_str(), &alert.subject, alert_window(alert));
        different.entry(key).and_modify(|(_, repeats)| *repeats += 1).or_insert((alert, 0));
    }
    if different.is_empty() {
        return Ok(());
    }
    let each = || different.values().map(|(alert, _)| *alert);
    sqlx::query(
        "INSERT INTO alerts (id, company_id, kind, mode, subject, time_window, email_id, address, reason, created_at,
                             repeats)
         SELECT id, company_id, kind, mode, subject, time_window, email_id, address, reason, created_at, repeats
         FROM UNNEST($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::uuid[], $8::text[],
                     $9::text[], $10::timestamptz[], $11::bigint[])
             WITH ORDINALITY AS given (id, company_id, kind, mode, subject, time_window, email_id, address, reason,
                                       created_at, repeats, line)
         ORDER BY line
         ON CONFLICT (company_id, kind, mode, subject, time_window)
         DO UPDATE SET repeats = alerts.repeats + 1 + excluded.repeats",
    )
    .bind(each().map(|alert| alert.id.uuid()).collect::<Vec<_>>())
    .bind(each().map(|alert| alert.company.uuid()).collect::<Vec<_>>())
    .bind(each().map(|alert| alert.kind.as_str()).collect::<Vec<_>>())
    .bind(each().map(|alert| alert.mode.as_str()).collect::<Vec<_>>())
    .bind(each().map(|alert| clean(&alert.subject)).collect::<Vec<_>>())
    .bind(each().map(alert_window).collect::<Vec<_>>())
    .bind(each().map(|alert| alert.email.uuid()).collect::<Vec<_>>())
    .bind(each().map(|alert| clean(alert.address.expose())).collect::<Vec<_>>())
    .bind(each().map(|alert| clean(&alert.reason)).collect::<Vec<_>>())
    .bind(each().map(|alert| at(alert.created_at)).collect::<Vec<_>>())
    .bind(different.values().map(|(_, repeats)| *repeats).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

fn alert(row: &PgRow) -> Result<Alert, StoreError> {
    let unreadable = || damaged("an alert");
    let sent_as = get::<Option<Uuid>>(row, "sent_as")?.map(EmailId::from_uuid);
    let shown: Option<String> = get(row, "shown")?;
    Ok(Alert {
        id: AlertId::from_uuid(get(row, "id")?),
        company: company_id(row, "company_id")?,
        kind: AlertKind::parse(get(row, "kind")?).ok_or_else(unreadable)?,
        subject: get(row, "subject")?,
        mode: KeyMode::parse(get(row, "mode")?).ok_or_else(unreadable)?,
        email: email_id(row, "email_id")?,
        address: Address::trusted(get(row, "address")?),
        reason: get(row, "reason")?,
        created_at: moment(row, "created_at")?,
        repeats: u32::try_from(get::<i64>(row, "repeats")?).unwrap_or(u32::MAX),
        outcome: sent_as.map(AlertOutcome::Sent).or(shown.map(AlertOutcome::Shown)),
    })
}

fn problem(row: &PgRow) -> Result<Problem, StoreError> {
    Ok(Problem {
        address: Address::trusted(get(row, "address")?),
        failures: u32::try_from(get::<i64>(row, "failures")?).unwrap_or(u32::MAX),
        since: moment(row, "since")?,
        last_failure_at: moment(row, "last_failure_at")?,
        last_failure_code: get(row, "last_failure_code")?,
    })
}
