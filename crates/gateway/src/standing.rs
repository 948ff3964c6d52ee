//! How the providers stand, for people: whether each works, how fast it goes, what its account says. Read from what all
//! processes together know.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::Timestamp;
use provider::Provider;
use store::{Store, StoreError};

use crate::Gateway;
use crate::gates::providers_of;
use crate::health::{Health, Rest};

#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    pub provider: String,
    pub kind: &'static str,
    pub health: Health,
    /// Emails per second that it is given now, all processes together; `None` is as fast as they come.
    pub per_sec: Option<u32>,
    /// What the operator set.
    pub configured_per_sec: Option<u32>,
    /// It complained of being called too fast, and the rate has not climbed back yet.
    pub is_slowed: bool,
}

/// Every provider that is configured, by name.
pub async fn standings(gateway: &Gateway) -> Result<Vec<Standing>, StoreError> {
    let mut healths = healths(&*gateway.store).await?;
    let now = gateway.clock.now();
    let standing = |(name, provider): (&String, &Arc<dyn Provider>)| {
        let health = healths.remove(name).unwrap_or_default();
        let configured_per_sec = gateway.settings.provider_rates.get(name).copied();
        let per_sec = health.per_sec(configured_per_sec, now);
        let unhindered = Health { slowed: None, ..health.clone() }.per_sec(configured_per_sec, now);
        Standing {
            provider: name.clone(),
            kind: provider.kind(),
            per_sec,
            configured_per_sec,
            is_slowed: per_sec != unhindered,
            health,
        }
    };
    Ok(gateway.providers.iter().map(standing).collect())
}

/// What is known of each provider; those nothing is known of are missing.
pub async fn healths(store: &dyn Store) -> Result<BTreeMap<String, Health>, StoreError> {
    let notes = store.provider_notes().await?;
    Ok(notes.into_iter().map(|note| (note.provider, Health::decode(&note.note))).collect())
}

/// Why an email of this route can go nowhere now: the one of its providers that is looked at next. `None` when one of
/// them takes emails.
pub fn standstill<'a>(route: &'a str, healths: &'a BTreeMap<String, Health>) -> Option<(&'a str, &'a Rest)> {
    let mut resting = Vec::new();
    for name in providers_of(route) {
        resting.push((name, healths.get(name)?.rest.as_ref()?));
    }
    resting.into_iter().min_by_key(|(_, rest)| next_look(rest))
}

fn next_look(rest: &Rest) -> Timestamp {
    rest.probing_until.unwrap_or(rest.next_probe_at)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use provider::Trouble;
    use testkit::START;

    use super::*;

    #[test]
    fn an_email_stands_still_when_all_its_providers_rest() {
        let resting = |secs| {
            let wait = Some(Duration::from_secs(secs));
            Health::default().after(Trouble::Outage, "NETWORK_ERROR", wait, 1, START)
        };
        let healths = BTreeMap::from([
            ("main".to_owned(), resting(60)),
            ("second".to_owned(), resting(30)),
            ("fine".to_owned(), Health::default()),
        ]);
        let cases = [
            ("main", Some("main")),
            ("main>second", Some("second")),
            ("main>fine", None),
            ("main>unknown", None),
            ("fine", None),
            ("", None),
        ];
        for (route, expected) in cases {
            assert_eq!(standstill(route, &healths).map(|(name, _)| name), expected, "{route}");
        }
    }
}
