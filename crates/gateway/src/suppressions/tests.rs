//! Nobody on the list is written to, whenever they got there.

use std::sync::Arc;

use futures_util::FutureExt;
use model::{EventKind, NewEmail, Status, Suppression, SuppressionSource};
use testkit::{START, an_address, an_email};

use super::*;
use crate::testing::{FakeProvider, Stage, taken};
use crate::worker::run_once;

fn suppression(address: &str) -> Suppression {
    Suppression {
        address: an_address(address),
        reason: "hard bounce".into(),
        source: SuppressionSource::Bounce,
        email: None,
        created_at: START,
    }
}

/// A stage whose provider remembers whom it wrote to.
async fn stage() -> (Stage, Arc<Mutex<Vec<String>>>) {
    let written: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = written.clone();
    let provider = FakeProvider::new(move |email| {
        let mut written = kept.lock().expect("no panic");
        written.extend(recipients(&email.envelope).map(|address| address.expose().to_owned()));
        std::future::ready(taken()).boxed()
    });
    (Stage::with(provider).await, written)
}

#[tokio::test]
async fn an_address_that_was_suppressed_after_acceptance_is_not_written_to() {
    let (stage, written) = stage().await;
    let id = stage.accept(an_email(stage.company.id)).await;
    let store = &stage.gateway.store;
    store.suppress(stage.company.id, vec![suppression("ANA@example.com")]).await.expect("written");
    assert_eq!(run_once(&stage.gateway).await, Ok(1));
    let email = store.email(stage.company.id, id).await.expect("read").expect("there");
    assert_eq!(email.status, Status::Failed);
    assert_eq!(email.last_failure.expect("a failure").code, "RECIPIENT_SUPPRESSED");
    assert!(written.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn copies_to_the_suppressed_are_left_out() {
    let (stage, written) = stage().await;
    let mut email = an_email(stage.company.id);
    email.envelope.cc = vec![an_address("bob@example.com"), an_address("carol@example.com")];
    email.envelope.bcc = vec![an_address("dave@example.com")];
    let id = stage.accept(email).await;
    let listed = ["bob@example.com", "Dave@example.com"].map(suppression).to_vec();
    stage.gateway.store.suppress(stage.company.id, listed).await.expect("written");
    assert_eq!(run_once(&stage.gateway).await, Ok(1));
    assert_eq!(*written.lock().expect("no panic"), ["ana@example.com", "carol@example.com"]);
    let events = stage.gateway.store.events(stage.company.id, id).await.expect("read").expect("there");
    let validated = events.iter().find(|event| event.kind == EventKind::Validated).expect("validated");
    assert_eq!(validated.metadata["copiesLeftOut"], 2);
    assert_eq!(validated.metadata["leftOut"], serde_json::json!(["cc[0]", "bcc[0]"]), "places, not people");
}

#[tokio::test]
async fn another_companys_list_does_not_count() {
    let (stage, written) = stage().await;
    let other = testkit::a_company("other");
    stage.gateway.store.add_company(other.clone()).await.expect("added");
    stage.gateway.store.suppress(other.id, vec![suppression("ana@example.com")]).await.expect("written");
    stage.accept(NewEmail { ..an_email(stage.company.id) }).await;
    assert_eq!(run_once(&stage.gateway).await, Ok(1));
    assert_eq!(*written.lock().expect("no panic"), ["ana@example.com"]);
}

/// Whether a company has any is remembered for a moment; this process knows of its own changes at once.
#[tokio::test(start_paused = true)]
async fn a_change_is_known_in_time() {
    let (stage, _) = stage().await;
    let (store, company) = (&*stage.gateway.store, stage.company.id);
    let list = SuppressionList::default();
    let ana = [an_address("ana@example.com")];
    assert_eq!(list.among(store, company, &ana).await, Ok(vec![]));
    store.suppress(company, vec![suppression("ana@example.com")]).await.expect("written");
    assert_eq!(list.among(store, company, &ana).await, Ok(vec![]), "another process wrote it just now");
    list.changed(company);
    assert_eq!(list.among(store, company, &ana).await, Ok(ana.to_vec()));
    store.lift(company, &ana[0]).await.expect("lifted");
    assert_eq!(list.among(store, company, &ana).await, Ok(vec![]));
    store.suppress(company, vec![suppression("ana@example.com")]).await.expect("written");
    tokio::time::advance(AGE_MAX).await;
    assert_eq!(list.among(store, company, &ana).await, Ok(ana.to_vec()), "a second later everybody knows");
}
