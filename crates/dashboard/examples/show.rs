//! The dashboard over a store in memory with two hundred varied emails, to look at: `cargo run -p dashboard --example
//! show -- 8090`. With a second word, that is the admin token. One more email comes every few seconds.

#[path = "../tests/ui/gateway.rs"]
mod made;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use api::inside::{Behalf, Inside};
use api::{ApiSettings, ApiState, ServeSettings};
use dashboard::DashboardSettings;
use gateway::Gateway;
use gateway::accept::Desk;
use model::{Bounce, Clock, CompanyId, EmailId, ReportKind, Secret, SystemClock, Timestamp};
use provider_smtp::{SmtpConfig, SmtpProvider};
use serde_json::{Value, json};

/// The system's clock, so many milliseconds late, so that the emails have a past.
#[derive(Debug)]
struct Late(AtomicI64);

impl Clock for Late {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(SystemClock.now().millis() - self.0.load(Ordering::SeqCst))
    }
}

const EMAILS: i64 = 200;
const DAYS_BACK: i64 = 3;

#[tokio::main]
async fn main() {
    let mut words = std::env::args().skip(1);
    let port: u16 = words.next().and_then(|port| port.parse().ok()).unwrap_or(8090);
    let token = words.next();
    let clock = Arc::new(Late(AtomicI64::new(DAYS_BACK * 86_400_000)));
    let mut gateway = made::a_gateway(clock.clone()).await;
    let mut providers = BTreeMap::clone(&gateway.providers);
    let outside = SmtpConfig::parse("smtp://127.0.0.1:9").expect("an address");
    providers.insert("outside".to_owned(), Arc::new(SmtpProvider::new(outside).expect("a provider")));
    gateway.providers = Arc::new(providers);
    let desk = Desk { gateway: gateway.clone(), documents: None };
    let settings = ApiSettings { admin_token: token.map(Secret::new), ..ApiSettings::default() };
    let metrics = "email_queue_size 7\nemail_oldest_waiting_seconds 95\nemail_dlq_size 14\n";
    let state = ApiState::new(desk, settings, Arc::new(move || metrics.to_owned()));
    let inside = Inside::new(state.clone());
    let companies = fill(&gateway, &inside, &clock).await;
    tokio::spawn(go_on(gateway, inside, companies[0]));
    let dev_key =
        Some(("Quiet & Co".to_owned(), Secret::new("test_this-is-the-key-that-dev-prints".to_owned())));
    let settings = DashboardSettings { dev_key, ..DashboardSettings::default() };
    let router = dashboard::router(state.clone(), settings).fallback_service(api::router(state));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("a free port");
    println!("http://127.0.0.1:{port}/ui");
    api::serve(listener, router, ServeSettings::default(), std::future::pending()).await;
}

/// One email every few seconds, taken by a worker a moment later.
async fn go_on(gateway: Gateway, inside: Inside, company: CompanyId) {
    for number in EMAILS.. {
        tokio::time::sleep(Duration::from_secs(3)).await;
        inside.post(Behalf::Company(company), "/v1/email/send", &email(number)).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        gateway::worker::run_once(&gateway).await.expect("a round of work");
    }
}

async fn fill(gateway: &Gateway, inside: &Inside, clock: &Late) -> Vec<CompanyId> {
    let mut companies = Vec::new();
    for name in ["Acme Shop", "Clube do Livro", "Quiet & Co"] {
        let from = format!("Hello <hello@{}.example>", name.split(' ').next().unwrap_or("x").to_lowercase());
        let made = inside
            .post(Behalf::Operator, "/v1/admin/companies", &json!({ "name": name, "from": from }))
            .await;
        let id: CompanyId = made.body["id"].as_str().expect("an id").parse().expect("an id");
        let key = json!({ "mode": "live", "label": "checkout", "scopes": ["send", "read"] });
        inside.post(Behalf::Operator, &format!("/v1/admin/companies/{id}/keys"), &key).await;
        companies.push(id);
    }
    for number in 0..EMAILS {
        clock.0.store(DAYS_BACK * 86_400_000 * (EMAILS - number) / EMAILS, Ordering::SeqCst);
        let company = companies[usize::from(number % 4 == 3)];
        let answer = inside.post(Behalf::Company(company), "/v1/email/send", &email(number)).await;
        let id: EmailId = answer.body["outboxId"].as_str().expect("accepted").parse().expect("an id");
        if number < EMAILS - 2 {
            gateway::worker::run_once(gateway).await.expect("a round of work");
            report(gateway, id, number).await;
        }
    }
    clock.0.store(0, Ordering::SeqCst);
    companies
}

async fn report(gateway: &Gateway, id: EmailId, number: i64) {
    let kind = match number % 17 {
        5 => ReportKind::Bounced(Bounce::Hard),
        11 => ReportKind::Complained,
        1 | 7 | 13 => return,
        _ => ReportKind::Delivered,
    };
    if matches!(number % 20, 3 | 9 | 15 | 19) || number > 185 && number % 3 == 0 {
        return;
    }
    let id_of_report = format!("report-{number}");
    gateway::sandbox::play(gateway, "relay", id, kind, id_of_report).await.expect("a report");
}

fn email(number: i64) -> Value {
    const PEOPLE: [&str; 8] = ["ana", "bruno", "carla", "diego", "eva", "fábio", "grace", "hugo"];
    const SUBJECTS: [&str; 6] = [
        "Your order is on its way",
        "Reset your password",
        "Receipt for your payment of R$ 129,90",
        "Welcome! Please confirm your address",
        "Your invitation to the reading circle on Thursday evening, with everything you need to know about it",
        "<script>alert(1)</script> & other \"quotes\"",
    ];
    let pick = |list: &[&'static str]| list[usize::try_from(number).unwrap_or(0) * 7 % list.len()];
    let person = pick(&PEOPLE).replace('á', "a");
    let to = match number % 20 {
        _ if number == EMAILS - 5 || number == EMAILS - 8 => format!("throttled+{person}@posthaste.test"),
        3 => format!("rejected+{person}@posthaste.test"),
        9 => format!("throttled+{person}@posthaste.test"),
        15 => format!("timeout+{person}@posthaste.test"),
        _ => format!("{person}.{}@example.com", number % 90),
    };
    let mut email = json!({
        "to": to,
        "subject": pick(&SUBJECTS),
        "html": format!("<html><body style=\"font-family: Georgia, serif; background: #f6f1e7; padding: 32px\">\
            <div style=\"max-width: 480px; margin: auto; background: #fff; padding: 28px; border-radius: 8px\">\
            <h1 style=\"color: #8a3b12; margin-top: 0\">Hello {person}</h1><p>Thank you for your order {number}. It left \
            our house this morning.</p><p><a href=\"https://shop.example/orders/{number}\" style=\"background: #8a3b12; \
            color: #fff; padding: 10px 18px; border-radius: 6px; text-decoration: none\">See your order</a></p>\
            <img src=\"https://tracker.example/p.gif\"></div></body></html>"),
        "text": format!("Hello {person},\n\nthank you for your order {number}.\n"),
        "entity": { "id": format!("order-{}", number % 6), "name": format!("Order {}", number % 6) },
        "tags": if number % 3 == 0 { json!(["orders"]) } else { json!([]) },
    });
    if number % 20 == 19 || number == EMAILS - 4 {
        email["delay"] = json!(10 * 3_600_000);
    }
    if number > EMAILS - 10 {
        email["retryPolicy"] = json!("patient");
    }
    if number % 5 == 2 {
        email["attachments"] = json!([{ "filename": format!("invoice-{number}.txt"), "contentType": "text/plain", "content": "SGVsbG8=" }]);
    }
    if number % 25 == 4 {
        email["cc"] = json!(["office@example.com"]);
    }
    email
}
