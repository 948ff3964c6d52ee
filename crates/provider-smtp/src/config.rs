//! What an SMTP address means, decided once at start. An error names what is wrong and never shows the address
//! itself, since a password is part of it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use model::Secret;
use percent_encoding::percent_decode_str;
use url::Url;

/// The port of mail submission; `smtps` has its own.
const SUBMISSION_PORT: u16 = 587;
const SMTPS_PORT: u16 = 465;

/// No more connections than a common server grants one client (Postfix: 50).
const CONNECTIONS_MAX: usize = 32;
const CONNECTIONS_LIMIT: usize = 1000;
/// Some servers count messages per connection and hang up (Postfix, Exchange: often 100).
const MESSAGES_PER_CONNECTION_MAX: u32 = 100;
/// Shorter than the patience of any server or address translation on the way.
const IDLE_MAX: Duration = Duration::from_secs(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// When the connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// Never.
    None,
    /// By STARTTLS when the server offers it.
    IfOffered,
    /// By STARTTLS, or nothing is sent.
    Required,
    /// From the first byte on.
    Implicit,
}

/// Who we are to the server. Prints as stars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: Secret<String>,
    pub password: Secret<String>,
}

/// Everything there is to say about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmtpConfig {
    pub host: String,
    pub port: u16,
    pub tls: Tls,
    pub credentials: Option<Credentials>,
    /// A PEM file of further roots to trust, besides the well-known ones.
    pub ca: Option<PathBuf>,
    /// The name to greet with; else this machine's, if it is a full one, else its address.
    pub hello: Option<String>,
    /// For everything, from the wait for a free connection to the last answer.
    pub timeout: Duration,
    /// For the way to the server: name and TCP.
    pub connect_timeout: Duration,
    pub connections_max: usize,
    pub messages_per_connection_max: u32,
    pub idle_max: Duration,
}

/// Why a text is no SMTP address. Never holds any of it but the name of a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSmtpUrl {
    #[error(
        "the SMTP address must be such as smtp://user:password@host:587 or smtps://host:465; \
         special characters in user and password must be percent-encoded (@ is %40, / is %2F)"
    )]
    Malformed,
    #[error("the SMTP address must begin with smtp:// or smtps://")]
    Scheme,
    #[error("the SMTP address has a user but no password, or a password but no user")]
    Credentials,
    #[error("the SMTP address has the unknown setting `{0}`; known are tls, ca, hello and connections")]
    UnknownSetting(String),
    #[error(
        "the setting `tls` of the SMTP address must be starttls, required or none (smtps:// has no such setting)"
    )]
    Tls,
    #[error("the setting `connections` of the SMTP address must be a number from 1 to {CONNECTIONS_LIMIT}")]
    Connections,
    #[error("the setting `hello` of the SMTP address must be a host name")]
    Hello,
}

impl SmtpConfig {
    pub fn parse(url: &str) -> Result<Self, InvalidSmtpUrl> {
        let url = Url::parse(url.trim()).map_err(|_| InvalidSmtpUrl::Malformed)?;
        let (port, implicit) = match url.scheme() {
            "smtp" => (SUBMISSION_PORT, false),
            "smtps" => (SMTPS_PORT, true),
            _ => return Err(InvalidSmtpUrl::Scheme),
        };
        let host = host(&url)?;
        let credentials = credentials(&url)?;
        let is_guarded = credentials.is_some() && !is_loopback(&host);
        let tls = match (implicit, is_guarded) {
            (true, _) => Tls::Implicit,
            (false, true) => Tls::Required,
            (false, false) => Tls::IfOffered,
        };
        let mut config = Self {
            host,
            port: url.port().unwrap_or(port),
            tls,
            credentials,
            ca: None,
            hello: None,
            timeout: provider::SEND_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            connections_max: CONNECTIONS_MAX,
            messages_per_connection_max: MESSAGES_PER_CONNECTION_MAX,
            idle_max: IDLE_MAX,
        };
        for (name, value) in url.query_pairs() {
            config.set(&name, &value)?;
        }
        Ok(config)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), InvalidSmtpUrl> {
        match name {
            "tls" => {
                self.tls = match (self.tls, value) {
                    (Tls::Implicit, _) => return Err(InvalidSmtpUrl::Tls),
                    (_, "none") => Tls::None,
                    (_, "required") => Tls::Required,
                    // As without the setting: a password is worth insisting.
                    (unless_told, "starttls") => unless_told,
                    _ => return Err(InvalidSmtpUrl::Tls),
                }
            }
            "ca" => self.ca = Some(PathBuf::from(value)),
            "hello" if is_host_name(value) => self.hello = Some(value.to_owned()),
            "hello" => return Err(InvalidSmtpUrl::Hello),
            "connections" => {
                let connections = value.parse().ok().filter(|count| (1..=CONNECTIONS_LIMIT).contains(count));
                self.connections_max = connections.ok_or(InvalidSmtpUrl::Connections)?;
            }
            _ => return Err(InvalidSmtpUrl::UnknownSetting(name.chars().take(40).collect())),
        }
        Ok(())
    }
}

/// Whether a text can stand in a greeting.
pub(crate) fn is_host_name(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    !text.is_empty() && text.len() <= 253 && text.bytes().all(is_fine)
}

fn host(url: &Url) -> Result<String, InvalidSmtpUrl> {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_fine = is_host_name(host) || host.parse::<IpAddr>().is_ok();
    if !is_fine || !matches!(url.path(), "" | "/") || url.fragment().is_some() {
        return Err(InvalidSmtpUrl::Malformed);
    }
    Ok(host.to_ascii_lowercase())
}

fn credentials(url: &Url) -> Result<Option<Credentials>, InvalidSmtpUrl> {
    let decoded = |text: &str| {
        let decoded = percent_decode_str(text).decode_utf8().map_err(|_| InvalidSmtpUrl::Malformed)?;
        Ok(Secret::new(decoded.into_owned()))
    };
    match (url.username(), url.password().unwrap_or_default()) {
        ("", "") => Ok(None),
        ("", _) | (_, "") => Err(InvalidSmtpUrl::Credentials),
        (user, password) => Ok(Some(Credentials { user: decoded(user)?, password: decoded(password)? })),
    }
}

fn is_loopback(host: &str) -> bool {
    host.parse::<IpAddr>().map_or(host == "localhost" || host.ends_with(".localhost"), |ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_address_means() {
        let cases = [
            // address                                         host            port  tls
            ("smtp://mail.example.com", "mail.example.com", 587, Tls::IfOffered),
            ("smtp://mail.example.com:25/", "mail.example.com", 25, Tls::IfOffered),
            ("smtp://u:p@mail.example.com", "mail.example.com", 587, Tls::Required),
            ("smtp://u:p@mail.example.com?tls=starttls", "mail.example.com", 587, Tls::Required),
            ("smtp://u:p@mail.example.com?tls=none", "mail.example.com", 587, Tls::None),
            ("smtp://u:p@localhost:2525", "localhost", 2525, Tls::IfOffered),
            ("smtp://u:p@127.0.0.1:2525", "127.0.0.1", 2525, Tls::IfOffered),
            ("smtp://u:p@[::1]:2525", "::1", 2525, Tls::IfOffered),
            ("smtp://u:p@[2001:db8::1]", "2001:db8::1", 587, Tls::Required),
            ("smtp://127.0.0.1?tls=required", "127.0.0.1", 587, Tls::Required),
            ("smtps://Mail.Example.com", "mail.example.com", 465, Tls::Implicit),
            ("smtps://u:p@mail.example.com:8465", "mail.example.com", 8465, Tls::Implicit),
        ];
        for (address, host, port, tls) in cases {
            let config = SmtpConfig::parse(address).expect(address);
            assert_eq!((config.host.as_str(), config.port, config.tls), (host, port, tls), "{address}");
            assert_eq!(config.credentials.is_some(), address.contains("u:p"), "{address}");
        }
    }

    #[test]
    fn settings_and_defaults() {
        let config =
            SmtpConfig::parse("smtp://h.example.com?ca=/etc/my%20ca.pem&hello=gw.example.com&connections=5");
        let config = config.expect("valid");
        assert_eq!(config.ca, Some(PathBuf::from("/etc/my ca.pem")));
        assert_eq!(config.hello.as_deref(), Some("gw.example.com"));
        assert_eq!(config.connections_max, 5);
        assert_eq!((config.timeout, config.connect_timeout), (provider::SEND_TIMEOUT, CONNECT_TIMEOUT));
    }

    #[test]
    fn credentials_are_decoded_and_never_shown() {
        let config =
            SmtpConfig::parse("smtp://ana%40acme.com:p%2Fa%3As%40s%2B+%C3%A9@h.example.com").expect("valid");
        let credentials = config.credentials.as_ref().expect("credentials");
        assert_eq!(credentials.user.expose(), "ana@acme.com");
        assert_eq!(credentials.password.expose(), "p/a:s@s++é");
        let shown = format!("{config:?}");
        assert!(!shown.contains("acme") && !shown.contains("p/a"), "{shown}");
    }

    #[test]
    fn what_is_wrong_is_named_without_the_password() {
        use InvalidSmtpUrl as I;
        let cases = [
            ("", I::Malformed),
            ("mail.example.com:587", I::Scheme),
            ("http://u:hunter2@mail.example.com", I::Scheme),
            ("smtp://u:hunter2@", I::Malformed),
            ("smtp://u:hunter2/x@mail.example.com", I::Malformed),
            ("smtp://u:hunter2#x@mail.example.com", I::Malformed),
            ("smtp://u:hunter2@mail.example.com:99999", I::Malformed),
            ("smtp://u:hunter2@mail example.com", I::Malformed),
            ("smtp://u:hunter2@mail.example.com/inbox", I::Malformed),
            ("smtp://u:hunter2%FF@mail.example.com", I::Malformed),
            ("smtp://:hunter2@mail.example.com", I::Credentials),
            ("smtp://u@mail.example.com", I::Credentials),
            ("smtp://u:hunter2@mail.example.com?tls=yes", I::Tls),
            ("smtps://u:hunter2@mail.example.com?tls=none", I::Tls),
            ("smtp://u:hunter2@mail.example.com?tsl=none", I::UnknownSetting("tsl".into())),
            ("smtp://u:hunter2@mail.example.com?connections=0", I::Connections),
            ("smtp://u:hunter2@mail.example.com?hello=a%0D%0Ab", I::Hello),
        ];
        for (address, expected) in cases {
            let error = SmtpConfig::parse(address).expect_err(address);
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert_eq!(error, expected, "{address}");
        }
    }
}
