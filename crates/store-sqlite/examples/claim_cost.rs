//! What a claim costs with 1,000 and with 1,000,000 emails waiting: the same.
//!
//! `cargo run --release -p store-sqlite --example claim_cost`

use std::time::{Duration, Instant};

use model::{CompanyId, EmailId, NewEmail, Timestamp, WorkerId};
use store::{Acceptance, ClaimRequest, Companies, Outbox, Routes, StoreError};
use store_sqlite::SqliteStore;
use testkit::{START, a_company, an_email};

const CLAIMS: u32 = 100;
const COMPANIES: usize = 10;
const BATCH: usize = 100;

#[tokio::main]
async fn main() -> Result<(), StoreError> {
    println!("{CLAIMS} claims of each size, {COMPANIES} companies");
    for waiting in [1_000_usize, 10_000, 100_000, 1_000_000] {
        let folder = tempfile::tempdir().expect("a folder to work in");
        let store = SqliteStore::open(&folder.path().join("claims.db")).await?;
        let companies = add_companies(&store).await?;
        for batch in 0..waiting / BATCH {
            accept(&store, companies[batch % COMPANIES], BATCH).await?;
        }
        for limit in [1, 8, 64] {
            let spent = claim_some(&store, &companies, limit).await?;
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

async fn add_companies(store: &SqliteStore) -> Result<Vec<CompanyId>, StoreError> {
    let companies: Vec<_> = (0..COMPANIES).map(|n| a_company(&format!("company-{n}"))).collect();
    for company in &companies {
        store.add_company(company.clone()).await?;
    }
    Ok(companies.iter().map(|company| company.id).collect())
}

async fn accept(store: &SqliteStore, company: CompanyId, count: usize) -> Result<(), StoreError> {
    let emails = (0..count).map(|_| NewEmail { id: EmailId::new(START), ..an_email(company) }).collect();
    store.accept(Acceptance { company, emails, key: None, daily_limit: None, now: START }).await?;
    Ok(())
}

/// What was claimed is made up for at once, so that as many are waiting at the next claim.
async fn claim_some(
    store: &SqliteStore,
    companies: &[CompanyId],
    limit: u32,
) -> Result<Duration, StoreError> {
    let request = ClaimRequest {
        owner: WorkerId::new(START),
        now: START,
        lease_until: Timestamp::NEVER,
        limit,
        size_bytes_max: u64::MAX,
        routes: Routes::All,
    };
    let mut spent = Duration::ZERO;
    for number in 0..CLAIMS as usize {
        let start = Instant::now();
        let claimed = store.claim(request.clone()).await?;
        spent += start.elapsed();
        assert_eq!(claimed.len(), limit as usize, "enough is waiting");
        accept(store, companies[number % COMPANIES], claimed.len()).await?;
    }
    Ok(spent)
}
