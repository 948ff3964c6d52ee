//! Which provider an attempt uses, under which sender, and where the environment lets the email go. Pure: `attempt`
//! brings the company's settings and carries the answer out.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::email::{Outgoing, Wishes};
use model::{
    Address, Category, Claim, CompanySettings, Content, Envelope, ErrorCode, Failure, KeyMode, Mailbox,
    RetryPolicy, Timestamp,
};
use provider::{Provider, SEND_TIMEOUT};

use crate::{CAPTURE, EnvironmentGuard, Gateway, Settings};

/// Addresses at this domain play outcomes; nothing is ever sent there.
pub const SANDBOX_DOMAIN: &str = "posthaste.test";

/// The sender of captured mail that names none.
pub const CAPTURE_SENDER: &str = "no-reply@posthaste.test";

/// The way out for one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The provider's name in the configuration.
    pub provider: String,
    pub from: Mailbox,
    /// Set when the environment sends everything to one address.
    pub redirect_to: Option<Address>,
}

/// The configured providers, by name.
pub type Providers = BTreeMap<String, Arc<dyn Provider>>;

impl Gateway {
    /// Whether this provider keeps mail instead of sending it.
    pub fn captures(&self, provider: &str) -> bool {
        self.providers.get(provider).is_some_and(|provider| provider.kind() == CAPTURE)
    }
}

/// Where an attempt can go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    Go(Route),
    /// All providers it may go through rest.
    Wait,
}

/// The providers an email may go through, in order: the capture mailbox where nothing else is allowed, the one the
/// email asks for, the company's route, or the default route. Those that are not configured are passed over, and where
/// none is left the next list counts.
pub fn ways<'a>(
    settings: &'a Settings,
    providers: &Providers,
    company: &'a CompanySettings,
    mode: KeyMode,
    wishes: &'a Wishes,
    envelope: &Envelope,
) -> Vec<&'a str> {
    if is_captured(&settings.guard, mode, envelope) {
        return vec![CAPTURE];
    }
    let lists =
        [wishes.provider.as_slice(), company.route.as_deref().unwrap_or_default(), &settings.default_route];
    let existing = |list: &'a [String]| -> Vec<&'a str> {
        list.iter().map(String::as_str).filter(|name| providers.contains_key(*name)).collect()
    };
    lists.into_iter().map(existing).find(|ways| !ways.is_empty()).unwrap_or_default()
}

/// The first provider on its way that is open. An email that a provider may have taken goes to that one again or
/// nowhere: another one would surely send a second copy.
pub fn choose(
    settings: &Settings,
    providers: &Providers,
    company: &CompanySettings,
    claim: &Claim,
    is_open: impl Fn(&str) -> bool,
) -> Result<Choice, Failure> {
    let ways = ways(settings, providers, company, claim.mode, &claim.wishes, &claim.envelope);
    if ways.is_empty() {
        return Err(misconfigured(ErrorCode::NO_PROVIDER, "no provider on the email's route exists"));
    }
    let bound_to = claim.last_provider.as_deref().filter(|name| claim.outcome_unknown && ways.contains(name));
    let open = match bound_to {
        Some(provider) => Some(provider).filter(|name| is_open(name)),
        None => ways.into_iter().find(|name| is_open(name)),
    };
    let Some(provider) = open else { return Ok(Choice::Wait) };
    let from = sender(provider, company, &claim.envelope)?;
    let redirect_to = match &settings.guard {
        EnvironmentGuard::Redirect(address) if provider != CAPTURE => Some(address.clone()),
        _ => None,
    };
    Ok(Choice::Go(Route { provider: provider.to_owned(), from, redirect_to }))
}

impl Route {
    /// The email as the provider gets to see it.
    pub fn outgoing(
        &self,
        claim: &Claim,
        content: Content,
        policy: &RetryPolicy,
        now: Timestamp,
    ) -> Outgoing {
        // The wait for the next attempt begins when this one has ended.
        let left = claim.expires_at.since(now).saturating_sub(SEND_TIMEOUT);
        Outgoing {
            id: claim.id(),
            company: claim.company,
            attempt: claim.attempt,
            series: claim.series,
            is_last_attempt: policy.may_be_last(claim.attempt_in_series, left),
            created_at: claim.created_at,
            from: self.from.clone(),
            envelope: self.redirected(claim.envelope.clone()),
            content,
        }
    }

    /// Copies are left out of a redirected email: they would all go to the same address.
    fn redirected(&self, envelope: Envelope) -> Envelope {
        match &self.redirect_to {
            Some(address) => Envelope { to: address.clone(), cc: vec![], bcc: vec![], ..envelope },
            None => envelope,
        }
    }
}

/// Must this email stay in the capture mailbox?
fn is_captured(guard: &EnvironmentGuard, mode: KeyMode, envelope: &Envelope) -> bool {
    if mode == KeyMode::Test || is_at(SANDBOX_DOMAIN, &envelope.to) {
        return true;
    }
    match guard {
        EnvironmentGuard::Open | EnvironmentGuard::Redirect(_) => false,
        EnvironmentGuard::Capture => true,
        EnvironmentGuard::Allow(entries) => {
            let mut everyone = std::iter::once(&envelope.to).chain(&envelope.cc).chain(&envelope.bcc);
            !everyone.all(|address| is_listed(entries, address))
        }
    }
}

fn is_listed(entries: &[String], address: &Address) -> bool {
    entries.iter().any(|entry| match entry.strip_prefix('@') {
        Some(domain) => is_at(domain, address),
        None => address.expose().eq_ignore_ascii_case(entry),
    })
}

fn is_at(domain: &str, address: &Address) -> bool {
    address.domain().eq_ignore_ascii_case(domain)
}

fn sender(provider: &str, company: &CompanySettings, envelope: &Envelope) -> Result<Mailbox, Failure> {
    let named = envelope.from.as_ref().or(company.from.as_ref()).cloned();
    let captured = (provider == CAPTURE).then(|| Mailbox::plain(Address::trusted(CAPTURE_SENDER.to_owned())));
    named.or(captured).ok_or_else(|| {
        misconfigured(ErrorCode::NO_SENDER, "the email names no sender and its company has no default one")
    })
}

fn misconfigured(code: ErrorCode, message: &str) -> Failure {
    Failure {
        code,
        category: Category::Configuration,
        message: message.to_owned(),
        original_code: None,
        retry_after: None,
        refused: None,
    }
}

#[cfg(test)]
mod tests {
    use testkit::{a_company, a_mailbox, an_address};

    use super::*;
    use crate::testing::{FakeProvider, a_claim, settings};

    /// A live email of a company with a sender, where `main`, `second` and `capture` exist and `main` is the default.
    struct Scene {
        settings: Settings,
        company: CompanySettings,
        claim: Claim,
    }

    fn scene() -> Scene {
        let settings = Settings { default_route: vec!["main".into()], ..settings() };
        let company =
            CompanySettings { from: Some(a_mailbox("Acme <hi@acme.com>")), ..CompanySettings::default() };
        let mut claim = a_claim(a_company("acme").id);
        claim.mode = KeyMode::Live;
        Scene { settings, company, claim }
    }

    fn chosen(scene: &Scene) -> Result<Route, String> {
        match chosen_while_resting(scene, &[]) {
            Ok(Choice::Go(route)) => Ok(route),
            Ok(Choice::Wait) => Err("WAIT".into()),
            Err(code) => Err(code),
        }
    }

    fn chosen_while_resting(scene: &Scene, resting: &[&str]) -> Result<Choice, String> {
        let fake = || Arc::new(FakeProvider::takes_everything()) as Arc<dyn Provider>;
        let providers: Providers =
            ["main", "second", CAPTURE].into_iter().map(|name| (name.to_owned(), fake())).collect();
        choose(&scene.settings, &providers, &scene.company, &scene.claim, |name| !resting.contains(&name))
            .map_err(|failure| failure.code.as_str().to_owned())
    }

    type Change = fn(&mut Scene);

    #[test]
    fn the_first_provider_that_exists() {
        let cases: [(&str, Change, Result<&str, &str>); 14] = [
            ("the default route", |_| {}, Ok("main")),
            ("a test key", |scene| scene.claim.mode = KeyMode::Test, Ok(CAPTURE)),
            ("a sandbox address", |scene| scene.to("bounced@posthaste.test"), Ok(CAPTURE)),
            ("the email's wish", |scene| scene.wish("second"), Ok("second")),
            ("a wish that does not exist", |scene| scene.wish("gone"), Ok("main")),
            ("the company's route", |scene| scene.route(&["second", "main"]), Ok("second")),
            ("a route that begins with nothing", |scene| scene.route(&["gone", "second"]), Ok("second")),
            ("no route at all", |scene| scene.settings.default_route.clear(), Err("NO_PROVIDER")),
            ("no sender", |scene| scene.company.from = None, Err("NO_SENDER")),
            ("a guard that captures", |scene| scene.settings.guard = EnvironmentGuard::Capture, Ok(CAPTURE)),
            ("captured against its wish", |scene| scene.capture_wishing("second"), Ok(CAPTURE)),
            ("an address on the list", |scene| scene.allow(&["ANA@example.com"]), Ok("main")),
            ("a domain on the list", |scene| scene.allow(&["@example.com"]), Ok("main")),
            ("not on the list", |scene| scene.allow(&["@example.org", "bob@example.com"]), Ok(CAPTURE)),
        ];
        for (case, change, expected) in cases {
            let mut scene = scene();
            change(&mut scene);
            let provider = chosen(&scene).map(|route| route.provider);
            assert_eq!(provider.as_deref().map_err(String::as_str), expected, "{case}");
        }
    }

    impl Scene {
        fn to(&mut self, address: &str) {
            self.claim.envelope.to = an_address(address);
        }

        fn wish(&mut self, provider: &str) {
            self.claim.wishes.provider = Some(provider.to_owned());
        }

        fn route(&mut self, names: &[&str]) {
            self.company.route = Some(names.iter().map(|name| (*name).to_owned()).collect());
        }

        fn allow(&mut self, entries: &[&str]) {
            let entries = entries.iter().map(|entry| (*entry).to_owned()).collect();
            self.settings.guard = EnvironmentGuard::Allow(entries);
        }

        fn capture_wishing(&mut self, provider: &str) {
            self.settings.guard = EnvironmentGuard::Capture;
            self.wish(provider);
        }
    }

    /// With the provider that takes it, or `None` when it waits.
    #[test]
    fn what_rests_is_passed_over_unless_it_may_have_the_email() {
        fn unknown_at(scene: &mut Scene, provider: &str) {
            scene.claim.outcome_unknown = true;
            scene.claim.last_provider = Some(provider.into());
        }
        let cases: [(&str, Change, &[&str], Option<&str>); 8] = [
            ("the first is open", |scene| scene.route(&["main", "second"]), &["second"], Some("main")),
            ("the first rests", |scene| scene.route(&["main", "second"]), &["main"], Some("second")),
            ("both rest", |scene| scene.route(&["main", "second"]), &["main", "second"], None),
            ("the only one rests", |_| {}, &["main"], None),
            ("its own wish alone counts", |scene| scene.wish("second"), &["second"], None),
            (
                "it may be at the first",
                |scene| {
                    scene.route(&["main", "second"]);
                    unknown_at(scene, "main");
                },
                &["main"],
                None,
            ),
            (
                "it may be at the second",
                |scene| {
                    scene.route(&["main", "second"]);
                    unknown_at(scene, "second");
                },
                &[],
                Some("second"),
            ),
            ("it may be at one that is gone", |scene| unknown_at(scene, "gone"), &[], Some("main")),
        ];
        for (case, change, resting, expected) in cases {
            let mut scene = scene();
            change(&mut scene);
            let choice = chosen_while_resting(&scene, resting).expect(case);
            let provider = match choice {
                Choice::Go(route) => Some(route.provider),
                Choice::Wait => None,
            };
            assert_eq!(provider.as_deref(), expected, "{case}");
        }
    }

    #[test]
    fn one_copy_that_is_not_allowed_captures_the_email() {
        let mut scene = scene();
        scene.allow(&["@example.com"]);
        scene.claim.envelope.bcc = vec![an_address("eve@example.org")];
        assert_eq!(chosen(&scene).map(|route| route.provider), Ok(CAPTURE.into()));
    }

    #[test]
    fn the_sender_is_the_emails_own_then_the_companys() {
        let mut scene = scene();
        let from = |scene: &Scene| chosen(scene).map(|route| route.from.expose());
        assert_eq!(from(&scene), Ok("Acme <hi@acme.com>".into()));
        scene.claim.envelope.from = Some(a_mailbox("shop@acme.com"));
        assert_eq!(from(&scene), Ok("shop@acme.com".into()));
        scene.claim.envelope.from = None;
        scene.company.from = None;
        scene.claim.mode = KeyMode::Test;
        assert_eq!(from(&scene), Ok(CAPTURE_SENDER.into()));
    }

    #[test]
    fn a_redirected_email_reaches_one_address_only() {
        let mut scene = scene();
        scene.settings.guard = EnvironmentGuard::Redirect(an_address("staging@acme.com"));
        scene.claim.envelope.cc = vec![an_address("bob@example.com")];
        scene.claim.envelope.bcc = vec![an_address("eve@example.com")];
        let content = scene.claim.content.clone().expect("content");
        let outgoing = chosen(&scene).expect("a route").outgoing(
            &scene.claim,
            content,
            &RetryPolicy::fast(),
            testkit::START,
        );
        assert_eq!(outgoing.envelope.to.expose(), "staging@acme.com");
        assert!(outgoing.envelope.cc.is_empty() && outgoing.envelope.bcc.is_empty());
    }
}
