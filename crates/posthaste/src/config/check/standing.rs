//! What is believed of reports, and when a company is paused for them.

use std::collections::BTreeMap;

use feedback::sns::{Root, TrustedHost};
use feedback::svix::SigningSecret;
use gateway::reputation::ReputationLimits;

use super::Reader;
use crate::config::WebhookSettings;
use crate::wire::choices::ProviderChoice;

impl Reader<'_> {
    pub(super) fn reputation(&mut self) -> Option<ReputationLimits> {
        let limits = ReputationLimits {
            volume_min: self.count("reputation.volume_min"),
            bounces_warn: self.count("reputation.bounces_warn_per_mille"),
            bounces_pause: self.count("reputation.bounces_pause_per_mille"),
            complaints_warn: self.count("reputation.complaints_warn_per_mille"),
            complaints_pause: self.count("reputation.complaints_pause_per_mille"),
        };
        for (warn, pause, name) in [
            (limits.bounces_warn, limits.bounces_pause, "bounces"),
            (limits.complaints_warn, limits.complaints_pause, "complaints"),
        ] {
            if warn > pause {
                let (warn, pause) = (
                    format!("reputation.{name}_warn_per_mille"),
                    format!("reputation.{name}_pause_per_mille"),
                );
                self.complain_of_pair(
                    &warn,
                    &pause,
                    "the warning comes after the pause; lower it or raise the other",
                );
            }
        }
        (self.text("reputation.guard").as_deref() != Some("off")).then_some(limits)
    }

    pub(super) fn webhooks(&mut self, providers: &BTreeMap<String, ProviderChoice>) -> WebhookSettings {
        let mut settings = WebhookSettings::default();
        for name in providers.keys() {
            let secrets = self.secrets(&format!("providers.{name}.webhook_secret"));
            settings.secrets.insert(name.clone(), secrets);
            let topics = self.text(&format!("providers.{name}.webhook_topic_arn")).unwrap_or_default();
            settings.topics.insert(name.clone(), topics.split_whitespace().map(str::to_owned).collect());
        }
        for host in self.texts("webhook_trust.hosts").unwrap_or_default() {
            match TrustedHost::parse(&host) {
                Ok(host) => settings.hosts.push(host),
                Err(error) => self.complain("webhook_trust.hosts", error.to_string()),
            }
        }
        for file in self.texts("webhook_trust.roots").unwrap_or_default() {
            if file.contains("://") {
                self.complain("webhook_trust.roots", "must hold paths of files, not addresses");
                continue;
            }
            let read = std::fs::read_to_string(&file).map_err(|error| format!("cannot read {file}: {error}"));
            match read.and_then(|pem| Root::read_all(&pem).map_err(|error| format!("{file}: {error}"))) {
                Ok(roots) => settings.roots.extend(roots),
                Err(what) => self.complain("webhook_trust.roots", what),
            }
        }
        settings
    }

    fn secrets(&mut self, key: &str) -> Vec<SigningSecret> {
        let mut secrets = Vec::new();
        for text in self.text(key).unwrap_or_default().split_whitespace() {
            match SigningSecret::parse(text) {
                Ok(secret) => secrets.push(secret),
                Err(error) => self.complain(key, error.to_string()),
            }
        }
        secrets
    }
}
