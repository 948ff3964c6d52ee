//! Laws of routes: emails wait by the list of their providers, and those of a route that is not asked for cost nothing.

use std::collections::BTreeSet;

use model::{Claim, CompanyId, CompanySettings, EmailId, NewEmail, Status, Verdict};
use testkit::{START, an_email_at, at_secs};

use super::stage::{
    a_company, a_company_with, a_worker, acceptance, attempted, backlog, claim_one, read, request, retry_at,
    settle,
};
use crate::{Accepted, ClaimRequest, Routes, Store};

async fn waiting_by(store: &dyn Store, company: CompanyId, route: &str, count: usize) -> BTreeSet<EmailId> {
    let emails: Vec<NewEmail> =
        (0..count).map(|_| NewEmail { route: route.into(), ..an_email_at(company, START) }).collect();
    let ids = emails.iter().map(|email| email.id).collect();
    for batch in emails.chunks(500) {
        let accepted = store.accept(acceptance(batch.to_vec(), START)).await.expect("accepted");
        assert_eq!(accepted, Accepted::Stored);
    }
    ids
}

async fn claimed(store: &dyn Store, routes: Routes, limit: u32) -> Vec<Claim> {
    let worker = a_worker(store).await;
    let request = ClaimRequest { routes, ..request(worker, at_secs(1), limit) };
    store.claim(request).await.expect("a claim is answered")
}

fn ids(claims: &[Claim]) -> BTreeSet<EmailId> {
    claims.iter().map(Claim::id).collect()
}

fn named(routes: &[&str]) -> Vec<String> {
    routes.iter().map(|&route| route.to_owned()).collect()
}

/// A claim takes emails of the routes it asks for, and of no others.
pub async fn a_claim_keeps_to_its_routes(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let main = waiting_by(store, company, "main", 3).await;
    let relay = waiting_by(store, company, "relay", 3).await;
    let both = waiting_by(store, company, "main>relay", 3).await;

    assert!(claimed(store, Routes::Except(named(&["main", "relay", "main>relay"])), 20).await.is_empty());
    assert!(claimed(store, Routes::Only(named(&["nowhere"])), 20).await.is_empty());
    assert!(claimed(store, Routes::Only(vec![]), 20).await.is_empty());
    let only = claimed(store, Routes::Only(named(&["relay"])), 20).await;
    assert_eq!(ids(&only), relay);
    assert!(only.iter().all(|claim| claim.route == "relay"));
    assert_eq!(ids(&claimed(store, Routes::Except(named(&["main"])), 20).await), both);
    for id in &main {
        assert_eq!(read(store, company, *id).await.status, Status::Enqueued, "untouched");
    }
    assert_eq!(ids(&claimed(store, Routes::All, 20).await), main);
}

/// A backlog on a route that is not asked for hides nothing behind it, of its own company or another.
pub async fn a_backlog_that_is_not_asked_for_hides_nothing(store: &dyn Store) {
    let (first, second) = (a_company(store, "first").await, a_company(store, "second").await);
    for company in [first, second] {
        waiting_by(store, company, "main", 2_000).await;
    }
    let mut wanted = waiting_by(store, first, "relay", 2).await;
    wanted.extend(waiting_by(store, second, "relay", 2).await);
    assert_eq!(ids(&claimed(store, Routes::Except(named(&["main"])), 10).await), wanted);
}

/// The urgent goes first within a company, whatever its route.
pub async fn priority_counts_across_routes(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut urgent = BTreeSet::new();
    for (route, priority) in [("a", 9), ("b", 1), ("c", 5), ("a", 1), ("d", 9)] {
        let email = NewEmail { route: route.into(), priority, ..an_email_at(company, START) };
        if priority == 1 {
            urgent.insert(email.id);
        }
        store.accept(acceptance(vec![email], START)).await.expect("accepted");
    }
    assert_eq!(ids(&claimed(store, Routes::All, 2).await), urgent);
    let third = claimed(store, Routes::All, 1).await;
    assert_eq!(third.iter().map(|claim| claim.route.as_str()).collect::<Vec<_>>(), ["c"]);
}

/// Two routes are no way around a company's limits, nor to a second share.
pub async fn limits_count_across_routes(store: &dyn Store) {
    let settings = CompanySettings { concurrency_max: Some(3), ..CompanySettings::default() };
    let narrow = a_company_with(store, "narrow", settings).await.id;
    let wide = a_company(store, "wide").await;
    for route in ["a", "b", "c"] {
        waiting_by(store, narrow, route, 10).await;
    }
    waiting_by(store, wide, "a", 30).await;
    let claims = claimed(store, Routes::All, 20).await;
    let of_narrow = claims.iter().filter(|claim| claim.company == narrow).count();
    assert_eq!((of_narrow, claims.len()), (3, 20));
}

/// What is put back with a route waits by it from then on; without one it stays where it was. A retry stays too.
pub async fn an_email_can_change_its_route(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    waiting_by(store, company, "old", 1).await;
    let claim = claim_one(store, at_secs(1)).await;
    assert_eq!((claim.route.as_str(), &claim.last_provider), ("old", &None));
    let put_back =
        |route: Option<&str>| Verdict::PutBack { due_at: at_secs(1), route: route.map(str::to_owned) };
    settle(store, claim.guard, put_back(Some("new")), at_secs(1)).await;

    assert!(claimed(store, Routes::Only(named(&["old"])), 5).await.is_empty());
    let moved = claimed(store, Routes::Only(named(&["new"])), 5).await;
    assert_eq!(moved.len(), 1);
    assert_eq!((moved[0].route.as_str(), moved[0].attempt), ("new", 1));
    settle(store, moved[0].guard, put_back(None), at_secs(1)).await;
    attempted(store, retry_at(at_secs(2)), at_secs(1)).await;
    let again = claim_one(store, at_secs(2)).await;
    assert_eq!((again.route.as_str(), again.attempt), ("new", 2));
    assert_eq!(again.last_provider.as_deref(), Some("relay"), "the attempt before named its provider");
}

/// An empty claim for some routes does not keep the next claim from finding all.
pub async fn routes_do_not_disturb_the_order_of_turns(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    backlog(store, company, 3, START).await;
    waiting_by(store, company, "zzz", 3).await;
    for _ in 0..3 {
        assert!(claimed(store, Routes::Only(named(&["mmm"])), 5).await.is_empty());
    }
    assert_eq!(claimed(store, Routes::All, 10).await.len(), 6);
}
