//! Who carries the mail, in which order, and when it is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::RetryPolicy;

use super::Reader;
use crate::config::keys::nearest_of;
use crate::config::layers::Value;
use crate::wire::choices::{ProviderChoice, ProviderSettings};

impl Reader<'_> {
    pub(super) fn providers(&mut self) -> BTreeMap<String, ProviderChoice> {
        let mut providers = BTreeMap::from([(gateway::CAPTURE.to_owned(), ProviderChoice::capture())]);
        for name in self.names("providers") {
            if !self.is_good_name("providers", &name) {
                continue;
            }
            let text = |setting: &str| self.text(&format!("providers.{name}.{setting}"));
            let settings = ProviderSettings {
                kind: text("kind"),
                url: text("url"),
                api_key: text("api_key"),
                region: text("region"),
                endpoint: text("endpoint"),
                configuration_set: text("configuration_set"),
                webhook_secret: text("webhook_secret"),
                webhook_topic_arn: text("webhook_topic_arn"),
            };
            match ProviderChoice::parse(&name, &settings) {
                Ok(choice) => {
                    providers.insert(name, choice);
                }
                Err(wrong) => self.complain_of_named("providers", &name, wrong.setting, wrong.what),
            }
        }
        providers
    }

    /// How many emails per second each provider is given, where that is said.
    pub(super) fn provider_rates(&self) -> BTreeMap<String, u32> {
        let rate = |name: String| {
            let per_sec = self.count(&format!("providers.{name}.rate_per_sec"));
            u32::try_from(per_sec).ok().filter(|per_sec| *per_sec > 0).map(|per_sec| (name, per_sec))
        };
        self.names("providers").into_iter().filter_map(rate).collect()
    }

    pub(super) fn default_route(&mut self, providers: &BTreeMap<String, ProviderChoice>) -> Vec<String> {
        let Some(route) = self.texts("routes.default") else {
            let configured: Vec<&String> =
                providers.keys().filter(|name| *name != gateway::CAPTURE).collect();
            return match configured.as_slice() {
                [] => vec![gateway::CAPTURE.to_owned()],
                [only] => vec![(*only).clone()],
                several => {
                    let first = several.first().map(|name| name.as_str()).unwrap_or_default();
                    let section = format!("providers.{first}.kind");
                    let origin = self.origin(&section);
                    let what =
                        "is missing, and there are several providers; name them in the order to use them";
                    self.layers.complain(origin, "routes.default", what);
                    Vec::new()
                }
            };
        };
        if route.is_empty() {
            self.complain("routes.default", "is empty; name at least one provider");
        }
        let mut seen = BTreeSet::new();
        for name in &route {
            // A provider that was refused above has been complained about already.
            if !providers.contains_key(name) && !self.names("providers").contains(name) {
                let meant =
                    nearest_of(name, providers.keys().map(String::as_str)).unwrap_or(gateway::CAPTURE);
                self.complain("routes.default", no_such("providers", meant));
            } else if !seen.insert(name) {
                self.complain("routes.default", format!("names `{name}` twice; keep one of them"));
            }
        }
        route
    }

    pub(super) fn retry_policies(&mut self) -> BTreeMap<String, RetryPolicy> {
        let mut policies = BTreeMap::new();
        for name in self.names("retry") {
            if self.is_good_name("retry", &name)
                && let Some(policy) = self.retry_policy(&name)
            {
                policies.insert(name, policy);
            }
        }
        policies
    }

    pub(super) fn retry_policy(&mut self, name: &str) -> Option<RetryPolicy> {
        let delays_key = format!("retry.{name}.delays_secs");
        let attempts_key = format!("retry.{name}.max_attempts");
        let delays: Vec<u64> = match self.layers.entries.get(&delays_key).map(|entry| &entry.value) {
            Some(Value::List(items)) => items
                .iter()
                .filter_map(|item| {
                    if let Value::Integer(number) = item { u64::try_from(*number).ok() } else { None }
                })
                .collect(),
            _ => {
                self.complain_of_named(
                    "retry",
                    name,
                    "delays_secs",
                    "is missing; give it a list such as [1, 5, 30]".into(),
                );
                return None;
            }
        };
        if !self.layers.entries.contains_key(&attempts_key) {
            self.complain_of_named(
                "retry",
                name,
                "max_attempts",
                "is missing; say how often an email is tried at most".into(),
            );
            return None;
        }
        if delays.is_empty() {
            self.complain(
                &delays_key,
                "is empty; give the seconds to wait after each attempt, such as [1, 5, 30]",
            );
            return None;
        }
        let max_attempts = self.count(&attempts_key);
        if (delays.len() as u64) + 1 < max_attempts {
            let user_key = if self.origin(&delays_key).is_default() { &attempts_key } else { &delays_key };
            let what = format!(
                "{max_attempts} attempts need a delay after each but the last, {} in all, and there are {}; \
                 add delays or lower max_attempts",
                max_attempts - 1,
                delays.len()
            );
            self.complain(&user_key.clone(), what);
        }
        Some(RetryPolicy {
            name: name.to_owned(),
            max_attempts: u32::try_from(max_attempts).unwrap_or(u32::MAX),
            delays: delays.into_iter().map(Duration::from_secs).collect(),
        })
    }

    pub(super) fn default_retry_policy(&mut self, policies: &BTreeMap<String, RetryPolicy>) -> String {
        let name = self.text("default_retry").unwrap_or_default();
        if !policies.contains_key(&name) && !self.names("retry").contains(&name) {
            let meant = nearest_of(&name, policies.keys().map(String::as_str)).unwrap_or("fast");
            self.complain("default_retry", no_such("retry", meant));
        }
        name
    }

    /// A policy whose first wait is longer than an email may live never retries. The built-in ones are only
    /// looked at when they are the default.
    pub(super) fn check_ttl(
        &mut self,
        ttl: Duration,
        policies: &BTreeMap<String, RetryPolicy>,
        default: &str,
    ) {
        for (name, policy) in policies {
            let key = format!("retry.{name}.delays_secs");
            let is_used = name == default || !self.origin(&key).is_default();
            let first = policy.delays.first().copied().unwrap_or_default();
            if is_used && !ttl.is_zero() && ttl < first && policy.max_attempts > 1 {
                let key = if self.origin(&key).is_default() { "ttl_secs".to_owned() } else { key };
                let what = format!(
                    "an email lives {} s (ttl_secs) but its first retry by `{name}` comes after {} s; \
                     raise ttl_secs or shorten the delay",
                    ttl.as_secs(),
                    first.as_secs()
                );
                self.complain(&key, what);
            }
        }
    }
}

/// What is wrong with a name that nothing in the section has. The name is not repeated: it may be a key or an address
/// with a password that slipped into the wrong line.
fn no_such(section: &str, meant: &str) -> String {
    format!("there is no [{section}.…] of that name; did you mean `{meant}`?")
}
