//! By which routes emails wait: found by hopping from route to route through the index of what waits, never by walking
//! along it. Neither server can hop within a statement, so that each hop would be a question of its own; routes that are
//! known from before are asked about all at once instead.

use std::collections::BTreeSet;

use sqlx::{MySql, MySqlConnection, QueryBuilder};

use crate::error::Fault;
use crate::row::{filled_up, get};

/// How many hops one statement makes.
const HOPS_MAX: usize = 64;
/// How many routes are remembered by which nothing waits just now: asking about each costs a step into the index.
const KNOWN_MAX: usize = 64;

const FIRST: &str = "(SELECT route FROM email_queue FORCE INDEX (queue_waiting) ORDER BY route LIMIT 1)";
const NEXT: &str = " UNION ALL (SELECT route FROM email_queue FORCE INDEX (queue_waiting) WHERE route > ";

/// All routes by which emails wait or are in flight, in order. What is `known` may be anything; it saves questions.
pub async fn waiting(connection: &mut MySqlConnection, known: &[String]) -> Result<Vec<String>, Fault> {
    let known: BTreeSet<String> = known.iter().cloned().collect();
    let mut waiting = BTreeSet::new();
    // Asking about the first of all goes with every question.
    let mut behind: Vec<String> = known.iter().cloned().collect();
    loop {
        let mut found = BTreeSet::new();
        let hops = behind.chunks(HOPS_MAX);
        let hops: Vec<&[String]> = if behind.is_empty() { vec![&[]] } else { hops.collect() };
        for hops in hops {
            found.extend(next_routes(connection, hops).await?);
        }
        behind = found.difference(&waiting).filter(|route| !known.contains(*route)).cloned().collect();
        waiting.append(&mut found);
        if behind.is_empty() {
            return Ok(waiting.into_iter().collect());
        }
    }
}

/// The first route of all, and the next one behind each of these.
async fn next_routes(connection: &mut MySqlConnection, behind: &[String]) -> Result<Vec<String>, Fault> {
    let mut sql = QueryBuilder::<MySql>::new(FIRST);
    for route in filled_up(behind.to_vec()) {
        sql.push(NEXT).push_bind(route).push(" ORDER BY route LIMIT 1)");
    }
    let rows = sql.build().fetch_all(connection).await?;
    Ok(rows.iter().map(|row| get(row, "route")).collect::<Result<_, _>>()?)
}

/// What to ask about next time: a route on which nothing waits now may have something soon.
pub fn worth_knowing(known: &[String], waiting: &[String]) -> Vec<String> {
    let both: BTreeSet<&String> = known.iter().chain(waiting).collect();
    if both.len() > KNOWN_MAX { waiting.to_vec() } else { both.into_iter().cloned().collect() }
}

/// In order.
pub fn each_once(routes: &[String]) -> Vec<String> {
    routes.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect()
}
