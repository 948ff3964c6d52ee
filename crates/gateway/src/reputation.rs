//! A company whose emails bounce or are complained about is warned, then paused, before a provider pauses everybody.
//! `judge` has the rules; what happened is in the store's tallies of emails that really went out.

use model::company::KeyMode;
use model::{Company, EventKind, Pause};
use store::tallies::day_of;
use store::{DayTally, StoreError};

use crate::{Gateway, observe};

/// How many days are judged together.
const DAYS: i64 = 7;

/// When a company is warned and when it is paused, in thousandths of what it sent within a week.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReputationLimits {
    /// Fewer emails say nothing.
    pub volume_min: u64,
    pub bounces_warn: u64,
    pub bounces_pause: u64,
    pub complaints_warn: u64,
    pub complaints_pause: u64,
}

impl Default for ReputationLimits {
    /// What Amazon SES reviews accounts for: 5 % of bounces and 0.1 % of complaints; it pauses at 10 % and 0.5 %.
    fn default() -> Self {
        Self {
            volume_min: 500,
            bounces_warn: 50,
            bounces_pause: 100,
            complaints_warn: 1,
            complaints_pause: 5,
        }
    }
}

/// What was sent within the days that count, and how much of it came back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    pub sent: u64,
    pub bounced: u64,
    pub complained: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    Fine,
    Warn(String),
    Pause(String),
}

/// Looks at every company; those that are to be paused are. Returns how many were.
pub async fn look(gateway: &Gateway) -> Result<u32, StoreError> {
    let Some(limits) = gateway.settings.reputation else { return Ok(0) };
    let mut paused = 0;
    for company in gateway.store.companies().await? {
        if company.pause.is_some() || company.disabled_at.is_some() {
            continue;
        }
        match judge(record(gateway, &company).await?, limits) {
            Judgement::Fine => {}
            Judgement::Warn(why) => {
                tracing::warn!(companyId = %company.id, company = company.name, "the company's standing suffers: {why}");
            }
            Judgement::Pause(why) => {
                let reason = format!("{why}; resume it when the cause is mended");
                let pause = Pause { at: gateway.clock.now(), reason };
                if gateway.store.pause_company(company.id, pause).await? {
                    tracing::error!(companyId = %company.id, company = company.name, "the company is paused: {why}");
                    observe::company_paused();
                    paused += 1;
                }
            }
        }
    }
    Ok(paused)
}

/// The days that count begin after the day on which somebody ended the last pause.
async fn record(gateway: &Gateway, company: &Company) -> Result<Record, StoreError> {
    let today = day_of(gateway.clock.now());
    let resumed = company.resumed_at.map_or(i64::MIN, |at| day_of(at) + 1);
    let since = (today - DAYS + 1).max(resumed);
    let days = gateway.store.company_days(Some(company.id), Some(KeyMode::Live), since).await?;
    Ok(sum(&days))
}

fn sum(days: &[DayTally]) -> Record {
    let total = |kind| days.iter().filter(|day| day.kind == kind).map(|day| day.total).sum();
    Record {
        sent: total(EventKind::Sent),
        bounced: total(EventKind::Bounced),
        complained: total(EventKind::Complained),
    }
}

pub fn judge(record: Record, limits: ReputationLimits) -> Judgement {
    let Record { sent, bounced, complained } = record;
    if sent < limits.volume_min.max(1) {
        return Judgement::Fine;
    }
    let per_mille = |part: u64| u128::from(part) * 1_000 / u128::from(sent);
    let words = |what: &str, part: u64| {
        let percent = part as f64 * 100.0 / sent as f64;
        format!("{part} of {sent} emails within {DAYS} days {what} ({percent:.1} %)")
    };
    if per_mille(bounced) >= u128::from(limits.bounces_pause) {
        Judgement::Pause(words("bounced", bounced))
    } else if per_mille(complained) >= u128::from(limits.complaints_pause) {
        Judgement::Pause(words("were complained about", complained))
    } else if per_mille(bounced) >= u128::from(limits.bounces_warn) {
        Judgement::Warn(words("bounced", bounced))
    } else if per_mille(complained) >= u128::from(limits.complaints_warn) {
        Judgement::Warn(words("were complained about", complained))
    } else {
        Judgement::Fine
    }
}

#[cfg(test)]
mod tests;
