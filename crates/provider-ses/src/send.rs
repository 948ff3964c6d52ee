//! One email handed to SES in one call.

use std::sync::Arc;

use async_trait::async_trait;
use aws::{Client, Credentials, Environment, Method, Request, Service};
use model::email::Outgoing;
use model::{Envelope, SystemClock};
use provider::{Account, Provider, Receipt, SendError};
use serde::Deserialize;
use tokio::time::timeout;

use crate::account;
use crate::account::Identity;
use crate::config::SesConfig;
use crate::errors::{Mishap, Sent};
use crate::request;

const SES: Service = Service { id: "sesv2", host: "email", signing_name: "ses" };
/// More of an answer is not read: SES's have a few hundred bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// A provider that speaks to SES in one region.
#[derive(Debug)]
pub struct SesProvider {
    config: SesConfig,
    client: Client,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Taken {
    message_id: String,
}

impl SesProvider {
    /// Finds credentials by the AWS chain, when the first email comes.
    pub fn new(config: SesConfig) -> Self {
        Self::signed_by(config, None)
    }

    /// Uses these credentials and no others.
    pub fn with_credentials(config: SesConfig, credentials: Credentials) -> Self {
        Self::signed_by(config, Some(credentials))
    }

    fn signed_by(config: SesConfig, credentials: Option<Credentials>) -> Self {
        let calls = aws::Config {
            service: SES,
            region: config.region.clone(),
            endpoint: config.endpoint.clone(),
            credentials,
            timeout: config.timeout,
            connect_timeout: config.connect_timeout,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let client = Client::new(calls, Environment::of_process(), Arc::new(SystemClock));
        Self { config, client }
    }

    /// Whether mail may be sent from these addresses or domains, for each of them.
    pub async fn identities(&self, names: &[String]) -> Result<Vec<(String, Identity)>, SendError> {
        self.ask(async {
            let mut found = Vec::new();
            for name in names {
                found.push((name.clone(), account::identity(&self.client, name).await?));
            }
            Ok(found)
        })
        .await
    }

    /// Questions, in the time one call may take. Nothing is sent by them.
    async fn ask<T>(&self, questions: impl Future<Output = Result<T, Mishap>>) -> Result<T, SendError> {
        let answered = timeout(self.config.timeout, questions).await;
        answered.unwrap_or(Err(Mishap::TimedOut(Sent::Nothing))).map_err(Mishap::into_send_error)
    }

    async fn hand_over(&self, email: &Outgoing) -> Result<Receipt, Mishap> {
        let call = Request {
            method: Method::POST,
            path: "/v2/email/outbound-emails",
            headers: &[("content-type", "application/json")],
            body: request::body(email, self.config.configuration_set.as_deref())?,
        };
        let answer = self.client.call(call).await?;
        if !answer.is_success() {
            return Err(answer.into());
        }
        let taken = answer.json().filter(|taken: &Taken| !taken.message_id.is_empty());
        let message_id = taken.ok_or(Mishap::Unreadable)?.message_id;
        Ok(Receipt::for_all(Some(message_id)))
    }
}

#[async_trait]
impl Provider for SesProvider {
    fn kind(&self) -> &'static str {
        "ses"
    }

    /// SES counts recipients, not emails.
    fn rate_cost(&self, envelope: &Envelope) -> u32 {
        u32::try_from(1 + envelope.cc.len() + envelope.bcc.len()).unwrap_or(u32::MAX)
    }

    async fn send(&self, email: &Outgoing) -> Result<Receipt, SendError> {
        self.hand_over(email).await.map_err(Mishap::into_send_error)
    }

    async fn account(&self) -> Result<Option<Account>, SendError> {
        self.ask(async { account::read(&self.client).await.map(Some) }).await
    }
}
