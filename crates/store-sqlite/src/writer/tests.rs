//! What becomes of a group when there is no room, or one in it fails: `max_page_count` makes SQLite itself say that it is
//! full.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use model::{CompanyId, Content, EmailId, NewEmail, Status};
use store::contract::stage::{a_company, a_worker, acceptance, backlog, request, stored};
use store::{Accepted, Lookup, Outbox, StoreError, Upkeep};
use testkit::{START, an_email};
use tokio::sync::oneshot;

use super::from_sqlite;
use crate::SqliteStore;
use crate::claim::claim_batch;

/// SQLite's own limit, in pages.
const PAGES_MAX: i64 = 0xffff_fffe;

struct Stage {
    store: SqliteStore,
    company: CompanyId,
    _folder: tempfile::TempDir,
}

async fn stage() -> Stage {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let store = SqliteStore::open(&folder.path().join("posthaste.db")).await.expect("a new store opens");
    let company = a_company(&store, "acme").await;
    stored(&store, an_email(company)).await;
    Stage { store, company, _folder: folder }
}

impl Stage {
    /// From now on the file may grow by this many pages.
    async fn leave_room_for(&self, pages: i64) {
        let limit = move |work: &mut super::Work<'_>| {
            let used: i64 = work.connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
            work.connection.pragma_update_and_check(None, "max_page_count", used + pages, |_| Ok(()))
        };
        self.store.writer.run(move |work| limit(work).map_err(from_sqlite)).await.expect("a limit is set");
    }

    async fn make_room(&self) {
        let limit = |work: &mut super::Work<'_>| {
            work.connection.pragma_update_and_check(None, "max_page_count", PAGES_MAX, |_| Ok(()))
        };
        self.store.writer.run(move |work| limit(work).map_err(from_sqlite)).await.expect("the limit is gone");
    }

    /// Holds the writer up until it is told to go on: what is handed over meanwhile becomes one group.
    async fn hold_up(&self, go_on: oneshot::Receiver<()>) -> Result<(), StoreError> {
        let mut go_on = Some(go_on);
        self.store
            .writer
            .run(move |_| {
                // Not again, should the group be done again.
                if let Some(go_on) = go_on.take() {
                    go_on.blocking_recv().expect("the test tells");
                }
                Ok(())
            })
            .await
    }

    async fn accept(&self, email: NewEmail) -> Result<Accepted, StoreError> {
        self.store.accept(acceptance(vec![email], START)).await
    }

    async fn has(&self, id: EmailId) -> bool {
        self.store.email(self.company, id).await.expect("read").is_some()
    }

    async fn counts(&self) -> BTreeMap<Status, u64> {
        self.store.stats(START).await.expect("stats").by_status
    }
}

/// An email that does not fit into a few pages, compressed or not.
fn a_large_email(company: CompanyId) -> NewEmail {
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let noise = std::iter::repeat_with(|| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_string()
    });
    let html = noise.take(20_000).collect();
    NewEmail { content: Content::Composed { html, text: None, attachments: vec![] }, ..an_email(company) }
}

fn is_full<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Full(_)))
}

#[tokio::test]
async fn a_group_that_finds_no_room_is_refused_whole() {
    let stage = stage().await;
    let (before, large, after) =
        (an_email(stage.company), a_large_email(stage.company), an_email(stage.company));
    let (ids, after_id) = ([before.id, large.id], after.id);
    stage.leave_room_for(8).await;

    let (go_on, told) = oneshot::channel();
    // The futures are polled in this order, so that all work is handed over before the writer goes on.
    let (held, first, second, third, ()) = tokio::join!(
        biased;
        stage.hold_up(told),
        stage.accept(before),
        stage.accept(large),
        stage.accept(after),
        async { go_on.send(()).expect("the writer waits") },
    );

    assert!(is_full(&held), "{held:?}");
    assert!(is_full(&first), "its own work was done, and undone with the rest: {first:?}");
    assert!(is_full(&second), "{second:?}");
    for id in ids {
        assert!(!stage.has(id).await, "who is refused is not stored");
    }
    // What came after belongs to the next group.
    assert_eq!(third, Ok(Accepted::Stored));
    assert!(stage.has(after_id).await, "who is answered is stored");
    assert_eq!(stage.counts().await, BTreeMap::from([(Status::Enqueued, 2)]), "nor counted");

    stage.make_room().await;
    let again = a_large_email(stage.company);
    let id = again.id;
    assert_eq!(stage.accept(again).await, Ok(Accepted::Stored), "there is room again");
    assert!(stage.has(id).await);
    assert_eq!(stage.counts().await, BTreeMap::from([(Status::Enqueued, 3)]));
    stage.store.close().await;
}

/// SQLite undoes some statements alone when they find no room; then the transaction goes on without them.
#[tokio::test]
async fn work_that_alone_finds_no_room_is_undone_alone() {
    let stage = stage().await;
    let (before, after) = (an_email(stage.company), an_email(stage.company));
    let ids = [before.id, after.id];
    stage.leave_room_for(8).await;

    let one_row = "INSERT INTO meta (name, value) VALUES ('row 0', 'fits')";
    let many_rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
                     INSERT INTO meta (name, value) SELECT 'row ' || i, hex(zeroblob(100)) FROM n";
    let (go_on, told) = oneshot::channel();
    let (held, first, greedy, third, ()) = tokio::join!(
        biased;
        stage.hold_up(told),
        stage.accept(before),
        stage.store.writer.run(move |work| {
            work.connection.execute(one_row, []).map_err(from_sqlite)?;
            work.connection.execute(many_rows, []).map_err(from_sqlite)
        }),
        stage.accept(after),
        async { go_on.send(()).expect("the writer waits") },
    );

    assert!(is_full(&greedy), "{greedy:?}");
    assert_eq!((held, first, third), (Ok(()), Ok(Accepted::Stored), Ok(Accepted::Stored)));
    for id in ids {
        assert!(stage.has(id).await, "who is answered is stored");
    }
    let rows = "SELECT count(*) FROM meta WHERE name LIKE 'row %'";
    let left = stage.store.reader.run(move |connection| {
        connection.query_row(rows, [], |row| row.get::<_, i64>(0)).map_err(from_sqlite)
    });
    assert_eq!(left.await, Ok(0), "nothing is left of the work that was refused");
    stage.store.close().await;
}

/// A claim that is done again, since another piece of work in its group failed, has its turn once: companies go on sharing.
#[tokio::test]
async fn a_claim_done_again_takes_its_turn_once() {
    let stage = stage().await;
    let other = a_company(&stage.store, "other").await;
    for company in [stage.company, other] {
        backlog(&stage.store, company, 20, START).await;
    }
    let worker = a_worker(&stage.store).await;
    let mut given: BTreeMap<CompanyId, u32> = BTreeMap::new();
    for _ in 0..10 {
        let (go_on, told) = oneshot::channel();
        let (held, claimed, failed, ()) = tokio::join!(
            biased;
            stage.hold_up(told),
            stage.store.writer.run(move |work| claim_batch(work, &request(worker, START, 1))),
            stage.store.writer.run(|_| Err::<(), _>(StoreError::Broken("on purpose".into()))),
            async { go_on.send(()).expect("the writer waits") },
        );
        assert!(held.is_ok() && failed.is_err(), "{held:?} {failed:?}");
        for (_, claim) in claimed.expect("claimed") {
            *given.entry(claim.company).or_default() += 1;
        }
    }
    assert_eq!(given, BTreeMap::from([(stage.company, 5), (other, 5)]));
    stage.store.close().await;
}

/// Whoever waits behind a crowd of the other kind is done within the next group.
#[tokio::test]
async fn neither_line_holds_up_the_other() {
    for crowd_hands_in in [true, false] {
        let stage = stage().await;
        let writer = &stage.store.writer;
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |who: &'static str| {
            let order = Arc::clone(&order);
            move |_: &mut super::Work<'_>| {
                order.lock().expect("not poisoned").push(who);
                Ok(())
            }
        };
        let (go_on, held_up) = oneshot::channel();
        let crowd = join_all((0..2_000).map(|_| async {
            if crowd_hands_in { writer.take_in(note("crowd")).await } else { writer.run(note("crowd")).await }
        }));
        let alone = async {
            if crowd_hands_in { writer.run(note("alone")).await } else { writer.take_in(note("alone")).await }
        };
        let last = async {
            // All others have joined their lines by now.
            go_on.send(()).expect("the writer waits");
        };
        let (held, crowd, alone, ()) = tokio::join!(stage.hold_up(held_up), crowd, alone, last);
        held.expect("held up");
        alone.expect("done");
        assert!(crowd.into_iter().all(|done| done.is_ok()));
        let order = order.lock().expect("not poisoned");
        let place = order.iter().position(|who| *who == "alone").expect("it was done");
        assert!(place < super::GROUP_MAX, "done after {place} others; the crowd hands in: {crowd_hands_in}");
    }
}
