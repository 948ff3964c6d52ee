//! What AWS says of the account and of the identities that may send.

use aws_sdk_sesv2::Client;
use aws_sdk_sesv2::operation::get_account::GetAccountOutput;
use model::Address;
use provider::{Account, Quota};

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

pub async fn read(client: &Client) -> Result<Account, Mishap> {
    let answer = client.get_account().send().await.map_err(|error| Mishap::of(error, true))?;
    Ok(account(&answer))
}

pub async fn identity(client: &Client, name: &str) -> Result<Identity, Mishap> {
    match client.get_email_identity().email_identity(name).send().await {
        Ok(answer) if answer.verified_for_sending_status => Ok(Identity::Verified),
        Ok(_) => Ok(Identity::NotVerified),
        Err(error) if error.as_service_error().is_some_and(|error| error.is_not_found_exception()) => {
            Ok(Identity::Unknown)
        }
        Err(error) => Err(Mishap::of(error, true)),
    }
}

fn account(answer: &GetAccountOutput) -> Account {
    let quota = answer.send_quota();
    // SES says -1 where there is no limit.
    let quota_of_day = quota.filter(|quota| quota.max24_hour_send() >= 0.0);
    Account {
        rate_per_sec: quota.map(|quota| quota.max_send_rate()).filter(|rate| *rate > 0.0),
        quota: quota_of_day.map(|quota| Quota {
            max_24_hours: quota.max24_hour_send(),
            sent_24_hours: quota.sent_last24_hours(),
        }),
        may_send: answer.sending_enabled() && answer.enforcement_status() != Some(SHUT_DOWN),
        is_sandboxed: !answer.production_access_enabled(),
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
