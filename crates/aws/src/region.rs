//! In which region of AWS calls are made: the one given, else what AWS's own settings say, else the machine's own.

use std::time::Duration;

use tokio::time::timeout;

use crate::chain::machine;
use crate::settings::Settings;

const LENGTH_MAX: usize = 64;
/// For asking the machine, where there may be nobody to answer.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether this can be a region, such as eu-west-1. It becomes part of a host's name.
pub fn is_region(text: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let has_parts = text.split('-').count() >= 3 && text.split('-').all(|part| !part.is_empty());
    text.len() <= LENGTH_MAX && has_parts && text.bytes().all(is_fine)
}

pub async fn find(given: Option<&str>, settings: &Settings, http: &reqwest::Client) -> Option<String> {
    let said = given.or_else(|| settings.environment.get("AWS_REGION"));
    let said = said.or_else(|| settings.get("AWS_DEFAULT_REGION", "region"));
    let region = match said {
        Some(region) => region.to_owned(),
        None => timeout(MACHINE_TIMEOUT, machine::region(settings, http)).await.ok()?.ok()?,
    };
    is_region(&region).then_some(region)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::profiles::Profiles;
    use testkit::http::{Server, json};

    #[tokio::test]
    async fn who_says_it_first() {
        let server = Server::start(|_| json(200, "sa-east-1\n")).await;
        let machine = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url());
        let machine = (machine.0, machine.1.as_str());
        let set = ("AWS_REGION", "eu-west-1");
        let default = ("AWS_DEFAULT_REGION", "eu-west-2");
        let wrong = ("AWS_REGION", "eu-west-1.evil.com");
        let file = "[default]\nregion = eu-west-3\n";
        let cases = [
            (Some("us-east-1"), vec![machine, set, default], file, Some("us-east-1")),
            (None, vec![machine, set, default], file, Some("eu-west-1")),
            (None, vec![machine, default], file, Some("eu-west-2")),
            (None, vec![machine], file, Some("eu-west-3")),
            (None, vec![machine], "", Some("sa-east-1")),
            (None, vec![machine, ("AWS_EC2_METADATA_DISABLED", "TRUE")], "", None),
            (None, vec![machine, wrong], file, None),
        ];
        let http = crate::http::client(MACHINE_TIMEOUT).expect("a client");
        for (given, variables, config, expected) in cases {
            let environment: Environment = variables.iter().copied().collect();
            let profiles = Ok(Profiles::parse(config, "", None).expect("profiles"));
            let found = find(given, &Settings { environment, profiles }, &http).await;
            assert_eq!(found.as_deref(), expected, "{given:?} {variables:?} {config}");
        }
    }

    #[test]
    fn what_can_be_a_region() {
        for (text, expected) in [
            ("eu-west-1", true),
            ("us-gov-west-1", true),
            ("europe", false),
            ("eu-west-", false),
            ("EU-WEST-1", false),
            ("eu-west-1/x", false),
            ("", false),
        ] {
            assert_eq!(is_region(text), expected, "{text}");
        }
    }
}
