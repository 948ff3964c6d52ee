//! Leasing due emails to a worker, fairly and at a cost that does not grow with what is waiting: routes,
//! companies and priorities with waiting emails are found by hopping through one index, never by walking along it.
//! How a claim gets to whoever asked for it, or back, is in `handover`.

use model::{Claim, Event, EventKind, Move, Status, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use store::fairness::{Candidate, Fairness, still_hungry};
use store::starts::{SECOND, Starts};
use store::suspects::HANDED_OUT;
use store::{ClaimRequest, Routes, StoreError};

use crate::error::from_sqlite;
use crate::row;
use crate::writer::Work;

/// How many companies with due emails one claim divides its slots among: enough to be fair among all that are
/// active at most times; with more of them, the next claim goes on where this one stopped.
const CANDIDATES_MIN: u32 = 32;
const CANDIDATES_MAX: u32 = 256;
/// How many companies it looks at once it has found one, passing over those whose emails are due later or that are
/// at a limit; the next claim goes on from there.
const LOOKS_MIN: u32 = 256;
/// How many it looks at while it has found none, so that an empty claim means that nothing is due.
const LOOKS_MAX: u32 = 20_000;
/// Rounds of handing out: slots that a company could not fill go to the others.
const ROUNDS_MAX: u32 = 4;
/// Emails past their time that one claim ends on its way. A backlog that has expired as a whole is the sweep's
/// work; the writer has others to serve.
const EXPIRED_MAX: u32 = 1_000;
/// Sorts after every id.
const AFTER_ALL_IDS: &str = "~";
pub fn claim_batch(work: &mut Work<'_>, request: &ClaimRequest) -> Result<Vec<(i64, Claim)>, StoreError> {
    let mut candidates = find_candidates(work.connection, work.fairness, request)?;
    let mut batch = Batch { request, claimed: Vec::new(), size_bytes: 0, expired: 0 };
    for _ in 0..ROUNDS_MAX {
        if candidates.is_empty() || batch.is_full() {
            break;
        }
        let shares = work.fairness.share(&candidates, batch.free_slots());
        let mut given = Vec::with_capacity(shares.len());
        for (candidate, &share) in candidates.iter().zip(&shares) {
            given.push(batch.claim_of_company(work, candidate, share)?);
        }
        work.fairness.given(&candidates, &given);
        candidates = still_hungry(candidates, &shares, &given);
    }
    for (company, count) in batch.started_by_company() {
        note_starts(work.connection, &company, request.now, count)?;
    }
    Ok(batch.claimed)
}

/// Route, company and priority: within one of these the email that has been due longest goes first.
pub type Lane<'a> = (&'a str, &'a str, i64);

/// What one claim has gathered so far.
struct Batch<'a> {
    request: &'a ClaimRequest,
    claimed: Vec<(i64, Claim)>,
    size_bytes: u64,
    expired: u32,
}

impl Batch<'_> {
    fn free_slots(&self) -> u32 {
        self.request.limit.saturating_sub(u32::try_from(self.claimed.len()).unwrap_or(u32::MAX))
    }

    fn is_full(&self) -> bool {
        self.free_slots() == 0
            || self.size_bytes >= self.request.size_bytes_max
            || self.expired >= EXPIRED_MAX
    }

    /// Claims up to `share` emails of a company, its first priority first. Returns how many.
    fn claim_of_company(
        &mut self,
        work: &mut Work<'_>,
        candidate: &Candidate,
        share: u32,
    ) -> Result<u32, StoreError> {
        let mut count = 0;
        let mut priority = 0;
        while count < share {
            let Some((next, routes)) = next_priority(work.connection, candidate, priority)? else { break };
            for route in routes {
                count += self.claim_of_lane(work, (route, &candidate.company, next), share - count)?;
                if self.is_full() {
                    return Ok(count);
                }
            }
            priority = next;
        }
        Ok(count)
    }

    /// Claims up to `share` emails of one route and priority; those whose time is over are ended and do not count.
    fn claim_of_lane(&mut self, work: &mut Work<'_>, lane: Lane<'_>, share: u32) -> Result<u32, StoreError> {
        let mut count = 0;
        loop {
            let asked = share - count;
            let due = due_emails(work.connection, lane, self.request.now, asked)?;
            let came_short = due.len() < asked as usize;
            for due in due {
                if due.expires_at <= self.request.now {
                    crate::outbox::expire_row(work, due.seq, due.status, self.request.now, self.request.now)?;
                    self.expired += 1;
                } else {
                    self.lease(work, &due)?;
                    count += 1;
                }
                if self.is_full() {
                    return Ok(count);
                }
            }
            if came_short || count == share {
                return Ok(count);
            }
        }
    }

    fn lease(&mut self, work: &mut Work<'_>, due: &Due) -> Result<(), StoreError> {
        let request = self.request;
        let to = row::moved(work, due.status, Move::Claim)?;
        let mut statement = work.connection.prepare_cached(lease_statement()).map_err(from_sqlite)?;
        let bound = (
            due.seq,
            to.as_str(),
            request.lease_until.millis(),
            request.owner.to_string(),
            request.now.millis(),
            due.status.as_str(),
        );
        let mut rows = statement.query(bound).map_err(from_sqlite)?;
        let row = rows.next().map_err(from_sqlite)?.ok_or_else(|| {
            StoreError::Broken("an email changed inside the transaction that claims it".into())
        })?;
        let claim = row::record(row)?.claim(request.now)?;
        drop(rows);
        let received = Event::new(EventKind::Received, request.now).with("attempt", claim.attempt);
        row::add_events(work.connection, due.seq, &[received])?;
        self.size_bytes += due.size_bytes;
        self.claimed.push((due.seq, claim));
        Ok(())
    }

    fn started_by_company(&self) -> Vec<(String, u32)> {
        let mut counts = std::collections::BTreeMap::new();
        for (_, claim) in &self.claimed {
            *counts.entry(claim.company.to_string()).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }
}

fn lease_statement() -> &'static str {
    static SQL: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    SQL.get_or_init(|| {
        format!(
            "UPDATE email_outbox
             SET status = ?2, version = version + 1, fence = fence + 1, attempts = attempts + 1,
                 unfinished_starts = min(unfinished_starts + 1, {HANDED_OUT}), at_provider = 0, due_at = NULL,
                 lease_until = ?3, lease_owner = ?4, updated_at = ?5
             WHERE seq = ?1 AND status = ?6 AND due_at IS NOT NULL
             RETURNING {}",
            row::COLUMNS
        )
    })
}

/// Companies with waiting emails and room for more, beginning after the place where the last claim stopped.
fn find_candidates(
    connection: &Connection,
    fairness: &mut Fairness,
    request: &ClaimRequest,
) -> Result<Vec<Candidate>, StoreError> {
    let wanted = request.limit.saturating_mul(4).clamp(CANDIDATES_MIN, CANDIDATES_MAX) as usize;
    let mut candidates: Vec<Candidate> = Vec::new();
    let start = fairness.cursor.clone();
    let mut last = start.clone();
    let mut wrapped = false;
    for look in 0..LOOKS_MAX {
        if candidates.len() == wanted || (look >= LOOKS_MIN && !candidates.is_empty()) {
            break;
        }
        let found = match next_place(connection, &last, &request.routes)? {
            None if !wrapped => {
                wrapped = true;
                next_place(connection, &Default::default(), &request.routes)?
            }
            found => found,
        };
        let Some(place) = found else { break };
        if wrapped && place > start {
            break;
        }
        consider(connection, &place, request, &mut candidates)?;
        last = place;
        if wrapped && last == start {
            break;
        }
    }
    fairness.cursor = last;
    Ok(candidates)
}

/// Adds the company at this place to the candidates, or the route to the company.
fn consider(
    connection: &Connection,
    (route, company): &(String, String),
    request: &ClaimRequest,
    candidates: &mut Vec<Candidate>,
) -> Result<(), StoreError> {
    if !has_due(connection, route, company, request.now)? {
        return Ok(());
    }
    if let Some(known) = candidates.iter_mut().find(|candidate| candidate.company == *company) {
        known.routes.push(route.clone());
    } else if let Some((weight, room)) = room(connection, company, request)? {
        candidates.push(Candidate { company: company.clone(), routes: vec![route.clone()], weight, room });
    }
    Ok(())
}

/// The next route and company with waiting emails. Hops over the routes that are not asked for.
pub fn next_place(
    connection: &Connection,
    after: &(String, String),
    routes: &Routes,
) -> Result<Option<(String, String)>, StoreError> {
    let mut after = after.clone();
    loop {
        let found = match next_company(connection, &after)? {
            Some(company) => Some((after.0, company)),
            None => next_route(connection, &after.0)?,
        };
        match found {
            Some(place) if !routes.allow(&place.0) => after = (place.0, AFTER_ALL_IDS.to_owned()),
            found => return Ok(found),
        }
    }
}

/// The next company of the same route. Not asked for together with the next route, as `(route, company_id) > (?1, ?2)`:
/// SQLite begins such a search at the first entry that is equal and walks through all of them.
fn next_company(
    connection: &Connection,
    (route, company): &(String, String),
) -> Result<Option<String>, StoreError> {
    connection
        .prepare_cached(
            "SELECT company_id FROM email_outbox INDEXED BY outbox_due
             WHERE due_at IS NOT NULL AND route = ?1 AND company_id > ?2 ORDER BY company_id LIMIT 1",
        )
        .and_then(|mut statement| statement.query_row((route, company), |row| row.get(0)).optional())
        .map_err(from_sqlite)
}

fn next_route(connection: &Connection, after: &str) -> Result<Option<(String, String)>, StoreError> {
    connection
        .prepare_cached(
            "SELECT route, company_id FROM email_outbox INDEXED BY outbox_due
             WHERE due_at IS NOT NULL AND route > ?1 ORDER BY route, company_id LIMIT 1",
        )
        .and_then(|mut statement| {
            statement.query_row([after], |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .map_err(from_sqlite)
}

/// The first priority after the given one, and which of the company's routes have it.
fn next_priority<'a>(
    connection: &Connection,
    candidate: &'a Candidate,
    after: i64,
) -> Result<Option<(i64, Vec<&'a str>)>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT priority FROM email_outbox INDEXED BY outbox_due
             WHERE due_at IS NOT NULL AND route = ?1 AND company_id = ?2 AND priority > ?3
             ORDER BY priority LIMIT 1",
        )
        .map_err(from_sqlite)?;
    let mut first: Option<(i64, Vec<&str>)> = None;
    for route in &candidate.routes {
        let found: Option<i64> = statement
            .query_row((route, &candidate.company, after), |row| row.get(0))
            .optional()
            .map_err(from_sqlite)?;
        let Some(priority) = found else { continue };
        match &mut first {
            Some((lowest, routes)) if *lowest == priority => routes.push(route),
            Some((lowest, _)) if *lowest < priority => {}
            _ => first = Some((priority, vec![route])),
        }
    }
    Ok(first)
}

struct Due {
    seq: i64,
    status: Status,
    expires_at: Timestamp,
    size_bytes: u64,
}

fn due_emails(
    connection: &Connection,
    (route, company, priority): Lane<'_>,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Due>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT seq, status, expires_at, size_bytes FROM email_outbox INDEXED BY outbox_due
             WHERE due_at IS NOT NULL AND route = ?1 AND company_id = ?2 AND priority = ?3 AND due_at <= ?4
             ORDER BY due_at, seq LIMIT ?5",
        )
        .map_err(from_sqlite)?;
    let mut rows = statement.query((route, company, priority, now.millis(), limit)).map_err(from_sqlite)?;
    let mut due = Vec::new();
    while let Some(row) = rows.next().map_err(from_sqlite)? {
        due.push(Due {
            seq: row.get("seq").map_err(from_sqlite)?,
            status: row::status(row)?,
            expires_at: Timestamp::from_millis(row.get("expires_at").map_err(from_sqlite)?),
            size_bytes: row.get("size_bytes").map_err(from_sqlite)?,
        });
    }
    Ok(due)
}

/// The company's weight and how many emails it may be given now; `None` when it may not be given any.
fn room(
    connection: &Connection,
    company: &str,
    request: &ClaimRequest,
) -> Result<Option<(u32, u32)>, StoreError> {
    type Limits = (u32, Option<u32>, Option<u32>, bool);
    let limits: Option<Limits> = connection
        .prepare_cached(
            "SELECT weight, concurrency_max, rate_per_sec, disabled_at IS NOT NULL OR paused_at IS NOT NULL
             FROM companies WHERE id = ?1",
        )
        .and_then(|mut statement| {
            statement
                .query_row([company], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
                .optional()
        })
        .map_err(from_sqlite)?;
    let Some((weight, concurrency_max, rate_per_sec, false)) = limits else {
        return Ok(None);
    };
    let mut room = request.limit;
    if let Some(most) = concurrency_max {
        room = room.min(most.saturating_sub(in_flight(connection, company)?));
    }
    if let Some(rate) = rate_per_sec {
        room = room.min(rate.saturating_sub(recent_starts(connection, company, request.now)?.count()));
    }
    Ok((room > 0).then_some((weight, room)))
}

/// Hops from priority to priority: the first email of each is the one that is due first.
fn has_due(connection: &Connection, route: &str, company: &str, now: Timestamp) -> Result<bool, StoreError> {
    let mut priority = 0;
    while let Some((next, due_at)) = first_of_next(connection, (route, company, priority))? {
        if due_at <= now.millis() {
            return Ok(true);
        }
        priority = next;
    }
    Ok(false)
}

/// The company's next priority by this route, and when its first email is due.
pub fn first_of_next(connection: &Connection, after: Lane<'_>) -> Result<Option<(i64, i64)>, StoreError> {
    connection
        .prepare_cached(
            "SELECT priority, due_at FROM email_outbox INDEXED BY outbox_due
             WHERE due_at IS NOT NULL AND route = ?1 AND company_id = ?2 AND priority > ?3
             ORDER BY priority, due_at LIMIT 1",
        )
        .and_then(|mut statement| statement.query_row(after, |row| Ok((row.get(0)?, row.get(1)?))).optional())
        .map_err(from_sqlite)
}

fn in_flight(connection: &Connection, company: &str) -> Result<u32, StoreError> {
    connection
        .prepare_cached("SELECT count(*) FROM email_outbox WHERE status = 'PROCESSING' AND company_id = ?1")
        .and_then(|mut statement| statement.query_row([company], |row| row.get(0)))
        .map_err(from_sqlite)
}

fn recent_starts(connection: &Connection, company: &str, now: Timestamp) -> Result<Starts, StoreError> {
    let text: Option<String> = connection
        .prepare_cached("SELECT starts FROM company_rates WHERE company_id = ?1")
        .and_then(|mut statement| statement.query_row([company], |row| row.get(0)).optional())
        .map_err(from_sqlite)?;
    Ok(Starts::recent(&text.unwrap_or_default(), now, SECOND))
}

/// Remembers starts of a company that has a rate limit.
fn note_starts(connection: &Connection, company: &str, now: Timestamp, count: u32) -> Result<(), StoreError> {
    let is_limited: bool = connection
        .prepare_cached("SELECT rate_per_sec IS NOT NULL FROM companies WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([company], |row| row.get(0)))
        .map_err(from_sqlite)?;
    if !is_limited {
        return Ok(());
    }
    let mut starts = recent_starts(connection, company, now)?;
    starts.add(now, count);
    connection
        .prepare_cached(
            "INSERT INTO company_rates (company_id, starts) VALUES (?1, ?2)
             ON CONFLICT (company_id) DO UPDATE SET starts = excluded.starts",
        )
        .and_then(|mut statement| statement.execute((company, starts.encode())))
        .map_err(from_sqlite)?;
    Ok(())
}

#[cfg(test)]
mod tests;
