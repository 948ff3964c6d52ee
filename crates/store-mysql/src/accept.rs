//! Acceptance: the emails of concurrent requests are stored together, in one transaction with one statement per table.
//! Requests are decided upon one after the other, as if they had come so.

use std::sync::Arc;
use std::time::Duration;

use model::{Event, EventKind, NewEmail, RecipientId, Status, Timestamp};
use sqlx::{MySql, MySqlConnection, QueryBuilder};
use store::detail::Detail;
use store::group::{Group, GroupSize};
use store::thread::HotThread;
use store::{Acceptance, Accepted, StoreError, content_codec};

use crate::error::Fault;
use crate::keys::Guards;
use crate::lane::{Lane, Lanes};
use crate::people::People;
use crate::row::{self, at, portion_size, portions, until};

/// As many callers wait as a few seconds' work.
const SIZE: GroupSize =
    GroupSize { abreast: 1, lanes: 3, group_max: 256, waiting_max: 8_192, gather: Duration::ZERO };

/// What one transaction holds at most: a request may bring a thousand emails, or one of many megabytes.
const EMAILS_MAX: usize = 2_000;
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// One statement's share of the contents, well below the server's usual limit of 16 MiB or more.
const STATEMENT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What a statement holds besides one email's content.
const STATEMENT_MARGIN: usize = 64 * 1024;

/// Priorities that claims look for; an email of another would never be found.
const PRIORITY_MIN: u8 = 1;
pub const PRIORITY_MAX: u8 = 10;

/// A request and its contents, ready to be written.
pub struct Request {
    acceptance: Acceptance,
    blocks: Vec<Vec<u8>>,
}

impl Request {
    /// Compressing is work for the many callers, not for the few lanes.
    pub fn new(acceptance: Acceptance) -> Self {
        let blocks = acceptance.emails.iter().map(|email| content_codec::encode(&email.content)).collect();
        Self { acceptance, blocks }
    }

    fn size_bytes(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum()
    }
}

pub fn group(thread: &HotThread, lanes: Lanes, packet_max: usize) -> Group<Request, Accepted> {
    let lanes = Arc::new(lanes);
    Group::start(SIZE, thread, move |requests| {
        let lanes = Arc::clone(&lanes);
        Box::pin(async move {
            let mut answers = Vec::with_capacity(requests.len());
            for portion in transactions(requests, packet_max) {
                match portion {
                    Portion::TooLong(bytes) => answers.push(Err(too_long(bytes, packet_max))),
                    Portion::Requests(requests) => {
                        answers.extend(
                            lanes.answer(requests, |lane, requests| Box::pin(accept(lane, requests))).await,
                        );
                    }
                }
            }
            answers
        })
    })
}

enum Portion {
    Requests(Vec<Request>),
    /// An email whose content the server would not take.
    TooLong(usize),
}

/// The requests in order, in portions for one transaction each.
fn transactions(requests: Vec<Request>, packet_max: usize) -> Vec<Portion> {
    let mut transactions = Vec::new();
    let mut portion: Vec<Request> = Vec::new();
    let (mut emails, mut bytes) = (0, 0);
    for request in requests {
        let longest = request.blocks.iter().map(Vec::len).max().unwrap_or(0);
        let is_too_long = longest + STATEMENT_MARGIN > packet_max;
        let is_full = emails + request.blocks.len() > EMAILS_MAX || bytes + request.size_bytes() > BYTES_MAX;
        if (is_full || is_too_long) && !portion.is_empty() {
            transactions.push(Portion::Requests(std::mem::take(&mut portion)));
            (emails, bytes) = (0, 0);
        }
        if is_too_long {
            transactions.push(Portion::TooLong(longest));
        } else {
            emails += request.blocks.len();
            bytes += request.size_bytes();
            portion.push(request);
        }
    }
    if !portion.is_empty() {
        transactions.push(Portion::Requests(portion));
    }
    transactions
}

fn too_long(bytes: usize, packet_max: usize) -> StoreError {
    StoreError::Broken(format!(
        "an email of {bytes} bytes is longer than the database takes; raise its max_allowed_packet ({packet_max})"
    ))
}

async fn accept(lane: &mut Lane, requests: &[Request]) -> Result<Vec<Result<Accepted, StoreError>>, Fault> {
    let acceptances = requests.iter().map(|request| &request.acceptance);
    let mut guards = Guards::read(&mut lane.connection, acceptances).await?;
    let answers: Vec<Accepted> = requests.iter().map(|request| guards.decide(&request.acceptance)).collect();
    guards.write(&mut lane.connection).await?;
    let stored = requests.iter().zip(&answers).filter(|(_, answer)| **answer == Accepted::Stored);
    let emails: Vec<(&NewEmail, &[u8])> = stored
        .flat_map(|(request, _)| {
            request.acceptance.emails.iter().zip(request.blocks.iter().map(Vec::as_slice))
        })
        .collect();
    insert_emails(lane, &emails).await?;
    Ok(answers.into_iter().map(Ok).collect())
}

async fn insert_emails(lane: &mut Lane, emails: &[(&NewEmail, &[u8])]) -> Result<(), Fault> {
    if emails.is_empty() {
        return Ok(());
    }
    let connection = &mut lane.connection;
    let named: Vec<&NewEmail> = emails.iter().map(|(email, _)| *email).collect();
    let mut people = People::read(connection, &named).await?;
    let mut rows: Vec<(&NewEmail, Option<RecipientId>)> =
        named.into_iter().map(|email| (email, people.recipient_of(email))).collect();
    people.write(connection).await?;
    rows.sort_unstable_by_key(|(email, _)| email.id);
    for rows in portions(&rows) {
        insert_rows(connection, rows).await?;
    }
    insert_contents(connection, emails).await?;
    let emails: Vec<&NewEmail> = rows.iter().map(|(email, _)| *email).collect();
    add_tags(connection, emails.iter().map(|email| (email.company, email.id, &email.envelope.tags[..])))
        .await?;
    let events: Vec<Event> = emails.iter().map(|email| first_event(email)).collect();
    row::add_events(connection, emails.iter().map(|email| email.id).zip(&events)).await?;
    for email in emails {
        lane.counts.arrived(email.status);
    }
    Ok(())
}

fn first_event(email: &NewEmail) -> Event {
    let kind = if waits(email) { EventKind::Enqueued } else { EventKind::Accepted };
    Event::new(kind, email.created_at)
}

fn waits(email: &NewEmail) -> bool {
    email.status == Status::Enqueued
}

async fn insert_rows(
    connection: &mut MySqlConnection,
    rows: &[(&NewEmail, Option<RecipientId>)],
) -> Result<(), Fault> {
    let mut sql = QueryBuilder::<MySql>::new(
        "INSERT INTO email_outbox (id, company_id, status, priority, expires_at, mode, to_email, subject, created_at,
             updated_at, scheduled_at, ttl_ms, request_id, external_id, entity_id, recipient_id, recipient_external_id,
             size_bytes, content_ref, detail, due_after_intake, route) ",
    );
    sql.push_values(rows, |mut row, (email, recipient_id)| {
        let ttl = email.expires_at.since(email.scheduled_at.unwrap_or(email.created_at));
        let recipient_external_id =
            email.recipient.as_ref().and_then(|recipient| recipient.external_id.as_ref());
        row.push_bind(email.id.to_string())
            .push_bind(email.company.to_string())
            .push_bind(email.status.as_str());
        row.push_bind(email.priority).push_bind(until(email.expires_at)).push_bind(email.mode.as_str());
        row.push_bind(email.envelope.to.expose()).push_bind(email.envelope.subject.expose());
        row.push_bind(at(email.created_at))
            .push_bind(at(email.created_at))
            .push_bind(email.scheduled_at.map(at));
        row.push_bind(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)).push_bind(&email.request_id);
        row.push_bind(&email.external_id).push_bind(email.entity.as_ref().map(|entity| &entity.id));
        row.push_bind(recipient_id.map(|id| id.to_string())).push_bind(recipient_external_id);
        row.push_bind(size_bytes(email)).push_bind("db:").push_bind(Detail::of(email).encode());
        row.push_bind((!waits(email)).then_some(email.due_at.millis())).push_bind(&email.route);
    });
    sql.build().execute(&mut *connection).await?;
    let waiting: Vec<Waiting> =
        rows.iter().filter(|(email, _)| waits(email)).map(|(email, _)| Waiting::of(email)).collect();
    enqueue(connection, &waiting).await?;
    let unchecked: Vec<&NewEmail> =
        rows.iter().filter(|(email, _)| !waits(email)).map(|(email, _)| *email).collect();
    for unchecked in portions(&unchecked) {
        let mut sql = QueryBuilder::<MySql>::new("INSERT INTO email_intake (email_id) ");
        sql.push_values(unchecked, |mut row, email| {
            row.push_bind(email.id.to_string());
        });
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

fn size_bytes(email: &NewEmail) -> u64 {
    u64::try_from(email.content.size_bytes()).unwrap_or(u64::MAX)
}

/// A row of the queue for an email that waits.
#[derive(Clone)]
pub struct Waiting {
    pub id: String,
    pub route: String,
    pub company: String,
    pub priority: u8,
    pub due_at: Timestamp,
    pub expires_at: Timestamp,
    pub size_bytes: u64,
}

impl Waiting {
    fn of(email: &NewEmail) -> Self {
        Self {
            id: email.id.to_string(),
            route: email.route.clone(),
            company: email.company.to_string(),
            priority: email.priority,
            due_at: email.due_at,
            expires_at: email.expires_at,
            size_bytes: size_bytes(email),
        }
    }
}

pub async fn enqueue(connection: &mut MySqlConnection, waiting: &[Waiting]) -> Result<(), Fault> {
    for waiting in portions(waiting) {
        let mut sql = QueryBuilder::<MySql>::new(
            "INSERT INTO email_queue (email_id, route, company_id, priority, due_at, expires_at, size_bytes) ",
        );
        sql.push_values(waiting, |mut row, email| {
            row.push_bind(&email.id).push_bind(&email.route).push_bind(&email.company);
            row.push_bind(email.priority.clamp(PRIORITY_MIN, PRIORITY_MAX)).push_bind(email.due_at.millis());
            row.push_bind(email.expires_at.millis()).push_bind(email.size_bytes);
        });
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

/// In as many statements as their size asks for.
async fn insert_contents(
    connection: &mut MySqlConnection,
    emails: &[(&NewEmail, &[u8])],
) -> Result<(), Fault> {
    let mut rest = emails;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |(_, block): &&(&NewEmail, &[u8])| {
            bytes += block.len();
            bytes <= STATEMENT_BYTES_MAX
        };
        let count = portion_size(rest.iter().take_while(fits).count().max(1));
        let (now, later) = rest.split_at(count);
        let mut sql = QueryBuilder::<MySql>::new("INSERT INTO contents (email_id, body) ");
        sql.push_values(now, |mut row, (email, block)| {
            row.push_bind(email.id.to_string()).push_bind(*block);
        });
        sql.build().execute(&mut *connection).await?;
        rest = later;
    }
    Ok(())
}

/// A tag that is named twice is one.
pub async fn add_tags<'e>(
    connection: &mut MySqlConnection,
    emails: impl Iterator<Item = (model::CompanyId, model::EmailId, &'e [String])>,
) -> Result<(), Fault> {
    let mut tags: Vec<(String, &String, String)> = emails
        .flat_map(|(company, id, tags)| {
            tags.iter().map(move |tag| (company.to_string(), tag, id.to_string()))
        })
        .collect();
    tags.sort_unstable();
    tags.dedup();
    for tags in portions(&tags) {
        let mut sql = QueryBuilder::<MySql>::new("INSERT INTO email_tags (company_id, tag, email_id) ");
        sql.push_values(tags, |mut row, (company, tag, id)| {
            row.push_bind(company).push_bind(*tag).push_bind(id);
        });
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}
