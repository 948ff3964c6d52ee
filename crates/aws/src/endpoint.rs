//! Where a service listens.

use url::Url;

use crate::failure::{Failure, misconfigured};
use crate::settings::Settings;

/// One of AWS's services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// As in the settings: `AWS_ENDPOINT_URL_SESV2`. In small letters.
    pub id: &'static str,
    /// How its hosts begin.
    pub host: &'static str,
    /// As in signatures.
    pub signing_name: &'static str,
}

/// How regions begin, and how hosts end there: as usual, and where they are reached by IPv6 too. The last line is the
/// rest of the world.
const PARTITIONS: &[(&str, &str, &str)] = &[
    ("cn-", "amazonaws.com.cn", "api.amazonwebservices.com.cn"),
    ("eusc-", "amazonaws.eu", "api.amazonwebservices.eu"),
    ("us-isob-", "sc2s.sgov.gov", "api.aws.scloud"),
    ("us-isof-", "csp.hci.ic.gov", "api.aws.hci.ic.gov"),
    ("us-iso-", "c2s.ic.gov", "api.aws.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"),
    ("", "amazonaws.com", "api.aws"),
];

/// The endpoint that AWS's own settings name, else the service's own in this region.
pub fn find(service: &Service, region: &str, settings: &Settings) -> Result<Url, Failure> {
    let text = match configured(service, settings) {
        Some(text) => text.to_owned(),
        None => usual(service, region, settings),
    };
    let url = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| misconfigured("the endpoint in AWS's own settings is no address"))
}

/// The address of a path below an endpoint, which may have a path of its own.
pub fn below(endpoint: &Url, path: &str) -> Url {
    let mut url = endpoint.clone();
    url.set_path(&format!("{}{path}", endpoint.path().trim_end_matches('/')));
    url
}

fn configured<'x>(service: &Service, settings: &'x Settings) -> Option<&'x str> {
    if settings.is_true("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "ignore_configured_endpoint_urls") {
        return None;
    }
    let variable = format!("AWS_ENDPOINT_URL_{}", service.id.to_ascii_uppercase());
    let environment = &settings.environment;
    let profiles = settings.profiles.as_ref().ok();
    environment
        .get(&variable)
        .or_else(|| environment.get("AWS_ENDPOINT_URL"))
        .or_else(|| profiles?.of_service(service.id, "endpoint_url"))
        .or_else(|| profiles?.selected()?.get("endpoint_url"))
}

fn usual(service: &Service, region: &str, settings: &Settings) -> String {
    let partition = PARTITIONS.iter().find(|(prefix, ..)| region.starts_with(prefix));
    let (_, suffix, dual_stack_suffix) = partition.expect("the last one fits every region");
    let is_dual_stack = settings.is_true("AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint");
    let suffix = if is_dual_stack { dual_stack_suffix } else { suffix };
    let is_fips = settings.is_true("AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint");
    let fips = if is_fips { "-fips" } else { "" };
    format!("https://{}{fips}.{region}.{suffix}", service.host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::profiles::Profiles;

    const SES: Service = Service { id: "sesv2", host: "email", signing_name: "ses" };

    type Variables<'x> = &'x [(&'x str, &'x str)];

    fn endpoint(region: &str, variables: Variables<'_>, config: &str) -> Result<String, Failure> {
        let environment: Environment = variables.iter().copied().collect();
        let profiles = Ok(Profiles::parse(config, "", None).expect("profiles"));
        find(&SES, region, &Settings { environment, profiles }).map(|url| url.to_string())
    }

    #[test]
    fn by_region() {
        let cases = [
            ("eu-west-1", "https://email.eu-west-1.amazonaws.com/"),
            ("us-gov-west-1", "https://email.us-gov-west-1.amazonaws.com/"),
            ("cn-north-1", "https://email.cn-north-1.amazonaws.com.cn/"),
            ("eusc-de-east-1", "https://email.eusc-de-east-1.amazonaws.eu/"),
            ("us-iso-east-1", "https://email.us-iso-east-1.c2s.ic.gov/"),
            ("us-isob-east-1", "https://email.us-isob-east-1.sc2s.sgov.gov/"),
        ];
        for (region, expected) in cases {
            assert_eq!(endpoint(region, &[], "").as_deref(), Ok(expected));
        }
    }

    #[test]
    fn by_settings() {
        let all = ("AWS_ENDPOINT_URL", "http://all");
        let ours = ("AWS_ENDPOINT_URL_SESV2", "http://ours:1/x");
        let ignored = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
        let file = "[default]\nendpoint_url = http://file\nservices = s\n[services s]\nsesv2 =\n  endpoint_url = http://file-ours\n";
        let usual = "https://email.eu-west-1.amazonaws.com/";
        let cases: [(Variables, &str, &str); 9] = [
            (&[all], "", "http://all/"),
            (&[all, ours], file, "http://ours:1/x"),
            (&[all], file, "http://all/"),
            (&[], file, "http://file-ours/"),
            (&[], "[default]\nendpoint_url = http://file\n", "http://file/"),
            (&[all, ours, ignored], file, usual),
            (&[("AWS_USE_FIPS_ENDPOINT", "true")], "", "https://email-fips.eu-west-1.amazonaws.com/"),
            (&[], "[default]\nuse_fips_endpoint = true\n", "https://email-fips.eu-west-1.amazonaws.com/"),
            (&[("AWS_USE_DUALSTACK_ENDPOINT", "true")], "", "https://email.eu-west-1.api.aws/"),
        ];
        for (variables, config, expected) in cases {
            assert_eq!(endpoint("eu-west-1", variables, config).as_deref(), Ok(expected), "{variables:?}");
        }
        assert!(endpoint("eu-west-1", &[("AWS_ENDPOINT_URL", "here")], "").is_err());
    }

    #[test]
    fn paths_below() {
        let cases = [
            ("http://h", "/v2/a%40b", "http://h/v2/a%40b"),
            ("http://h/x/", "/v2/a", "http://h/x/v2/a"),
            ("http://h:1/x", "/", "http://h:1/x/"),
        ];
        for (endpoint, path, expected) in cases {
            assert_eq!(below(&Url::parse(endpoint).expect("an address"), path).as_str(), expected);
        }
    }
}
