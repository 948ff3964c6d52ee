//! The only place that knows the back-ends: from the checked configuration to ports that work. A new store or
//! provider is one dependency and one arm here.

pub mod choices;
mod fetch;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use api::{WebhookSource, Webhooks};
use feedback::sns::Trust;
use gateway::alerts::AlertSettings;
use gateway::documents::DocumentKeys;
use gateway::steady::SteadyClock;
use gateway::{Gateway, Settings};
use model::{Address, Secret};
use provider::Provider;
use provider_capture::CaptureProvider;
use provider_resend::ResendProvider;
use provider_ses::{Identity, SesProvider};
use provider_smtp::SmtpProvider;
use queue_store::StoreQueue;
use rand::Rng as _;
use store::{Store, StoreError};
use store_mysql::MysqlStore;
use store_postgres::PostgresStore;
use store_sqlite::SqliteStore;
use template::alerts::Language;

use crate::cli::{Usage, note};
use crate::config::Config;
use crate::secret::LocalSecret;
use choices::{ProviderChoice, SqliteChoice, StoreChoice};

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Whether a store that is not there yet is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    MustExist,
    MayBeNew,
}

/// What to do when the store is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    Once,
    UntilAvailable,
}

/// What has to be done before anything else. Two TLS libraries in one program would quarrel at first use, so
/// the one that is meant is named.
pub fn prepare_process() {
    // An error says that one is named already.
    let _ = tokio_rustls::rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Opens the store that was chosen, and brings its schema up to date where it may be new.
pub async fn open_store(
    config: &Config,
    presence: Presence,
    patience: Patience,
) -> anyhow::Result<Arc<dyn Store>> {
    if let Some(path) = database_file(config) {
        match presence {
            Presence::MustExist if !path.exists() => bail!(
                "there is no database at {}; name another with --store, or make this one with `posthaste migrate`",
                path.display()
            ),
            Presence::MustExist => {}
            Presence::MayBeNew => make_private(path)?,
        }
    }
    let mut pause = PAUSE_MIN;
    loop {
        match open_one(&config.store, presence).await {
            Ok(store) => return Ok(store),
            Err(error) if error.is_temporary() && patience == Patience::UntilAvailable => {
                note(format_args!("posthaste: {error}; trying again"));
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(error) => return Err(unusable(error)),
        }
    }
}

/// One try.
pub async fn open(choice: &StoreChoice) -> Result<Arc<dyn Store>, StoreError> {
    open_one(choice, Presence::MayBeNew).await
}

/// A database on a server that must be there already is left as it is; a file is this machine's alone.
async fn open_one(choice: &StoreChoice, presence: Presence) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match (choice, presence) {
        (StoreChoice::Sqlite(SqliteChoice { path, reserve_bytes }), _) => {
            Arc::new(SqliteStore::open_with_reserve(path, *reserve_bytes).await?)
        }
        (StoreChoice::Postgres(config), Presence::MayBeNew) => Arc::new(PostgresStore::open(config).await?),
        (StoreChoice::Postgres(config), Presence::MustExist) => {
            Arc::new(PostgresStore::open_as_it_is(config).await?)
        }
        (StoreChoice::Mysql(config), Presence::MayBeNew) => Arc::new(MysqlStore::open(config).await?),
        (StoreChoice::Mysql(config), Presence::MustExist) => {
            Arc::new(MysqlStore::open_as_it_is(config).await?)
        }
    })
}

/// A database of another program or version is a matter of configuration.
fn unusable(error: StoreError) -> anyhow::Error {
    match error {
        StoreError::Unusable(_) => Usage(error.to_string()).into(),
        other => other.into(),
    }
}

/// The database holds mail, so only its owner may read it. SQLite gives the files beside it the same mode.
fn make_private(path: &Path) -> anyhow::Result<()> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        let made = builder.create(directory);
        made.map_err(|error| {
            in_the_way(error, format!("cannot make the directory {}", directory.display()))
        })?;
    }
    let (made, what) = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        // SQLite opens a file for reading that it cannot write to, and complains at the first write only. Not to be asked
        // once SQLite has it open: closing a file ends the locks this process holds on it.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            (OpenOptions::new().write(true).open(path), "write to")
        }
        made => (made, "make"),
    };
    made.map(drop)
        .map_err(|error| in_the_way(error, format!("cannot {what} the database {}", path.display())))
}

/// A place where nothing can be written is a matter of configuration; a full or failing disk is not.
fn in_the_way(error: std::io::Error, what: String) -> anyhow::Error {
    use std::io::ErrorKind::{AlreadyExists, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    match error.kind() {
        AlreadyExists | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem => {
            Usage(format!("{what}: {error}")).into()
        }
        _ => anyhow::Error::new(error).context(what),
    }
}

/// The database's file, when it is one, for those who look after the file itself.
pub fn database_file(config: &Config) -> Option<&Path> {
    match &config.store {
        StoreChoice::Sqlite(sqlite) => Some(&sqlite.path),
        StoreChoice::Postgres(_) | StoreChoice::Mysql(_) => None,
    }
}

/// The secret beside the database's file; a database on a server has none, since several machines use it.
pub fn local_secret(config: &Config) -> anyhow::Result<Option<LocalSecret>> {
    database_file(config).map(LocalSecret::beside).transpose()
}

/// Everything that works on emails, over the given store.
pub fn gateway(config: &Config, store: Arc<dyn Store>) -> anyhow::Result<Gateway> {
    let mut providers: BTreeMap<String, Arc<dyn Provider>> = BTreeMap::new();
    for (name, choice) in &config.providers {
        let provider = provider(choice).with_context(|| format!("providers.{name}"))?;
        providers.insert(name.clone(), provider);
    }
    Ok(Gateway {
        queue: Arc::new(StoreQueue::new(store.clone())),
        store,
        providers: Arc::new(providers),
        clock: Arc::new(SteadyClock::of_machine()),
        suppressions: Arc::default(),
        templates: Arc::default(),
        tracer: Default::default(),
        dice: Arc::new(|| rand::rng().random_range(-1.0..=1.0)),
        settings: Arc::new(settings(config)),
    })
}

pub fn provider(choice: &ProviderChoice) -> anyhow::Result<Arc<dyn Provider>> {
    Ok(match choice {
        ProviderChoice::Capture(config) => Arc::new(CaptureProvider::new(*config)),
        ProviderChoice::Smtp(config) => Arc::new(SmtpProvider::new(config.clone())?),
        ProviderChoice::Ses(config) => Arc::new(SesProvider::new(config.clone())),
        ProviderChoice::Resend(config) => Arc::new(ResendProvider::new(config.clone())?),
    })
}

/// Whether a provider can be reached and what it allows, for people. `senders` are those that companies send as.
pub async fn reach(choice: &ProviderChoice, senders: &[Address]) -> anyhow::Result<String> {
    match choice {
        ProviderChoice::Ses(config) => reach_ses(&SesProvider::new(config.clone()), senders).await,
        ProviderChoice::Resend(config) => {
            let endpoint = config.endpoint.as_ref();
            let host = endpoint.and_then(|url| url.host_str()).unwrap_or("api.resend.com");
            let port = endpoint.and_then(|url| url.port_or_known_default()).unwrap_or(443);
            tokio::net::TcpStream::connect((host, port))
                .await
                .with_context(|| format!("{host} cannot be reached"))?;
            Ok(format!("{host} answers; the key is tried by `doctor --send-to ADDRESS` only"))
        }
        ProviderChoice::Capture(_) => Ok("keeps all mail, sends none".to_owned()),
        ProviderChoice::Smtp(config) => {
            let place = format!("{}:{}", config.host, config.port);
            let connected = tokio::net::TcpStream::connect((config.host.as_str(), config.port)).await;
            connected
                .map(|_| format!("{place} answers"))
                .with_context(|| format!("{place} cannot be reached"))
        }
    }
}

async fn reach_ses(provider: &SesProvider, senders: &[Address]) -> anyhow::Result<String> {
    let account = provider.account().await?.context("SES says nothing of the account")?;
    if !account.may_send {
        bail!("AWS has paused sending for this account; see the SES console for the reason");
    }
    let mut text = "the credentials work".to_owned();
    if let Some(rate) = account.rate_per_sec {
        text.push_str(&format!("; up to {rate} per second"));
    }
    if let Some(quota) = account.quota {
        let (sent, most) = (quota.sent_24_hours, quota.max_24_hours);
        text.push_str(&format!("; {sent} of {most} sent within 24 hours"));
        if most >= 0.0 && sent >= most {
            bail!("{text}: the quota is used up; ask AWS for a higher one");
        }
    }
    if account.is_sandboxed {
        text.push_str("; in the sandbox: only verified addresses can be written to");
    }
    let names: Vec<String> = senders.iter().flat_map(provider_ses::identity_names).collect();
    let identities = provider.identities(&names).await?;
    let is_unverified = |address: &&Address| {
        let names = provider_ses::identity_names(address);
        !identities.iter().any(|(name, identity)| *identity == Identity::Verified && names.contains(name))
    };
    let unverified: Vec<String> = senders.iter().filter(is_unverified).map(Address::to_string).collect();
    if !unverified.is_empty() {
        bail!("{text}; not verified in SES as senders: {}", unverified.join(", "));
    }
    Ok(text)
}

/// Which providers report here and why they are believed.
pub fn webhooks(config: &Config) -> Webhooks {
    let settings = &config.webhooks;
    let secrets = |name: &String| settings.secrets.get(name).cloned().unwrap_or_default();
    let source = |(name, choice): (&String, &ProviderChoice)| match choice {
        ProviderChoice::Resend(_) => Some((name.clone(), WebhookSource::Resend { secrets: secrets(name) })),
        ProviderChoice::Ses(_) => {
            let topics = settings.topics.get(name).cloned().unwrap_or_default();
            let trust = Trust { topics, hosts: settings.hosts.clone(), roots: settings.roots.clone() };
            Some((name.clone(), WebhookSource::Ses { trust }))
        }
        ProviderChoice::Capture(_) | ProviderChoice::Smtp(_) => None,
    };
    Webhooks::new(config.providers.iter().filter_map(source), Arc::new(fetch::WebFetch::default()))
}

fn settings(config: &Config) -> Settings {
    Settings {
        retry_policies: config.retry_policies.clone(),
        default_retry_policy: config.default_retry_policy.clone(),
        default_route: config.default_route.clone(),
        ttl: config.ttl,
        worker_concurrency: config.worker_concurrency,
        lease: config.lease,
        retention: config.retention.clone(),
        guard: config.guard.clone(),
        provider_rates: config.provider_rates.clone(),
        alerts: AlertSettings {
            admin_email: config.admin_email.clone(),
            language: Language::of_tag(&config.alert_language).unwrap_or_default(),
        },
        reputation: config.reputation,
    }
}

/// The keys for document numbers; those that are not configured come from the local secret. `None` when there are
/// keys missing and no local secret: then no email may carry a document number.
pub fn documents(config: &Config) -> anyhow::Result<Option<DocumentKeys>> {
    let privacy = &config.privacy;
    let is_complete = privacy.hash_key.is_some() && !privacy.seal_keys.is_empty();
    let secret = if is_complete { None } else { local_secret(config)? };
    let derived = |purpose: &str| secret.as_ref().map(|secret| secret.derive(purpose));
    let Some(hash_key) = privacy.hash_key.clone().or_else(|| derived("document hash")) else {
        return Ok(None);
    };
    let seal_keys = match privacy.seal_keys.as_slice() {
        [] => derived("document seal").into_iter().collect(),
        keys => keys.to_vec(),
    };
    if seal_keys.is_empty() {
        return Ok(None);
    }
    Ok(Some(DocumentKeys::new(Secret::new(hash_key.expose().to_vec()), &seal_keys)?))
}

/// A database remembers the environment it was made for: a copy of it in another one must not send.
pub async fn check_environment(config: &Config, store: &dyn Store) -> anyhow::Result<()> {
    let made_for = store.environment(&config.environment).await?;
    if made_for == config.environment {
        return Ok(());
    }
    let here = &config.environment;
    bail!(Usage(format!(
        "this database was made for the environment `{made_for}`, but the configuration says `{here}`: nothing is \
         sent, so that a copied database never mails anybody; use another database (store.url), or set \
         environment = \"{made_for}\" if this is the right one"
    )))
}
