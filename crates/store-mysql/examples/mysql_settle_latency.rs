//! How long it takes to settle groups of 64, all sent or all given up, on a database of one's own.
//!
//! `cargo run -p store-mysql --example mysql_settle_latency -- mysql://…/database`

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{EmailId, Verdict};
use store::contract::stage::{a_company, backlog, begun, claim, fail, sent, settlement};
use store::{Outbox as _, Tallies as _, Upkeep as _};
use store_mysql::{MysqlConfig, MysqlStore};
use testkit::START;

const TOGETHER: u32 = 64;
const ROUNDS: usize = 40;

#[tokio::main]
async fn main() {
    let url = std::env::args().nth(1).expect("the URL of an empty database");
    let config = MysqlConfig::parse(&url).expect("a good URL");
    let store = Arc::new(MysqlStore::open(&config).await.expect("opens"));
    let company = a_company(&*store, &format!("company-{}", EmailId::new(START))).await;
    // The first round prepares the statements.
    for (name, verdict) in [("sent", sent()), ("sent", sent()), ("given up", fail("SMTP_REJECTED_550"))] {
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            backlog(&*store, company, TOGETHER as usize, START).await;
            times.push(settle_together(&store, &verdict).await);
        }
        times.sort_unstable();
        let (middle, most) = (times[times.len() / 2], times[times.len() * 95 / 100]);
        println!("{TOGETHER} {name}: half within {middle:?}, 95 of 100 within {most:?}");
    }
    let start = Instant::now();
    let mut notes = 0;
    loop {
        let folded = store.fold(1_000).await.expect("folded");
        notes += folded;
        if folded < 1_000 {
            break;
        }
    }
    println!("{notes} notes added up in {:?}", start.elapsed());
    store.close().await;
}

async fn settle_together(store: &Arc<MysqlStore>, verdict: &Verdict) -> Duration {
    let mut guards = Vec::new();
    for claim in claim(&**store, START, TOGETHER).await {
        guards.push(begun(&**store, claim.guard, START).await);
    }
    assert_eq!(guards.len(), TOGETHER as usize);
    let start = Instant::now();
    let settling: Vec<_> = guards
        .into_iter()
        .map(|guard| {
            let (store, settlement) = (Arc::clone(store), settlement(guard, verdict.clone(), START));
            tokio::spawn(async move { store.settle(settlement).await.expect("settled") })
        })
        .collect();
    for settling in settling {
        settling.await.expect("settled");
    }
    start.elapsed()
}
