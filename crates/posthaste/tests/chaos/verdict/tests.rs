//! The comparison has teeth: each case spoils one piece of good evidence and names the count that must notice.

use model::Event;

use super::*;

const fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn id() -> EmailId {
    EmailId::from_parts(at(1_000), [7; 10])
}

/// One email that was at the provider when its process died, and was sent again, marked.
fn evidence() -> Evidence {
    let lost = Event::new(EventKind::LeaseLost, at(50)).with("atProvider", true);
    let events = vec![
        Event::new(EventKind::Enqueued, at(10)),
        Event::new(EventKind::Received, at(20)),
        Event::new(EventKind::SentAttempt, at(30)),
        lost,
        Event::new(EventKind::OutcomeUnknown, at(50)),
        Event::new(EventKind::RetryScheduled, at(50)),
        Event::new(EventKind::Received, at(60)),
        Event::new(EventKind::SentAttempt, at(70)),
        Event::new(EventKind::Sent, at(90)),
    ];
    let stored =
        Stored { status: Status::Sent, attempts: 2, outcome_unknown: true, failure_code: None, events };
    let mut provider = ProviderLedger::default();
    provider.copies.insert(id(), vec![at(40), at(80)]);
    let receipt = Receipt { id: id(), cut_off: 0, garbled: 0, refused: 0, replayed: false };
    Evidence {
        seed: 1,
        faults: 1,
        restarts: vec![at(45)],
        receipts: vec![Some(receipt)],
        provider,
        stored: [(id(), stored)].into(),
    }
}

impl Evidence {
    fn email(&mut self) -> &mut Stored {
        self.stored.get_mut(&id()).expect("the email is there")
    }

    fn copies(&mut self) -> &mut Vec<Timestamp> {
        self.provider.copies.get_mut(&id()).expect("the email was sent")
    }
}

#[test]
fn good_evidence_breaks_no_promise() {
    let verdict = Verdict::of(&evidence());
    assert!(!verdict.breaks_promises(), "{verdict:?}");
    assert_eq!((verdict.dup, verdict.dup_copies, verdict.in_flight), (1, 1, 1));
    assert_eq!((verdict.accepted, verdict.sent, verdict.leases_lost), (1, 1, 1));
    assert_eq!(verdict.resumed_ms_max, 5);
}

type Spoil = fn(&mut Evidence);
type Count = fn(&Verdict) -> usize;

#[test]
fn every_kind_of_bad_evidence_is_noticed() {
    let cases: [(&str, Spoil, Count); 14] = [
        ("an accepted email is gone", |run| run.stored.clear(), |verdict| verdict.lost),
        ("a sent email never arrived", |run| run.copies().clear(), |verdict| verdict.lost),
        ("an email still waits", |run| run.email().status = Status::Enqueued, |verdict| verdict.stuck),
        ("an email was given up", |run| run.email().status = Status::Expired, |verdict| verdict.failed),
        ("a copy before the doubt", |run| run.copies()[1] = at(45), |verdict| verdict.dup_unflagged),
        ("a copy without a mark", |run| run.email().outcome_unknown = false, |verdict| verdict.dup_unflagged),
        ("a third copy", |run| run.copies().push(at(85)), |verdict| verdict.dup_unflagged),
        ("a copy without a call", |run| drop(run.email().events.remove(7)), |verdict| verdict.regressions),
        ("a claim is missing", |run| drop(run.email().events.remove(6)), |verdict| verdict.regressions),
        ("the end is missing", |run| drop(run.email().events.pop()), |verdict| verdict.regressions),
        ("an attempt is not counted", |run| run.email().attempts = 1, |verdict| verdict.regressions),
        ("a client was left alone", |run| run.receipts.push(None), |verdict| verdict.complaints.len()),
        ("one id for two emails", Evidence::answer_twice, |verdict| verdict.complaints.len()),
        ("nobody asked for it", |run| run.receipts.clear(), |verdict| verdict.complaints.len()),
    ];
    for (case, spoil, count) in cases {
        let mut evidence = evidence();
        spoil(&mut evidence);
        let verdict = Verdict::of(&evidence);
        assert!(count(&verdict) > 0 && verdict.breaks_promises(), "{case}: {verdict:?}");
    }
}

impl Evidence {
    fn answer_twice(&mut self) {
        let first = self.receipts[0];
        self.receipts.push(first);
    }
}

#[test]
fn a_quarantined_email_is_counted_apart() {
    let mut evidence = evidence();
    let email = evidence.email();
    email.status = Status::Failed;
    email.failure_code = Some("QUARANTINED".to_owned());
    email.events.truncate(5);
    email.events.push(Event::new(EventKind::Failed, at(50)));
    email.attempts = 1;
    evidence.copies().truncate(1);
    let verdict = Verdict::of(&evidence);
    assert!(!verdict.breaks_promises(), "{verdict:?}");
    assert_eq!((verdict.quarantined, verdict.sent, verdict.lost), (1, 0, 0));
    // Nobody's death explains it.
    evidence.faults = 0;
    assert!(Verdict::of(&evidence).breaks_promises());
}
