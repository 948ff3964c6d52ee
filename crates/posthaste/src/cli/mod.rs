//! The commands: what they are called, their options, and which file does the work. Every command reads the
//! configuration first and opens the store it names, so that it works beside a running server.

mod company;
mod completions;
mod config;
mod dev;
mod dlq;
mod doctor;
mod erase;
mod explain;
mod import;
mod key;
mod man;
mod migrate;
pub mod out;
mod progress;
mod send;
mod serve;
mod show;
mod suppression;
mod tail;
mod template;
mod trigger;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use model::{Address, Clock, Company, EmailId, Mailbox, SystemClock, Timestamp};
use store::Store;

use crate::config::{Loaded, Override, Sources};
use crate::threads;
use crate::wire::{self, Patience, Presence};
pub use out::note;
use out::{Format, Out};

/// Transactional email gateway: takes an email over HTTP, keeps it safe, sends it, and says what became of it.
#[derive(Debug, Parser)]
#[command(name = "posthaste", version, propagate_version = true, disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.")]
pub struct Cli {
    /// The configuration file [default: posthaste.toml, if it is there].
    #[arg(long, global = true, value_name = "FILE", env = "POSTHASTE_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// The store to use, instead of the one in the configuration.
    #[arg(long, global = true, value_name = "URL")]
    store: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Take warnings about the configuration for errors.
    #[arg(long, global = true)]
    strict: bool,
    /// Keep trying while the store is not available at the start.
    #[arg(long, global = true)]
    wait: bool,
    #[command(subcommand)]
    command: Command,
}

impl Cli {
    fn out(&self) -> Out {
        Out { format: if self.json { Format::Json } else { Format::Human } }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run everything in one process, with a key and a captured mailbox, to try it out
    Dev(dev::Args),
    /// Run the gateway
    Serve(serve::Args),
    /// Bring the store's schema up to date
    Migrate,
    /// Add and list companies
    #[command(subcommand)]
    Company(company::Command),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Key(key::Command),
    /// Hand in one email
    Send(send::Args),
    /// Hand in many emails from a file of JSON lines or a folder of .eml files; run it again to go on after a break
    Import(import::Args),
    /// Follow what happens to emails, as it happens
    Tail(tail::Args),
    /// Show an email and what happened to it
    Show(show::Args),
    /// Say why an email is where it is, since when, and what comes next
    Explain(explain::Args),
    /// List, replay and drop dead letters
    #[command(subcommand)]
    Dlq(dlq::Command),
    /// List, add and lift addresses a company does not write to
    #[command(subcommand)]
    Suppression(suppression::Command),
    /// Push, list and delete a company's templates
    #[command(subcommand, visible_alias = "templates")]
    Template(template::Command),
    /// Play a provider's report of an email, to see what follows from it
    Trigger(trigger::Args),
    /// Remove a person's addresses, names and content
    Erase(erase::Args),
    /// Look for settings that lose mail
    Doctor(doctor::Args),
    /// Print the settings in force and where each came from
    Config,
    /// Measure how fast this machine takes and sends emails
    Bench(crate::bench::Args),
    /// Print completions for a shell
    Completions(completions::Args),
    /// Write manual pages for all commands
    Man(man::Args),
}

/// The user asked for something that cannot be: exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

pub fn run(cli: Cli) -> anyhow::Result<()> {
    match &cli.command {
        Command::Completions(args) => return completions::run(args),
        Command::Man(args) => return man::run(args, cli.out()),
        _ => {}
    }
    let session = Session::start(&cli)?;
    let runtime = threads::runtime(&session.loaded.config.store)?;
    let done = runtime.block_on(dispatch(session, cli.command));
    // Whatever still runs in the background has had its time at the shutdown.
    runtime.shutdown_background();
    done
}

async fn dispatch(session: Session, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Dev(args) => dev::run(session, &args).await,
        Command::Serve(args) => serve::run(session, &args).await,
        Command::Migrate => migrate::run(&session).await,
        Command::Company(command) => company::run(&session, command).await,
        Command::Key(command) => key::run(&session, command).await,
        Command::Send(args) => send::run(&session, args).await,
        Command::Import(args) => import::run(&session, args).await,
        Command::Tail(args) => tail::run(&session, &args).await,
        Command::Show(args) => show::run(&session, &args).await,
        Command::Explain(args) => explain::run(&session, &args).await,
        Command::Dlq(command) => dlq::run(&session, command).await,
        Command::Suppression(command) => suppression::run(&session, command).await,
        Command::Template(command) => template::run(&session, command).await,
        Command::Trigger(args) => trigger::run(&session, &args).await,
        Command::Erase(args) => erase::run(&session, &args).await,
        Command::Doctor(args) => doctor::run(&session, &args).await,
        Command::Config => config::run(&session),
        Command::Bench(args) => crate::bench::run(&args, session.store_given.as_deref(), session.out).await,
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args, session.out),
    }
}

/// What every command works with.
pub struct Session {
    loaded: Loaded,
    out: Out,
    patience: Patience,
    clock: Arc<dyn Clock>,
    /// What `--store` said. Measuring uses this alone, never the store of the configuration.
    store_given: Option<String>,
}

impl Session {
    fn start(cli: &Cli) -> anyhow::Result<Self> {
        let mut overrides = Vec::new();
        if let Some(url) = &cli.store {
            overrides.push(Override { key: "store.url", value: url.clone(), flag: "--store" });
        }
        if let Command::Dev(args) = &cli.command {
            if cli.store.is_some() {
                bail!(Usage("dev has its own store; choose its directory with --data-dir".to_owned()));
            }
            overrides.extend(args.overrides());
        }
        let sources = Sources {
            file: cli.config.clone(),
            variables: std::env::vars_os().collect(),
            overrides,
            strict: cli.strict,
        };
        let loaded = crate::config::load(&sources)?;
        for warning in &loaded.warnings {
            note(format_args!("posthaste: warning: {warning}"));
        }
        Ok(Self {
            loaded,
            out: cli.out(),
            patience: if cli.wait { Patience::UntilAvailable } else { Patience::Once },
            clock: Arc::new(SystemClock),
            store_given: cli.store.clone(),
        })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The store, which has to be there already.
    async fn store(&self) -> anyhow::Result<Arc<dyn Store>> {
        wire::open_store(&self.loaded.config, Presence::MustExist, self.patience).await
    }

    /// The store, made if it is not there.
    async fn store_or_new(&self) -> anyhow::Result<Arc<dyn Store>> {
        wire::open_store(&self.loaded.config, Presence::MayBeNew, self.patience).await
    }
}

async fn company_named(store: &dyn Store, name: &str) -> anyhow::Result<Company> {
    let found = store.company_named(name).await?;
    found.with_context(|| format!("there is no company `{name}`; see `posthaste company list`"))
}

fn parse_id(text: &str) -> Result<EmailId, String> {
    text.trim().parse().map_err(|error: model::id::InvalidId| error.to_string())
}

fn parse_address(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|error| error.to_string())
}

fn parse_mailbox(text: &str) -> Result<Mailbox, String> {
    Mailbox::parse(text).map_err(|error| error.to_string())
}

/// A moment (`2026-01-31T12:00:00Z`) or how long ago (`90s`, `15m`, `2h`, `7d`).
fn parse_when(text: &str) -> Result<When, String> {
    if let Some(at) = Timestamp::parse(text) {
        return Ok(When::At(at));
    }
    let unit_secs = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3_600,
        Some('d') => 86_400,
        _ => 0,
    };
    let number = text.get(..text.len().saturating_sub(1)).and_then(|number| number.parse::<u64>().ok());
    match (number, unit_secs) {
        (Some(number), 1..) => {
            Ok(When::Ago(std::time::Duration::from_secs(number.saturating_mul(unit_secs))))
        }
        _ => {
            Err("expected a time such as 2026-01-31T12:00:00Z, or how long ago, such as 15m, 2h or 7d"
                .to_owned())
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum When {
    At(Timestamp),
    Ago(std::time::Duration),
}

impl When {
    fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(ago) => now.minus(ago),
        }
    }
}
