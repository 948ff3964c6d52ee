//! Acceptance: what waits is stored together, as a rule in one statement that is its own transaction.
//!
//! A group in which requests may decide about each other (a daily limit, one idempotency key twice, keys and one person
//! twice) is decided in order inside a transaction first, and then stored by the same statement. Rows are in
//! `insert`, whom the emails name in `people`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use model::{Content, NewEmail, Status};
use sqlx::{PgConnection, Row as _};
use store::detail::Detail;
use store::group::{Group, GroupSize};
use store::thread::HotThread;
use store::{Acceptance, Accepted, KeptAnswer, StoreError, content_codec, count_towards_day, first_id_of};
use uuid::Uuid;

use crate::error::Fault;
use crate::insert::{Entry, Keys, insert, insert_deciding};
use crate::lane::{Lane, Lanes};
use crate::people::{self, Known, People};
use crate::wake::Wake;

const SIZE: GroupSize = GroupSize {
    abreast: 1,
    lanes: 3,
    // More gains nothing and makes the first wait for the last.
    group_max: 256,
    waiting_max: 8_192,
    gather: Duration::ZERO,
};
/// One statement inserts up to so many emails, and so much content: the driver, the network and the server each hold
/// it in memory.
const EMAILS_MAX: usize = 1_000;
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// A request with what could be worked out before its turn: that is work for the many callers, not for the lanes.
pub struct Request {
    acceptance: Acceptance,
    prepared: Vec<Prepared>,
}

pub struct Prepared {
    pub detail: String,
    pub block: Vec<u8>,
    /// Of the content before it was packed.
    pub size_bytes: usize,
}

impl Request {
    pub fn of(mut acceptance: Acceptance) -> Self {
        let prepared = acceptance.emails.iter_mut().map(Prepared::of).collect();
        Self { acceptance, prepared }
    }

    fn bytes(&self) -> usize {
        self.prepared.iter().map(|prepared| prepared.block.len() + prepared.detail.len()).sum()
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let key = self.acceptance.key.as_ref().map(|key| key.key.as_str());
        self.acceptance.emails.iter().zip(&self.prepared).map(move |(email, prepared)| Entry {
            email,
            prepared,
            key,
        })
    }

    fn key(&self) -> Option<(Uuid, &str)> {
        self.acceptance.key.as_ref().map(|key| (self.acceptance.company.uuid(), key.key.as_str()))
    }

    /// Something in it can be claimed at once.
    fn is_due(&self) -> bool {
        let is_due =
            |email: &NewEmail| email.status == Status::Enqueued && email.due_at <= self.acceptance.now;
        self.acceptance.emails.iter().any(is_due)
    }
}

impl Prepared {
    /// The content is taken out of the email: whatever waits for its turn holds it packed alone.
    fn of(email: &mut NewEmail) -> Self {
        let content = std::mem::replace(&mut email.content, Content::Raw(Vec::new()));
        Self {
            detail: Detail::of(email).encode(),
            block: content_codec::encode(&content),
            size_bytes: content.size_bytes(),
        }
    }
}

pub fn group(thread: &HotThread, lanes: Lanes, wake: Arc<Wake>) -> Group<Request, Accepted> {
    Group::start(SIZE, thread, move |requests| {
        let (lanes, wake) = (lanes.clone(), Arc::clone(&wake));
        Box::pin(async move {
            let mut answers = Vec::with_capacity(requests.len());
            for portion in portions(requests) {
                let is_due: Vec<bool> = portion.iter().map(Request::is_due).collect();
                let answered = lanes.answer(portion, |lane, requests| Box::pin(accept(lane, requests))).await;
                let accepted: Vec<Answer> = answered.into_iter().map(Result::flatten).collect();
                let is_news =
                    |(is_due, accepted): (&bool, &Answer)| *is_due && *accepted == Ok(Accepted::Stored);
                if is_due.iter().zip(&accepted).any(is_news) {
                    wake.made_due();
                }
                answers.extend(accepted);
            }
            answers
        })
    })
}

/// Cuts a group into transactions of bounded size; a single request stays whole.
fn portions(requests: Vec<Request>) -> Vec<Vec<Request>> {
    let mut portions: Vec<Vec<Request>> = Vec::new();
    let (mut emails, mut bytes) = (0, 0);
    for request in requests {
        emails += request.prepared.len();
        bytes += request.bytes();
        match portions.last_mut() {
            Some(portion) if emails <= EMAILS_MAX && bytes <= BYTES_MAX => portion.push(request),
            _ => {
                (emails, bytes) = (request.prepared.len(), request.bytes());
                portions.push(vec![request]);
            }
        }
    }
    portions
}

/// To one request. Those stored with it may have got another.
type Answer = Result<Accepted, StoreError>;

async fn accept(lane: &mut Lane, requests: &[Request]) -> Result<Vec<Answer>, Fault> {
    match accept_together(lane, requests).await {
        Err(fault) if fault.is_person_named_twice() => {
            lane.undo().await?;
            let entries: Vec<Entry<'_>> = requests.iter().flat_map(Request::entries).collect();
            let known = people::read_known(lane.only_reads(), &entries).await?;
            accept_in_order(lane, requests, known).await
        }
        answers => answers,
    }
}

async fn accept_together(lane: &mut Lane, requests: &[Request]) -> Result<Vec<Answer>, Fault> {
    let entries: Vec<Entry<'_>> = requests.iter().flat_map(Request::entries).collect();
    let has_keys = requests.iter().any(|request| request.acceptance.key.is_some());
    match &people::runs(&entries, &mut Known::new())[..] {
        [(_, people)] if !must_be_decided(requests) && statements(&entries).len() == 1 => {
            if !has_keys {
                insert(lane, &entries, people).await?;
                return Ok(vec![Ok(Accepted::Stored); requests.len()]);
            }
            // Who speaks for others may not get its key.
            if !people.meet {
                return accept_with_keys(lane, requests, &entries, people).await;
            }
        }
        _ => {}
    }
    accept_in_order(lane, requests, Known::new()).await
}

/// Do these requests depend on each other, or on rows that have to be locked first?
fn must_be_decided(requests: &[Request]) -> bool {
    let mut keys = HashSet::new();
    let is_limited = |request: &Request| request.acceptance.daily_limit.is_some();
    requests.iter().any(is_limited) || !requests.iter().filter_map(Request::key).all(|key| keys.insert(key))
}

/// All keys are different: who gets its key is stored by the same statement, with what it says of people; the others hear
/// what the key stands for.
async fn accept_with_keys(
    lane: &mut Lane,
    requests: &[Request],
    entries: &[Entry<'_>],
    people: &People<'_>,
) -> Result<Vec<Answer>, Fault> {
    let keys = Keys::of(requests.iter().map(|request| &request.acceptance));
    let gained = insert_deciding(lane, entries, people, &keys).await?;
    let is_lost = |request: &&Request| {
        request.key().is_some_and(|(company, key)| !gained.contains(&(company, key.to_owned())))
    };
    let lost = Keys::of(requests.iter().filter(is_lost).map(|request| &request.acceptance));
    let taken = read_taken(lane, &lost).await;
    let answer = |request: &Request| {
        if !is_lost(&request) {
            return Ok(Accepted::Stored);
        }
        let known =
            request.key().and_then(|(company, key)| taken.as_ref().ok()?.get(&(company, key.to_owned())));
        match (known, &taken) {
            (Some(known), _) => Ok(answer_to(request, known)),
            (None, Err(error)) => Err(error.clone()),
            // It was there a moment ago and its time ended between the two statements.
            (None, Ok(_)) => Err(StoreError::InDoubt("an idempotency key ran out just now".into())),
        }
    };
    Ok(requests.iter().map(answer).collect())
}

/// The others of the group are stored by now: whatever happens here concerns those alone who did not get their key.
async fn read_taken(
    lane: &mut Lane,
    lost: &Keys<'_>,
) -> Result<HashMap<(Uuid, String), KeptAnswer>, StoreError> {
    if lost.is_empty() {
        return Ok(HashMap::new());
    }
    lost.read(&mut lane.connection).await.map_err(|fault| {
        lane.is_doubtful = true;
        StoreError::InDoubt(format!("what a key stands for is not known: {}", fault.into_store_error()))
    })
}

/// What its key stands for once it is stored.
fn kept_of(request: &Request) -> Option<KeptAnswer> {
    let key = request.acceptance.key.as_ref()?;
    Some(KeptAnswer { body_hash: key.body_hash.to_vec(), answer: key.answer.clone() })
}

fn answer_to(request: &Request, kept: &KeptAnswer) -> Accepted {
    request.acceptance.key.as_ref().map_or(Accepted::Stored, |key| kept.to(&key.body_hash))
}

/// One request after the other, as if they had come one by one; then everything that is to be stored at once, in as many
/// statements as the people they name ask for. From the second on these may wait for people while the first holds some, and
/// a row of counts: if two groups wait for each other in a circle, the server ends one, which is done again.
async fn accept_in_order(
    lane: &mut Lane,
    requests: &[Request],
    mut known: Known,
) -> Result<Vec<Answer>, Fault> {
    lane.begin().await?;
    let connection = &mut lane.connection;
    let mut decision = Decision {
        keys: LockedKeys::lock(connection, requests).await?,
        days: lock_days(connection, requests).await?,
    };
    let answers: Vec<Accepted> =
        requests.iter().enumerate().map(|(number, request)| decision.answer(number, request)).collect();
    decision.keys.write(connection, requests).await?;
    write_days(connection, &decision.days).await?;
    let stored = requests.iter().zip(&answers).filter(|(_, answer)| **answer == Accepted::Stored);
    let entries: Vec<Entry<'_>> = stored.flat_map(|(request, _)| request.entries()).collect();
    for (entries, people) in
        statements(&entries).into_iter().flat_map(|entries| people::runs(entries, &mut known))
    {
        insert(lane, entries, &people).await?;
    }
    lane.commit().await?;
    Ok(answers.into_iter().map(Ok).collect())
}

/// Cuts rows into statements of bounded size.
fn statements<'s, 'e>(entries: &'s [Entry<'e>]) -> Vec<&'s [Entry<'e>]> {
    let mut statements = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (number, entry) in entries.iter().enumerate() {
        let size = entry.prepared.block.len() + entry.prepared.detail.len();
        if number > from && (number - from == EMAILS_MAX || bytes + size > BYTES_MAX) {
            statements.push(&entries[from..number]);
            (from, bytes) = (number, 0);
        }
        bytes += size;
    }
    if from < entries.len() {
        statements.push(&entries[from..]);
    }
    statements
}

struct Decision {
    keys: LockedKeys,
    /// How many emails each limited company has handed in on each day so far.
    days: BTreeMap<(Uuid, i64), i64>,
}

impl Decision {
    fn answer(&mut self, number: usize, request: &Request) -> Accepted {
        let key = request.key().map(|(company, key)| (company, key.to_owned()));
        if let Some(taken) = key.as_ref().and_then(|key| self.keys.taken.get(key)) {
            return answer_to(request, taken);
        }
        if let Some(limit) = request.acceptance.daily_limit
            && let Err(refused) = self.take_from_day(request, limit)
        {
            return refused;
        }
        if let (Some(key), Some(taken)) = (key, kept_of(request)) {
            self.keys.holders.insert(key.clone(), number);
            self.keys.taken.insert(key, taken);
        }
        Accepted::Stored
    }

    fn take_from_day(&mut self, request: &Request, limit: u32) -> Result<(), Accepted> {
        let handed_in = self.days.entry(day_of(request)).or_insert(0);
        *handed_in = count_towards_day(*handed_in, request.prepared.len(), limit)?;
        Ok(())
    }
}

fn day_of(request: &Request) -> (Uuid, i64) {
    (request.acceptance.company.uuid(), store::tallies::day_of(request.acceptance.now))
}

/// The keys of a group, which nobody else can use until it is committed.
struct LockedKeys {
    /// Keys that were free, and the first request that names each: it stands in the table already.
    gained: HashMap<(Uuid, String), usize>,
    /// Which request got each of them in the end.
    holders: HashMap<(Uuid, String), usize>,
    taken: HashMap<(Uuid, String), KeptAnswer>,
}

impl LockedKeys {
    async fn lock(connection: &mut PgConnection, requests: &[Request]) -> Result<Self, Fault> {
        let mut first: BTreeMap<(Uuid, String), usize> = BTreeMap::new();
        for (number, request) in requests.iter().enumerate() {
            if let Some((company, key)) = request.key() {
                first.entry((company, key.to_owned())).or_insert(number);
            }
        }
        let mut locked = Self { gained: HashMap::new(), holders: HashMap::new(), taken: HashMap::new() };
        if first.is_empty() {
            return Ok(locked);
        }
        let keys = Keys::of(first.values().map(|&number| &requests[number].acceptance));
        let gained = keys.gain(connection).await?;
        let mut lost = Vec::new();
        for (key, number) in first {
            if gained.contains(&key) {
                locked.gained.insert(key, number);
            } else {
                lost.push(number);
            }
        }
        if !lost.is_empty() {
            let keys = Keys::of(lost.into_iter().map(|number| &requests[number].acceptance));
            locked.taken = keys.read(connection).await?;
        }
        Ok(locked)
    }

    /// Gives back the keys that nobody got in the end and corrects those that another request got.
    async fn write(&self, connection: &mut PgConnection, requests: &[Request]) -> Result<(), Fault> {
        let is_settled = |key: &&(Uuid, String)| self.holders.get(*key) == self.gained.get(*key);
        let unsettled: Vec<&(Uuid, String)> = self.gained.keys().filter(|key| !is_settled(key)).collect();
        if unsettled.is_empty() {
            return Ok(());
        }
        sqlx::query(
            "DELETE FROM idempotency_keys WHERE (company_id, key) IN (SELECT * FROM UNNEST($1::uuid[], $2::text[]))",
        )
        .bind(unsettled.iter().map(|(company, _)| *company).collect::<Vec<_>>())
        .bind(unsettled.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>())
        .execute(&mut *connection)
        .await?;
        let held = unsettled.iter().filter_map(|key| self.holders.get(*key));
        let keys = Keys::of(held.map(|&number| &requests[number].acceptance));
        if !keys.is_empty() {
            keys.gain(connection).await?;
        }
        Ok(())
    }
}

/// How much of their day the limited companies have used; nobody else counts towards it until the commit. A day that
/// nobody has counted yet stands below nought, and is counted now.
async fn lock_days(
    connection: &mut PgConnection,
    requests: &[Request],
) -> Result<BTreeMap<(Uuid, i64), i64>, Fault> {
    let limited = requests.iter().filter(|request| request.acceptance.daily_limit.is_some());
    let mut days: BTreeMap<(Uuid, i64), i64> = limited.map(|request| (day_of(request), 0)).collect();
    if days.is_empty() {
        return Ok(days);
    }
    let rows = sqlx::query(
        "INSERT INTO company_days (company_id, day, accepted)
         SELECT company_id, day, -1 FROM UNNEST($1::uuid[], $2::bigint[]) AS named (company_id, day)
         ORDER BY company_id, day
         ON CONFLICT (company_id, day) DO UPDATE SET accepted = company_days.accepted
         RETURNING company_id, day, accepted",
    )
    .bind(days.keys().map(|(company, _)| *company).collect::<Vec<_>>())
    .bind(days.keys().map(|(_, day)| *day).collect::<Vec<_>>())
    .fetch_all(&mut *connection)
    .await?;
    for row in rows {
        let (company, day, mut handed_in): (Uuid, i64, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        if handed_in < 0 {
            let sql = "SELECT count(*) FROM email_outbox WHERE company_id = $1 AND id >= $2";
            let query = sqlx::query(sql).bind(company).bind(first_id_of(day).uuid());
            handed_in = query.fetch_one(&mut *connection).await?.try_get(0)?;
        }
        days.insert((company, day), handed_in);
    }
    Ok(days)
}

async fn write_days(connection: &mut PgConnection, days: &BTreeMap<(Uuid, i64), i64>) -> Result<(), Fault> {
    if days.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE company_days SET accepted = used.accepted
         FROM UNNEST($1::uuid[], $2::bigint[], $3::bigint[]) AS used (company_id, day, accepted)
         WHERE company_days.company_id = used.company_id AND company_days.day = used.day
           AND company_days.accepted <> used.accepted",
    )
    .bind(days.keys().map(|(company, _)| *company).collect::<Vec<_>>())
    .bind(days.keys().map(|(_, day)| *day).collect::<Vec<_>>())
    .bind(days.values().copied().collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}
