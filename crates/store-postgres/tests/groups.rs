//! Calls that share a transaction are answered as if they had come one after the other.

mod support;

use std::time::Duration;

use model::{CompanyId, Content, NewEmail, Recipient, Secret};
use sqlx::Row as _;
use store::contract::stage::{
    a_company, a_key, acceptance, begun, claim, listed_ids, read, sent, settlement, start,
};
use store::thread::HotThread;
use store::{Acceptance, Accepted, Begun, EmailFilter, Outbox, Recipients as _, Settled, StoreError};
use store_postgres::PostgresStore;
use support::{Database, Fixture};
use testkit::{START, a_recipient, an_address, an_email};

/// A store that makes its groups on the test's own thread: what is asked at once comes together.
async fn fresh() -> Fixture {
    let database = Database::new().await;
    let opened = PostgresStore::open_on(&database.config(), HotThread::of_caller()).await;
    Fixture { store: opened.expect("a new store opens"), database }
}

/// All at once, so that they share groups.
async fn accept_all(store: &Fixture, requests: Vec<Acceptance>) -> Vec<Result<Accepted, StoreError>> {
    let store: &PostgresStore = store;
    let mut answers: Vec<Option<Result<Accepted, StoreError>>> = requests.iter().map(|_| None).collect();
    let mut asking: Vec<_> = requests.into_iter().map(|request| store.accept(request)).collect();
    std::future::poll_fn(|context| {
        for (asking, answer) in asking.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let std::task::Poll::Ready(ready) = asking.as_mut().poll(context)
            {
                *answer = Some(ready);
            }
        }
        if answers.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    answers.into_iter().flatten().collect()
}

async fn count(store: &Fixture, company: CompanyId) -> usize {
    listed_ids(&**store, company, &EmailFilter::default()).await.len()
}

#[tokio::test]
async fn one_bad_request_fails_alone() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let known = an_email(company);
    store.accept(acceptance(vec![known.clone()], START)).await.expect("accepted");
    let twice = an_email(company);
    let mut requests: Vec<Acceptance> = (0..20).map(|_| acceptance(vec![an_email(company)], START)).collect();
    requests.insert(5, acceptance(vec![an_email(company), known], START));
    requests.insert(10, acceptance(vec![twice.clone()], START));
    requests.insert(11, acceptance(vec![NewEmail { priority: 0, ..an_email(company) }], START));
    requests.insert(15, acceptance(vec![twice], START));
    let answers = accept_all(&store, requests).await;
    let refused: Vec<usize> = (0..answers.len()).filter(|&number| answers[number].is_err()).collect();
    assert_eq!(refused, [5, 11, 15], "{answers:?}");
    assert_eq!(count(&store, company).await, 1 + 21);
}

#[tokio::test]
async fn the_daily_limit_counts_within_a_group() {
    let store = fresh().await;
    let (company, other) = (a_company(&*store, "acme").await, a_company(&*store, "other").await);
    let requests = (0..30)
        .map(|number| {
            let company = if number % 3 == 0 { other } else { company };
            let daily_limit = (number % 3 != 0).then_some(7);
            Acceptance { daily_limit, ..acceptance(vec![an_email(company), an_email(company)], START) }
        })
        .collect();
    let answers = accept_all(&store, requests).await;
    let over = answers.iter().filter(|answer| **answer == Ok(Accepted::OverDailyLimit { left: 1 })).count();
    assert_eq!(over, 20 - 3, "three requests of two emails each fit into seven");
    assert_eq!((count(&store, company).await, count(&store, other).await), (6, 20));
}

#[tokio::test]
async fn a_key_within_a_group_is_used_once() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let keyed = |key: &str, body: u8, number: usize| Acceptance {
        key: Some(a_key(key, body, &number.to_string(), START)),
        ..acceptance(vec![an_email(company)], START)
    };
    let mut requests: Vec<Acceptance> = (0..10).map(|number| keyed("same", 1, number)).collect();
    requests.extend((10..15).map(|number| keyed("same", 2, number)));
    requests.extend((15..20).map(|number| keyed(&format!("own-{number}"), 1, number)));
    let answers = accept_all(&store, requests.clone()).await;
    assert_eq!(answers[0], Ok(Accepted::Stored));
    assert!(answers[1..10].iter().all(|answer| *answer == Ok(Accepted::Replayed { answer: "0".into() })));
    assert!(answers[10..15].iter().all(|answer| *answer == Ok(Accepted::KeyReused)));
    assert!(answers[15..].iter().all(|answer| *answer == Ok(Accepted::Stored)));
    assert_eq!(count(&store, company).await, 6);

    // Again, now that all keys are known and none is twice in a group.
    let answers = accept_all(&store, requests[15..].to_vec()).await;
    let known = |(number, answer): (usize, &Result<Accepted, StoreError>)| {
        *answer == Ok(Accepted::Replayed { answer: (15 + number).to_string() })
    };
    assert!(answers.iter().enumerate().all(known), "{answers:?}");
    assert_eq!(count(&store, company).await, 6);
}

/// The first under a key is over the limit, so the second, which fits, gets the key.
#[tokio::test]
async fn a_key_goes_to_the_one_that_is_stored() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let keyed = |emails: usize, body: u8| Acceptance {
        key: Some(a_key("k1", body, &body.to_string(), START)),
        daily_limit: Some(2),
        ..acceptance((0..emails).map(|_| an_email(company)).collect(), START)
    };
    let answers = accept_all(&store, vec![keyed(3, 1), keyed(2, 2), keyed(1, 2), keyed(1, 3)]).await;
    let replayed = Accepted::Replayed { answer: "2".into() };
    let expected =
        [Accepted::OverDailyLimit { left: 2 }, Accepted::Stored, replayed.clone(), Accepted::KeyReused];
    assert_eq!(answers, expected.map(Ok));
    assert_eq!(store.accept(keyed(1, 2)).await, Ok(replayed), "the key is kept");
    let fresh_key = Acceptance { key: Some(a_key("k2", 1, "x", START)), ..keyed(1, 1) };
    assert_eq!(store.accept(fresh_key.clone()).await, Ok(Accepted::OverDailyLimit { left: 0 }));
    assert_eq!(
        store.accept(Acceptance { daily_limit: None, ..fresh_key }).await,
        Ok(Accepted::Stored),
        "who was refused has not used up the key"
    );
}

/// Two processes make the same people known at the same time: each person once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_named_at_once_are_one() {
    let first = fresh().await;
    let second = first.database.open().await;
    let company = a_company(&*first, "acme").await;
    let stores: [&PostgresStore; 2] = [&first, &second];
    let ids = store::contract::stage::race(8, |task| async move {
        let mut ids = Vec::new();
        for person in 0..20 {
            let recipient = Some(a_recipient(&format!("person-{}", (person + task * 3) % 20)));
            let email = NewEmail { recipient, ..an_email(company) };
            ids.push(email.id);
            stores[task % 2].accept(acceptance(vec![email], START)).await.expect("accepted");
        }
        ids
    });
    let mut people = std::collections::BTreeSet::new();
    for id in ids.into_iter().flatten() {
        people.extend(read(&*first, company, id).await.recipient.and_then(|recipient| recipient.id));
    }
    assert_eq!(people.len(), 20);
}

/// Strangers mean one person by different identifiers, in the same moment: the address of the last counts, also where it is
/// the one that was known before.
#[tokio::test]
async fn one_person_by_two_identifiers_in_a_group() {
    let store = fresh().await;
    for (name, keyed) in [("with keys", true), ("without", false)] {
        let company = a_company(&*store, name).await;
        let document_hmac = Some("5f".repeat(32));
        let by_both = Recipient { document_hmac: document_hmac.clone(), ..a_recipient("customer-7") };
        let by_name = a_recipient("customer-7");
        let by_document = Recipient { document_hmac, ..Recipient::default() };
        let request = |recipient: &Recipient, to: &str| {
            let mut email = NewEmail { recipient: Some(recipient.clone()), ..an_email(company) };
            email.envelope.to = an_address(to);
            let key = keyed.then(|| a_key(&email.id.to_string(), 1, "{}", START));
            Acceptance { key, ..acceptance(vec![email], START) }
        };
        store.accept(request(&by_both, "known@example.com")).await.expect("accepted");
        let groups = [
            [(&by_document, "other@example.com"), (&by_name, "known@example.com")],
            [(&by_name, "other@example.com"), (&by_document, "known@example.com")],
            [(&by_name, "one@example.com"), (&by_document, "other@example.com")],
        ];
        for group in groups {
            let requests = group.iter().map(|(recipient, to)| request(recipient, to)).collect();
            let answers = accept_all(&store, requests).await;
            assert_eq!(answers, [Ok(Accepted::Stored), Ok(Accepted::Stored)], "{name}: {group:?}");
            let people = store.recipients(company, None, 10).await.expect("read").items;
            let addresses: Vec<&str> = people.iter().map(|person| person.email.expose()).collect();
            assert_eq!(addresses, [group[1].1], "{name}: {group:?}");
        }
    }
}

/// The first of several statements makes one person of two identifiers, which the second names apart.
#[tokio::test]
async fn one_person_by_two_identifiers_in_a_large_request() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let document_hmac = Some("5f".repeat(32));
    let by_both = Recipient { document_hmac: document_hmac.clone(), ..a_recipient("customer-7") };
    let by_document = Recipient { document_hmac, ..Recipient::default() };
    // Two of these do not fit into a statement, packed as they are.
    let large: Vec<u8> = (0..320_000).flat_map(|_| uuid::Uuid::new_v4().into_bytes()).collect();
    let naming = |recipient, to: &str, content: &[u8]| {
        let content = Content::Raw(content.to_vec());
        let mut email = NewEmail { recipient: Some(recipient), content, ..an_email(company) };
        email.envelope.to = an_address(to);
        email
    };
    let emails = vec![
        naming(by_both, "one@example.com", &large),
        naming(a_recipient("customer-7"), "two@example.com", &large),
        naming(by_document, "three@example.com", b"Subject: x"),
    ];
    assert_eq!(store.accept(acceptance(emails, START)).await, Ok(Accepted::Stored));
    let people = store.recipients(company, None, 10).await.expect("read").items;
    let addresses: Vec<&str> = people.iter().map(|person| person.email.expose()).collect();
    assert_eq!(addresses, ["three@example.com"]);
}

/// The sealed copy is of the document by which a person is found.
#[tokio::test]
async fn another_document_does_not_replace_the_sealed_one() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let mut connection = store.database.connect().await;
    for (byte, sealed, expected) in [("5f", 1, 1), ("60", 2, 1), ("5f", 3, 3)] {
        let recipient = Recipient {
            document_hmac: Some(byte.repeat(32)),
            document_sealed: Some(Secret::new(vec![sealed])),
            ..a_recipient("customer-7")
        };
        let email = NewEmail { recipient: Some(recipient), ..an_email(company) };
        store.accept(acceptance(vec![email], START)).await.expect("accepted");
        let row = sqlx::query("SELECT document_hmac, document_sealed FROM recipients");
        let row = row.fetch_one(&mut connection).await.expect("one person");
        let found: (String, Vec<u8>) = (row.get(0), row.get(1));
        assert_eq!(found, ("5f".repeat(32), vec![expected]), "after {byte}, {sealed}");
    }
}

/// More than fits into one statement is still one transaction.
#[tokio::test]
async fn a_large_request_is_stored_whole_or_not_at_all() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let emails: Vec<NewEmail> = (0..2_500).map(|_| an_email(company)).collect();
    assert_eq!(store.accept(acceptance(emails.clone(), START)).await, Ok(Accepted::Stored));
    assert_eq!(count(&store, company).await, 2_500);
    let mut again: Vec<NewEmail> = (0..1_500).map(|_| an_email(company)).collect();
    again.push(emails[0].clone());
    assert!(store.accept(acceptance(again, START)).await.is_err());
    assert_eq!(count(&store, company).await, 2_500);
}

/// The same report twice in one group, and one of a worker that was too late among others that were not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_in_one_group_count_once() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    store::contract::stage::backlog(&*store, company, 50, START).await;
    let claims = claim(&*store, START, 50).await;
    let starts = store::contract::stage::race(2, |_| {
        let (store, claims) = (&store, &claims);
        async move {
            let mut begun = 0;
            for claim in claims {
                let answer = store.begin(start(claim.guard, START)).await.expect("answered");
                begun += usize::from(matches!(answer, Begun::Yes(_)));
            }
            begun
        }
    });
    assert_eq!(starts.iter().sum::<usize>(), 50, "{starts:?}");
    let settled = store::contract::stage::race(4, |task| {
        let (store, claims) = (&store, &claims);
        // Each its own report: one that is only made again would be as good as the first.
        let now = START.plus(Duration::from_millis(task as u64));
        async move {
            let mut done = 0;
            for claim in claims {
                let guard = model::Guard { version: claim.guard.version + 1, ..claim.guard };
                let answer = store.settle(settlement(guard, sent(), now)).await.expect("answered");
                done += usize::from(matches!(answer, Settled::Done(_)));
            }
            done
        }
    });
    assert_eq!(settled.iter().sum::<usize>(), 50, "{settled:?}");
}

/// What a provider says may hold a NUL, which PostgreSQL keeps in no text: the report must not be lost for it.
#[tokio::test]
async fn a_nul_in_a_report_does_no_harm() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let id = store::contract::stage::stored(&*store, an_email(company)).await;
    let claim = store::contract::stage::claim_one(&*store, START).await;
    let guard = begun(&*store, claim.guard, START).await;
    let failure = model::Failure { message: "554 \0 no".into(), ..testkit::a_failure("SMTP_REJECTED_554") };
    let verdict = model::Verdict::Fail { failure, outcome_unknown: false };
    let mut report = settlement(guard, verdict, START);
    report.events[0] = report.events[0].clone().with("errorMessage", "554 \0 no");
    assert!(matches!(store.settle(report).await, Ok(Settled::Done(_))));
    let email = read(&*store, company, id).await;
    assert_eq!(email.last_failure.map(|failure| failure.reason).as_deref(), Some("554 \u{fffd} no"));
}
