//! Laws of reports: each is carried out once, in whatever order they come, and what follows from it with it.

use model::{
    Address, Bounce, CompanyId, EmailId, EventKind, NewEmail, Report, ReportKind, Status, SuppressionSource,
    Timestamp, Verdict,
};
use serde_json::json;
use testkit::{START, an_address, an_email, at_secs};

use super::stage::{
    a_company, attempted, begun, claim_one, events, hold, in_status, kinds, lost_leases, race, read, sent,
    settle, stored,
};
use crate::consequence::outranks;
use crate::{DeadLetterFilter, RecipientState, ReportArrival, Reported, Settled, Store};

pub const ENDS: [(ReportKind, Status); 5] = [
    (ReportKind::Sent, Status::Sent),
    (ReportKind::Failed, Status::Failed),
    (ReportKind::Delivered, Status::Delivered),
    (ReportKind::Bounced(Bounce::Hard), Status::Bounced),
    (ReportKind::Complained, Status::Complained),
];

/// A report of that kind about an email, by our own id.
pub fn report(id: &str, kind: ReportKind, email: EmailId) -> Report {
    Report {
        id: id.to_owned(),
        kind,
        at: at_secs(5),
        email: Some(email),
        provider_kind: "smtp".into(),
        provider_message_id: None,
        recipients: vec![],
        metadata: serde_json::Map::new(),
    }
}

pub fn arrival(report: Report, now: Timestamp) -> ReportArrival {
    ReportArrival { report, provider: "relay".into(), payload: b"{\"raw\":true}".to_vec(), now }
}

pub async fn reported(store: &dyn Store, report: Report, now: Timestamp) -> Reported {
    store.report(arrival(report, now)).await.expect("a report is answered")
}

async fn a_sent_email(store: &dyn Store, company: CompanyId) -> EmailId {
    in_status(store, company, Status::Sent, START).await
}

/// From every status a report moves the email where the table says, or nowhere; it is an event in any case.
pub async fn a_report_moves_the_email_by_the_table(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for from in super::stage::REACHABLE {
        for (number, (kind, _)) in ENDS.iter().enumerate() {
            let id = in_status(store, company, from, START).await;
            let before = read(store, company, id).await;
            let to = match kind {
                ReportKind::Sent => from.after(model::Move::ReportSent),
                ReportKind::Failed => from.after(model::Move::ReportFailed),
                ReportKind::Delivered => from.after(model::Move::ReportDelivered),
                ReportKind::Complained => from.after(model::Move::ReportComplained),
                _ => from.after(model::Move::ReportBounced),
            };
            let answer = reported(store, report(&format!("{from}-{number}"), *kind, id), at_secs(9)).await;
            let status = to.unwrap_or(from);
            assert_eq!(
                answer,
                Reported::Applied { email: id, company, status, moved: to.is_ok() },
                "{from} {kind:?}"
            );
            let email = read(store, company, id).await;
            assert_eq!(email.status, status, "{from} {kind:?}");
            assert_eq!(email.version, before.version + u64::from(to.is_ok()), "{from} {kind:?}");
            let history = events(store, company, id).await;
            let last = history.last().expect("an event");
            assert_eq!(last.at, at_secs(5), "when it happened");
            assert_eq!(last.metadata["reportId"], format!("{from}-{number}"));
            if to.is_ok() {
                assert_eq!(email.due_at, None, "nothing waits any more");
            }
            // Out of the way of the next one.
            store.cancel(company, id, at_secs(9)).await.expect("answered");
        }
    }
}

/// Times and reasons follow.
pub async fn a_report_leaves_times_and_reasons(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = a_sent_email(store, company).await;
    reported(store, report("r1", ReportKind::Delivered, id), at_secs(9)).await;
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.delivered_at), (Status::Delivered, Some(at_secs(5))));
    let mut bounce = report("r2", ReportKind::Bounced(Bounce::Hard), id);
    bounce.metadata.insert("diagnostic".into(), json!("550 no such user"));
    reported(store, bounce, at_secs(10)).await;
    let email = read(store, company, id).await;
    let failure = email.last_failure.expect("a failure");
    assert_eq!(email.status, Status::Bounced);
    assert_eq!((failure.code.as_str(), failure.reason.as_str()), ("HARD_BOUNCE", "550 no such user"));
    assert_eq!(failure.category, "PERMANENT_ERROR");
    assert_eq!(email.delivered_at, Some(at_secs(5)), "it was delivered before");
}

/// A report that comes again changes nothing, and is no second event.
pub async fn a_repeated_report_changes_nothing(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = a_sent_email(store, company).await;
    reported(store, report("r1", ReportKind::Delivered, id), at_secs(6)).await;
    let before = (read(store, company, id).await, events(store, company, id).await);
    let mut again = report("r1", ReportKind::Delivered, id);
    again.at = at_secs(7);
    assert_eq!(reported(store, again, at_secs(8)).await, Reported::Repeated);
    assert_eq!((read(store, company, id).await, events(store, company, id).await), before);
}

/// Eight deliveries of one report at once are one.
pub async fn a_report_is_carried_out_once_in_a_race(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = a_sent_email(store, company).await;
    let answers =
        race(8, |_| reported(store, report("r1", ReportKind::Bounced(Bounce::Hard), id), at_secs(6)));
    let applied = answers.iter().filter(|answer| matches!(answer, Reported::Applied { .. })).count();
    assert_eq!((applied, answers.len() - applied), (1, 7));
    let bounces = kinds(store, company, id).await;
    assert_eq!(bounces.iter().filter(|kind| **kind == EventKind::Bounced).count(), 1);
}

/// In whatever order they come, and however often, reports end in the status of the highest rank.
pub async fn the_order_of_reports_does_not_matter(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let soft = [
        ReportKind::Bounced(Bounce::Soft),
        ReportKind::Delayed,
        ReportKind::Opened,
        ReportKind::Clicked,
        ReportKind::Other,
    ];
    for seed in 0_usize..40 {
        let id = a_sent_email(store, company).await;
        let chosen: Vec<(ReportKind, Status)> =
            ENDS.into_iter().enumerate().filter(|(n, _)| (seed >> n) & 1 == 1).map(|(_, end)| end).collect();
        let mut all: Vec<ReportKind> = chosen.iter().map(|(kind, _)| *kind).chain(soft).collect();
        let turn = seed % all.len();
        all.rotate_left(turn);
        if seed % 2 == 1 {
            all.reverse();
        }
        for _twice in 0..2 {
            for kind in &all {
                reported(store, report(&format!("{seed}-{kind:?}"), *kind, id), at_secs(9)).await;
            }
        }
        let mut expected = Status::Sent;
        for (_, status) in &chosen {
            if outranks(*status, expected) {
                expected = *status;
            }
        }
        assert_eq!(read(store, company, id).await.status, expected, "{all:?}");
        let reports = events(store, company, id)
            .await
            .iter()
            .filter(|event| event.metadata.contains_key("reportId"))
            .count();
        assert_eq!(reports, all.len(), "each once");
    }
}

/// A report without our id finds the email by the provider's.
pub async fn a_report_finds_its_email_by_the_providers_id(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = a_sent_email(store, company).await;
    let named = |message: &str| Report {
        email: None,
        provider_message_id: Some(message.to_owned()),
        ..report(message, ReportKind::Delivered, id)
    };
    assert!(
        matches!(reported(store, named("relay-1"), at_secs(6)).await, Reported::Applied { email, .. } if email == id)
    );
    assert_eq!(reported(store, named("unheard-of"), at_secs(6)).await, Reported::Unmatched);
}

/// The provider's id is learned from a report, whether the report moves the email or not; that of SES has a place of its
/// own too. What is known stays.
pub async fn a_report_fills_in_the_providers_id(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for (provider_kind, by_ses) in [("ses", true), ("resend", false)] {
        for kind in [ReportKind::Opened, ReportKind::Delivered] {
            let id = stored(store, an_email(company)).await;
            let (provider, message_id) = ("main".to_owned(), None);
            attempted(
                store,
                Verdict::Sent {
                    provider,
                    provider_kind: "smtp",
                    message_id,
                    duration_ms: 1,
                    refused: Vec::new(),
                },
                START,
            )
            .await;
            for (number, told) in [format!("first-{id}"), format!("second-{id}")].iter().enumerate() {
                let told = Report {
                    provider_kind: provider_kind.to_owned(),
                    provider_message_id: Some(told.clone()),
                    ..report(&format!("r{number}-{id}"), kind, id)
                };
                reported(store, told, at_secs(5)).await;
            }
            let (case, known) = (format!("{kind:?} by {provider_kind}"), Some(format!("first-{id}")));
            let email = read(store, company, id).await;
            assert_eq!(email.provider_message_id, known, "{case}");
            assert_eq!(email.ses_message_id, known.filter(|_| by_ses), "{case}");
        }
    }
}

/// A report that comes before its email is known waits for it.
pub async fn an_early_report_is_carried_out_later(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let early = Report {
        email: None,
        provider_message_id: Some("relay-1".into()),
        ..report("r1", ReportKind::Bounced(Bounce::Hard), EmailId::new(START))
    };
    assert_eq!(reported(store, early.clone(), START).await, Reported::Unmatched);
    assert_eq!(reported(store, early, START).await, Reported::Repeated, "kept once");
    assert_eq!(store.rematch(at_secs(1), 10).await, Ok(0));
    let id = a_sent_email(store, company).await;
    assert_eq!(store.rematch(at_secs(7), 10).await, Ok(1));
    assert_eq!(store.rematch(at_secs(8), 10).await, Ok(0), "done");
    assert_eq!(read(store, company, id).await.status, Status::Bounced);
    assert_eq!(store.suppressed(company, &[an_address("ana@example.com")]).await.expect("read").len(), 1);
    let long_ago = at_secs(30 * 24 * 3600);
    let lost = Report {
        email: Some(EmailId::new(START)),
        ..report("r2", ReportKind::Delivered, EmailId::new(START))
    };
    assert_eq!(reported(store, lost, START).await, Reported::Unmatched);
    assert_eq!(store.rematch(long_ago, 10).await, Ok(0), "too old to be looked for");
}

/// Reports from nowhere do not hide one that came a moment early.
pub async fn the_hopeless_hide_nothing(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for number in 0..5 {
        let lost = report(&format!("lost-{number}"), ReportKind::Delivered, EmailId::new(START));
        assert_eq!(reported(store, lost, at_secs(number)).await, Reported::Unmatched);
    }
    let early = Report {
        email: None,
        provider_message_id: Some("relay-1".into()),
        ..report("early", ReportKind::Delivered, EmailId::new(START))
    };
    assert_eq!(reported(store, early, at_secs(6)).await, Reported::Unmatched);
    let id = a_sent_email(store, company).await;
    assert_eq!(store.rematch(at_secs(7), 2).await, Ok(1));
    assert_eq!(read(store, company, id).await.status, Status::Delivered);
}

/// A report may overtake the worker: what the worker says then is late, and nothing moves backwards.
pub async fn a_report_may_overtake_the_worker(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    stored(store, an_email(company)).await;
    let claim = claim_one(store, START).await;
    let guard = begun(store, claim.guard, START).await;
    reported(store, report("r1", ReportKind::Delivered, claim.id()), at_secs(6)).await;
    assert_eq!(settle(store, guard, sent(), at_secs(7)).await, Settled::Late);
    let email = read(store, company, claim.id()).await;
    assert_eq!(email.status, Status::Delivered);
    assert_eq!(email.sent_at, Some(at_secs(5)), "it must have been sent by then");
    assert!(lost_leases(store, at_secs(3_600)).await.is_empty(), "nobody holds it");
    assert_eq!(store.expire(at_secs(3 * 24 * 3_600), 10).await, Ok(0));
}

/// What is held for a report is released by it.
pub async fn a_held_email_is_released_by_a_report(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    attempted(store, hold(), START).await;
    reported(store, report("r1", ReportKind::Sent, id), at_secs(6)).await;
    let email = read(store, company, id).await;
    assert_eq!((email.status, email.sent_at, email.due_at), (Status::Sent, Some(at_secs(5)), None));
    assert!(
        store
            .claim(super::stage::request(super::stage::a_worker(store).await, at_secs(9), 10))
            .await
            .expect("answered")
            .is_empty()
    );
}

/// A dead letter that a report proves wrong is no dead letter any more; one that a report makes is.
pub async fn reports_and_dead_letters(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let dead = async || {
        let filter = DeadLetterFilter::default();
        store.count_dead_letters(company, &filter).await.expect("counted")
    };
    let failed = in_status(store, company, Status::Failed, START).await;
    assert_eq!(dead().await, 1);
    reported(store, report("r1", ReportKind::Delivered, failed), at_secs(6)).await;
    assert_eq!(dead().await, 0);
    let taken = a_sent_email(store, company).await;
    let mut refused = report("r2", ReportKind::Failed, taken);
    refused.metadata.insert("errorCode".into(), json!("SES_REJECTED"));
    reported(store, refused, at_secs(6)).await;
    assert_eq!(dead().await, 1);
    let email = read(store, company, taken).await;
    assert_eq!(email.last_failure.expect("a failure").code, "SES_REJECTED");
    assert!(email.failed_at.is_some() && email.dead_at.is_some());
}

/// The counts of emails by status follow.
pub async fn reports_keep_the_counts(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = a_sent_email(store, company).await;
    reported(store, report("r1", ReportKind::Delivered, id), at_secs(6)).await;
    let stats = store.stats(at_secs(7)).await.expect("read");
    let count = |status| stats.by_status.get(&status).copied().unwrap_or(0);
    assert_eq!((count(Status::Sent), count(Status::Delivered)), (0, 1));
}

/// Where an email went to several, each has a state of its own, and the email shows the worst.
pub async fn each_recipient_has_a_state(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut email = an_email(company);
    email.envelope.cc = vec![an_address("bob@example.com")];
    email.envelope.bcc = vec![an_address("Carol@example.com")];
    let id = stored(store, email).await;
    attempted(store, sent(), START).await;
    let about = |id: &str, kind, address: &str, email| Report {
        recipients: vec![an_address(address)],
        ..report(id, kind, email)
    };
    reported(store, about("r1", ReportKind::Delivered, "ANA@example.com", id), at_secs(6)).await;
    reported(store, about("r2", ReportKind::Bounced(Bounce::Hard), "carol@example.com", id), at_secs(6))
        .await;
    reported(store, about("r3", ReportKind::Delivered, "carol@example.com", id), at_secs(7)).await;
    reported(store, about("r4", ReportKind::Bounced(Bounce::Hard), "stranger@example.com", id), at_secs(7))
        .await;
    reported(store, report("r6", ReportKind::Bounced(Bounce::Hard), id), at_secs(7)).await;
    assert_eq!(read(store, company, id).await.status, Status::Bounced);
    let states = store.recipient_states(company, id).await.expect("read");
    let mut found: Vec<(String, Status, Timestamp)> = states
        .into_iter()
        .map(|RecipientState { address, status, at }| (address.expose().to_ascii_lowercase(), status, at))
        .collect();
    found.sort();
    let expected = [("ana@example.com", Status::Delivered), ("carol@example.com", Status::Bounced)];
    assert_eq!(found, expected.map(|(address, status)| (address.to_owned(), status, at_secs(5))));
    let all =
        ["ana@example.com", "bob@example.com", "carol@example.com", "stranger@example.com"].map(an_address);
    let suppressed = store.suppressed(company, &all).await.expect("read");
    assert_eq!(
        suppressed.iter().map(|found| found.address.expose().to_ascii_lowercase()).collect::<Vec<_>>(),
        ["carol@example.com"]
    );
    let stranger = a_company(store, "stranger").await;
    assert!(store.recipient_states(stranger, id).await.expect("read").is_empty());
    let single = a_sent_email(store, company).await;
    reported(store, report("r5", ReportKind::Delivered, single), at_secs(8)).await;
    assert!(
        store.recipient_states(company, single).await.expect("read").is_empty(),
        "one recipient, one status"
    );
}

/// A hard bounce and a complaint suppress the address; nothing else does.
pub async fn only_hard_bounces_and_complaints_suppress(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let cases = [
        (ReportKind::Bounced(Bounce::Hard), Some(SuppressionSource::Bounce)),
        (ReportKind::Complained, Some(SuppressionSource::Complaint)),
        (ReportKind::Bounced(Bounce::Soft), None),
        (ReportKind::Bounced(Bounce::Unclear), None),
        (ReportKind::Delayed, None),
        (ReportKind::Failed, None),
        (ReportKind::Delivered, None),
        (ReportKind::Other, None),
    ];
    for (number, (kind, source)) in cases.into_iter().enumerate() {
        let address = an_address(&format!("r{number}@example.com"));
        let mut email = an_email(company);
        email.envelope.to = address.clone();
        let id = stored(store, email).await;
        attempted(store, sent(), START).await;
        reported(store, report(&format!("r{number}"), kind, id), at_secs(6)).await;
        let found = store.suppressed(company, &[address]).await.expect("read");
        assert_eq!(
            found.iter().map(|found| found.source).collect::<Vec<_>>(),
            Vec::from_iter(source),
            "{kind:?}"
        );
        assert!(found.iter().all(|found| found.email == Some(id)));
    }
}

/// What came is kept for the operator, and gone when the person is erased.
pub async fn reports_are_kept_as_they_came(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = a_sent_email(store, company).await;
    reported(store, report("r1", ReportKind::Delivered, id), at_secs(6)).await;
    let kept = store.reports(company, id).await.expect("read");
    assert_eq!(kept.len(), 1);
    assert_eq!(
        (kept[0].id.as_str(), kept[0].provider.as_str(), kept[0].received_at),
        ("r1", "relay", at_secs(6))
    );
    assert_eq!(kept[0].payload, b"{\"raw\":true}");
    let stranger = a_company(store, "stranger").await;
    assert!(store.reports(stranger, id).await.expect("read").is_empty());
    assert_eq!(store.last_report("relay").await, Ok(Some(at_secs(6))));
    assert_eq!(store.last_report("other").await, Ok(None));
    store.erase(company, &an_address("ana@example.com"), None, at_secs(8), 10).await.expect("erased");
    assert!(store.reports(company, id).await.expect("read").iter().all(|kept| kept.payload.is_empty()));
}

/// An address of nobody.
pub fn nobody() -> Address {
    an_address("nobody@example.com")
}

/// An email to that address.
pub fn an_email_to(company: CompanyId, address: &str) -> NewEmail {
    let mut email = an_email(company);
    email.envelope.to = an_address(address);
    email
}
