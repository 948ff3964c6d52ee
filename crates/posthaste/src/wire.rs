//! The only place that knows the back-ends: from the checked configuration to ports that work. A new store or
//! provider is one dependency and one arm here.

pub mod choices;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gateway::documents::DocumentKeys;
use gateway::{Gateway, Settings};
use model::{Secret, SystemClock};
use provider::Provider;
use provider_capture::CaptureProvider;
use provider_smtp::SmtpProvider;
use queue_store::StoreQueue;
use rand::Rng as _;
use store::{Store, StoreError};
use store_mysql::MysqlStore;
use store_postgres::PostgresStore;
use store_sqlite::SqliteStore;

use crate::cli::{Usage, note};
use crate::config::Config;
use crate::secret::LocalSecret;
use choices::{ProviderChoice, StoreChoice};

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

/// Opens the store that was chosen and brings its schema up to date.
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
        match open(&config.store).await {
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
    Ok(match choice {
        StoreChoice::Sqlite(path) => Arc::new(SqliteStore::open(path).await?),
        StoreChoice::Postgres(config) => Arc::new(PostgresStore::open(config).await?),
        StoreChoice::Mysql(config) => Arc::new(MysqlStore::open(config).await?),
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
        builder
            .create(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot make the database {}", path.display())),
    }
}

/// The database's file, when it is one, for those who look after the file itself.
pub fn database_file(config: &Config) -> Option<&Path> {
    match &config.store {
        StoreChoice::Sqlite(path) => Some(path),
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
        clock: Arc::new(SystemClock),
        dice: Arc::new(|| rand::rng().random_range(-1.0..=1.0)),
        settings: Arc::new(settings(config)),
    })
}

fn provider(choice: &ProviderChoice) -> anyhow::Result<Arc<dyn Provider>> {
    Ok(match choice {
        ProviderChoice::Capture(config) => Arc::new(CaptureProvider::new(*config)),
        ProviderChoice::Smtp(config) => Arc::new(SmtpProvider::new(config.clone())?),
    })
}

/// Whether a provider can be reached, for people.
pub async fn reach(choice: &ProviderChoice) -> anyhow::Result<String> {
    match choice {
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
