//! What the settings of a Resend provider mean, decided once at start. An error names what is wrong and never shows
//! the key.

use std::time::Duration;

use model::Secret;
use url::Url;

/// Where Resend's API is.
pub const ENDPOINT: &str = "https://api.resend.com";

/// For the way to the server: name, TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEY_LENGTH_MAX: usize = 512;

/// Everything there is to say about an account at Resend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResendConfig {
    pub api_key: Secret<String>,
    /// Somewhere else than Resend itself; for tests.
    pub endpoint: Option<Url>,
    /// For the whole call.
    pub timeout: Duration,
    pub connect_timeout: Duration,
}

/// Why settings make no Resend provider. Never holds the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResendConfig {
    #[error("is missing; give it a key of Resend with the permission to send, such as re_123456789")]
    NoKey,
    #[error("must be a key as Resend shows it, such as re_123456789: printable ASCII without spaces")]
    Key,
    #[error("must be an address such as https://api.resend.com, without user, password, ? and #")]
    Endpoint,
}

impl InvalidResendConfig {
    /// The setting that is wrong.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::NoKey | Self::Key => "api_key",
            Self::Endpoint => "endpoint",
        }
    }
}

impl ResendConfig {
    pub fn parse(api_key: Option<&str>, endpoint: Option<&str>) -> Result<Self, InvalidResendConfig> {
        let api_key = api_key.map(str::trim).filter(|key| !key.is_empty());
        let api_key = api_key.ok_or(InvalidResendConfig::NoKey)?;
        if api_key.len() > KEY_LENGTH_MAX || !api_key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidResendConfig::Key);
        }
        Ok(Self {
            api_key: Secret::new(api_key.to_owned()),
            endpoint: endpoint.map(parse_endpoint).transpose()?,
            timeout: provider::SEND_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
        })
    }

    /// Where emails are posted to. A path the endpoint has is kept.
    pub(crate) fn emails_url(&self) -> String {
        let endpoint = self.endpoint.as_ref().map_or(ENDPOINT, Url::as_str);
        format!("{}/emails", endpoint.trim_end_matches('/'))
    }

    /// Whether the endpoint is on this machine, to which no proxy leads.
    pub(crate) fn is_local(&self) -> bool {
        match self.endpoint.as_ref().and_then(Url::host) {
            Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
            Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            None => false,
        }
    }
}

fn parse_endpoint(text: &str) -> Result<Url, InvalidResendConfig> {
    let url = Url::parse(text.trim()).map_err(|_| InvalidResendConfig::Endpoint)?;
    let is_fine = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if is_fine { Ok(url) } else { Err(InvalidResendConfig::Endpoint) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_settings_mean() {
        let cases = [
            // endpoint                          emails are posted to                        on this machine
            (None, "https://api.resend.com/emails", false),
            (Some("https://api.resend.com/"), "https://api.resend.com/emails", false),
            (Some("http://127.0.0.1:8025"), "http://127.0.0.1:8025/emails", true),
            (Some("http://[::1]:8025"), "http://[::1]:8025/emails", true),
            (Some("http://localhost:8025/resend/"), "http://localhost:8025/resend/emails", true),
        ];
        for (endpoint, url, is_local) in cases {
            let config = ResendConfig::parse(Some(" re_abc\n"), endpoint).expect("valid");
            assert_eq!((config.emails_url().as_str(), config.is_local()), (url, is_local));
            assert_eq!(config.api_key.expose(), "re_abc");
            assert_eq!(config.timeout, provider::SEND_TIMEOUT);
        }
    }

    #[test]
    fn what_is_wrong_is_named_without_the_key() {
        use InvalidResendConfig as I;
        let cases = [
            (None, None, I::NoKey),
            (Some("  "), None, I::NoKey),
            (Some("re_hunter2 x"), None, I::Key),
            (Some("re_hunter2é"), None, I::Key),
            (Some("re_hunter2\r\nX: 1"), None, I::Key),
            (Some("re_hunter2"), Some("api.resend.com"), I::Endpoint),
            (Some("re_hunter2"), Some("ftp://api.resend.com"), I::Endpoint),
            (Some("re_hunter2"), Some("https://u:p@api.resend.com"), I::Endpoint),
            (Some("re_hunter2"), Some("https://api.resend.com?x=1"), I::Endpoint),
        ];
        for (key, endpoint, expected) in cases {
            let error = ResendConfig::parse(key, endpoint).expect_err("invalid");
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert_eq!(error, expected, "{key:?} {endpoint:?}");
            assert!(["api_key", "endpoint"].contains(&error.setting()));
        }
        let shown = format!("{:?}", ResendConfig::parse(Some("re_hunter2"), None));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
