//! Which companies have due emails, and by which routes: companies are looked at page by page, each with one step into
//! the index per route and priority, so that the cost does not grow with what is waiting. Which routes there are is in
//! `claim_routes`.

use std::collections::HashMap;

use model::Timestamp;
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::{Routes, StoreError};

use crate::accept::PRIORITY_MAX;
use crate::claim_routes;
use crate::error::Fault;
use crate::row::{get, optional_millis};

/// How many companies one claim divides its slots among: enough to be fair among all that are active at most times;
/// with more of them, the next claim goes on where this one stopped.
const CANDIDATES_MIN: u32 = 32;
const CANDIDATES_MAX: u32 = 256;
/// How many places (route and company) are looked at with one statement: first as many as most installations have, then,
/// while none has anything due, many more.
const FIRST_PAGE: usize = 512;
const NEXT_PAGES: usize = 4_096;
/// An empty claim means that nothing is due: only a limit that nobody reaches ends the look before the last place.
const PAGES_MAX: u32 = 64;
/// How many routes are looked at together; hardly anybody has more of them.
const ROUTES_MAX: usize = 64;

/// A company with due emails, and what it may be given.
#[derive(Debug, Clone)]
pub struct DueCompany {
    pub id: String,
    pub weight: u32,
    pub concurrency_max: Option<u32>,
    pub rate_per_sec: Option<u32>,
    /// Where it has something due: most urgent first, then what has been due longest.
    pub lanes: Vec<DueLane>,
}

/// Emails of one company, priority and route.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DueLane {
    pub priority: u8,
    pub due_since: Timestamp,
    pub route: String,
}

impl DueCompany {
    pub fn is_limited(&self) -> bool {
        self.concurrency_max.is_some() || self.rate_per_sec.is_some()
    }

    pub fn routes(&self) -> Vec<String> {
        let mut routes: Vec<String> = self.lanes.iter().map(|lane| lane.route.clone()).collect();
        routes.sort_unstable();
        routes.dedup();
        routes
    }
}

/// Where to begin (route and company), at what time, for how many slots, and by which routes.
#[derive(Debug, Clone)]
pub struct Search {
    pub after: (String, String),
    pub now: Timestamp,
    pub limit: u32,
    pub routes: Routes,
    /// Routes by which something waited before.
    pub known_routes: Vec<String>,
    /// Nothing was due a moment ago: ask for that first.
    pub expects_nothing: bool,
}

/// What was found, and where the next search begins.
#[derive(Debug)]
pub struct Found {
    pub companies: Vec<DueCompany>,
    pub next: (String, String),
    pub known_routes: Vec<String>,
}

pub async fn find(connection: &mut MySqlConnection, search: &Search) -> Result<Found, Fault> {
    let (after, known_routes) = (search.after.clone(), search.known_routes.clone());
    let mut found = Found { companies: Vec::new(), next: after, known_routes };
    if search.expects_nothing && !anything_due(connection, search.now).await? {
        return Ok(found);
    }
    let mut routes = match &search.routes {
        Routes::Only(routes) => claim_routes::each_once(routes),
        routes => {
            let waiting = claim_routes::waiting(connection, &search.known_routes).await?;
            found.known_routes = claim_routes::worth_knowing(&search.known_routes, &waiting);
            waiting.into_iter().filter(|route| routes.allow(route)).collect()
        }
    };
    if routes.is_empty() {
        return Ok(found);
    }
    let first = routes.partition_point(|route| *route < search.after.0) % routes.len();
    routes.rotate_left(first);
    let legs = legs(&routes, &search.after.1);
    (found.companies, found.next) = walk(connection, &legs, search).await?;
    Ok(found)
}

async fn anything_due(connection: &mut MySqlConnection, now: Timestamp) -> Result<bool, Fault> {
    let sql = "SELECT due_at FROM email_queue FORCE INDEX (queue_due) WHERE due_at <= ? LIMIT 1";
    Ok(sqlx::query(sql).bind(now.millis()).fetch_optional(connection).await?.is_some())
}

/// A part of the round: these routes of all companies after one, up to another.
#[derive(Debug, PartialEq, Eq)]
struct Leg<'a> {
    routes: &'a [String],
    after: &'a str,
    until: Option<&'a str>,
}

/// The whole round, from the place where the last search stopped, back to it.
fn legs<'a>(routes: &'a [String], after: &'a str) -> Vec<Leg<'a>> {
    let mut legs: Vec<Leg<'a>> =
        routes.chunks(ROUTES_MAX).map(|routes| Leg { routes, after: "", until: None }).collect();
    if let Some(first) = legs.first_mut().filter(|_| !after.is_empty()) {
        first.after = after;
        let rest = Leg { routes: first.routes, after: "", until: Some(after) };
        legs.push(rest);
    }
    legs
}

/// Looks at page after page until there is enough. Gives where to go on, too.
async fn walk(
    connection: &mut MySqlConnection,
    legs: &[Leg<'_>],
    search: &Search,
) -> Result<(Vec<DueCompany>, (String, String)), Fault> {
    let wanted = search.limit.saturating_mul(4).clamp(CANDIDATES_MIN, CANDIDATES_MAX) as usize;
    let mut gathered = Gathered::default();
    let mut next = search.after.clone();
    let mut pages = 0;
    'round: for (number, leg) in legs.iter().enumerate() {
        let first_route = |leg: Option<&Leg<'_>>| leg.map(|leg| leg.routes[0].clone()).unwrap_or_default();
        let mut from = Some(leg.after.to_owned());
        while let Some(after) = from.take().filter(|_| pages < PAGES_MAX) {
            let places = if pages == 0 { FIRST_PAGE } else { NEXT_PAGES };
            let page = page(connection, leg.routes, &after, places, search.now).await?;
            pages += 1;
            gathered.add(page.due.into_iter().filter(|(company, _)| leg.reaches(&company.id)));
            next = match &page.last {
                Some(last) => (first_route(Some(leg)), last.clone()),
                None => (first_route(legs.get(number + 1).or(legs.first())), String::new()),
            };
            from = page.last.filter(|last| leg.reaches(last));
            let companies = &mut gathered.companies;
            if companies.len() > wanted {
                companies.truncate(wanted);
                let last = companies.last().map(|company| company.id.clone());
                next = (first_route(Some(leg)), last.unwrap_or_default());
            }
            if companies.len() == wanted || (!companies.is_empty() && from.is_some()) {
                break 'round;
            }
        }
    }
    for company in &mut gathered.companies {
        company.lanes.sort_unstable();
    }
    Ok((gathered.companies, next))
}

impl Leg<'_> {
    fn reaches(&self, company: &str) -> bool {
        self.until.is_none_or(|until| company <= until)
    }
}

/// Each company once, in the order in which they were found, with all its lanes.
#[derive(Default)]
struct Gathered {
    companies: Vec<DueCompany>,
    places: HashMap<String, usize>,
}

impl Gathered {
    fn add(&mut self, due: impl Iterator<Item = (DueCompany, Vec<DueLane>)>) {
        for (company, lanes) in due {
            let place = *self.places.entry(company.id.clone()).or_insert(self.companies.len());
            match self.companies.get_mut(place) {
                Some(known) => known.lanes.extend(lanes),
                None => self.companies.push(DueCompany { lanes, ..company }),
            }
        }
    }
}

/// The time at which the first email of a priority is due. Ordered by the whole index, since MySQL would sort the
/// company's backlog otherwise.
macro_rules! first_due {
    ($($priority:literal),*) => {
        concat!($(
            ", (SELECT q.due_at FROM email_queue q FORCE INDEX (queue_waiting)
                WHERE q.route = r.route AND q.company_id = c.id AND q.priority = ", $priority, "
                  AND q.due_at IS NOT NULL
                ORDER BY q.route, q.company_id, q.priority, q.due_at LIMIT 1) AS due_", $priority
        ),*)
    };
}

/// A page of companies, each with every route: those places with something in the queue, and the last company of a full
/// page, which says where the next page begins. The test is a subquery with a limit, which no optimizer turns into a scan
/// of the queue; so is nothing but an equal value of the same collation looked up in the index.
const PAGE_START: &str = concat!(
    "SELECT c.id, c.weight, c.concurrency_max, c.rate_per_sec, c.number, r.route",
    first_due!(1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    " FROM (SELECT id, weight, concurrency_max, rate_per_sec, CAST(ROW_NUMBER() OVER (ORDER BY id) AS SIGNED) AS number
            FROM companies WHERE id > "
);
const PAGE_ROUTE: &str = "SELECT CONVERT(";
const PAGE_ROUTE_END: &str = " USING ascii) COLLATE ascii_bin AS route";
const PAGE_END: &str = "
         OR (SELECT q.company_id FROM email_queue q FORCE INDEX (queue_waiting)
             WHERE q.route = r.route AND q.company_id = c.id LIMIT 1) IS NOT NULL
      ORDER BY c.id";

struct Page {
    due: Vec<(DueCompany, Vec<DueLane>)>,
    /// Where the next page begins; `None` when this was the last one.
    last: Option<String>,
}

async fn page(
    connection: &mut MySqlConnection,
    routes: &[String],
    after: &str,
    places: usize,
    now: Timestamp,
) -> Result<Page, Fault> {
    let limit = i64::try_from((places / routes.len()).max(1)).unwrap_or(i64::MAX);
    let mut sql = QueryBuilder::<MySql>::new(PAGE_START);
    sql.push_bind(after)
        .push(" AND disabled_at IS NULL AND paused_at IS NULL ORDER BY id LIMIT ")
        .push_bind(limit);
    sql.push(") c CROSS JOIN (");
    // Routes that nobody has, to come to a power of two.
    let filled_up = routes.len().next_power_of_two();
    for number in 0..filled_up {
        sql.push(if number == 0 { "" } else { " UNION ALL " }).push(PAGE_ROUTE);
        sql.push_bind(routes.get(number)).push(PAGE_ROUTE_END);
    }
    sql.push(") r WHERE c.number = ").push_bind(limit).push(PAGE_END);
    let mut page = Page { due: Vec::new(), last: None };
    for row in &sql.build().fetch_all(connection).await? {
        if get::<i64>(row, "number")? == limit {
            page.last = Some(get(row, "id")?);
        }
        let lanes = due_lanes(row, now)?;
        if !lanes.is_empty() {
            page.due.push((company(row)?, lanes));
        }
    }
    Ok(page)
}

fn due_lanes(row: &MySqlRow, now: Timestamp) -> Result<Vec<DueLane>, StoreError> {
    let Some(route) = get::<Option<String>>(row, "route")? else { return Ok(Vec::new()) };
    let mut lanes = Vec::new();
    for priority in 1..=PRIORITY_MAX {
        let due_since = optional_millis(row, &format!("due_{priority}"))?.filter(|&due_at| due_at <= now);
        lanes.extend(due_since.map(|due_since| DueLane { priority, due_since, route: route.clone() }));
    }
    Ok(lanes)
}

fn company(row: &MySqlRow) -> Result<DueCompany, StoreError> {
    Ok(DueCompany {
        id: get(row, "id")?,
        weight: get(row, "weight")?,
        concurrency_max: get(row, "concurrency_max")?,
        rate_per_sec: get(row, "rate_per_sec")?,
        lanes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_comes_back_to_where_it_began() {
        let routes: Vec<String> = (0..=ROUTES_MAX).map(|number| format!("{number:03}")).collect();
        let (few, more) = routes.split_at(ROUTES_MAX);
        let leg = |routes, after, until| Leg { routes, after, until };
        assert_eq!(legs(few, ""), [leg(few, "", None)]);
        assert_eq!(legs(few, "m"), [leg(few, "m", None), leg(few, "", Some("m"))]);
        let all = [leg(few, "m", None), leg(more, "", None), leg(few, "", Some("m"))];
        assert_eq!(legs(&routes, "m"), all);
        assert!(all[0].reaches("z") && all[2].reaches("m") && !all[2].reaches("n"));
    }
}
