//! `/v1/entities…`: what became of the emails about one thing in the company's world; `/v1/summary`: of all of them.

use gateway::accept::text;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use model::{EventKind, Timestamp};
use serde_json::{Map, Value, json};
use store::tallies::day_of;
use store::{DayTally, EntityTally};

use super::answer;
use super::emails::page_limit;
use super::params::read_query;
use crate::auth::Client;
use crate::error::Problem;
use crate::limits::{ID_LENGTH_MAX, SUMMARY_DAYS_DEFAULT, SUMMARY_DAYS_MAX};
use crate::state::ApiState;

pub const LIST_PARAMETERS: &[&str] = &["limit"];
pub const SUMMARY_PARAMETERS: &[&str] = &["days"];

/// What a trend tells of each day.
pub const TREND: [(&str, EventKind); 5] = [
    ("delivered", EventKind::Delivered),
    ("bounced", EventKind::Bounced),
    ("complained", EventKind::Complained),
    ("sent", EventKind::Sent),
    ("failed", EventKind::Failed),
];

const DAY_MILLIS: i64 = 24 * 3600 * 1000;

/// Those that something happened to lately.
pub async fn list(State(state): State<ApiState>, client: Client, uri: Uri) -> Result<Response, Problem> {
    let limit = read_query(&uri, LIST_PARAMETERS, page_limit)?;
    let entities = state.desk.gateway.store.entities(client.id(), limit).await?;
    let data: Vec<Value> = entities
        .iter()
        .map(|entity| json!({ "id": entity.id, "lastActiveOn": date(entity.last_day) }))
        .collect();
    Ok(answer::value(StatusCode::OK, &json!({ "data": data })))
}

pub async fn summary(
    State(state): State<ApiState>,
    client: Client,
    entity: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response, Problem> {
    let missing = || Problem::not_found("ENTITY_NOT_FOUND", "this cannot be the id of an entity");
    let Path(entity) = entity.map_err(|_| missing())?;
    text::one_line(&entity, ID_LENGTH_MAX).map_err(|_| missing())?;
    let (days, window) = window(&state, &uri)?;
    let first = *window.start();
    let (store, company) = (&state.desk.gateway.store, client.id());
    let (events, by_day) = tokio::try_join!(
        store.entity_tally(company, &entity, first),
        store.entity_days(company, &entity, first)
    )?;
    let events: Vec<Value> = events.iter().map(event).collect();
    let body = json!({
        "entity": { "id": entity },
        "days": days,
        "since": start_of(first).to_rfc3339(),
        "events": events,
        "trend": trend(window, &by_day),
    });
    Ok(answer::value(StatusCode::OK, &body))
}

/// All emails of the company, day by day.
pub async fn company_summary(
    State(state): State<ApiState>,
    client: Client,
    uri: Uri,
) -> Result<Response, Problem> {
    let (days, window) = window(&state, &uri)?;
    let first = *window.start();
    let by_day = state.desk.gateway.store.company_days(Some(client.id()), None, first).await?;
    let body = json!({
        "days": days,
        "since": start_of(first).to_rfc3339(),
        "events": totals(&by_day),
        "trend": trend(window, &by_day),
    });
    Ok(answer::value(StatusCode::OK, &body))
}

/// How many days were asked for, and which they are: today is the last.
fn window(state: &ApiState, uri: &Uri) -> Result<(u64, RangeInclusive<i64>), Problem> {
    let days = read_query(uri, SUMMARY_PARAMETERS, |form| {
        form.whole("days", 1..=SUMMARY_DAYS_MAX).unwrap_or(SUMMARY_DAYS_DEFAULT)
    })?;
    let today = day_of(state.now());
    let first = today - i64::try_from(days).unwrap_or(i64::MAX) + 1;
    Ok((days, first..=today))
}

/// The most frequent first.
fn totals(by_day: &[DayTally]) -> Vec<Value> {
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for tally in by_day {
        *totals.entry(tally.kind.as_str()).or_default() += tally.total;
    }
    let mut totals: Vec<(&str, u64)> = totals.into_iter().collect();
    totals.sort_by_key(|(_, total)| std::cmp::Reverse(*total));
    totals.into_iter().map(|(event, total)| json!({ "event": event, "total": total })).collect()
}

fn event(tally: &EntityTally) -> Value {
    json!({
        "event": tally.kind.as_str(), "total": tally.total, "uniqueRecipients": tally.unique_recipients,
    })
}

/// Every day of the window, also those on which nothing happened.
fn trend(days: RangeInclusive<i64>, tallies: &[DayTally]) -> Vec<Value> {
    let line = |day: i64| {
        let mut line = Map::from_iter([("day".to_owned(), Value::from(date(day)))]);
        for (name, kind) in TREND {
            let of_that = |tally: &&DayTally| tally.day == day && tally.kind == kind;
            let total: u64 = tallies.iter().filter(of_that).map(|tally| tally.total).sum();
            line.insert(name.to_owned(), Value::from(total));
        }
        Value::Object(line)
    };
    days.map(line).collect()
}

fn start_of(day: i64) -> Timestamp {
    Timestamp::from_millis(day.saturating_mul(DAY_MILLIS))
}

/// `2026-01-31`.
fn date(day: i64) -> String {
    start_of(day).to_rfc3339().chars().take_while(|c| *c != 'T').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_is_there_once() {
        let tally = |day, kind, total| DayTally { day, kind, total };
        let tallies = [
            tally(20_454, EventKind::Sent, 3),
            tally(20_454, EventKind::Opened, 9),
            tally(20_456, EventKind::Bounced, 1),
        ];
        let line = |day: &str, bounced: u64, sent: u64| json!({ "day": day, "delivered": 0, "bounced": bounced, "complained": 0, "sent": sent, "failed": 0 });
        let expected = [line("2026-01-01", 0, 3), line("2026-01-02", 0, 0), line("2026-01-03", 1, 0)];
        assert_eq!(trend(20_454..=20_456, &tallies), expected);
    }
}
