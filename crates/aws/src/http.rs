//! Connections, and what their errors mean.

use std::error::Error as _;
use std::time::Duration;

use reqwest::{Client, Response};

use crate::failure::{Failure, Sent};

/// Shorter than the patience of any server or address translation on the way, so that no request meets a connection
/// that is about to close.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// More than anybody has calls under way at once, so that connections are made once.
const IDLE_CONNECTIONS_MAX: usize = 256;

/// Connections as AWS wants them. Nothing is sent twice, no redirect is followed, since it would take the signature
/// along, and no proxy is asked, as ever with AWS's own libraries.
pub fn client(connect_timeout: Duration) -> Result<Client, Failure> {
    let client = Client::builder()
        .user_agent(concat!("posthaste/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(connect_timeout)
        .pool_idle_timeout(IDLE_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .tcp_nodelay(true)
        .http1_only()
        .retry(reqwest::retry::never())
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .no_proxy();
    client.build().map_err(|error| Failure::Network(Sent::Nothing, in_full(&error)))
}

/// Only while a connection was being made is it sure that nothing went out.
pub fn failure(error: reqwest::Error) -> Failure {
    let sent = if error.is_connect() || error.is_builder() { Sent::Nothing } else { Sent::Perhaps };
    if error.is_timeout() {
        return Failure::TimedOut(sent);
    }
    Failure::Network(sent, in_full(&error.without_url()))
}

/// The answer's body; none if it breaks off or is longer than that.
pub async fn body(mut response: Response, bytes_max: usize) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > bytes_max {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    Some(body)
}

/// The error and what caused it, which has the better words.
fn in_full(error: &reqwest::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        source = cause.source();
    }
    words
}
