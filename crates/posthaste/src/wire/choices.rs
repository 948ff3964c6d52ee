//! Which back-ends the configuration may name, and reading what it says of them. `wire` builds what is chosen.

use std::path::PathBuf;

use provider_capture::CaptureConfig;
use provider_resend::ResendConfig;
use provider_ses::SesConfig;
use provider_smtp::SmtpConfig;
use store_mysql::MysqlConfig;
use store_postgres::PostgresConfig;

const STORES_LATER: &[&str] = &["dynamodb"];
/// How the stores there are can be named.
const STORES: &str =
    "sqlite:PATH, postgres://USER:PASSWORD@HOST/DATABASE or mysql://USER:PASSWORD@HOST/DATABASE";

/// The store that was chosen.
#[derive(Debug, Clone)]
pub enum StoreChoice {
    Sqlite(SqliteChoice),
    Postgres(PostgresConfig),
    Mysql(MysqlConfig),
}

/// A file, and how much of its disk is kept free, if that is not left to the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SqliteChoice {
    pub path: PathBuf,
    pub reserve_bytes: Option<u64>,
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
        Ok(Self::Sqlite(SqliteChoice { path: PathBuf::from(path), reserve_bytes: None }))
    }
}

/// A provider that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderChoice {
    Capture(CaptureConfig),
    Smtp(SmtpConfig),
    Ses(SesConfig),
    Resend(ResendConfig),
}

/// What the configuration says of a provider, each setting by its name.
#[derive(Default)]
pub struct ProviderSettings {
    pub kind: Option<String>,
    pub url: Option<String>,
    pub api_key: Option<String>,
    pub region: Option<String>,
    pub endpoint: Option<String>,
    pub configuration_set: Option<String>,
    pub webhook_secret: Option<String>,
    pub webhook_topic_arn: Option<String>,
}

/// Which of a provider's settings is wrong, and how.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongProvider {
    pub setting: &'static str,
    pub what: String,
}

/// The kinds there are, and which settings each has.
const PROVIDERS: &[(&str, &[&str])] = &[
    ("ses", &["region", "endpoint", "configuration_set", "webhook_topic_arn"]),
    ("resend", &["api_key", "endpoint", "webhook_secret"]),
    ("smtp", &["url"]),
    ("capture", &["url"]),
];

impl ProviderSettings {
    /// The settings besides the kind that were given.
    fn given(&self) -> Vec<&'static str> {
        [
            ("url", &self.url),
            ("api_key", &self.api_key),
            ("region", &self.region),
            ("endpoint", &self.endpoint),
            ("configuration_set", &self.configuration_set),
            ("webhook_secret", &self.webhook_secret),
            ("webhook_topic_arn", &self.webhook_topic_arn),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.as_ref().map(|_| name))
        .collect()
    }
}

impl ProviderChoice {
    /// The mailbox that is always there.
    pub fn capture() -> Self {
        Self::Capture(CaptureConfig::default())
    }

    pub fn parse(name: &str, settings: &ProviderSettings) -> Result<Self, WrongProvider> {
        let wrong = |setting, what: String| WrongProvider { setting, what };
        let kinds = || PROVIDERS.iter().map(|(kind, _)| *kind).collect::<Vec<_>>().join(", ");
        let Some(kind) = settings.kind.as_deref() else {
            return Err(wrong("kind", format!("is missing; give it one of {}", kinds())));
        };
        if name == gateway::CAPTURE && kind != "capture" {
            let what = "the name capture belongs to the built-in mailbox; choose another name";
            return Err(wrong("kind", what.to_owned()));
        }
        let Some((kind, known)) = PROVIDERS.iter().find(|(known, _)| *known == kind) else {
            return Err(wrong("kind", format!("must be one of {}", kinds())));
        };
        if let Some(setting) = settings.given().into_iter().find(|setting| !known.contains(setting)) {
            return Err(wrong(setting, format!("means nothing to {kind}, which has {}", known.join(", "))));
        }
        let url = settings.url.as_deref();
        let endpoint = settings.endpoint.as_deref();
        match *kind {
            "ses" => {
                let (region, set) = (settings.region.as_deref(), settings.configuration_set.as_deref());
                SesConfig::parse(region, endpoint, set)
                    .map(Self::Ses)
                    .map_err(|error| wrong(error.setting(), error.to_string()))
            }
            "resend" => ResendConfig::parse(settings.api_key.as_deref(), endpoint)
                .map(Self::Resend)
                .map_err(|error| wrong(error.setting(), error.to_string())),
            "smtp" => {
                let missing = || wrong("url", "is missing; give it smtp://user:password@host:587".to_owned());
                SmtpConfig::parse(url.ok_or_else(missing)?)
                    .map(Self::Smtp)
                    .map_err(|error| wrong("url", error.to_string()))
            }
            _ => match url {
                None => Ok(Self::capture()),
                Some(url) => CaptureConfig::parse(url)
                    .map(Self::Capture)
                    .map_err(|error| wrong("url", error.to_string())),
            },
        }
    }
}
