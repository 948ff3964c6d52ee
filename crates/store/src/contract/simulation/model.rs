//! What a store should hold, kept in memory in the plainest way: one row per email, and for each verb what it
//! does to a row. Legality of a move is asked of `model::Status::after` alone. Where the port leaves a choice to
//! the store, the model takes the store's choice over after checking that it was a legal one.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{
    Claim, Company, CompanyId, Email, EmailId, ErrorCode, Event, EventKind, Guard, Move, NewEmail, OnUnknown,
    Status, Timestamp, Verdict, WorkerId,
};

use super::ledger::Send;
use crate::{Routes, SUSPECT_STARTS};

/// What was expected and what was found, for the person who reads the failing seed.
pub type Checked<T> = Result<T, String>;

/// Fails with that text unless it holds.
pub fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Checked<()> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub owner: WorkerId,
    pub until: Timestamp,
    pub at_provider: bool,
    /// Whether its start counts: that of a suspect does once its work began.
    is_counted: bool,
}

/// How the version may have moved since it was last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Same,
    Newer,
    /// The verb touches the row, but no guard depends on it.
    SameOrNewer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    Never,
    At(Timestamp),
    /// At once: the store may keep an earlier time.
    By(Timestamp),
    /// It does not wait.
    No,
}

/// One email as it should be.
#[derive(Debug, Clone)]
pub struct Row {
    pub company: usize,
    /// The how-manieth email of the run, to name it in a report.
    pub number: usize,
    pub status: Status,
    pub version: u64,
    version_moved: Version,
    pub fence: u64,
    pub attempts: u32,
    pub in_series: u32,
    pub unfinished_starts: u32,
    pub priority: u8,
    pub route: String,
    pub due: Due,
    pub expires_at: Timestamp,
    pub ttl: Duration,
    pub on_unknown: Option<OnUnknown>,
    pub outcome_unknown: bool,
    pub is_dead_letter: bool,
    pub code: Option<String>,
    pub provider: Option<String>,
    /// Under which fence a worker said so, and when.
    sent: Option<(u64, Timestamp)>,
    /// The last that happened to it, if that was the end of an attempt: of which, how and when.
    ended: Option<(Guard, Status, Timestamp)>,
    pub lease: Option<Lease>,
    pub events: Vec<EventKind>,
}

impl Row {
    pub fn new(email: &NewEmail, company: usize, number: usize) -> Self {
        Self {
            company,
            number,
            status: email.status,
            version: 0,
            version_moved: Version::SameOrNewer,
            fence: 0,
            attempts: 0,
            in_series: 0,
            unfinished_starts: 0,
            priority: email.priority,
            route: email.route.clone(),
            due: Due::At(email.due_at),
            expires_at: email.expires_at,
            ttl: email.expires_at.since(email.scheduled_at.unwrap_or(email.created_at)),
            on_unknown: email.wishes.on_unknown,
            outcome_unknown: false,
            is_dead_letter: false,
            code: None,
            provider: None,
            sent: None,
            ended: None,
            lease: None,
            events: vec![EventKind::Enqueued],
        }
    }

    fn step(&mut self, step: Move) -> Checked<()> {
        self.status = self.status.after(step).map_err(|illegal| illegal.to_string())?;
        self.version_moved = Version::Newer;
        self.due = Due::No;
        self.lease = None;
        self.ended = None;
        Ok(())
    }

    pub fn is_held(&self) -> bool {
        self.due == Due::Never
    }

    pub fn is_due(&self, now: Timestamp) -> bool {
        let due = matches!(self.due, Due::At(due_at) | Due::By(due_at) if due_at <= now);
        self.status.is_waiting() && due && !self.is_over(now)
    }

    /// Its time to live is over. The run keeps clear of the very millisecond.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at < now
    }

    /// May the holder of this guard still write?
    pub fn is_guarded_by(&self, guard: Guard) -> bool {
        self.status == Status::Processing && self.fence == guard.fence && self.version == guard.version
    }

    /// The end under which this very report is recorded already.
    pub fn recorded(&self, verdict: &Verdict, guard: Guard, now: Timestamp) -> Option<Status> {
        if matches!(verdict, Verdict::Sent { .. }) {
            return (self.sent == Some((guard.fence, now))).then_some(Status::Sent);
        }
        let to = Status::Processing.after(move_of(verdict)).ok()?;
        (self.ended == Some((guard, to, now))).then_some(to)
    }

    pub fn claim(&mut self, claim: &Claim, owner: WorkerId) -> Checked<()> {
        let (now, guard) = (claim.claimed_at, claim.guard);
        ensure(self.is_due(now), || format!("claimed although not due: {self:?}"))?;
        ensure(guard.fence > self.fence, || format!("fence {} after {}", guard.fence, self.fence))?;
        ensure(guard.version > self.version, || format!("version {} after {}", guard.version, self.version))?;
        self.step(Move::Claim)?;
        self.attempts += 1;
        self.in_series += 1;
        // A sweep that had looked before the work of a suspect began has let it go all the same.
        self.unfinished_starts = self.unfinished_starts.min(SUSPECT_STARTS);
        let found = (claim.attempt, claim.attempt_in_series, claim.unfinished_starts, claim.expires_at);
        let expected = (self.attempts, self.in_series, self.unfinished_starts, self.expires_at);
        ensure(found == expected, || format!("claim has {found:?}, expected {expected:?}"))?;
        let found = (&claim.route, &claim.last_provider, claim.outcome_unknown);
        let expected = (&self.route, &self.provider, self.outcome_unknown);
        ensure(found == expected, || format!("claim has {found:?}, expected {expected:?}"))?;
        let is_counted = self.unfinished_starts < SUSPECT_STARTS;
        self.unfinished_starts += u32::from(is_counted);
        (self.fence, self.version, self.version_moved) = (guard.fence, guard.version, Version::Same);
        self.lease = Some(Lease { owner, until: claim.lease_until, at_provider: false, is_counted });
        self.events.push(EventKind::Received);
        Ok(())
    }

    /// `false` when it may not, or its start counted with the claim.
    pub fn begin_suspect(&mut self, guard: Guard) -> bool {
        let is_guarded = self.is_guarded_by(guard);
        match &mut self.lease {
            Some(lease) if is_guarded && !lease.is_counted => {
                lease.is_counted = true;
                self.unfinished_starts += 1;
                true
            }
            _ => is_guarded && self.unfinished_starts > SUSPECT_STARTS,
        }
    }

    pub fn begin(&mut self, guard: Guard, provider: &str, events: &[Event]) -> Checked<()> {
        ensure(guard.fence == self.fence, || format!("begin changed the fence to {}", guard.fence))?;
        ensure(guard.version > self.version, || format!("version {} after {}", guard.version, self.version))?;
        self.version = guard.version;
        self.provider = Some(provider.to_owned());
        if let Some(lease) = &mut self.lease {
            lease.at_provider = true;
        }
        self.add(events);
        Ok(())
    }

    pub fn settle(
        &mut self,
        verdict: &Verdict,
        guard: Guard,
        by_worker: bool,
        events: &[Event],
        now: Timestamp,
    ) -> Checked<()> {
        match verdict {
            Verdict::Sent { provider, .. } => {
                self.step(Move::Send)?;
                self.provider = Some(provider.clone());
                self.sent = Some((self.fence, now));
            }
            Verdict::Retry { due_at, failure, outcome_unknown } => {
                self.step(Move::Defer)?;
                self.due = Due::At(*due_at);
                self.outcome_unknown |= outcome_unknown;
                self.failed_with(&failure.code);
            }
            Verdict::Hold { failure } => {
                self.step(Move::Defer)?;
                self.due = Due::Never;
                self.outcome_unknown = true;
                self.failed_with(&failure.code);
            }
            Verdict::Fail { failure, outcome_unknown } => {
                self.step(Move::Fail)?;
                self.is_dead_letter = true;
                self.outcome_unknown |= outcome_unknown;
                self.failed_with(&failure.code);
            }
            Verdict::Expire { failure } => {
                self.step(Move::Expire)?;
                if let Some(failure) = failure {
                    self.failed_with(&failure.code);
                }
            }
            Verdict::Release { outcome_unknown } => {
                self.step(Move::Release)?;
                self.due = Due::By(now);
                self.attempts -= 1;
                self.in_series -= 1;
                self.outcome_unknown |= outcome_unknown;
            }
            Verdict::PutBack { due_at, route } => {
                if let Some(route) = route {
                    self.route.clone_from(route);
                }
                self.unfinished_starts -= u32::from(self.lease.is_some_and(|lease| lease.is_counted));
                self.step(Move::Release)?;
                self.due = Due::At(*due_at);
                self.attempts -= 1;
                self.in_series -= 1;
            }
            Verdict::Requeue { due_at } => {
                self.step(Move::Release)?;
                self.due = Due::At(*due_at);
            }
        }
        if by_worker && !matches!(verdict, Verdict::PutBack { .. }) {
            self.unfinished_starts = 0;
        }
        self.ended = Some((guard, self.status, now));
        self.add(events);
        Ok(())
    }

    pub fn expire(&mut self) -> Checked<()> {
        if self.is_held() {
            self.step(Move::Fail)?;
            self.is_dead_letter = true;
            self.failed_with(&ErrorCode::OUTCOME_UNKNOWN);
            self.events.push(EventKind::Failed);
        } else {
            self.step(Move::Expire)?;
            self.events.push(EventKind::Expired);
        }
        Ok(())
    }

    pub fn cancel(&mut self) -> Checked<()> {
        self.step(Move::Cancel)?;
        self.events.push(EventKind::Cancelled);
        Ok(())
    }

    pub fn retry_now(&mut self, now: Timestamp) -> Checked<()> {
        self.step(Move::RetryNow)?;
        self.version_moved = Version::SameOrNewer;
        self.due = Due::By(now);
        self.events.push(EventKind::RetryRequested);
        Ok(())
    }

    pub fn replay(&mut self, now: Timestamp) -> Checked<()> {
        self.step(Move::Replay)?;
        self.due = Due::At(now);
        self.is_dead_letter = false;
        self.in_series = 0;
        self.unfinished_starts = 0;
        self.expires_at = now.plus(self.ttl);
        self.events.push(EventKind::Replayed);
        Ok(())
    }

    pub fn drop_dead_letter(&mut self) {
        self.is_dead_letter = false;
        self.ended = None;
        self.version_moved = Version::SameOrNewer;
        self.events.push(EventKind::DeadLetterDropped);
    }

    fn failed_with(&mut self, code: &ErrorCode) {
        self.code = Some(code.as_str().to_owned());
    }

    fn add(&mut self, events: &[Event]) {
        self.events.extend(events.iter().map(|event| event.kind));
    }

    /// The email as it was read against the row; takes over what the store may decide.
    pub fn compare(&mut self, email: &Email) -> Checked<()> {
        let differs = |what: &str, expected: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
            format!("email #{}: {what} should be {expected:?}, is {found:?}", self.number)
        };
        let version_is_right = match self.version_moved {
            Version::Same => email.version == self.version,
            Version::Newer => email.version > self.version,
            Version::SameOrNewer => email.version >= self.version,
        };
        let due_is_right = match self.due {
            Due::No => email.due_at.is_none(),
            Due::Never => email.due_at == Some(Timestamp::NEVER),
            Due::At(due_at) => email.due_at == Some(due_at),
            Due::By(now) => email.due_at.is_some_and(|due_at| due_at <= now),
        };
        let code = email.last_failure.as_ref().map(|failure| failure.code.clone());
        ensure(email.status == self.status, || differs("status", &self.status, &email.status))?;
        ensure(version_is_right, || differs("version", &(self.version_moved, self.version), &email.version))?;
        ensure(email.fence >= self.fence, || differs("fence", &self.fence, &email.fence))?;
        ensure(self.attempts == 0 || email.fence == self.fence, || {
            differs("fence", &self.fence, &email.fence)
        })?;
        ensure(email.attempts == self.attempts, || differs("attempts", &self.attempts, &email.attempts))?;
        ensure(due_is_right, || differs("due", &self.due, &email.due_at))?;
        ensure(email.expires_at == self.expires_at, || differs("end", &self.expires_at, &email.expires_at))?;
        ensure(email.outcome_unknown == self.outcome_unknown, || {
            differs("outcome_unknown", &self.outcome_unknown, &email.outcome_unknown)
        })?;
        ensure(email.dead_at.is_some() == self.is_dead_letter, || {
            differs("dead letter", &self.is_dead_letter, &email.dead_at)
        })?;
        ensure(code == self.code, || differs("code", &self.code, &code))?;
        ensure(email.provider == self.provider, || differs("provider", &self.provider, &email.provider))?;
        let sent = self.status == Status::Sent;
        ensure(email.sent_at.is_some() == sent, || differs("sent", &sent, &email.sent_at))?;
        self.version = email.version;
        self.version_moved = Version::Same;
        if let (Due::By(_), Some(due_at)) = (self.due, email.due_at) {
            self.due = Due::At(due_at);
        }
        Ok(())
    }

    pub fn compare_history(&self, events: &[Event]) -> Checked<()> {
        let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
        let (number, expected) = (self.number, &self.events);
        ensure(kinds == *expected, || {
            format!("email #{number}: history should be {expected:?}, is {kinds:?}")
        })
    }
}

fn move_of(verdict: &Verdict) -> Move {
    match verdict {
        Verdict::Sent { .. } => Move::Send,
        Verdict::Retry { .. } | Verdict::Hold { .. } => Move::Defer,
        Verdict::Fail { .. } => Move::Fail,
        Verdict::Expire { .. } => Move::Expire,
        Verdict::Release { .. } | Verdict::PutBack { .. } | Verdict::Requeue { .. } => Move::Release,
    }
}

#[derive(Debug, Clone)]
pub struct Key {
    pub body: u8,
    pub answer: String,
    pub keep_until: Timestamp,
}

/// Everything the store should hold, and what the provider saw.
#[derive(Debug, Default)]
pub struct Model {
    pub companies: Vec<Company>,
    pub rows: BTreeMap<EmailId, Row>,
    pub keys: BTreeMap<(usize, String), Key>,
    /// When an email of which company was started.
    starts: Vec<(Timestamp, usize)>,
    pub ledger: Vec<Send>,
}

impl Model {
    pub fn row(&mut self, id: EmailId) -> Checked<&mut Row> {
        self.rows.get_mut(&id).ok_or_else(|| format!("the store names {id}, which nobody handed in"))
    }

    pub fn company_of(&mut self, id: EmailId) -> Checked<CompanyId> {
        let company = self.row(id)?.company;
        Ok(self.companies[company].id)
    }

    /// How many emails are in each status.
    pub fn counts(&self) -> BTreeMap<Status, u64> {
        let mut counts = BTreeMap::new();
        for row in self.rows.values() {
            *counts.entry(row.status).or_insert(0) += 1;
        }
        counts
    }

    pub fn in_flight(&self, company: usize) -> usize {
        let flies = |row: &&Row| row.company == company && row.status == Status::Processing;
        self.rows.values().filter(flies).count()
    }

    /// A claim's choice: due emails of companies that are switched on, the most urgent first, within their limits,
    /// and nothing left behind that could have been taken. Expired ones that it met are in the rows already.
    pub fn claim(
        &mut self,
        claims: &[Claim],
        owner: WorkerId,
        routes: &Routes,
        now: Timestamp,
    ) -> Checked<()> {
        for claim in claims {
            ensure(routes.allow(&claim.route), || format!("{} was not asked for", claim.route))?;
            let row = self.row(claim.id())?;
            row.claim(claim, owner).map_err(|why| format!("email #{}: {why}", row.number))?;
            let company = row.company;
            let settings = &self.companies[company];
            ensure(claim.company == settings.id, || format!("claim of the wrong company: {claim:?}"))?;
            ensure(settings.disabled_at.is_none(), || format!("{} is switched off", settings.name))?;
            self.starts.push((now, company));
        }
        for (index, company) in self.companies.iter().enumerate() {
            if let Some(limit) = company.settings.concurrency_max {
                let flying = self.in_flight(index);
                ensure(flying <= limit as usize, || format!("{} has {flying} in flight", company.name))?;
            }
            if let Some(rate) = company.settings.rate_per_sec {
                let within = |start: &&(Timestamp, usize)| {
                    start.1 == index && start.0.plus(Duration::from_secs(1)) > now
                };
                let started = self.starts.iter().filter(within).count();
                ensure(started <= rate as usize, || {
                    format!("{} started {started} in a second", company.name)
                })?;
            }
            self.check_urgency(index, claims, routes, now)?;
        }
        Ok(())
    }

    fn check_urgency(
        &self,
        company: usize,
        claims: &[Claim],
        routes: &Routes,
        now: Timestamp,
    ) -> Checked<()> {
        let claimed = claims.iter().filter_map(|claim| self.rows.get(&claim.id()));
        let last = claimed.filter(|row| row.company == company).map(|row| row.priority).max();
        let is_left = |row: &&Row| row.company == company && routes.allow(&row.route) && row.is_due(now);
        let left = self.rows.values().filter(is_left);
        let first_left = left.map(|row| row.priority).min();
        let holds = last.is_none() || first_left.is_none() || last <= first_left;
        ensure(holds, || format!("priority {last:?} was claimed before {first_left:?}"))
    }

    /// A due email that a claim with room left should have taken: of a company that is on, below its concurrency
    /// and without a rate.
    pub fn overlooked(&self, routes: &Routes, now: Timestamp) -> Option<&Row> {
        self.rows.values().find(|row| {
            let company = &self.companies[row.company];
            let limit = company.settings.concurrency_max;
            let has_room = limit.is_none_or(|limit| self.in_flight(row.company) < limit as usize);
            let is_free = company.disabled_at.is_none() && company.settings.rate_per_sec.is_none();
            row.is_due(now) && routes.allow(&row.route) && has_room && is_free
        })
    }
}
