//! What the settings of an SES provider mean, decided once at start. Credentials are no part of it: they come by the
//! AWS chain.

use std::time::Duration;

use url::Url;

/// For the way to the server: name, TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const NAME_LENGTH_MAX: usize = 64;

/// Everything there is to say about SES in one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SesConfig {
    /// Else what the AWS chain says (AWS_REGION, the profile, the machine's own region).
    pub region: Option<String>,
    /// Somewhere else than AWS itself; for emulators and private endpoints.
    pub endpoint: Option<Url>,
    pub configuration_set: Option<String>,
    /// For the whole call.
    pub timeout: Duration,
    pub connect_timeout: Duration,
}

/// Why settings make no SES provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSesConfig {
    #[error("must be a region of AWS such as eu-west-1")]
    Region,
    #[error(
        "must be an address such as https://email.eu-west-1.amazonaws.com, without user, password, ? and #"
    )]
    Endpoint,
    #[error("must be the name of a configuration set: 1 to {NAME_LENGTH_MAX} ASCII letters, digits, - and _")]
    ConfigurationSet,
}

impl InvalidSesConfig {
    /// The setting that is wrong.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Region => "region",
            Self::Endpoint => "endpoint",
            Self::ConfigurationSet => "configuration_set",
        }
    }
}

impl SesConfig {
    pub fn parse(
        region: Option<&str>,
        endpoint: Option<&str>,
        configuration_set: Option<&str>,
    ) -> Result<Self, InvalidSesConfig> {
        Ok(Self {
            region: region.map(parse_region).transpose()?,
            endpoint: endpoint.map(parse_endpoint).transpose()?,
            configuration_set: configuration_set.map(parse_configuration_set).transpose()?,
            timeout: provider::SEND_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
        })
    }
}

fn parse_region(text: &str) -> Result<String, InvalidSesConfig> {
    let text = text.trim();
    if aws::is_region(text) { Ok(text.to_owned()) } else { Err(InvalidSesConfig::Region) }
}

fn parse_endpoint(text: &str) -> Result<Url, InvalidSesConfig> {
    let url = Url::parse(text.trim()).map_err(|_| InvalidSesConfig::Endpoint)?;
    let is_fine = matches!(url.scheme(), "http" | "https")
        && url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if is_fine { Ok(url) } else { Err(InvalidSesConfig::Endpoint) }
}

fn parse_configuration_set(text: &str) -> Result<String, InvalidSesConfig> {
    let text = text.trim();
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if (1..=NAME_LENGTH_MAX).contains(&text.len()) && text.bytes().all(is_fine) {
        Ok(text.to_owned())
    } else {
        Err(InvalidSesConfig::ConfigurationSet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_defaults() {
        let config =
            SesConfig::parse(Some(" us-gov-west-1 "), Some("http://127.0.0.1:4566"), Some("main_set"));
        let config = config.expect("valid");
        assert_eq!(config.region.as_deref(), Some("us-gov-west-1"));
        assert_eq!(config.endpoint.as_ref().map(Url::as_str), Some("http://127.0.0.1:4566/"));
        assert_eq!(config.configuration_set.as_deref(), Some("main_set"));
        assert_eq!((config.timeout, config.connect_timeout), (provider::SEND_TIMEOUT, CONNECT_TIMEOUT));
        assert!(SesConfig::parse(None, None, None).is_ok(), "the AWS chain may say it all");
    }

    #[test]
    fn what_is_wrong_is_named() {
        use InvalidSesConfig as I;
        let cases = [
            (Some(""), None, None, I::Region),
            (Some("europe"), None, None, I::Region),
            (Some("eu-west-"), None, None, I::Region),
            (Some("EU-WEST-1"), None, None, I::Region),
            (Some("eu-west-1.evil.com"), None, None, I::Region),
            (None, Some("127.0.0.1:4566"), None, I::Endpoint),
            (None, Some("https://u:p@127.0.0.1"), None, I::Endpoint),
            (None, None, Some("a set"), I::ConfigurationSet),
            (None, None, Some(""), I::ConfigurationSet),
        ];
        for (region, endpoint, set, expected) in cases {
            let error = SesConfig::parse(region, endpoint, set).expect_err("invalid");
            assert_eq!(error, expected, "{region:?} {endpoint:?} {set:?}");
            assert!(["region", "endpoint", "configuration_set"].contains(&error.setting()));
        }
    }
}
