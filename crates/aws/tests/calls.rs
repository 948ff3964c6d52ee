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
    client_at(Arc::new(ManualClock::default()), config, variables)
}

fn client_at(clock: Arc<ManualClock>, config: Config, variables: &[(&str, &str)]) -> Client {
    Client::new(config, variables.iter().copied().collect::<Environment>(), clock)
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
async fn silence_once_the_request_is_out() {
    let server = Server::start(|_| Answer::Silence).await;
    let client = client(config(), &[("AWS_ENDPOINT_URL", &server.url())]);
    let calling = tokio::spawn(async move { list_tables(&client).await });
    server.until_asked().await;
    // Nothing else can happen now, so that the clock runs on to the moment at which it gives up.
    tokio::time::pause();
    let failure = calling.await.expect("no panic").expect_err("silence");
    assert_eq!(failure, Failure::TimedOut(Sent::Perhaps));
}

#[tokio::test]
async fn silence_while_credentials_are_looked_for() {
    let server = Server::start(|_| Answer::Silence).await;
    let container = format!("{}/container", server.url());
    // Looking for them is given up sooner than a call is.
    let hasty = Config { timeout: Duration::from_millis(300), credentials: None, ..config() };
    let client = client(hasty, &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &container)]);
    let failure = list_tables(&client).await.expect_err("silence");
    assert_eq!(failure, Failure::TimedOut(Sent::Nothing));
}

/// Who signed the calls so far.
fn signers(server: &Server) -> Vec<String> {
    let signer = |request: &http::Request| {
        let authorization = request.header("authorization").expect("a signature");
        let (_, credential) = authorization.split_once("Credential=").expect("a credential");
        credential.split('/').next().unwrap_or_default().to_owned()
    };
    server.requests().iter().map(signer).collect()
}

/// A file of keys, which are then others.
struct Keys(tempfile::TempDir);

impl Keys {
    fn path(&self) -> String {
        self.0.path().join("credentials").to_str().expect("a plain path").to_owned()
    }

    fn write(&self, id: &str) {
        let keys = format!("[default]\naws_access_key_id={id}\naws_secret_access_key=hunter2\n");
        std::fs::write(self.path(), keys).expect("written");
    }
}

#[tokio::test]
async fn keys_that_were_put_into_the_file_count_after_a_while() {
    let server = Server::start(|_| http::json(200, "{}")).await;
    let (keys, clock) = (Keys(tempfile::tempdir().expect("a folder")), Arc::new(ManualClock::default()));
    keys.write("OLD");
    let variables = [("AWS_ENDPOINT_URL", server.url()), ("AWS_SHARED_CREDENTIALS_FILE", keys.path())];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let client = client_at(clock.clone(), Config { credentials: None, ..config() }, &variables);
    list_tables(&client).await.expect("an answer");
    keys.write("NEW");
    for minutes in [14, 1] {
        clock.advance(Duration::from_secs(60 * minutes));
        list_tables(&client).await.expect("an answer");
    }
    // A file that is gone is no reason to stop: AWS says whether the keys are.
    std::fs::remove_file(keys.path()).expect("removed");
    clock.advance(Duration::from_secs(3600));
    list_tables(&client).await.expect("an answer");
    assert_eq!(signers(&server), ["OLD", "OLD", "NEW", "NEW"]);
}

#[tokio::test]
async fn keys_that_aws_refuses_are_read_anew_by_the_next_call() {
    let reasons = [
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "SignatureDoesNotMatch",
    ];
    for reason in reasons.into_iter().map(Some).chain([None]) {
        let server = Server::start(move |request: &http::Request| {
            let is_old = request.header("authorization").is_some_and(|who| who.contains("Credential=OLD/"));
            let name = reason.unwrap_or("AccessDeniedException");
            if is_old { http::json(403, "{}").with("x-amzn-errortype", name) } else { http::json(200, "{}") }
        })
        .await;
        let keys = Keys(tempfile::tempdir().expect("a folder"));
        keys.write("OLD");
        let variables = [("AWS_ENDPOINT_URL", server.url()), ("AWS_SHARED_CREDENTIALS_FILE", keys.path())];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let client = client(Config { credentials: None, ..config() }, &variables);
        assert_eq!(list_tables(&client).await.expect("an answer").status, 403);
        keys.write("NEW");
        let expected = if reason.is_some() { 200 } else { 403 };
        assert_eq!(list_tables(&client).await.expect("an answer").status, expected, "{reason:?}");
    }
}

/// Each looking in its turn, the last of them would tell of a timeout instead.
#[tokio::test]
async fn calls_at_the_same_time_look_for_a_region_once() {
    let server = Server::start(|_| http::json(404, "")).await;
    let client =
        client(Config { region: None, ..config() }, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.url())]);
    let (first, second, third) =
        tokio::join!(list_tables(&client), list_tables(&client), list_tables(&client));
    for answer in [first, second, third] {
        assert_eq!(answer.expect_err("no region"), Failure::NoRegion);
    }
    assert_eq!(server.requests().len(), 1);
    list_tables(&client).await.expect_err("no region");
    assert_eq!(server.requests().len(), 2, "who comes later looks again");
}
