//! Calls over HTTP, to a server in the test that speaks as a service of AWS does.

use std::sync::Arc;
use std::time::Duration;

use aws::{Client, Config, Credentials, Environment, Failure, Method, Request, Sent, Service};
use serde_json::{Value, json};
use testkit::ManualClock;
use testkit::http::{self, Answer, Server};
use url::Url;

/// A service that is told by a header what to do.
const TABLES: Service = Service { id: "dynamodb", host: "dynamodb", signing_name: "dynamodb" };
const ANSWER_BYTES_MAX: usize = 100;

fn config() -> Config {
    Config {
        service: TABLES,
        region: Some("eu-west-1".into()),
        endpoint: None,
        credentials: Some(Credentials::new("AKID", "hunter2").with_session_token("hunter3")),
        timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(5),
        answer_bytes_max: ANSWER_BYTES_MAX,
    }
}

fn client(config: Config, variables: &[(&str, &str)]) -> Client {
    Client::new(config, variables.iter().copied().collect::<Environment>(), Arc::new(ManualClock::default()))
}

async fn list_tables(client: &Client) -> Result<aws::Answer, Failure> {
    let request = Request {
        method: Method::POST,
        path: "/",
        headers: &[
            ("content-type", "application/x-amz-json-1.0"),
            ("x-amz-target", "DynamoDB_20120810.ListTables"),
        ],
        body: b"{}".to_vec(),
    };
    client.call(request).await
}

#[tokio::test]
async fn what_goes_out() {
    let server = Server::start(|_| http::json(200, r#"{"TableNames":["a"]}"#)).await;
    let endpoint = Url::parse(&format!("{}/prefix", server.url())).expect("an address");
    let client = client(Config { endpoint: Some(endpoint), ..config() }, &[]);
    let answer = list_tables(&client).await.expect("an answer");
    assert_eq!(answer.json::<Value>(), Some(json!({"TableNames": ["a"]})));
    let requests = server.requests();
    let [request] = requests.as_slice() else { panic!("{} requests", requests.len()) };
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/prefix/"));
    assert_eq!(request.header("x-amz-target"), Some("DynamoDB_20120810.ListTables"));
    assert_eq!(request.header("content-type"), Some("application/x-amz-json-1.0"));
    assert_eq!(request.header("x-amz-date"), Some("20260101T000000Z"));
    assert_eq!(request.header("x-amz-security-token"), Some("hunter3"));
    let authorization = request.header("authorization").expect("a signature");
    assert!(
        authorization
            .starts_with("AWS4-HMAC-SHA256 Credential=AKID/20260101/eu-west-1/dynamodb/aws4_request"),
        "{authorization}"
    );
    assert_eq!(request.body, b"{}");
    let printed = format!("{client:?} {answer:?}");
    assert!(!printed.contains("hunter"), "{printed}");
}

#[tokio::test]
async fn where_aws_s_own_settings_say() {
    let server = Server::start(|_| http::json(200, "{}")).await;
    let client = client(config(), &[("AWS_ENDPOINT_URL_DYNAMODB", &server.url())]);
    list_tables(&client).await.expect("an answer");
    assert_eq!(server.requests()[0].path, "/");
}

#[tokio::test]
async fn answers_are_bounded_and_redirects_not_followed() {
    let long = format!("\"{}\"", "x".repeat(ANSWER_BYTES_MAX - 1));
    let fitting = format!("\"{}\"", "x".repeat(ANSWER_BYTES_MAX - 2));
    let elsewhere = http::nobody();
    let cases = [
        ("too long", http::json(200, &long), 200, false),
        ("as long as may be", http::json(200, &fitting), 200, true),
        ("elsewhere", http::json(307, "1").with("location", &elsewhere), 307, true),
    ];
    for (case, reply, status, is_read) in cases {
        let server = Server::start(move |_| reply.clone()).await;
        let client = client(config(), &[("AWS_ENDPOINT_URL", &server.url())]);
        let answer = list_tables(&client).await.expect("an answer");
        assert_eq!((answer.status, answer.json::<Value>().is_some()), (status, is_read), "{case}");
        assert_eq!(server.requests().len(), 1, "{case}");
    }
}

#[tokio::test]
async fn calls_at_the_same_time_look_for_credentials_once() {
    let server = Server::start(|request: &http::Request| match request.path.as_str() {
        "/container" => http::json(200, r#"{"AccessKeyId":"FOUND","SecretAccessKey":"hunter2"}"#),
        _ => http::json(200, "{}"),
    })
    .await;
    let container = format!("{}/container", server.url());
    let variables =
        [("AWS_ENDPOINT_URL", server.url()), ("AWS_CONTAINER_CREDENTIALS_FULL_URI", container.clone())];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let client = client(Config { credentials: None, ..config() }, &variables);
    let (first, second) = tokio::join!(list_tables(&client), list_tables(&client));
    assert!(first.is_ok() && second.is_ok());
    let requests = server.requests();
    let asked = requests.iter().filter(|request| request.path == "/container").count();
    assert_eq!((asked, requests.len()), (1, 3));
}

#[tokio::test]
async fn what_silence_means() {
    let server = Server::start(|_| Answer::Silence).await;
    let hasty = || Config { timeout: Duration::from_millis(300), ..config() };
    let container = format!("{}/container", server.url());
    let (asks, sends) = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL");
    let cases = [
        ("the request is out", client(hasty(), &[(sends, &server.url())]), Sent::Perhaps),
        (
            "credentials are looked for",
            client(Config { credentials: None, ..hasty() }, &[(asks, &container)]),
            Sent::Nothing,
        ),
    ];
    for (case, client, sent) in cases {
        let failure = list_tables(&client).await.expect_err("silence");
        assert_eq!(failure, Failure::TimedOut(sent), "{case}");
    }
}
