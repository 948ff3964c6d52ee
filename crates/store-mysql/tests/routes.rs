//! Emails wait by many routes: none is overlooked, and none waits behind others that were due later.

mod support;

use std::collections::BTreeSet;

use model::{Claim, EmailId, NewEmail};
use store::contract::stage::{a_company, a_worker, acceptance, request};
use store::{ClaimRequest, Outbox as _, Routes};
use support::{Fixture, fresh};
use testkit::{START, an_email_at, at_secs};

async fn claimed(store: &Fixture, routes: Routes, limit: u32) -> Vec<Claim> {
    let request = ClaimRequest { routes, ..request(a_worker(&**store).await, at_secs(60), limit) };
    store.claim(request).await.expect("answered")
}

/// More routes than are looked at together, asked for in every way.
#[tokio::test]
async fn none_of_many_routes_is_overlooked() {
    let store = fresh().await;
    let companies = [a_company(&*store, "first").await, a_company(&*store, "second").await];
    let mut waiting: BTreeSet<EmailId> = BTreeSet::new();
    let names: Vec<String> = (0..150).map(|number| format!("route-{number}")).collect();
    for company in companies {
        let email = |name: &String| NewEmail { route: name.clone(), ..an_email_at(company, START) };
        let emails: Vec<NewEmail> = names.iter().chain(&names).map(email).collect();
        waiting.extend(emails.iter().map(|email| email.id));
        store.accept(acceptance(emails, START)).await.expect("accepted");
    }
    let (some, others) = names.split_at(75);
    let ways = [Routes::All, Routes::Only(some.to_vec()), Routes::Except(some.to_vec())];
    for routes in ways.iter().cycle().take(30) {
        for claim in claimed(&store, routes.clone(), 7).await {
            assert!(routes.allow(&claim.route), "{}", claim.route);
            assert!(waiting.remove(&claim.id()), "claimed once");
        }
    }
    for routes in [Routes::Only(others.to_vec()), Routes::All] {
        loop {
            let claims = claimed(&store, routes.clone(), 50).await;
            if claims.is_empty() {
                break;
            }
            assert!(claims.iter().all(|claim| waiting.remove(&claim.id())), "claimed once");
        }
    }
    assert!(waiting.is_empty(), "{} overlooked", waiting.len());
}

/// Of one company's emails of the same priority the one that has been due longest goes first, by whatever route.
#[tokio::test]
async fn what_has_been_due_longest_goes_first_across_routes() {
    let store = fresh().await;
    let company = a_company(&*store, "acme").await;
    let mut expected = Vec::new();
    for (secs, route) in [(1, "c"), (2, "a"), (3, "b"), (4, "a"), (5, "c"), (6, "c"), (7, "a"), (8, "b")] {
        let email = NewEmail { route: route.into(), due_at: at_secs(secs), ..an_email_at(company, START) };
        expected.push(email.id);
        store.accept(acceptance(vec![email], START)).await.expect("accepted");
    }
    let mut found = Vec::new();
    for limit in [1, 3, 1, 2, 1] {
        found.extend(claimed(&store, Routes::All, limit).await.iter().map(Claim::id));
    }
    assert_eq!(found, expected);
}
