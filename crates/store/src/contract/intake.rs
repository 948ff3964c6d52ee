//! Laws of intake: emails that were accepted unchecked are found, checked once, and enter the queue or do not.

use model::{Address, Content, Envelope, Event, EventKind, NewEmail, Secret, Status, Timestamp};
use testkit::{START, a_failure, a_mailbox, an_address, an_email, an_email_at, at_secs};

use super::stage::{
    HOUR, a_company, claim_one, claimed_ids, events, in_status, kinds, listed_ids, read, stored,
};
use crate::{Cancelled, EmailFilter, INTAKE_LEASE, IntakeItem, IntakeStart, IntakeVerdict, Store};

/// The unchecked are listed oldest first, and nothing else is; their content is handed out to who begins. None of them
/// can be claimed.
pub async fn the_unchecked_await_intake(store: &dyn Store) {
    let acme = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    let mut expected = Vec::new();
    for (number, company) in [acme, other, acme, other].into_iter().enumerate() {
        let eml = format!("Subject: {number}\r\n\r\nbody").into_bytes();
        let now = at_secs(u64::try_from(number).expect("few"));
        let email = unchecked(NewEmail { content: Content::Raw(eml.clone()), ..an_email_at(company, now) });
        expected.push((stored(store, email).await, company, Some(Content::Raw(eml))));
    }
    in_status(store, acme, Status::Enqueued, START).await;
    in_status(store, acme, Status::Sent, START).await;
    let some: Vec<_> = awaiting(store, at_secs(60), 2).await.iter().map(|item| item.id).collect();
    assert_eq!(some, [expected[0].0, expected[1].0]);
    let mut found = Vec::new();
    for item in awaiting(store, at_secs(60), 10).await {
        let start = begun(store, (item.id, item.version), at_secs(60)).await.expect("it is there");
        found.push((item.id, item.company, start.content));
    }
    assert_eq!(found, expected);
    assert_eq!(claimed_ids(store, at_secs(60), 10).await, []);
}

/// A start is counted when it is made, for whoever looks later; who began is left alone for a while, and a clock that
/// was set back hides nothing.
pub async fn starts_of_intake_are_counted(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, unchecked(an_email(company))).await;
    let other = stored(store, unchecked(an_email_at(company, at_secs(1)))).await;
    let mut now = at_secs(60);
    for starts in 0..4 {
        let found = awaiting(store, now, 10).await.remove(0);
        assert_eq!((found.id, found.unfinished_starts), (id, starts), "starts that nobody finished");
        begun(store, (id, found.version), now).await.expect("it is there");
        for moment in [now, now.plus(INTAKE_LEASE / 2), now.minus(INTAKE_LEASE / 2)] {
            let found: Vec<_> = awaiting(store, moment, 1).await.iter().map(|item| item.id).collect();
            assert_eq!(found, [other], "somebody is at it, and keeps nobody else waiting");
        }
        assert_eq!(awaiting(store, now.minus(HOUR), 1).await[0].id, id, "the clock was set back");
        now = now.plus(INTAKE_LEASE);
    }
    let email = read(store, company, id).await;
    assert_eq!(email.status, Status::Accepted);
    assert_eq!(kinds(store, company, id).await, [EventKind::Accepted], "no event tells of it yet");
}

/// The starts of an intake are not held against the email once it ended.
pub async fn the_end_of_intake_ends_the_count(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, unchecked(an_email(company))).await;
    let version = read(store, company, id).await.version;
    let first = begun(store, (id, version), START).await.expect("it is there");
    let second = begun(store, (id, first.version), at_secs(20)).await.expect("it is there");
    assert!(!ends(store, (id, first.version)).await, "somebody else began since");
    assert!(ends(store, (id, second.version)).await);
    let claim = claim_one(store, at_secs(60)).await;
    assert_eq!((claim.id(), claim.attempt, claim.unfinished_starts), (id, 1, 0));
}

/// Nothing begins under an old version, after the end, after a cancel, or for what never was; nothing is counted then.
pub async fn only_the_unchecked_begin_intake(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, unchecked(an_email(company))).await;
    let version = read(store, company, id).await.version;
    for item in [(id, version + 1), (an_email(company).id, version)] {
        assert!(begun(store, item, START).await.is_none(), "{item:?}");
    }
    assert_eq!(awaiting(store, START, 10).await[0].unfinished_starts, 0);
    let start = begun(store, (id, version), START).await.expect("it is there");
    assert!(begun(store, (id, version), START).await.is_none(), "a second time");
    assert!(ends(store, (id, start.version)).await);
    let version = read(store, company, id).await.version;
    assert!(begun(store, (id, version), START).await.is_none(), "it is not ACCEPTED any more");

    let withdrawn = stored(store, unchecked(an_email(company))).await;
    let version = read(store, company, withdrawn).await.version;
    let start = begun(store, (withdrawn, version), START).await.expect("it is there");
    assert_eq!(store.cancel(company, withdrawn, START).await.expect("cancel"), Cancelled::Done);
    assert!(!ends(store, (withdrawn, start.version)).await, "withdrawn meanwhile");
    assert!(begun(store, (withdrawn, start.version), START).await.is_none());
}

/// Of several at once one begins, and one start is counted.
pub async fn intake_begins_once_in_a_race(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, unchecked(an_email(company))).await;
    let version = read(store, company, id).await.version;
    let begins = super::stage::race(8, |_| begun(store, (id, version), START));
    assert_eq!(begins.iter().filter(|begun| begun.is_some()).count(), 1);
    assert_eq!(awaiting(store, at_secs(60), 10).await[0].unfinished_starts, 1);
}

/// What passed is in the queue under the envelope read from its content, with the events given.
pub async fn what_passed_enters_the_queue(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let email = unchecked(testkit::a_full_email(company));
    let id = stored(store, email.clone()).await;
    let item = awaiting(store, START, 10).await.remove(0);
    let given = vec![
        Event::new(EventKind::Intaking, at_secs(1)),
        Event::new(EventKind::Enqueued, at_secs(2)).with("parts", 3),
    ];
    let passed = IntakeVerdict::Passed { envelope: an_envelope() };
    let ended = store.settle_intake((id, item.version), passed, given.clone(), at_secs(2)).await;
    assert!(ended.expect("intake ends"));

    let stored = read(store, company, id).await;
    assert_eq!((stored.status, stored.due_at), (Status::Enqueued, Some(email.due_at)));
    assert_eq!(stored.envelope, an_envelope());
    assert_eq!((&stored.wishes, &stored.entity), (&email.wishes, &email.entity), "the rest is as accepted");
    assert_eq!(events(store, company, id).await[1..], given);
    assert!(awaiting(store, at_secs(60), 10).await.is_empty());
    let claim = claim_one(store, email.due_at).await;
    assert_eq!((claim.id(), claim.envelope, claim.attempt), (id, an_envelope(), 1));
    assert_eq!(claim.trace, email.trace);
}

/// What passed is found under the envelope read from its content, not under the one it came with, and is due when it
/// was to be due.
pub async fn what_passed_is_found_under_its_envelope(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut email = NewEmail { due_at: at_secs(90), ..an_email(company) };
    email.envelope.tags = vec!["before".into()];
    let id = stored(store, unchecked(email.clone())).await;
    let version = read(store, company, id).await.version;
    assert!(ends(store, (id, version)).await);
    let by_to = |to: &Address| EmailFilter { to: Some(to.clone()), ..EmailFilter::default() };
    let by_tag = |tag: &str| EmailFilter { tag: Some(tag.to_owned()), ..EmailFilter::default() };
    assert_eq!(listed_ids(store, company, &by_to(&an_envelope().to)).await, [id]);
    assert_eq!(listed_ids(store, company, &by_to(&email.envelope.to)).await, []);
    assert_eq!(listed_ids(store, company, &by_tag("read")).await, [id]);
    assert_eq!(listed_ids(store, company, &by_tag("before")).await, []);
    assert_eq!(claimed_ids(store, at_secs(89), 10).await, []);
    assert_eq!(claimed_ids(store, at_secs(90), 10).await, [id]);
}

/// What was refused is INVALID, says why, and never enters the queue.
pub async fn what_was_refused_is_invalid(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, unchecked(an_email(company))).await;
    let item = awaiting(store, START, 10).await.remove(0);
    let refused = IntakeVerdict::Refused { failure: a_failure("INVALID_TEMPLATE") };
    let given = vec![Event::new(EventKind::Invalid, at_secs(2)).with("errorCode", "INVALID_TEMPLATE")];
    assert!(store.settle_intake((id, item.version), refused, given.clone(), at_secs(2)).await.expect("ends"));
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.due_at, email.dead_at), (Status::Invalid, None, None));
    let failure = email.last_failure.expect("it says why");
    assert_eq!((failure.code.as_str(), failure.at), ("INVALID_TEMPLATE", at_secs(2)));
    assert_eq!(events(store, company, id).await[1..], given);
    assert!(awaiting(store, at_secs(60), 10).await.is_empty());
    assert_eq!(claimed_ids(store, at_secs(60), 10).await, []);
}

/// Intake ends once: not under an old version, not after a cancel, not for what never was.
pub async fn intake_ends_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let first = stored(store, unchecked(an_email(company))).await;
    let version = read(store, company, first).await.version;
    let nothing = an_email(company).id;
    for item in [(first, version + 1), (nothing, version)] {
        assert!(!ends(store, item).await, "{item:?}");
    }
    assert_eq!(kinds(store, company, first).await, [EventKind::Accepted], "refused without a trace");
    assert!(ends(store, (first, version)).await);
    let history = kinds(store, company, first).await;
    assert!(!ends(store, (first, version)).await, "a second time");
    let current = read(store, company, first).await.version;
    assert!(!ends(store, (first, current)).await, "it is not ACCEPTED any more");
    assert_eq!(kinds(store, company, first).await, history);

    let second = stored(store, unchecked(an_email(company))).await;
    let version = read(store, company, second).await.version;
    assert_eq!(store.cancel(company, second, START).await.expect("cancel"), Cancelled::Done);
    assert!(!ends(store, (second, version)).await, "withdrawn meanwhile");
    assert_eq!(read(store, company, second).await.status, Status::Cancelled);
}

/// Several at once end an intake once.
pub async fn intake_ends_once_in_a_race(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, unchecked(an_email(company))).await;
    let version = read(store, company, id).await.version;
    let answers = super::stage::race(8, |_| ends(store, (id, version)));
    assert_eq!(answers.iter().filter(|ended| **ended).count(), 1);
    assert_eq!(kinds(store, company, id).await, [EventKind::Accepted, EventKind::Enqueued]);
}

async fn awaiting(store: &dyn Store, now: Timestamp, limit: u32) -> Vec<IntakeItem> {
    store.awaiting_intake(now, limit).await.expect("intake is answered")
}

async fn begun(store: &dyn Store, item: (model::EmailId, u64), now: Timestamp) -> Option<IntakeStart> {
    store.begin_intake(item, now).await.expect("a begin is answered")
}

async fn ends(store: &dyn Store, item: (model::EmailId, u64)) -> bool {
    let passed = IntakeVerdict::Passed { envelope: an_envelope() };
    let events = vec![Event::new(EventKind::Enqueued, START)];
    store.settle_intake(item, passed, events, START).await.expect("an intake is answered")
}

fn unchecked(email: NewEmail) -> NewEmail {
    NewEmail { status: Status::Accepted, ..email }
}

fn an_envelope() -> Envelope {
    Envelope {
        from: Some(a_mailbox("Read <read@example.com>")),
        to: an_address("from-the-content@example.com"),
        cc: vec![an_address("copy@example.com")],
        bcc: vec![],
        reply_to: None,
        subject: Secret::new("Read from the content".into()),
        headers: vec![("X-Read".into(), Secret::new("yes".into()))],
        tags: vec!["read".into()],
    }
}
