//! The links that speak to others, against a server in the test. That every link is reached by the process's own
//! environment is tested where the chain is used, by `provider-ses`.

use super::*;
use crate::environment::Environment;
use crate::failure::Lack;
use testkit::http::{Answer, Request, Server, json, nobody};

const EXPIRY: &str = "2099-01-01T00:00:00Z";

fn written(key: &str) -> Answer {
    let body = format!(
        r#"{{"AccessKeyId":"{key}","SecretAccessKey":"hunter2","Token":"t","Expiration":"{EXPIRY}"}}"#
    );
    json(200, &body).into()
}

fn role_of(key: &str) -> Answer {
    let body = format!(
        "<R><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>hunter2</SecretAccessKey>\
         <SessionToken>t</SessionToken><Expiration>{EXPIRY}</Expiration></Credentials></R>"
    );
    json(200, &body).into()
}

fn temporary(key: &str) -> Credentials {
    let expires_at = Timestamp::parse(EXPIRY).expect("a moment");
    Credentials::new(key, "hunter2").with_session_token("t").until(expires_at)
}

type Variables<'x> = &'x [(&'x str, &'x str)];

async fn search(variables: Variables<'_>) -> Result<Credentials, Failure> {
    let environment: Environment = variables.iter().copied().collect();
    let settings = Settings::load(&environment).await;
    let http = crate::http::client(std::time::Duration::from_secs(5)).expect("a client");
    let found =
        Search { settings: &settings, region: "eu-west-1", http: &http, now: testkit::START }.run().await;
    assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
    found
}

fn lack(found: Result<Credentials, Failure>) -> (Lack, String) {
    match found {
        Err(Failure::Credentials(lack, reason)) => (lack, reason),
        other => panic!("{other:?}"),
    }
}

fn form(request: &Request) -> Vec<(String, String)> {
    url::form_urlencoded::parse(&request.body).into_owned().collect()
}

fn file(folder: &tempfile::TempDir, name: &str, content: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, content).expect("written");
    path.to_str().expect("a plain path").to_owned()
}

#[tokio::test]
async fn a_container_is_shown_its_token() {
    let server = Server::start(|_| written("CONTAINER")).await;
    let folder = tempfile::tempdir().expect("a folder");
    let token_file = file(&folder, "token", "from the file\n");
    let uri = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("{}/x", server.url()));
    let uri = (uri.0, uri.1.as_str());
    let token = ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "from the environment");
    let cases: [(Variables, Option<&str>); 3] = [
        (&[uri], None),
        (&[uri, token], Some("from the environment")),
        (
            &[uri, token, ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token_file.as_str())],
            Some("from the file"),
        ),
    ];
    for (variables, expected) in cases {
        assert_eq!(search(variables).await.as_ref(), Ok(&temporary("CONTAINER")));
        let requests = server.requests();
        assert_eq!(requests.last().and_then(|request| request.header("authorization")), expected);
    }
}

#[tokio::test]
async fn a_container_asks_nobody_far_away_in_the_clear() {
    let cases = [
        ("http://192.0.2.1/x", Lack::Misconfigured),
        ("http://[2001:db8::1]/x", Lack::Misconfigured),
        ("http://nobody.invalid/x", Lack::Misconfigured),
        ("ftp://127.0.0.1/x", Lack::Misconfigured),
        ("here", Lack::Misconfigured),
        (&nobody(), Lack::NoneFound),
    ];
    for (uri, expected) in cases {
        let found = search(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", uri)]).await;
        assert_eq!(lack(found).0, expected, "{uri}");
    }
}

#[tokio::test]
async fn roles_are_taken_on_one_after_the_other() {
    let server = Server::start(|request: &Request| match form(request)[2].1.as_str() {
        "arn:first" => role_of("FIRST"),
        _ => role_of("SECOND"),
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = file(
        &folder,
        "config",
        "[default]\nrole_arn=arn:second\nexternal_id=e\nrole_session_name=n\nsource_profile=middle\n\
         [profile middle]\nrole_arn=arn:first\nsource_profile=base\n\
         [profile base]\naws_access_key_id=BASE\naws_secret_access_key=hunter2\n",
    );
    let found = search(&[("AWS_CONFIG_FILE", &config), ("AWS_ENDPOINT_URL_STS", &server.url())]).await;
    assert_eq!(found.as_ref(), Ok(&temporary("SECOND")));
    let requests = server.requests();
    let [first, second] = requests.as_slice() else { panic!("{} requests", requests.len()) };
    let signed_by = |request: &Request, id: &str| {
        let authorization = request.header("authorization").unwrap_or_default();
        authorization.contains(&format!("Credential={id}/20260101/eu-west-1/sts/aws4_request"))
    };
    assert!(signed_by(first, "BASE") && first.header("x-amz-security-token").is_none());
    assert!(signed_by(second, "FIRST") && second.header("x-amz-security-token") == Some("t"));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = [
        pair("Action", "AssumeRole"),
        pair("Version", "2011-06-15"),
        pair("RoleArn", "arn:second"),
        pair("RoleSessionName", "n"),
        pair("ExternalId", "e"),
    ];
    assert_eq!(form(second), expected);
}

#[tokio::test]
async fn a_token_that_is_refused_is_not_told() {
    let server = Server::start(|_| {
        json(
            400,
            "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>hunter2</Message></Error></ErrorResponse>",
        )
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    let token_file = file(&folder, "token", "hunter2");
    let mut variables = vec![
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token_file.as_str()),
        ("AWS_ROLE_ARN", "arn:mail"),
        ("AWS_ROLE_SESSION_NAME", "n"),
    ];
    let url = server.url();
    variables.push(("AWS_ENDPOINT_URL_STS", &url));
    let (lack, reason) = lack(search(&variables).await);
    assert_eq!((lack, reason.as_str()), (Lack::NoneFound, "STS refused the role: 400 InvalidIdentityToken"));
    let requests = server.requests();
    let expected = [
        ("Action", "AssumeRoleWithWebIdentity"),
        ("Version", "2011-06-15"),
        ("RoleArn", "arn:mail"),
        ("RoleSessionName", "n"),
        ("WebIdentityToken", "hunter2"),
    ];
    assert_eq!(form(&requests[0]), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(requests[0].header("authorization"), None);
}

#[tokio::test]
async fn a_machine_that_is_busy_is_asked_again() {
    let server = Server::start({
        let asked = std::sync::atomic::AtomicUsize::new(0);
        move |request: &Request| -> Answer {
            let is_busy = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % 3 < 2;
            match (request.method.as_str(), request.path.as_str()) {
                _ if is_busy => json(503, "").into(),
                ("PUT", "/latest/api/token") => json(200, "token").into(),
                _ if request.header("x-aws-ec2-metadata-token") != Some("token") => json(401, "").into(),
                ("GET", "/latest/meta-data/iam/security-credentials/") => json(200, "mail\nother").into(),
                ("GET", "/latest/meta-data/iam/security-credentials/mail") => written("MACHINE"),
                _ => json(404, "").into(),
            }
        }
    })
    .await;
    let found = search(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.url())]).await;
    assert_eq!(found.as_ref(), Ok(&temporary("MACHINE")));
}

#[tokio::test]
async fn machines_without_credentials() {
    let unauthorized = r#"{"Code":"AssumeRoleUnauthorizedAccess","Message":"hunter2"}"#;
    let cases = [
        (json(404, ""), Lack::NoneFound, "no role"),
        (json(500, "hunter2"), Lack::NoneFound, "500"),
        (json(200, unauthorized), Lack::Misconfigured, "trust"),
        (
            json(200, r#"{"Code":"Failed","SecretAccessKey":"hunter2"}"#),
            Lack::NoneFound,
            "not with credentials",
        ),
    ];
    for (reply, expected, words) in cases {
        let server = Server::start(move |request: &Request| -> Answer {
            match request.path.as_str() {
                "/latest/api/token" => json(200, "token").into(),
                "/latest/meta-data/iam/security-credentials/" if reply.status == 200 => {
                    json(200, "mail").into()
                }
                _ => reply.clone().into(),
            }
        })
        .await;
        let found = search(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.url())]).await;
        let (lack, reason) = lack(found);
        assert_eq!(lack, expected, "{reason}");
        assert!(reason.contains(words), "{reason}");
    }
}

#[tokio::test]
async fn commands_that_tell_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    for command in ["echo hunter2; exit 3", "echo hunter2 >&2; false", "echo '{\"AccessKeyId\":\"hunter2\"}'"]
    {
        let config = file(&folder, "config", &format!("[default]\ncredential_process={command}\n"));
        let found = search(&[("AWS_CONFIG_FILE", &config)]).await;
        assert_eq!(lack(found).0, Lack::NoneFound, "{command}");
    }
}
