//! The SMTP provider against a real server in another process. `scripted.rs` has the cases for which a server must
//! misbehave more precisely than this one can.

mod content;
mod sink;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use model::{Category, Secret};
use provider::{Provider, SendError, Taken};
use provider_smtp::{Credentials, SmtpConfig, SmtpProvider, Tls};
use serde_json::json;
use sink::{Sink, outgoing};
use testkit::an_address;

fn provider(config: SmtpConfig) -> SmtpProvider {
    SmtpProvider::new(config).expect("a usable configuration")
}

fn credentials(user: &str, password: &str) -> Option<Credentials> {
    Some(Credentials { user: Secret::new(user.into()), password: Secret::new(password.into()) })
}

fn summary(error: &SendError) -> (&str, Category, Option<&str>, Taken) {
    (error.code.as_str(), error.category, error.original_code.as_deref(), error.taken)
}

#[tokio::test]
async fn a_plain_send() {
    let sink = Sink::start(&[]);
    let mut email = outgoing("ana@example.com");
    email.envelope.cc = vec![an_address("cc@example.com")];
    email.envelope.bcc = vec![an_address("hidden@example.com"), an_address("ana@example.com")];
    let smtp = sink.provider();
    let receipt = smtp.send(&email).await.expect("taken");
    assert_eq!(
        receipt.message_id,
        Some(format!("<{}@acme.test>", email.id)),
        "the sink names no id of its own"
    );
    assert_eq!(smtp.kind(), "smtp");
    let ledger = sink.ledger();
    assert_eq!(ledger.len(), 1);
    assert_eq!(ledger[0]["id"], email.id.to_string());
    assert_eq!(ledger[0]["from"], "shop@acme.test");
    assert_eq!(ledger[0]["to"], json!(["ana@example.com", "cc@example.com", "hidden@example.com"]));
    assert_eq!((&ledger[0]["tls"], &ledger[0]["auth"]), (&json!(false), &json!(null)));
}

#[tokio::test]
async fn starttls() {
    let (sink, ca) = Sink::with_tls(&["--starttls"]);
    let trusting = SmtpConfig { ca: Some(ca), ..sink.config() };
    for tls in [Tls::IfOffered, Tls::Required] {
        let smtp = provider(SmtpConfig { tls, ..trusting.clone() });
        smtp.send(&outgoing("ana@example.com")).await.expect("taken");
        smtp.send(&outgoing("eva@example.com")).await.expect("taken on the same connection");
    }
    let by_name = SmtpConfig { host: "localhost".into(), ..trusting.clone() };
    provider(by_name).send(&outgoing("ana@example.com")).await.expect("the certificate has this name too");
    assert!(sink.ledger().iter().all(|line| line["tls"] == true), "{:?}", sink.ledger());
    assert_eq!(sink.connections(), [1, 1, 2, 2, 3]);

    let untrusting = provider(sink.config());
    let error = untrusting.send(&outgoing("ana@example.com")).await.expect_err("an unknown authority");
    assert_eq!(summary(&error), ("NETWORK_ERROR", Category::Transient, None, Taken::No));
    assert!(error.detail.contains("certificate"), "{}", error.detail);

    let plain = provider(SmtpConfig { tls: Tls::None, ..trusting });
    let error = plain.send(&outgoing("ana@example.com")).await.expect_err("the sink insists on TLS");
    assert_eq!((error.code.as_str(), error.category), ("SMTP_REJECTED_530", Category::Configuration));
    assert_eq!(sink.ledger().len(), 5, "what was refused is not there");
}

#[tokio::test]
async fn tls_from_the_first_byte() {
    let (sink, ca) = Sink::with_tls(&["--tls"]);
    let url = format!("smtps://127.0.0.1:{}?ca={}&hello=client.test", sink.port, ca.display());
    let smtp = provider(SmtpConfig::parse(&url).expect("an address"));
    smtp.send(&outgoing("ana@example.com")).await.expect("taken");
    smtp.send(&outgoing("eva@example.com")).await.expect("taken");
    assert_eq!(sink.connections(), [1, 1]);
    assert!(sink.ledger().iter().all(|line| line["tls"] == true));
}

#[tokio::test]
async fn logging_in() {
    let sink = Sink::start(&["--auth", "ana:s3/cret"]);
    let url = format!("smtp://ana:s3%2Fcret@127.0.0.1:{}?hello=client.test", sink.port);
    let right = provider(SmtpConfig::parse(&url).expect("an address"));
    right.send(&outgoing("ana@example.com")).await.expect("taken");
    assert_eq!(sink.ledger()[0]["auth"], "ana");

    let wrong = provider(SmtpConfig { credentials: credentials("ana", "guess-42"), ..sink.config() });
    let error = wrong.send(&outgoing("ana@example.com")).await.expect_err("a wrong password");
    let expected = ("SMTP_REJECTED_535", Category::Configuration, Some("535 5.7.8"), Taken::No);
    assert_eq!(summary(&error), expected);
    assert!(!error.detail.contains("guess-42"), "{}", error.detail);

    let none = sink.provider().send(&outgoing("ana@example.com")).await.expect_err("no login");
    assert_eq!((none.code.as_str(), none.category), ("SMTP_REJECTED_530", Category::Configuration));
    assert_eq!(sink.ledger().len(), 1);

    let open = Sink::start(&[]);
    let needless = provider(SmtpConfig { credentials: credentials("ana", "x"), ..open.config() });
    let error = needless.send(&outgoing("ana@example.com")).await.expect_err("no login is offered");
    assert_eq!(summary(&error), ("SMTP_AUTH_NOT_OFFERED", Category::Configuration, None, Taken::No));
}

#[tokio::test]
async fn connections_are_used_again() {
    let cases = [
        // case              messages per connection  idle                     connections of ten messages
        ("one for all", 100, Duration::from_secs(60), vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("three each", 3, Duration::from_secs(60), vec![1, 1, 1, 2, 2, 2, 3, 3, 3, 4]),
        ("never idle", 100, Duration::ZERO, vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    ];
    for (case, messages_per_connection_max, idle_max, expected) in cases {
        let sink = Sink::start(&[]);
        let smtp = provider(SmtpConfig { messages_per_connection_max, idle_max, ..sink.config() });
        for _ in 0..10 {
            smtp.send(&outgoing("ana@example.com")).await.expect("taken");
        }
        assert_eq!(sink.connections(), expected, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_share_a_few_connections() {
    let sink = Sink::start(&["--latency-ms", "5"]);
    let smtp = provider(SmtpConfig { connections_max: 8, ..sink.config() });
    let emails: Vec<_> = (0..50).map(|n| outgoing(&format!("u{n}@example.com"))).collect();
    let outcomes = join_all(emails.iter().map(|email| smtp.send(email))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let ids: HashSet<String> = sink.ledger().iter().map(|line| line["id"].to_string()).collect();
    assert_eq!(ids.len(), 50, "each was taken");
    assert_eq!(sink.ledger().len(), 50, "each was taken once");
    let connections: HashSet<u64> = sink.connections().into_iter().collect();
    assert!(connections.len() <= 8, "{connections:?}");
}

#[tokio::test]
async fn refusals() {
    use Category::{Permanent, Transient};
    let sink = Sink::start(&[]);
    let smtp = sink.provider();
    let cases = [
        ("450.test", "SMTP_TRANSIENT_450", Transient, "450 4.2.1"),
        ("451.test", "SMTP_TRANSIENT_451", Transient, "451 4.3.0"),
        ("421.test", "SMTP_TRANSIENT_421", Transient, "421 4.3.2"),
        ("550.test", "SMTP_REJECTED_550", Permanent, "550 5.1.1"),
        ("452-data.test", "SMTP_TRANSIENT_452", Transient, "452 4.3.1"),
        ("554.test", "SMTP_REJECTED_554", Permanent, "554 5.6.0"),
    ];
    for (n, (domain, code, category, original)) in cases.into_iter().enumerate() {
        let error = smtp.send(&outgoing(&format!("ana@{domain}"))).await.expect_err(domain);
        assert_eq!(summary(&error), (code, category, Some(original), Taken::No), "{domain}");
        assert!(!error.detail.contains("ana@"), "{}", error.detail);
        smtp.send(&outgoing("ana@example.com")).await.expect("the next one is taken");
        assert_eq!(sink.ledger().len(), n + 1, "{domain}: only the next one was taken");
    }
    // Only 421 ends a connection: 421.test got a used one and, for the case that it had died, a fresh one.
    assert_eq!(sink.connections(), [1, 1, 3, 3, 3, 3]);
}

#[tokio::test]
async fn a_refused_copy_does_not_stop_the_email() {
    let sink = Sink::start(&[]);
    let smtp = sink.provider();
    let mut email = outgoing("ana@example.com");
    email.envelope.cc = vec![an_address("nobody@550.test"), an_address("eva@example.com")];
    let receipt = smtp.send(&email).await.expect("taken for the others");
    let refused: Vec<_> =
        receipt.refused.iter().map(|copy| (copy.code.as_str(), copy.refused.as_deref())).collect();
    assert_eq!(refused, [("SMTP_REJECTED_550", Some(&an_address("nobody@550.test")))]);
    assert!(
        receipt.refused[0].message.contains("(recipient n***@5***.test)"),
        "{}",
        receipt.refused[0].message
    );
    assert_eq!(sink.ledger()[0]["to"], json!(["ana@example.com", "eva@example.com"]));

    email.envelope.cc = vec![an_address("nobody@450.test")];
    let error = smtp.send(&email).await.expect_err("it may pass");
    assert_eq!(summary(&error), ("SMTP_TRANSIENT_450", Category::Transient, Some("450 4.2.1"), Taken::No));
    assert_eq!(sink.ledger().len(), 1, "nobody got it");
    email.is_last_attempt = true;
    smtp.send(&email).await.expect("taken, since no other attempt follows");
    assert_eq!(sink.ledger()[1]["to"], json!(["ana@example.com"]), "nothing is left of the one before");
    assert_eq!(sink.connections(), [1, 1]);
}

#[tokio::test]
async fn silence_after_the_message_leaves_it_open() {
    let sink = Sink::start(&["--slow-secs", "600"]);
    let smtp = Arc::new(sink.provider());
    let sending = tokio::spawn({
        let smtp = Arc::clone(&smtp);
        async move { smtp.send(&outgoing("ana@slow.test")).await }
    });
    while sink.ledger().is_empty() {
        assert!(!sending.is_finished(), "it ended before the sink had the message");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Nothing else can happen now, so that the clock runs on to the moment at which it gives up.
    tokio::time::pause();
    let error = sending.await.expect("no panic").expect_err("no answer");
    tokio::time::resume();
    assert_eq!(summary(&error), ("SMTP_TIMEOUT", Category::Timeout, None, Taken::Unknown));
    smtp.send(&outgoing("ana@example.com")).await.expect("taken, on another connection");
    assert_eq!(sink.connections(), [1, 2]);
}

#[tokio::test]
async fn a_connection_lost_after_the_message_leaves_it_open() {
    let sink = Sink::start(&[]);
    let smtp = sink.provider();
    for (domain, taken) in [("reset.test", 0), ("accept-reset.test", 1)] {
        let error = smtp.send(&outgoing(&format!("ana@{domain}"))).await.expect_err(domain);
        assert_eq!(summary(&error), ("NETWORK_ERROR", Category::Transient, None, Taken::Unknown), "{domain}");
        assert_eq!(sink.ledger().len(), taken, "{domain}");
    }
    smtp.send(&outgoing("ana@example.com")).await.expect("taken");
    assert_eq!(sink.connections(), [2, 3], "a connection that failed is not used again");
}

#[tokio::test]
async fn nobody_listens() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let config = SmtpConfig::parse(&format!("smtp://127.0.0.1:{port}")).expect("an address");
    let error = provider(config).send(&outgoing("ana@example.com")).await.expect_err("refused");
    assert_eq!(summary(&error), ("NETWORK_ERROR", Category::Transient, None, Taken::No));
    assert!(error.detail.starts_with("connecting: "), "{}", error.detail);
}
