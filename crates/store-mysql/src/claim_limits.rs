//! What companies may be given: all that is asked for, or what their own limits leave. A company with limits is locked
//! before its room is computed, so that they hold over all processes.

use std::collections::{BTreeMap, HashMap};

use model::{Claim, Timestamp};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::fairness::Candidate;
use store::starts::{SECOND, Starts};
use store::{ClaimRequest, StoreError};

use crate::claim_candidates::DueCompany;
use crate::error::Fault;
use crate::row::{get, push_list};

/// The companies with as much room as their limits leave. Those with limits are locked, so that no other process gives
/// them anything meanwhile; those without are not. Also gives what those with a rate started lately.
pub async fn candidates(
    connection: &mut MySqlConnection,
    companies: &[DueCompany],
    request: &ClaimRequest,
) -> Result<(Vec<Candidate>, BTreeMap<String, Starts>), Fault> {
    let limited: Vec<&str> =
        companies.iter().filter(|company| company.is_limited()).map(|company| company.id.as_str()).collect();
    let mut rooms = HashMap::new();
    let mut rates = BTreeMap::new();
    if !limited.is_empty() {
        let limits = lock_limits(connection, &limited).await?;
        let in_flight = in_flight(connection, &limited).await?;
        rates = recent_starts(connection, &limits, request.now).await?;
        for limits in limits {
            let flying = in_flight.get(&limits.company).copied().unwrap_or(0);
            let started = rates.get(&limits.company).map_or(0, Starts::count);
            rooms.insert(limits.company.clone(), limits.room(request.limit, flying, started));
        }
    }
    let candidate = |company: &DueCompany| {
        let unlimited = if company.is_limited() { 0 } else { request.limit };
        let room = rooms.get(&company.id).copied().unwrap_or(unlimited);
        let (id, routes, weight) = (company.id.clone(), company.routes(), company.weight);
        (room > 0).then_some(Candidate { company: id, routes, weight, room })
    };
    Ok((companies.iter().filter_map(candidate).collect(), rates))
}

/// A company's limits as they are under the lock.
struct Limits {
    company: String,
    concurrency_max: Option<u32>,
    rate_per_sec: Option<u32>,
    is_off: bool,
}

impl Limits {
    fn room(&self, most: u32, in_flight: u32, started: u32) -> u32 {
        if self.is_off {
            return 0;
        }
        let by_concurrency = self.concurrency_max.map_or(most, |most| most.saturating_sub(in_flight));
        let by_rate = self.rate_per_sec.map_or(most, |rate| rate.saturating_sub(started));
        most.min(by_concurrency).min(by_rate)
    }
}

async fn lock_limits(connection: &mut MySqlConnection, companies: &[&str]) -> Result<Vec<Limits>, Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT id, concurrency_max, rate_per_sec, (disabled_at IS NOT NULL OR paused_at IS NOT NULL) AS is_off
         FROM companies FORCE INDEX (PRIMARY) WHERE id IN ",
    );
    push_list(&mut sql, companies.iter().map(|id| (*id).to_owned()));
    sql.push(" ORDER BY id FOR UPDATE");
    let rows = sql.build().fetch_all(connection).await?;
    let limits = |row: &MySqlRow| -> Result<Limits, StoreError> {
        Ok(Limits {
            company: get(row, "id")?,
            concurrency_max: get(row, "concurrency_max")?,
            rate_per_sec: get(row, "rate_per_sec")?,
            is_off: get(row, "is_off")?,
        })
    };
    Ok(rows.iter().map(limits).collect::<Result<_, _>>()?)
}

/// In flight is never more than the workers hold, so looking at all of it is cheap.
async fn in_flight(
    connection: &mut MySqlConnection,
    companies: &[&str],
) -> Result<HashMap<String, u32>, Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT company_id, COUNT(*) AS emails FROM email_queue FORCE INDEX (queue_leased)
         WHERE lease_until IS NOT NULL AND company_id IN ",
    );
    push_list(&mut sql, companies.iter().map(|id| (*id).to_owned()));
    sql.push(" GROUP BY company_id");
    let mut counts = HashMap::new();
    for row in sql.build().fetch_all(connection).await? {
        let emails: i64 = get(&row, "emails")?;
        counts.insert(get(&row, "company_id")?, u32::try_from(emails).unwrap_or(u32::MAX));
    }
    Ok(counts)
}

/// Of every company that has a rate, also of one that has started nothing yet.
async fn recent_starts(
    connection: &mut MySqlConnection,
    limits: &[Limits],
    now: Timestamp,
) -> Result<BTreeMap<String, Starts>, Fault> {
    let rated =
        || limits.iter().filter(|limits| limits.rate_per_sec.is_some()).map(|limits| limits.company.clone());
    let mut starts: BTreeMap<String, Starts> = rated().map(|company| (company, Starts::default())).collect();
    if starts.is_empty() {
        return Ok(starts);
    }
    let mut sql =
        QueryBuilder::<MySql>::new("SELECT company_id, starts FROM company_rates WHERE company_id IN ");
    push_list(&mut sql, rated());
    for row in sql.build().fetch_all(connection).await? {
        starts.insert(get(&row, "company_id")?, Starts::recent(get(&row, "starts")?, now, SECOND));
    }
    Ok(starts)
}

/// Remembers what companies with a rate were given.
pub async fn note_starts(
    connection: &mut MySqlConnection,
    mut rates: BTreeMap<String, Starts>,
    claims: &[Claim],
    now: Timestamp,
) -> Result<(), Fault> {
    let mut given: BTreeMap<String, u32> = BTreeMap::new();
    for claim in claims {
        *given.entry(claim.company.to_string()).or_insert(0) += 1;
    }
    for (company, count) in given {
        let Some(starts) = rates.get_mut(&company) else { continue };
        starts.add(now, count);
        let sql = "INSERT INTO company_rates (company_id, starts) VALUES (?, ?)
                   ON DUPLICATE KEY UPDATE starts = VALUES(starts)";
        sqlx::query(sql).bind(company).bind(starts.encode()).execute(&mut *connection).await?;
    }
    Ok(())
}
