//! How long an acceptance takes while so many callers ask at once, on a database of one's own; each email has 10 KB.
//!
//! `cargo run -p store-mysql --example mysql_accept_latency -- mysql://…/database`

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Content, EmailId, NewEmail};
use store::{Acceptance, Companies as _, Outbox as _, Upkeep as _};
use store_mysql::{MysqlConfig, MysqlStore};
use testkit::{START, a_company, an_email};

const CALLERS: [usize; 5] = [1, 4, 16, 64, 200];
const CALLS: usize = 50;

#[tokio::main]
async fn main() {
    let url = std::env::args().nth(1).expect("the URL of an empty database");
    let config = MysqlConfig::parse(&url).expect("a good URL");
    let store = Arc::new(MysqlStore::open(&config).await.expect("opens"));
    let company = a_company(&format!("company-{}", EmailId::new(START)));
    store.add_company(company.clone()).await.expect("added");
    // The first round prepares the statements.
    for callers in CALLERS.into_iter().chain(CALLERS) {
        let calling: Vec<_> = (0..callers)
            .map(|_| {
                let (store, company) = (Arc::clone(&store), company.id);
                tokio::spawn(async move {
                    let mut times = Vec::with_capacity(CALLS);
                    for _ in 0..CALLS {
                        let content = Content::Composed { html: html(), text: None, attachments: vec![] };
                        let emails = vec![NewEmail { id: EmailId::new(START), content, ..an_email(company) }];
                        let acceptance =
                            Acceptance { company, emails, key: None, daily_limit: None, now: START };
                        let start = Instant::now();
                        store.accept(acceptance).await.expect("accepted");
                        times.push(start.elapsed());
                    }
                    times
                })
            })
            .collect();
        let mut times = Vec::new();
        for caller in calling {
            times.extend(caller.await.expect("a caller ends well"));
        }
        report(callers, times);
    }
    store.close().await;
}

fn report(callers: usize, mut times: Vec<Duration>) {
    times.sort_unstable();
    let (middle, most) = (times[times.len() / 2], times[times.len() * 95 / 100]);
    println!("{callers} callers: half within {middle:?}, 95 of 100 within {most:?}");
}

/// Nothing that compresses much.
fn html() -> String {
    (0..300).map(|_| uuid::Uuid::new_v4().to_string()).collect()
}
