//! Whose turn it is, on gates whose knowledge the tests write.

use std::sync::Arc;

use provider::{Provider, Trouble};
use testkit::{ManualClock, START};

use super::*;
use crate::health::Health;
use crate::testing::{FakeProvider, Stage, a_claim};

const CONCURRENCY: u32 = 64;

/// Gates of `main`, `relay` and `paced`; the last has a rate of 5 a second, and those named rest.
async fn gates(resting: &[&str]) -> Gates {
    let stage = Stage::with(FakeProvider::takes_everything()).await;
    for name in resting {
        let health = Health::default().after(Trouble::Outage, "NETWORK_ERROR", None, 1, START);
        assert_eq!(stage.gateway.store.note_provider(name, 0, &health.encode()).await, Ok(true));
    }
    let provider = || -> Arc<dyn Provider> { Arc::new(FakeProvider::takes_everything()) };
    let providers = ["main", "relay", "paced"].map(|name| (name.to_owned(), provider()));
    let rates = BTreeMap::from([("paced".to_owned(), 5)]);
    let clock = Arc::new(ManualClock::default());
    let gates = Gates::new(stage.gateway.store.clone(), clock, Arc::new(providers.into()), rates);
    gates.refresh().await.expect("the store works");
    gates
}

/// A lineup that has met emails of these routes.
fn lineup(routes: &[&str]) -> Lineup {
    let company = testkit::a_company("acme").id;
    let claims: Vec<Claim> =
        routes.iter().map(|route| Claim { route: (*route).to_owned(), ..a_claim(company) }).collect();
    let mut lineup = Lineup::default();
    let limit = u32::try_from(claims.len()).expect("few");
    lineup.came(&Share { routes: Routes::All, limit }, &claims);
    lineup
}

fn only(route: &str, limit: u32) -> Share {
    Share { routes: Routes::Only(vec![route.to_owned()]), limit }
}

fn others(except: &[&str], limit: u32) -> Share {
    let except: Vec<String> = except.iter().map(|route| (*route).to_owned()).collect();
    let routes = if except.is_empty() { Routes::All } else { Routes::Except(except) };
    Share { routes, limit }
}

#[tokio::test]
async fn shares_of_the_worker() {
    let open = gates(&[]).await;
    let closed = gates(&["main"]).await;
    let flying = |counts: &[(&str, u32)]| -> BTreeMap<String, u32> {
        counts.iter().map(|(route, count)| ((*route).to_owned(), *count)).collect()
    };
    // Three quarters are 48, half of those 24.
    let cases = [
        ("nothing is known", &open, lineup(&[]), flying(&[]), vec![others(&[], 24)]),
        ("quiet routes", &open, lineup(&["main", "relay"]), flying(&[("main", 3)]), vec![others(&[], 24)]),
        (
            "a busy route gets no more than three quarters",
            &open,
            lineup(&["main", "relay"]),
            flying(&[("main", 40)]),
            vec![others(&["main"], 24), only("main", 8)],
        ),
        (
            "a route with a rate holds two seconds of it",
            &open,
            lineup(&["paced", "relay"]),
            flying(&[("paced", 4)]),
            vec![others(&["paced"], 24), only("paced", 6)],
        ),
        ("a resting provider", &closed, lineup(&["main", "relay"]), flying(&[]), vec![others(&["main"], 24)]),
        ("with another to go to", &closed, lineup(&["main>relay"]), flying(&[]), vec![others(&[], 24)]),
    ];
    for (name, gates, lineup, in_flight, expected) in cases {
        assert_eq!(lineup.shares(gates, &in_flight, CONCURRENCY, CONCURRENCY), expected, "{name}");
    }
}

#[tokio::test]
async fn a_round_ends_when_every_share_came_short() {
    let gates = gates(&[]).await;
    let mut lineup = lineup(&["paced"]);
    let in_flight = BTreeMap::new();
    let mut asked = Vec::new();
    while let Some(share) = lineup.next(&gates, &in_flight, CONCURRENCY, CONCURRENCY) {
        lineup.came(&share, &[]);
        asked.push(share.routes);
    }
    assert_eq!(asked, [others(&["paced"], 0).routes, only("paced", 0).routes]);
    assert!(lineup.next(&gates, &in_flight, CONCURRENCY, 0).is_none(), "no room, no claim");
}

#[tokio::test]
async fn strays_are_looked_for_once() {
    let gates = gates(&["main"]).await;
    let mut lineup = lineup(&["main"]);
    assert_eq!(lineup.closed(&gates), ["main"]);
    lineup.strayed("main");
    let share = lineup.next(&gates, &BTreeMap::new(), CONCURRENCY, CONCURRENCY).expect("something to claim");
    assert_eq!(share.routes, Routes::All, "the closed route is among them");
    lineup.came(&share, &[]);
    let shares = lineup.shares(&gates, &BTreeMap::new(), CONCURRENCY, CONCURRENCY);
    assert!(shares.iter().all(|share| !share.routes.allow("main")), "{shares:?}");
}

#[tokio::test]
async fn no_more_routes_are_remembered_than_there_may_be() {
    let names: Vec<String> = (0..ROUTES_MAX + 10).map(|n| format!("route{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(lineup(&names).known.len(), ROUTES_MAX);
}
