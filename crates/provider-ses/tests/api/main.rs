//! The SES provider over HTTP, against a server that speaks as SES does: status, the header with the error's name,
//! bodies.

mod errors;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::email::Outgoing;
use model::{Category, Content};
use provider::{Account, Provider, Quota, Receipt, SendError, Taken, Trouble};
use provider_ses::{Credentials, Identity, SesConfig, SesProvider};
use serde_json::{Value, json};
use testkit::http::{Answer, Reply, Request, Server, nobody};
use testkit::{a_company, a_full_email, an_email, an_outgoing};

fn config(url: &str) -> SesConfig {
    SesConfig::parse(Some("eu-west-1"), Some(url), Some("main")).expect("a configuration")
}

fn provider(config: SesConfig) -> SesProvider {
    SesProvider::with_credentials(config, Credentials::new("AKIDTEST", "hunter2"))
}

fn outgoing() -> Outgoing {
    an_outgoing(an_email(a_company("acme").id), "Acme <shop@acme.test>")
}

fn taken() -> Reply {
    testkit::http::json(200, r#"{"MessageId":"0102018f-6b1c-000000"}"#)
}

/// Where an answer may carry the name of its error.
#[derive(Clone, Copy, Debug)]
enum Naming {
    Header,
    HeaderWithLink,
    Body,
    BodyWithNamespace,
}

/// An error as AWS words it.
fn refusal(status: u16, name: &str, message: &str, naming: Naming) -> Reply {
    let body = json!({"message": message});
    let typed = |name: &str| json!({"__type": name, "message": message}).to_string();
    let link = format!("{name}:http://internal.amazon.com/coral/com.amazonaws.sesv2/");
    match naming {
        Naming::Header => testkit::http::json(status, &body.to_string()).with("x-amzn-ErrorType", name),
        Naming::HeaderWithLink => {
            testkit::http::json(status, &body.to_string()).with("x-amzn-ErrorType", &link)
        }
        Naming::Body => testkit::http::json(status, &typed(name)),
        Naming::BodyWithNamespace => {
            testkit::http::json(status, &typed(&format!("com.amazonaws.sesv2#{name}")))
        }
    }
}

async fn send_to(answer: impl Into<Answer>) -> (Result<Receipt, SendError>, Vec<Request>) {
    let answer = answer.into();
    let server = Server::start(move |_| answer.clone()).await;
    let outcome = provider(config(&server.url())).send(&outgoing()).await;
    (outcome, server.requests())
}

async fn refused(answer: impl Into<Answer>) -> SendError {
    send_to(answer).await.0.expect_err("refused")
}

fn summary(error: &SendError) -> (&str, Category, Taken, Option<Trouble>) {
    (error.code.as_str(), error.category, error.taken, error.trouble)
}

fn body(request: &Request) -> Value {
    serde_json::from_slice(&request.body).expect("JSON")
}

#[tokio::test]
async fn a_simple_email_field_by_field() {
    let server = Server::start(|_| taken()).await;
    let mut email = an_outgoing(a_full_email(a_company("acme").id), "João, Acme <shop@acme.test>");
    email.content =
        Content::Composed { html: "<p>Olá</p>".into(), text: Some("Olá".into()), attachments: vec![] };
    email.envelope.headers.truncate(2);
    let receipt = provider(config(&server.url())).send(&email).await.expect("taken");
    assert_eq!(receipt.message_id.as_deref(), Some("0102018f-6b1c-000000"));

    let requests = server.requests();
    let [request] = requests.as_slice() else { panic!("{} requests", requests.len()) };
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v2/email/outbound-emails"));
    let authorization = request.header("authorization").expect("a signature");
    assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKIDTEST/"), "{authorization}");
    assert!(authorization.contains("/eu-west-1/ses/aws4_request"), "{authorization}");
    assert!(!format!("{request:?}").contains("hunter2"));
    let id = email.id.to_string();
    let expected = json!({
        "FromEmailAddress": "=?utf-8?B?Sm/Do28sIEFjbWU=?= <shop@acme.test>",
        "Destination": {
            "ToAddresses": ["Ana.Maria@example.com"],
            "CcAddresses": ["bob@example.com", "carol@example.org"],
            "BccAddresses": ["dave@example.net"],
        },
        "ReplyToAddresses": ["Help desk <help@example.com>"],
        "ConfigurationSetName": "main",
        "EmailTags": [
            {"Name": "posthaste_id", "Value": id},
            {"Name": "welcome", "Value": "true"},
            {"Name": "n_o-lido", "Value": "true"},
        ],
        "Content": {"Simple": {
            "Subject": {"Data": "Olá, \"Ana\" 🎉 — it's here", "Charset": "UTF-8"},
            "Body": {
                "Html": {"Data": "<p>Olá</p>", "Charset": "UTF-8"},
                "Text": {"Data": "Olá", "Charset": "UTF-8"},
            },
            "Headers": [
                {"Name": "X-Posthaste-Id", "Value": id},
                {"Name": "X-Campaign", "Value": "spring 'sale'"},
                {"Name": "X-Order", "Value": "42"},
            ],
        }},
    });
    assert_eq!(body(request), expected);
}

#[tokio::test]
async fn a_raw_email_is_the_message_we_show() {
    let server = Server::start(|_| taken()).await;
    let ses = provider(SesConfig { configuration_set: None, ..config(&server.url()) });
    let composed = an_outgoing(a_full_email(a_company("acme").id), "Acme <shop@acme.test>");
    let eml = b"From: shop@acme.test\r\nTo: ana@example.com\r\nBcc: x@example.com\r\n\r\nHi\r\n".to_vec();
    let given = Outgoing { content: Content::Raw(eml), ..composed.clone() };
    for email in [&composed, &given] {
        ses.send(email).await.expect("taken");
    }
    for (email, request) in [&composed, &given].into_iter().zip(server.requests()) {
        let body = body(&request);
        let sent = body["Content"]["Raw"]["Data"].as_str().expect("a message");
        assert_eq!(STANDARD.decode(sent).expect("base64"), message::render(email).expect("a message"));
        assert_eq!(body["Destination"]["BccAddresses"], json!(["dave@example.net"]));
        assert_eq!(body["EmailTags"][0], json!({"Name": "posthaste_id", "Value": email.id.to_string()}));
        assert_eq!(body["FromEmailAddress"], "Acme <shop@acme.test>");
        for absent in ["ReplyToAddresses", "ConfigurationSetName"] {
            assert_eq!(body.get(absent), None, "{absent}");
        }
    }
}

#[tokio::test]
async fn nobody_gets_it_twice() {
    let server = Server::start(|_| taken()).await;
    let mut email = outgoing();
    let address = testkit::an_address;
    email.envelope.cc = vec![address("ANA@example.com"), address("eva@example.com")];
    email.envelope.bcc =
        vec![address("eva@example.com"), address("ana@example.com"), address("x@example.com")];
    provider(config(&server.url())).send(&email).await.expect("taken");
    let destination = json!({
        "ToAddresses": ["ana@example.com"], "CcAddresses": ["eva@example.com"], "BccAddresses": ["x@example.com"],
    });
    assert_eq!(body(&server.requests()[0])["Destination"], destination);
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::start(|_| taken()).await;
    let ses = provider(config(&server.url()));
    for _ in 0..10 {
        ses.send(&outgoing()).await.expect("taken");
    }
    assert_eq!((server.requests().len(), server.connections()), (10, 1));
}

/// Nothing is tried twice below the gateway: that would be a second copy, or an attempt nobody counted.
#[tokio::test]
async fn every_call_is_made_once() {
    for answer in [
        refusal(429, "TooManyRequestsException", "", Naming::Header).into(),
        refusal(503, "ServiceUnavailable", "", Naming::Header).into(),
        refusal(500, "InternalFailure", "", Naming::Header).into(),
        Answer::Reset,
    ] {
        let case = format!("{answer:?}");
        let (outcome, requests) = send_to(answer).await;
        assert!(outcome.is_err(), "{case}");
        assert_eq!(requests.len(), 1, "{case}");
    }
}

#[tokio::test]
async fn waits_that_ses_asks_for() {
    let throttled = || refusal(429, "TooManyRequestsException", "", Naming::Header);
    for (reply, secs) in [
        (throttled().with("retry-after", "7"), Some(7)),
        (throttled().with("retry-after", "soon"), None),
        (throttled(), None),
        (refusal(503, "ServiceUnavailable", "", Naming::Body).with("Retry-After", "30"), Some(30)),
    ] {
        assert_eq!(refused(reply).await.retry_after, secs.map(Duration::from_secs));
    }
}

#[tokio::test]
async fn silence_leaves_it_open() {
    let server = Server::start(|_| Answer::Silence).await;
    let ses = provider(config(&server.url()));
    let sending = tokio::spawn(async move { ses.send(&outgoing()).await });
    server.until_asked().await;
    // Nothing else can happen now, so that the clock runs on to the moment at which it gives up.
    tokio::time::pause();
    let error = sending.await.expect("no panic").expect_err("no answer");
    let open = ("SES_TIMEOUT", Category::Timeout, Taken::Unknown, Some(Trouble::Outage));
    assert_eq!(summary(&error), open);
    assert_eq!(server.requests().len(), 1, "it was out");
}

#[tokio::test]
async fn a_connection_lost_after_the_request_leaves_it_open() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"MessageId\":";
    for (answer, code) in [
        (Answer::Reset, "NETWORK_ERROR"),
        (Answer::Cut(String::new()), "NETWORK_ERROR"),
        (Answer::Cut(head.into()), "SES_UNREADABLE_ANSWER"),
    ] {
        let case = format!("{answer:?}");
        let (outcome, requests) = send_to(answer).await;
        let error = outcome.expect_err("broken off");
        let open = (code, Category::Transient, Taken::Unknown, Some(Trouble::Outage));
        assert_eq!(summary(&error), open, "{case}: {}", error.detail);
        assert_eq!(requests.len(), 1, "{case}: it went out once");
    }
}

#[tokio::test]
async fn nobody_listens() {
    let error = provider(config(&nobody())).send(&outgoing()).await.expect_err("refused");
    let outage = ("NETWORK_ERROR", Category::Transient, Taken::No, Some(Trouble::Outage));
    assert_eq!(summary(&error), outage);
    assert!(error.detail.starts_with("connecting: "), "{}", error.detail);
}

#[tokio::test]
async fn a_port_that_does_not_answer_took_nothing() {
    // TLS is asked of a server that never says a word: the connection does not come about.
    let server = Server::start(|_| Answer::Silence).await;
    let url = server.url().replace("http://", "https://");
    let hasty = SesConfig { connect_timeout: Duration::from_millis(500), ..config(&url) };
    let error = provider(hasty).send(&outgoing()).await.expect_err("no connection");
    let outage = ("SES_TIMEOUT", Category::Timeout, Taken::No, Some(Trouble::Outage));
    assert_eq!(summary(&error), outage, "{}", error.detail);
}

#[tokio::test]
async fn the_account() {
    let answer = |max: f64, enabled: bool, status: &str, production: bool| {
        json!({
            "DedicatedIpAutoWarmupEnabled": true, "EnforcementStatus": status,
            "ProductionAccessEnabled": production, "SendingEnabled": enabled,
            "SendQuota": {"Max24HourSend": max, "MaxSendRate": 14.0, "SentLast24Hours": 1234.0},
        })
    };
    let quota = |max_24_hours| Some(Quota { max_24_hours, sent_24_hours: 1234.0 });
    let account =
        |quota, may_send, is_sandboxed| Account { rate_per_sec: Some(14.0), quota, may_send, is_sandboxed };
    let cases = [
        (answer(50_000.0, true, "HEALTHY", true), account(quota(50_000.0), true, false)),
        (answer(200.0, true, "HEALTHY", false), account(quota(200.0), true, true)),
        (answer(50_000.0, true, "PROBATION", true), account(quota(50_000.0), true, false)),
        (answer(50_000.0, true, "SHUTDOWN", true), account(quota(50_000.0), false, false)),
        (answer(50_000.0, false, "HEALTHY", true), account(quota(50_000.0), false, false)),
        (answer(-1.0, true, "HEALTHY", true), account(None, true, false)),
    ];
    for (body, expected) in cases {
        let case = body.to_string();
        let server = Server::start({
            let case = case.clone();
            move |_| testkit::http::json(200, &case)
        })
        .await;
        let found = provider(config(&server.url())).account().await.expect("an answer");
        assert_eq!(found, Some(expected), "{case}");
        let requests = server.requests();
        assert_eq!((requests[0].method.as_str(), requests[0].path.as_str()), ("GET", "/v2/email/account"));
    }
    let server = Server::start(|_| refusal(403, "AccessDeniedException", "", Naming::Header)).await;
    let error = provider(config(&server.url())).account().await.expect_err("denied");
    assert_eq!((error.code.as_str(), error.category), ("SES_ACCESS_DENIED", Category::Configuration));
}

#[tokio::test]
async fn identities() {
    let server = Server::start(|request: &Request| match request.path.as_str() {
        "/v2/email/identities/acme.test" => testkit::http::json(200, r#"{"VerifiedForSendingStatus":true}"#),
        "/v2/email/identities/new%40acme.test" => {
            testkit::http::json(200, r#"{"VerifiedForSendingStatus":false}"#)
        }
        _ => refusal(404, "NotFoundException", "Email identity <x> does not exist.", Naming::Header),
    })
    .await;
    let names: Vec<String> = ["acme.test", "new@acme.test", "other.test"].map(Into::into).to_vec();
    let found = provider(config(&server.url())).identities(&names).await.expect("answers");
    let states: Vec<Identity> = found.iter().map(|(_, identity)| *identity).collect();
    assert_eq!(states, [Identity::Verified, Identity::NotVerified, Identity::Unknown]);
    assert_eq!(found[1].0, "new@acme.test");
}
