//! Laws of alerts and repeated failures: written with what caused them, one per subject and window, never about an
//! alert.

use model::email::Wishes;
use model::{
    Alert, AlertKind, AlertOutcome, Bounce, Category, CompanyId, EmailId, Failure, NewEmail, ReportKind,
    Status, Timestamp, Verdict,
};
use testkit::{START, a_failure, an_address, an_email_at, an_entity, at_secs};

use super::feedback::{report, reported};
use super::stage::{a_company, attempted, begun, claim_one, fail, race, read, sent, settle, stored};
use crate::{Settled, Store};

const DAY_SECS: u64 = 24 * 3600;

fn to(company: CompanyId, address: &str, now: Timestamp) -> NewEmail {
    let mut email = an_email_at(company, now);
    email.envelope.to = an_address(address);
    email
}

async fn was_sent(store: &dyn Store, email: NewEmail) -> EmailId {
    let now = email.created_at;
    let id = stored(store, email).await;
    attempted(store, sent(), now).await;
    id
}

async fn pending(store: &dyn Store) -> Vec<Alert> {
    store.pending_alerts(100).await.expect("read")
}

/// An email to the address that is given up at that moment.
async fn given_up(store: &dyn Store, company: CompanyId, address: &str, now: Timestamp) {
    stored(store, to(company, address, now)).await;
    attempted(store, fail("SMTP_REJECTED_550"), now).await;
}

/// A bounce and a complaint raise an alert; what is no end raises none.
pub async fn bounces_and_complaints_raise_alerts(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let cases = [
        (ReportKind::Bounced(Bounce::Hard), Some(AlertKind::Bounce)),
        (ReportKind::Bounced(Bounce::Unclear), Some(AlertKind::Bounce)),
        (ReportKind::Complained, Some(AlertKind::Complaint)),
        (ReportKind::Bounced(Bounce::Soft), None),
        (ReportKind::Delayed, None),
        (ReportKind::Delivered, None),
        (ReportKind::Failed, None),
        (ReportKind::Opened, None),
    ];
    let mut expected = Vec::new();
    for (number, (kind, alert)) in cases.into_iter().enumerate() {
        let id = was_sent(store, to(company, &format!("r{number}@example.com"), START)).await;
        reported(store, report(&format!("r{number}"), kind, id), at_secs(6)).await;
        expected.extend(alert.map(|alert| (alert, id)));
    }
    let raised = pending(store).await;
    assert_eq!(raised.iter().map(|alert| (alert.kind, alert.email)).collect::<Vec<_>>(), expected);
    assert!(
        raised.iter().all(|alert| alert.company == company && alert.outcome.is_none() && alert.repeats == 0)
    );
    assert_eq!(raised[0].subject, "r0@example.com");
    assert_eq!(raised[0].created_at, at_secs(6));
}

/// About one entity, or one address where there is no entity, there is one alert per kind and window.
pub async fn one_alert_per_subject_and_window(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let bounce = ReportKind::Bounced(Bounce::Hard);
    for number in 0..5 {
        let email = NewEmail {
            entity: Some(an_entity("club-9")),
            ..to(company, &format!("r{number}@example.com"), START)
        };
        let id = was_sent(store, email).await;
        reported(store, report(&format!("bounce-{number}"), bounce, id), at_secs(6)).await;
    }
    let raised = pending(store).await;
    assert_eq!(
        raised.iter().map(|alert| (alert.subject.as_str(), alert.repeats)).collect::<Vec<_>>(),
        [("club-9", 4)]
    );
    let later = at_secs(DAY_SECS + 10);
    let email = NewEmail { entity: Some(an_entity("club-9")), ..to(company, "x@example.com", later) };
    let id = was_sent(store, email).await;
    reported(store, report("complaint", ReportKind::Complained, id), later).await;
    reported(store, report("bounce-next-day", bounce, id), later).await;
    assert_eq!(pending(store).await.len(), 3, "another kind, and another window");
}

/// Eight bounces at once about one subject are one alert.
pub async fn one_alert_in_a_race(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut ids = Vec::new();
    for number in 0..8 {
        let email = NewEmail {
            entity: Some(an_entity("club-9")),
            ..to(company, &format!("r{number}@example.com"), START)
        };
        ids.push(was_sent(store, email).await);
    }
    race(8, |task| {
        let kind = ReportKind::Bounced(Bounce::Hard);
        reported(store, report(&format!("r{task}"), kind, ids[task]), at_secs(6))
    });
    let raised = pending(store).await;
    assert_eq!(raised.iter().map(|alert| alert.repeats).collect::<Vec<_>>(), [7]);
}

/// An alert that bounces raises no alert, and counts against nobody.
pub async fn an_alert_raises_no_alert(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let wishes = Wishes { is_alert: true, ..Wishes::default() };
    for number in 0..4 {
        let email = NewEmail { wishes: wishes.clone(), ..to(company, "admin@example.com", START) };
        let id = was_sent(store, email).await;
        reported(store, report(&format!("r{number}"), ReportKind::Bounced(Bounce::Hard), id), at_secs(6))
            .await;
        let email = NewEmail { wishes: wishes.clone(), ..to(company, "admin@example.com", START) };
        stored(store, email).await;
        attempted(store, fail("SMTP_REJECTED_550"), START).await;
    }
    assert!(pending(store).await.is_empty());
    assert!(store.problems(company, None, 10).await.expect("read").items.is_empty());
    assert_eq!(store.suppressed(company, &[an_address("admin@example.com")]).await.expect("read").len(), 1);
}

/// Three failures of an address within seven days, of whatever sort, make it a problem and raise one alert.
pub async fn repeated_failures_make_a_problem(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    given_up(store, company, "ana@example.com", at_secs(10)).await;
    given_up(store, company, "ANA@example.com", at_secs(20)).await;
    given_up(store, company, "bob@example.com", at_secs(30)).await;
    assert!(store.problems(company, None, 10).await.expect("read").items.is_empty());
    assert!(pending(store).await.is_empty());
    let id = was_sent(store, to(company, "ana@example.com", at_secs(40))).await;
    reported(store, report("r1", ReportKind::Bounced(Bounce::Unclear), id), at_secs(50)).await;
    let problems = store.problems(company, None, 10).await.expect("read").items;
    let found: Vec<(String, u32, Timestamp, &str)> = problems
        .iter()
        .map(|found| {
            (
                found.address.expose().to_ascii_lowercase(),
                found.failures,
                found.last_failure_at,
                found.last_failure_code.as_str(),
            )
        })
        .collect();
    assert_eq!(found, [("ana@example.com".to_owned(), 3, at_secs(50), "BOUNCED")]);
    let raised: Vec<Alert> =
        pending(store).await.into_iter().filter(|alert| alert.kind == AlertKind::RepeatedFailures).collect();
    assert_eq!(
        raised.iter().map(|alert| (alert.subject.as_str(), alert.email)).collect::<Vec<_>>(),
        [("ana@example.com", id)]
    );
    given_up(store, company, "ana@example.com", at_secs(60)).await;
    let problems = store.problems(company, None, 10).await.expect("read").items;
    assert_eq!((problems[0].failures, problems[0].since), (4, at_secs(50)), "a problem since the third");
    let stranger = a_company(store, "stranger").await;
    assert!(store.problems(stranger, None, 10).await.expect("read").items.is_empty());
}

/// What we refused ourselves, and what is wrong with the set-up, says nothing of an address.
pub async fn our_own_refusals_do_not_count(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for category in [Category::Validation, Category::Configuration] {
        for second in 0..3 {
            stored(store, to(company, "ana@example.com", at_secs(second))).await;
            let failure = Failure { category, ..a_failure("RECIPIENT_SUPPRESSED") };
            attempted(store, Verdict::Fail { failure, outcome_unknown: false }, at_secs(second)).await;
        }
    }
    assert!(store.problems(company, None, 10).await.expect("read").items.is_empty());
    assert!(pending(store).await.is_empty());
}

/// A failure counts for whom the provider refused, a copy too, and where it did not say, for nobody of several.
pub async fn a_failure_counts_for_whom_was_refused(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for (round, refused) in [None, Some("BOB@example.com")].into_iter().enumerate() {
        for number in 0..3 {
            let now = at_secs(round as u64 * 10 + number);
            let mut email = to(company, "ana@example.com", now);
            email.envelope.cc = vec![an_address("carol@example.com")];
            email.envelope.bcc = vec![an_address("bob@example.com")];
            stored(store, email).await;
            let refused = refused.map(|address| Box::new(an_address(address)));
            let failure = Failure { refused, ..a_failure("SMTP_REJECTED_550") };
            attempted(store, Verdict::Fail { failure, outcome_unknown: false }, now).await;
        }
        let problems = store.problems(company, None, 10).await.expect("read").items;
        let found: Vec<&str> = problems.iter().map(|found| found.address.expose()).collect();
        let expected: &[&str] = if refused.is_some() { &["bob@example.com"] } else { &[] };
        assert_eq!(found, expected, "{refused:?}");
    }
    let subjects: Vec<String> = pending(store).await.into_iter().map(|alert| alert.subject).collect();
    assert_eq!(subjects, ["bob@example.com"]);
}

/// The provider took the email and refused a copy of it: the email is sent, and the copy's failure counts and is seen, once
/// however often the worker tells.
pub async fn a_refused_copy_counts_while_the_email_is_sent(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for number in 0..3 {
        let now = at_secs(number);
        let mut email = to(company, "ana@example.com", now);
        email.envelope.cc = vec![an_address("carol@example.com")];
        email.envelope.bcc = vec![an_address("bob@example.com")];
        let id = stored(store, email).await;
        let refused = Some(Box::new(an_address("BOB@example.com")));
        let failure = Failure { refused, ..a_failure("SMTP_REJECTED_550") };
        let Verdict::Sent { provider, provider_kind, message_id, duration_ms, .. } = sent() else {
            unreachable!()
        };
        let refused = vec![failure];
        let verdict = Verdict::Sent { provider, provider_kind, message_id, duration_ms, refused };
        let claim = claim_one(store, now).await;
        let guard = begun(store, claim.guard, now).await;
        for _ in 0..2 {
            let settled = settle(store, guard, verdict.clone(), now).await;
            assert_eq!(settled, Settled::Done(Status::Sent));
        }
        let states = store.recipient_states(company, id).await.expect("read");
        let told: Vec<(&str, Status)> =
            states.iter().map(|state| (state.address.expose(), state.status)).collect();
        assert_eq!(told, [("bob@example.com", Status::Failed)], "as the email names it");
        let email = read(store, company, id).await;
        assert_eq!((email.status, email.last_failure), (Status::Sent, None), "nothing of it is the email's");
    }
    let problems = store.problems(company, None, 10).await.expect("read").items;
    let found: Vec<(&str, u32)> =
        problems.iter().map(|found| (found.address.expose(), found.failures)).collect();
    assert_eq!(found, [("bob@example.com", 3)]);
    let subjects: Vec<String> = pending(store).await.into_iter().map(|alert| alert.subject).collect();
    assert_eq!(subjects, ["bob@example.com"]);
}

/// What was more than seven days ago does not count.
pub async fn old_failures_do_not_count(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for day in [0, 1, 8, 9] {
        given_up(store, company, "ana@example.com", at_secs(day * DAY_SECS)).await;
    }
    assert!(store.problems(company, None, 10).await.expect("read").items.is_empty());
    given_up(store, company, "ana@example.com", at_secs(9 * DAY_SECS + 60)).await;
    assert_eq!(store.problems(company, None, 10).await.expect("read").items[0].failures, 3);
}

/// A problem that was cleared begins anew.
pub async fn a_problem_is_cleared(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for second in 0..3 {
        given_up(store, company, "ana@example.com", at_secs(second)).await;
    }
    assert_eq!(store.clear_problem(company, &an_address("Ana@example.com")).await, Ok(true));
    assert_eq!(store.clear_problem(company, &an_address("ana@example.com")).await, Ok(false));
    given_up(store, company, "ana@example.com", at_secs(10)).await;
    assert!(store.problems(company, None, 10).await.expect("read").items.is_empty(), "one failure is none");
}

/// Problems and alerts come in pages, newest first.
pub async fn alerts_and_problems_come_in_pages(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for number in 0..5 {
        for second in 0..3 {
            given_up(store, company, &format!("r{number}@example.com"), at_secs(number * 10 + second)).await;
        }
    }
    let expected: Vec<String> = (0..5).rev().map(|number| format!("r{number}@example.com")).collect();
    let mut after = None;
    let mut problems = Vec::new();
    let mut alerts = Vec::new();
    loop {
        let page = store.problems(company, after.as_ref(), 2).await.expect("read");
        problems.extend(page.items.iter().map(|found| found.address.expose().to_owned()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    loop {
        let page = store.alerts(company, after.as_ref(), 2).await.expect("read");
        alerts.extend(page.items.iter().map(|alert| alert.subject.clone()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((problems, alerts), (expected.clone(), expected));
}

/// An alert is seen to once.
pub async fn an_alert_ends_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for second in 0..3 {
        given_up(store, company, "ana@example.com", at_secs(second)).await;
        given_up(store, company, "bob@example.com", at_secs(second)).await;
    }
    let raised = pending(store).await;
    assert_eq!(raised.len(), 2);
    let email = EmailId::new(at_secs(5));
    let outcomes = [AlertOutcome::Sent(email), AlertOutcome::Shown("no admin address".into())];
    for (alert, outcome) in raised.iter().zip(&outcomes) {
        assert_eq!(store.end_alert(alert.id, outcome.clone()).await, Ok(true));
        assert_eq!(store.end_alert(alert.id, AlertOutcome::Shown("late".into())).await, Ok(false));
    }
    assert!(pending(store).await.is_empty());
    let mut ended: Vec<Option<AlertOutcome>> = store
        .alerts(company, None, 10)
        .await
        .expect("read")
        .items
        .into_iter()
        .map(|alert| alert.outcome)
        .collect();
    ended.reverse();
    assert_eq!(ended, outcomes.map(Some));
    let one_more = was_sent(store, to(company, "ana@example.com", at_secs(6))).await;
    assert_eq!(super::stage::read(store, company, one_more).await.status, Status::Sent);
}

/// Whoever is erased is not named in problems and alerts.
pub async fn the_erased_are_in_no_alert(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for second in 0..3 {
        given_up(store, company, "ana@example.com", at_secs(second)).await;
    }
    store.erase(company, &an_address("ana@example.com"), None, at_secs(9), 10).await.expect("erased");
    assert!(store.problems(company, None, 10).await.expect("read").items.is_empty());
    assert!(store.alerts(company, None, 10).await.expect("read").items.is_empty());
}
