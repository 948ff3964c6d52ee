//! A connection to the server, from the name to the login.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lettre::transport::smtp::authentication::{Credentials as Login, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Ehlo, Starttls};
use lettre::transport::smtp::extension::{ClientId, Extension, ServerInfo};
use lettre::transport::smtp::response::Response;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::config::{SmtpConfig, Tls, is_host_name};
use crate::errors::Mishap;
use crate::wire::Wire;

/// A name that has more addresses than this is tried at the first ones.
const ADDRESSES_MAX: usize = 4;

/// Why a server cannot be used as configured.
#[derive(Debug, thiserror::Error)]
pub enum UnusableConfig {
    #[error("the certificates in {path} cannot be read: {reason}")]
    Certificates { path: String, reason: String },
    #[error("the SMTP host is neither a name nor an address that a certificate could be for")]
    Host,
    #[error("TLS cannot be set up")]
    Tls(#[source] tokio_rustls::rustls::Error),
}

/// A server and how it is spoken to.
pub struct Server {
    config: SmtpConfig,
    tls: TlsConnector,
    name: ServerName<'static>,
}

impl Server {
    pub fn new(config: SmtpConfig) -> Result<Self, UnusableConfig> {
        let name = ServerName::try_from(config.host.clone()).map_err(|_| UnusableConfig::Host)?;
        // The provider is named, not taken from the process, so that nobody has to install one first.
        let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(UnusableConfig::Tls)?
            .with_root_certificates(roots(&config)?)
            .with_no_client_auth();
        Ok(Self { config, tls: TlsConnector::from(Arc::new(client)), name })
    }

    pub fn config(&self) -> &SmtpConfig {
        &self.config
    }

    /// Opens a connection that is ready for an email.
    pub async fn connect(&self) -> Result<AsyncSmtpConnection, Mishap> {
        let wire = Wire::plain(self.dial().await?);
        let hello = self.hello(&wire);
        let wire = match self.config.tls {
            Tls::None => wire,
            Tls::Implicit => wire.into_tls(&self.tls, self.name.clone()).await?,
            Tls::IfOffered | Tls::Required => self.starttls(wire, &hello).await?,
        };
        let mut connection = AsyncSmtpConnection::connect_with_transport(Box::new(wire), &hello).await?;
        self.log_in(&mut connection).await?;
        Ok(connection)
    }

    /// TCP without Nagle's delay, which would cost 40 ms per message. Each address gets its share of the time, so
    /// that one that swallows packets does not use it up.
    async fn dial(&self) -> Result<TcpStream, Mishap> {
        let deadline = Instant::now() + self.config.connect_timeout;
        let host = (self.config.host.as_str(), self.config.port);
        let found = timeout(self.config.connect_timeout, tokio::net::lookup_host(host));
        let found: Vec<SocketAddr> =
            found.await.map_err(|_| Mishap::TimedOut)??.take(ADDRESSES_MAX).collect();
        let mut last = Mishap::Network("the server's name has no address".into());
        for (tried, address) in found.iter().enumerate() {
            let left = deadline.saturating_duration_since(Instant::now());
            match dial_one(*address, left / u32::try_from(found.len() - tried).unwrap_or(1)).await {
                Ok(tcp) => return Ok(tcp),
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    /// Greets in the clear, asks for TLS and begins it. The client greets again afterwards, as it must, and is told
    /// the server's greeting a second time. This is not left to the client because it would keep what came before
    /// TLS began and take it for an answer.
    async fn starttls(&self, mut wire: Wire, hello: &ClientId) -> Result<Wire, Mishap> {
        let greeting = accepted(wire.read_reply().await?)?;
        wire.write_all(Ehlo::new(hello.clone()).to_string().as_bytes()).await?;
        let offer = ServerInfo::from_response(&accepted(wire.read_reply().await?)?)?;
        if offer.supports_feature(Extension::StartTls) {
            wire.write_all(Starttls.to_string().as_bytes()).await?;
            accepted(wire.read_reply().await?)?;
            wire = wire.into_tls(&self.tls, self.name.clone()).await?;
        } else if self.config.tls == Tls::Required {
            return Err(Mishap::TlsNotOffered);
        }
        wire.say_again(&greeting);
        Ok(wire)
    }

    async fn log_in(&self, connection: &mut AsyncSmtpConnection) -> Result<(), Mishap> {
        let Some(credentials) = &self.config.credentials else {
            return Ok(());
        };
        if connection.server_info().get_auth_mechanism(DEFAULT_MECHANISMS).is_none() {
            return Err(Mishap::AuthNotOffered);
        }
        let login = Login::new(credentials.user.expose().clone(), credentials.password.expose().clone());
        connection.auth(DEFAULT_MECHANISMS, &login).await?;
        Ok(())
    }

    /// The name we greet with: as configured, else the machine's if it is a full one, else our address. Servers
    /// refuse a short name, such as that of a container.
    fn hello(&self, wire: &Wire) -> ClientId {
        if let Some(name) = &self.config.hello {
            return ClientId::Domain(name.clone());
        }
        match (ClientId::default(), wire.local_addr()) {
            (ClientId::Domain(name), _) if name.contains('.') && is_host_name(&name) => {
                ClientId::Domain(name)
            }
            (_, Ok(SocketAddr::V4(address))) => ClientId::Ipv4(*address.ip()),
            (_, Ok(SocketAddr::V6(address))) => ClientId::Ipv6(*address.ip()),
            (_, Err(_)) => ClientId::Domain("localhost".into()),
        }
    }
}

async fn dial_one(address: SocketAddr, within: Duration) -> Result<TcpStream, Mishap> {
    let tcp = timeout(within, TcpStream::connect(address)).await.map_err(|_| Mishap::TimedOut)??;
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

fn accepted(reply: Response) -> Result<Response, Mishap> {
    if reply.is_positive() {
        return Ok(reply);
    }
    let text = reply.message().collect::<Vec<_>>().join(" ");
    Err(Mishap::Reply { code: reply.code().into(), text, recipient: None })
}

fn roots(config: &SmtpConfig) -> Result<RootCertStore, UnusableConfig> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let Some(path) = &config.ca else {
        return Ok(roots);
    };
    let unreadable =
        |reason: String| UnusableConfig::Certificates { path: path.display().to_string(), reason };
    let pem = std::fs::read(path).map_err(|error: io::Error| unreadable(error.to_string()))?;
    let found = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unreadable(error.to_string()))?;
    if found.is_empty() {
        return Err(unreadable("it holds no certificate".into()));
    }
    for certificate in found {
        roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
    }
    Ok(roots)
}
