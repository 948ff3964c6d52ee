//! The law of separate companies: to every verb, another company's thing is exactly as a missing one, and asking
//! for it changes nothing.

use model::{CompanyId, EmailId, KeyId, NewEmail, RecipientId, Status};
use testkit::{START, a_recipient, an_address, an_email, at_secs};

use super::stage::{REACHABLE, a_company, events, in_status, listed_ids, read, recipient_of_id, stored};
use crate::{Cancelled, DeadLetterFilter, EmailFilter, Erased, ReplayCount, RetriedNow, Store};

/// Every verb about an email: the answer for another company's email is the answer for no email at all.
pub async fn another_companys_email_is_a_missing_one(store: &dyn Store) {
    let owner = a_company(store, "owner").await;
    let stranger = a_company(store, "stranger").await;
    for status in REACHABLE {
        let id = in_status(store, owner, status, START).await;
        let before = (read(store, owner, id).await, events(store, owner, id).await);
        let foreign = answers(store, stranger, id).await;
        let missing = answers(store, stranger, EmailId::new(START)).await;
        assert_eq!(foreign, missing, "{status}");
        let after = (read(store, owner, id).await, events(store, owner, id).await);
        assert_eq!(before, after, "{status}");
        assert!(store.content(owner, id).await.expect("read").is_some(), "{status}");
    }
    assert_eq!(listed_ids(store, stranger, &EmailFilter::default()).await, []);
}

/// What every verb of a company answers for an id, as text.
async fn answers(store: &dyn Store, company: CompanyId, id: EmailId) -> Vec<String> {
    let now = at_secs(3);
    let only = DeadLetterFilter { ids: Some(vec![id]), ..DeadLetterFilter::default() };
    vec![
        format!("{:?}", store.email(company, id).await),
        format!("{:?}", store.events(company, id).await),
        format!("{:?}", store.content(company, id).await),
        format!("{:?}", store.cancel(company, id, now).await),
        format!("{:?}", store.retry_now(company, id, now).await),
        format!("{:?}", store.dead_letters(company, &only, None, 10).await.map(|page| page.items)),
        format!("{:?}", store.count_dead_letters(company, &only).await),
        format!("{:?}", store.replay(company, &only, now, 10).await),
        format!("{:?}", store.drop_dead_letter(company, id, now).await),
    ]
}

/// The answers for a missing email are the plain ones.
pub async fn a_missing_email_is_plainly_missing(store: &dyn Store) {
    let company = a_company(store, "acme").await;
    let id = EmailId::new(START);
    assert_eq!(store.cancel(company, id, START).await.expect("cancel"), Cancelled::NotFound);
    assert_eq!(store.retry_now(company, id, START).await.expect("retry"), RetriedNow::NotFound);
    assert!(!store.drop_dead_letter(company, id, START).await.expect("drop"));
    let only = DeadLetterFilter { ids: Some(vec![id]), ..DeadLetterFilter::default() };
    assert_eq!(store.replay(company, &only, START, 10).await.expect("replay"), ReplayCount::default());
    assert!(!store.revoke_key(company, KeyId::new(START), START).await.expect("revoke"));
    assert_eq!(recipient_of_id(store, company, RecipientId::new(START)).await, None);
}

/// Dead letters, recipients, keys and people of one company are out of another's reach.
pub async fn another_companys_things_are_out_of_reach(store: &dyn Store) {
    let owner = a_company(store, "owner").await;
    let stranger = a_company(store, "stranger").await;
    let dead = in_status(store, owner, Status::Failed, START).await;
    let email = NewEmail { recipient: Some(a_recipient("person-1")), due_at: at_secs(60), ..an_email(owner) };
    let waiting = stored(store, email).await;
    let recipient = read(store, owner, waiting).await.recipient.and_then(|recipient| recipient.id);
    let recipient = recipient.expect("the store gave the recipient an id");
    let key = testkit::a_key(owner, 7);
    store.add_key(key.clone()).await.expect("key");

    let all = DeadLetterFilter::default();
    let listed = store.dead_letters(stranger, &all, None, 10).await.expect("dead letters");
    assert!(listed.items.is_empty());
    assert_eq!(store.count_dead_letters(stranger, &all).await.expect("count"), 0);
    assert_eq!(store.replay(stranger, &all, START, 10).await.expect("replay"), ReplayCount::default());
    assert_eq!(recipient_of_id(store, stranger, recipient).await, None);
    assert!(store.keys(stranger).await.expect("keys").is_empty());
    assert!(!store.revoke_key(stranger, key.id, START).await.expect("revoke"));
    let address = an_address("ana@example.com");
    let erased = store.erase(stranger, &address, None, START, 100).await.expect("erase");
    assert_eq!(erased, Erased::default());

    assert_eq!(read(store, owner, dead).await.status, Status::Failed);
    let email = read(store, owner, waiting).await;
    assert_eq!((email.status, &email.envelope.to), (Status::Enqueued, &address));
    assert!(recipient_of_id(store, owner, recipient).await.is_some());
    assert_eq!(store.keys(owner).await.expect("keys"), [key]);
}
