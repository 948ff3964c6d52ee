//! What admins are to hear of, and addresses that keep failing.

use async_trait::async_trait;
use model::alert::{FAILURES_MIN, FAILURES_WITHIN};
use model::company::KeyMode;
use model::{Address, Alert, AlertId, AlertKind, AlertOutcome, CompanyId, Timestamp};
use rusqlite::{Connection, Row};
use store::consequence::{alert_window, repeated_failures};
use store::record::{Record, damaged};
use store::{Alerts, Cursor, Page, Problem, StoreError};

use crate::SqliteStore;
use crate::error::from_sqlite;
use crate::lookup::{before, cursor};

const COLUMNS: &str = "seq, id, company_id, kind, mode, subject, email_id, address, reason, created_at, repeats, sent_as, \
    shown";

#[async_trait]
impl Alerts for SqliteStore {
    async fn pending_alerts(&self, limit: u32) -> Result<Vec<Alert>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM alerts WHERE sent_as IS NULL AND shown IS NULL ORDER BY seq LIMIT ?1"
        );
        let read = move |connection: &Connection| alerts(connection, &sql, (limit,));
        Ok(self.reader.run(read).await?.into_iter().map(|(_, alert)| alert).collect())
    }

    async fn end_alert(&self, id: AlertId, outcome: AlertOutcome) -> Result<bool, StoreError> {
        let (sent_as, shown) = match outcome {
            AlertOutcome::Sent(email) => (Some(email.to_string()), None),
            AlertOutcome::Shown(why) => (None, Some(why)),
        };
        let write = move |connection: &Connection| -> rusqlite::Result<bool> {
            let ended = connection
                .prepare_cached(
                    "UPDATE alerts SET sent_as = ?2, shown = ?3
                     WHERE id = ?1 AND sent_as IS NULL AND shown IS NULL",
                )?
                .execute((id.to_string(), &sent_as, &shown))?;
            Ok(ended > 0)
        };
        self.writer.run(move |work| write(work.connection).map_err(from_sqlite)).await
    }

    async fn alerts(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Alert>, StoreError> {
        let before = before(after);
        let sql = format!(
            "SELECT {COLUMNS} FROM alerts WHERE company_id = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3"
        );
        let read =
            move |connection: &Connection| alerts(connection, &sql, (company.to_string(), before, limit));
        Ok(page(self.reader.run(read).await?, limit))
    }

    async fn problems(
        &self,
        company: CompanyId,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Problem>, StoreError> {
        let before = before(after);
        let read = move |connection: &Connection| -> rusqlite::Result<Vec<(i64, Problem)>> {
            connection
                .prepare_cached(
                    "SELECT seq, address, failures, since, last_failure_at, last_failure_code FROM problems
                     WHERE company_id = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3",
                )?
                .query_map((company.to_string(), before, limit), |row| Ok((row.get(0)?, problem(row)?)))?
                .collect()
        };
        Ok(page(self.reader.run(move |connection| read(connection).map_err(from_sqlite)).await?, limit))
    }

    async fn clear_problem(&self, company: CompanyId, address: &Address) -> Result<bool, StoreError> {
        let address = address.clone();
        let write = move |connection: &Connection| -> rusqlite::Result<bool> {
            let bound = (company.to_string(), address.expose());
            connection
                .prepare_cached("DELETE FROM address_failures WHERE company_id = ?1 AND address = ?2")?
                .execute(bound.clone())?;
            let cleared = connection
                .prepare_cached("DELETE FROM problems WHERE company_id = ?1 AND address = ?2")?
                .execute(bound)?;
            Ok(cleared > 0)
        };
        self.writer.run(move |work| write(work.connection).map_err(from_sqlite)).await
    }
}

fn page<T>(rows: Vec<(i64, T)>, limit: u32) -> Page<T> {
    let last = rows.last().map(|(seq, _)| *seq);
    let next = last.filter(|_| rows.len() == limit as usize).map(cursor);
    Page { items: rows.into_iter().map(|(_, item)| item).collect(), next }
}

fn alerts(
    connection: &Connection,
    sql: &str,
    bound: impl rusqlite::Params,
) -> Result<Vec<(i64, Alert)>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(from_sqlite)?;
    let mut rows = statement.query(bound).map_err(from_sqlite)?;
    let mut alerts = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        alerts.push((row.get("seq").map_err(from_sqlite)?, alert(row)?));
    }
    Ok(alerts)
}

fn alert(row: &Row<'_>) -> Result<Alert, StoreError> {
    let text = |name: &str| row.get::<_, String>(name).map_err(from_sqlite);
    let optional = |name: &str| row.get::<_, Option<String>>(name).map_err(from_sqlite);
    let unreadable = || damaged("an alert");
    let sent_as = optional("sent_as")?.map(|id| id.parse().map_err(|_| unreadable())).transpose()?;
    Ok(Alert {
        id: text("id")?.parse().map_err(|_| unreadable())?,
        company: text("company_id")?.parse().map_err(|_| unreadable())?,
        kind: AlertKind::parse(&text("kind")?).ok_or_else(unreadable)?,
        subject: text("subject")?,
        mode: KeyMode::parse(&text("mode")?).ok_or_else(unreadable)?,
        email: text("email_id")?.parse().map_err(|_| unreadable())?,
        address: Address::trusted(text("address")?),
        reason: text("reason")?,
        created_at: Timestamp::from_millis(row.get("created_at").map_err(from_sqlite)?),
        repeats: row.get("repeats").map_err(from_sqlite)?,
        outcome: sent_as.map(AlertOutcome::Sent).or(optional("shown")?.map(AlertOutcome::Shown)),
    })
}

fn problem(row: &Row<'_>) -> rusqlite::Result<Problem> {
    Ok(Problem {
        address: Address::trusted(row.get("address")?),
        failures: row.get("failures")?,
        since: Timestamp::from_millis(row.get("since")?),
        last_failure_at: Timestamp::from_millis(row.get("last_failure_at")?),
        last_failure_code: row.get("last_failure_code")?,
    })
}

/// One alert about a subject within a window; what happens again is counted.
pub fn raise(connection: &Connection, alert: &Alert) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO alerts (id, company_id, kind, mode, subject, window, email_id, address, reason, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
             ON CONFLICT (company_id, kind, mode, subject, window) DO UPDATE SET repeats = repeats + 1",
        )
        .and_then(|mut statement| {
            statement.execute((
                alert.id.to_string(),
                alert.company.to_string(),
                alert.kind.as_str(),
                alert.mode.as_str(),
                &alert.subject,
                alert_window(alert),
                alert.email.to_string(),
                alert.address.expose(),
                &alert.reason,
                alert.created_at.millis(),
            ))
        })
        .map_err(from_sqlite)?;
    Ok(())
}

/// Counts a failure of an address; with enough of them it is a problem, and an alert is raised.
pub fn count_failure(
    connection: &Connection,
    record: &Record,
    address: &Address,
    code: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let company = record.company.to_string();
    let since = now.minus(FAILURES_WITHIN).millis();
    let count = |connection: &Connection| -> rusqlite::Result<u32> {
        connection
            .prepare_cached(
                "INSERT INTO address_failures (company_id, address, at, email_id) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO NOTHING",
            )?
            .execute((&company, address.expose(), now.millis(), record.id.to_string()))?;
        connection
            .prepare_cached(
                "SELECT count(*) FROM address_failures WHERE company_id = ?1 AND address = ?2 AND at > ?3",
            )?
            .query_row((&company, address.expose(), since), |row| row.get(0))
    };
    let failures = count(connection).map_err(from_sqlite)?;
    if failures < FAILURES_MIN {
        return Ok(());
    }
    connection
        .prepare_cached(
            "INSERT INTO problems (company_id, address, failures, since, last_failure_at, last_failure_code)
             VALUES (?1, ?2, ?3, ?4, ?4, ?5)
             ON CONFLICT (company_id, address) DO UPDATE
             SET failures = excluded.failures, last_failure_at = excluded.last_failure_at,
                 last_failure_code = excluded.last_failure_code",
        )
        .and_then(|mut statement| {
            statement.execute((&company, address.expose(), failures, now.millis(), code))
        })
        .map_err(from_sqlite)?;
    raise(connection, &repeated_failures(address, record, code, now))
}
