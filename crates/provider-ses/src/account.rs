//! What AWS says of the account and of the identities that may send.

use aws::{Answer, Client, Method, Request};
use model::Address;
use provider::{Account, Quota};
use serde::Deserialize;

use crate::errors::Mishap;

/// An account that AWS has shut down; under review it may still send.
const SHUT_DOWN: &str = "SHUTDOWN";

/// Whether mail may be sent from an address or a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    Verified,
    /// SES knows it and waits for its verification.
    NotVerified,
    /// SES does not know it in this region.
    Unknown,
}

/// The identities that let mail be sent from an address, the closest first: one verified identity is enough.
pub fn identity_names(address: &Address) -> Vec<String> {
    let domain = address.domain();
    let parents = domain.match_indices('.').map(|(at, _)| &domain[at + 1..]);
    let domains = std::iter::once(domain).chain(parents).filter(|domain| domain.contains('.'));
    std::iter::once(address.expose()).chain(domains).map(str::to_owned).collect()
}

/// What we read of GetAccount's answer.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct AccountAnswer {
    send_quota: Option<SendQuota>,
    sending_enabled: bool,
    enforcement_status: Option<String>,
    production_access_enabled: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct SendQuota {
    #[serde(rename = "Max24HourSend")]
    max_24_hours: f64,
    #[serde(rename = "SentLast24Hours")]
    sent_24_hours: f64,
    max_send_rate: f64,
}

/// What we read of GetEmailIdentity's answer.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct IdentityAnswer {
    verified_for_sending_status: bool,
}

pub async fn read(client: &Client) -> Result<Account, Mishap> {
    let answer = get(client, "/v2/email/account").await?;
    if !answer.is_success() {
        return Err(answer.into());
    }
    answer.json().map(account).ok_or(Mishap::Unreadable)
}

pub async fn identity(client: &Client, name: &str) -> Result<Identity, Mishap> {
    let answer = get(client, &format!("/v2/email/identities/{}", aws::encode(name))).await?;
    if answer.is_success() {
        let identity: IdentityAnswer = answer.json().ok_or(Mishap::Unreadable)?;
        let is_verified = identity.verified_for_sending_status;
        return Ok(if is_verified { Identity::Verified } else { Identity::NotVerified });
    }
    match answer.refusal().name.as_deref() {
        Some("NotFoundException") => Ok(Identity::Unknown),
        _ => Err(answer.into()),
    }
}

async fn get(client: &Client, path: &str) -> Result<Answer, Mishap> {
    let request = Request { method: Method::GET, path, headers: &[], body: Vec::new() };
    Ok(client.call(request).await?)
}

fn account(answer: AccountAnswer) -> Account {
    let quota = answer.send_quota.as_ref();
    // SES says -1 where there is no limit.
    let quota_of_day = quota.filter(|quota| quota.max_24_hours >= 0.0);
    Account {
        rate_per_sec: quota.map(|quota| quota.max_send_rate).filter(|rate| *rate > 0.0),
        quota: quota_of_day
            .map(|quota| Quota { max_24_hours: quota.max_24_hours, sent_24_hours: quota.sent_24_hours }),
        may_send: answer.sending_enabled && answer.enforcement_status.as_deref() != Some(SHUT_DOWN),
        is_sandboxed: !answer.production_access_enabled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_the_closest_to_the_farthest() {
        let address = Address::parse("shop@mail.acme.com").expect("an address");
        assert_eq!(identity_names(&address), ["shop@mail.acme.com", "mail.acme.com", "acme.com"]);
    }
}
