//! Laws of recipients: who is named in an email is known from then on, once, by external id or document, with the
//! latest address, and only to their own company.

use model::{CompanyId, NewEmail, Recipient, RecipientId, Secret};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use testkit::{START, a_recipient, an_address, an_email, an_email_at, at_secs};

use super::stage::{a_company, a_key, acceptance, read, recipient_of_id, stored};
use crate::{Acceptance, Accepted, RecipientRecord, Store};

/// A recipient that is named for the first time is created, and the email knows its id.
pub async fn a_named_recipient_is_created(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = send(store, company, a_recipient("customer-7"), "ana@example.com").await;
    let expected = RecipientRecord {
        id,
        email: an_address("ana@example.com"),
        external_id: Some("customer-7".into()),
        deleted_at: None,
    };
    assert_eq!(recipient_of_id(store, company, id).await, Some(expected));
}

/// Several are asked for at once: each that exists is there once, whoever is missing or another company's is not.
pub async fn recipients_are_found_together(store: &dyn Store) {
    let (acme, other) = (a_company(store, "acme").await, a_company(store, "other").await);
    let one = send(store, acme, a_recipient("customer-1"), "one@example.com").await;
    let two = send(store, acme, a_recipient("customer-2"), "two@example.com").await;
    let foreign = send(store, other, a_recipient("customer-1"), "one@example.com").await;
    let asked = [two, foreign, RecipientId::new(START), one];
    let mut found = store.recipients_by_id(acme, &asked).await.expect("recipients are read");
    found.sort_by_key(|record| record.email.expose().to_owned());
    let found: Vec<_> = found.iter().map(|record| (record.id, record.email.expose())).collect();
    assert_eq!(found, [(one, "one@example.com"), (two, "two@example.com")]);
    assert_eq!(store.recipients_by_id(acme, &[]).await.expect("recipients are read"), []);
}

/// An email that names nobody creates nobody.
pub async fn nobody_named_is_nobody_created(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = stored(store, an_email(company)).await;
    assert_eq!(read(store, company, id).await.recipient, None);
}

/// The same external id is the same person, with the address of the latest email.
pub async fn an_external_id_is_one_person(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let first = send(store, company, a_recipient("customer-7"), "old@example.com").await;
    let second = send(store, company, a_recipient("customer-7"), "new@example.com").await;
    let other = send(store, company, a_recipient("customer-8"), "old@example.com").await;
    assert_eq!(first, second);
    assert_ne!(first, other, "the address alone makes nobody the same");
    assert_eq!(address_of(store, company, first).await, "new@example.com");
    assert_eq!(address_of(store, company, other).await, "old@example.com");
}

/// The same document is the same person.
pub async fn a_document_is_one_person(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let by_document = |byte: &str| Recipient { document_hmac: Some(byte.repeat(32)), ..Recipient::default() };
    let first = send(store, company, by_document("5f"), "old@example.com").await;
    let second = send(store, company, by_document("5f"), "new@example.com").await;
    let other = send(store, company, by_document("60"), "other@example.com").await;
    assert_eq!(first, second);
    assert_ne!(first, other);
    assert_eq!(address_of(store, company, first).await, "new@example.com");
}

/// Somebody known by one identifier is known by the other once both were named together.
pub async fn identifiers_are_learned(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let document = Some("5f".repeat(32));
    let both = Recipient { document_hmac: document.clone(), ..a_recipient("customer-7") };
    let first = send(store, company, a_recipient("customer-7"), "one@example.com").await;
    let second = send(store, company, both, "two@example.com").await;
    let by_document = Recipient { document_hmac: document, ..Recipient::default() };
    let third = send(store, company, by_document, "three@example.com").await;
    assert_eq!((first, second), (second, third));
    assert_eq!(address_of(store, company, first).await, "three@example.com");
    let record = recipient_of_id(store, company, first).await.expect("known");
    assert_eq!(record.external_id.as_deref(), Some("customer-7"), "what is not named again is not forgotten");
}

/// The recipient's own id names the recipient and changes nothing about them: an email to another address than
/// theirs is a mistake that the pipeline finds.
pub async fn an_own_id_is_one_person(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let first = send(store, company, a_recipient("customer-7"), "old@example.com").await;
    let by_id = Recipient { id: Some(first), ..Recipient::default() };
    assert_eq!(send(store, company, by_id, "new@example.com").await, first);
    assert_eq!(address_of(store, company, first).await, "old@example.com");
}

/// A batch may name one person many times.
pub async fn a_batch_names_one_person_once(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let emails: Vec<NewEmail> = (0..5)
        .map(|_| NewEmail { recipient: Some(a_recipient("customer-7")), ..an_email(company) })
        .collect();
    let ids: Vec<_> = emails.iter().map(|email| email.id).collect();
    assert_eq!(store.accept(acceptance(emails, START)).await.expect("accept"), Accepted::Stored);
    let mut people = Vec::new();
    for id in ids {
        people.push(read(store, company, id).await.recipient.and_then(|recipient| recipient.id));
    }
    assert!(people[0].is_some());
    assert!(people.iter().all(|person| *person == people[0]), "{people:?}");
}

/// Whoever is named together is known as if the emails had come one by one, under a key or not and whoever was known
/// before: two that share an identifier, or whose identifiers are of one person, are of that person, with the address of
/// the last.
pub async fn a_batch_makes_people_known_in_order(store: &dyn Store) {
    for seed in 0..24 {
        let mut dice = StdRng::seed_from_u64(seed);
        let mut named = |count: usize| -> Vec<(Recipient, String)> {
            let address = |dice: &mut StdRng| format!("r{}@example.com", dice.random_range(0..3));
            (0..count).map(|_| (anybody(&mut dice), address(&mut dice))).collect()
        };
        let (before, now) = (named(2), named(5));
        let mut expected = None;
        for way in ["one by one", "batch", "batch under a key"] {
            let company = a_company(store, &format!("{way} {seed}")).await;
            let emails: Vec<NewEmail> = now.iter().map(|person| an_email_to(company, person)).collect();
            for person in &before {
                stored(store, an_email_to(company, person)).await;
            }
            if way == "one by one" {
                for email in &emails {
                    stored(store, email.clone()).await;
                }
            } else {
                let key = way.ends_with("key").then(|| a_key("k", 1, "{}", START));
                let accepted = store.accept(Acceptance { key, ..acceptance(emails.clone(), START) }).await;
                assert_eq!(accepted.expect("accept"), Accepted::Stored);
            }
            let portrait = portrait(store, company, &emails).await;
            let expected = expected.get_or_insert_with(|| portrait.clone());
            assert_eq!(portrait, *expected, "seed {seed}, {way}: {before:?}, then {now:?}");
        }
    }
}

fn an_email_to(company: CompanyId, (recipient, address): &(Recipient, String)) -> NewEmail {
    let mut email = NewEmail { recipient: Some(recipient.clone()), ..an_email(company) };
    email.envelope.to = an_address(address);
    email
}

/// Somebody known by one of two external ids, one of two documents, or both.
fn anybody(dice: &mut StdRng) -> Recipient {
    let one_of =
        |dice: &mut StdRng, names: [&str; 2]| names.get(dice.random_range(0..3)).map(|&name| name.to_owned());
    loop {
        let external_id = one_of(dice, ["customer-7", "customer-8"]);
        let document_hmac = one_of(dice, ["5f", "60"]).map(|byte| byte.repeat(32));
        if external_id.is_some() || document_hmac.is_some() {
            return Recipient { external_id, document_hmac, ..Recipient::default() };
        }
    }
}

/// For each of the emails, and then for each document alone, who is meant: people by the order in which they appear, with
/// what is known of them.
async fn portrait(
    store: &dyn Store,
    company: CompanyId,
    emails: &[NewEmail],
) -> Vec<(usize, Option<String>, String)> {
    let mut ids = Vec::new();
    for email in emails {
        ids.extend(read(store, company, email.id).await.recipient.and_then(|recipient| recipient.id));
    }
    assert_eq!(ids.len(), emails.len(), "each email knows its recipient");
    let mut people: Vec<RecipientId> = Vec::new();
    let mut portrait = Vec::new();
    for id in &ids {
        if !people.contains(id) {
            people.push(*id);
        }
        let number = people.iter().position(|known| known == id).unwrap_or_default();
        let record = recipient_of_id(store, company, *id).await.expect("the recipient is known");
        portrait.push((number, record.external_id, record.email.expose().to_owned()));
    }
    for document in ["5f", "60"] {
        let by_document = Recipient { document_hmac: Some(document.repeat(32)), ..Recipient::default() };
        let id = send(store, company, by_document, "last@example.com").await;
        let number = people.iter().position(|known| *known == id).unwrap_or(people.len());
        portrait.push((number, None, String::new()));
    }
    portrait
}

/// The same identifiers in two companies are two people.
pub async fn people_belong_to_their_company(store: &dyn Store) {
    let acme = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    let person = || Recipient { document_hmac: Some("5f".repeat(32)), ..a_recipient("customer-7") };
    let ours = send(store, acme, person(), "ours@example.com").await;
    let theirs = send(store, other, person(), "theirs@example.com").await;
    assert_ne!(ours, theirs);
    assert_eq!(address_of(store, acme, ours).await, "ours@example.com");
    assert_eq!(address_of(store, other, theirs).await, "theirs@example.com");
    assert_eq!(recipient_of_id(store, other, ours).await, None);
}

/// Another company's recipient is never touched, not even by its id. Whether such an email is taken or refused is
/// the store's business; the gateway checks before.
pub async fn another_companys_recipient_is_never_touched(store: &dyn Store) {
    let acme = a_company(store, "acme").await;
    let other = a_company(store, "other").await;
    let ours = send(store, acme, a_recipient("customer-7"), "ours@example.com").await;
    let before = recipient_of_id(store, acme, ours).await;
    let mut email = an_email_at(other, at_secs(1));
    email.envelope.to = an_address("theirs@example.com");
    email.recipient = Some(Recipient { id: Some(ours), ..a_recipient("customer-9") });
    drop(store.accept(acceptance(vec![email], at_secs(1))).await);
    assert_eq!(recipient_of_id(store, acme, ours).await, before);
    assert_eq!(recipient_of_id(store, other, ours).await, None);
}

/// Names of a person travel with the email, not in anybody else's.
pub async fn names_stay_with_their_email(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let named = Recipient { name: Some(Secret::new("Ana".into())), ..a_recipient("customer-7") };
    let email = NewEmail { recipient: Some(named), ..an_email(company) };
    let first = stored(store, email).await;
    let email = NewEmail { recipient: Some(a_recipient("customer-7")), ..an_email(company) };
    let second = stored(store, email).await;
    let name_of = |email: model::Email| email.recipient.and_then(|recipient| recipient.name);
    let name = name_of(read(store, company, first).await).map(Secret::into_inner);
    assert_eq!(name.as_deref(), Some("Ana"));
    assert_eq!(name_of(read(store, company, second).await), None, "an email reads back as it was handed in");
}

/// Those that are known come in pages, the latest first; the forgotten are not among them.
pub async fn people_come_in_pages(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let mut expected = Vec::new();
    for number in 0..7 {
        let mut email = an_email_at(company, at_secs(number));
        email.envelope.to = an_address(&format!("r{number}@example.com"));
        email.recipient = Some(a_recipient(&format!("customer-{number}")));
        stored(store, email).await;
        expected.insert(0, format!("r{number}@example.com"));
    }
    store.erase(company, &an_address("r3@example.com"), None, at_secs(9), 10).await.expect("erased");
    expected.retain(|address| address != "r3@example.com");
    let mut after = None;
    let mut found = Vec::new();
    loop {
        let page = store.recipients(company, after.as_ref(), 3).await.expect("read");
        assert!(page.items.len() <= 3);
        found.extend(page.items.iter().map(|record| record.email.expose().to_owned()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, expected);
    let stranger = a_company(store, "stranger").await;
    assert!(store.recipients(stranger, None, 10).await.expect("read").items.is_empty());
}

/// Stores an email to that person at that address; gives back the recipient's id.
async fn send(store: &dyn Store, company: CompanyId, recipient: Recipient, to: &str) -> RecipientId {
    let mut email = an_email(company);
    email.envelope.to = an_address(to);
    email.recipient = Some(recipient);
    let id = stored(store, email).await;
    let recipient = read(store, company, id).await.recipient.expect("the email has its recipient");
    recipient.id.expect("the store gave the recipient an id")
}

async fn address_of(store: &dyn Store, company: CompanyId, id: RecipientId) -> String {
    let record = recipient_of_id(store, company, id).await.expect("the recipient is known");
    record.email.expose().to_owned()
}
