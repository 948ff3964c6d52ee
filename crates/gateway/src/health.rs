//! How a provider is doing, as all processes know it, and what each piece of news changes: pure rules. `gates` keeps
//! them in the store and acts on them.
//!
//! A provider that is throttled is slowed down; one that is out of order, out of quota or paused rests: nothing is given
//! to it but one probe at a time, until a probe gets through.

use std::time::Duration;

use model::Timestamp;
use provider::{Account, Trouble};
use serde_json::{Map, Value, json};

/// Calls in a row that show an outage before the provider rests: one may be bad luck.
pub const OUTAGES_MAX: u32 = 5;
/// The first probe of a broken provider; each that fails doubles the pause.
const PROBE_PAUSE_MIN: Duration = Duration::from_secs(1);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(15);
/// How often a provider is asked whether its quota is free or its account unpaused.
const ACCOUNT_PAUSE: Duration = Duration::from_secs(60);
/// Longer than a call may last: a probe whose process died does not stop the probing.
const PROBE_TIME: Duration = Duration::from_secs(40);
/// Errors of calls that were under way together count once.
const SLOWING_PAUSE: Duration = Duration::from_secs(1);
/// A slowed rate grows by a tenth every second.
const CLIMB_PER_SEC: f64 = 1.1;
/// Where no rate is known to climb back to, slowing is forgotten after this.
const SLOWED_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Health {
    pub rest: Option<Rest>,
    pub slowed: Option<Slowed>,
    pub allowance: Option<Allowance>,
}

/// Nothing is given to the provider for now.
#[derive(Debug, Clone, PartialEq)]
pub struct Rest {
    pub cause: Trouble,
    /// Our code of the error that led to it.
    pub code: String,
    pub since: Timestamp,
    pub next_probe_at: Timestamp,
    pub probes: u32,
    /// A probe is under way.
    pub probing_until: Option<Timestamp>,
}

/// It was asked too fast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slowed {
    pub to_per_sec: u32,
    pub at: Timestamp,
}

/// What the provider itself said it allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowance {
    pub per_sec: Option<f64>,
    pub max_24_hours: Option<f64>,
    pub sent_24_hours: Option<f64>,
    pub read_at: Timestamp,
}

impl Health {
    /// Emails per second, all processes together; `None` is as fast as they come. What the operator set goes before
    /// what the account says.
    pub fn per_sec(&self, configured: Option<u32>, now: Timestamp) -> Option<u32> {
        let allowed = self.allowance.and_then(|allowance| allowance.per_sec).map(whole);
        let base = configured.or(allowed);
        match (self.slowed, base) {
            (None, base) => base,
            (Some(slowed), Some(base)) => Some(slowed.climbed(now).min(base)),
            (Some(slowed), None) if now.since(slowed.at) < SLOWED_FOR => Some(slowed.climbed(now)),
            (Some(_), None) => None,
        }
    }

    /// After an error about the provider as a whole. `per_sec` is how fast it was going.
    pub fn after(
        mut self,
        trouble: Trouble,
        code: &str,
        retry_after: Option<Duration>,
        per_sec: u32,
        now: Timestamp,
    ) -> Self {
        if trouble == Trouble::Throttled {
            if self.slowed.is_none_or(|slowed| now.since(slowed.at) >= SLOWING_PAUSE) {
                self.slowed = Some(Slowed { to_per_sec: (per_sec / 2).max(1), at: now });
            }
            return self;
        }
        let before = self.rest.take();
        let probes = before.as_ref().map_or(0, |rest| rest.probes + 1);
        let pause = pause(trouble, probes).max(retry_after.unwrap_or_default());
        self.rest = Some(Rest {
            cause: trouble,
            code: code.to_owned(),
            since: before.map_or(now, |rest| rest.since),
            next_probe_at: now.plus(pause),
            probes,
            probing_until: None,
        });
        self
    }

    /// It took an email, or its account may send again.
    pub fn works_again(self) -> Self {
        Self { rest: None, ..self }
    }

    /// With the one probe that may be made now, if one may.
    pub fn probing(&self, now: Timestamp) -> Option<Self> {
        let rest = self.rest.as_ref()?;
        let is_free = rest.probing_until.is_none_or(|until| until <= now);
        (is_free && rest.next_probe_at <= now).then(|| Self {
            rest: Some(Rest { probing_until: Some(now.plus(PROBE_TIME)), ..rest.clone() }),
            ..self.clone()
        })
    }

    /// A probe said nothing: there was no email to make it with, or it failed for a reason of its own.
    pub fn probe_spent(mut self, now: Timestamp) -> Self {
        if let Some(rest) = &mut self.rest {
            rest.probing_until = None;
            rest.next_probe_at = now.plus(PROBE_PAUSE_MIN);
        }
        self
    }

    /// What the provider said of its account.
    pub fn told(mut self, account: &Account, now: Timestamp) -> Self {
        self.allowance = Some(Allowance {
            per_sec: account.rate_per_sec,
            max_24_hours: account.quota.map(|quota| quota.max_24_hours),
            sent_24_hours: account.quota.map(|quota| quota.sent_24_hours),
            read_at: now,
        });
        let by_account = self
            .rest
            .as_ref()
            .is_some_and(|rest| matches!(rest.cause, Trouble::QuotaUsedUp | Trouble::Paused));
        match (refusal(account), by_account) {
            (Some((trouble, code)), _) => self.after(trouble, code, None, 0, now),
            (None, true) => self.works_again(),
            (None, false) => self,
        }
    }

    pub fn encode(&self) -> String {
        let mut json = Map::new();
        if let Some(rest) = &self.rest {
            json.insert(
                "rest".into(),
                json!({
                    "cause": name(rest.cause), "code": rest.code, "since": rest.since.millis(),
                    "nextProbeAt": rest.next_probe_at.millis(), "probes": rest.probes,
                    "probingUntil": rest.probing_until.map(Timestamp::millis),
                }),
            );
        }
        if let Some(slowed) = self.slowed {
            json.insert("slowed".into(), json!({"toPerSec": slowed.to_per_sec, "at": slowed.at.millis()}));
        }
        if let Some(allowance) = self.allowance {
            json.insert(
                "allowance".into(),
                json!({
                    "perSec": allowance.per_sec, "max24Hours": allowance.max_24_hours,
                    "sent24Hours": allowance.sent_24_hours, "readAt": allowance.read_at.millis(),
                }),
            );
        }
        Value::Object(json).to_string()
    }

    /// What cannot be read counts as nothing known: the next piece of news writes it anew.
    pub fn decode(text: &str) -> Self {
        let json: Value = serde_json::from_str(text).unwrap_or_default();
        Self {
            rest: rest(&json["rest"]),
            slowed: slowed(&json["slowed"]),
            allowance: allowance(&json["allowance"]),
        }
    }
}

impl Slowed {
    fn climbed(self, now: Timestamp) -> u32 {
        let secs = now.since(self.at).as_secs_f64().min(600.0);
        whole(f64::from(self.to_per_sec) * CLIMB_PER_SEC.powf(secs))
    }
}

fn whole(per_sec: f64) -> u32 {
    // A rate below one a second is one a second; casting saturates.
    per_sec.floor().max(1.0) as u32
}

fn pause(trouble: Trouble, probes: u32) -> Duration {
    match trouble {
        Trouble::QuotaUsedUp | Trouble::Paused => ACCOUNT_PAUSE,
        Trouble::Throttled | Trouble::Outage => {
            PROBE_PAUSE_MIN.saturating_mul(1 << probes.min(10)).min(PROBE_PAUSE_MAX)
        }
    }
}

/// Why the account may not send, if it may not.
fn refusal(account: &Account) -> Option<(Trouble, &'static str)> {
    let used_up =
        |quota: provider::Quota| quota.max_24_hours >= 0.0 && quota.sent_24_hours >= quota.max_24_hours;
    if !account.may_send {
        Some((Trouble::Paused, "ACCOUNT_PAUSED"))
    } else if account.quota.is_some_and(used_up) {
        Some((Trouble::QuotaUsedUp, "QUOTA_USED_UP"))
    } else {
        None
    }
}

const TROUBLES: [(Trouble, &str); 4] = [
    (Trouble::Throttled, "THROTTLED"),
    (Trouble::QuotaUsedUp, "QUOTA_USED_UP"),
    (Trouble::Paused, "PAUSED"),
    (Trouble::Outage, "OUTAGE"),
];

/// What the trouble is called in answers, metrics and notes.
pub fn name(trouble: Trouble) -> &'static str {
    TROUBLES.iter().find(|(other, _)| *other == trouble).map_or("OUTAGE", |(_, name)| name)
}

fn moment(json: &Value) -> Option<Timestamp> {
    json.as_i64().map(Timestamp::from_millis)
}

fn rest(json: &Value) -> Option<Rest> {
    let (cause, _) = TROUBLES.into_iter().find(|(_, name)| json["cause"] == *name)?;
    Some(Rest {
        cause,
        code: json["code"].as_str()?.to_owned(),
        since: moment(&json["since"])?,
        next_probe_at: moment(&json["nextProbeAt"])?,
        probes: u32::try_from(json["probes"].as_u64()?).ok()?,
        probing_until: moment(&json["probingUntil"]),
    })
}

fn slowed(json: &Value) -> Option<Slowed> {
    Some(Slowed { to_per_sec: u32::try_from(json["toPerSec"].as_u64()?).ok()?, at: moment(&json["at"])? })
}

fn allowance(json: &Value) -> Option<Allowance> {
    Some(Allowance {
        per_sec: json["perSec"].as_f64(),
        max_24_hours: json["max24Hours"].as_f64(),
        sent_24_hours: json["sent24Hours"].as_f64(),
        read_at: moment(&json["readAt"])?,
    })
}

#[cfg(test)]
mod tests;
