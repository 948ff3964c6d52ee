//! One email handed to SES in one call.

use async_trait::async_trait;
use aws_sdk_sesv2::config::Credentials;
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
        let client = self.client.get().await.map_err(Mishap::into_send_error)?;
        let mut found = Vec::new();
        for name in names {
            let identity = account::identity(client, name).await.map_err(Mishap::into_send_error)?;
            found.push((name.clone(), identity));
        }
        Ok(found)
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

    async fn send(&self, email: &Outgoing) -> Result<Receipt, SendError> {
        let progress = Progress::default();
        // The SDK has the same time-out, but not for the time until there is a client.
        let handed_over = timeout(self.client.config().timeout, self.hand_over(email, &progress)).await;
        let sent = if progress.is_out() { Sent::Perhaps } else { Sent::Nothing };
        handed_over.unwrap_or(Err(Mishap::TimedOut(sent))).map_err(Mishap::into_send_error)
    }

    async fn account(&self) -> Result<Option<Account>, SendError> {
        let client = self.client.get().await.map_err(Mishap::into_send_error)?;
        account::read(client).await.map(Some).map_err(Mishap::into_send_error)
    }
}
