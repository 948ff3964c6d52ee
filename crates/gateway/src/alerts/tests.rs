//! Alerts as the admin gets them: once, in words, and never about an alert.

use std::time::Duration;

use model::{Bounce, CompanyId, EventKind, Mailbox, ReportKind};
use testkit::{a_company, an_address, an_email_at, an_entity};

use super::*;
use crate::sandbox::play;
use crate::sweep::sweep_once;
use crate::testing::{FakeProvider, Stage};
use crate::worker::run_once;

const HARD: ReportKind = ReportKind::Bounced(Bounce::Hard);

async fn stage() -> Stage {
    let mut stage = Stage::with(FakeProvider::takes_everything()).await;
    let mut settings = (*stage.gateway.settings).clone();
    settings.alerts =
        AlertSettings { admin_email: Some(an_address("ops@example.com")), language: Language::English };
    stage.gateway.settings = Arc::new(settings);
    stage
}

/// An email that was sent, and of which this is reported then.
async fn reported(stage: &Stage, email: NewEmail, kind: ReportKind) -> EmailId {
    let id = stage.accept(email).await;
    run_once(&stage.gateway).await.expect("the store works");
    play(&stage.gateway, CAPTURE, id, kind, format!("r-{id}")).await.expect("the store works");
    id
}

fn email(stage: &Stage) -> NewEmail {
    let mut email = an_email_at(stage.company.id, stage.clock_now());
    email.entity = Some(model::Entity { name: Some("Clube Nove".into()), ..an_entity("club-9") });
    email
}

async fn alert_emails(stage: &Stage, company: CompanyId) -> Vec<Email> {
    let filter = EmailFilter { tag: Some(TAG.to_owned()), ..EmailFilter::default() };
    stage.gateway.store.emails(company, &filter, None, 50).await.expect("read").items
}

#[tokio::test]
async fn a_bounce_is_told_once() {
    let stage = stage().await;
    let id = reported(&stage, email(&stage), HARD).await;
    for _ in 0..3 {
        sweep_once(&stage.gateway).await.expect("the store works");
    }
    let told = alert_emails(&stage, stage.company.id).await;
    assert_eq!(told.len(), 1);
    let alert = &told[0];
    assert_eq!(alert.envelope.to, an_address("ops@example.com"));
    assert_eq!(alert.envelope.subject.expose(), "⚠️ Email bounced - Clube Nove");
    assert!(alert.wishes.is_alert);
    let content =
        stage.gateway.store.content(stage.company.id, alert.id).await.expect("read").expect("there");
    let Content::Composed { html, text, .. } = content else { panic!("composed") };
    let text = text.expect("a text");
    for part in ["ana@example.com", &id.to_string(), "no such mailbox", "on the suppression list"] {
        assert!(html.contains(part) && text.contains(part), "{part}: {text}");
    }
    let alerts = stage.gateway.store.alerts(stage.company.id, None, 10).await.expect("read").items;
    assert_eq!(
        alerts.iter().map(|alert| alert.outcome.clone()).collect::<Vec<_>>(),
        [Some(AlertOutcome::Sent(alert.id))]
    );
}

/// Nothing is said of a suppression where there is none.
#[tokio::test]
async fn an_unclear_bounce_claims_no_suppression() {
    let stage = stage().await;
    reported(&stage, email(&stage), ReportKind::Bounced(Bounce::Unclear)).await;
    sweep_once(&stage.gateway).await.expect("the store works");
    let alert = alert_emails(&stage, stage.company.id).await.remove(0);
    let content =
        stage.gateway.store.content(stage.company.id, alert.id).await.expect("read").expect("there");
    let Content::Composed { html, text: Some(text), .. } = content else { panic!("composed with text") };
    assert!(!html.contains("suppression") && !text.contains("suppression"), "{text}");
}

/// Two processes at once make one email of an alert.
#[tokio::test]
async fn two_processes_tell_it_once() {
    let stage = stage().await;
    reported(&stage, email(&stage), HARD).await;
    let pending = stage.gateway.store.pending_alerts(10).await.expect("read");
    let company = Arc::new(stage.company.clone());
    let first = tell(&stage.gateway, &company, &pending[0]).await.expect("told");
    let second = tell(&stage.gateway, &company, &pending[0]).await.expect("told");
    assert_eq!(first, second);
    assert_eq!(alert_emails(&stage, stage.company.id).await.len(), 1);
}

#[tokio::test]
async fn the_companys_own_admin_hears_of_it() {
    let stage = stage().await;
    let mut company = stage.company.clone();
    company.settings.admin_email = Some(an_address("boss@acme.example"));
    stage.gateway.store.update_company(company).await.expect("updated");
    reported(&stage, email(&stage), ReportKind::Complained).await;
    sweep_once(&stage.gateway).await.expect("the store works");
    let told = alert_emails(&stage, stage.company.id).await;
    assert_eq!(told[0].envelope.to, an_address("boss@acme.example"));
    assert_eq!(told[0].envelope.subject.expose(), "🚨 Spam complaint - Clube Nove");
}

#[tokio::test]
async fn with_nobody_to_tell_it_is_shown() {
    let mut stage = stage().await;
    let mut settings = (*stage.gateway.settings).clone();
    settings.alerts.admin_email = None;
    stage.gateway.settings = Arc::new(settings);
    reported(&stage, email(&stage), HARD).await;
    sweep_once(&stage.gateway).await.expect("the store works");
    assert!(alert_emails(&stage, stage.company.id).await.is_empty());
    let alerts = stage.gateway.store.alerts(stage.company.id, None, 10).await.expect("read").items;
    assert!(matches!(&alerts[0].outcome, Some(AlertOutcome::Shown(why)) if why.contains("no admin address")));
}

#[tokio::test]
async fn an_alert_that_bounces_raises_none() {
    let stage = stage().await;
    reported(&stage, email(&stage), HARD).await;
    sweep_once(&stage.gateway).await.expect("the store works");
    let alert = alert_emails(&stage, stage.company.id).await.remove(0);
    run_once(&stage.gateway).await.expect("sent");
    play(&stage.gateway, CAPTURE, alert.id, HARD, "of-the-alert".into()).await.expect("played");
    stage.pass(Duration::from_secs(25 * 3600));
    sweep_once(&stage.gateway).await.expect("the store works");
    assert_eq!(alert_emails(&stage, stage.company.id).await.len(), 1);
}

#[tokio::test]
async fn repeated_failures_list_what_failed() {
    let stage = stage().await;
    for _ in 0..3 {
        let mut one = email(&stage);
        one.entity = None;
        reported(&stage, one, ReportKind::Failed).await;
        stage.pass(Duration::from_secs(3600));
    }
    sweep_once(&stage.gateway).await.expect("the store works");
    let told = alert_emails(&stage, stage.company.id).await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].envelope.subject.expose(), "⚠️ Repeated failures - ana@example.com");
    let content =
        stage.gateway.store.content(stage.company.id, told[0].id).await.expect("read").expect("there");
    let Content::Composed { text: Some(text), .. } = content else { panic!("composed with text") };
    assert_eq!(text.matches("the provider did not send it").count(), 3, "{text}");
}

#[tokio::test]
async fn a_company_may_use_words_of_its_own() {
    let stage = stage().await;
    let own = template::Source {
        subject: "Oops: {{ to }}".into(),
        html: Some("<p>{{ reason }} for {{ company }}</p>".into()),
        ..template::Source::default()
    };
    let source = crate::templates::encode(&own);
    let name = AlertKind::Bounce.as_str();
    stage.gateway.store.put_template(stage.company.id, name, &source, stage.clock_now()).await.expect("put");
    reported(&stage, email(&stage), HARD).await;
    sweep_once(&stage.gateway).await.expect("the store works");
    assert_eq!(
        alert_emails(&stage, stage.company.id).await[0].envelope.subject.expose(),
        "Oops: ana@example.com"
    );
}

/// One with a mistake in it does not keep the alert back.
#[tokio::test]
async fn a_template_that_fails_gives_way_to_ours() {
    let stage = stage().await;
    let own = template::Source {
        subject: "{{ nothing.of.that }}".into(),
        html: Some("<p>x</p>".into()),
        ..template::Source::default()
    };
    let source = crate::templates::encode(&own);
    let name = AlertKind::Bounce.as_str();
    stage.gateway.store.put_template(stage.company.id, name, &source, stage.clock_now()).await.expect("put");
    reported(&stage, email(&stage), HARD).await;
    sweep_once(&stage.gateway).await.expect("the store works");
    let told = alert_emails(&stage, stage.company.id).await;
    assert_eq!(told[0].envelope.subject.expose(), "⚠️ Email bounced - Clube Nove");
}

/// Live mail of a company without a sender cannot be sent, so it is not tried.
#[tokio::test]
async fn without_a_sender_it_is_shown() {
    let mut stage = stage().await;
    let mut providers = (*stage.gateway.providers).clone();
    providers.insert("relay".into(), Arc::new(FakeProvider::takes_everything()));
    stage.gateway.providers = Arc::new(providers);
    let mut company = a_company("senderless");
    company.settings.route = Some(vec!["relay".into()]);
    stage.gateway.store.add_company(company.clone()).await.expect("added");
    stage.company = company.clone();
    let mut one = email(&stage);
    one.mode = KeyMode::Live;
    one.envelope.from = Some(Mailbox::parse("x@acme.example").expect("valid"));
    reported(&stage, one, HARD).await;
    sweep_once(&stage.gateway).await.expect("the store works");
    let alerts = stage.gateway.store.alerts(company.id, None, 10).await.expect("read").items;
    assert!(
        matches!(&alerts[0].outcome, Some(AlertOutcome::Shown(why)) if why.contains("no sender")),
        "{alerts:?}"
    );
}

/// A sandbox address plays the whole story, down to the alert.
#[tokio::test]
async fn the_sandbox_tells_the_whole_story() {
    let mut stage = stage().await;
    let capture: Arc<dyn provider::Provider> = Arc::new(provider_capture::CaptureProvider::default());
    stage.gateway.providers = Arc::new([(CAPTURE.to_owned(), capture)].into());
    let cases = [
        ("delivered@posthaste.test", Status::Delivered, EventKind::Delivered, 0),
        ("bounced@posthaste.test", Status::Bounced, EventKind::Bounced, 1),
        ("complained@posthaste.test", Status::Complained, EventKind::Complained, 2),
    ];
    for (address, status, kind, alerts) in cases {
        let mut one = an_email_at(stage.company.id, stage.clock_now());
        one.envelope.to = an_address(address);
        let id = stage.accept(one).await;
        run_once(&stage.gateway).await.expect("sent");
        assert_eq!(stage.status(id).await, status, "{address}");
        assert_eq!(stage.kinds(id).await.last(), Some(&kind), "{address}");
        sweep_once(&stage.gateway).await.expect("swept");
        assert_eq!(alert_emails(&stage, stage.company.id).await.len(), alerts, "{address}");
        run_once(&stage.gateway).await.expect("the alert is sent");
    }
    let listed =
        ["bounced@posthaste.test", "complained@posthaste.test", "delivered@posthaste.test"].map(an_address);
    assert_eq!(stage.gateway.store.suppressed(stage.company.id, &listed).await.expect("read").len(), 2);
}
