//! Leasing due emails to a worker, fairly and at a cost that does not grow with what is waiting. Who has something due
//! is found in `claim_candidates`, without a lock; the rows themselves are taken with SKIP LOCKED, so that claims of
//! other processes take others.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{Claim, EmailId, Event, EventKind, Move, Status, Timestamp, Verdict};
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::change::moved;
use store::fairness::{Candidate, Fairness, still_hungry};
use store::record::Record;
use store::suspects::HANDED_OUT;
use store::task::{Unwanted, handed_over};
use store::{ClaimRequest, SettledBy, Settlement, StoreError, content_codec};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::claim_candidates::{self, DueCompany, DueLane, Found, Search};
use crate::claim_limits::{candidates, note_starts};
use crate::error::Fault;
use crate::lane::{Lane, Lanes};
use crate::row::{get, ids, parsed, push_list};
use crate::{MysqlStore, outbox, row, settle};

/// How many times one claim goes on looking because those it found were all at their limits; the next one goes on from
/// there.
const LOOKS_MAX: u32 = 20;
/// Rounds of handing out: slots that a company could not fill go to the others.
const ROUNDS_MAX: u32 = 4;
/// Emails past their time that one claim ends on its way. A backlog that has expired as a whole is the sweep's work.
const EXPIRED_MAX: usize = 1_000;
/// How many more are looked at once some of those met had expired.
const EXPIRED_STEP: u32 = 250;
/// How many lanes (company, priority, route) one statement takes from.
const PARTS_MAX: usize = 64;

/// Whose turn it is.
#[derive(Default)]
pub struct Turns {
    /// One claim at a time per process: the next one has to know what this one gave to whom.
    one_at_a_time: Arc<AsyncMutex<()>>,
    fairness: Mutex<Fairness>,
    /// Routes by which something waited lately.
    routes: Mutex<Vec<String>>,
    /// The last claim found nothing due.
    is_idle: AtomicBool,
}

impl Turns {
    fn fairness(&self) -> MutexGuard<'_, Fairness> {
        self.fairness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn routes(&self) -> MutexGuard<'_, Vec<String>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn search(&self, request: &ClaimRequest) -> Search {
        Search {
            after: self.fairness().cursor.clone(),
            now: request.now,
            limit: request.limit,
            routes: request.routes.clone(),
            known_routes: self.routes().clone(),
            expects_nothing: self.is_idle.load(Ordering::Relaxed),
        }
    }

    fn remember(&self, found: &Found) {
        self.fairness().cursor = found.next.clone();
        self.routes().clone_from(&found.known_routes);
        self.is_idle.store(found.companies.is_empty(), Ordering::Relaxed);
    }
}

/// What one claim works on.
struct Work {
    request: ClaimRequest,
    companies: Vec<DueCompany>,
    turns: Arc<Turns>,
}

impl Work {
    async fn run(&self, lanes: &Lanes) -> Result<Vec<Claim>, StoreError> {
        let claimed = lanes.run(self, |lane, work| Box::pin(claim_batch(lane, work))).await;
        let mut fairness = self.turns.fairness();
        if claimed.is_ok() {
            fairness.keep();
        } else {
            fairness.undo();
        }
        claimed
    }
}

impl MysqlStore {
    /// Those that have something due may all be at their limits: then it goes on behind them.
    pub(crate) async fn claim_due(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        let mut seen: HashSet<(String, String)> = HashSet::new();
        for look in 0..LOOKS_MAX {
            // Behind those without room as many as one look may bring, since most will have none either.
            let slots = if look == 0 { request.limit } else { u32::MAX };
            let (turn, companies) = self.find_due(&request, slots).await?;
            let seen_before = seen.len();
            let places = |company: &DueCompany| {
                let id = company.id.clone();
                company.routes().into_iter().map(move |route| (route, id.clone()))
            };
            seen.extend(companies.iter().flat_map(places));
            if seen.len() == seen_before || request.limit == 0 {
                break;
            }
            let claims = self.claim_of(request.clone(), companies, turn).await?;
            if !claims.is_empty() {
                return Ok(claims);
            }
        }
        Ok(Vec::new())
    }

    /// Companies with due emails, from where the last look stopped, and the turn to claim from them.
    async fn find_due(
        &self,
        request: &ClaimRequest,
        slots: u32,
    ) -> Result<(OwnedMutexGuard<()>, Vec<DueCompany>), StoreError> {
        let turn = Arc::clone(&self.turns.one_at_a_time).lock_owned().await;
        let search = Search { limit: slots, ..self.turns.search(request) };
        let found = self
            .read(search, |connection, search| Box::pin(claim_candidates::find(connection, search)))
            .await?;
        self.turns.remember(&found);
        Ok((turn, found.companies))
    }

    async fn claim_of(
        &self,
        request: ClaimRequest,
        companies: Vec<DueCompany>,
        turn: OwnedMutexGuard<()>,
    ) -> Result<Vec<Claim>, StoreError> {
        let lanes = self.claiming.clone();
        let work = Work { request, companies, turns: Arc::clone(&self.turns) };
        let (other, now) = (lanes.clone(), work.request.now);
        // A caller may go: without this its emails would wait until their leases run out, and be blamed for it.
        let put_back: Unwanted<Vec<Claim>> =
            Box::new(move |claims| Box::pin(async move { put_back(&other, &claims, now).await }));
        let claim = async move {
            let _turn = turn;
            work.run(&lanes).await
        };
        handed_over(Box::pin(claim), put_back).await
    }
}

/// As if they had never been claimed. If this fails, their leases run out.
async fn put_back(lanes: &Lanes, claims: &[Claim], now: Timestamp) {
    if claims.is_empty() {
        return;
    }
    let reason = "nobody waited for the claim";
    let settlement = |claim: &Claim| Settlement {
        guard: claim.guard,
        by: SettledBy::Worker,
        verdict: Verdict::PutBack { due_at: now, route: None },
        events: vec![Event::new(EventKind::Released, now).with("reason", reason)],
        now,
    };
    let settlements: Vec<Settlement> = claims.iter().map(settlement).collect();
    let put_back = lanes.answer(settlements, |lane, settlements| Box::pin(settle::settle(lane, settlements)));
    if let Some(Err(error)) = put_back.await.into_iter().find(Result::is_err) {
        tracing::warn!(%error, emails = claims.len(), "claimed emails could not be put back; their leases run out");
    }
}

async fn claim_batch(lane: &mut Lane, work: &Work) -> Result<Vec<Claim>, Fault> {
    {
        // Of a try that collided nothing was given.
        let mut fairness = work.turns.fairness();
        fairness.undo();
        fairness.begin();
    }
    let (mut candidates, rates) = candidates(&mut lane.connection, &work.companies, &work.request).await?;
    let mut batch = Batch::new(&work.request, &work.companies);
    for _ in 0..ROUNDS_MAX {
        if candidates.is_empty() || batch.is_full() {
            break;
        }
        let shares = work.turns.fairness().share(&candidates, batch.free_slots());
        let given = batch.hand_out(lane, &candidates, &shares).await?;
        work.turns.fairness().given(&candidates, &given);
        candidates = still_hungry(candidates, &shares, &given);
    }
    let claims = lease(lane, &batch.taken, &work.request).await?;
    note_starts(&mut lane.connection, rates, &claims, work.request.now).await?;
    Ok(claims)
}

/// A row of the queue that is due.
struct Due {
    id: EmailId,
    route: String,
    company: String,
    priority: u8,
    due_at: Timestamp,
    expires_at: Timestamp,
    size_bytes: u64,
}

/// A lane to take from, and how many.
struct Part<'a> {
    route: &'a str,
    company: &'a str,
    priority: u8,
    limit: u32,
}

/// What one claim has gathered so far.
struct Batch<'a> {
    request: &'a ClaimRequest,
    lanes: HashMap<&'a str, &'a [DueLane]>,
    taken: Vec<EmailId>,
    size_bytes: u64,
    expired: usize,
}

impl<'a> Batch<'a> {
    fn new(request: &'a ClaimRequest, companies: &'a [DueCompany]) -> Self {
        let lanes = companies.iter().map(|company| (company.id.as_str(), &company.lanes[..])).collect();
        Self { request, lanes, taken: Vec::new(), size_bytes: 0, expired: 0 }
    }

    fn free_slots(&self) -> u32 {
        self.request.limit.saturating_sub(u32::try_from(self.taken.len()).unwrap_or(u32::MAX))
    }

    fn is_full(&self) -> bool {
        self.free_slots() == 0
            || self.size_bytes >= self.request.size_bytes_max
            || self.expired >= EXPIRED_MAX
    }

    /// Takes up to each company's share, its first priority first. Those whose time is over are ended and do not count.
    /// Returns how many each was given.
    async fn hand_out(
        &mut self,
        lane: &mut Lane,
        candidates: &[Candidate],
        shares: &[u32],
    ) -> Result<Vec<u32>, Fault> {
        let mut given = vec![0; candidates.len()];
        let mut extra = 0;
        loop {
            let wanting = (0..candidates.len()).filter(|&number| given[number] < shares[number]);
            let parts: Vec<Part<'_>> = wanting
                .flat_map(|number| {
                    let company = candidates[number].company.as_str();
                    let limit = shares[number] - given[number] + extra;
                    let lanes = self.lanes.get(company).copied().unwrap_or_default();
                    let part = move |lane: &'a DueLane| Part {
                        route: &lane.route,
                        company,
                        priority: lane.priority,
                        limit,
                    };
                    lanes.iter().map(part)
                })
                .collect();
            let due = take(&mut lane.connection, &parts, self.request.now).await?;
            let (expired, is_more) = self.choose(candidates, shares, &mut given, &parts, due);
            self.keep(lane, &expired).await?;
            if expired.is_empty() || !is_more || self.is_full() {
                return Ok(given);
            }
            extra = EXPIRED_STEP;
        }
    }

    /// Chooses from what is due, company by company and priority by priority; within a priority what has been due longest
    /// goes first, by whatever route. Gives back those whose time is over, and whether looking again could bring more.
    fn choose(
        &mut self,
        candidates: &[Candidate],
        shares: &[u32],
        given: &mut [u32],
        parts: &[Part<'_>],
        due: Vec<Due>,
    ) -> (Vec<EmailId>, bool) {
        let mut by_priority: HashMap<(String, u8), Vec<Due>> = HashMap::new();
        for due in due {
            by_priority.entry((due.company.clone(), due.priority)).or_default().push(due);
        }
        let numbers: HashMap<&str, usize> = candidates
            .iter()
            .enumerate()
            .map(|(number, candidate)| (candidate.company.as_str(), number))
            .collect();
        let mut expired = Vec::new();
        let mut unread: Vec<&str> = Vec::new();
        let are_one = |a: &Part<'_>, b: &Part<'_>| (a.company, a.priority) == (b.company, b.priority);
        for routes in parts.chunk_by(are_one) {
            let Part { company, priority, .. } = routes[0];
            let number = numbers[company];
            // What is more urgent may not have been read to its end: the rest of the company waits for the next look.
            if unread.contains(&company) {
                continue;
            }
            let found = by_priority.remove(&(company.to_owned(), priority)).unwrap_or_default();
            let count = |route: &str| found.iter().filter(|due| due.route == route).count();
            let was_read_to_its_end = routes.iter().all(|part| count(part.route) < part.limit as usize);
            for due in found {
                if given[number] == shares[number] || self.is_full() {
                    break;
                }
                if due.expires_at <= self.request.now {
                    self.expired += 1;
                    expired.push(due.id);
                } else {
                    self.size_bytes += due.size_bytes;
                    self.taken.push(due.id);
                    given[number] += 1;
                }
            }
            if given[number] < shares[number] && !was_read_to_its_end {
                unread.push(company);
            }
        }
        (expired, !unread.is_empty())
    }

    /// Takes out of the queue what was chosen, so that the next look does not find it again.
    async fn keep(&self, lane: &mut Lane, expired: &[EmailId]) -> Result<(), Fault> {
        let now = self.request.now;
        let held_by_nobody: Vec<(EmailId, Timestamp)> = expired.iter().map(|&id| (id, now)).collect();
        outbox::expire_emails(lane, &held_by_nobody, now).await?;
        if self.taken.is_empty() {
            return Ok(());
        }
        let mut sql = QueryBuilder::<MySql>::new("UPDATE email_queue SET due_at = NULL, lease_until = ");
        sql.push_bind(self.request.lease_until.millis());
        sql.push(", lease_owner = ").push_bind(self.request.owner.to_string()).push(" WHERE email_id IN ");
        push_list(&mut sql, ids(&self.taken));
        sql.build().execute(&mut lane.connection).await?;
        Ok(())
    }
}

/// Locks what is due and not locked by others.
async fn take(
    connection: &mut MySqlConnection,
    parts: &[Part<'_>],
    now: Timestamp,
) -> Result<Vec<Due>, Fault> {
    let mut due = Vec::new();
    for parts in parts.chunks(PARTS_MAX) {
        let mut sql = QueryBuilder::<MySql>::new("");
        // Of companies that nobody has, to come to a power of two.
        let nothing = Part { route: "", company: "", priority: 0, limit: 0 };
        let missing = parts.len().next_power_of_two() - parts.len();
        for (number, part) in parts.iter().chain(std::iter::repeat_n(&nothing, missing)).enumerate() {
            sql.push(if number == 0 { "(" } else { " UNION ALL (" });
            sql.push(
                "SELECT email_id, route, company_id, priority, due_at, expires_at, size_bytes
                 FROM email_queue FORCE INDEX (queue_waiting) WHERE route = ",
            );
            sql.push_bind(part.route).push(" AND company_id = ").push_bind(part.company);
            sql.push(" AND priority = ").push_bind(part.priority);
            sql.push(" AND due_at <= ").push_bind(now.millis());
            sql.push(" ORDER BY due_at, email_id LIMIT ")
                .push_bind(part.limit)
                .push(" FOR UPDATE SKIP LOCKED)");
        }
        for row in sql.build().fetch_all(&mut *connection).await? {
            due.push(Due {
                id: parsed(&row, "email_id")?,
                route: get(&row, "route")?,
                company: get(&row, "company_id")?,
                priority: get(&row, "priority")?,
                due_at: Timestamp::from_millis(get(&row, "due_at")?),
                expires_at: Timestamp::from_millis(get(&row, "expires_at")?),
                size_bytes: get(&row, "size_bytes")?,
            });
        }
    }
    due.sort_by_key(|due| (due.due_at, due.id));
    Ok(due)
}

/// Writes the claims of what was taken, in its order. Content that cannot be read is as good as none: the validation
/// says so and the email fails alone.
async fn lease(lane: &mut Lane, taken: &[EmailId], request: &ClaimRequest) -> Result<Vec<Claim>, Fault> {
    if taken.is_empty() {
        return Ok(Vec::new());
    }
    let mut records = read_waiting(&mut lane.connection, taken, request).await?;
    let strays: Vec<EmailId> = taken.iter().filter(|id| !records.contains_key(id)).copied().collect();
    outbox::leave_queue(&mut lane.connection, &strays).await?;
    let mut claims = Vec::with_capacity(records.len());
    let mut events = Vec::with_capacity(records.len());
    for id in taken {
        let Some((mut record, block)) = records.remove(id) else { continue };
        let to = moved(record.status, Move::Claim)?;
        lane.counts.moved(record.status, to);
        record.status = to;
        record.version += 1;
        record.fence += 1;
        record.attempts += 1;
        record.unfinished_starts = (record.unfinished_starts + 1).min(HANDED_OUT);
        record.at_provider = false;
        let content = block.and_then(|block| content_codec::decode(&block).ok());
        let claim = Claim { content, ..record.claim(request.now)? };
        events.push((*id, Event::new(EventKind::Received, request.now).with("attempt", claim.attempt)));
        claims.push(claim);
    }
    mark_claimed(&mut lane.connection, &claims, request.now).await?;
    row::add_events(&mut lane.connection, events.iter().map(|(id, event)| (*id, event))).await?;
    Ok(claims)
}

/// The emails and their contents. Their rows in the queue are locked, so nobody changes them meanwhile. One that does not
/// wait was changed by hand: it has no business in the queue.
async fn read_waiting(
    connection: &mut MySqlConnection,
    taken: &[EmailId],
    request: &ClaimRequest,
) -> Result<HashMap<EmailId, (Record, Option<Vec<u8>>)>, Fault> {
    let mut sql =
        QueryBuilder::<MySql>::new(format!("SELECT {}, CAST(NULL AS SIGNED) AS due_at, CAST(", row::COLUMNS));
    sql.push_bind(request.lease_until.millis());
    sql.push(
        " AS SIGNED) AS lease_until, c.body
         FROM email_outbox o FORCE INDEX (PRIMARY) LEFT JOIN contents c ON c.email_id = o.id WHERE o.id IN ",
    );
    push_list(&mut sql, ids(taken));
    let mut records = HashMap::with_capacity(taken.len());
    for row in sql.build().fetch_all(connection).await? {
        let record = row::record(&row)?;
        if record.status.is_waiting() {
            records.insert(record.id, (record, get(&row, "body")?));
        }
    }
    Ok(records)
}

async fn mark_claimed(
    connection: &mut MySqlConnection,
    claims: &[Claim],
    now: Timestamp,
) -> Result<(), Fault> {
    if claims.is_empty() {
        return Ok(());
    }
    let mut sql = QueryBuilder::<MySql>::new(
        "UPDATE email_outbox SET status = 'PROCESSING', trouble = NULL, version = version + 1, fence = fence + 1,
             attempts = attempts + 1, at_provider = FALSE, unfinished_starts = LEAST(unfinished_starts + 1, ",
    );
    sql.push_bind(HANDED_OUT).push("), updated_at = ").push_bind(row::at(now)).push(" WHERE status IN (");
    sql.push_bind(Status::Enqueued.as_str())
        .push(", ")
        .push_bind(Status::RetryScheduled.as_str())
        .push(") AND id IN ");
    push_list(&mut sql, claims.iter().map(|claim| claim.id().to_string()));
    let marked = sql.build().execute(connection).await?;
    outbox::all_of(claims.len(), marked.rows_affected())
}

#[cfg(test)]
mod tests;
