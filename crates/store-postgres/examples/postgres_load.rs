//! How fast emails are accepted, and taken through claim, begin and settle, on a database of one's own.
//!
//! `cargo run --release -p store-postgres --example postgres_load -- postgres://…/database`

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Content, EmailId, Event, EventKind, Guard, NewEmail, Verdict, WorkerId};
use store::{
    Acceptance, AttemptStart, Begun, ClaimRequest, Companies, Outbox, Routes, SettledBy, Settlement, Upkeep,
};
use store_postgres::{PostgresConfig, PostgresStore};
use testkit::{START, a_company, an_email};

const EMAILS: usize = 40_000;
const CALLERS: usize = 200;
const COMPANIES: usize = 10;

#[tokio::main]
async fn main() {
    let url = std::env::args().nth(1).expect("the URL of an empty database");
    let config = PostgresConfig::parse(&url).expect("a good URL");
    let store = Arc::new(PostgresStore::open(&config).await.expect("opens"));
    let companies: Vec<_> =
        (0..COMPANIES).map(|n| a_company(&format!("company-{n}-{}", EmailId::new(START)))).collect();
    for company in &companies {
        store.add_company(company.clone()).await.expect("added");
    }
    let html = html();
    for round in 1..=3 {
        let start = Instant::now();
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (store, html) = (Arc::clone(&store), html.clone());
                let company = companies[caller % COMPANIES].id;
                tokio::spawn(async move {
                    for number in 0..EMAILS / CALLERS {
                        let mut email = NewEmail { id: EmailId::new(START), ..an_email(company) };
                        email.envelope.to =
                            model::Address::trusted(format!("person-{caller}-{number}@example.com"));
                        let html = html.replace("NUMBER", &format!("{caller}-{number}"));
                        email.content = Content::Composed { html, text: None, attachments: vec![] };
                        let acceptance = Acceptance {
                            company,
                            emails: vec![email],
                            key: None,
                            daily_limit: None,
                            now: START,
                        };
                        store.accept(acceptance).await.expect("accepted");
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.expect("a caller ends well");
        }
        report("accepted", start.elapsed());
        let start = Instant::now();
        send_all(&store).await;
        report("claimed, begun and settled", start.elapsed());
        println!("round {round} done: {:?}", store.stats(START).await.expect("stats").by_status);
    }
    store.close().await;
}

fn report(what: &str, spent: Duration) {
    println!("{EMAILS} {what} in {spent:?}: {:.0} per second", EMAILS as f64 / spent.as_secs_f64());
}

/// 10 KB that compress about as well as a real one.
fn html() -> String {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut html = String::from("<html><body><p>NUMBER</p>");
    while html.len() < 10_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        html.push_str(&format!("<td style=\"padding:4px;color:#333\">{:x}</td>", state & 0xffff_ffff));
    }
    html
}

async fn send_all(store: &Arc<PostgresStore>) {
    let owner = WorkerId::new(START);
    let request = ClaimRequest {
        owner,
        now: START,
        lease_until: START.plus(Duration::from_secs(60)),
        limit: 128,
        size_bytes_max: 64 << 20,
        routes: Routes::All,
    };
    let mut sending = Vec::new();
    loop {
        let claims = store.claim(request.clone()).await.expect("a claim");
        if claims.is_empty() {
            break;
        }
        for claim in claims {
            let store = Arc::clone(store);
            sending.push(tokio::spawn(async move { send(&store, claim.guard).await }));
        }
        while sending.iter().filter(|task| !task.is_finished()).count() > 512 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        sending.retain(|task| !task.is_finished());
    }
    for task in sending {
        task.await.expect("a send ends well");
    }
}

async fn send(store: &PostgresStore, guard: Guard) {
    let events = vec![
        Event::new(EventKind::Validated, START),
        Event::new(EventKind::SentAttempt, START).with("provider", "capture"),
    ];
    let start = AttemptStart { guard, provider: "capture".into(), events, now: START };
    let Begun::Yes(guard) = store.begin(start).await.expect("a begin") else { panic!("lost") };
    let verdict = Verdict::Sent {
        provider: "capture".into(),
        provider_kind: "smtp",
        message_id: Some(format!("m-{}", guard.id)),
        duration_ms: 3,
        refused: Vec::new(),
    };
    let events = vec![
        Event::new(EventKind::Sent, START)
            .with("durationMs", 3)
            .with("attempt", 1)
            .with("providerMessageId", "x"),
    ];
    store
        .settle(Settlement { guard, by: SettledBy::Worker, verdict, events, now: START })
        .await
        .expect("settled");
}
