//! Laws of the idempotency key: one key, one email; the key lives and dies with the request it came with.

use model::{CompanyId, EmailId, KeyMode, NewEmail, Timestamp};
use testkit::{START, an_email_at, at_secs};

use super::stage::{DAY, a_company, a_key, acceptance, listed_ids, race};
use crate::{Acceptance, Accepted, EmailFilter, IdempotencyKey, QUICK_HASH, Store};

/// The same request under the same key gets the first answer again and stores nothing.
pub async fn the_same_request_gets_the_first_answer(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let (id, first) = send(store, company, a_key("k1", 1, "first", START), START).await;
    let (_, second) = send(store, company, a_key("k1", 1, "second", START), at_secs(9)).await;
    let (_, third) = send(store, company, a_key("k1", 1, "third", START), at_secs(3600)).await;
    assert_eq!(first, Accepted::Stored);
    assert_eq!(second, Accepted::Replayed { answer: "first".into() });
    assert_eq!(third, Accepted::Replayed { answer: "first".into() });
    assert_eq!(emails(store, company).await, [id]);
}

/// What a key stands for can be asked for, by its company and in its time.
pub async fn a_kept_answer_is_read(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    let key = a_key("k1", 1, "first", START);
    send(store, company, key.clone(), START).await;
    let kept = async |company, name: &str, now| store.kept_answer(company, name, now).await.expect("read");
    let first = kept(company, "k1", at_secs(9)).await.expect("it is kept");
    assert_eq!(first.to(&key.body_hash), Accepted::Replayed { answer: "first".into() });
    assert_eq!(first.to(&[7; 32]), Accepted::KeyReused);
    assert_eq!(kept(other, "k1", at_secs(9)).await, None);
    assert_eq!(kept(company, "K1", at_secs(9)).await, None);
    assert_eq!(kept(company, "k1", key.keep_until).await, None);
}

/// Another request under a used key is refused, and the first one still has its answer.
pub async fn another_request_under_the_key_is_refused(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let (id, _) = send(store, company, a_key("k1", 1, "first", START), START).await;
    let (_, other) = send(store, company, a_key("k1", 2, "other", START), START).await;
    assert_eq!(other, Accepted::KeyReused);
    assert_eq!(emails(store, company).await, [id]);
    let (_, again) = send(store, company, a_key("k1", 1, "again", START), START).await;
    assert_eq!(again, Accepted::Replayed { answer: "first".into() });
}

/// A hash of either kind is kept to the last byte, blanks at its end with it; what cannot be compared is taken for the same.
pub async fn hashes_of_both_kinds_are_kept(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let quick = |key: &str, body: u8| {
        let mut body_hash = [body; 32];
        body_hash[16..].copy_from_slice(&QUICK_HASH);
        IdempotencyKey { body_hash, ..a_key(key, body, "first", START) }
    };
    let sha = |key: &str, body: u8| a_key(key, body, "first", START);
    let (replayed, reused) = (Accepted::Replayed { answer: "first".into() }, Accepted::KeyReused);
    let cases = [
        (quick("quick", 1), Accepted::Stored),
        (quick("quick", 1), replayed.clone()),
        (quick("quick", 2), reused.clone()),
        (sha("quick", 2), replayed.clone()),
        (sha("sha", 1), Accepted::Stored),
        (sha("sha", 2), reused),
        (quick("sha", 2), replayed),
    ];
    for (number, (key, expected)) in cases.into_iter().enumerate() {
        assert_eq!(send(store, company, key, START).await.1, expected, "request {number}");
    }
    assert_eq!(emails(store, company).await.len(), 2);
}

/// A key belongs to a company: the same key of two companies makes two emails. Keys differ by case.
pub async fn keys_belong_to_their_company(store: &dyn Store) {
    let acme = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    for (company, key) in [(acme, "k1"), (other, "k1"), (acme, "K1"), (acme, "k1 ")] {
        let (id, accepted) = send(store, company, a_key(key, 1, "answer", START), START).await;
        assert_eq!(accepted, Accepted::Stored, "{key:?}");
        assert!(emails(store, company).await.contains(&id));
    }
    assert_eq!((emails(store, acme).await.len(), emails(store, other).await.len()), (3, 1));
}

/// Past its time a key is as good as new, also for another request, and is then remembered anew.
pub async fn a_key_is_forgotten_after_its_time(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let (first, _) = send(store, company, a_key("k1", 1, "first", START), START).await;
    let later = START.plus(DAY).plus(std::time::Duration::from_secs(1));
    let (second, accepted) = send(store, company, a_key("k1", 2, "second", later), later).await;
    assert_eq!(accepted, Accepted::Stored);
    assert_eq!(emails(store, company).await, [second, first]);
    let (_, again) = send(store, company, a_key("k1", 2, "third", later), later).await;
    assert_eq!(again, Accepted::Replayed { answer: "second".into() });
    let (_, old) = send(store, company, a_key("k1", 1, "fourth", later), later).await;
    assert_eq!(old, Accepted::KeyReused);
}

/// A request that was refused for the day's limit does not use up its key; one that was stored is answered again
/// even when the day is used up.
pub async fn the_daily_limit_leaves_keys_alone(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let limited = |key: &str, daily_limit| {
        let email = NewEmail { mode: KeyMode::Live, ..an_email_at(company, START) };
        let key = Some(a_key(key, 1, key, START));
        Acceptance { key, daily_limit: Some(daily_limit), ..acceptance(vec![email], START) }
    };
    let cases = [
        ("k1", 1, Accepted::Stored),
        ("k2", 1, Accepted::OverDailyLimit { left: 0 }),
        ("k1", 1, Accepted::Replayed { answer: "k1".into() }),
        ("k2", 2, Accepted::Stored),
    ];
    for (step, (key, limit, expected)) in cases.into_iter().enumerate() {
        let accepted = store.accept(limited(key, limit)).await.expect("an acceptance is answered");
        assert_eq!(accepted, expected, "step {step}");
    }
}

/// Twenty identical requests at once: one email, and everybody gets the winner's answer.
pub async fn twenty_identical_requests_at_once_make_one_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for round in 0..5 {
        let key = format!("k{round}");
        let answers = race(20, |task| send(store, company, a_key(&key, 1, &task.to_string(), START), START));
        let winners: Vec<usize> = (0..20).filter(|task| answers[*task].1 == Accepted::Stored).collect();
        assert_eq!(winners.len(), 1, "exactly one is stored: {answers:?}");
        let replayed = Accepted::Replayed { answer: winners[0].to_string() };
        let others_agree = (0..20).filter(|task| *task != winners[0]).all(|task| answers[task].1 == replayed);
        assert!(others_agree, "{answers:?}");
        let stored = emails(store, company).await;
        assert_eq!(stored.len(), round + 1);
        assert!(stored.contains(&answers[winners[0]].0), "the winner's email is the one that is there");
    }
}

/// Different requests under one key at once: one is stored, the others are refused.
pub async fn different_requests_under_one_key_at_once_make_one_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let answers = race(10, |task| {
        let body = u8::try_from(task).expect("few tasks");
        send(store, company, a_key("k1", body, &task.to_string(), START), START)
    });
    let count = |expected: &Accepted| answers.iter().filter(|(_, accepted)| accepted == expected).count();
    assert_eq!((count(&Accepted::Stored), count(&Accepted::KeyReused)), (1, 9), "{answers:?}");
    assert_eq!(emails(store, company).await.len(), 1);
}

/// One email under the key; gives back its id and the store's answer.
async fn send(
    store: &dyn Store,
    company: CompanyId,
    key: IdempotencyKey,
    now: Timestamp,
) -> (EmailId, Accepted) {
    let email = an_email_at(company, now);
    let id = email.id;
    let acceptance = Acceptance { key: Some(key), ..acceptance(vec![email], now) };
    (id, store.accept(acceptance).await.expect("an acceptance is answered"))
}

async fn emails(store: &dyn Store, company: CompanyId) -> Vec<EmailId> {
    listed_ids(store, company, &EmailFilter::default()).await
}
