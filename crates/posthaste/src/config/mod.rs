//! The configuration: what the user wrote (`layers`, `environment`), then what it means (`check`). `show`
//! prints what is in force. Settings and their kinds are listed in `keys`; `config.default.toml` is the
//! reference.

mod check;
mod environment;
mod keys;
mod layers;
mod problem;
pub mod show;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use feedback::sns::{Root, TrustedHost};
use feedback::svix::SigningSecret;
use gateway::EnvironmentGuard;
use gateway::reputation::ReputationLimits;
use model::{Address, RetryPolicy, Secret};
use store::Retention;

use crate::wire::choices::{ProviderChoice, StoreChoice};
use keys::{Found, Kind};
pub use layers::Entry;
use layers::{Layers, Value};
pub use problem::{Origin, Problem, Problems};

const DEFAULTS: &str = include_str!("../config.default.toml");
/// Read when it is there and `--config` names no other.
pub const FILE: &str = "posthaste.toml";
/// The one environment that is not guarded.
pub const PRODUCTION: &str = "production";

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    pub admin_token: Option<Secret<String>>,
    pub environment: String,
    /// Where people reach the dashboard, if that is not `listen`.
    pub public_url: Option<String>,
    pub store: StoreChoice,
    pub worker_concurrency: u32,
    /// Where a worker without an API answers for its health.
    pub worker_listen: Option<SocketAddr>,
    pub lease: Duration,
    pub providers: BTreeMap<String, ProviderChoice>,
    /// Emails per second, for providers where the operator sets it.
    pub provider_rates: BTreeMap<String, u32>,
    pub default_route: Vec<String>,
    pub retry_policies: BTreeMap<String, RetryPolicy>,
    pub default_retry_policy: String,
    pub ttl: Duration,
    pub admin_email: Option<Address>,
    pub alert_language: String,
    /// `None` judges nobody.
    pub reputation: Option<ReputationLimits>,
    pub webhooks: WebhookSettings,
    pub retention: Retention,
    pub guard: EnvironmentGuard,
    pub privacy: Privacy,
    pub limits: Limits,
    pub log: Log,
    /// `None` traces nothing.
    pub traces: Option<Traces>,
}

/// Why webhooks are believed.
#[derive(Debug, Clone, Default)]
pub struct WebhookSettings {
    /// By the provider's name.
    pub secrets: BTreeMap<String, Vec<SigningSecret>>,
    pub topics: BTreeMap<String, Vec<String>>,
    pub hosts: Vec<TrustedHost>,
    pub roots: Vec<Root>,
}

/// Keys for document numbers; what is absent is made from the local secret.
#[derive(Debug, Clone)]
pub struct Privacy {
    /// The first seals, all of them open.
    pub seal_keys: Vec<Secret<[u8; 32]>>,
    pub hash_key: Option<Secret<[u8; 32]>>,
}

#[derive(Debug, Clone)]
pub struct Limits {
    pub requests_per_sec: u32,
    pub attachments_bytes_max: usize,
    pub connections_max: usize,
}

#[derive(Debug, Clone)]
pub struct Log {
    pub format: LogFormat,
    pub level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human on a terminal, JSON elsewhere.
    Auto,
    Json,
    Human,
}

/// Where traces go, and how many of them.
#[derive(Debug, Clone)]
pub struct Traces {
    /// Takes spans by OTLP over HTTP, in JSON.
    pub url: Secret<String>,
    pub headers: Vec<(String, Secret<String>)>,
    /// Of those that begin here.
    pub sample_per_mille: u32,
}

/// Where settings come from.
#[derive(Debug, Default)]
pub struct Sources {
    /// Must be there when named.
    pub file: Option<PathBuf>,
    pub variables: Vec<(OsString, OsString)>,
    pub overrides: Vec<Override>,
    /// Warnings count as errors.
    pub strict: bool,
}

/// A setting given on the command line.
#[derive(Debug)]
pub struct Override {
    pub key: &'static str,
    pub value: String,
    /// What the user typed, to name it in errors.
    pub flag: &'static str,
}

/// A good configuration, with where each value came from.
pub struct Loaded {
    pub config: Config,
    pub entries: BTreeMap<String, Entry>,
    pub warnings: Vec<Problem>,
}

pub fn load(sources: &Sources) -> Result<Loaded, Problems> {
    let mut layers = Layers::default();
    layers.read_defaults(DEFAULTS);
    read_file(&mut layers, sources.file.as_deref());
    let variables = readable(&mut layers, &sources.variables);
    environment::read(&mut layers, &variables);
    for given in &sources.overrides {
        put_override(&mut layers, given);
    }
    let config = check::check(&mut layers);
    if sources.strict {
        layers.problems.append(&mut layers.warnings);
    }
    if layers.problems.is_empty() {
        return Ok(Loaded { config, entries: layers.entries, warnings: layers.warnings });
    }
    Err(Problems(in_order(layers.problems)))
}

/// By place, so that a file is mended from top to bottom.
fn in_order(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by_key(|problem| match &problem.origin {
        Origin::File { line, .. } => (0, *line, String::new()),
        other => (1, 0, other.to_string()),
    });
    problems.dedup();
    problems
}

/// Settings are text. A variable of ours that is not would be read as something else than was meant.
fn readable(layers: &mut Layers, variables: &[(OsString, OsString)]) -> Vec<(String, String)> {
    let mut texts = Vec::new();
    for (name, value) in variables {
        let name = name.to_string_lossy().into_owned();
        match value.to_str() {
            Some(value) => texts.push((name, value.to_owned())),
            None if environment::is_setting(&name) => {
                layers.complain(Origin::Environment(name), "", "is not UTF-8; write it as UTF-8 text");
            }
            None => {}
        }
    }
    texts
}

fn put_override(layers: &mut Layers, given: &Override) {
    let Found::Setting(known) = keys::find(given.key) else {
        return;
    };
    let value = match known.kind {
        Kind::Texts => Value::List(vec![Value::Text(given.value.clone())]),
        _ => Value::Text(given.value.clone()),
    };
    layers.put(given.key, known.kind, value, Origin::Flag(given.flag));
}

fn read_file(layers: &mut Layers, named: Option<&Path>) {
    let path = named.unwrap_or(Path::new(FILE));
    let name = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => return,
        Err(error) => {
            let origin = Origin::File { name, line: 0 };
            return layers.complain(
                origin,
                "",
                format!("cannot be read: {error}; check the path and its mode"),
            );
        }
    };
    layers.read_file(&name, &text);
    warn_of_open_secrets(layers, path, &name);
}

/// A file that holds secrets should be readable by its owner only.
fn warn_of_open_secrets(layers: &mut Layers, path: &Path, file: &str) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o044 == 0 {
        return;
    }
    let is_here = |entry: &Entry| matches!(&entry.origin, Origin::File { name, .. } if name == file);
    let holds_secret = |(key, entry): &(&String, &Entry)| is_here(entry) && show::hides(key, &entry.value);
    let secret = layers.entries.iter().find(holds_secret);
    if let Some((key, origin)) = secret.map(|(key, entry)| (key.clone(), entry.origin.clone())) {
        let what = format!("others can read this secret (mode {:04o}); run: chmod 600 {file}", mode & 0o777);
        layers.warnings.push(Problem { origin, key, what });
    }
}
