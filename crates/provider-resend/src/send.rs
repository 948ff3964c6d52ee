//! One email handed to Resend in one call.

use std::error::Error as _;
use std::time::Duration;

use async_trait::async_trait;
use model::email::Outgoing;
use provider::{Provider, Receipt, SendError};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response};
use serde::Deserialize;
use tokio::time::timeout;

use crate::config::ResendConfig;
use crate::errors::{Answer, Mishap, Sent};
use crate::payload::{idempotency_key, payload};

/// More of an answer is not read: Resend's have a few hundred bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Shorter than the patience of any server or address translation on the way, so that no request meets a connection
/// that is about to close.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// A provider that speaks to Resend's API.
pub struct ResendProvider {
    config: ResendConfig,
    client: Client,
    url: String,
    authorization: HeaderValue,
}

/// Why there can be no connections.
#[derive(Debug, thiserror::Error)]
#[error("connections to Resend cannot be made: {0}")]
pub struct UnusableClient(String);

impl ResendProvider {
    /// Reads the machine's certificates; connects when the first email comes.
    pub fn new(config: ResendConfig) -> Result<Self, UnusableClient> {
        let mut client = Client::builder()
            .user_agent(concat!("posthaste/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(config.connect_timeout)
            .pool_idle_timeout(IDLE_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false);
        if config.is_local() {
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| UnusableClient(in_full(&error)))?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", config.api_key.expose()))
            .map_err(|_| UnusableClient("the key cannot stand in a header".into()))?;
        authorization.set_sensitive(true);
        let url = config.emails_url();
        Ok(Self { config, client, url, authorization })
    }

    async fn hand_over(&self, email: &Outgoing) -> Result<Receipt, Mishap> {
        let body = payload(email)?;
        let request = self
            .client
            .post(&self.url)
            .header(AUTHORIZATION, self.authorization.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("Idempotency-Key", idempotency_key(email))
            .body(body);
        let mut response = request.send().await.map_err(mishap)?;
        let status = response.status();
        let headers = std::mem::take(response.headers_mut());
        if !status.is_success() {
            // The status is the answer; what explains it may get lost.
            let body = read(response).await.unwrap_or_default();
            return Err(Mishap::Answer(answer(status.as_u16(), &headers, &body)));
        }
        let taken: Option<Taken> = serde_json::from_slice(&read(response).await?).ok();
        let id = taken.map(|taken| taken.id).filter(|id| !id.is_empty()).ok_or(Mishap::Unreadable)?;
        Ok(Receipt::for_all(Some(id)))
    }
}

#[async_trait]
impl Provider for ResendProvider {
    fn kind(&self) -> &'static str {
        "resend"
    }

    async fn send(&self, email: &Outgoing) -> Result<Receipt, SendError> {
        // Connecting has a shorter time-out of its own, so what runs into this one is out.
        let handed_over = timeout(self.config.timeout, self.hand_over(email)).await;
        let outcome = handed_over.unwrap_or(Err(Mishap::TimedOut(Sent::Perhaps)));
        outcome.map_err(|mishap| mishap.into_send_error(&self.config.api_key))
    }
}

#[derive(Deserialize)]
struct Taken {
    id: String,
}

#[derive(Deserialize)]
struct Refusal {
    name: String,
    #[serde(default)]
    message: Message,
}

/// Resend has been seen to send a list where it documents a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Message {
    Text(String),
    Other(serde_json::Value),
}

impl Default for Message {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

fn answer(status: u16, headers: &HeaderMap, body: &[u8]) -> Answer {
    let refusal: Option<Refusal> = serde_json::from_slice(body).ok();
    let (name, message) = match refusal {
        Some(Refusal { name, message: Message::Text(text) }) => (Some(name), text),
        Some(Refusal { name, message: Message::Other(value) }) => (Some(name), value.to_string()),
        None => (None, String::new()),
    };
    let secs = |header: &str| headers.get(header)?.to_str().ok()?.trim().parse().ok();
    let asked = secs("retry-after").or_else(|| if status == 429 { secs("ratelimit-reset") } else { None });
    Answer { status, name, message, retry_after: asked.map(Duration::from_secs) }
}

/// The answer's body, or an error if it is longer than any of Resend's.
async fn read(mut response: Response) -> Result<Vec<u8>, Mishap> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(mishap)? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(Mishap::Unreadable);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Only while a connection was being made is it sure that nothing went out.
fn mishap(error: reqwest::Error) -> Mishap {
    let sent = if error.is_connect() || error.is_builder() { Sent::Nothing } else { Sent::Perhaps };
    if error.is_timeout() {
        return Mishap::TimedOut(sent);
    }
    Mishap::Network(sent, in_full(&error.without_url()))
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
