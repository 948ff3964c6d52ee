//! What the settings mean: from values with origins to a typed `Config`, or every problem at once.

mod mail;
mod safety;
mod standing;
mod traces;

use std::collections::BTreeSet;
use std::time::Duration;

use model::Address;
use store::Retention;

use super::layers::{Layers, Value};
use super::problem::Origin;
use super::{Config, Limits, Log, LogFormat};
use crate::wire::choices::{SqliteChoice, StoreChoice};

const DAY: Duration = Duration::from_secs(24 * 3600);
const MIB: u64 = 1024 * 1024;

/// Makes a `Config` of the layers. It is only good if `layers.problems` is still empty afterwards.
pub fn check(layers: &mut Layers) -> Config {
    let mut reader = Reader { layers };
    let admin_token = reader.admin_token();
    let environment = reader.environment();
    let providers = reader.providers();
    let provider_rates = reader.provider_rates();
    let ttl = Duration::from_secs(reader.count("ttl_secs"));
    let retry_policies = reader.retry_policies();
    let default_retry_policy = reader.default_retry_policy(&retry_policies);
    reader.check_ttl(ttl, &retry_policies, &default_retry_policy);
    reader.only_choice("queue.engine", "store", &["bullmq"]);
    reader.only_choice("content.url", "db:", &["file", "s3"]);
    Config {
        listen: reader.listen("listen", admin_token.is_some()),
        worker_listen: reader.worker_listen(admin_token.is_some()),
        store: reader.store(),
        worker_concurrency: u32::try_from(reader.count("worker.concurrency")).unwrap_or(u32::MAX),
        lease: reader.lease(),
        default_route: reader.default_route(&providers),
        admin_email: reader.admin_email(),
        alert_language: reader.text("alerts.language").unwrap_or_default(),
        reputation: reader.reputation(),
        webhooks: reader.webhooks(&providers),
        retention: reader.retention(),
        guard: reader.guard(&environment),
        privacy: reader.privacy(),
        limits: reader.limits(),
        log: reader.log(),
        traces: reader.traces(),
        admin_token,
        public_url: reader.public_url(),
        environment,
        providers,
        provider_rates,
        ttl,
        retry_policies,
        default_retry_policy,
    }
}

struct Reader<'a> {
    layers: &'a mut Layers,
}

impl Reader<'_> {
    fn origin(&self, key: &str) -> Origin {
        self.layers.entries.get(key).map_or(Origin::Default, |entry| entry.origin.clone())
    }

    fn complain(&mut self, key: &str, what: impl Into<String>) {
        let origin = self.origin(key);
        self.layers.complain(origin, key, what);
    }

    fn text(&self, key: &str) -> Option<String> {
        match &self.layers.entries.get(key)?.value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    /// Zero only when the setting was refused before: every number has a default.
    fn count(&self, key: &str) -> u64 {
        match self.layers.entries.get(key).map(|entry| &entry.value) {
            Some(Value::Integer(number)) => u64::try_from(*number).unwrap_or(0),
            _ => 0,
        }
    }

    fn texts(&self, key: &str) -> Option<Vec<String>> {
        let Value::List(items) = &self.layers.entries.get(key)?.value else {
            return None;
        };
        let text = |item: &Value| match item {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        };
        Some(items.iter().filter_map(text).collect())
    }

    /// The names of the user's choice under a section.
    fn names(&self, section: &str) -> BTreeSet<String> {
        let rest = |key: &String| {
            key.strip_prefix(section)?.strip_prefix('.')?.split_once('.').map(|(name, _)| name.to_owned())
        };
        self.layers.entries.keys().filter_map(rest).collect()
    }

    fn store(&mut self) -> StoreChoice {
        let url = self.text("store.url").unwrap_or_default();
        let mut choice = StoreChoice::parse(&url).unwrap_or_else(|what| {
            self.complain("store.url", what);
            StoreChoice::Sqlite(SqliteChoice::default())
        });
        if self.layers.entries.contains_key("store.reserve_mb") {
            let reserve_bytes = self.count("store.reserve_mb") * MIB;
            match &mut choice {
                StoreChoice::Sqlite(sqlite) => sqlite.reserve_bytes = Some(reserve_bytes),
                StoreChoice::Postgres(_) | StoreChoice::Mysql(_) => {
                    let what = "is for SQLite; a database server minds its own disk, so leave this out";
                    self.complain("store.reserve_mb", what);
                }
            }
        }
        choice
    }

    fn only_choice(&mut self, key: &str, only: &str, later: &[&str]) {
        let Some(text) = self.text(key) else { return };
        let scheme = text.split(':').next().unwrap_or_default();
        if text == only {
            return;
        }
        match later.iter().find(|name| **name == scheme) {
            Some(name) => {
                self.complain(key, format!("{name} is not built into this version yet; use \"{only}\""))
            }
            None => self.complain(key, format!("must be \"{only}\" in this version")),
        }
    }

    fn lease(&mut self) -> Duration {
        let lease = Duration::from_secs(self.count("worker.lease_secs"));
        if lease <= provider::SEND_TIMEOUT && !lease.is_zero() {
            let timeout_secs = provider::SEND_TIMEOUT.as_secs();
            let what = format!(
                "must be more than {timeout_secs}, the seconds a call to a provider may last; \
                 else a second worker sends the same email"
            );
            self.complain("worker.lease_secs", what);
        }
        lease
    }

    /// Names of our own choosing appear in variables, logs and metrics.
    fn is_good_name(&mut self, section: &str, name: &str) -> bool {
        let is_good = !name.contains("__")
            && name.len() <= 64
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte));
        if !is_good {
            let what =
                "is no good name; use lower case letters, digits, - and single _, at most 64".to_owned();
            self.complain_of_named(section, name, "", what);
        }
        is_good
    }

    /// Complains at the place of the setting, or of its neighbours when it is the setting that is missing.
    fn complain_of_named(&mut self, section: &str, name: &str, setting: &str, what: String) {
        let prefix = format!("{section}.{name}");
        let key = if setting.is_empty() { prefix.clone() } else { format!("{prefix}.{setting}") };
        let neighbour = self.layers.entries.iter().find(|(key, _)| key.starts_with(&format!("{prefix}.")));
        let origin = match (self.layers.entries.get(&key), neighbour) {
            (Some(entry), _) | (None, Some((_, entry))) => entry.origin.clone(),
            (None, None) => Origin::Default,
        };
        self.layers.complain(origin, &key, what);
    }

    /// The place of the dashboard as browsers name it: scheme and host, no path.
    fn public_url(&mut self) -> Option<String> {
        let text = self.text("public_url")?;
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let is_good = host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ']));
        if !is_good {
            self.complain("public_url", "must be such as https://mail.example.com, without a path");
            return None;
        }
        Some(text)
    }

    fn admin_email(&mut self) -> Option<Address> {
        let text = self.text("alerts.admin_email")?;
        self.address("alerts.admin_email", &text)
    }

    fn address(&mut self, key: &str, text: &str) -> Option<Address> {
        Address::parse(text)
            .map_err(|error| self.complain(key, format!("{error}; write an address such as ops@example.com")))
            .ok()
    }

    fn retention(&mut self) -> Retention {
        let days = |reader: &Self, key| DAY * u32::try_from(reader.count(key)).unwrap_or(0);
        let retention = Retention {
            content: days(self, "retention.content_days"),
            emails: days(self, "retention.emails_days"),
            dead_letters: days(self, "retention.dead_letters_days"),
        };
        if retention.dead_letters > retention.emails {
            let what = "dead letters cannot be kept longer than emails; \
                        raise emails_days or lower dead_letters_days";
            self.complain_of_pair("retention.dead_letters_days", "retention.emails_days", what);
        }
        retention
    }

    /// Two settings that do not go together: complains at the one the user wrote.
    fn complain_of_pair(&mut self, first: &str, second: &str, what: &str) {
        let key = if self.origin(first).is_default() { second } else { first };
        self.complain(key, what);
    }

    fn limits(&mut self) -> Limits {
        let number = |reader: &Self, key: &str| usize::try_from(reader.count(key)).unwrap_or(usize::MAX);
        Limits {
            requests_per_sec: u32::try_from(self.count("limits.requests_per_sec")).unwrap_or(u32::MAX),
            attachments_bytes_max: number(self, "limits.attachments_bytes_max"),
            connections_max: number(self, "limits.connections_max"),
        }
    }

    fn log(&mut self) -> Log {
        let format = match self.text("log.format").as_deref() {
            Some("json") => LogFormat::Json,
            Some("human") => LogFormat::Human,
            _ => LogFormat::Auto,
        };
        let level = self.text("log.level").unwrap_or_default();
        if !crate::telemetry::is_filter(&level) {
            self.complain(
                "log.level",
                "must be error, warn, info, debug or trace, or a filter such as info,gateway=debug",
            );
        }
        Log { format, level }
    }
}
