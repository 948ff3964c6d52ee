//! Which addresses a message of SNS may send us to. A message names the address of its certificate before anybody has
//! checked its signature, so this is the door that keeps strangers from having us call hosts of their choice.

use url::Url;

/// A host beside those of AWS: `host` (its usual port) or `host:port` (that port alone). Plain http is taken there too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedHost {
    host: String,
    port: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a trusted host is written as localhost, 127.0.0.1:4566 or [::1]:4566: lower case, without scheme and path"
)]
pub struct InvalidHost;

impl TrustedHost {
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        let url = Url::parse(&format!("http://{text}/")).map_err(|_| InvalidHost)?;
        let host = url.host_str().ok_or(InvalidHost)?;
        // What is left of the text beside the host as the parser has it can only be a port. That refuses user names,
        // paths and odd spellings.
        let port = match text.strip_prefix(host).ok_or(InvalidHost)? {
            "" => None,
            rest => Some(rest.strip_prefix(':').and_then(|port| port.parse().ok()).ok_or(InvalidHost)?),
        };
        Ok(Self { host: host.to_owned(), port })
    }

    fn matches(&self, url: &Url) -> bool {
        let port_matches = match self.port {
            Some(port) => url.port_or_known_default() == Some(port),
            None => url.port().is_none(),
        };
        url.host_str() == Some(&self.host) && port_matches
    }
}

/// Why an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlFault {
    #[error("it is not an address")]
    Unreadable,
    #[error("it has a user name, a port spelled out, or is written in an unusual way")]
    Spelling,
    #[error("it is not on a host of SNS over https, nor on a trusted host")]
    Host,
    #[error("it does not name a .pem file, or has a query")]
    Path,
}

/// Whose host an address is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// A host of SNS. The names its certificates may have depend on where it is.
    Aws { region: String, domain: &'static str },
    /// A host the operator named.
    Operator,
}

/// The rule for a certificate. A query is refused, since the same hosts answer calls of the SNS API, whose answers can
/// hold text of a stranger's choice.
pub(super) fn check_certificate_url(text: &str, hosts: &[TrustedHost]) -> Result<(Url, Origin), UrlFault> {
    let (url, origin) = check_host(text, hosts)?;
    if !url.path().ends_with(".pem") || url.query().is_some() || url.fragment().is_some() {
        return Err(UrlFault::Path);
    }
    Ok((url, origin))
}

/// The rule for every address: on a host of SNS over https, or on a host the operator named.
pub(super) fn check_host(text: &str, hosts: &[TrustedHost]) -> Result<(Url, Origin), UrlFault> {
    let url = Url::parse(text).map_err(|_| UrlFault::Unreadable)?;
    let host = url.host_str().ok_or(UrlFault::Unreadable)?;
    // The parser mends much: it drops user names, tabs and the usual port from view, lowers and decodes host names.
    // SNS needs none of that, so the text must begin with what the parser understood.
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let understood = format!("{}://{host}{port}/", url.scheme());
    let is_plain = |c: char| c.is_ascii_graphic() && c != '\\';
    if !text.starts_with(&understood) || !text.chars().all(is_plain) {
        return Err(UrlFault::Spelling);
    }
    if url.scheme() == "https"
        && url.port().is_none()
        && let Some((region, domain)) = aws_region(host)
    {
        let origin = Origin::Aws { region: region.to_owned(), domain };
        return Ok((url, origin));
    }
    let is_web = matches!(url.scheme(), "http" | "https");
    if is_web && hosts.iter().any(|host| host.matches(&url)) {
        return Ok((url, Origin::Operator));
    }
    Err(UrlFault::Host)
}

/// The region and domain of `sns.<region>.amazonaws.com`, and of its sister in China.
fn aws_region(host: &str) -> Option<(&str, &'static str)> {
    let place = host.strip_prefix("sns.")?;
    let (region, domain) = ["amazonaws.com", "amazonaws.com.cn"]
        .into_iter()
        .find_map(|domain| Some((place.strip_suffix(domain)?.strip_suffix('.')?, domain)))?;
    let is_region = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (!region.is_empty() && region.bytes().all(is_region)).then_some((region, domain))
}
