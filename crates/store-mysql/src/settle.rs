//! From the start of an attempt to its recorded end: concurrent ones are written together, each guarded by status, fence
//! and version.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use model::{EmailId, Event, Failure, Guard, Status, Timestamp, Verdict};
use sqlx::mysql::MySqlRow;
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::change::{Change, Standing, late_result};
use store::consequence::{counted_failures, failed_address, recipient_states};
use store::group::{Group, GroupSize};
use store::record::Record;
use store::suspects::{AT_WORK, HANDED_OUT};
use store::thread::HotThread;
use store::{AttemptStart, Begun, Settled, SettledBy, Settlement, StoreError};

use crate::error::Fault;
use crate::failures::{self, Failed};
use crate::feedback::note_states;
use crate::lane::{Lane, Lanes};
use crate::row::{self, at, get, ids, optional_millis, parsed, portions, push_list};
use crate::tallies::{Notes, Subject};
use crate::{messages, outbox};

/// As many wait as workers can have in hand.
/// A claim brings up to 64 emails, which begin and end side by side: no client waits for them.
const SIZE: GroupSize =
    GroupSize { abreast: 1, lanes: 2, group_max: 256, waiting_max: 16_384, gather: Duration::from_millis(1) };

pub fn group_of_begins(thread: &HotThread, lanes: Lanes) -> Group<AttemptStart, Begun> {
    let lanes = Arc::new(lanes);
    Group::start(SIZE, thread, move |starts| {
        let lanes = Arc::clone(&lanes);
        Box::pin(async move { lanes.answer(starts, |lane, starts| Box::pin(begin(lane, starts))).await })
    })
}

pub fn group_of_settlements(thread: &HotThread, lanes: Lanes) -> Group<Settlement, Settled> {
    let lanes = Arc::new(lanes);
    Group::start(SIZE, thread, move |settlements| {
        let lanes = Arc::clone(&lanes);
        Box::pin(async move {
            lanes.answer(settlements, |lane, settlements| Box::pin(settle(lane, settlements))).await
        })
    })
}

/// The ids, each once and in order.
pub fn in_order(guards: impl Iterator<Item = Guard>) -> Vec<EmailId> {
    guards.map(|guard| guard.id).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Under the guard that it has: whoever hears nothing of it may ask again.
pub async fn begin_suspect(connection: &mut MySqlConnection, guard: Guard) -> Result<bool, Fault> {
    let begun = sqlx::query(
        "UPDATE email_outbox SET unfinished_starts = ?
         WHERE id = ? AND status = 'PROCESSING' AND fence = ? AND version = ? AND unfinished_starts >= ?",
    )
    .bind(AT_WORK)
    .bind(guard.id.to_string())
    .bind(guard.fence)
    .bind(guard.version)
    .bind(HANDED_OUT)
    .execute(connection)
    .await?;
    Ok(begun.rows_affected() > 0)
}

async fn begin(lane: &mut Lane, starts: &[AttemptStart]) -> Result<Vec<Result<Begun, StoreError>>, Fault> {
    let connection = &mut lane.connection;
    let mut mayed = ready_to_begin(connection, &in_order(starts.iter().map(|start| start.guard))).await?;
    let mut answers = Vec::with_capacity(starts.len());
    let (mut begun, mut events) = (Vec::new(), Vec::new());
    for start in starts {
        let Guard { id, fence, version } = start.guard;
        // The first of several that begin the same attempt takes it.
        if mayed.get(&id) == Some(&(fence, version)) {
            mayed.remove(&id);
            begun.push(start);
            events.extend(start.events.iter().map(|event| (id, event)));
            answers.push(Ok(Begun::Yes(Guard { version: version + 1, ..start.guard })));
        } else {
            answers.push(Ok(Begun::Lost));
        }
    }
    write_begun(connection, &begun).await?;
    row::add_events(connection, events).await?;
    Ok(answers)
}

/// The rows are there and locked, so that this always updates; what could only be inserted is of no account. It is the one
/// way in which both servers change many rows by one statement, each in its own way, without a temporary table.
async fn write_begun(connection: &mut MySqlConnection, begun: &[&AttemptStart]) -> Result<(), Fault> {
    for begun in portions(begun) {
        let mut sql = QueryBuilder::<MySql>::new(format!(
            "INSERT INTO email_outbox ({UNCHANGED}, status, id, provider, updated_at) "
        ));
        sql.push_values(begun, |mut row, start| {
            row.push(UNCHANGED_VALUES).push("''").push_bind(start.guard.id.to_string());
            row.push_bind(&start.provider).push_bind(at(start.now));
        });
        sql.push(
            " ON DUPLICATE KEY UPDATE at_provider = TRUE, provider = VALUES(provider), version = version + 1,
                 updated_at = VALUES(updated_at)",
        );
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

/// Columns that an insert has to name and an update leaves alone.
const UNCHANGED: &str = "company_id, priority, expires_at, mode, to_email, subject, created_at, ttl_ms, request_id, \
    size_bytes, content_ref, detail";
const UNCHANGED_VALUES: &str = "'', 0, '2000-01-01', '', '', '', '2000-01-01', 0, '', 0, '', ''";

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
    for row in sql.build().fetch_all(connection).await? {
        if row::status(&row)? == Status::Processing && !get::<bool>(&row, "at_provider")? {
            ready.insert(parsed(&row, "id")?, (get(&row, "fence")?, get(&row, "version")?));
        }
    }
    Ok(ready)
}

/// What a settlement has to know of a leased email.
struct Leased {
    standing: Standing,
    attempts: u32,
    unfinished_starts: u32,
    lease_until: Option<Timestamp>,
    route: String,
    provider_message_id: Option<String>,
    subject: Subject,
}

impl Leased {
    /// Is it still as the worker, or the sweep, knew it?
    fn is_guarded_by(&self, guard: Guard, change: &Change<'_>) -> bool {
        let Standing { status, fence, version, .. } = self.standing;
        (status, fence, version) == (Status::Processing, guard.fence, guard.version)
            && change.lease_seen.is_none_or(|seen| self.lease_until == Some(seen))
    }
}

/// What a group of settlements changes.
#[derive(Default)]
struct Changes {
    outbox: Vec<Row>,
    /// Back into the queue.
    waiting: Vec<Again>,
    ended: Vec<EmailId>,
    events: Vec<(EmailId, Event)>,
    /// Reports that came too late, by the number of their event.
    late: Vec<(EmailId, usize)>,
    /// Ids of the providers that do not stand in the row.
    messages: Vec<(EmailId, String)>,
    /// What is counted of the events.
    notes: Notes,
    /// Verdicts that count against an address, and when.
    counted: BTreeMap<EmailId, (Verdict, Timestamp)>,
}

pub async fn settle(
    lane: &mut Lane,
    settlements: &[Settlement],
) -> Result<Vec<Result<Settled, StoreError>>, Fault> {
    let emails = in_order(settlements.iter().map(|settlement| settlement.guard));
    let mut leased = lock_leased(&mut lane.connection, &emails).await?;
    let ended = ended_before(&mut lane.connection, settlements, &leased).await?;
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
                    leased.standing = Standing {
                        status: change.to,
                        version: guard.version + 1,
                        sent_at: change.sent_at.or(leased.standing.sent_at),
                        updated_at: settlement.now,
                        ..leased.standing
                    };
                    Settled::Done(change.to)
                }
                None => {
                    let standing = leased.get(&guard.id).map(|leased| leased.standing);
                    let standing = standing.or_else(|| ended.get(&guard.id).copied());
                    // Recorded already, and its worker has not heard of it.
                    if standing.is_some_and(|standing| standing.holds(settlement, &change)) {
                        return Settled::Done(change.to);
                    }
                    changes.refuse(settlement);
                    Settled::Late
                }
            }
        }));
    }
    changes.write(&mut lane.connection, &leased).await?;
    Ok(answers)
}

/// How those stand that a worker tells of and that are in no queue any more.
async fn ended_before(
    connection: &mut MySqlConnection,
    settlements: &[Settlement],
    leased: &HashMap<EmailId, Leased>,
) -> Result<HashMap<EmailId, Standing>, Fault> {
    let told = settlements.iter().filter(|settlement| settlement.by == SettledBy::Worker);
    let emails: Vec<EmailId> =
        told.map(|settlement| settlement.guard.id).filter(|id| !leased.contains_key(id)).collect();
    if emails.is_empty() {
        return Ok(HashMap::new());
    }
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT o.id, o.status, o.fence, o.version, o.sent_at, o.updated_at FROM email_outbox o WHERE o.id IN ",
    );
    push_list(&mut sql, ids(&emails));
    let rows = sql.build().fetch_all(connection).await?;
    rows.iter().map(|row| Ok((parsed(row, "id")?, standing(row)?))).collect()
}

fn standing(row: &MySqlRow) -> Result<Standing, StoreError> {
    Ok(Standing {
        status: row::status(row)?,
        fence: get(row, "fence")?,
        version: get(row, "version")?,
        sent_at: row::optional_moment(row, "sent_at")?,
        updated_at: row::moment(row, "updated_at")?,
    })
}

/// The rows of the queue first, as everybody does. What is leased has one.
async fn lock_leased(
    connection: &mut MySqlConnection,
    emails: &[EmailId],
) -> Result<HashMap<EmailId, Leased>, Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "SELECT o.id, o.status, o.fence, o.version, o.sent_at, o.updated_at, o.attempts, o.unfinished_starts, o.route, o.provider_message_id, q.lease_until,
                o.company_id, o.mode, o.entity_id, o.to_email
         FROM email_queue q FORCE INDEX (PRIMARY) STRAIGHT_JOIN email_outbox o ON o.id = q.email_id
         WHERE q.email_id IN ",
    );
    push_list(&mut sql, ids(emails));
    sql.push(" ORDER BY q.email_id FOR UPDATE");
    let mut leased = HashMap::with_capacity(emails.len());
    for row in sql.build().fetch_all(connection).await? {
        let found = Leased {
            standing: standing(&row)?,
            attempts: get(&row, "attempts")?,
            unfinished_starts: get(&row, "unfinished_starts")?,
            lease_until: optional_millis(&row, "lease_until")?,
            route: get(&row, "route")?,
            provider_message_id: get(&row, "provider_message_id")?,
            subject: Subject::read(&row)?,
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
        let route = change.route.unwrap_or(&leased.route);
        self.outbox.push(Row {
            id,
            status: change.to,
            unfinished_starts: starts,
            attempts: leased.attempts.saturating_sub(change.attempts_given_back),
            outcome_unknown: change.outcome_unknown,
            sent_at: change.sent_at,
            failed_at: change.failed_at,
            dead_at: change.dead_at,
            now: settlement.now,
            route: route.to_owned(),
            provider: change.provider.map(str::to_owned),
            provider_message_id: change.provider_message_id.map(str::to_owned),
            ses_message_id: change.ses_message_id.map(str::to_owned),
            duration_ms: change.duration_ms,
            failure: change.failure.cloned(),
        });
        if let (Some(new), Some(earlier)) = (change.provider_message_id, &leased.provider_message_id)
            && new != earlier
        {
            self.messages.push((id, earlier.clone()));
        }
        match change.due_at {
            Some(due_at) => self.waiting.push(Again { id, route: route.to_owned(), due_at }),
            None => self.ended.push(id),
        }
        for event in &settlement.events {
            self.notes.add(&leased.subject, event);
            self.events.push((id, event.clone()));
        }
        if !counted_failures(&settlement.verdict).is_empty() {
            self.counted.insert(id, (settlement.verdict.clone(), settlement.now));
        }
    }

    fn refuse(&mut self, settlement: &Settlement) {
        if settlement.by == SettledBy::Worker {
            let id = settlement.guard.id;
            self.late.push((id, self.events.len()));
            self.events.push((id, late_result(settlement)));
            if let Verdict::Sent { message_id: Some(message_id), .. } = &settlement.verdict {
                self.messages.push((id, message_id.clone()));
            }
        }
    }

    async fn write(
        mut self,
        connection: &mut MySqlConnection,
        leased: &HashMap<EmailId, Leased>,
    ) -> Result<(), Fault> {
        write_settled(connection, &self.outbox).await?;
        outbox::leave_queue(connection, &self.ended).await?;
        wait_again(connection, &self.waiting).await?;
        let unknown: Vec<EmailId> =
            self.late.iter().map(|(id, _)| *id).filter(|id| !leased.contains_key(id)).collect();
        let known = existing(connection, &unknown).await?;
        self.messages.retain(|(id, _)| leased.contains_key(id) || known.contains(id));
        messages::keep(connection, &self.messages).await?;
        // From the end, so that the numbers of those before stay true.
        for (id, number) in self.late.iter().rev() {
            if !leased.contains_key(id) && !known.contains(id) {
                self.events.remove(*number);
            }
        }
        let events: Vec<(EmailId, &Event)> = self.events.iter().map(|(id, event)| (*id, event)).collect();
        row::add_uncounted(connection, &events).await?;
        self.notes.write(connection).await?;
        count_failed(connection, self.counted).await
    }
}

/// What was given up, or refused, counts against whom it was for.
async fn count_failed(
    connection: &mut MySqlConnection,
    mut counted: BTreeMap<EmailId, (Verdict, Timestamp)>,
) -> Result<(), Fault> {
    if counted.is_empty() {
        return Ok(());
    }
    let mut sql = QueryBuilder::<MySql>::new(format!(
        "SELECT {}, CAST(NULL AS SIGNED) AS due_at, CAST(NULL AS SIGNED) AS lease_until
         FROM email_outbox o FORCE INDEX (PRIMARY) WHERE o.id IN ",
        row::COLUMNS
    ));
    push_list(&mut sql, counted.keys().map(EmailId::to_string));
    let rows = sql.build().fetch_all(&mut *connection).await?;
    let records: Vec<Record> = rows.iter().map(row::record).collect::<Result<_, _>>()?;
    let mut failed = Vec::with_capacity(records.len());
    for record in &records {
        let Some((verdict, now)) = counted.remove(&record.id) else { continue };
        for failure in counted_failures(&verdict) {
            if let Some(address) = failed_address(failure, record) {
                failed.push(Failed { record, address, code: failure.code.as_str().to_owned(), now });
            }
        }
        note_states(connection, record.id, &recipient_states(&verdict, record), now).await?;
    }
    failures::count(connection, &failed).await
}

/// A settled email as it is written; what is `None` stays as it is, but for `dead_at`.
struct Row {
    id: EmailId,
    status: Status,
    unfinished_starts: u32,
    attempts: u32,
    outcome_unknown: bool,
    sent_at: Option<Timestamp>,
    failed_at: Option<Timestamp>,
    dead_at: Option<Timestamp>,
    now: Timestamp,
    route: String,
    provider: Option<String>,
    provider_message_id: Option<String>,
    ses_message_id: Option<String>,
    duration_ms: Option<u64>,
    failure: Option<Failure>,
}

/// As in [`write_begun`]: the rows are there and locked.
async fn write_settled(connection: &mut MySqlConnection, rows: &[Row]) -> Result<(), Fault> {
    for rows in portions(rows) {
        let mut sql = QueryBuilder::<MySql>::new(format!(
            "INSERT INTO email_outbox ({UNCHANGED}, id, status, trouble, unfinished_starts, attempts, outcome_unknown,
                 sent_at, failed_at, dead_at, updated_at, route, provider, provider_message_id, ses_message_id,
                 duration_ms, last_failure_code, last_failure_category, last_failure_reason, last_failure_at) "
        ));
        sql.push_values(rows, |mut values, row| {
            let failure = row.failure.as_ref();
            values.push(UNCHANGED_VALUES).push_bind(row.id.to_string()).push_bind(row.status.as_str());
            values
                .push_bind(row::trouble(row.status))
                .push_bind(row.unfinished_starts)
                .push_bind(row.attempts);
            values
                .push_bind(row.outcome_unknown)
                .push_bind(row.sent_at.map(at))
                .push_bind(row.failed_at.map(at));
            values.push_bind(row.dead_at.map(at)).push_bind(at(row.now));
            values.push_bind(&row.route).push_bind(&row.provider);
            values.push_bind(&row.provider_message_id).push_bind(&row.ses_message_id);
            values.push_bind(row.duration_ms);
            values.push_bind(failure.map(|failure| failure.code.as_str()));
            values.push_bind(failure.map(|failure| failure.category.as_str()));
            values.push_bind(failure.map(|failure| &failure.message)).push_bind(failure.map(|_| at(row.now)));
        });
        sql.push(
            " ON DUPLICATE KEY UPDATE status = VALUES(status), trouble = VALUES(trouble), version = version + 1,
                 at_provider = FALSE, unfinished_starts = VALUES(unfinished_starts), attempts = VALUES(attempts),
                 outcome_unknown = outcome_unknown OR VALUES(outcome_unknown),
                 sent_at = COALESCE(VALUES(sent_at), sent_at), failed_at = COALESCE(VALUES(failed_at), failed_at),
                 dead_at = VALUES(dead_at), updated_at = VALUES(updated_at), route = VALUES(route),
                 provider = COALESCE(VALUES(provider), provider),
                 provider_message_id = COALESCE(VALUES(provider_message_id), provider_message_id),
                 ses_message_id = IF(VALUES(provider) IS NULL, ses_message_id, VALUES(ses_message_id)),
                 duration_ms = COALESCE(VALUES(duration_ms), duration_ms),
                 last_failure_code = COALESCE(VALUES(last_failure_code), last_failure_code),
                 last_failure_category = COALESCE(VALUES(last_failure_category), last_failure_category),
                 last_failure_reason = COALESCE(VALUES(last_failure_reason), last_failure_reason),
                 last_failure_at = COALESCE(VALUES(last_failure_at), last_failure_at)",
        );
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

/// An email that waits again: by which route, and until when.
struct Again {
    id: EmailId,
    route: String,
    due_at: Timestamp,
}

/// As in [`write_begun`]: the rows are there and locked.
async fn wait_again(connection: &mut MySqlConnection, waiting: &[Again]) -> Result<(), Fault> {
    for waiting in portions(waiting) {
        let mut sql = QueryBuilder::<MySql>::new(
            "INSERT INTO email_queue (company_id, priority, expires_at, size_bytes, email_id, route, due_at) ",
        );
        sql.push_values(waiting, |mut row, again| {
            row.push("'', 0, 0, 0").push_bind(again.id.to_string());
            row.push_bind(&again.route).push_bind(again.due_at.millis());
        });
        sql.push(
            " ON DUPLICATE KEY UPDATE route = VALUES(route), due_at = VALUES(due_at), lease_until = NULL,
                 lease_owner = NULL",
        );
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

async fn existing(connection: &mut MySqlConnection, emails: &[EmailId]) -> Result<BTreeSet<EmailId>, Fault> {
    if emails.is_empty() {
        return Ok(BTreeSet::new());
    }
    let mut sql = QueryBuilder::<MySql>::new("SELECT id FROM email_outbox WHERE id IN ");
    push_list(&mut sql, ids(emails));
    let rows = sql.build().fetch_all(connection).await?;
    Ok(rows.iter().map(|row| parsed(row, "id")).collect::<Result<_, _>>()?)
}
