//! Laws of acceptance: what is stored reads back as it was handed in, a request is stored whole or not at all,
//! and the day's limit is kept. Idempotency keys are in `idempotency`, recipients in `recipients`.

use model::{Content, Email, EventKind, KeyMode, NewEmail, Recipient, Status, Timestamp};
use testkit::{START, a_full_email, an_email, an_email_at, at_secs};

use super::stage::{DAY, a_company, acceptance, backlog, kinds, listed_ids, read, stored};
use crate::{Acceptance, Accepted, EmailFilter, Pruned, Retention, Store};

/// Every field of an email reads back as it was handed in.
pub async fn an_email_reads_back_field_by_field(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let email = a_full_email(company);
    stored(store, email.clone()).await;
    assert_reads_back(&email, &read(store, company, email.id).await);
}

/// What was not given is absent, not empty.
pub async fn a_bare_email_reads_back(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let email = an_email(company);
    stored(store, email.clone()).await;
    assert_reads_back(&email, &read(store, company, email.id).await);
}

fn assert_reads_back(new: &NewEmail, email: &Email) {
    assert_eq!(email.id, new.id);
    assert_eq!(email.company, new.company);
    assert_eq!(email.request_id, new.request_id);
    assert_eq!(email.mode, new.mode);
    assert_eq!(email.status, new.status);
    assert_eq!(email.envelope, new.envelope);
    assert_eq!(email.envelope.to.expose(), new.envelope.to.expose(), "as it was written");
    assert_eq!(without_id(email.recipient.clone()), without_id(new.recipient.clone()));
    assert_eq!(email.external_id, new.external_id);
    assert_eq!(email.entity, new.entity);
    assert_eq!(email.priority, new.priority);
    assert_eq!(email.created_at, new.created_at);
    assert_eq!(email.due_at, Some(new.due_at));
    assert_eq!(email.scheduled_at, new.scheduled_at);
    assert_eq!(email.expires_at, new.expires_at);
    assert_eq!(email.wishes, new.wishes);
    assert_eq!(email.size_bytes, u64::try_from(new.content.size_bytes()).expect("a small size"));
    assert_eq!(email.attempts, 0);
    let times = (email.sent_at, email.delivered_at, email.failed_at, email.dead_at);
    assert_eq!(times, (None, None, None, None));
    assert_eq!((&email.provider, &email.provider_message_id), (&None, &None));
    assert_eq!(email.last_failure, None);
    assert!(!email.outcome_unknown);
}

/// The store gives a recipient its id; the rest is the company's.
fn without_id(recipient: Option<Recipient>) -> Option<Recipient> {
    recipient.map(|recipient| Recipient { id: None, ..recipient })
}

/// Content reads back byte by byte: text or none, attachments, an .eml, and content of some size.
pub async fn content_reads_back(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let composed = |html: &str, text: Option<&str>| Content::Composed {
        html: html.into(),
        text: text.map(Into::into),
        attachments: vec![],
    };
    let contents = [
        a_full_email(company).content,
        composed("<p>Hello</p>", None),
        composed("", Some("")),
        composed(&"<p>olá 🎉</p>".repeat(30_000), None),
        Content::Raw(b"Subject: x\r\n\r\nbody \xff\x00 end".to_vec()),
    ];
    for content in contents {
        let id = stored(store, NewEmail { content: content.clone(), ..an_email(company) }).await;
        let found = store.content(company, id).await.expect("content is read");
        assert!(found.as_ref() == Some(&content), "stored {content:?}, found {found:?}");
    }
}

/// A checked email begins its history with ENQUEUED, an unchecked one with ACCEPTED, at the time of acceptance.
pub async fn history_begins_with_the_acceptance(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let cases = [(Status::Enqueued, EventKind::Enqueued), (Status::Accepted, EventKind::Accepted)];
    for (status, kind) in cases {
        let id = stored(store, NewEmail { status, ..an_email_at(company, at_secs(5)) }).await;
        let events = super::stage::events(store, company, id).await;
        assert_eq!(events.len(), 1, "{status}: {events:?}");
        assert_eq!((events[0].kind, events[0].at), (kind, at_secs(5)), "{status}");
        assert_eq!(read(store, company, id).await.status, status);
    }
}

/// A batch is stored whole, each email with its own history and content.
pub async fn a_batch_is_stored_whole(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let ids = backlog(store, company, 1_000, START).await;
    assert_eq!(listed_ids(store, company, &EmailFilter::default()).await.len(), ids.len());
    for id in [ids[0], ids[499], ids[500], ids[999]] {
        assert_eq!(kinds(store, company, id).await, [EventKind::Enqueued]);
        assert!(store.content(company, id).await.expect("content is read").is_some());
    }
}

/// One email that cannot be stored (its id is taken) keeps the whole batch out, and the request's key unused.
pub async fn a_batch_is_all_or_none(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let taken = an_email(company);
    stored(store, taken.clone()).await;
    let batch = vec![an_email(company), an_email(company), NewEmail { id: taken.id, ..an_email(company) }];
    let key = Some(super::stage::a_key("k1", 1, "first", START));
    let refused = store.accept(Acceptance { key: key.clone(), ..acceptance(batch, START) }).await;
    assert!(refused.is_err(), "an id cannot be stored twice: {refused:?}");
    assert_eq!(listed_ids(store, company, &EmailFilter::default()).await, [taken.id]);
    assert_eq!(kinds(store, company, taken.id).await, [EventKind::Enqueued], "the first one is untouched");

    let again = Acceptance { key, ..acceptance(vec![an_email(company)], START) };
    assert_eq!(store.accept(again).await.expect("accept"), Accepted::Stored, "the key was not used up");
}

const FULL: Accepted = Accepted::OverDailyLimit { left: 0 };

/// The day's emails are used up exactly at the limit, and a refused batch counts nothing.
pub async fn the_daily_limit_is_exact(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let cases = [
        // emails in the request, limit, answer
        (3, Some(5), Accepted::Stored),
        (3, Some(5), Accepted::OverDailyLimit { left: 2 }),
        (2, Some(5), Accepted::Stored),
        (1, Some(5), FULL),
        (1, Some(6), Accepted::Stored),
        (1, Some(6), FULL),
        (1, Some(2), FULL),
    ];
    for (step, (count, limit, expected)) in cases.into_iter().enumerate() {
        assert_eq!(accept_some(store, company, count, limit, at_secs(60)).await, expected, "step {step}");
    }
    assert_eq!(listed_ids(store, company, &EmailFilter::default()).await.len(), 6);
}

/// The limit is of a UTC day: it is open again at midnight, not 24 hours later, and never shared with others.
pub async fn the_daily_limit_starts_anew_at_midnight(store: &dyn Store) {
    let acme = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    let late = START.plus(DAY).minus(std::time::Duration::from_secs(1));
    let next_day = START.plus(DAY);
    let cases = [
        (acme, late, Accepted::Stored),
        (acme, late, FULL),
        (other, late, Accepted::Stored),
        (acme, next_day, Accepted::Stored),
        (acme, next_day, FULL),
        (acme, next_day.plus(DAY), Accepted::Stored),
    ];
    for (step, (company, now, expected)) in cases.into_iter().enumerate() {
        assert_eq!(accept_some(store, company, 1, Some(1), now).await, expected, "step {step}");
    }
}

/// A limit that is set at noon counts what came since midnight, and what came while there was none in between.
pub async fn a_daily_limit_counts_what_came_before_it(store: &dyn Store) {
    let (acme, other) = (a_company(store, "acme").await, a_company(store, "other").await);
    let yesterday = START.minus(std::time::Duration::from_secs(1));
    let noon = START.plus(DAY / 2);
    let unlimited = [(acme, 4, yesterday), (acme, 2, START), (other, 4, at_secs(60)), (acme, 1, noon)];
    for (company, count, now) in unlimited {
        assert_eq!(accept_some(store, company, count, None, now).await, Accepted::Stored);
    }
    set_limit(store, acme, Some(5)).await;
    let cases =
        [(1, 2, FULL), (3, 5, Accepted::OverDailyLimit { left: 2 }), (2, 5, Accepted::Stored), (1, 5, FULL)];
    for (step, (count, limit, expected)) in cases.into_iter().enumerate() {
        assert_eq!(accept_some(store, acme, count, Some(limit), noon).await, expected, "step {step}");
    }
    set_limit(store, acme, None).await;
    assert_eq!(accept_some(store, acme, 3, None, noon).await, Accepted::Stored);
    set_limit(store, acme, Some(9)).await;
    let left = Accepted::OverDailyLimit { left: 1 };
    assert_eq!(accept_some(store, acme, 2, Some(9), noon).await, left, "eight came in all");
    assert_eq!(accept_some(store, acme, 1, Some(9), noon).await, Accepted::Stored);
}

/// What was handed in on a day is of no use once that day is over everywhere.
pub async fn days_of_limits_are_forgotten(store: &dyn Store) {
    let (acme, other) = (a_company(store, "acme").await, a_company(store, "other").await);
    for company in [acme, other] {
        assert_eq!(accept_some(store, company, 2, Some(5), START).await, Accepted::Stored);
    }
    let retention = Retention { content: 30 * DAY, emails: 30 * DAY, dead_letters: 30 * DAY };
    let pruned = async |days: u32| {
        let mut gone = 0;
        loop {
            let step = store.prune(&retention, START.plus(DAY * days), 1).await.expect("pruned");
            gone += step.tallies;
            if step == Pruned::default() {
                return gone;
            }
        }
    };
    assert_eq!(pruned(1).await, 0, "yesterday is kept");
    assert_eq!(accept_some(store, acme, 2, Some(5), START.plus(DAY * 2)).await, Accepted::Stored);
    assert_eq!(pruned(2).await, 2);
    let left = Accepted::OverDailyLimit { left: 3 };
    assert_eq!(accept_some(store, acme, 4, Some(5), START.plus(DAY * 2)).await, left, "today stays counted");
}

async fn set_limit(store: &dyn Store, company: model::CompanyId, daily_limit: Option<u32>) {
    let mut company = store.company(company).await.expect("a company").expect("it is there");
    company.settings.daily_limit = daily_limit;
    assert!(store.update_company(company).await.expect("updated"));
}

async fn accept_some(
    store: &dyn Store,
    company: model::CompanyId,
    count: usize,
    daily_limit: Option<u32>,
    now: Timestamp,
) -> Accepted {
    let email = || NewEmail { mode: KeyMode::Live, ..an_email_at(company, now) };
    let emails = (0..count).map(|_| email()).collect();
    let acceptance = Acceptance { daily_limit, ..acceptance(emails, now) };
    store.accept(acceptance).await.expect("an acceptance is answered")
}

/// The limit holds when requests come at once.
pub async fn the_daily_limit_holds_in_a_race(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let answers = super::stage::race(20, |_| accept_some(store, company, 1, Some(7), START));
    let stored = answers.iter().filter(|answer| **answer == Accepted::Stored).count();
    assert_eq!(stored, 7, "{answers:?}");
    assert_eq!(listed_ids(store, company, &EmailFilter::default()).await.len(), 7);
}
