//! What a machine of EC2 says of itself (its metadata service, version 2): its region, and credentials of its role.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use serde::Deserialize;

use crate::chain::ANSWER_BYTES_MAX;
use crate::credentials::{Credentials, Written};
use crate::failure::{Failure, Sent, misconfigured, none_found};
use crate::http;
use crate::settings::Settings;

/// It is next door: it answers in milliseconds or not at all.
const TIMEOUT: Duration = Duration::from_secs(1);
/// It has a limit of packets per second, and says nothing above that.
const TRIES: usize = 3;
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";

pub async fn region(settings: &Settings, http: &Client) -> Result<String, Failure> {
    Machine::find(settings, http).await?.text("/latest/meta-data/placement/region").await
}

pub async fn credentials(settings: &Settings, http: &Client) -> Result<Credentials, Failure> {
    let machine = Machine::find(settings, http).await?;
    let roles = machine.text(ROLES).await?;
    let role = roles.lines().next().unwrap_or_default();
    let answer = machine.text(&format!("{ROLES}{role}")).await?;
    let code = serde_json::from_str::<Outcome>(&answer).ok().and_then(|outcome| outcome.code);
    match code.as_deref() {
        Some("AssumeRoleUnauthorizedAccess") => {
            Err(misconfigured("the machine may not take on its role: the role does not trust EC2"))
        }
        _ => Written::read(answer.as_bytes(), "the machine's metadata service"),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Outcome {
    code: Option<String>,
}

/// A machine that answered.
struct Machine<'x> {
    http: &'x Client,
    endpoint: String,
    token: String,
}

impl<'x> Machine<'x> {
    async fn find(settings: &Settings, http: &'x Client) -> Result<Self, Failure> {
        if settings.environment.is_true("AWS_EC2_METADATA_DISABLED") {
            return Err(none_found("there are none elsewhere, and AWS_EC2_METADATA_DISABLED is set"));
        }
        let endpoint = endpoint(settings);
        let request = || {
            let request = http.put(format!("{endpoint}/latest/api/token"));
            request.header("x-aws-ec2-metadata-token-ttl-seconds", "300")
        };
        let token = ask(request).await?;
        Ok(Self { http, endpoint, token })
    }

    async fn text(&self, path: &str) -> Result<String, Failure> {
        let request = || {
            let request = self.http.get(format!("{}{path}", self.endpoint));
            request.header("x-aws-ec2-metadata-token", &self.token)
        };
        ask(request).await
    }
}

fn endpoint(settings: &Settings) -> String {
    let named = settings.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ec2_metadata_service_endpoint");
    let mode = settings.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ec2_metadata_service_endpoint_mode");
    let usual = match mode {
        Some(mode) if mode.eq_ignore_ascii_case("ipv6") => "http://[fd00:ec2::254]",
        _ => "http://169.254.169.254",
    };
    named.unwrap_or(usual).trim_end_matches('/').to_owned()
}

async fn ask(request: impl Fn() -> RequestBuilder) -> Result<String, Failure> {
    let mut tries = 1;
    let response = loop {
        match request().timeout(TIMEOUT).send().await.map_err(http::failure) {
            Ok(response) if response.status().is_server_error() && tries < TRIES => tries += 1,
            Ok(response) => break response,
            Err(Failure::TimedOut(Sent::Perhaps)) if tries < TRIES => tries += 1,
            Err(failure) => return Err(none_found(format!("the machine's metadata service: {failure}"))),
        }
    };
    read(response).await
}

async fn read(response: Response) -> Result<String, Failure> {
    let status = response.status();
    if !status.is_success() {
        let reason = match status.as_u16() {
            404 => "there is no role for this machine".to_owned(),
            status => format!("the answer was {status}"),
        };
        return Err(none_found(format!("the machine's metadata service: {reason}")));
    }
    let body = http::body(response, ANSWER_BYTES_MAX).await.unwrap_or_default();
    Ok(String::from_utf8_lossy(&body).trim().to_owned())
}
