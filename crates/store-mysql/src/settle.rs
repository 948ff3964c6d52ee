//! From the start of an attempt to its recorded end: concurrent ones are written together, each guarded by status, fence
//! and version.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use model::attempt::LostLease;
use model::{EmailId, Event, Guard, Status, Timestamp, WorkerId};
use serde_json::{Value, json};
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::change::{Change, late_result};
use store::group::{Group, GroupSize};
use store::{AttemptStart, Begun, Settled, SettledBy, Settlement, StoreError};

use crate::error::Fault;
use crate::lane::{Lane, Lanes};
use crate::row::{self, at, get, ids, optional_millis, parsed, push_list};
use crate::{MysqlStore, outbox};

/// Two each, so that one group is sent while another waits for the disk. As many wait as workers can have in hand.
const SIZE: GroupSize = GroupSize { lanes: 2, group_max: 256, waiting_max: 16_384 };

pub fn group_of_begins(lanes: Lanes) -> Group<AttemptStart, Begun> {
    let lanes = Arc::new(lanes);
    Group::start(SIZE, move |starts| {
        let lanes = Arc::clone(&lanes);
        Box::pin(async move { lanes.answer(starts, |lane, starts| Box::pin(begin(lane, starts))).await })
    })
}

pub fn group_of_settlements(lanes: Lanes) -> Group<Settlement, Settled> {
    let lanes = Arc::new(lanes);
    Group::start(SIZE, move |settlements| {
        let lanes = Arc::clone(&lanes);
        Box::pin(async move {
            lanes.answer(settlements, |lane, settlements| Box::pin(settle(lane, settlements))).await
        })
    })
}

/// The ids, each once and in order.
fn in_order(guards: impl Iterator<Item = Guard>) -> Vec<EmailId> {
    guards.map(|guard| guard.id).collect::<BTreeSet<_>>().into_iter().collect()
}

/// One statement for any number of rows: they come as one JSON text, so that the statement is prepared once.
const BEGIN: &str = "UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
         id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin PATH '$.id', provider TEXT PATH '$.provider',
         now DATETIME(3) PATH '$.now')) v
     STRAIGHT_JOIN email_outbox o ON o.id = v.id
     SET o.at_provider = TRUE, o.provider = v.provider, o.version = o.version + 1, o.updated_at = v.now";

async fn begin(lane: &mut Lane, starts: &[AttemptStart]) -> Result<Vec<Result<Begun, StoreError>>, Fault> {
    let connection = &mut lane.connection;
    let mut mayed = ready_to_begin(connection, &in_order(starts.iter().map(|start| start.guard))).await?;
    let mut answers = Vec::with_capacity(starts.len());
    let (mut rows, mut events) = (Vec::new(), Vec::new());
    for start in starts {
        let Guard { id, fence, version } = start.guard;
        // The first of several that begin the same attempt takes it.
        if mayed.get(&id) == Some(&(fence, version)) {
            mayed.remove(&id);
            rows.push(json!({ "id": id.to_string(), "provider": start.provider, "now": text_of(start.now) }));
            events.extend(start.events.iter().map(|event| (id, event)));
            answers.push(Ok(Begun::Yes(Guard { version: version + 1, ..start.guard })));
        } else {
            answers.push(Ok(Begun::Lost));
        }
    }
    if !rows.is_empty() {
        let count = rows.len();
        let begun = sqlx::query(BEGIN).bind(Value::from(rows).to_string()).execute(&mut *connection).await?;
        outbox::all_of(count, begun.rows_affected())?;
        row::add_events(connection, events).await?;
    }
    Ok(answers)
}

/// Fence and version of those that are claimed and not begun; their rows are locked.
async fn ready_to_begin(
    connection: &mut MySqlConnection,
    emails: &[EmailId],
) -> Result<HashMap<EmailId, (u64, u64)>, Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT id, status, fence, version, at_provider FROM email_outbox FORCE INDEX (PRIMARY) WHERE id IN ",
    );
    push_list(&mut sql, ids(emails));
    sql.push(" ORDER BY id FOR UPDATE");
    let mut ready = HashMap::new();
    for row in sql.build().persistent(emails.len() == 1).fetch_all(connection).await? {
        if row::status(&row)? == Status::Processing && !get::<bool>(&row, "at_provider")? {
            ready.insert(parsed(&row, "id")?, (get(&row, "fence")?, get(&row, "version")?));
        }
    }
    Ok(ready)
}

/// What a settlement has to know of a leased email.
struct Leased {
    status: Status,
    fence: u64,
    version: u64,
    attempts: u32,
    unfinished_starts: u32,
    lease_until: Option<Timestamp>,
}

impl Leased {
    /// Is it still as the worker, or the sweep, knew it?
    fn is_guarded_by(&self, guard: Guard, change: &Change<'_>) -> bool {
        self.status == Status::Processing
            && (self.fence, self.version) == (guard.fence, guard.version)
            && change.lease_seen.is_none_or(|seen| self.lease_until == Some(seen))
    }
}

/// What a group of settlements changes.
#[derive(Default)]
struct Changes {
    outbox: Vec<Value>,
    /// Back into the queue.
    waiting: Vec<Value>,
    ended: Vec<EmailId>,
    events: Vec<(EmailId, Event)>,
    /// Reports that came too late, by the number of their event.
    late: Vec<(EmailId, usize)>,
}

async fn settle(
    lane: &mut Lane,
    settlements: &[Settlement],
) -> Result<Vec<Result<Settled, StoreError>>, Fault> {
    let emails = in_order(settlements.iter().map(|settlement| settlement.guard));
    let mut leased = lock_leased(&mut lane.connection, &emails).await?;
    let mut changes = Changes::default();
    let mut answers = Vec::with_capacity(settlements.len());
    for settlement in settlements {
        answers.push(Change::of(settlement).map(|change| {
            let guard = settlement.guard;
            match leased.get_mut(&guard.id).filter(|leased| leased.is_guarded_by(guard, &change)) {
                Some(leased) => {
                    lane.counts.moved(Status::Processing, change.to);
                    lane.counts.dead_letters(i64::from(change.dead_at.is_some()));
                    changes.apply(settlement, &change, leased);
                    // A second settlement of this group finds it settled.
                    leased.status = change.to;
                    Settled::Done(change.to)
                }
                None => {
                    changes.refuse(settlement);
                    Settled::Late
                }
            }
        }));
    }
    changes.write(&mut lane.connection, &leased).await?;
    Ok(answers)
}

/// The rows of the queue first, as everybody does. What is leased has one.
async fn lock_leased(
    connection: &mut MySqlConnection,
    emails: &[EmailId],
) -> Result<HashMap<EmailId, Leased>, Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT o.id, o.status, o.fence, o.version, o.attempts, o.unfinished_starts, q.lease_until
         FROM email_queue q FORCE INDEX (PRIMARY) STRAIGHT_JOIN email_outbox o ON o.id = q.email_id
         WHERE q.email_id IN ",
    );
    push_list(&mut sql, ids(emails));
    sql.push(" ORDER BY q.email_id FOR UPDATE");
    let mut leased = HashMap::with_capacity(emails.len());
    for row in sql.build().persistent(emails.len() == 1).fetch_all(connection).await? {
        let found = Leased {
            status: row::status(&row)?,
            fence: get(&row, "fence")?,
            version: get(&row, "version")?,
            attempts: get(&row, "attempts")?,
            unfinished_starts: get(&row, "unfinished_starts")?,
            lease_until: optional_millis(&row, "lease_until")?,
        };
        leased.insert(parsed(&row, "id")?, found);
    }
    Ok(leased)
}

impl Changes {
    fn apply(&mut self, settlement: &Settlement, change: &Change<'_>, leased: &Leased) {
        let id = settlement.guard.id;
        let starts = change
            .starts_given_back
            .map_or(0, |given_back| leased.unfinished_starts.saturating_sub(given_back));
        let failure = change.failure;
        self.outbox.push(json!({
            "id": id.to_string(),
            "status": change.to.as_str(),
            "trouble": row::trouble(change.to),
            "starts": starts,
            "attempts": leased.attempts.saturating_sub(change.attempts_given_back),
            "unknown": u8::from(change.outcome_unknown),
            "sent": change.sent_at.map(text_of),
            "failed": change.failed_at.map(text_of),
            "dead": change.dead_at.map(text_of),
            "now": text_of(settlement.now),
            "provider": change.provider,
            "messageId": change.provider_message_id,
            "durationMs": change.duration_ms,
            "code": failure.map(|failure| failure.code.as_str()),
            "category": failure.map(|failure| failure.category.as_str()),
            "reason": failure.map(|failure| &failure.message),
        }));
        match change.due_at {
            Some(due_at) => self.waiting.push(json!({ "id": id.to_string(), "due": due_at.millis() })),
            None => self.ended.push(id),
        }
        self.events.extend(settlement.events.iter().map(|event| (id, event.clone())));
    }

    fn refuse(&mut self, settlement: &Settlement) {
        if settlement.by == SettledBy::Worker {
            self.late.push((settlement.guard.id, self.events.len()));
            self.events.push((settlement.guard.id, late_result(settlement)));
        }
    }

    async fn write(
        mut self,
        connection: &mut MySqlConnection,
        leased: &HashMap<EmailId, Leased>,
    ) -> Result<(), Fault> {
        if !self.outbox.is_empty() {
            let count = self.outbox.len();
            let rows = Value::from(self.outbox).to_string();
            let written = sqlx::query(SETTLE).bind(rows).execute(&mut *connection).await?;
            outbox::all_of(count, written.rows_affected())?;
        }
        outbox::leave_queue(connection, &self.ended).await?;
        if !self.waiting.is_empty() {
            let rows = Value::from(self.waiting).to_string();
            sqlx::query(WAIT_AGAIN).bind(rows).execute(&mut *connection).await?;
        }
        let unknown: Vec<EmailId> =
            self.late.iter().map(|(id, _)| *id).filter(|id| !leased.contains_key(id)).collect();
        let known = existing(connection, &unknown).await?;
        // From the end, so that the numbers of those before stay true.
        for (id, number) in self.late.iter().rev() {
            if !leased.contains_key(id) && !known.contains(id) {
                self.events.remove(*number);
            }
        }
        row::add_events(connection, self.events.iter().map(|(id, event)| (*id, event))).await
    }
}

const SETTLE: &str = "UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
         id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin PATH '$.id',
         status VARCHAR(16) PATH '$.status', trouble VARCHAR(16) PATH '$.trouble',
         starts INT UNSIGNED PATH '$.starts', attempts INT UNSIGNED PATH '$.attempts', unknown INT PATH '$.unknown',
         sent DATETIME(3) PATH '$.sent', failed DATETIME(3) PATH '$.failed', dead DATETIME(3) PATH '$.dead',
         now DATETIME(3) PATH '$.now', provider TEXT PATH '$.provider', message_id TEXT PATH '$.messageId',
         duration_ms BIGINT UNSIGNED PATH '$.durationMs', code TEXT PATH '$.code',
         category TEXT PATH '$.category', reason MEDIUMTEXT PATH '$.reason')) v
     STRAIGHT_JOIN email_outbox o ON o.id = v.id
     SET o.status = v.status, o.trouble = v.trouble, o.version = o.version + 1, o.at_provider = FALSE,
         o.unfinished_starts = v.starts, o.attempts = v.attempts,
         o.outcome_unknown = o.outcome_unknown OR v.unknown,
         o.sent_at = COALESCE(v.sent, o.sent_at), o.failed_at = COALESCE(v.failed, o.failed_at), o.dead_at = v.dead,
         o.updated_at = v.now,
         o.provider = COALESCE(v.provider, o.provider),
         o.provider_message_id = COALESCE(v.message_id, o.provider_message_id),
         o.duration_ms = COALESCE(v.duration_ms, o.duration_ms),
         o.last_failure_at = IF(v.code IS NULL, o.last_failure_at, v.now),
         o.last_failure_code = COALESCE(v.code, o.last_failure_code),
         o.last_failure_category = COALESCE(v.category, o.last_failure_category),
         o.last_failure_reason = COALESCE(v.reason, o.last_failure_reason)
     WHERE o.status = 'PROCESSING'";

const WAIT_AGAIN: &str = "UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
         id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin PATH '$.id', due BIGINT PATH '$.due')) v
     STRAIGHT_JOIN email_queue q ON q.email_id = v.id
     SET q.due_at = v.due, q.lease_until = NULL, q.lease_owner = NULL";

/// A moment as text that the database reads as its own.
fn text_of(moment: Timestamp) -> String {
    at(moment).format("%Y-%m-%d %H:%M:%S%.3f").to_string()
}

async fn existing(connection: &mut MySqlConnection, emails: &[EmailId]) -> Result<BTreeSet<EmailId>, Fault> {
    if emails.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut sql = QueryBuilder::<MySql>::new("SELECT id FROM email_outbox WHERE id IN ");
    push_list(&mut sql, ids(emails));
    let rows = sql.build().persistent(emails.len() == 1).fetch_all(connection).await?;
    Ok(rows.iter().map(|row| parsed(row, "id")).collect::<Result<_, _>>()?)
}

/// Returns those whose lease is no longer the owner's.
pub async fn renew(
    connection: &mut MySqlConnection,
    owner: WorkerId,
    guards: &[Guard],
    until: Timestamp,
) -> Result<Vec<EmailId>, Fault> {
    let emails = in_order(guards.iter().copied());
    if emails.is_empty() {
        return Ok(Vec::new());
    }
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT q.email_id, o.fence FROM email_queue q FORCE INDEX (PRIMARY)
         STRAIGHT_JOIN email_outbox o ON o.id = q.email_id
         WHERE q.lease_until IS NOT NULL AND q.lease_owner = ",
    );
    sql.push_bind(owner.to_string()).push(" AND q.email_id IN ");
    push_list(&mut sql, ids(&emails));
    sql.push(" ORDER BY q.email_id FOR UPDATE");
    let mut fences: HashMap<EmailId, u64> = HashMap::new();
    for row in sql.build().persistent(emails.len() == 1).fetch_all(&mut *connection).await? {
        fences.insert(parsed(&row, "email_id")?, get(&row, "fence")?);
    }
    let (mine, lost): (Vec<Guard>, Vec<Guard>) =
        guards.iter().partition(|guard| fences.get(&guard.id) == Some(&guard.fence));
    if !mine.is_empty() {
        let mut sql =
            QueryBuilder::<MySql>::new("UPDATE email_queue SET lease_until = GREATEST(lease_until, ");
        sql.push_bind(until.millis()).push(") WHERE email_id IN ");
        push_list(&mut sql, mine.iter().map(|guard| guard.id.to_string()));
        sql.build().persistent(mine.len() == 1).execute(connection).await?;
    }
    Ok(lost.into_iter().map(|guard| guard.id).collect())
}

impl MysqlStore {
    /// Leases alone decide: a lost connection says nothing about its worker. One that left has ended its leases.
    pub(crate) async fn find_lost_leases(
        &self,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<LostLease>, StoreError> {
        let find = self.read((now, limit), |connection, &(now, limit)| {
            Box::pin(async move {
                let mut sql = QueryBuilder::<MySql>::new(format!(
                    "SELECT {}, q.due_at, q.lease_until FROM email_queue q FORCE INDEX (queue_leased)
                     STRAIGHT_JOIN email_outbox o ON o.id = q.email_id AND o.status = 'PROCESSING' WHERE q.lease_until < ",
                    row::COLUMNS
                ));
                sql.push_bind(now.millis()).push(" ORDER BY q.lease_until LIMIT ").push_bind(limit);
                let rows = sql.build().fetch_all(connection).await?;
                let lost = rows.iter().map(|row| row::record(row)?.lost_lease());
                Ok(lost.collect::<Result<_, _>>()?)
            })
        });
        find.await
    }
}
