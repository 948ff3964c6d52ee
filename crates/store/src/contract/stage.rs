//! What the laws are played on: each thing a law needs before it comes to its point, in one line. Nothing here
//! judges a store; a step that does not work panics, since the law could not go on.

use std::time::Duration;

use model::attempt::LostLease;
use model::{
    Claim, Company, CompanyId, CompanySettings, Email, EmailId, Event, EventKind, Guard, NewEmail,
    RecipientId, Status, Timestamp, Verdict, WorkerId,
};
use testkit::{START, a_failure, an_email_at};

use crate::{
    Acceptance, Accepted, AttemptStart, Begun, Cancelled, ClaimRequest, Cursor, EmailFilter, IdempotencyKey,
    IntakeVerdict, RecipientRecord, Routes, Settled, SettledBy, Settlement, Store,
};

pub const LEASE: Duration = Duration::from_secs(45);
pub const HOUR: Duration = Duration::from_secs(3600);
pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// The most pages any law reads: a store whose cursor goes in circles must fail, not hang.
const PAGES_MAX: usize = 2_000;

/// Adds a company with default settings.
pub async fn a_company(store: &dyn Store, name: &str) -> CompanyId {
    a_company_with(store, name, CompanySettings::default()).await.id
}

pub async fn a_company_with(store: &dyn Store, name: &str, settings: CompanySettings) -> Company {
    let company = Company { settings, ..testkit::a_company(name) };
    store.add_company(company.clone()).await.expect("a new company is added");
    company
}

/// The emails as one request of their company, without a key.
pub fn acceptance(emails: Vec<NewEmail>, now: Timestamp) -> Acceptance {
    let company = emails.first().expect("a request has emails").company;
    Acceptance { company, emails, key: None, daily_limit: None, now }
}

/// A key kept for a day; `body` stands for what was asked.
pub fn a_key(key: &str, body: u8, answer: &str, now: Timestamp) -> IdempotencyKey {
    IdempotencyKey {
        key: key.to_owned(),
        body_hash: [body; 32],
        answer: answer.to_owned(),
        keep_until: now.plus(DAY),
    }
}

/// Stores one email, accepted when it says it was.
pub async fn stored(store: &dyn Store, email: NewEmail) -> EmailId {
    let (id, now) = (email.id, email.created_at);
    let accepted = store.accept(acceptance(vec![email], now)).await.expect("an email is accepted");
    assert_eq!(accepted, Accepted::Stored);
    id
}

/// Stores that many plain emails of the company, due at `now`, in requests of bounded size.
pub async fn backlog(store: &dyn Store, company: CompanyId, count: usize, now: Timestamp) -> Vec<EmailId> {
    let emails: Vec<NewEmail> = (0..count).map(|_| an_email_at(company, now)).collect();
    let ids = emails.iter().map(|email| email.id).collect();
    for request in emails.chunks(500) {
        let accepted = store.accept(acceptance(request.to_vec(), now)).await.expect("a batch is accepted");
        assert_eq!(accepted, Accepted::Stored);
    }
    ids
}

/// A worker that the store knows to be alive.
pub async fn a_worker(store: &dyn Store) -> WorkerId {
    let worker = WorkerId::new(START);
    store.worker_joins(worker).await.expect("a worker joins");
    worker
}

/// A request for work without a limit of size.
pub fn request(owner: WorkerId, now: Timestamp, limit: u32) -> ClaimRequest {
    let size_bytes_max = u64::MAX >> 1;
    ClaimRequest { owner, now, lease_until: now.plus(LEASE), limit, size_bytes_max, routes: Routes::All }
}

/// Up to `limit` emails, claimed by a new worker.
pub async fn claim(store: &dyn Store, now: Timestamp, limit: u32) -> Vec<Claim> {
    let worker = a_worker(store).await;
    store.claim(request(worker, now, limit)).await.expect("a claim is answered")
}

/// The one email that is due.
pub async fn claim_one(store: &dyn Store, now: Timestamp) -> Claim {
    let mut claims = claim(store, now, 10).await;
    assert_eq!(claims.len(), 1, "exactly one email is due at {now}");
    claims.remove(0)
}

/// Which of the emails get claimed at that moment, in the order of the claims.
pub async fn claimed_ids(store: &dyn Store, now: Timestamp, limit: u32) -> Vec<EmailId> {
    claim(store, now, limit).await.iter().map(Claim::id).collect()
}

/// The start of an attempt at the provider `relay`, with the events that go with it.
pub fn start(guard: Guard, now: Timestamp) -> AttemptStart {
    let events = vec![Event::new(EventKind::Validated, now), Event::new(EventKind::SentAttempt, now)];
    AttemptStart { guard, provider: "relay".into(), events, now }
}

/// Begins the attempt, which must be possible.
pub async fn begun(store: &dyn Store, guard: Guard, now: Timestamp) -> Guard {
    match store.begin(start(guard, now)).await.expect("a begin is answered") {
        Begun::Yes(guard) => guard,
        Begun::Lost => panic!("nothing stands in the way of this attempt"),
    }
}

/// A worker's settlement with the event that goes with its verdict.
pub fn settlement(guard: Guard, verdict: Verdict, now: Timestamp) -> Settlement {
    let kind = match verdict {
        Verdict::Sent { .. } => EventKind::Sent,
        Verdict::Retry { .. } => EventKind::RetryScheduled,
        Verdict::Hold { .. } => EventKind::OutcomeUnknown,
        Verdict::Fail { .. } => EventKind::Failed,
        Verdict::Expire { .. } => EventKind::Expired,
        Verdict::Release { .. } | Verdict::PutBack { .. } => EventKind::Released,
        Verdict::Requeue { .. } => EventKind::LeaseLost,
    };
    Settlement { guard, by: SettledBy::Worker, verdict, events: vec![Event::new(kind, now)], now }
}

/// The sweep's settlement of a lease it saw.
pub fn swept(lost: &LostLease, verdict: Verdict, now: Timestamp) -> Settlement {
    let by = SettledBy::Sweep { lease_seen: lost.lease_until };
    Settlement { by, ..settlement(lost.guard, verdict, now) }
}

pub async fn settle(store: &dyn Store, guard: Guard, verdict: Verdict, now: Timestamp) -> Settled {
    store.settle(settlement(guard, verdict, now)).await.expect("a settlement is answered")
}

pub fn sent() -> Verdict {
    Verdict::Sent {
        provider: "relay".into(),
        provider_kind: "smtp",
        message_id: Some("relay-1".into()),
        duration_ms: 12,
        refused: Vec::new(),
    }
}

pub fn retry_at(due_at: Timestamp) -> Verdict {
    Verdict::Retry { due_at, failure: a_failure("NETWORK_ERROR"), outcome_unknown: false }
}

pub fn hold() -> Verdict {
    Verdict::Hold { failure: a_failure("SMTP_TIMEOUT") }
}

pub fn fail(code: &str) -> Verdict {
    Verdict::Fail { failure: a_failure(code), outcome_unknown: false }
}

/// Claims the one due email, begins its attempt and settles it so.
pub async fn attempted(store: &dyn Store, verdict: Verdict, now: Timestamp) -> Claim {
    let claim = claim_one(store, now).await;
    let guard = begun(store, claim.guard, now).await;
    assert!(matches!(settle(store, guard, verdict, now).await, Settled::Done(_)));
    claim
}

/// The leases that ran out before `now`.
pub async fn lost_leases(store: &dyn Store, now: Timestamp) -> Vec<LostLease> {
    store.lost_leases(now, 100).await.expect("lost leases are listed")
}

/// What the store has of an email that must be there.
pub async fn read(store: &dyn Store, company: CompanyId, id: EmailId) -> Email {
    store.email(company, id).await.expect("an email is read").expect("the email is there")
}

pub async fn recipient_of_id(
    store: &dyn Store,
    company: CompanyId,
    id: RecipientId,
) -> Option<RecipientRecord> {
    let mut found = store.recipients_by_id(company, &[id]).await.expect("recipients are read");
    assert!(found.len() <= 1, "one id is one recipient: {found:?}");
    found.pop()
}

pub async fn events(store: &dyn Store, company: CompanyId, id: EmailId) -> Vec<Event> {
    store.events(company, id).await.expect("a history is read").expect("the email is there")
}

pub async fn kinds(store: &dyn Store, company: CompanyId, id: EmailId) -> Vec<EventKind> {
    events(store, company, id).await.iter().map(|event| event.kind).collect()
}

/// Brings a new email of the company into a status, at `now`. One that waits is due an hour later, so that the
/// claims of whoever comes next do not meet it. No other email may be due at `now`.
pub async fn in_status(store: &dyn Store, company: CompanyId, status: Status, now: Timestamp) -> EmailId {
    let later = now.plus(HOUR);
    let email = an_email_at(company, now);
    let id = email.id;
    match status {
        Status::Accepted => stored(store, NewEmail { status, ..email }).await,
        Status::Enqueued => stored(store, NewEmail { due_at: later, ..email }).await,
        Status::Processing => {
            stored(store, email).await;
            claim_one(store, now).await.id()
        }
        Status::RetryScheduled | Status::Sent | Status::Failed => {
            stored(store, email).await;
            let verdict = match status {
                Status::RetryScheduled => retry_at(later),
                Status::Sent => sent(),
                _ => fail("SMTP_REJECTED_550"),
            };
            attempted(store, verdict, now).await.id()
        }
        Status::Expired => {
            stored(store, email).await;
            attempted(store, Verdict::Expire { failure: None }, now).await.id()
        }
        Status::Cancelled => {
            stored(store, NewEmail { due_at: later, ..email }).await;
            let cancelled = store.cancel(company, id, now).await.expect("a cancel is answered");
            assert_eq!(cancelled, Cancelled::Done);
            id
        }
        Status::Invalid => {
            let version = {
                stored(store, NewEmail { status: Status::Accepted, ..email }).await;
                read(store, company, id).await.version
            };
            let refused = IntakeVerdict::Refused { failure: a_failure("INVALID_PAYLOAD") };
            let events = vec![Event::new(EventKind::Invalid, now)];
            assert!(store.settle_intake((id, version), refused, events, now).await.expect("intake ends"));
            id
        }
        Status::Delivered | Status::Bounced | Status::Complained => {
            panic!("no verb of the port leads to {status} yet")
        }
    }
}

/// Every status a verb of the port can bring an email into.
pub const REACHABLE: [Status; 9] = [
    Status::Accepted,
    Status::Enqueued,
    Status::Processing,
    Status::RetryScheduled,
    Status::Sent,
    Status::Failed,
    Status::Invalid,
    Status::Expired,
    Status::Cancelled,
];

/// All emails that match, page by page.
pub async fn listed(store: &dyn Store, company: CompanyId, filter: &EmailFilter, limit: u32) -> Vec<Email> {
    let mut emails = Vec::new();
    let mut after: Option<Cursor> = None;
    for _ in 0..PAGES_MAX {
        let page = store.emails(company, filter, after.as_ref(), limit).await.expect("a page is read");
        assert!(page.items.len() <= usize::try_from(limit).expect("a small limit"), "a page is too long");
        emails.extend(page.items);
        match page.next {
            Some(next) => after = Some(next),
            None => return emails,
        }
    }
    panic!("the pages do not end");
}

pub async fn listed_ids(store: &dyn Store, company: CompanyId, filter: &EmailFilter) -> Vec<EmailId> {
    listed(store, company, filter, 50).await.iter().map(|email| email.id).collect()
}

/// Runs the work that many times at once, each on its own thread, and gives back what each came to. Needs the
/// multi-threaded test runtime.
pub fn race<T, F>(tasks: usize, work: impl Fn(usize) -> F + Sync) -> Vec<T>
where
    T: Send,
    F: Future<Output = T>,
{
    let runtime = tokio::runtime::Handle::current();
    let run = &|task: usize| runtime.block_on(work(task));
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..tasks).map(|task| scope.spawn(move || run(task))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a racing task succeeds")).collect()
        })
    })
}
