//! Laws of the dead letters: FAILED emails are listed, found by every filter, replayed under their old ids and
//! dropped.

use std::time::Duration;

use model::{
    Category, CompanyId, EmailId, EventKind, Failure, KeyMode, NewEmail, Status, Timestamp, Verdict,
};
use testkit::{START, TTL, a_failure, a_recipient, an_address, an_email_at, at_secs};

use super::stage::{
    DAY, a_company, attempted, claim_one, claimed_ids, fail, in_status, kinds, read, retry_at, sent, stored,
};
use crate::{Cursor, DeadLetterFilter, ReplayCount, Store};

/// Failed emails are listed newest first, whole, page by page; nothing else is.
pub async fn the_failed_are_listed(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for status in super::stage::REACHABLE {
        if status != Status::Failed {
            in_status(store, company, status, START).await;
        }
    }
    let mut ids = Vec::new();
    for number in 0..9 {
        ids.push(in_status(store, company, Status::Failed, at_secs(number)).await);
    }
    ids.reverse();
    assert_eq!(listed(store, company, &DeadLetterFilter::default(), 50).await, ids);
    assert_eq!(listed(store, company, &DeadLetterFilter::default(), 2).await, ids);
    let page = store.dead_letters(company, &DeadLetterFilter::default(), None, 1).await.expect("a page");
    assert_eq!(page.items, [read(store, company, ids[0]).await]);
    assert_eq!(page.items[0].dead_at, Some(at_secs(8)));
    assert_eq!(count(store, company, &DeadLetterFilter::default()).await, 9);
    assert_eq!(store.stats(at_secs(9)).await.expect("stats").dead_letters, 9);
}

/// Six dead letters, number n accepted n seconds and failed 100 + n seconds after the start.
async fn six(store: &dyn Store, company: CompanyId) -> Vec<EmailId> {
    let categories = [Category::Permanent, Category::Validation];
    let mut ids = Vec::new();
    for number in 0..6 {
        let mut email = an_email_at(company, at_secs(number));
        email.due_at = at_secs(100 + number);
        email.envelope.to = an_address(&format!("to-{}@example.com", number % 3));
        email.recipient = Some(a_recipient(&format!("person-{}", number / 2)));
        email.mode = if number == 4 { KeyMode::Test } else { KeyMode::Live };
        let index = usize::try_from(number).expect("few");
        ids.push(stored(store, email).await);
        let failure =
            Failure { category: categories[index % 2], ..a_failure(&format!("CODE_{}", number / 3)) };
        let verdict = Verdict::Fail { failure, outcome_unknown: false };
        attempted(store, verdict, at_secs(100 + number)).await;
    }
    ids
}

fn any() -> DeadLetterFilter {
    DeadLetterFilter::default()
}

fn cases(ids: &[EmailId]) -> Vec<(&'static str, DeadLetterFilter, &'static [usize])> {
    let text = |text: &str| Some(text.to_owned());
    vec![
        ("all", any(), &[5, 4, 3, 2, 1, 0]),
        ("ids", DeadLetterFilter { ids: Some(vec![ids[4], ids[1], ids[1]]), ..any() }, &[4, 1]),
        ("no ids", DeadLetterFilter { ids: Some(vec![]), ..any() }, &[]),
        ("code", DeadLetterFilter { code: text("CODE_1"), ..any() }, &[5, 4, 3]),
        ("category", DeadLetterFilter { category: Some(Category::Validation), ..any() }, &[5, 3, 1]),
        ("no such category", DeadLetterFilter { category: Some(Category::Quota), ..any() }, &[]),
        ("to", DeadLetterFilter { to: Some(an_address("to-2@example.com")), ..any() }, &[5, 2]),
        ("recipient", DeadLetterFilter { recipient: text("person-1"), ..any() }, &[3, 2]),
        ("failed since", DeadLetterFilter { since: Some(at_secs(104)), ..any() }, &[5, 4]),
        ("failed until", DeadLetterFilter { until: Some(at_secs(102)), ..any() }, &[1, 0]),
        ("mode", DeadLetterFilter { mode: Some(KeyMode::Test), ..any() }, &[4]),
        ("accepted since is not meant", DeadLetterFilter { until: Some(at_secs(50)), ..any() }, &[]),
        (
            "several",
            DeadLetterFilter {
                code: text("CODE_0"),
                since: Some(at_secs(101)),
                until: Some(at_secs(102)),
                ..any()
            },
            &[1],
        ),
        (
            "ids and code",
            DeadLetterFilter { ids: Some(vec![ids[0], ids[5]]), code: text("CODE_1"), ..any() },
            &[5],
        ),
    ]
}

/// Every filter lists and counts what it names.
pub async fn every_filter_finds_its_dead_letters(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let ids = six(store, company).await;
    for (case, filter, expected) in cases(&ids) {
        let expected: Vec<EmailId> = expected.iter().map(|number| ids[*number]).collect();
        assert_eq!(listed(store, company, &filter, 50).await, expected, "{case}");
        assert_eq!(listed(store, company, &filter, 1).await, expected, "{case}, one by one");
        let matched = u64::try_from(expected.len()).expect("few");
        assert_eq!(count(store, company, &filter).await, matched, "{case}");
    }
}

/// Every filter replays exactly what it names, and a count before changes nothing.
pub async fn every_filter_replays_what_it_names(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let number_of_cases = cases(&six(store, company).await).len();
    for number in 0..number_of_cases {
        let company = a_company(store, &format!("acme-{number}")).await;
        let ids = six(store, company).await;
        let (case, filter, expected) = cases(&ids).swap_remove(number);
        count(store, company, &filter).await;
        let now = at_secs(200);
        let replayed = replay(store, company, &filter, now).await;
        assert_eq!(replayed, u64::try_from(expected.len()).expect("few"), "{case}");
        for (index, id) in ids.iter().enumerate() {
            let status = if expected.contains(&index) { Status::Enqueued } else { Status::Failed };
            assert_eq!(read(store, company, *id).await.status, status, "{case}: email {index}");
        }
        assert_eq!(claimed_ids(store, now, 100).await.len(), expected.len(), "{case}");
    }
}

/// A replayed email keeps its id and content, goes on counting its attempts, and starts its retries and its time to
/// live anew.
pub async fn a_replay_starts_a_new_series(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let email = an_email_at(company, START);
    let id = stored(store, email.clone()).await;
    attempted(store, retry_at(at_secs(1)), START).await;
    attempted(store, fail("SMTP_REJECTED_550"), at_secs(1)).await;
    let mut attempts = 2;
    for round in 1..=2 {
        let before = kinds(store, company, id).await;
        let now = START.plus(3 * DAY * round);
        assert_eq!(replay(store, company, &any(), now).await, 1, "round {round}");
        let replayed = read(store, company, id).await;
        assert_eq!((replayed.status, replayed.due_at), (Status::Enqueued, Some(now)), "round {round}");
        assert_eq!((replayed.dead_at, replayed.attempts), (None, attempts), "round {round}");
        assert_eq!(replayed.expires_at, now.plus(TTL), "round {round}: a fresh time to live");
        assert_eq!(kinds(store, company, id).await, [before, vec![EventKind::Replayed]].concat());
        assert_eq!(count(store, company, &any()).await, 0);

        let claim = claim_one(store, now).await;
        attempts += 1;
        assert_eq!((claim.id(), claim.attempt, claim.attempt_in_series), (id, attempts, 1), "round {round}");
        assert_eq!((claim.expires_at, claim.unfinished_starts), (now.plus(TTL), 0), "round {round}");
        assert!(claim.content.as_ref() == Some(&email.content), "the content is still there");
        let guard = super::stage::begun(store, claim.guard, now).await;
        super::stage::settle(store, guard, fail("SMTP_REJECTED_554"), now).await;
        assert_eq!(read(store, company, id).await.dead_at, Some(now), "a dead letter again");
    }
}

/// By the series a provider knows attempts again. A replay begins another, unless the email may have got through before;
/// what is not known of a later attempt changes nothing of it.
pub async fn what_may_have_got_through_keeps_its_series(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    stored(store, an_email_at(company, START)).await;
    let not_known = |at| Verdict::Retry { due_at: at, failure: a_failure("TIMEOUT"), outcome_unknown: true };
    let (mut now, mut series) = (START, Vec::new());
    for (verdict, is_replayed) in [
        (retry_at(at_secs(1)), false),
        (fail("SMTP_REJECTED_550"), true),
        (not_known(at_secs(3)), false),
        (fail("SMTP_REJECTED_550"), true),
        (fail("SMTP_REJECTED_550"), true),
    ] {
        series.push(attempted(store, verdict, now).await.series);
        now = now.plus(Duration::from_secs(1));
        assert_eq!(replay(store, company, &any(), now).await, u64::from(is_replayed));
    }
    assert_eq!(series, [0, 0, 2, 2, 2]);
}

/// A replayed email can be sent, and is then no dead letter.
pub async fn a_replayed_email_can_be_sent(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = in_status(store, company, Status::Failed, START).await;
    assert_eq!(replay(store, company, &any(), at_secs(5)).await, 1);
    attempted(store, sent(), at_secs(5)).await;
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.sent_at, email.dead_at), (Status::Sent, Some(at_secs(5)), None));
    assert_eq!(count(store, company, &any()).await, 0);
}

/// An email that had been delayed lives after its replay as long as it would have lived after its own time.
pub async fn a_replay_of_the_delayed_lives_as_long(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let scheduled_at = START.plus(2 * DAY);
    let email = NewEmail {
        due_at: scheduled_at,
        scheduled_at: Some(scheduled_at),
        expires_at: scheduled_at.plus(TTL),
        ..an_email_at(company, START)
    };
    let id = stored(store, email).await;
    attempted(store, fail("SMTP_REJECTED_550"), scheduled_at).await;
    let now = scheduled_at.plus(DAY);
    assert_eq!(replay(store, company, &any(), now).await, 1);
    assert_eq!(read(store, company, id).await.expires_at, now.plus(TTL));
}

/// What is not FAILED is not replayed, even when named.
pub async fn only_the_failed_are_replayed(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for status in super::stage::REACHABLE {
        let id = in_status(store, company, status, START).await;
        let only = DeadLetterFilter { ids: Some(vec![id]), ..any() };
        if status == Status::Failed {
            continue;
        }
        let before = (read(store, company, id).await, kinds(store, company, id).await);
        let replayed = store.replay(company, &only, at_secs(1), 10).await.expect("replay");
        assert_eq!(replayed, ReplayCount { matched: 0, replayed: 0 }, "{status}");
        assert_eq!((read(store, company, id).await, kinds(store, company, id).await), before, "{status}");
    }
}

/// A replay goes in steps of the size asked for, until nothing matches.
pub async fn a_replay_goes_in_steps(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for _ in 0..5 {
        in_status(store, company, Status::Failed, START).await;
    }
    for expected in [2, 2, 1] {
        let counted = store.replay(company, &any(), at_secs(1), 2).await.expect("replay");
        assert_eq!(counted.replayed, expected);
        assert!(counted.matched >= counted.replayed, "{counted:?}");
    }
    let counted = store.replay(company, &any(), at_secs(1), 2).await.expect("replay");
    assert_eq!(counted, ReplayCount::default());
    assert_eq!(claimed_ids(store, at_secs(1), 10).await.len(), 5);
}

/// Replays at once replay each dead letter once.
pub async fn a_replay_counts_once_in_a_race(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for _ in 0..10 {
        in_status(store, company, Status::Failed, START).await;
    }
    let counts = super::stage::race(4, |_| async {
        store.replay(company, &any(), at_secs(1), 100).await.expect("replay").replayed
    });
    assert_eq!(counts.iter().sum::<u64>(), 10, "{counts:?}");
}

/// A dropped dead letter is off the list and out of replay's reach; the email stays FAILED and says so.
pub async fn a_dropped_dead_letter_stays_failed(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let dropped = in_status(store, company, Status::Failed, START).await;
    let kept = in_status(store, company, Status::Failed, START).await;
    assert!(store.drop_dead_letter(company, dropped, at_secs(5)).await.expect("drop"));
    let email = read(store, company, dropped).await;
    assert_eq!((email.status, email.dead_at, email.failed_at), (Status::Failed, None, Some(START)));
    assert_eq!(kinds(store, company, dropped).await.last(), Some(&EventKind::DeadLetterDropped));
    let history = kinds(store, company, dropped).await;
    assert!(!store.drop_dead_letter(company, dropped, at_secs(6)).await.expect("drop"), "once only");
    assert_eq!(kinds(store, company, dropped).await, history);

    assert_eq!(listed(store, company, &any(), 10).await, [kept]);
    assert_eq!(count(store, company, &any()).await, 1);
    let only = DeadLetterFilter { ids: Some(vec![dropped]), ..any() };
    assert_eq!(store.replay(company, &only, at_secs(7), 10).await.expect("replay"), ReplayCount::default());
}

/// Only a dead letter can be dropped.
pub async fn only_dead_letters_are_dropped(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for status in super::stage::REACHABLE {
        if status == Status::Failed {
            continue;
        }
        let id = in_status(store, company, status, START).await;
        let before = (read(store, company, id).await, kinds(store, company, id).await);
        assert!(!store.drop_dead_letter(company, id, at_secs(1)).await.expect("drop"), "{status}");
        assert_eq!((read(store, company, id).await, kinds(store, company, id).await), before, "{status}");
    }
}

async fn listed(
    store: &dyn Store,
    company: CompanyId,
    filter: &DeadLetterFilter,
    limit: u32,
) -> Vec<EmailId> {
    let mut ids = Vec::new();
    let mut after: Option<Cursor> = None;
    for _ in 0..1_000 {
        let page = store.dead_letters(company, filter, after.as_ref(), limit).await.expect("a page is read");
        assert!(page.items.len() <= usize::try_from(limit).expect("a small limit"), "a page is too long");
        ids.extend(page.items.iter().map(|email| email.id));
        match page.next {
            Some(next) => after = Some(next),
            None => return ids,
        }
    }
    panic!("the pages do not end");
}

async fn count(store: &dyn Store, company: CompanyId, filter: &DeadLetterFilter) -> u64 {
    store.count_dead_letters(company, filter).await.expect("dead letters are counted")
}

/// Replays until nothing matches.
pub async fn replay(store: &dyn Store, company: CompanyId, filter: &DeadLetterFilter, now: Timestamp) -> u64 {
    let mut replayed = 0;
    for _ in 0..100 {
        let counted = store.replay(company, filter, now, 4).await.expect("a replay is answered");
        replayed += counted.replayed;
        if counted.matched == 0 {
            return replayed;
        }
    }
    panic!("the replay does not end");
}
