//! Laws of suppressions: an address is on a company's list once, however it is spelled, until it is taken off.

use model::{CompanyId, Suppression, SuppressionSource, Timestamp};
use testkit::{START, an_address, at_secs};

use super::stage::a_company;
use crate::{Cursor, Store};

fn suppression(address: &str, now: Timestamp) -> Suppression {
    Suppression {
        address: an_address(address),
        reason: format!("asked at {now}"),
        source: SuppressionSource::Company,
        email: None,
        created_at: now,
    }
}

async fn listed(store: &dyn Store, company: CompanyId, limit: u32) -> Vec<Suppression> {
    let mut all = Vec::new();
    let mut after: Option<Cursor> = None;
    loop {
        let page = store.suppressions(company, after.as_ref(), limit).await.expect("read");
        assert!(page.items.len() <= limit as usize);
        all.extend(page.items);
        match page.next {
            Some(next) => after = Some(next),
            None => return all,
        }
    }
}

pub async fn a_suppression_reads_back(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let first = suppression("ana@example.com", START);
    assert_eq!(store.suppress(company, vec![first.clone()]).await, Ok(1));
    let found = store.suppressed(company, &["bob@example.com", "ana@example.com"].map(an_address)).await;
    assert_eq!(found, Ok(vec![first.clone()]));
    assert_eq!(listed(store, company, 10).await, [first]);
    assert_eq!(store.suppressed(company, &[]).await, Ok(vec![]));
}

pub async fn an_address_is_listed_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    store.suppress(company, vec![suppression("ana@example.com", START)]).await.expect("written");
    let again = vec![suppression("ANA@example.com", at_secs(5)), suppression("bob@example.com", at_secs(5))];
    assert_eq!(store.suppress(company, again).await, Ok(1), "only the other is new");
    let found = store.suppressed(company, &[an_address("Ana@Example.com")]).await.expect("read");
    assert_eq!(found.iter().map(|found| found.created_at).collect::<Vec<_>>(), [START], "the first stays");
}

pub async fn a_suppression_is_lifted(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    store.suppress(company, vec![suppression("ana@example.com", START)]).await.expect("written");
    assert_eq!(store.lift(company, &an_address("ANA@example.com")).await, Ok(true));
    assert_eq!(store.lift(company, &an_address("ana@example.com")).await, Ok(false));
    assert_eq!(store.suppressed(company, &[an_address("ana@example.com")]).await, Ok(vec![]));
    assert_eq!(store.suppress(company, vec![suppression("ana@example.com", at_secs(9))]).await, Ok(1));
}

pub async fn suppressions_come_in_pages_newest_first(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for number in 0..25 {
        let one = suppression(&format!("r{number}@example.com"), at_secs(number));
        store.suppress(company, vec![one]).await.expect("written");
    }
    let addresses: Vec<String> =
        listed(store, company, 10).await.iter().map(|found| found.address.expose().to_owned()).collect();
    let expected: Vec<String> = (0..25).rev().map(|number| format!("r{number}@example.com")).collect();
    assert_eq!(addresses, expected);
}

pub async fn a_list_belongs_to_its_company(store: &dyn Store) {
    let (owner, stranger) = (a_company(store, "owner").await, a_company(store, "stranger").await);
    store.suppress(owner, vec![suppression("ana@example.com", START)]).await.expect("written");
    assert_eq!(store.suppressed(stranger, &[an_address("ana@example.com")]).await, Ok(vec![]));
    assert_eq!(store.lift(stranger, &an_address("ana@example.com")).await, Ok(false));
    assert_eq!(listed(store, stranger, 10).await, []);
    assert_eq!(listed(store, owner, 10).await.len(), 1);
}

/// That somebody is not to be written to outlives that we know anything else of them.
pub async fn a_suppression_survives_the_erasure(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    store.suppress(company, vec![suppression("ana@example.com", START)]).await.expect("written");
    store.erase(company, &an_address("ana@example.com"), None, at_secs(5), 10).await.expect("erased");
    assert_eq!(store.suppressed(company, &[an_address("ana@example.com")]).await.expect("read").len(), 1);
}
