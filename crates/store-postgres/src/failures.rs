//! Counting failures by address; with enough of them an address is a problem, and an alert is raised.

use std::collections::{BTreeMap, HashMap};

use model::alert::{FAILURES_MIN, FAILURES_WITHIN};
use model::{Address, Alert, Timestamp};
use sqlx::{PgConnection, Row as _};
use store::consequence::{repeated_failures, subject_of};
use store::record::Record;
use uuid::Uuid;

use crate::alerts;
use crate::error::Fault;
use crate::row::{at, clean};

/// "Fail" in ASCII: the first half of the locks that are held while the failures of an address are counted. Without them
/// two who add one each at the same time would not see each other's, and the third failure might be nobody's third.
const LOCKS: i32 = 0x4661_696C;

/// In one order for everybody.
const LOCK: &str = "SELECT pg_advisory_xact_lock($1, key)
     FROM (SELECT DISTINCT hashtext(company_id::text || address) AS key
           FROM UNNEST($2::uuid[], $3::text[]) AS failed (company_id, address) ORDER BY key OFFSET 0) AS keys";

const ADD: &str = "INSERT INTO address_failures (company_id, address, at, email_id)
     SELECT * FROM UNNEST($1::uuid[], $2::text[], $3::bigint[], $4::uuid[]) ON CONFLICT DO NOTHING";

const COUNT: &str = "SELECT failed.company_id, failed.address, (
         SELECT count(*) FROM address_failures f
         WHERE f.company_id = failed.company_id AND f.address = failed.address COLLATE \"C\" AND f.at > failed.since
     ) FROM UNNEST($1::uuid[], $2::text[], $3::bigint[]) AS failed (company_id, address, since)";

const NOTE_PROBLEMS: &str = "INSERT INTO problems (company_id, address, failures, since, last_failure_at,
                                                  last_failure_code)
     SELECT company_id, address, failures, since, last_at, code
     FROM UNNEST($1::uuid[], $2::text[], $3::bigint[], $4::timestamptz[], $5::timestamptz[], $6::text[])
         WITH ORDINALITY AS given (company_id, address, failures, since, last_at, code, line)
     ORDER BY line
     ON CONFLICT (company_id, lower(address)) DO UPDATE
     SET failures = excluded.failures, last_failure_at = excluded.last_failure_at,
         last_failure_code = excluded.last_failure_code";

/// An email that failed for good for one of its recipients.
pub struct Failed<'a> {
    pub record: &'a Record,
    pub address: Address,
    pub code: String,
    pub now: Timestamp,
}

/// Company and address in lower case.
type Key = (Uuid, String);

/// Counts these failures. Who calls this has locked the emails, and has not touched the counts per status yet.
pub async fn count(connection: &mut PgConnection, failed: &[Failed<'_>]) -> Result<(), Fault> {
    if failed.is_empty() {
        return Ok(());
    }
    let mut by_address: BTreeMap<Key, Vec<&Failed<'_>>> = BTreeMap::new();
    for one in failed {
        let key = (one.record.company.uuid(), clean(&subject_of(&one.address)).into_owned());
        by_address.entry(key).or_default().push(one);
    }
    for failed in by_address.values_mut() {
        failed.sort_by_key(|one| one.now);
    }
    let totals = add(connection, &by_address).await?;
    let mut problems = Vec::new();
    let mut alerts: Vec<Alert> = Vec::new();
    for (key, failed) in &by_address {
        let total = totals.get(key).copied().unwrap_or(0);
        let enough = enough(failed, total);
        if let (Some(first), Some(last)) = (enough.first(), enough.last()) {
            problems.push(Problem { company: key.0, total, first, last });
        }
        let alert = |one: &&Failed<'_>| repeated_failures(&one.address, one.record, &one.code, one.now);
        alerts.extend(enough.iter().map(alert));
    }
    if problems.is_empty() {
        return Ok(());
    }
    note(connection, &problems).await?;
    alerts::raise(connection, &alerts).await
}

/// Those of an address's failures, the last of `total`, with which there were enough.
fn enough<T>(failed: &[T], total: i64) -> &[T] {
    let before = total - i64::try_from(failed.len()).unwrap_or(i64::MAX);
    let too_few = i64::from(FAILURES_MIN) - 1 - before;
    let too_few = usize::try_from(too_few.max(0)).unwrap_or(usize::MAX).min(failed.len());
    &failed[too_few..]
}

/// Adds them, and gives how many of each address count now.
async fn add(
    connection: &mut PgConnection,
    by_address: &BTreeMap<Key, Vec<&Failed<'_>>>,
) -> Result<HashMap<Key, i64>, Fault> {
    let companies: Vec<Uuid> = by_address.keys().map(|(company, _)| *company).collect();
    let addresses: Vec<&str> = by_address.keys().map(|(_, address)| address.as_str()).collect();
    sqlx::query(LOCK).bind(LOCKS).bind(&companies).bind(&addresses).execute(&mut *connection).await?;
    let each = || by_address.iter().flat_map(|(key, failed)| failed.iter().map(move |one| (key, *one)));
    sqlx::query(ADD)
        .bind(each().map(|((company, _), _)| *company).collect::<Vec<_>>())
        .bind(each().map(|((_, address), _)| address.as_str()).collect::<Vec<_>>())
        .bind(each().map(|(_, one)| one.now.millis()).collect::<Vec<_>>())
        .bind(each().map(|(_, one)| one.record.id.uuid()).collect::<Vec<_>>())
        .execute(&mut *connection)
        .await?;
    let since = |failed: &Vec<&Failed<'_>>| {
        let now = failed.iter().map(|one| one.now).max();
        now.map_or(0, |now| now.minus(FAILURES_WITHIN).millis())
    };
    let rows = sqlx::query(COUNT)
        .bind(&companies)
        .bind(&addresses)
        .bind(by_address.values().map(since).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| Ok(((row.try_get(0)?, row.try_get(1)?), row.try_get(2)?))).collect()
}

struct Problem<'a> {
    company: Uuid,
    total: i64,
    /// With which it became one, as far as it was none.
    first: &'a Failed<'a>,
    last: &'a Failed<'a>,
}

async fn note(connection: &mut PgConnection, problems: &[Problem<'_>]) -> Result<(), Fault> {
    let each = || problems.iter();
    sqlx::query(NOTE_PROBLEMS)
        .bind(each().map(|problem| problem.company).collect::<Vec<_>>())
        .bind(each().map(|problem| clean(problem.first.address.expose())).collect::<Vec<_>>())
        .bind(each().map(|problem| problem.total).collect::<Vec<_>>())
        .bind(each().map(|problem| at(problem.first.now)).collect::<Vec<_>>())
        .bind(each().map(|problem| at(problem.last.now)).collect::<Vec<_>>())
        .bind(each().map(|problem| clean(&problem.last.code)).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of failures counted together each has its own number.
    #[test]
    fn enough_begins_with_the_third() {
        let cases = [
            // together, of which in all: enough of them
            (1, 1, 0),
            (1, 2, 0),
            (1, 3, 1),
            (1, 9, 1),
            (2, 2, 0),
            (2, 3, 1),
            (2, 4, 2),
            (4, 4, 2),
            // The same failure four times is one.
            (4, 1, 0),
        ];
        for (together, total, expected) in cases {
            assert_eq!(enough(&vec![(); together], total).len(), expected, "{together} of {total}");
        }
    }
}
