//! Laws of forgetting a person: address, names and content go from everything of the company, the rows and the
//! counts stay, and nobody else is touched.

use std::collections::BTreeMap;

use model::{
    Address, CompanyId, Email, EmailId, NewEmail, Recipient, RecipientId, Secret, Status, Timestamp,
};
use testkit::{START, a_recipient, an_address, an_email, an_email_at, at_secs};

use super::stage::{
    a_company, attempted, backlog, begun, claim_one, claimed_ids, events, fail, in_status, kinds, listed_ids,
    read, recipient_of_id, retry_at, sent, settle, stored,
};
use crate::erasure::LOOKED_AT;
use crate::{EmailFilter, Erased, IntakeVerdict, Settled, Store};

const PERSON: &str = "erase.me@example.com";
const NAME: &str = "Ana Maria de Souza";

/// Finished emails lose address, names and content, and keep id, status, times and history.
pub async fn the_finished_are_forgotten(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for verdict in [sent(), fail("SMTP_REJECTED_550")] {
        let id = stored(store, email_to_the_person(company, START)).await;
        attempted(store, verdict.clone(), START).await;
        let before = (read(store, company, id).await, events(store, company, id).await);
        let erased = erase(store, company, at_secs(60)).await;
        assert_eq!((erased.emails, erased.pending), (1, 0), "{verdict:?}");
        let after = (read(store, company, id).await, events(store, company, id).await);
        assert_forgotten(store, company, &after.0).await;
        let kept = |email: &Email| (email.status, email.attempts, email.created_at, email.sent_at);
        assert_eq!(kept(&after.0), kept(&before.0), "{verdict:?}");
        assert!(after.1.starts_with(&before.1), "{verdict:?}: history stays");
    }
    assert_eq!(listed_ids(store, company, &EmailFilter::default()).await.len(), 2);
}

/// What still waits is withdrawn first: nobody is written to after asking to be forgotten.
pub async fn the_waiting_are_cancelled_first(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let retrying = stored(store, email_to_the_person(company, START)).await;
    attempted(store, retry_at(at_secs(600)), START).await;
    let due = stored(store, email_to_the_person(company, START)).await;
    let delayed =
        stored(store, NewEmail { due_at: at_secs(600), ..email_to_the_person(company, START) }).await;
    let unchecked =
        stored(store, NewEmail { status: Status::Accepted, ..email_to_the_person(company, START) }).await;
    let erased = erase(store, company, at_secs(60)).await;
    assert_eq!((erased.emails, erased.pending), (4, 0));
    for id in [retrying, due, delayed, unchecked] {
        let email = read(store, company, id).await;
        assert_eq!((email.status, email.due_at), (Status::Cancelled, None));
        assert!(kinds(store, company, id).await.contains(&model::EventKind::Cancelled));
        assert_forgotten(store, company, &email).await;
    }
    assert_eq!(claimed_ids(store, at_secs(3_600), 10).await, []);
    assert!(store.awaiting_intake(at_secs(3_600), 10).await.expect("intake").is_empty());
}

/// What is at a provider right now is pending: its result is awaited, and then it is forgotten too.
pub async fn what_is_in_flight_is_pending(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, email_to_the_person(company, START)).await;
    let claim = claim_one(store, START).await;
    let guard = begun(store, claim.guard, START).await;
    let erased = erase(store, company, at_secs(1)).await;
    assert_eq!(erased.pending, 1);
    assert_eq!(read(store, company, id).await.status, Status::Processing);
    assert_eq!(
        settle(store, guard, sent(), at_secs(2)).await,
        Settled::Done(Status::Sent),
        "its result counts"
    );
    let erased = erase(store, company, at_secs(3)).await;
    assert_eq!((erased.emails, erased.pending), (1, 0));
    let email = read(store, company, id).await;
    assert_eq!(email.status, Status::Sent);
    assert_forgotten(store, company, &email).await;
}

/// Who was written to in copy is forgotten as well, and the one it was written to is not.
pub async fn copies_are_forgotten(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut ids = Vec::new();
    for blind in [false, true] {
        let mut email = an_email(company);
        let copies = if blind { &mut email.envelope.bcc } else { &mut email.envelope.cc };
        copies.extend([an_address("bob@example.com"), an_address(PERSON)]);
        ids.push(stored(store, email).await);
        attempted(store, sent(), START).await;
    }
    erase(store, company, at_secs(60)).await;
    for id in ids {
        let email = read(store, company, id).await;
        assert!(!addresses(&email).iter().any(|address| is_the_person(address)), "the copy is still there");
        assert_eq!(email.envelope.to.expose(), "ana@example.com");
        assert!(addresses(&email).iter().any(|address| address.expose() == "bob@example.com"));
    }
}

/// The recipient's record is marked as deleted and holds no address.
pub async fn the_recipient_is_forgotten(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let recipient = recipient_of(store, company, email_to_the_person(company, START)).await;
    let mut bystander = an_email(company);
    bystander.recipient = Some(a_recipient("customer-8"));
    let bystander = recipient_of(store, company, bystander).await;
    let erased = erase(store, company, at_secs(60)).await;
    assert_eq!(erased.recipients, 1);
    if let Some(record) = recipient_of_id(store, company, recipient).await {
        assert!(record.deleted_at.is_some() && !is_the_person(&record.email));
    }
    let record = recipient_of_id(store, company, bystander).await.expect("still known");
    assert_eq!((record.email.expose(), record.deleted_at), ("ana@example.com", None));
}

/// A mailbox is the same person however the address was written.
pub async fn another_spelling_is_the_same_person(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut email = email_to_the_person(company, START);
    email.envelope.to = an_address("Erase.Me@Example.com");
    let id = stored(store, email).await;
    attempted(store, sent(), START).await;
    assert_eq!(erase(store, company, at_secs(60)).await.emails, 1);
    assert_forgotten(store, company, &read(store, company, id).await).await;
}

/// Mail to somebody else that only copies the person, or sends answers to them, is still sent, without their address;
/// and asking again finds nothing more.
pub async fn mail_to_others_goes_out_without_them(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut copied = an_email(company);
    copied.envelope.cc = vec![an_address(PERSON), an_address("bob@example.com")];
    let mut answered = an_email(company);
    answered.envelope.reply_to = Some(model::Mailbox::plain(an_address(PERSON)));
    let (copied, answered) = (stored(store, copied).await, stored(store, answered).await);
    assert_eq!(erase(store, company, at_secs(60)).await.emails, 2);
    let copied = read(store, company, copied).await;
    assert_eq!((copied.status, copied.envelope.cc), (Status::Enqueued, vec![an_address("bob@example.com")]));
    let answered = read(store, company, answered).await;
    assert_eq!((answered.status, answered.envelope.reply_to), (Status::Enqueued, None));
    assert_eq!(erase(store, company, at_secs(60)).await, Erased::default());
}

/// Everybody else keeps everything, and the company keeps its counts.
pub async fn nobody_else_is_touched(store: &dyn Store) {
    let acme = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    let mut bystanders: Vec<(CompanyId, EmailId)> = Vec::new();
    for status in super::stage::REACHABLE {
        bystanders.push((acme, in_status(store, acme, status, START).await));
    }
    let same_person = NewEmail { due_at: at_secs(3_600), ..email_to_the_person(other, START) };
    bystanders.push((other, stored(store, same_person).await));
    stored(store, email_to_the_person(acme, START)).await;
    attempted(store, sent(), START).await;

    let before = everything(store, &bystanders).await;
    let counts = counts(store).await;
    assert_eq!(erase(store, acme, at_secs(60)).await.emails, 1);
    assert_eq!(everything(store, &bystanders).await, before);
    assert_eq!(self::counts(store).await, counts);
}

/// Forgetting goes in small steps, and forgetting again finds nothing.
pub async fn forgetting_goes_in_steps(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut ids = Vec::new();
    for number in 0..25 {
        let email = NewEmail { due_at: at_secs(600), ..email_to_the_person(company, at_secs(number)) };
        ids.push(stored(store, email).await);
    }
    let steps = steps(store, company, at_secs(60), 4).await;
    assert!(steps.iter().all(|step| step.emails <= 4), "{steps:?}");
    assert_eq!(
        (steps.iter().map(|step| step.emails).sum::<u64>(), steps.len() >= 7),
        (25, true),
        "{steps:?}"
    );
    for id in ids {
        assert_forgotten(store, company, &read(store, company, id).await).await;
    }
    let again = erase(store, company, at_secs(61)).await;
    assert_eq!((again.emails, again.recipients, again.pending), (0, 0, 0));
}

/// No step looks at all emails of a company that has many, and none of them is passed over.
pub async fn a_step_looks_at_a_bounded_number(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut copying = Vec::new();
    for number in 0..2 {
        let mut email = an_email_at(company, at_secs(number));
        email.envelope.cc = vec![an_address(PERSON)];
        copying.push(stored(store, email).await);
        if number == 0 {
            backlog(store, company, LOOKED_AT as usize, START).await;
        }
    }
    let steps = steps(store, company, at_secs(60), 100).await;
    let looks: Vec<u64> = steps.iter().map(|step| step.emails).collect();
    assert_eq!(looks, [1, 1], "they are further apart than a step looks");
    for id in copying {
        assert_eq!(read(store, company, id).await.envelope.cc, []);
    }
}

/// An .eml that somebody was just reading cannot bring the person back.
pub async fn an_intake_that_began_before_is_refused(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut email = NewEmail { status: Status::Accepted, ..an_email(company) };
    email.envelope.cc = vec![an_address(PERSON)];
    let envelope = email.envelope.clone();
    let id = stored(store, email).await;
    let item = store.awaiting_intake(START, 1).await.expect("intake").remove(0);
    let begun = store.begin_intake((id, item.version), START).await.expect("a begin").expect("it begins");
    assert_eq!(erase(store, company, at_secs(1)).await.emails, 1);
    let passed = IntakeVerdict::Passed { envelope };
    let ended = store.settle_intake((id, begun.version), passed, vec![], at_secs(2)).await;
    assert_eq!(ended, Ok(false));
    let email = read(store, company, id).await;
    assert_eq!(
        (email.status, email.envelope.cc),
        (Status::Accepted, vec![]),
        "it is checked again as it is now"
    );
}

/// However many are in flight, the others are forgotten in the same go.
pub async fn what_is_in_flight_holds_up_nobody(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for _ in 0..3 {
        stored(store, email_to_the_person(company, START)).await;
    }
    assert_eq!(claimed_ids(store, START, 3).await.len(), 3);
    let waiting = stored(store, email_to_the_person(company, at_secs(1))).await;
    let mut copied = an_email_at(company, at_secs(2));
    copied.envelope.cc = vec![an_address(PERSON)];
    let copied = stored(store, copied).await;
    let steps = steps(store, company, at_secs(3), 2).await;
    let sum = |count: fn(&Erased) -> u64| steps.iter().map(count).sum::<u64>();
    assert_eq!((sum(|step| step.emails), sum(|step| step.pending)), (2, 3), "{steps:?}");
    assert_eq!(read(store, company, waiting).await.status, Status::Cancelled);
    assert_eq!(read(store, company, copied).await.envelope.cc, []);
}

/// Who was forgotten may be written to again, as somebody new.
pub async fn the_forgotten_may_come_back(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    recipient_of(store, company, email_to_the_person(company, START)).await;
    erase(store, company, at_secs(60)).await;
    let recipient = recipient_of(store, company, email_to_the_person(company, at_secs(61))).await;
    let record = recipient_of_id(store, company, recipient).await.expect("known");
    assert_eq!((record.email.expose(), record.deleted_at), (PERSON, None));
    assert_eq!(claimed_ids(store, at_secs(61), 10).await.len(), 1);
}

fn email_to_the_person(company: CompanyId, now: Timestamp) -> NewEmail {
    let mut email = an_email_at(company, now);
    email.envelope.to = an_address(PERSON);
    email.recipient = Some(Recipient {
        name: Some(Secret::new(NAME.into())),
        legal_name: Some(Secret::new(NAME.into())),
        ..a_recipient("customer-7")
    });
    email
}

/// Erases until it is done, and sums up.
async fn erase(store: &dyn Store, company: CompanyId, now: Timestamp) -> Erased {
    let mut total = Erased::default();
    for step in steps(store, company, now, 100).await {
        total.emails += step.emails;
        total.recipients += step.recipients;
        total.pending += step.pending;
    }
    total
}

/// Erases until it is done.
async fn steps(store: &dyn Store, company: CompanyId, now: Timestamp, limit: u32) -> Vec<Erased> {
    let mut steps: Vec<Erased> = Vec::new();
    for _ in 0..100 {
        let after = steps.last().and_then(|step| step.next.as_ref());
        let step = store.erase(company, &an_address(PERSON), after, now, limit).await.expect("a step");
        steps.push(step);
        if steps.last().is_some_and(|step| step.next.is_none()) {
            return steps;
        }
    }
    panic!("erasing does not end");
}

/// No read gives out the person's address, name or content any more, and no filter finds them.
async fn assert_forgotten(store: &dyn Store, company: CompanyId, email: &Email) {
    assert!(!addresses(email).iter().any(|address| is_the_person(address)), "the address is still there");
    if let Some(recipient) = &email.recipient {
        assert_eq!((&recipient.name, &recipient.legal_name), (&None, &None), "the name is still there");
    }
    let content = store.content(company, email.id).await.expect("read");
    assert_eq!(content, None, "the content is still there");
    let filter = EmailFilter { to: Some(an_address(PERSON)), ..EmailFilter::default() };
    assert!(!listed_ids(store, company, &filter).await.contains(&email.id), "the address still finds it");
}

fn addresses(email: &Email) -> Vec<&Address> {
    let envelope = &email.envelope;
    std::iter::once(&envelope.to).chain(&envelope.cc).chain(&envelope.bcc).collect()
}

fn is_the_person(address: &Address) -> bool {
    address.same_mailbox(&an_address(PERSON))
}

async fn recipient_of(store: &dyn Store, company: CompanyId, email: NewEmail) -> RecipientId {
    let id = stored(store, email).await;
    let recipient = read(store, company, id).await.recipient.expect("the email has its recipient");
    recipient.id.expect("the store gave the recipient an id")
}

async fn everything(store: &dyn Store, emails: &[(CompanyId, EmailId)]) -> Vec<String> {
    let mut all = Vec::new();
    for (company, id) in emails {
        let email = read(store, *company, *id).await;
        let to = email.envelope.to.expose().to_owned();
        let content = store.content(*company, *id).await.expect("read");
        all.push(format!("{to} {email:?} {content:?} {:?}", events(store, *company, *id).await));
    }
    all
}

async fn counts(store: &dyn Store) -> BTreeMap<Status, u64> {
    let mut counts = store.stats(at_secs(1)).await.expect("stats").by_status;
    counts.retain(|_, count| *count > 0);
    counts
}

/// An address that ends or begins like the person's, or holds it, is somebody else's.
pub async fn a_similar_address_is_another_person(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    for (number, reply_to) in [
        "joana@example.com",
        "Jo Ana <joana@example.com>",
        "ana@example.com.br",
        "Ana <a@ana@example.com.example>",
    ]
    .into_iter()
    .filter_map(|text| model::Mailbox::parse(text).ok())
    .enumerate()
    {
        let mut email = an_email(company);
        email.envelope.to = an_address(&format!("r{number}@example.org"));
        email.envelope.reply_to = Some(reply_to);
        stored(store, email).await;
    }
    let erased =
        store.erase(company, &an_address("ana@example.com"), None, at_secs(5), 10).await.expect("erased");
    assert_eq!(erased.emails, 0);
}
