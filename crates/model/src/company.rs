//! Companies (the tenants), their settings and their keys.

use crate::address::{Address, Mailbox};
use crate::clock::Timestamp;
use crate::email::OnUnknown;
use crate::id::{CompanyId, KeyId};

#[derive(Debug, Clone, PartialEq)]
pub struct Company {
    pub id: CompanyId,
    pub name: String,
    pub settings: CompanySettings,
    pub created_at: Timestamp,
    /// Set while the company is switched off: its keys are refused and its emails wait.
    pub disabled_at: Option<Timestamp>,
    /// Set while its emails wait because they would harm everybody's standing with the providers.
    pub pause: Option<Pause>,
    /// When a person last ended a pause: what was before counts no more.
    pub resumed_at: Option<Timestamp>,
}

/// Why a company's emails wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    pub at: Timestamp,
    /// For people.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CompanySettings {
    /// The sender of emails that name none.
    pub from: Option<Mailbox>,
    /// Whom else it may send as: addresses (`a@b.com`) and whole domains (`@b.com`).
    pub senders: Vec<String>,
    /// Names of providers, in order; `None` is the default route.
    pub route: Option<Vec<String>>,
    /// Its share of the workers against other companies with waiting emails.
    pub weight: u32,
    /// How many of its emails may be in flight at once.
    pub concurrency_max: Option<u32>,
    /// How many of its emails may be started per second.
    pub rate_per_sec: Option<u32>,
    /// How many emails it may hand in per day (UTC).
    pub daily_limit: Option<u32>,
    pub retry_policy: Option<String>,
    pub on_unknown: Option<OnUnknown>,
    /// Where alerts go.
    pub admin_email: Option<Address>,
}

impl Default for CompanySettings {
    fn default() -> Self {
        Self {
            from: None,
            senders: Vec::new(),
            route: None,
            weight: 1,
            concurrency_max: None,
            rate_per_sec: None,
            daily_limit: None,
            retry_policy: None,
            on_unknown: None,
            admin_email: None,
        }
    }
}

impl CompanySettings {
    /// May it send as this address? Its default sender always; others only where it lists them.
    pub fn may_send_as(&self, address: &Address) -> bool {
        let is_default = self.from.as_ref().is_some_and(|from| from.address.same_mailbox(address));
        let is_listed = |entry: &String| match entry.strip_prefix('@') {
            Some(domain) => address.domain().eq_ignore_ascii_case(domain),
            None => address.expose().eq_ignore_ascii_case(entry),
        };
        is_default || self.senders.iter().any(is_listed)
    }
}

/// Whether a key sends for real.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyMode {
    Live,
    /// Runs the whole pipeline into the capture mailbox.
    Test,
}

impl KeyMode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Test => "test",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Live, Self::Test].into_iter().find(|mode| mode.as_str() == text)
    }
}

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    Send,
    Read,
    /// Everything of its company: dead letters, suppressions, endpoints, keys.
    Admin,
}

impl Scope {
    pub const ALL: [Self; 3] = [Self::Send, Self::Read, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

/// A key as it is kept: never the key itself, only its hash and the first characters to recognise it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    pub id: KeyId,
    pub company: CompanyId,
    pub mode: KeyMode,
    pub scopes: Vec<Scope>,
    pub label: Option<String>,
    /// SHA-256 of the whole key.
    pub hash: [u8; 32],
    pub prefix: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    pub last_used_at: Option<Timestamp>,
}

impl ApiKey {
    /// An admin key may do everything of its company.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&Scope::Admin) || self.scopes.contains(&scope)
    }
}
