//! A disk that fills up, for real: a small file system of the test's own. The gateway around it is tested in
//! `posthaste/tests/chaos/full_disk.rs`.

use std::path::Path;
use std::time::Duration;

use model::{CompanyId, Content, EmailId, NewEmail};
use store::contract::stage::{DAY, a_company, acceptance};
use store::{Accepted, Cancelled, Lookup, Outbox, Retention, StoreError, Upkeep};
use store_sqlite::SqliteStore;
use testkit::small_disk::SmallDisk;
use testkit::{START, an_email};

const DISK_MIB: u32 = 64;
/// More than fits.
const EMAILS_MAX: usize = 1_000;
/// How often something is looked at before it is given up, and the pause between two looks.
const LOOKS_MAX: u32 = 400;
const LOOK_PAUSE: Duration = Duration::from_millis(25);

/// About 400 KB that cannot be compressed to less than half.
fn a_large_email(company: CompanyId, seed: u64) -> NewEmail {
    let mut state = seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
    let noise = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_string()
    });
    let html = noise.take(20_000).collect();
    NewEmail { content: Content::Composed { html, text: None, attachments: vec![] }, ..an_email(company) }
}

async fn hand_in(store: &SqliteStore, company: CompanyId, number: usize) -> Result<EmailId, StoreError> {
    let email = a_large_email(company, number as u64 + 1);
    let id = email.id;
    assert_eq!(store.accept(acceptance(vec![email], START)).await?, Accepted::Stored);
    Ok(id)
}

/// Hands emails in until one is refused; that one is refused for want of room.
async fn fill(store: &SqliteStore, company: CompanyId) -> Vec<EmailId> {
    let mut ids = Vec::new();
    while ids.len() < EMAILS_MAX {
        match hand_in(store, company, ids.len()).await {
            Ok(id) => ids.push(id),
            Err(StoreError::Full(_)) => return ids,
            Err(error) => panic!("refused for another reason: {error}"),
        }
    }
    panic!("{EMAILS_MAX} emails fit on a disk of {DISK_MIB} MiB");
}

/// Returns when an email is taken in again.
async fn taken_in_again(store: &SqliteStore, company: CompanyId) -> EmailId {
    for look in 0..LOOKS_MAX {
        match hand_in(store, company, EMAILS_MAX + look as usize).await {
            Ok(id) => return id,
            Err(StoreError::Full(_)) => tokio::time::sleep(LOOK_PAUSE).await,
            Err(error) => panic!("refused for another reason: {error}"),
        }
    }
    panic!("there is room, and nothing is taken in");
}

async fn assert_kept(store: &SqliteStore, company: CompanyId, ids: &[EmailId]) {
    for &id in ids {
        assert!(store.email(company, id).await.expect("read").is_some(), "{id} was accepted and is gone");
    }
}

fn assert_intact(file: &Path) {
    let connection = rusqlite::Connection::open(file).expect("it opens");
    let says: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checked");
    assert_eq!(says, "ok");
}

/// Retention deletes below the reserve, and what it emptied counts as room although the file grows no smaller.
#[tokio::test]
async fn retention_makes_room_again() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let Some(disk) = SmallDisk::mount(folder.path(), DISK_MIB) else { return };
    let store = SqliteStore::open(&disk.path().join("posthaste.db")).await.expect("a new store opens");
    let company = a_company(&store, "acme").await;
    let ids = fill(&store, company).await;
    let room = store.stats(START).await.expect("counted").room.expect("it is minded");
    assert!(room.free_bytes > room.reserve_bytes / 2, "the reserve was not spent on emails: {room:?}");

    for &id in &ids {
        assert_eq!(store.cancel(company, id, START).await, Ok(Cancelled::Done));
    }
    let retention = Retention { content: Duration::ZERO, emails: DAY, dead_letters: DAY };
    let later = START.plus(Duration::from_secs(3600));
    while store.prune(&retention, later, 200).await.expect("there is room to delete").contents > 0 {}
    let again = taken_in_again(&store, company).await;
    assert_kept(&store, company, &ids).await;
    assert_kept(&store, company, &[again]).await;
    store.close().await;
    assert_intact(&disk.path().join("posthaste.db"));
}

/// Somebody else fills the disk to the last byte. Without a reserve SQLite itself has to say so.
#[tokio::test]
async fn a_disk_without_a_byte_refuses_and_heals() {
    for reserve in [Some(0), None] {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let Some(disk) = SmallDisk::mount(folder.path(), DISK_MIB) else { return };
        let file = disk.path().join("posthaste.db");
        let store = SqliteStore::open_with_reserve(&file, reserve).await.expect("a new store opens");
        let company = a_company(&store, "acme").await;
        let before = hand_in(&store, company, 0).await.expect("there is room");

        let filler = disk.fill_up(0);
        let mut kept = fill(&store, company).await;
        let refused = a_large_email(company, 7);
        let id = refused.id;
        let outcome = store.accept(acceptance(vec![refused], START)).await;
        assert!(matches!(outcome, Err(StoreError::Full(_))), "{reserve:?}: {outcome:?}");
        assert!(store.email(company, id).await.expect("read").is_none(), "who is refused is not stored");

        drop(filler);
        kept.extend([before, taken_in_again(&store, company).await]);
        assert_kept(&store, company, &kept).await;
        store.close().await;
        assert_intact(&file);
    }
}
