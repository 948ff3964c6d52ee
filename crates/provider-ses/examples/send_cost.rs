//! What one email costs in processor time on its way to SES: to a server in the same process that takes everything, so
//! the server's own share is in it.
//!
//!     cargo run --release -p provider-ses --example send_cost

use model::Content;
use provider::Provider;
use provider_ses::{Credentials, SesConfig, SesProvider};
use testkit::http::{Server, json};
use testkit::{a_company, a_full_email, an_email, an_outgoing};

const EMAILS: u32 = 2000;
const HTML_BYTES: usize = 10_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = Server::start(|_| json(200, r#"{"MessageId":"1"}"#)).await;
    let config = SesConfig::parse(Some("eu-west-1"), Some(&server.url()), None).expect("a configuration");
    let ses = SesProvider::with_credentials(config, Credentials::new("AKID", "secret"));
    let company = a_company("acme").id;
    let mut simple = an_outgoing(an_email(company), "shop@acme.test");
    let line = "<p>Your order \"42\" is on its way.</p>\n";
    let html = line.repeat(HTML_BYTES / line.len());
    simple.content = Content::Composed { html, text: None, attachments: vec![] };
    let raw = an_outgoing(a_full_email(company), "shop@acme.test");
    for (kind, email) in [("simple", simple), ("raw", raw)] {
        ses.send(&email).await.expect("taken");
        let before = processor_nanos();
        for _ in 0..EMAILS {
            ses.send(&email).await.expect("taken");
        }
        let micros = (processor_nanos() - before) / 1000 / u64::from(EMAILS);
        println!("{kind}: {micros} µs of processor time per email");
    }
}

/// Of this thread, which is the only one that works (Linux).
fn processor_nanos() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").expect("Linux counts it");
    stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number first")
}
