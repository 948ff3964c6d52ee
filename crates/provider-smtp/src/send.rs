//! One email handed to an SMTP server, in one transaction for all its recipients. If the server does not take it for `to`,
//! the attempt has failed and nothing was sent; a copy that it refuses is left out, and the email goes to the others.

use async_trait::async_trait;
use lettre::Address as SmtpAddress;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Data, Mail, Rcpt, Rset};
use lettre::transport::smtp::extension::{Extension, MailBodyParameter, MailParameter};
use model::email::Outgoing;
use model::{Address, Failure};
use provider::{Provider, Receipt, SendError};
use tokio::time::timeout;

use crate::config::SmtpConfig;
use crate::connect::{Server, UnusableConfig};
use crate::errors::{Mishap, Progress, Stage};
use crate::pool::{Connection, Pool};
use crate::receipt::queue_id;

/// The message is written in pieces of this size.
const CHUNK_BYTES: usize = 64 * 1024;

/// A provider that speaks SMTP to one server.
pub struct SmtpProvider {
    server: Server,
    pool: Pool,
}

impl SmtpProvider {
    /// Reads the certificates; connects when the first email comes.
    pub fn new(config: SmtpConfig) -> Result<Self, UnusableConfig> {
        let pool = Pool::new(config.connections_max, config.messages_per_connection_max, config.idle_max);
        Ok(Self { server: Server::new(config)?, pool })
    }

    async fn hand_over(&self, email: &Outgoing, progress: &Progress) -> Result<Receipt, Mishap> {
        let letter = Letter::new(email)?;
        progress.reach(Stage::WaitingForConnection);
        let _slot = self.pool.slot().await;
        if let Some(mut connection) = self.pool.take_idle() {
            match letter.deliver(&mut connection, progress).await {
                Err(trouble) if trouble.is_stale() && progress.stage() <= Stage::Envelope => {
                    tracing::debug!("an idle SMTP connection had died and is replaced");
                }
                outcome => return self.conclude(connection, outcome),
            }
        }
        progress.reach(Stage::Connecting);
        let mut connection = Connection::new(self.server.connect().await?);
        let outcome = letter.deliver(&mut connection, progress).await;
        self.conclude(connection, outcome)
    }

    /// Keeps the connection if it is good; a failure that is not an answer leaves it in an unknown state.
    fn conclude(
        &self,
        mut connection: Connection,
        outcome: Result<Receipt, Mishap>,
    ) -> Result<Receipt, Mishap> {
        let is_refusal = outcome.as_ref().is_err_and(Mishap::is_refusal);
        if outcome.is_ok() || is_refusal {
            connection.is_unfinished = is_refusal;
            self.pool.give_back(connection);
        }
        outcome
    }
}

#[async_trait]
impl Provider for SmtpProvider {
    fn kind(&self) -> &'static str {
        "smtp"
    }

    async fn send(&self, email: &Outgoing) -> Result<Receipt, SendError> {
        let progress = Progress::default();
        let handed_over = timeout(self.server.config().timeout, self.hand_over(email, &progress));
        let outcome = handed_over.await.unwrap_or(Err(Mishap::TimedOut));
        outcome.map_err(|trouble| trouble.into_send_error(progress.stage()))
    }
}

/// An email as SMTP needs it.
struct Letter {
    from: SmtpAddress,
    /// `to` first.
    recipients: Vec<SmtpAddress>,
    is_last_attempt: bool,
    eml: Vec<u8>,
    message_id: Option<String>,
}

impl Letter {
    fn new(email: &Outgoing) -> Result<Self, Mishap> {
        let envelope = &email.envelope;
        let mut recipients: Vec<SmtpAddress> = Vec::new();
        for address in std::iter::once(&envelope.to).chain(&envelope.cc).chain(&envelope.bcc) {
            let address = smtp_address(address)?;
            if !recipients.contains(&address) {
                recipients.push(address);
            }
        }
        Ok(Self {
            from: smtp_address(&email.from.address)?,
            recipients,
            is_last_attempt: email.is_last_attempt,
            eml: message::render(email).map_err(Mishap::Unrenderable)?,
            message_id: message::message_id(email),
        })
    }

    async fn deliver(&self, connection: &mut Connection, progress: &Progress) -> Result<Receipt, Mishap> {
        progress.reach(Stage::Envelope);
        let smtp = &mut connection.smtp;
        let mut parameters = Vec::new();
        if !self.eml.is_ascii() {
            if !smtp.server_info().supports_feature(Extension::EightBitMime) {
                return Err(Mishap::EightBitNotOffered);
            }
            parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
        }
        if connection.is_unfinished {
            smtp.command(Rset).await?;
            connection.is_unfinished = false;
        }
        smtp.command(Mail::new(Some(self.from.clone()), parameters)).await?;
        let refused = self.name_recipients(smtp).await?;
        let go_ahead = smtp.command(Data).await?;
        if !go_ahead.has_code(354) {
            return Err(Mishap::Network("the server's answer to DATA is not SMTP".into()));
        }
        progress.reach(Stage::Body);
        let answer = smtp.message_iter(Chunks { rest: self.unended(), progress }).await?;
        let text = answer.message().collect::<Vec<_>>().join(" ");
        Ok(Receipt { message_id: queue_id(&text).or_else(|| self.message_id.clone()), refused })
    }

    /// Which copies the server did not take.
    async fn name_recipients(&self, smtp: &mut AsyncSmtpConnection) -> Result<Vec<Failure>, Mishap> {
        let mut refused = Vec::new();
        for (place, recipient) in self.recipients.iter().enumerate() {
            let answer = smtp.command(Rcpt::new(recipient.clone(), vec![])).await;
            let Err(error) = answer else { continue };
            let mishap = Mishap::from(error).with_recipient(recipient.as_ref());
            if place == 0 || !mishap.is_copys_own(self.is_last_attempt) {
                return Err(mishap);
            }
            refused.push(mishap.into_send_error(Stage::Envelope).into());
        }
        Ok(refused)
    }

    /// The message without its last line end: the client adds one with the final dot.
    fn unended(&self) -> &[u8] {
        self.eml.strip_suffix(b"\r\n").unwrap_or(&self.eml)
    }
}

/// The message in pieces. The client asks for one more when all are written and then writes the final dot; from
/// that moment on the server may have taken the message.
struct Chunks<'x> {
    rest: &'x [u8],
    progress: &'x Progress,
}

impl<'x> Iterator for Chunks<'x> {
    type Item = &'x [u8];

    fn next(&mut self) -> Option<&'x [u8]> {
        if self.rest.is_empty() {
            self.progress.reach(Stage::EndOfData);
            return None;
        }
        let (chunk, rest) = self.rest.split_at(self.rest.len().min(CHUNK_BYTES));
        self.rest = rest;
        Some(chunk)
    }
}

fn smtp_address(address: &Address) -> Result<SmtpAddress, Mishap> {
    address.expose().parse().map_err(|_| Mishap::Address)
}
