//! One email handed to SES in one call.

use async_trait::async_trait;
use aws_sdk_sesv2::config::Credentials;
use model::Envelope;
use model::email::Outgoing;
use provider::{Account, Provider, Receipt, SendError};
use tokio::time::timeout;

use crate::account;
use crate::account::Identity;
use crate::client::{LazyClient, Progress};
use crate::config::SesConfig;
use crate::errors::{Mishap, Sent};
use crate::request;

/// A provider that speaks to SES in one region.
#[derive(Debug)]
pub struct SesProvider {
    client: LazyClient,
}

impl SesProvider {
    /// Finds credentials by the AWS chain, when the first email comes.
    pub fn new(config: SesConfig) -> Self {
        Self { client: LazyClient::new(config, None) }
    }

    /// Uses these credentials and no others.
    pub fn with_credentials(config: SesConfig, credentials: Credentials) -> Self {
        Self { client: LazyClient::new(config, Some(credentials)) }
    }

    /// Whether mail may be sent from these addresses or domains, for each of them.
    pub async fn identities(&self, names: &[String]) -> Result<Vec<(String, Identity)>, SendError> {
        self.ask(async {
            let client = self.client.get().await?;
            let mut found = Vec::new();
            for name in names {
                found.push((name.clone(), account::identity(client, name).await?));
            }
            Ok(found)
        })
        .await
    }

    /// A question, in the time a call may take. Nothing is sent by it.
    async fn ask<T>(&self, question: impl Future<Output = Result<T, Mishap>>) -> Result<T, SendError> {
        let answered = timeout(self.client.config().timeout, question).await;
        answered.unwrap_or(Err(Mishap::TimedOut(Sent::Nothing))).map_err(Mishap::into_send_error)
    }

    async fn hand_over(&self, email: &Outgoing, progress: &Progress) -> Result<Receipt, Mishap> {
        let content = request::content(email)?;
        let client = self.client.get().await?;
        let call = client
            .send_email()
            .from_email_address(message::mailbox_in_ascii(&email.from))
            .destination(request::destination(&email.envelope))
            .set_reply_to_addresses(request::reply_to(email))
            .set_configuration_set_name(self.client.config().configuration_set.clone())
            .set_email_tags(Some(request::tags(email)?))
            .content(content);
        let answer = call.customize().interceptor(progress.clone()).send().await;
        let answer = answer.map_err(|error| Mishap::of(error, progress.is_out()))?;
        let message_id = answer.message_id.filter(|id| !id.is_empty()).ok_or(Mishap::Unreadable)?;
        Ok(Receipt { message_id: Some(message_id) })
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
        let progress = Progress::default();
        // The SDK has the same time-out, but not for the time until there is a client.
        let handed_over = timeout(self.client.config().timeout, self.hand_over(email, &progress)).await;
        let sent = if progress.is_out() { Sent::Perhaps } else { Sent::Nothing };
        handed_over.unwrap_or(Err(Mishap::TimedOut(sent))).map_err(Mishap::into_send_error)
    }

    async fn account(&self) -> Result<Option<Account>, SendError> {
        self.ask(async { account::read(self.client.get().await?).await.map(Some) }).await
    }
}
