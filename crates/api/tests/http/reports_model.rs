//! Thousands of reports, shuffled, repeated and in part forged, over the router: what they leave behind is what a small
//! model computes, and nothing forged is part of it.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use axum::http::Request;
use futures_util::stream::{self, StreamExt as _};
use http_body_util::BodyExt as _;
use model::{CompanyId, EmailId, Status};
use serde_json::{Value, json};
use store::Acceptance;
use testkit::{START, an_address, an_email};
use tower::ServiceExt as _;

use crate::dice::Dice;
use crate::hooks::{Hook, Notice, STRANGE_SECRET, Stage, resend_event, ses_event};

/// What each provider calls it, the event it leaves, how far it moves the email, and whether the address is given up.
type Kind = (&'static str, &'static str, Option<Status>, bool);

const RESEND: [Kind; 8] = [
    ("email.sent", "SEND_REPORTED", None, false),
    ("email.delivered", "DELIVERED", Some(Status::Delivered), false),
    ("email.delivery_delayed", "DELIVERY_DELAYED", None, false),
    ("email.bounced", "BOUNCED", Some(Status::Bounced), true),
    ("email.complained", "COMPLAINED", Some(Status::Complained), true),
    ("email.failed", "FAILED", Some(Status::Failed), false),
    ("email.opened", "OPENED", None, false),
    ("email.clicked", "CLICKED", None, false),
];

const SES: [Kind; 7] = [
    ("Delivery", "DELIVERED", Some(Status::Delivered), false),
    ("Bounce", "BOUNCED", Some(Status::Bounced), true),
    ("Complaint", "COMPLAINED", Some(Status::Complained), true),
    ("Reject", "FAILED", Some(Status::Failed), false),
    ("DeliveryDelay", "DELIVERY_DELAYED", None, false),
    ("Open", "OPENED", None, false),
    ("Click", "CLICKED", None, false),
];

/// An email as the model sees it.
#[derive(Default)]
struct Expected {
    statuses: Vec<Status>,
    events: BTreeMap<&'static str, usize>,
    is_suppressed: bool,
}

impl Expected {
    fn learn(&mut self, (_, event, status, gives_up): Kind) {
        *self.events.entry(event).or_default() += 1;
        self.statuses.extend(status);
        self.is_suppressed |= gives_up;
    }

    /// In whatever order they came.
    fn status(&self) -> Status {
        let worst_first = [Status::Complained, Status::Bounced, Status::Delivered, Status::Failed];
        worst_first.into_iter().find(|status| self.statuses.contains(status)).unwrap_or(Status::Sent)
    }
}

struct Mail {
    company: CompanyId,
    id: EmailId,
    to: String,
}

/// Emails of two companies, each to an address of its own, all taken by a provider.
async fn mails(stage: &Stage, count: usize) -> Vec<Mail> {
    let other = stage.world.company("other").await.id;
    let mut mails = Vec::new();
    for company in [stage.world.shop.id, other] {
        for start in (0..count / 2).step_by(500) {
            let numbers = start..(start + 500).min(count / 2);
            let emails: Vec<_> = numbers
                .map(|number| {
                    let mut email = an_email(company);
                    email.envelope.to = an_address(&format!("r{number}@example.com"));
                    email
                })
                .collect();
            mails.extend(emails.iter().map(|email| Mail {
                company,
                id: email.id,
                to: email.envelope.to.expose().to_owned(),
            }));
            let acceptance = Acceptance { company, emails, key: None, daily_limit: None, now: START };
            stage.world.gateway.store.accept(acceptance).await.expect("accepted");
        }
    }
    assert_eq!(stage.world.deliver_all("post").await, mails.len());
    mails
}

/// One that looks like the worst news of the email, and is not the provider's.
fn forged(stage: &Stage, dice: &mut Dice, number: usize, mail: &Mail) -> Hook {
    let id = format!("forged-{number}");
    let now = stage.now_secs();
    let event = resend_event("email.complained", mail.id, &mail.to);
    let harmless = resend_event("email.opened", mail.id, &mail.to);
    let notice = Notice::of(&id, &ses_event("Complaint", mail.id, &mail.to).to_string());
    match dice.below(8) {
        0 => stage.resend_by(STRANGE_SECRET, &id, &event, now),
        1 => Hook { body: event.to_string(), ..stage.resend(&id, &harmless) },
        2 => stage.resend_by(crate::hooks::SECRET, &id, &event, now - 3600),
        3 => Hook { headers: Vec::new(), ..stage.resend(&id, &event) },
        4 => notice.signed_by(&stage.signers.strange_key),
        5 => Notice { topic: "arn:aws:sns:us-east-1:666666666666:theirs".into(), ..notice }
            .signed_by(&stage.signers.key),
        6 => Notice { certificate_url: "https://evil.example/a.pem".into(), ..notice }
            .signed_by(&stage.signers.strange_key),
        _ => {
            let signed = Notice { message: "{}".into(), ..notice.clone() }.signed_by(&stage.signers.key);
            let mut body: Value = serde_json::from_str(&signed.body).expect("JSON");
            body["Message"] = json!(notice.message);
            Hook { body: body.to_string(), ..signed }
        }
    }
}

/// All webhooks to send, each with whether it is genuine; the model learns of the genuine ones.
fn webhooks(
    stage: &Stage,
    dice: &mut Dice,
    mails: &[Mail],
    count: usize,
    model: &mut [Expected],
) -> (Vec<(Hook, bool)>, usize) {
    let (mut hooks, mut genuine) = (Vec::with_capacity(count), 0);
    while hooks.len() < count {
        let (number, chosen) = (hooks.len(), dice.below(mails.len()));
        let mail = &mails[chosen];
        if dice.one_in(10) {
            hooks.push((forged(stage, dice, number, mail), false));
            continue;
        }
        let id = format!("r-{number}");
        let hook = if dice.one_in(4) {
            let kind = SES[dice.below(SES.len())];
            model[chosen].learn(kind);
            stage.ses(&id, &ses_event(kind.0, mail.id, &mail.to))
        } else {
            let kind = RESEND[dice.below(RESEND.len())];
            model[chosen].learn(kind);
            let mut event = resend_event(kind.0, mail.id, &mail.to);
            // Found by our id or by the provider's.
            let forgotten = if dice.one_in(2) { "tags" } else { "email_id" };
            event["data"].as_object_mut().expect("an object").remove(forgotten);
            stage.resend(&id, &event)
        };
        genuine += 1;
        if dice.one_in(5) {
            hooks.push((hook.clone(), true));
        }
        hooks.push((hook, true));
    }
    dice.shuffle(&mut hooks);
    (hooks, genuine)
}

/// The status and what became of it.
async fn send(stage: &Stage, hook: Hook) -> (u16, String) {
    let mut request = Request::post(&hook.path);
    for (name, value) in &hook.headers {
        request = request.header(*name, value);
    }
    let request = request.body(Body::from(hook.body)).expect("a request");
    let response = stage.world.router.clone().oneshot(request).await.expect("routers cannot fail");
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    let body: Value = serde_json::from_slice(&bytes).expect("JSON");
    (status, body["result"].as_str().unwrap_or_default().to_owned())
}

async fn check(reports: usize, emails: usize, seed: u64) {
    let stage = Stage::new().await;
    let mut dice = Dice(seed);
    let mails = mails(&stage, emails).await;
    let mut model: Vec<Expected> = mails.iter().map(|_| Expected::default()).collect();
    let (hooks, genuine) = webhooks(&stage, &mut dice, &mails, reports, &mut model);
    let forged = hooks.iter().filter(|(_, is_genuine)| !is_genuine).count();
    assert!(forged * 20 > reports && genuine * 2 > reports, "{forged} forged, {genuine} genuine");
    let sender = &stage;
    let answers: Vec<(bool, (u16, String))> = stream::iter(hooks)
        .map(|(hook, is_genuine)| async move { (is_genuine, send(sender, hook).await) })
        .buffer_unordered(32)
        .collect()
        .await;
    let mut applied = 0;
    for (is_genuine, (status, result)) in answers {
        if is_genuine {
            assert!(status == 200 && ["applied", "repeated"].contains(&result.as_str()), "{status} {result}");
        } else {
            assert!(matches!(status, 401 | 403), "seed {seed}: a forged one was answered {status}");
        }
        applied += usize::from(result == "applied");
    }
    assert_eq!(applied, genuine, "seed {seed}: each is applied once");
    compare(&stage, &mails, &model, seed).await;
}

async fn compare(stage: &Stage, mails: &[Mail], model: &[Expected], seed: u64) {
    let store = &stage.world.gateway.store;
    let known: BTreeSet<&str> = RESEND.iter().chain(&SES).map(|(_, event, ..)| *event).collect();
    for (mail, expected) in mails.iter().zip(model) {
        let place = format!("seed {seed}, {}", mail.id);
        let email = store.email(mail.company, mail.id).await.expect("read").expect("there");
        assert_eq!(email.status, expected.status(), "{place}");
        let history = store.events(mail.company, mail.id).await.expect("read").expect("there");
        let mut events: BTreeMap<&str, usize> = BTreeMap::new();
        for event in history.iter().filter(|event| known.contains(event.kind.as_str())) {
            *events.entry(event.kind.as_str()).or_default() += 1;
        }
        assert_eq!(events, expected.events, "{place}");
        let suppressed = store.suppressed(mail.company, &[an_address(&mail.to)]).await.expect("read");
        assert_eq!(!suppressed.is_empty(), expected.is_suppressed, "{place}");
    }
}

/// Ten thousand, or as many as `POSTHASTE_TEST_REPORTS` says; a hundred thousand take a minute. The name begins with
/// `process_` like those of other tests that load the machine: they run one at a time and may take longer.
#[tokio::test]
async fn process_shuffled_reports_end_as_the_model_says() {
    let reports = std::env::var("POSTHASTE_TEST_REPORTS").ok();
    let reports = reports.map_or(10_000, |count| count.parse().expect("POSTHASTE_TEST_REPORTS is a number"));
    check(reports, reports / 10, 11).await;
}
