//! Laws of sharing: companies share the workers by weight, and nobody's backlog delays anybody else.

use std::collections::BTreeMap;

use model::{CompanyId, CompanySettings, NewEmail};
use testkit::{START, an_email, at_secs};

use super::stage::{a_company, a_company_with, a_worker, attempted, backlog, hold, request, stored};
use crate::Store;

const BACKLOG: usize = 2_000;

/// Ten emails that arrive behind a long backlog are claimed before 1 % more of it is: one at a time.
pub async fn a_newcomer_overtakes_a_backlog_one_by_one(store: &dyn Store) {
    a_newcomer_overtakes(store, 1).await;
}

/// The same with batches of eight.
pub async fn a_newcomer_overtakes_a_backlog_in_eights(store: &dyn Store) {
    a_newcomer_overtakes(store, 8).await;
}

/// The same with batches of 64: the ten are in the very first one.
pub async fn a_newcomer_overtakes_a_backlog_in_sixty_fours(store: &dyn Store) {
    a_newcomer_overtakes(store, 64).await;
}

async fn a_newcomer_overtakes(store: &dyn Store, limit: u32) {
    let busy = a_company(store, "busy").await;
    let newcomer = a_company(store, "newcomer").await;
    backlog(store, busy, BACKLOG, START).await;
    let alone = claimed_by_company(store, limit, 128 / limit).await;
    assert_eq!(alone.get(&busy), Some(&128), "the busy company has the workers for itself");

    backlog(store, newcomer, 10, START).await;
    let (mut of_busy, mut of_newcomer) = (0, 0);
    let batch = usize::try_from(limit).expect("a small limit");
    while of_newcomer < 10 {
        let claimed = claimed_by_company(store, limit, 1).await;
        of_busy += claimed.get(&busy).copied().unwrap_or(0);
        of_newcomer += claimed.get(&newcomer).copied().unwrap_or(0);
        assert!(
            of_busy <= (BACKLOG / 100).max(batch - 10.min(batch)),
            "{of_busy} of the backlog went before the newcomer's ten ({of_newcomer} so far)"
        );
    }
}

/// With weights 3 and 1 and work for both, the claims go 3 to 1.
pub async fn weights_divide_the_claims(store: &dyn Store) {
    let heavy = a_company_with(store, "heavy", CompanySettings { weight: 3, ..Default::default() }).await.id;
    let light = a_company(store, "light").await;
    backlog(store, light, 600, START).await;
    backlog(store, heavy, 600, START).await;
    for (limit, claims) in [(1, 200), (5, 40), (8, 25)] {
        let claimed = claimed_by_company(store, limit, claims).await;
        let of = |company| f64::from(u32::try_from(claimed[company]).expect("few claims"));
        let ratio = of(&heavy) / of(&light);
        assert!((2.7..=3.3).contains(&ratio), "batches of {limit}: {ratio} to 1");
    }
}

/// Who had nothing to send for long has no claim to the time it did not use.
pub async fn idleness_earns_no_credit(store: &dyn Store) {
    let busy = a_company(store, "busy").await;
    let idle = a_company(store, "idle").await;
    backlog(store, idle, 5, START).await;
    backlog(store, busy, 600, START).await;
    claimed_by_company(store, 1, 300).await;
    backlog(store, idle, 200, at_secs(60)).await;
    let claimed = claimed_by_company(store, 1, 100).await;
    assert!(
        (40..=60).contains(&claimed[&idle]),
        "of 100 claims {} went to one of two equals",
        claimed[&idle]
    );
}

/// Where others have nothing due, a company gets everything, whatever its weight.
pub async fn nothing_is_left_idle_for_weights(store: &dyn Store) {
    let light = a_company(store, "light").await;
    let settings = CompanySettings { weight: 100, ..Default::default() };
    let heavy = a_company_with(store, "heavy", settings).await.id;
    backlog(store, light, 64, START).await;
    backlog(store, heavy, 3, START).await;
    let claimed = claimed_by_company(store, 67, 1).await;
    assert_eq!((claimed[&light], claimed[&heavy]), (64, 3));
}

/// A turn that its company cannot use is another's, in the same claim.
pub async fn unused_turns_go_to_others(store: &dyn Store) {
    let settings = CompanySettings { weight: 10, ..Default::default() };
    let heavy = a_company_with(store, "heavy", settings).await.id;
    let light = a_company(store, "light").await;
    backlog(store, light, 60, START).await;
    for round in 1..=10 {
        for limit in [2, 3] {
            backlog(store, heavy, 1, START).await;
            let claimed = claimed_by_company(store, limit, 1).await;
            let total: usize = claimed.values().sum();
            assert_eq!(total, limit as usize, "round {round}: {claimed:?}");
        }
    }
}

/// A company whose emails are all delayed or held has no turn to lose: others are served at once.
pub async fn who_only_waits_blocks_nobody(store: &dyn Store) {
    let waiting = a_company(store, "waiting").await;
    let busy = a_company(store, "busy").await;
    stored(store, an_email(waiting)).await;
    attempted(store, hold(), START).await;
    stored(store, NewEmail { due_at: at_secs(3_600), ..an_email(waiting) }).await;
    stored(store, NewEmail { due_at: at_secs(3_600), ..an_email(busy) }).await;
    backlog(store, busy, 20, START).await;
    for claim in 1..=20 {
        let claimed = claimed_by_company(store, 1, 1).await;
        assert_eq!(claimed.get(&busy), Some(&1), "claim {claim} of 20");
    }
}

/// One due email is found at once among hundreds of companies that have something waiting for later.
pub async fn an_empty_claim_means_nothing_is_due(store: &dyn Store) {
    for number in 0..300 {
        let company = a_company(store, &format!("later-{number}")).await;
        stored(store, NewEmail { due_at: at_secs(3_600), ..an_email(company) }).await;
    }
    let company = a_company(store, "now").await;
    for claim in 1..=3 {
        backlog(store, company, 1, START).await;
        assert_eq!(claimed_by_company(store, 8, 1).await.get(&company), Some(&1), "claim {claim} of 3");
    }
}

/// 200 companies with a few emails each, next to one with a long backlog: each is served in the first round.
pub async fn many_companies_are_all_served(store: &dyn Store) {
    let noisy = a_company(store, "noisy").await;
    backlog(store, noisy, BACKLOG, START).await;
    claimed_by_company(store, 64, 2).await;
    let mut quiet = Vec::new();
    for number in 0..200 {
        let company = a_company(store, &format!("quiet-{number}")).await;
        backlog(store, company, 3, START).await;
        quiet.push(company);
    }
    let claimed = claimed_by_company(store, 32, 13).await;
    let unserved = quiet.iter().filter(|company| !claimed.contains_key(company)).count();
    assert_eq!(unserved, 0, "after 416 claims everybody had a turn");
    assert!(claimed[&noisy] <= 40, "the noisy one had {} of 416 turns", claimed[&noisy]);
}

/// How many emails of each company that many claims of that size bring.
async fn claimed_by_company(store: &dyn Store, limit: u32, claims: u32) -> BTreeMap<CompanyId, usize> {
    let worker = a_worker(store).await;
    let mut claimed = BTreeMap::new();
    for _ in 0..claims {
        for claim in store.claim(request(worker, at_secs(60), limit)).await.expect("a claim is answered") {
            *claimed.entry(claim.company).or_insert(0) += 1;
        }
    }
    claimed
}
