//! Credentials by the usual AWS chain. What a process finds in its environment cannot be changed from within, so each
//! way is a process of its own: this very test, started again, which sends one email and prints what came of it.

use std::path::Path;
use std::process::Command;

use provider::Provider;
use provider_ses::{SesConfig, SesProvider};
use testkit::http::{Answer, Request, Server, json};

use crate::outgoing;

/// Set in the process that is to send: the address of SES.
const ENDPOINT: &str = "POSTHASTE_TEST_SES_ENDPOINT";

const STS: &str = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
    <AccessKeyId>AKIDWEB</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>\
    <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
    </AssumeRoleWithWebIdentityResponse>";

/// SES, STS, a container's and a machine's metadata in one.
fn aws(request: &Request) -> Answer {
    let found = |key: &str| {
        let body = format!(
            r#"{{"Code":"Success","Type":"AWS-HMAC","AccessKeyId":"{key}","SecretAccessKey":"s","Token":"t",
                "Expiration":"2099-01-01T00:00:00Z","LastUpdated":"2026-01-01T00:00:00Z"}}"#
        );
        json(200, &body)
    };
    let metadata = "/latest/meta-data/iam/security-credentials";
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/v2/email/outbound-emails") => json(200, r#"{"MessageId":"1"}"#).into(),
        ("POST", "/sts/" | "/sts") => json(200, STS).into(),
        ("GET", "/container") => found("AKIDCONTAINER").into(),
        ("PUT", "/latest/api/token") => {
            json(200, "token").with("x-aws-ec2-metadata-token-ttl-seconds", "600").into()
        }
        ("GET", "/latest/meta-data/placement/region") => json(200, "sa-east-1").into(),
        ("GET", path) if path.starts_with("/latest/") && path.ends_with("/security-credentials/mail") => {
            found("AKIDMACHINE").into()
        }
        ("GET", path) if path.starts_with(metadata) => json(200, "mail").into(),
        ("GET" | "PUT", path) if path.starts_with("/hangs/") => Answer::Silence,
        _ => json(404, "{}").into(),
    }
}

/// Starts this test again with nothing of AWS's in its environment but these settings.
async fn send_with(server: &Server, home: &Path, settings: Settings) -> String {
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.args(["--exact", "credentials::every_way_to_credentials", "--nocapture"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        child.env_remove(name);
    }
    child.env(ENDPOINT, server.url()).env("HOME", home).envs(settings);
    let output =
        tokio::task::spawn_blocking(move || child.output()).await.expect("it ran").expect("it started");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let line =
        printed.lines().find_map(|line| line.split_once("OUTCOME ").map(|(_, outcome)| outcome.to_owned()));
    line.unwrap_or_else(|| panic!("{printed}\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// The other process.
async fn send_and_print(endpoint: &str) {
    let config = SesConfig::parse(None, Some(endpoint), None).expect("a configuration");
    match SesProvider::new(config).send(&outgoing()).await {
        Ok(_) => println!("OUTCOME sent"),
        Err(error) => println!("OUTCOME {}", error.code),
    }
}

fn signer(request: &Request) -> String {
    let authorization = request.header("authorization").expect("a signature");
    let credential = authorization.split_once("Credential=").expect("a credential").1;
    let pieces: Vec<&str> = credential.split('/').collect();
    format!("{} {}", pieces[0], pieces[2])
}

type Settings = Vec<(&'static str, String)>;

fn setting(name: &'static str, value: &str) -> (&'static str, String) {
    (name, value.to_owned())
}

/// Files that AWS's own settings name.
fn write_files(folder: &Path) {
    let files = [
        ("profile", "[mail]\naws_access_key_id=AKIDPROFILE\naws_secret_access_key=s\n"),
        (
            "process",
            "[profile mail]\nregion=eu-west-3\ncredential_process=echo \
             '{\"Version\":1,\"AccessKeyId\":\"AKIDPROCESS\",\"SecretAccessKey\":\"s\"}'\n",
        ),
        ("broken", "[default\naws_access_key_id"),
        ("token", "a.b.c"),
    ];
    for (name, content) in files {
        std::fs::write(folder.join(name), content).expect("written");
    }
}

/// The ways to credentials: what is set, and who then signs for which region.
fn ways(url: &str, folder: &Path) -> Vec<(&'static str, Settings, &'static str)> {
    let path = |name: &str| folder.join(name).to_str().expect("a plain path").to_owned();
    let region = setting("AWS_REGION", "eu-west-1");
    let profile = setting("AWS_PROFILE", "mail");
    vec![
        (
            "environment",
            vec![
                region.clone(),
                setting("AWS_ACCESS_KEY_ID", "AKIDENV"),
                setting("AWS_SECRET_ACCESS_KEY", "s"),
            ],
            "AKIDENV eu-west-1",
        ),
        (
            "profile",
            vec![region.clone(), profile.clone(), setting("AWS_SHARED_CREDENTIALS_FILE", &path("profile"))],
            "AKIDPROFILE eu-west-1",
        ),
        ("process", vec![profile, setting("AWS_CONFIG_FILE", &path("process"))], "AKIDPROCESS eu-west-3"),
        (
            "web identity",
            vec![
                region.clone(),
                setting("AWS_WEB_IDENTITY_TOKEN_FILE", &path("token")),
                setting("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/mail"),
                setting("AWS_ENDPOINT_URL_STS", &format!("{url}/sts")),
            ],
            "AKIDWEB eu-west-1",
        ),
        (
            "container",
            vec![region, setting("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{url}/container"))],
            "AKIDCONTAINER eu-west-1",
        ),
        ("machine", vec![setting("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)], "AKIDMACHINE sa-east-1"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_way_to_credentials() {
    if let Ok(endpoint) = std::env::var(ENDPOINT) {
        return send_and_print(&endpoint).await;
    }
    let server = Server::start(aws).await;
    let folder = tempfile::tempdir().expect("a folder");
    write_files(folder.path());
    for (case, settings, expected) in ways(&server.url(), folder.path()) {
        assert_eq!(send_with(&server, folder.path(), settings).await, "sent", "{case}");
        let requests = server.requests();
        let sent = requests.iter().rev().find(|request| request.path.starts_with("/v2/")).expect("a call");
        assert_eq!(signer(sent), expected, "{case}");
    }
    let region = setting("AWS_REGION", "eu-west-1");
    let no_machine = setting("AWS_EC2_METADATA_DISABLED", "true");
    let hangs = setting("AWS_EC2_METADATA_SERVICE_ENDPOINT", &format!("{}/hangs", server.url()));
    let broken = setting("AWS_CONFIG_FILE", &folder.path().join("broken").display().to_string());
    let lacking = [
        ("nothing", vec![region.clone(), no_machine.clone()], "SES_CREDENTIALS_NOT_FOUND"),
        ("a machine that hangs", vec![region.clone(), hangs.clone()], "SES_CREDENTIALS_NOT_FOUND"),
        ("no region", vec![no_machine], "SES_REGION_NOT_FOUND"),
        ("a machine that hangs, no region", vec![hangs], "SES_REGION_NOT_FOUND"),
        ("a broken file", vec![region, broken], "SES_CREDENTIALS_MISCONFIGURED"),
    ];
    for (case, settings, expected) in lacking {
        assert_eq!(send_with(&server, folder.path(), settings).await, expected, "{case}");
    }
    let was_asked = server.requests().iter().any(|request| request.path.starts_with("/hangs/"));
    assert!(was_asked, "the machine that hangs was asked");
}
