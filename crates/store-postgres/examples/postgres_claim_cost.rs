//! What a claim costs with 1,000 and with 1,000,000 emails waiting: about the same.
//!
//! `cargo run --release -p store-postgres --example postgres_claim_cost -- postgres://…/an_empty_database`

use std::time::{Duration, Instant};

use model::{EmailId, Timestamp, WorkerId};
use store::{Acceptance, ClaimRequest, Companies, Outbox, Routes, StoreError};
use store_postgres::{PostgresConfig, PostgresStore};
use testkit::{START, a_company, an_email};

const CLAIMS: u32 = 50;
const COMPANIES: usize = 10;
const BATCH: usize = 1_000;

#[tokio::main]
async fn main() -> Result<(), StoreError> {
    let url = std::env::args().nth(1).expect("the URL of an empty database");
    let config = PostgresConfig::parse(&url).expect("a good URL");
    let store = PostgresStore::open(&config).await?;
    let companies: Vec<_> = (0..COMPANIES).map(|n| a_company(&format!("company-{n}"))).collect();
    for company in &companies {
        store.add_company(company.clone()).await?;
    }
    println!("{CLAIMS} claims of each size, {COMPANIES} companies; three round trips each");
    let mut waiting = 0;
    for wanted in [5_000_usize, 100_000, 1_000_000] {
        while waiting < wanted {
            let company = companies[waiting / BATCH % COMPANIES].id;
            let emails = (0..BATCH)
                .map(|_| model::NewEmail { id: EmailId::new(START), ..an_email(company) })
                .collect();
            store.accept(Acceptance { company, emails, key: None, daily_limit: None, now: START }).await?;
            waiting += BATCH;
        }
        for limit in [1, 8, 64] {
            let spent = claim_some(&store, limit).await?;
            waiting -= (CLAIMS * limit) as usize;
            let micros = spent.as_secs_f64() * 1e6;
            println!(
                "{waiting:>9} waiting, {limit:>2} per claim: {:>6.0} µs per claim, {:>5.0} µs per email",
                micros / f64::from(CLAIMS),
                micros / f64::from(CLAIMS * limit)
            );
        }
    }
    Ok(())
}

async fn claim_some(store: &PostgresStore, limit: u32) -> Result<Duration, StoreError> {
    let request = ClaimRequest {
        owner: WorkerId::new(START),
        now: START,
        lease_until: Timestamp::NEVER,
        limit,
        size_bytes_max: u64::MAX >> 1,
        routes: Routes::All,
    };
    let start = Instant::now();
    for _ in 0..CLAIMS {
        let claimed = store.claim(request.clone()).await?;
        assert_eq!(claimed.len(), limit as usize, "enough is waiting");
    }
    Ok(start.elapsed())
}
