//! Which back-ends the configuration may name, and reading what it says of them. `wire` builds what is chosen.

use std::path::PathBuf;

use provider_capture::CaptureConfig;
use provider_smtp::SmtpConfig;
use store_mysql::MysqlConfig;
use store_postgres::PostgresConfig;

/// Kinds of provider that a later version will have.
pub const PROVIDERS_LATER: &[&str] = &["ses", "resend"];
const PROVIDERS: &[&str] = &["smtp", "capture"];
const STORES_LATER: &[&str] = &["dynamodb"];
/// How the stores there are can be named.
const STORES: &str =
    "sqlite:PATH, postgres://USER:PASSWORD@HOST/DATABASE or mysql://USER:PASSWORD@HOST/DATABASE";

/// The store that was chosen.
#[derive(Debug, Clone)]
pub enum StoreChoice {
    Sqlite(PathBuf),
    Postgres(PostgresConfig),
    Mysql(MysqlConfig),
}

impl StoreChoice {
    /// Says what is wrong without the text itself, which may hold a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        match scheme {
            "sqlite" => Self::sqlite(rest),
            "postgres" | "postgresql" => PostgresConfig::parse(url).map(Self::Postgres),
            "mysql" | "mariadb" => MysqlConfig::parse(url).map(Self::Mysql),
            later if STORES_LATER.contains(&later) => {
                Err(format!("{later} is not built into this version yet; use {STORES}"))
            }
            _ => Err(format!("names a store that does not exist; use {STORES}")),
        }
    }

    fn sqlite(rest: &str) -> Result<Self, String> {
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if path.is_empty() || path.starts_with(':') || path.ends_with('/') {
            return Err("names no file; use sqlite:PATH, such as sqlite:posthaste.db".to_owned());
        }
        if path.contains(['?', '#', '%', '\0']) {
            return Err("takes a plain path without ?, # and %; use sqlite:PATH".to_owned());
        }
        Ok(Self::Sqlite(PathBuf::from(path)))
    }
}

/// A provider that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderChoice {
    Capture(CaptureConfig),
    Smtp(SmtpConfig),
}

/// Which of a provider's settings is wrong, and how.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongProvider {
    pub setting: &'static str,
    pub what: String,
}

impl ProviderChoice {
    /// The mailbox that is always there.
    pub fn capture() -> Self {
        Self::Capture(CaptureConfig::default())
    }

    pub fn parse(name: &str, kind: Option<&str>, url: Option<&str>) -> Result<Self, WrongProvider> {
        let wrong = |setting, what: String| Err(WrongProvider { setting, what });
        let Some(kind) = kind else {
            return wrong("kind", format!("is missing; give it one of {}", PROVIDERS.join(", ")));
        };
        if PROVIDERS_LATER.contains(&kind) {
            return wrong(
                "kind",
                format!("{kind} is not available in this version; use smtp, which it offers too"),
            );
        }
        if name == gateway::CAPTURE && kind != "capture" {
            return wrong(
                "kind",
                "the name capture belongs to the built-in mailbox; choose another name".to_owned(),
            );
        }
        match (kind, url) {
            ("capture", None) => Ok(Self::capture()),
            ("capture", Some(url)) => match CaptureConfig::parse(url) {
                Ok(config) => Ok(Self::Capture(config)),
                Err(error) => wrong("url", error.to_string()),
            },
            ("smtp", None) => wrong("url", "is missing; give it smtp://user:password@host:587".to_owned()),
            ("smtp", Some(url)) => match SmtpConfig::parse(url) {
                Ok(config) => Ok(Self::Smtp(config)),
                Err(error) => wrong("url", error.to_string()),
            },
            _ => wrong("kind", format!("must be one of {}", PROVIDERS.join(", "))),
        }
    }
}
