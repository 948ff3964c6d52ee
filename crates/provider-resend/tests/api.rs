//! The Resend provider over HTTP, against a server that speaks as Resend does: status, headers and bodies.

use std::time::Duration;

use model::email::Outgoing;
use model::{Category, Content};
use provider::{Provider, Receipt, SendError, Taken, Trouble};
use provider_resend::{ResendConfig, ResendProvider};
use serde_json::{Value, json};
use testkit::http::{Answer, Reply, Request, Server, nobody};
use testkit::{a_company, a_full_email, an_email, an_outgoing};

const KEY: &str = "re_hunter2";

fn config(url: &str) -> ResendConfig {
    ResendConfig::parse(Some(KEY), Some(url)).expect("a configuration")
}

fn provider(config: ResendConfig) -> ResendProvider {
    ResendProvider::new(config).expect("a client")
}

fn outgoing() -> Outgoing {
    an_outgoing(an_email(a_company("acme").id), "Acme <shop@acme.test>")
}

fn taken() -> Reply {
    testkit::http::json(200, r#"{"id":"49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"}"#)
        .with("ratelimit-limit", "2")
        .with("ratelimit-remaining", "1")
        .with("ratelimit-reset", "1")
}

/// An error as Resend words it.
fn refusal(status: u16, name: &str, message: &str) -> Reply {
    let body = json!({"statusCode": status, "name": name, "message": message});
    testkit::http::json(status, &body.to_string())
}

/// Sends one email to a server that answers like that; what came of it, and what the server got.
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

#[tokio::test]
async fn the_request_field_by_field() {
    let server = Server::start(|_| taken()).await;
    let email = an_outgoing(a_full_email(a_company("acme").id), "Acme, Inc. <shop@acme.test>");
    let receipt = provider(config(&server.url())).send(&email).await.expect("taken");
    assert_eq!(receipt.message_id.as_deref(), Some("49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"));

    let requests = server.requests();
    let [request] = requests.as_slice() else { panic!("{} requests", requests.len()) };
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/emails"));
    assert_eq!(request.header("authorization"), Some("Bearer re_hunter2"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("idempotency-key"), Some(email.id.to_string().as_str()));
    assert!(request.header("user-agent").is_some_and(|agent| agent.starts_with("posthaste/")));
    let bytes: Vec<u8> = (0..=255).collect();
    let content = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
    let expected = json!({
        "from": "\"Acme, Inc.\" <shop@acme.test>",
        "to": ["Ana.Maria@example.com"],
        "cc": ["bob@example.com", "carol@example.org"],
        "bcc": ["dave@example.net"],
        "reply_to": ["Help desk <help@example.com>"],
        "subject": "Olá, \"Ana\" 🎉 — it's here",
        "html": "<p>Olá <b>Ana</b></p>",
        "text": "Olá Ana",
        "headers": {"X-Posthaste-Id": email.id.to_string(), "X-Campaign": "spring 'sale'", "X-Order": "42, 43"},
        "tags": [
            {"name": "posthaste_id", "value": email.id.to_string()},
            {"name": "welcome", "value": "true"},
            {"name": "n_o-lido", "value": "true"},
        ],
        "attachments": [
            {"filename": "boleto.pdf", "content": content, "content_type": "application/octet-stream"},
            {
                "filename": "logo.png", "content": content, "content_type": "application/octet-stream",
                "content_id": "logo",
            },
        ],
    });
    assert_eq!(serde_json::from_slice::<Value>(&request.body).expect("JSON"), expected);
}

#[tokio::test]
async fn what_is_not_there_is_not_named() {
    let (outcome, requests) = send_to(taken()).await;
    outcome.expect("taken");
    let body: Value = serde_json::from_slice(&requests[0].body).expect("JSON");
    let mut fields: Vec<&String> = body.as_object().expect("an object").keys().collect();
    fields.sort();
    assert_eq!(fields, ["from", "headers", "html", "subject", "tags", "to"]);
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
    let body: Value = serde_json::from_slice(&server.requests()[0].body).expect("JSON");
    assert_eq!((&body["cc"], &body["bcc"]), (&json!(["eva@example.com"]), &json!(["x@example.com"])));
}

/// What a retry sends is what was sent, byte for byte and under the same key: Resend sends it once. A replay by a
/// person is another matter, under another key.
#[tokio::test]
async fn a_retry_is_known_again() {
    let server = Server::start(|_| taken()).await;
    let resend = provider(config(&server.url()));
    let email = an_outgoing(a_full_email(a_company("acme").id), "shop@acme.test");
    resend.send(&email).await.expect("taken");
    resend.send(&Outgoing { attempt: 2, ..email.clone() }).await.expect("taken");
    resend.send(&Outgoing { attempt: 3, series: 1, ..email.clone() }).await.expect("taken");
    let requests = server.requests();
    assert_eq!(requests[0], requests[1]);
    assert_eq!(requests[0].body, requests[2].body);
    assert_eq!(requests[2].header("idempotency-key"), Some(format!("{}-1", email.id).as_str()));
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::start(|request: &Request| {
        let is_odd = request.body.len() % 2 == 1;
        if is_odd { taken() } else { refusal(422, "validation_error", "no") }
    })
    .await;
    let resend = provider(config(&server.url()));
    for n in 0..10 {
        let mut email = outgoing();
        email.content = Content::Composed { html: "x".repeat(n + 1), text: None, attachments: vec![] };
        let _ = resend.send(&email).await;
    }
    assert_eq!((server.requests().len(), server.connections()), (10, 1));
}

#[tokio::test]
async fn every_error_over_the_wire() {
    use Category::{Configuration, Permanent, Quota, Transient};
    use Taken::{No, Unknown};
    use Trouble::{Outage, Paused, QuotaUsedUp, Throttled};
    let cases = [
        (400, "invalid_idempotency_key", "RESEND_INVALID_IDEMPOTENCY_KEY", Permanent, No, None),
        (400, "validation_error", "RESEND_VALIDATION_ERROR", Permanent, No, None),
        (401, "missing_api_key", "RESEND_MISSING_API_KEY", Configuration, No, Some(Paused)),
        (401, "restricted_api_key", "RESEND_RESTRICTED_API_KEY", Configuration, No, None),
        (403, "invalid_api_key", "RESEND_INVALID_API_KEY", Configuration, No, Some(Paused)),
        (403, "suspended_api_key", "RESEND_SUSPENDED_API_KEY", Configuration, No, Some(Paused)),
        (403, "invalid_permission", "RESEND_INVALID_PERMISSION", Configuration, No, None),
        (403, "validation_error", "RESEND_DOMAIN_NOT_VERIFIED", Configuration, No, None),
        (404, "not_found", "RESEND_NOT_FOUND", Configuration, No, None),
        (405, "method_not_allowed", "RESEND_METHOD_NOT_ALLOWED", Configuration, No, None),
        (
            409,
            "concurrent_idempotent_requests",
            "RESEND_CONCURRENT_IDEMPOTENT_REQUESTS",
            Transient,
            Unknown,
            None,
        ),
        (409, "invalid_idempotent_request", "RESEND_INVALID_IDEMPOTENT_REQUEST", Permanent, Unknown, None),
        (409, "resource_locked", "RESEND_RESOURCE_LOCKED", Transient, No, None),
        (422, "invalid_attachment", "RESEND_INVALID_ATTACHMENT", Permanent, No, None),
        (422, "invalid_from_address", "RESEND_INVALID_FROM_ADDRESS", Configuration, No, None),
        (422, "missing_required_field", "RESEND_MISSING_REQUIRED_FIELD", Permanent, No, None),
        (422, "validation_error", "RESEND_VALIDATION_ERROR", Permanent, No, None),
        (429, "rate_limit_exceeded", "RESEND_RATE_LIMIT_EXCEEDED", Quota, No, Some(Throttled)),
        (429, "daily_quota_exceeded", "RESEND_DAILY_QUOTA_EXCEEDED", Quota, No, Some(QuotaUsedUp)),
        (429, "monthly_quota_exceeded", "RESEND_MONTHLY_QUOTA_EXCEEDED", Quota, No, Some(QuotaUsedUp)),
        (451, "security_error", "RESEND_SECURITY_ERROR", Permanent, No, None),
        (500, "application_error", "RESEND_APPLICATION_ERROR", Transient, No, Some(Outage)),
        (503, "service_unavailable", "RESEND_SERVICE_UNAVAILABLE", Transient, No, Some(Outage)),
        (418, "something_new", "RESEND_UNKNOWN_ERROR", Transient, No, None),
    ];
    for (status, name, code, category, taken, trouble) in cases {
        let error = refused(refusal(status, name, "not ana@example.com, says re_hunter2")).await;
        assert_eq!(summary(&error), (code, category, taken, trouble), "{status} {name}");
        assert_eq!(error.original_code.as_deref(), Some(name));
        assert_eq!(error.detail, format!("{status} {name}: not a***@e***.com, says ***"));
        assert_eq!(error.retry_after, None);
    }
}

#[tokio::test]
async fn answers_that_are_not_resends() {
    use Trouble::{Outage, Throttled};
    let html = |status| Reply { status, headers: vec![], body: b"<html>sorry</html>".to_vec() };
    let cases = [
        (html(400), "RESEND_UNKNOWN_ERROR", Category::Transient, Taken::No, None),
        (html(403), "RESEND_UNKNOWN_ERROR", Category::Transient, Taken::No, None),
        (html(413), "RESEND_TOO_LARGE", Category::Permanent, Taken::No, None),
        (html(429), "RESEND_RATE_LIMIT_EXCEEDED", Category::Quota, Taken::No, Some(Throttled)),
        (html(502), "RESEND_BAD_GATEWAY", Category::Transient, Taken::Unknown, Some(Outage)),
        (html(503), "RESEND_SERVICE_UNAVAILABLE", Category::Transient, Taken::No, Some(Outage)),
        (html(504), "RESEND_GATEWAY_TIMEOUT", Category::Transient, Taken::Unknown, Some(Outage)),
        (html(200), "RESEND_UNREADABLE_ANSWER", Category::Transient, Taken::Unknown, Some(Outage)),
        (
            testkit::http::json(200, "{}"),
            "RESEND_UNREADABLE_ANSWER",
            Category::Transient,
            Taken::Unknown,
            Some(Outage),
        ),
        (
            testkit::http::json(200, &format!(r#"{{"id":"x","more":"{}"}}"#, "x".repeat(70_000))),
            "RESEND_UNREADABLE_ANSWER",
            Category::Transient,
            Taken::Unknown,
            Some(Outage),
        ),
    ];
    for (reply, code, category, taken, trouble) in cases {
        let case = format!("{} {}", reply.status, reply.body.len());
        let error = refused(reply).await;
        assert_eq!(summary(&error), (code, category, taken, trouble), "{case}");
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Server::start(|_| taken()).await;
    let redirect = Reply { status: 307, headers: vec![], body: vec![] }.with("location", &elsewhere.url());
    let error = refused(redirect).await;
    assert_eq!(summary(&error), ("RESEND_REDIRECTED", Category::Configuration, Taken::No, None));
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn waits_that_resend_asks_for() {
    let throttled = || refusal(429, "rate_limit_exceeded", "Too many requests.");
    let cases = [
        (throttled().with("retry-after", "7").with("ratelimit-reset", "1"), Some(7)),
        (throttled().with("ratelimit-reset", "3"), Some(3)),
        (refusal(503, "service_unavailable", "").with("retry-after", "9"), Some(9)),
        (refusal(503, "service_unavailable", "").with("ratelimit-reset", "1"), None),
        (throttled().with("retry-after", "soon"), None),
    ];
    for (reply, secs) in cases {
        let case = format!("{:?}", reply.headers);
        assert_eq!(refused(reply).await.retry_after, secs.map(Duration::from_secs), "{case}");
    }
}

#[tokio::test]
async fn silence_leaves_it_open() {
    let server = Server::start(|_| Answer::Silence).await;
    let resend = provider(config(&server.url()));
    let sending = tokio::spawn(async move { resend.send(&outgoing()).await });
    server.until_asked().await;
    // Nothing else can happen now, so that the clock runs on to the moment at which it gives up.
    tokio::time::pause();
    let error = sending.await.expect("no panic").expect_err("no answer");
    let open = ("RESEND_TIMEOUT", Category::Timeout, Taken::Unknown, Some(Trouble::Outage));
    assert_eq!(summary(&error), open);
    assert_eq!(server.requests().len(), 1, "it was out");
}

#[tokio::test]
async fn a_connection_lost_after_the_request_leaves_it_open() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"id\":";
    for answer in [Answer::Reset, Answer::Cut(String::new()), Answer::Cut(head.into())] {
        let case = format!("{answer:?}");
        let (outcome, requests) = send_to(answer).await;
        let error = outcome.expect_err("broken off");
        let open = ("NETWORK_ERROR", Category::Transient, Taken::Unknown, Some(Trouble::Outage));
        assert_eq!(summary(&error), open, "{case}");
        assert_eq!(requests.len(), 1, "{case}: it went out once");
    }
}

#[tokio::test]
async fn nobody_listens() {
    let error = provider(config(&nobody())).send(&outgoing()).await.expect_err("refused");
    let outage = ("NETWORK_ERROR", Category::Transient, Taken::No, Some(Trouble::Outage));
    assert_eq!(summary(&error), outage);
    assert!(error.detail.starts_with("connecting: "), "{}", error.detail);
    assert!(!error.detail.contains("127.0.0.1:"), "{}", error.detail);
}

#[tokio::test]
async fn a_port_that_does_not_answer_took_nothing() {
    // TLS is asked of a server that never says a word: the connection does not come about.
    let server = Server::start(|_| Answer::Silence).await;
    let url = server.url().replace("http://", "https://");
    let hasty = ResendConfig { connect_timeout: Duration::from_millis(300), ..config(&url) };
    let error = provider(hasty).send(&outgoing()).await.expect_err("no connection");
    let outage = ("RESEND_TIMEOUT", Category::Timeout, Taken::No, Some(Trouble::Outage));
    assert_eq!(summary(&error), outage);
}

#[tokio::test]
async fn there_is_no_account_to_ask() {
    let resend = provider(config(&nobody()));
    assert_eq!(resend.account().await.expect("nothing goes wrong"), None);
    assert_eq!(resend.kind(), "resend");
}
