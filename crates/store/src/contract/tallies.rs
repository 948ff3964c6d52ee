//! Laws of tallies: what was counted is what happened, by day, entity and company.

use model::{Bounce, CompanyId, EventKind, KeyMode, NewEmail, ReportKind, Timestamp};
use testkit::{START, an_address, an_email_at, an_entity, at_secs};

use super::feedback::{report, reported};
use super::stage::{a_company, attempted, fail, sent, stored};
use crate::tallies::{TALLIED, day_of};
use crate::{DayTally, EntityTally, Pruned, Retention, Store};

const DAY_SECS: u64 = 24 * 3600;

async fn folded(store: &dyn Store) {
    while store.fold(100).await.expect("folded") == 100 {}
}

fn about(company: CompanyId, entity: &str, address: &str, now: Timestamp) -> NewEmail {
    let mut email = NewEmail { entity: Some(an_entity(entity)), ..an_email_at(company, now) };
    email.envelope.to = an_address(address);
    email
}

async fn was_sent(store: &dyn Store, email: NewEmail) -> model::EmailId {
    let now = email.created_at;
    let id = stored(store, email).await;
    attempted(store, sent(), now).await;
    id
}

fn tally(kind: EventKind, total: u64, unique_recipients: u64) -> EntityTally {
    EntityTally { kind, total, unique_recipients }
}

async fn summary(store: &dyn Store, company: CompanyId, entity: &str, since_day: i64) -> Vec<EntityTally> {
    let mut found = store.entity_tally(company, entity, since_day).await.expect("read");
    found.sort_by_key(|tally| tally.kind.as_str());
    found
}

/// Counts nobody can ask for any more go, a step at a time, and with them the addresses they were about; what happened to
/// one of those since then keeps it.
pub async fn old_days_are_forgotten(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let old = START;
    let young = START.plus(std::time::Duration::from_secs(10 * DAY_SECS));
    for number in 0..12 {
        let address = format!("person-{number}@example.com");
        was_sent(store, about(company, "club-9", &address, old)).await;
    }
    was_sent(store, about(company, "club-8", "ana@example.com", old)).await;
    was_sent(store, about(company, "club-9", "person-3@example.com", young)).await;
    folded(store).await;
    let retention = Retention {
        content: std::time::Duration::from_secs(DAY_SECS),
        emails: std::time::Duration::from_secs(DAY_SECS),
        dead_letters: std::time::Duration::from_secs(DAY_SECS),
    };
    let pruned = async |days: u64, limit| {
        let now = START.plus(std::time::Duration::from_secs(days * DAY_SECS));
        let mut gone = 0;
        loop {
            let step = store.prune(&retention, now, limit).await.expect("pruned");
            gone += step.tallies;
            assert!(step.tallies <= u64::from(limit) * 4, "a step is bounded: {step:?}");
            if step == Pruned::default() {
                return gone;
            }
        }
    };
    let all = async |entity: &str| summary(store, company, entity, 0).await;
    assert_eq!(pruned(366, 5).await, 0, "a year is kept");
    assert_eq!(all("club-9").await, [tally(EventKind::Sent, 13, 12)]);
    // Two counts by entity, one by company; twelve who were met, one of them since.
    assert_eq!(pruned(367, 5).await, 3 + 12);
    assert_eq!(all("club-9").await, [tally(EventKind::Sent, 1, 1)]);
    assert_eq!(all("club-8").await, []);
    let days = store.company_days(Some(company), None, 0).await.expect("read");
    assert_eq!(days.iter().map(|tally| tally.day).collect::<Vec<_>>(), [day_of(young)]);
    assert_eq!(pruned(377, 5).await, 3);
    assert_eq!(all("club-9").await, []);
}

/// Totals and unique recipients per event, of the entity that is asked for.
pub async fn an_entity_is_summed_up(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for (number, address) in ["ana@example.com", "ANA@example.com", "bob@example.com"].into_iter().enumerate()
    {
        let id = was_sent(store, about(company, "club-9", address, START)).await;
        let at = |report: model::Report| model::Report { at: at_secs(1), ..report };
        reported(store, at(report(&format!("d{number}"), ReportKind::Delivered, id)), at_secs(6)).await;
        if number == 2 {
            reported(store, at(report("open-1", ReportKind::Opened, id)), at_secs(7)).await;
            reported(store, at(report("open-2", ReportKind::Opened, id)), at_secs(8)).await;
        }
    }
    was_sent(store, about(company, "club-8", "ana@example.com", START)).await;
    was_sent(store, an_email_at(company, START)).await;
    folded(store).await;
    let expected =
        [tally(EventKind::Delivered, 3, 2), tally(EventKind::Opened, 2, 1), tally(EventKind::Sent, 3, 2)];
    assert_eq!(summary(store, company, "club-9", day_of(START)).await, expected);
    assert_eq!(summary(store, company, "club-7", 0).await, []);
    let stranger = a_company(store, "stranger").await;
    assert_eq!(summary(store, stranger, "club-9", 0).await, []);
    let entities = store.entities(company, 10).await.expect("read");
    assert_eq!(entities.iter().map(|entity| entity.id.as_str()).collect::<Vec<_>>(), ["club-8", "club-9"]);
}

/// Only what happened since the day counts, for totals and for recipients.
pub async fn a_summary_begins_at_a_day(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for day in 0..5 {
        let address = if day < 3 { "ana@example.com" } else { "bob@example.com" };
        was_sent(store, about(company, "club-9", address, at_secs(day * DAY_SECS))).await;
    }
    folded(store).await;
    let first = day_of(START);
    let cases = [(0, 5, 2), (2, 3, 2), (3, 2, 1), (4, 1, 1)];
    for (offset, total, unique) in cases {
        assert_eq!(
            summary(store, company, "club-9", first + offset).await,
            [tally(EventKind::Sent, total, unique)]
        );
    }
    assert_eq!(summary(store, company, "club-9", first + 5).await, []);
    let days = store.entity_days(company, "club-9", first + 3).await.expect("read");
    let day = |offset| DayTally { day: first + offset, kind: EventKind::Sent, total: 1 };
    assert_eq!(days, [day(3), day(4)]);
}

/// A company's days, of live and of test keys.
pub async fn a_companys_days_are_counted(store: &dyn Store) {
    let (acme, other) = (a_company(store, "acme").await, a_company(store, "other").await);
    for (company, mode) in
        [(acme, KeyMode::Live), (acme, KeyMode::Live), (acme, KeyMode::Test), (other, KeyMode::Live)]
    {
        was_sent(store, NewEmail { mode, ..an_email_at(company, START) }).await;
    }
    stored(store, NewEmail { mode: KeyMode::Live, ..an_email_at(acme, START) }).await;
    attempted(store, fail("SMTP_REJECTED_550"), START).await;
    folded(store).await;
    let day = day_of(START);
    let total = async |company, mode, kind| {
        let days = store.company_days(company, mode, day).await.expect("read");
        days.iter()
            .filter(|tally| tally.kind == kind && tally.day == day)
            .map(|tally| tally.total)
            .sum::<u64>()
    };
    assert_eq!(total(Some(acme), None, EventKind::Sent).await, 3);
    assert_eq!(total(Some(acme), Some(KeyMode::Live), EventKind::Sent).await, 2);
    assert_eq!(total(Some(acme), Some(KeyMode::Test), EventKind::Sent).await, 1);
    assert_eq!(total(Some(acme), None, EventKind::Failed).await, 1);
    assert_eq!(total(None, None, EventKind::Sent).await, 4);
    assert!(store.company_days(Some(acme), None, day + 1).await.expect("read").is_empty());
}

/// Every kind that is counted is counted, by whatever verb it comes.
pub async fn every_tallied_kind_is_counted(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = was_sent(store, about(company, "club-9", "ana@example.com", START)).await;
    let kinds = [
        ReportKind::Delivered,
        ReportKind::Delayed,
        ReportKind::Bounced(Bounce::Soft),
        ReportKind::Bounced(Bounce::Hard),
        ReportKind::Complained,
        ReportKind::Opened,
        ReportKind::Clicked,
        ReportKind::Failed,
        ReportKind::Sent,
        ReportKind::Other,
    ];
    for kind in kinds {
        reported(store, report(&format!("{kind:?}"), kind, id), at_secs(6)).await;
    }
    let overdue = stored(store, about(company, "club-9", "ana@example.com", START)).await;
    assert_eq!(store.expire(at_secs(2 * DAY_SECS), 10).await, Ok(1));
    let withdrawn = about(company, "club-9", "ana@example.com", at_secs(2 * DAY_SECS));
    let withdrawn = stored(store, withdrawn).await;
    store.cancel(company, withdrawn, at_secs(2 * DAY_SECS)).await.expect("answered");
    assert_ne!(overdue, withdrawn);
    folded(store).await;
    let found = summary(store, company, "club-9", 0).await;
    for kind in TALLIED {
        let expected = u64::from(kind != EventKind::Invalid);
        let total = found.iter().find(|tally| tally.kind == kind).map_or(0, |tally| tally.total);
        assert_eq!(total, expected, "{kind}");
    }
    assert!(found.iter().all(|tally| TALLIED.contains(&tally.kind)), "{found:?}");
}

/// Counts outlive the emails and the people.
pub async fn counts_survive_the_erasure(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for address in ["ana@example.com", "bob@example.com"] {
        was_sent(store, about(company, "club-9", address, START)).await;
    }
    folded(store).await;
    store.erase(company, &an_address("ana@example.com"), None, at_secs(9), 10).await.expect("erased");
    folded(store).await;
    assert_eq!(summary(store, company, "club-9", 0).await, [tally(EventKind::Sent, 2, 2)]);
}
