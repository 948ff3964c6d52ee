//! Counting failures by address; with enough of them an address is a problem, and an alert is raised.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use model::alert::{FAILURES_MIN, FAILURES_WITHIN};
use model::{Address, Alert, CompanyId, Timestamp};
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::consequence::{repeated_failures, subject_of};
use store::record::Record;

use crate::alerts;
use crate::error::Fault;
use crate::row::{at, filled_up, get, parsed, portions};

/// How many rows failure_locks comes to have: enough that those who fail at the same time seldom share one.
const SLOTS: u32 = 1_024;

/// How many addresses are counted with one statement.
const ADDRESSES_MAX: usize = 64;

/// An email that failed for good for one of its recipients.
pub struct Failed<'a> {
    pub record: &'a Record,
    pub address: Address,
    pub code: String,
    pub now: Timestamp,
}

/// Company and address in lower case.
type Key = (CompanyId, String);

/// Counts these failures. Who calls this has locked the emails, and has not touched the counts per status yet.
pub async fn count(connection: &mut MySqlConnection, failed: &[Failed<'_>]) -> Result<(), Fault> {
    let mut by_address: BTreeMap<Key, Vec<&Failed<'_>>> = BTreeMap::new();
    for one in failed {
        by_address.entry((one.record.company, subject_of(&one.address))).or_default().push(one);
    }
    if by_address.is_empty() {
        return Ok(());
    }
    for failed in by_address.values_mut() {
        failed.sort_by_key(|one| one.now);
    }
    lock(connection, by_address.keys()).await?;
    add(connection, &by_address).await?;
    let totals = totals(connection, &by_address).await?;
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
    note(connection, &problems).await?;
    alerts::raise(connection, &alerts).await
}

/// Those of an address's failures, the last of `total`, with which there were enough.
fn enough<T>(failed: &[T], total: u32) -> &[T] {
    // Less than none before: the same failure several times is one.
    let before = i64::from(total) - i64::try_from(failed.len()).unwrap_or(i64::MAX);
    let too_few = (i64::from(FAILURES_MIN) - 1 - before).max(0);
    &failed[usize::try_from(too_few).unwrap_or(usize::MAX).min(failed.len())..]
}

/// Waits for those who count failures of the same addresses. An update that changes nothing locks a row that is there as
/// a writer does. In one order for everybody.
async fn lock(connection: &mut MySqlConnection, keys: impl Iterator<Item = &Key>) -> Result<(), Fault> {
    let slots: Vec<u32> = keys.map(slot).collect::<BTreeSet<_>>().into_iter().collect();
    for slots in portions(&slots) {
        let mut sql = QueryBuilder::<MySql>::new("INSERT INTO failure_locks (slot) ");
        sql.push_values(slots, |mut row, slot| {
            row.push_bind(slot);
        });
        sql.push(" ON DUPLICATE KEY UPDATE slot = VALUES(slot)");
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

/// The same in every process and every version, so none of the standard library's hashes: FNV-1a.
fn slot((company, address): &Key) -> u32 {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let text = company.to_string();
    text.as_bytes().iter().chain(address.as_bytes()).fold(0x811C_9DC5, mix) % SLOTS
}

async fn add(
    connection: &mut MySqlConnection,
    by_address: &BTreeMap<Key, Vec<&Failed<'_>>>,
) -> Result<(), Fault> {
    let each: Vec<(&Key, &Failed<'_>)> =
        by_address.iter().flat_map(|(key, failed)| failed.iter().map(move |one| (key, *one))).collect();
    for each in portions(&each) {
        let mut sql =
            QueryBuilder::<MySql>::new("INSERT INTO address_failures (company_id, address, at, email_id) ");
        sql.push_values(each, |mut row, ((company, address), one)| {
            row.push_bind(company.to_string()).push_bind(address);
            row.push_bind(one.now.millis()).push_bind(one.record.id.to_string());
        });
        sql.push(" ON DUPLICATE KEY UPDATE at = VALUES(at)");
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

/// How many failures of each address count now.
async fn totals(
    connection: &mut MySqlConnection,
    by_address: &BTreeMap<Key, Vec<&Failed<'_>>>,
) -> Result<HashMap<Key, u32>, Fault> {
    let since = |failed: &Vec<&Failed<'_>>| {
        let now = failed.iter().map(|one| one.now).max();
        now.map_or(0, |now| now.minus(FAILURES_WITHIN).millis())
    };
    let asked: Vec<(&Key, i64)> = by_address.iter().map(|(key, failed)| (key, since(failed))).collect();
    let mut totals = HashMap::with_capacity(asked.len());
    for asked in asked.chunks(ADDRESSES_MAX) {
        let mut sql = QueryBuilder::<MySql>::new(
            "SELECT company_id, address, COUNT(*) AS failures FROM address_failures FORCE INDEX (PRIMARY) WHERE ",
        );
        for (number, ((company, address), since)) in filled_up(asked.to_vec()).into_iter().enumerate() {
            sql.push(if number == 0 { "(company_id = " } else { " OR (company_id = " });
            sql.push_bind(company.to_string()).push(" AND address = ").push_bind(address);
            sql.push(" AND at > ").push_bind(since).push(")");
        }
        sql.push(" GROUP BY company_id, address");
        for row in sql.build().fetch_all(&mut *connection).await? {
            let failures = u32::try_from(get::<i64>(&row, "failures")?).unwrap_or(u32::MAX);
            totals.insert((parsed(&row, "company_id")?, get(&row, "address")?), failures);
        }
    }
    Ok(totals)
}

struct Problem<'a> {
    company: CompanyId,
    total: u32,
    /// With which it became one, as far as it was none.
    first: &'a Failed<'a>,
    last: &'a Failed<'a>,
}

async fn note(connection: &mut MySqlConnection, problems: &[Problem<'_>]) -> Result<(), Fault> {
    for problems in portions(problems) {
        let mut sql = QueryBuilder::<MySql>::new(
            "INSERT INTO problems (company_id, address, failures, since, last_failure_at, last_failure_code) ",
        );
        sql.push_values(problems, |mut row, problem| {
            row.push_bind(problem.company.to_string()).push_bind(problem.first.address.expose());
            row.push_bind(problem.total).push_bind(at(problem.first.now));
            row.push_bind(at(problem.last.now)).push_bind(&problem.last.code);
        });
        sql.push(
            " ON DUPLICATE KEY UPDATE failures = VALUES(failures), last_failure_at = VALUES(last_failure_at),
                 last_failure_code = VALUES(last_failure_code)",
        );
        sql.build().execute(&mut *connection).await?;
    }
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
            (6, 4, 2),
        ];
        for (together, total, expected) in cases {
            assert_eq!(enough(&vec![(); together], total).len(), expected, "{together} of {total}");
        }
    }

    /// A process of another version has to lock the same row.
    #[test]
    fn slots_stay_where_they_are() {
        let company: CompanyId = "01890a5d-ac96-774b-bcce-b302099a8057".parse().expect("an id");
        let slots = ["ana@example.com", "bob@example.com"].map(|address| slot(&(company, address.into())));
        assert_eq!(slots, [578, 27]);
    }
}
