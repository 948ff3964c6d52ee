//! Which companies have due emails: companies are looked at page by page, each with one step into the index per
//! priority, so that the cost does not grow with what is waiting.

use model::Timestamp;
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlRow;
use store::StoreError;

use crate::accept::PRIORITY_MAX;
use crate::error::Fault;
use crate::row::{get, optional_millis};

/// How many companies one claim divides its slots among: enough to be fair among all that are active at most times;
/// with more of them, the next claim goes on where this one stopped.
const CANDIDATES_MIN: u32 = 32;
const CANDIDATES_MAX: u32 = 256;
/// How many companies are looked at with one statement: first as many as most installations have, then, while none has
/// anything due, many more.
const FIRST_PAGE: u32 = 512;
const NEXT_PAGES: u32 = 4_096;
/// An empty claim means that nothing is due: only a limit that nobody reaches ends the look before the last company.
const PAGES_MAX: u32 = 64;

/// A company with due emails, and what it may be given.
#[derive(Debug, Clone)]
pub struct DueCompany {
    pub id: String,
    pub weight: u32,
    pub concurrency_max: Option<u32>,
    pub rate_per_sec: Option<u32>,
    /// Those of its priorities that have something due, most urgent first.
    pub priorities: Vec<u8>,
}

impl DueCompany {
    pub fn is_limited(&self) -> bool {
        self.concurrency_max.is_some() || self.rate_per_sec.is_some()
    }
}

/// Where to begin, at what time, and for how many slots.
#[derive(Debug, Clone)]
pub struct Search {
    pub after: String,
    pub now: Timestamp,
    pub limit: u32,
    /// Nothing was due a moment ago: ask for that first.
    pub expects_nothing: bool,
}

/// What was found, and where the next search begins.
#[derive(Debug, Default)]
pub struct Found {
    pub companies: Vec<DueCompany>,
    pub next: String,
}

/// The time at which the first email of a priority is due. Ordered by the whole index, since MySQL would sort the
/// company's backlog otherwise.
macro_rules! first_due {
    ($($priority:literal),*) => {
        concat!($(
            ", (SELECT q.due_at FROM email_queue q FORCE INDEX (queue_waiting)
                WHERE q.company_id = c.id AND q.priority = ", $priority, " AND q.due_at IS NOT NULL
                ORDER BY q.company_id, q.priority, q.due_at LIMIT 1) AS due_", $priority
        ),*)
    };
}

/// A page of companies: those with something in the queue, and the last one of a full page, which says where the next
/// page begins. The test is a subquery with a limit, which no optimizer turns into a scan of the queue.
const PAGE: &str = concat!(
    "SELECT c.id, c.weight, c.concurrency_max, c.rate_per_sec, c.number",
    first_due!(1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    " FROM (SELECT id, weight, concurrency_max, rate_per_sec, CAST(ROW_NUMBER() OVER (ORDER BY id) AS SIGNED) AS number
            FROM companies WHERE id > ? AND disabled_at IS NULL ORDER BY id LIMIT ?) c
      WHERE c.number = ?
         OR (SELECT q.company_id FROM email_queue q FORCE INDEX (queue_waiting)
             WHERE q.company_id = c.id LIMIT 1) IS NOT NULL
      ORDER BY c.id"
);

struct Page {
    due: Vec<DueCompany>,
    /// Where the next page begins; `None` when this was the last one.
    last: Option<String>,
}

pub async fn find(connection: &mut MySqlConnection, search: &Search) -> Result<Found, Fault> {
    if search.expects_nothing && !anything_due(connection, search.now).await? {
        return Ok(Found { companies: Vec::new(), next: search.after.clone() });
    }
    let wanted = search.limit.saturating_mul(4).clamp(CANDIDATES_MIN, CANDIDATES_MAX) as usize;
    let mut companies: Vec<DueCompany> = Vec::new();
    let mut last = search.after.clone();
    let mut is_wrapped = search.after.is_empty();
    for number in 0..PAGES_MAX {
        let limit = if number == 0 { FIRST_PAGE } else { NEXT_PAGES };
        let page = page(connection, &last, limit, search.now).await?;
        let is_new =
            |company: &DueCompany| search.after.is_empty() || !is_wrapped || company.id <= search.after;
        companies.extend(page.due.into_iter().filter(is_new));
        let is_last = page.last.is_none();
        last = page.last.unwrap_or_default();
        let is_round = is_wrapped && (is_last || (!search.after.is_empty() && last >= search.after));
        let is_enough = companies.len() >= wanted || (!companies.is_empty() && !is_last);
        if is_round || is_enough {
            break;
        }
        is_wrapped |= is_last;
    }
    if companies.len() > wanted {
        companies.truncate(wanted);
        last = companies.last().map(|company| company.id.clone()).unwrap_or_default();
    }
    Ok(Found { companies, next: last })
}

async fn anything_due(connection: &mut MySqlConnection, now: Timestamp) -> Result<bool, Fault> {
    let sql = "SELECT due_at FROM email_queue FORCE INDEX (queue_due) WHERE due_at <= ? LIMIT 1";
    Ok(sqlx::query(sql).bind(now.millis()).fetch_optional(connection).await?.is_some())
}

async fn page(
    connection: &mut MySqlConnection,
    after: &str,
    limit: u32,
    now: Timestamp,
) -> Result<Page, Fault> {
    let rows = sqlx::query(PAGE).bind(after).bind(limit).bind(limit).fetch_all(connection).await?;
    let mut page = Page { due: Vec::new(), last: None };
    for row in &rows {
        let number: i64 = get(row, "number")?;
        if number == i64::from(limit) {
            page.last = Some(get(row, "id")?);
        }
        let company = due_company(row, now)?;
        if !company.priorities.is_empty() {
            page.due.push(company);
        }
    }
    Ok(page)
}

fn due_company(row: &MySqlRow, now: Timestamp) -> Result<DueCompany, StoreError> {
    let mut priorities = Vec::new();
    for priority in 1..=PRIORITY_MAX {
        if optional_millis(row, &format!("due_{priority}"))?.is_some_and(|due_at| due_at <= now) {
            priorities.push(priority);
        }
    }
    Ok(DueCompany {
        id: get(row, "id")?,
        weight: get(row, "weight")?,
        concurrency_max: get(row, "concurrency_max")?,
        rate_per_sec: get(row, "rate_per_sec")?,
        priorities,
    })
}
