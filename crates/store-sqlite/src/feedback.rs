//! Reports of providers: kept once, matched to their emails, carried out.

use async_trait::async_trait;
use model::{Address, CompanyId, EmailId, Report, Status, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension};
use store::change::ses_message_id;
use store::consequence::{Consequence, failure_code, other_message_id, outranks};
use store::feedback::REMATCH_FOR;
use store::record::{Record, damaged};
use store::{Feedback, KeptReport, RecipientState, ReportArrival, Reported, StoreError, report_codec};

use crate::error::from_sqlite;
use crate::lookup::seq_of;
use crate::writer::Work;
use crate::{SqliteStore, alerts, messages, row, suppressions};

#[async_trait]
impl Feedback for SqliteStore {
    async fn report(&self, arrival: ReportArrival) -> Result<Reported, StoreError> {
        self.writer.run(move |work| report(work, &arrival)).await
    }

    async fn rematch(&self, now: Timestamp, limit: u32) -> Result<u32, StoreError> {
        self.writer.run(move |work| rematch(work, now, limit)).await
    }

    async fn recipient_states(
        &self,
        company: CompanyId,
        id: EmailId,
    ) -> Result<Vec<RecipientState>, StoreError> {
        self.reader.run(move |connection| states(connection, company, id)).await
    }

    async fn reports(&self, company: CompanyId, id: EmailId) -> Result<Vec<KeptReport>, StoreError> {
        self.reader.run(move |connection| reports(connection, company, id)).await
    }

    async fn last_report(&self, provider: &str) -> Result<Option<Timestamp>, StoreError> {
        let provider = provider.to_owned();
        let read = move |connection: &Connection| -> rusqlite::Result<Option<i64>> {
            connection
                .prepare_cached("SELECT max(received_at) FROM reports WHERE provider = ?1")?
                .query_row([provider], |row| row.get(0))
        };
        let at = self.reader.run(move |connection| read(connection).map_err(from_sqlite)).await?;
        Ok(at.map(Timestamp::from_millis))
    }
}

fn report(work: &mut Work<'_>, arrival: &ReportArrival) -> Result<Reported, StoreError> {
    let report = &arrival.report;
    let found = find(work.connection, report)?;
    let unmatched = found.is_none().then(|| report_codec::encode(report));
    let kept = work
        .connection
        .prepare_cached(
            "INSERT INTO reports (id, provider, email_seq, received_at, payload, report)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO NOTHING",
        )
        .and_then(|mut statement| {
            let seq = found.as_ref().map(|(seq, _)| *seq);
            let received_at = arrival.now.millis();
            statement.execute((&report.id, &arrival.provider, seq, received_at, &arrival.payload, unmatched))
        })
        .map_err(from_sqlite)?;
    match found {
        _ if kept == 0 => Ok(Reported::Repeated),
        None => Ok(Reported::Unmatched),
        Some((seq, record)) => carry_out(work, report, seq, &record, arrival.now),
    }
}

/// By our own id, which travels with every email, or else by the provider's.
fn find(connection: &Connection, report: &Report) -> Result<Option<(i64, Record)>, StoreError> {
    let by = |column: &str, value: Value| -> Result<Option<(i64, Record)>, StoreError> {
        let sql = format!("SELECT {} FROM email_outbox WHERE {column} = ?1", row::COLUMNS);
        let mut statement = connection.prepare_cached(&sql).map_err(from_sqlite)?;
        let mut rows = statement.query([value]).map_err(from_sqlite)?;
        let Some(row) = rows.next().map_err(from_sqlite)? else { return Ok(None) };
        Ok(Some((row.get("seq").map_err(from_sqlite)?, row::record(row)?)))
    };
    if let Some(id) = report.email
        && let Some(found) = by("id", id.to_string().into())?
    {
        return Ok(Some(found));
    }
    let Some(message_id) = &report.provider_message_id else { return Ok(None) };
    messages::find(connection, message_id)?.map_or(Ok(None), |seq| by("seq", seq.into()))
}

fn carry_out(
    work: &mut Work<'_>,
    report: &Report,
    seq: i64,
    record: &Record,
    now: Timestamp,
) -> Result<Reported, StoreError> {
    let consequence = Consequence::of(report, record, now);
    if let Some(to) = consequence.to {
        work.counts.moved(record.status, to);
    }
    update_row(work.connection, report, seq, record, &consequence, now)?;
    if let Some(message_id) = other_message_id(report, record) {
        messages::keep(work.connection, seq, message_id)?;
    }
    row::add_events(work.connection, seq, std::slice::from_ref(&consequence.event))?;
    for (address, status) in &consequence.states {
        note_state(work.connection, seq, address, *status, consequence.at)?;
    }
    for suppression in &consequence.suppressions {
        suppressions::add(work.connection, record.company, suppression)?;
    }
    for address in &consequence.failed {
        alerts::count_failure(work.connection, record, address, &failure_code(report), now)?;
    }
    if let Some(alert) = &consequence.alert {
        alerts::raise(work.connection, alert)?;
    }
    Ok(Reported::Applied {
        email: record.id,
        company: record.company,
        status: consequence.to.unwrap_or(record.status),
        moved: consequence.to.is_some(),
    })
}

/// What is known only from the report is filled in; where the email moves, nobody works on it any more.
fn update_row(
    connection: &Connection,
    report: &Report,
    seq: i64,
    record: &Record,
    consequence: &Consequence,
    now: Timestamp,
) -> Result<(), StoreError> {
    let message_id = &report.provider_message_id;
    let ses_message_id = ses_message_id(&report.provider_kind, message_id.as_deref());
    let Some(to) = consequence.to else {
        if message_id.is_some() && record.provider_message_id.is_none() {
            connection
                .prepare_cached(
                    "UPDATE email_outbox SET provider_message_id = ?2, ses_message_id = ?3 WHERE seq = ?1",
                )
                .and_then(|mut statement| statement.execute((seq, message_id, ses_message_id)))
                .map_err(from_sqlite)?;
        }
        return Ok(());
    };
    let at = |when: bool| when.then(|| consequence.at.millis());
    let failure = consequence.failure.as_ref();
    connection
        .prepare_cached(
            "UPDATE email_outbox
             SET status = ?2, version = version + 1, due_at = NULL, lease_until = NULL, lease_owner = NULL,
                 at_provider = 0, unfinished_starts = 0, updated_at = ?3,
                 provider_message_id = coalesce(provider_message_id, ?4),
                 ses_message_id = CASE WHEN provider_message_id IS NULL THEN ?13 ELSE ses_message_id END,
                 sent_at = CASE WHEN ?2 = 'FAILED' THEN sent_at ELSE coalesce(sent_at, ?5) END,
                 delivered_at = coalesce(delivered_at, ?6), failed_at = coalesce(?7, failed_at), dead_at = ?8,
                 last_failure_code = coalesce(?9, last_failure_code),
                 last_failure_category = coalesce(?10, last_failure_category),
                 last_failure_reason = coalesce(?11, last_failure_reason),
                 last_failure_at = CASE WHEN ?9 IS NULL THEN last_failure_at ELSE ?5 END
             WHERE seq = ?1 AND status = ?12",
        )
        .and_then(|mut statement| {
            statement.execute(rusqlite::params![
                seq,
                to.as_str(),
                now.millis(),
                message_id,
                consequence.at.millis(),
                at(to == Status::Delivered),
                at(to == Status::Failed),
                (to == Status::Failed).then(|| now.millis()),
                failure.map(|(code, _, _)| code),
                failure.map(|(_, category, _)| category),
                failure.map(|(_, _, reason)| reason),
                record.status.as_str(),
                ses_message_id,
            ])
        })
        .map_err(from_sqlite)?;
    Ok(())
}

pub fn note_state(
    connection: &Connection,
    seq: i64,
    address: &Address,
    status: Status,
    at: Timestamp,
) -> Result<(), StoreError> {
    let before: Option<String> = connection
        .prepare_cached("SELECT status FROM recipient_states WHERE email_seq = ?1 AND address = ?2")
        .and_then(|mut statement| statement.query_row((seq, address.expose()), |row| row.get(0)).optional())
        .map_err(from_sqlite)?;
    let before = before.map(|text| text.parse().map_err(|_| damaged("a recipient's state"))).transpose()?;
    if before.is_some_and(|before: Status| !outranks(status, before)) {
        return Ok(());
    }
    connection
        .prepare_cached(
            "INSERT INTO recipient_states (email_seq, address, status, at) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET status = excluded.status, at = excluded.at",
        )
        .and_then(|mut statement| statement.execute((seq, address.expose(), status.as_str(), at.millis())))
        .map_err(from_sqlite)?;
    Ok(())
}

fn rematch(work: &mut Work<'_>, now: Timestamp, limit: u32) -> Result<u32, StoreError> {
    let since = now.minus(REMATCH_FOR).millis();
    let waiting: Vec<(String, String)> = work
        .connection
        .prepare_cached(
            "SELECT id, report FROM reports WHERE report IS NOT NULL AND received_at >= ?1
             ORDER BY received_at DESC LIMIT ?2",
        )
        .and_then(|mut statement| {
            statement.query_map((since, limit), |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .map_err(from_sqlite)?;
    let mut matched = 0;
    for (id, text) in waiting {
        let report = report_codec::decode(&text).ok_or_else(|| damaged("a report"))?;
        let Some((seq, record)) = find(work.connection, &report)? else { continue };
        work.connection
            .prepare_cached("UPDATE reports SET email_seq = ?2, report = NULL WHERE id = ?1")
            .and_then(|mut statement| statement.execute((&id, seq)))
            .map_err(from_sqlite)?;
        carry_out(work, &report, seq, &record, now)?;
        matched += 1;
    }
    Ok(matched)
}

fn states(
    connection: &Connection,
    company: CompanyId,
    id: EmailId,
) -> Result<Vec<RecipientState>, StoreError> {
    let Some(seq) = seq_of(connection, company, id)? else { return Ok(Vec::new()) };
    let rows: Vec<(String, String, i64)> = connection
        .prepare_cached(
            "SELECT address, status, at FROM recipient_states WHERE email_seq = ?1 ORDER BY address",
        )
        .and_then(|mut statement| {
            statement.query_map([seq], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
        })
        .map_err(from_sqlite)?;
    let state = |(address, status, at): (String, String, i64)| {
        Ok(RecipientState {
            address: Address::trusted(address),
            status: status.parse().map_err(|_| damaged("a recipient's state"))?,
            at: Timestamp::from_millis(at),
        })
    };
    rows.into_iter().map(state).collect()
}

fn reports(connection: &Connection, company: CompanyId, id: EmailId) -> Result<Vec<KeptReport>, StoreError> {
    let Some(seq) = seq_of(connection, company, id)? else { return Ok(Vec::new()) };
    connection
        .prepare_cached(
            "SELECT id, provider, received_at, payload FROM reports WHERE email_seq = ?1 ORDER BY received_at, id",
        )
        .and_then(|mut statement| {
            let read = |row: &rusqlite::Row<'_>| {
                Ok(KeptReport {
                    id: row.get(0)?,
                    provider: row.get(1)?,
                    received_at: Timestamp::from_millis(row.get(2)?),
                    payload: row.get(3)?,
                })
            };
            statement.query_map([seq], read)?.collect()
        })
        .map_err(from_sqlite)
}
