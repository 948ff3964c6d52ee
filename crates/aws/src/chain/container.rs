//! Credentials that a container is given by its surroundings: tasks of ECS, pods of EKS.

use std::net::IpAddr;
use std::time::Duration;

use reqwest::Client;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use url::{Host, Url};

use crate::chain::ANSWER_BYTES_MAX;
use crate::credentials::{Credentials, Written};
use crate::environment::Environment;
use crate::failure::{Failure, misconfigured, none_found};
use crate::http;
use crate::settings::Settings;

const TASKS: &str = "http://169.254.170.2";
/// Where ECS and EKS listen.
const SURROUNDINGS: [&str; 3] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23"];
const TIMEOUT: Duration = Duration::from_secs(5);

/// None where nothing says that this is such a container.
pub async fn credentials(settings: &Settings, http: &Client) -> Result<Option<Credentials>, Failure> {
    let Some(url) = address(&settings.environment).await? else {
        return Ok(None);
    };
    let mut request = http.get(url).timeout(TIMEOUT);
    if let Some(token) = token(&settings.environment).await? {
        request = request.header(AUTHORIZATION, token);
    }
    let lost = |error| none_found(format!("the container's credentials: {}", http::failure(error)));
    let response = request.send().await.map_err(lost)?;
    let status = response.status();
    if !status.is_success() {
        return Err(none_found(format!("the container's credentials: the answer was {}", status.as_u16())));
    }
    let body = http::body(response, ANSWER_BYTES_MAX).await.unwrap_or_default();
    Written::read(&body, "the container's surroundings").map(Some)
}

async fn address(environment: &Environment) -> Result<Option<Url>, Failure> {
    let wrong = |variable: &str| misconfigured(format!("{variable} is no address"));
    if let Some(path) = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        let url = Url::parse(&format!("{TASKS}/{}", path.trim_start_matches('/')));
        return url.map(Some).map_err(|_| wrong("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"));
    }
    let Some(text) = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI") else {
        return Ok(None);
    };
    let url = Url::parse(text).map_err(|_| wrong("AWS_CONTAINER_CREDENTIALS_FULL_URI"))?;
    if url.scheme() == "https" || (url.scheme() == "http" && is_near(&url).await) {
        return Ok(Some(url));
    }
    Err(misconfigured(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI must use https, or lead to this machine, ECS or EKS",
    ))
}

/// Whether credentials may come from there in the clear.
async fn is_near(url: &Url) -> bool {
    let is_fine = |ip: IpAddr| ip.is_loopback() || SURROUNDINGS.iter().any(|known| known.parse() == Ok(ip));
    match url.host() {
        Some(Host::Ipv4(ip)) => is_fine(ip.into()),
        Some(Host::Ipv6(ip)) => is_fine(ip.into()),
        Some(Host::Domain(name)) => {
            let port = url.port_or_known_default().unwrap_or(80);
            let found = tokio::net::lookup_host((name, port)).await;
            let addresses: Vec<IpAddr> = found.into_iter().flatten().map(|address| address.ip()).collect();
            !addresses.is_empty() && addresses.into_iter().all(is_fine)
        }
        None => false,
    }
}

/// Read anew every time: EKS changes it.
async fn token(environment: &Environment) -> Result<Option<HeaderValue>, Failure> {
    let text = match environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        Some(path) => Some(tokio::fs::read_to_string(path).await.map_err(|error| {
            none_found(format!("the file that AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE names: {error}"))
        })?),
        None => environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(str::to_owned),
    };
    let Some(text) = text else {
        return Ok(None);
    };
    let mut value = HeaderValue::from_str(text.trim())
        .map_err(|_| misconfigured("the container's authorization token cannot stand in a header"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}
