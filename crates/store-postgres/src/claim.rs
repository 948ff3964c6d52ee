//! Leasing due emails to a worker, fairly and at a cost that does not grow with what is waiting: routes,
//! companies and priorities with waiting emails are found by hopping through one index, never by walking along it.
//!
//! In the common case this is three statements: find the companies, take their emails, read the contents. Companies
//! with limits of their own are locked meanwhile, so that the limits hold across processes. The statements are in
//! `take`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use model::{Claim, EmailId, Event, EventKind, Timestamp, Verdict};
use sqlx::{PgConnection, Row as _};
use store::fairness::{Candidate, Fairness, still_hungry};
use store::starts::{SECOND, Starts};
use store::task::{Unwanted, handed_over};
use store::{ClaimRequest, SettledBy, Settlement, StoreError, content_codec};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::error::Fault;
use crate::lane::{CLAIM, Lane, Lanes};
use crate::take::{Asked, Found, Place, find, take};
use crate::tidy::Tidy;
use crate::{PostgresStore, settle};

/// How many companies with due emails one claim divides its slots among: enough to be fair among all that are
/// active at most times; with more of them, the next claim goes on where this one stopped.
const CANDIDATES_MIN: u32 = 32;
const CANDIDATES_MAX: u32 = 256;
/// How many times it goes on looking because those it found were all at their limits.
const PAGES_MAX: u32 = 100;
/// Rounds of handing out: slots that a company could not fill go to the others.
const ROUNDS_MAX: u32 = 4;
/// Emails past their time that one claim ends on its way. A backlog that has expired as a whole is the sweep's
/// work; others wait for this claim.
const EXPIRED_MAX: u32 = 1_000;
/// How long emails wait whose content could not be read just now.
const CONTENT_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Claimer {
    lanes: Lanes,
    fairness: Arc<Mutex<Fairness>>,
    tidy: Tidy,
}

impl PostgresStore {
    pub(crate) async fn claim_due(&self, request: ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        let claimer = Claimer {
            lanes: self.lanes.clone().within(CLAIM),
            fairness: Arc::clone(&self.fairness),
            tidy: self.tidy.clone(),
        };
        let (other, now) = (claimer.clone(), request.now);
        // A caller may go: without this its emails would wait until their leases run out.
        let put_back: Unwanted<Vec<Claim>> = Box::new(move |claims| {
            Box::pin(async move {
                other.put_back(&claims, now, Duration::ZERO, "nobody waited for the claim").await;
            })
        });
        handed_over(Box::pin(async move { claimer.claim(&request).await }), put_back).await
    }
}

impl Claimer {
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>, StoreError> {
        let claims = {
            let mut fairness = self.fairness.lock().await;
            let turn =
                Turn { request: request.clone(), fairness: Mutex::new(std::mem::take(&mut *fairness)) };
            let claims = self.lanes.run(&turn, |lane, turn| Box::pin(claim_batch(lane, turn))).await;
            *fairness = turn.fairness.into_inner();
            if claims.is_ok() {
                fairness.keep();
            } else {
                fairness.undo();
            }
            claims?
        };
        if claims.is_empty() {
            return Ok(claims);
        }
        self.tidy.claimed(claims.len());
        match contents(&self.lanes, &claims).await {
            Ok(mut contents) => {
                // Content that cannot be read is as good as none: the validation says so and the email fails alone.
                let content_of = |id: EmailId, contents: &mut HashMap<Uuid, Vec<u8>>| {
                    contents.remove(&id.uuid()).and_then(|block| content_codec::decode(&block).ok())
                };
                Ok(claims
                    .into_iter()
                    .map(|claim| Claim { content: content_of(claim.id(), &mut contents), ..claim })
                    .collect())
            }
            Err(error) => {
                // Nobody holds these leases: without this they would wait until they run out, and be blamed for it.
                self.put_back(&claims, request.now, CONTENT_PAUSE, "content could not be read").await;
                Err(error)
            }
        }
    }

    /// As if they had never been claimed. If this fails too, their leases run out.
    async fn put_back(&self, claims: &[Claim], now: Timestamp, pause: Duration, reason: &str) {
        if claims.is_empty() {
            return;
        }
        let settlement = |claim: &Claim| Settlement {
            guard: claim.guard,
            by: SettledBy::Worker,
            verdict: Verdict::PutBack { due_at: now.plus(pause), route: None },
            events: vec![Event::new(EventKind::Released, now).with("reason", reason)],
            now,
        };
        let settlements: Vec<Settlement> = claims.iter().map(settlement).collect();
        let put_back =
            self.lanes.answer(settlements, |lane, settlements| Box::pin(settle::settle(lane, settlements)));
        if let Some(Err(error)) = put_back.await.into_iter().find(Result::is_err) {
            tracing::warn!(%error, emails = claims.len(), "claimed emails could not be put back; their leases run out");
        }
    }
}

/// One claim's turn. The lane may do it again after a collision, hence the lock.
struct Turn {
    request: ClaimRequest,
    fairness: Mutex<Fairness>,
}

async fn claim_batch(lane: &mut Lane, turn: &Turn) -> Result<Vec<Claim>, Fault> {
    let mut fairness = turn.fairness.lock().await;
    // Of a try that collided nothing was given.
    fairness.undo();
    fairness.begin();
    let request = &turn.request;
    let (mut candidates, is_locked) = find_candidates(&mut lane.connection, &mut fairness, request).await?;
    let mut batch = Batch { request, claims: Vec::new(), size_bytes: 0, expired: 0 };
    for _ in 0..ROUNDS_MAX {
        if candidates.is_empty() || batch.is_full() {
            break;
        }
        let shares = fairness.share(&candidates, batch.free_slots());
        let given = match batch.claim_of_companies(lane, &candidates, &shares).await {
            // Without a lock each round is committed by itself: what it brought must not be forgotten.
            Err(_) if !is_locked && !batch.claims.is_empty() => {
                lane.is_doubtful = true;
                break;
            }
            given => given?,
        };
        fairness.given(&candidates, &given);
        candidates = still_hungry(candidates, &shares, &given);
    }
    if is_locked {
        note_starts(&mut lane.connection, &batch).await?;
        sqlx::query("COMMIT").execute(&mut lane.connection).await?;
    }
    Ok(batch.claims)
}

/// What one claim has gathered so far.
struct Batch<'a> {
    request: &'a ClaimRequest,
    claims: Vec<Claim>,
    size_bytes: u64,
    expired: u32,
}

impl Batch<'_> {
    fn free_slots(&self) -> u32 {
        self.request.limit.saturating_sub(u32::try_from(self.claims.len()).unwrap_or(u32::MAX))
    }

    fn is_full(&self) -> bool {
        self.free_slots() == 0
            || self.size_bytes >= self.request.size_bytes_max
            || self.expired >= EXPIRED_MAX
    }

    /// Claims up to its share of each company's emails, its first priority first; those whose time is over are ended
    /// and do not count. Returns how many of each.
    async fn claim_of_companies(
        &mut self,
        lane: &mut Lane,
        candidates: &[Candidate],
        shares: &[u32],
    ) -> Result<Vec<u32>, Fault> {
        let mut given = vec![0; candidates.len()];
        let mut asked: Vec<Asked<'_>> = Vec::new();
        for (place, (candidate, &share)) in candidates.iter().zip(shares).enumerate() {
            if share > 0 {
                let (company, routes) = (company_of(candidate)?, &candidate.routes[..]);
                asked.push(Asked { place, company, routes, share, looks: share });
            }
        }
        while !asked.is_empty() && !self.is_full() {
            let taken = take(lane, self.request, &asked, self.size_bytes).await?;
            let mut again = Vec::new();
            for (asked, taken) in asked.into_iter().zip(taken) {
                let count = u32::try_from(taken.claims.len()).unwrap_or(u32::MAX);
                given[asked.place] += count;
                self.expired += taken.expired;
                self.size_bytes += taken.size_bytes;
                self.claims.extend(taken.claims);
                // Where some had expired there may be others behind them.
                if taken.expired > 0 && taken.looked_at == asked.looks && count < asked.share {
                    again.push(Asked { share: asked.share - count, ..asked });
                }
            }
            asked = self.look_further(again);
        }
        Ok(given)
    }

    /// Looks at many more at a time, as long as that does not end too many.
    fn look_further<'a>(&self, asked: Vec<Asked<'a>>) -> Vec<Asked<'a>> {
        let companies = u32::try_from(asked.len()).unwrap_or(u32::MAX).max(1);
        let most = EXPIRED_MAX.saturating_sub(self.expired) / companies;
        let further =
            |asked: Asked<'a>| Asked { looks: asked.looks.saturating_mul(8).min(most).max(1), ..asked };
        asked.into_iter().map(further).collect()
    }

    fn started_by_company(&self) -> BTreeMap<Uuid, u32> {
        let mut counts = BTreeMap::new();
        for claim in &self.claims {
            *counts.entry(claim.company.uuid()).or_insert(0) += 1;
        }
        counts
    }
}

fn company_of(candidate: &Candidate) -> Result<Uuid, StoreError> {
    candidate.company.parse().map_err(|_| StoreError::Broken("a company's id cannot be read".into()))
}

/// Companies with due emails and room for more, beginning after the place where the last claim stopped. `true` when some
/// of them have limits and are locked: then a transaction is open.
async fn find_candidates(
    connection: &mut PgConnection,
    fairness: &mut Fairness,
    request: &ClaimRequest,
) -> Result<(Vec<Candidate>, bool), Fault> {
    let wanted = request.limit.saturating_mul(4).clamp(CANDIDATES_MIN, CANDIDATES_MAX);
    let mut seen: HashSet<Place> = HashSet::new();
    // Those without room: another route gives them none.
    let mut at_their_limits: HashSet<Uuid> = HashSet::new();
    let mut is_locked = false;
    for _ in 0..PAGES_MAX {
        let after = (fairness.cursor.0.clone(), fairness.cursor.1.parse().unwrap_or(Uuid::nil()));
        let page = find(connection, &after, wanted, request).await?;
        let Some((route, company)) = page.last else { break };
        fairness.cursor = (route, company.to_string());
        let seen_before = seen.len();
        seen.extend(page.found.iter().map(|found| (found.route.clone(), found.id)));
        let is_round_over = page.is_whole_round || seen.len() == seen_before;
        let mut companies = by_company(page.found);
        companies.retain(|company| !at_their_limits.contains(&company.id));
        let limited: Vec<Uuid> =
            companies.iter().filter(|company| company.is_limited).map(|company| company.id).collect();
        let rooms = if limited.is_empty() {
            HashMap::new()
        } else {
            if !is_locked {
                sqlx::query("BEGIN").execute(&mut *connection).await?;
                is_locked = true;
            }
            rooms(connection, &limited, request).await?
        };
        let room_of = |id: Uuid, is_limited: bool| {
            if is_limited { rooms.get(&id).copied().unwrap_or(0) } else { request.limit }
        };
        at_their_limits.extend(limited);
        let candidates: Vec<Candidate> = companies
            .into_iter()
            .map(|company| Candidate {
                company: company.id.to_string(),
                routes: company.routes,
                weight: company.weight,
                room: room_of(company.id, company.is_limited),
            })
            .filter(|candidate| candidate.room > 0)
            .collect();
        if !candidates.is_empty() || is_round_over {
            return Ok((candidates, is_locked));
        }
    }
    Ok((Vec::new(), is_locked))
}

/// A company with the routes of its due emails.
struct Waiting {
    id: Uuid,
    routes: Vec<String>,
    weight: u32,
    is_limited: bool,
}

/// Each company once, in the order in which they were found.
fn by_company(found: Vec<Found>) -> Vec<Waiting> {
    let mut places: HashMap<Uuid, usize> = HashMap::new();
    let mut companies: Vec<Waiting> = Vec::new();
    for Found { route, id, weight, is_limited } in found {
        let place = *places.entry(id).or_insert(companies.len());
        match companies.get_mut(place) {
            Some(company) => company.routes.push(route),
            None => companies.push(Waiting { id, routes: vec![route], weight, is_limited }),
        }
    }
    companies
}

/// How many more each company with limits may be given. They are locked until the commit, in one order by everybody; what
/// others have given them before is seen by the second statement.
async fn rooms(
    connection: &mut PgConnection,
    companies: &[Uuid],
    request: &ClaimRequest,
) -> Result<HashMap<Uuid, u32>, Fault> {
    let limits = sqlx::query(
        "SELECT id, concurrency_max, rate_per_sec FROM companies WHERE id = ANY($1)
           AND disabled_at IS NULL AND paused_at IS NULL
         ORDER BY id FOR NO KEY UPDATE",
    )
    .bind(companies)
    .fetch_all(&mut *connection)
    .await?;
    let used = sqlx::query(
        "SELECT named.id, (SELECT count(*) FROM email_queue q WHERE q.company_id = named.id AND q.due_at IS NULL),
                (SELECT starts FROM company_rates r WHERE r.company_id = named.id)
         FROM UNNEST($1::uuid[]) AS named (id)",
    )
    .bind(companies)
    .fetch_all(connection)
    .await?;
    let mut used_by: HashMap<Uuid, (i64, u32)> = HashMap::new();
    for row in &used {
        let starts: Option<String> = row.try_get(2)?;
        let started = Starts::recent(&starts.unwrap_or_default(), request.now, SECOND).count();
        used_by.insert(row.try_get(0)?, (row.try_get(1)?, started));
    }
    let mut rooms = HashMap::new();
    for row in &limits {
        let (id, concurrency_max, rate): (Uuid, Option<i64>, Option<i64>) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let (in_flight, started) = used_by.get(&id).copied().unwrap_or_default();
        let by_concurrency = concurrency_max.map_or(i64::MAX, |most| most - in_flight);
        let by_rate = rate.map_or(i64::MAX, |rate| rate - i64::from(started));
        let room = by_concurrency.min(by_rate).clamp(0, i64::from(request.limit));
        rooms.insert(id, u32::try_from(room).unwrap_or(0));
    }
    Ok(rooms)
}

/// Remembers starts of the companies that have a rate limit; these are locked.
async fn note_starts(connection: &mut PgConnection, batch: &Batch<'_>) -> Result<(), Fault> {
    let started = batch.started_by_company();
    if started.is_empty() {
        return Ok(());
    }
    let rows = sqlx::query(
        "SELECT c.id, r.starts FROM companies c LEFT JOIN company_rates r ON r.company_id = c.id
         WHERE c.id = ANY($1) AND c.rate_per_sec IS NOT NULL ORDER BY c.id",
    )
    .bind(started.keys().copied().collect::<Vec<_>>())
    .fetch_all(&mut *connection)
    .await?;
    let (mut companies, mut texts) = (Vec::new(), Vec::new());
    for row in &rows {
        let (company, text): (Uuid, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
        let mut starts = Starts::recent(&text.unwrap_or_default(), batch.request.now, SECOND);
        starts.add(batch.request.now, started.get(&company).copied().unwrap_or(0));
        companies.push(company);
        texts.push(starts.encode());
    }
    if companies.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "INSERT INTO company_rates (company_id, starts) SELECT * FROM UNNEST($1::uuid[], $2::text[])
         ON CONFLICT (company_id) DO UPDATE SET starts = excluded.starts",
    )
    .bind(companies)
    .bind(texts)
    .execute(connection)
    .await?;
    Ok(())
}

/// The contents of the claimed. One that is damaged in the database must not keep the others from being sent.
async fn contents(lanes: &Lanes, claims: &[Claim]) -> Result<HashMap<Uuid, Vec<u8>>, StoreError> {
    let ids: Vec<Uuid> = claims.iter().map(|claim| claim.id().uuid()).collect();
    match read_contents(lanes, &ids).await {
        Err(error) if !error.is_temporary() => {
            let mut contents = HashMap::new();
            for id in ids {
                match read_contents(lanes, &[id]).await {
                    Ok(content) => contents.extend(content),
                    Err(error) if error.is_temporary() => return Err(error),
                    Err(error) => {
                        tracing::error!(%error, outboxId = %id, "the content of an email is damaged")
                    }
                }
            }
            Ok(contents)
        }
        contents => contents,
    }
}

async fn read_contents(lanes: &Lanes, ids: &[Uuid]) -> Result<HashMap<Uuid, Vec<u8>>, StoreError> {
    lanes.run(ids, |lane, ids| Box::pin(blocks(lane.only_reads(), ids))).await
}

async fn blocks(connection: &mut PgConnection, ids: &[Uuid]) -> Result<HashMap<Uuid, Vec<u8>>, Fault> {
    let rows = sqlx::query("SELECT email_id, body FROM contents WHERE email_id = ANY($1)")
        .bind(ids)
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}
