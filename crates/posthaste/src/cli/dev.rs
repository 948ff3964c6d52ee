//! `posthaste dev`: everything in one process on one SQLite file, with a company, a key that stays the same, and
//! a line to paste.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dashboard::DashboardSettings;
use gateway::keys::hash_key;
use model::{ApiKey, Company, CompanyId, CompanySettings, KeyId, KeyMode, Scope, Secret};
use serde_json::json;
use store::{Store, StoreError};
use tokio::net::TcpListener;

use super::Session;
use crate::config::Override;
use crate::running::{self, Role};
use crate::wire::{self, Presence};
use crate::{shutdown, telemetry};

const COMPANY: &str = "dev";
const ENVIRONMENT: &str = "dev";
/// How many ports are tried after the first one.
const PORTS_MAX: u16 = 100;
/// As many characters of a key are kept as of any other.
const PREFIX_LENGTH: usize = 12;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to listen [default: 127.0.0.1:8025, or the next free port].
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where the database is kept.
    #[arg(long, value_name = "DIR", default_value = ".")]
    data_dir: PathBuf,
}

impl Args {
    /// What makes it `dev`, whatever a configuration file beside it is for.
    pub fn overrides(&self) -> Vec<Override> {
        let mut given = vec![
            ("store.url", format!("sqlite:{}", self.data_dir.join("posthaste.db").display()), "--data-dir"),
            ("environment", ENVIRONMENT.to_owned(), "dev"),
            ("routes.default", gateway::CAPTURE.to_owned(), "dev"),
            ("guard.mode", "capture".to_owned(), "dev"),
        ];
        given.extend(self.listen.clone().map(|address| ("listen", address, "--listen")));
        given.into_iter().map(|(key, value, flag)| Override { key, value, flag }).collect()
    }
}

pub async fn run(session: Session, args: &Args) -> anyhow::Result<()> {
    let config = &session.loaded.config;
    telemetry::start_log(&config.log)?;
    let shutdown = shutdown::on_signal()?;
    let listener = match args.listen {
        Some(_) => TcpListener::bind(config.listen)
            .await
            .with_context(|| format!("cannot listen on {}", config.listen))?,
        None => next_free(config.listen).await?,
    };
    let address = listener.local_addr()?;
    let opening = wire::open_store(config, Presence::MayBeNew, session.patience);
    let Some(store) = shutdown.run_until_cancelled(opening).await else {
        return Ok(());
    };
    let store = store?;
    wire::check_environment(config, &*store).await?;
    let company = company(&session, &*store).await?;
    let key = key(&session, &*store, company.id).await?;
    greet(&session, args, address, &key)?;
    // The key is on the screen already; the dashboard's lines to paste have it too.
    let dev_key = Some((COMPANY.to_owned(), Secret::new(key)));
    let dashboard = DashboardSettings { dev_key, ..running::dashboard(config) };
    running::run(config, store, Some(listener), Role::All, dashboard, shutdown).await
}

/// The address, or the first after it whose port is free.
async fn next_free(first: SocketAddr) -> anyhow::Result<TcpListener> {
    let mut address = first;
    for _ in 0..=PORTS_MAX {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && address.port() < u16::MAX => {
                address.set_port(address.port() + 1);
            }
            Err(error) => return Err(error).with_context(|| format!("cannot listen on {address}")),
        }
    }
    bail!("no free port from {first} on; choose one with --listen")
}

async fn company(session: &Session, store: &dyn Store) -> anyhow::Result<Company> {
    if let Some(company) = store.company_named(COMPANY).await? {
        return Ok(company);
    }
    let now = session.now();
    let company = Company {
        id: CompanyId::new(now),
        name: COMPANY.to_owned(),
        settings: CompanySettings::default(),
        created_at: now,
        disabled_at: None,
        pause: None,
        resumed_at: None,
    };
    match store.add_company(company.clone()).await {
        Ok(()) => Ok(company),
        // Another one was started at the same moment.
        Err(StoreError::Exists(_)) => {
            store.company_named(COMPANY).await?.context("the company came and went")
        }
        Err(error) => Err(error.into()),
    }
}

/// The key follows from the local secret, so that it is the same after a restart without being stored anywhere.
async fn key(session: &Session, store: &dyn Store, company: CompanyId) -> anyhow::Result<String> {
    let secret = wire::local_secret(&session.loaded.config)?.context("dev keeps its data in a file")?;
    let bits = secret.derive("dev key");
    let text = format!("{}_{}", KeyMode::Test.as_str(), URL_SAFE_NO_PAD.encode(bits.expose()));
    let hash = hash_key(&text);
    match store.key_by_hash(&hash).await? {
        Some((key, _)) if key.revoked_at.is_some() => {
            bail!(
                "the key of this directory was revoked; remove posthaste.db and posthaste.secret to start anew"
            )
        }
        Some(_) => return Ok(text),
        None => {}
    }
    let now = session.now();
    let record = ApiKey {
        id: KeyId::new(now),
        company,
        mode: KeyMode::Test,
        scopes: Scope::ALL.to_vec(),
        label: Some("posthaste dev".to_owned()),
        hash,
        prefix: text.chars().take(PREFIX_LENGTH).collect(),
        created_at: now,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    };
    store.add_key(record).await?;
    Ok(text)
}

fn greet(session: &Session, args: &Args, address: SocketAddr, key: &str) -> anyhow::Result<()> {
    let out = session.out;
    if out.is_json() {
        out.json(&json!({ "dashboard": format!("http://{address}/ui"), "api": format!("http://{address}"), "key": key, "company": COMPANY }))?;
        return Ok(());
    }
    let wanted = session.loaded.config.listen;
    let database = wire::database_file(&session.loaded.config).context("dev keeps its data in a file")?;
    let database = database.display().to_string();
    out.line(format!(
        "posthaste {}: everything in one process; mail is captured, none is sent",
        env!("CARGO_PKG_VERSION")
    ))?;
    if wanted.port() != 0 && wanted.port() != address.port() {
        out.line(format!("port {} is taken, so it is {} this time", wanted.port(), address.port()))?;
    }
    out.line("")?;
    out.line(format!("look     http://{address}/ui"))?;
    out.line(format!("api      http://{address}"))?;
    out.line(format!("key      {key}"))?;
    out.line(format!("data     {database}"))?;
    out.line("\nHand in an email, then see what became of it:\n")?;
    out.line(format!(
        "  curl -sS http://{address}/v1/email/send -H 'X-API-Key: {key}' -H 'Content-Type: application/json' \
         -d '{{\"to\":\"ana@example.com\",\"subject\":\"Hello\",\"html\":\"<p>It works.</p>\"}}'"
    ))?;
    // Without a configuration the other commands look for posthaste.db right here.
    let is_here = args.data_dir.as_os_str() == "." && !std::path::Path::new(crate::config::FILE).exists();
    let store =
        if is_here { String::new() } else { format!("--store {} ", quoted(&format!("sqlite:{database}"))) };
    out.line(format!("  {} {store}show OUTBOX_ID", quoted(&invoked_as())))?;
    out.line("\nCtrl-C stops it.\n")?;
    Ok(())
}

/// The program under the name it was called by, so that the line printed works when it is pasted.
fn invoked_as() -> String {
    std::env::args().next().unwrap_or_else(|| "posthaste".to_owned())
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/._:-".contains(c));
    if is_plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}
