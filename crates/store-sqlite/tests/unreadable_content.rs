//! A claim whose content cannot be read just now: the emails are put back as if nobody had claimed them.
//!
//! The trouble is real. Readers open the file by its name and the writer has it open already; while the file has
//! another name, claims are written and contents cannot be read.

use std::path::Path;
use std::time::Duration;

use model::{EventKind, Status};
use store::contract::stage::{a_company, a_worker, backlog, claim, kinds, read, request};
use store::{Outbox, StoreError, Upkeep};
use store_sqlite::SqliteStore;
use testkit::START;

/// How long emails wait whose content could not be read.
const PAUSE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_claim_without_its_content_is_put_back() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (file, elsewhere) = (folder.path().join("posthaste.db"), folder.path().join("moved.db"));
    let store = SqliteStore::open(&file).await.expect("a new store opens");
    let company = a_company(&store, "acme").await;
    let ids = backlog(&store, company, 3, START).await;
    let worker = a_worker(&store).await;

    rename(&file, &elsewhere);
    let refused = store.claim(request(worker, START, 10)).await.expect_err("the contents cannot be read");
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    rename(&elsewhere, &file);

    let due_at = START.plus(PAUSE);
    for &id in &ids {
        let email = read(&store, company, id).await;
        assert_eq!((email.status, email.attempts, email.due_at), (Status::Enqueued, 0, Some(due_at)));
        let history = [EventKind::Enqueued, EventKind::Received, EventKind::Released];
        assert_eq!(kinds(&store, company, id).await, history);
    }
    let later = START.plus(Duration::from_secs(24 * 3600));
    assert_eq!(store.lost_leases(later, 10).await.expect("answered"), [], "no lease is left behind");
    assert!(claim(&store, START.plus(PAUSE / 2), 10).await.is_empty(), "they wait a moment");

    let claims = claim(&store, due_at, 10).await;
    assert_eq!(claims.len(), ids.len(), "they are claimed when the moment is over");
    for claim in claims {
        assert!(claim.content.is_some(), "with their content");
        assert_eq!((claim.attempt, claim.unfinished_starts), (1, 0), "nothing is held against them");
    }
    store.close().await;
}

fn rename(from: &Path, to: &Path) {
    std::fs::rename(from, to).expect("an open file can be renamed");
}
