//! Email addresses, checked once at the edge and carried as a type that prints masked.

use std::fmt;
use std::str::FromStr;

use email_address::{EmailAddress, Options};

use crate::privacy::mask_address;

/// The longest address SMTP can carry.
pub const ADDRESS_LENGTH_MAX: usize = 254;
/// The longest display name we take.
pub const NAME_LENGTH_MAX: usize = 128;

/// An address every provider accepts: ASCII local part without quotes, domain in its DNS form (punycode),
/// at most 254 characters. Prints masked.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(String);

/// Why a text is no address we take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    #[error("is empty")]
    Empty,
    #[error("is longer than {ADDRESS_LENGTH_MAX} characters")]
    TooLong,
    #[error("must be a plain address such as ana@example.com")]
    Malformed,
    #[error("has a quoted local part, which mail providers do not accept")]
    QuotedLocalPart,
    #[error("has characters before the @ that are not ASCII, which mail providers do not accept")]
    LocalPartNotAscii,
    #[error("has a domain that is not a public host name (a name with a dot, not an IP address)")]
    InvalidDomain,
    #[error("has a display name that is too long or holds line breaks or control characters")]
    InvalidName,
}

impl Address {
    pub fn parse(text: &str) -> Result<Self, InvalidAddress> {
        let text = text.trim_matches(' ');
        if text.is_empty() {
            return Err(InvalidAddress::Empty);
        }
        if text.chars().any(|c| c.is_control() || c == ' ') {
            return Err(InvalidAddress::Malformed);
        }
        let (local, domain) = text.rsplit_once('@').ok_or(InvalidAddress::Malformed)?;
        if local.starts_with('"') {
            return Err(InvalidAddress::QuotedLocalPart);
        }
        if !local.is_ascii() {
            return Err(InvalidAddress::LocalPartNotAscii);
        }
        let domain = dns_name(domain)?;
        let plain = format!("{local}@{domain}");
        if plain.len() > ADDRESS_LENGTH_MAX {
            return Err(InvalidAddress::TooLong);
        }
        let options = Options::default().without_display_text().without_domain_literal().with_required_tld();
        EmailAddress::parse_with_options(&plain, options).map_err(|_| InvalidAddress::Malformed)?;
        Ok(Self(plain))
    }

    /// Takes text that was an [`Address`] before, such as a column of the store.
    pub fn trusted(text: String) -> Self {
        Self(text)
    }

    /// The address itself. Whoever calls this answers for where it goes.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub fn domain(&self) -> &str {
        self.0.rsplit_once('@').map_or("", |(_, domain)| domain)
    }

    /// The same mailbox: domains are compared without regard to case (they are stored lower-case), local
    /// parts too, since no provider in use tells `Ana@` from `ana@`.
    pub fn same_mailbox(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

/// The domain as DNS has it, or why it is none.
fn dns_name(domain: &str) -> Result<String, InvalidAddress> {
    if domain.is_empty() || domain.ends_with('.') || domain.starts_with('[') {
        return Err(InvalidAddress::InvalidDomain);
    }
    let ascii = idna::domain_to_ascii_strict(domain).map_err(|_| InvalidAddress::InvalidDomain)?;
    let labels: Vec<&str> = ascii.split('.').collect();
    let last_is_number = labels.last().is_none_or(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    let label_is_fine = |label: &&str| !label.is_empty() && label.len() <= 63 && !label.contains('_');
    if labels.len() < 2 || last_is_number || !labels.iter().all(label_is_fine) {
        return Err(InvalidAddress::InvalidDomain);
    }
    Ok(ascii)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask_address(&self.0))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        Self::parse(text)
    }
}

/// An address with an optional display name: `Ana <ana@example.com>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mailbox {
    pub name: Option<crate::privacy::Secret<String>>,
    pub address: Address,
}

impl Mailbox {
    pub fn parse(text: &str) -> Result<Self, InvalidAddress> {
        let text = text.trim_matches(' ');
        let Some((name, rest)) = text.rsplit_once('<') else {
            return Ok(Self { name: None, address: Address::parse(text)? });
        };
        let address = rest.strip_suffix('>').ok_or(InvalidAddress::Malformed)?;
        let name = name.trim().trim_matches('"').trim();
        let name_is_fine = name.chars().count() <= NAME_LENGTH_MAX
            && !name.chars().any(|c| c.is_control() || "<>\"".contains(c));
        if !name_is_fine {
            return Err(InvalidAddress::InvalidName);
        }
        let name = (!name.is_empty()).then(|| crate::privacy::Secret::new(name.to_owned()));
        Ok(Self { name, address: Address::parse(address)? })
    }

    pub fn plain(address: Address) -> Self {
        Self { name: None, address }
    }

    /// `Name <address>`, as the API and the store have it.
    pub fn expose(&self) -> String {
        match &self.name {
            Some(name) => format!("{} <{}>", name.expose(), self.address.expose()),
            None => self.address.expose().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_taken() {
        let longest = format!(
            "{}@{}.example.com",
            "l".repeat(60),
            ["d".repeat(60), "e".repeat(60), "f".repeat(57)].join(".")
        );
        assert_eq!(longest.len() + 2, 254, "the case below is two short of the limit");
        let cases = [
            ("ana@example.com", "ana@example.com"),
            ("Ana@EXAMPLE.com", "Ana@example.com"),
            ("a+b@sub.example.co.uk", "a+b@sub.example.co.uk"),
            ("ana@exämple.com", "ana@xn--exmple-cua.com"),
            (longest.as_str(), longest.as_str()),
        ];
        for (text, expected) in cases {
            assert_eq!(Address::parse(text).map(|address| address.0), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_address() {
        let too_long =
            format!("{}@{}.com", "l".repeat(60), ["d".repeat(63), "e".repeat(63), "f".repeat(63)].join("."));
        let cases = [
            ("", InvalidAddress::Empty),
            ("ana", InvalidAddress::Malformed),
            ("a@b@c.com", InvalidAddress::Malformed),
            ("\"a b\"@c.com", InvalidAddress::Malformed),
            ("\"ab\"@c.com", InvalidAddress::QuotedLocalPart),
            ("josé@c.com", InvalidAddress::LocalPartNotAscii),
            ("a@localhost", InvalidAddress::InvalidDomain),
            ("a@[127.0.0.1]", InvalidAddress::InvalidDomain),
            ("a@127.0.0.1", InvalidAddress::InvalidDomain),
            ("a@b.com.", InvalidAddress::InvalidDomain),
            ("a@b_c.com", InvalidAddress::InvalidDomain),
            ("a@b.com\r\nBcc: x@y.com", InvalidAddress::Malformed),
            ("Ana <ana@b.com>", InvalidAddress::Malformed),
            ("a..b@c.com", InvalidAddress::Malformed),
            (too_long.as_str(), InvalidAddress::TooLong),
        ];
        for (text, expected) in cases {
            assert_eq!(Address::parse(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn mailboxes_have_names() {
        let mailbox = Mailbox::parse("João da Silva <joao@example.com>").expect("valid");
        assert_eq!(mailbox.expose(), "João da Silva <joao@example.com>");
        assert_eq!(
            Mailbox::parse("\"Silva, João\" <j@example.com>").map(|m| m.expose()).as_deref(),
            Ok("Silva, João <j@example.com>")
        );
        assert!(Mailbox::parse("a\r\nb <j@example.com>").is_err());
        assert!(Mailbox::parse("<j@example.com").is_err());
        assert_eq!(format!("{mailbox:?}"), "Mailbox { name: Some(***), address: j***@e***.com }");
    }
}
