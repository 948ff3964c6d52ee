//! Calls that share a transaction are answered as if they had come one after the other.

mod support;

use std::time::Duration;

use model::{CompanyId, Content, NewEmail};
use sqlx::Row as _;
use store::contract::stage::{
    a_company, a_key, acceptance, claim, listed_ids, read, sent, settlement, start,
};
use store::thread::HotThread;
use store::{
    Acceptance, Accepted, Begun, Companies as _, EmailFilter, Lookup as _, Outbox, Settled, StoreError,
};
use store_mysql::MysqlStore;
use support::{Database, Fixture};
use testkit::{START, a_recipient, an_email};

/// A store that makes its groups on the test's own thread: what is asked at once comes together.
async fn fresh() -> Fixture {
    let database = Database::new().await;
    let opened = MysqlStore::open_on(&database.config(), HotThread::of_caller()).await;
    Fixture { store: opened.expect("a new store opens"), database }
}

/// All at once, so that they share groups.
async fn accept_all(store: &Fixture, requests: Vec<Acceptance>) -> Vec<Result<Accepted, StoreError>> {
    let store: &MysqlStore = store;
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
    let too_long = Some("x".repeat(300));
    requests.insert(11, acceptance(vec![NewEmail { external_id: too_long, ..an_email(company) }], START));
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
    let stores: [&MysqlStore; 2] = [&first, &second];
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

/// Keys, names, tags and identifiers that differ in case or by a space at the end are different, as on other stores.
#[tokio::test]
async fn what_differs_is_told_apart() {
    let store = fresh().await;
    let texts = ["k1", "K1", "k1 ", "k1\u{a0}", "\u{e9}", "e", "e\u{301}"];
    for text in texts {
        let company = a_company(&*store, text).await;
        assert_eq!(store.company_named(text).await.expect("read").map(|company| company.id), Some(company));
    }
    let company = a_company(&*store, "acme").await;
    let mut ids = Vec::new();
    for (number, text) in texts.into_iter().enumerate() {
        let mut email = an_email(company);
        email.envelope.tags = vec![text.into()];
        email.external_id = Some(text.into());
        email.entity = Some(testkit::an_entity(text));
        email.recipient = Some(a_recipient(text));
        ids.push(email.id);
        let key = Some(a_key(text, 1, &number.to_string(), START));
        let accepted = store.accept(Acceptance { key, ..acceptance(vec![email], START) }).await;
        assert_eq!(accepted, Ok(Accepted::Stored), "{text:?}");
    }
    for (text, id) in texts.into_iter().zip(ids) {
        let text = || Some(text.to_owned());
        let filters = [
            EmailFilter { tag: text(), ..EmailFilter::default() },
            EmailFilter { external_id: text(), ..EmailFilter::default() },
            EmailFilter { entity: text(), ..EmailFilter::default() },
            EmailFilter { recipient: text(), ..EmailFilter::default() },
        ];
        for filter in filters {
            assert_eq!(listed_ids(&*store, company, &filter).await, [id], "{filter:?}");
        }
    }
}

/// A large attachment goes in one piece; one that the server would not take is refused alone, and says why.
#[tokio::test]
async fn large_contents_are_stored_or_refused_alone() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let row = sqlx::query("SELECT CAST(@@max_allowed_packet AS SIGNED) AS bytes");
    let row = row.fetch_one(&mut store.database.connect().await).await.expect("asked");
    let packet = usize::try_from(row.get::<i64, _>("bytes")).expect("a size");
    // Nothing that can be compressed.
    let raw = |bytes: usize| {
        let bytes = (0..bytes / 16).flat_map(|_| uuid::Uuid::new_v4().into_bytes()).collect();
        NewEmail { content: Content::Raw(bytes), ..an_email(company) }
    };
    let (large, too_large) = (raw(12 << 20), raw(packet));
    let requests = [large.clone(), an_email(company), too_large, an_email(company)];
    let requests = requests.into_iter().map(|email| acceptance(vec![email], START)).collect();
    let answers = accept_all(&store, requests).await;
    let refused = answers[2].as_ref().expect_err("longer than any packet");
    assert!(refused.to_string().contains("max_allowed_packet"), "{refused}");
    for number in [0, 1, 3] {
        assert_eq!(answers[number], Ok(Accepted::Stored), "{number}");
    }
    let found = store.content(company, large.id).await.expect("read");
    assert!(found == Some(large.content), "it reads back byte by byte");
}
