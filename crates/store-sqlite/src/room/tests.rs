use model::Claim;
use store::contract::stage;
use store::{Accepted, Outbox, Upkeep};
use testkit::{START, an_email};

use super::*;
use crate::SqliteStore;

const GIB: u64 = 1024 * MIB;

#[test]
fn the_reserve_follows_from_the_size_of_the_disk() {
    let cases = [
        // case                                 total           reserve
        ("tiny: a quarter, not all of it", 64 * MIB, 16 * MIB),
        ("small: what a full log needs", 400 * MIB, 64 * MIB),
        ("ordinary: a tenth", 2 * GIB, 2 * GIB / 10),
        ("large: what is needed does not grow", 2_000 * GIB, 512 * MIB),
    ];
    for (case, total, reserve) in cases {
        assert_eq!(reserve_of(total), reserve, "{case}");
    }
}

#[test]
fn the_level_follows_from_what_is_left() {
    use Level::{Enough, Low, Out};
    let cases = [
        // case                                          before  free  reusable level
        ("just enough", Enough, 80, 0, Enough),
        ("a little less", Enough, 79, 0, Low),
        ("empty pages take emails", Enough, 30, 50, Enough),
        ("but not the log", Enough, 19, 1_000, Low),
        ("a result might not fit", Enough, 9, 1_000, Out),
        ("at the very end", Low, 0, 0, Out),
        ("enough to go on is not enough to begin again", Low, 89, 0, Low),
        ("clearly enough", Low, 90, 0, Enough),
        ("clearly enough in the file, not for the log", Low, 29, 1_000, Low),
        ("clearly enough for both", Out, 30, 60, Enough),
        ("from nothing to little", Out, 10, 0, Low),
    ];
    for (case, before, free, reusable, level) in cases {
        assert_eq!(Seen { free, reusable, reserve: 80 }.level(before), level, "{case}");
    }
}

/// Without that the reserve would be gone before the next look, on a machine that is quick enough.
#[test]
fn what_is_accepted_between_two_looks_is_counted() {
    let room = Room::with_reserve(None);
    assert_eq!(room.take(u64::MAX), Ok(()), "nobody has looked yet");
    let cases = [
        // case                              free  reusable  taken, twice the size each, and whether it fits
        ("up to the reserve", 100, 0, vec![(5, true), (4, true), (2, false)]),
        ("whoever is smaller waits as well", 100, 0, vec![(11, false), (1, false)]),
        ("empty pages count", 90, 20, vec![(15, true), (1, false)]),
        ("as far as the log has room", 30, 1_000, vec![(5, true), (1, false)]),
    ];
    for (case, free, reusable, taken) in cases {
        room.note(Seen { free, reusable, reserve: 80 }, Level::Enough, Level::Enough);
        for (bytes, fits) in taken {
            assert_eq!(room.take(bytes).is_ok(), fits, "{case}: {bytes}");
        }
    }
    assert!(room.is_time(), "it is looked again at once");
}

#[test]
fn the_log_is_given_back_only_if_that_helps() {
    let cases = [
        // case                                        free  log  given back
        ("enough anyway", 100, 50, false),
        ("the log is what is missing", 60, 20, true),
        ("short with or without it", 30, 20, false),
        ("the disk is full and the log all there is", 0, 70, false),
    ];
    for (case, free, log, is_given_back) in cases {
        let seen = Seen { free, reusable: 0, reserve: 80 };
        assert_eq!(seen.is_short_for(log, Level::Enough), is_given_back, "{case}");
    }
}

/// A database on this machine's own disk, and stores on it whose reserve is such that they find it at a level.
struct Stage {
    folder: tempfile::TempDir,
    free: u64,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let sizes = statvfs(folder.path()).expect("the disk says how large it is");
        Self { free: sizes.blocks_available() * sizes.fragment_size(), folder }
    }

    async fn store(&self, level: Level) -> SqliteStore {
        let reserve = match level {
            Level::Enough => 0,
            Level::Low => 2 * self.free,
            Level::Out => 32 * self.free,
        };
        let path = self.folder.path().join("posthaste.db");
        SqliteStore::open_with_reserve(&path, Some(reserve)).await.expect("it opens whatever room there is")
    }
}

async fn two_claims(store: &SqliteStore) -> [Claim; 2] {
    stage::claim(store, START, 2).await.try_into().expect("two emails are due")
}

fn is_full<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Full(text)) if text.contains("the reserve is"))
}

#[tokio::test]
async fn below_the_reserve_nothing_is_begun_and_everything_ended() {
    let stage = Stage::new();
    let (ample, low) = (stage.store(Level::Enough).await, stage.store(Level::Low).await);
    let company = stage::a_company(&ample, "acme").await;
    stage::backlog(&ample, company, 3, START).await;
    let [first, second] = two_claims(&ample).await;

    let refused = low.accept(stage::acceptance(vec![an_email(company)], START)).await;
    assert!(is_full(&refused), "{refused:?}");
    assert!(stage::claim(&low, START, 10).await.is_empty(), "no call whose result may find no room");
    let unfit = low.check().await;
    assert!(is_full(&unfit), "{unfit:?}");
    assert_eq!(low.weaknesses().await.expect("read").len(), 1, "doctor says it");

    let begun = stage::begun(&low, first.guard, START).await;
    stage::settle(&low, begun, stage::sent(), START).await;
    let guards = vec![second.guard];
    let until = START.plus(stage::LEASE + stage::LEASE);
    let owner = stage::a_worker(&low).await;
    low.renew(owner, guards, until).await.expect("leases are renewed");

    let accepted = ample.accept(stage::acceptance(vec![an_email(company)], START)).await;
    assert_eq!(accepted, Ok(Accepted::Stored), "with room it goes on");
    assert_eq!(stage::claim(&ample, START, 10).await.len(), 2);
    ample.check().await.expect("with room it is fit for work");
    assert_eq!(ample.weaknesses().await, Ok(vec![]));
}

#[tokio::test]
async fn at_the_end_no_call_begins_and_results_are_still_tried() {
    let stage = Stage::new();
    let (ample, out) = (stage.store(Level::Enough).await, stage.store(Level::Out).await);
    let company = stage::a_company(&ample, "acme").await;
    stage::backlog(&ample, company, 2, START).await;
    let [at_provider, claimed] = two_claims(&ample).await;
    let at_provider = stage::begun(&ample, at_provider.guard, START).await;

    let refused = out.begin(stage::start(claimed.guard, START)).await;
    assert!(is_full(&refused), "{refused:?}");
    stage::settle(&out, at_provider, stage::sent(), START).await;
}

/// Without room no lease can be renewed: that it has run out says nothing of its owner.
#[tokio::test]
async fn leases_are_not_judged_while_they_cannot_be_renewed() {
    let stage = Stage::new();
    let (ample, low) = (stage.store(Level::Enough).await, stage.store(Level::Low).await);
    let company = stage::a_company(&ample, "acme").await;
    stage::backlog(&ample, company, 1, START).await;
    stage::claim_one(&ample, START).await;
    let later = START.plus(stage::HOUR);
    assert_eq!(stage::lost_leases(&low, later).await.len(), 0);
    assert_eq!(stage::lost_leases(&ample, later).await.len(), 1);

    let room = Room::with_reserve(None);
    assert!(room.leases_count());
    let seen = Seen { free: 1, reusable: 0, reserve: 2 };
    room.note(seen, Level::Low, Level::Enough);
    room.note(Seen { free: 9, ..seen }, Level::Enough, Level::Low);
    assert!(room.is_enough() && !room.leases_count(), "those who hold results have a while to record them");
}

/// Whoever cannot see the disk does not refuse work for it.
#[test]
fn a_disk_that_cannot_be_seen_refuses_nothing() {
    let connection = Connection::open_in_memory().expect("opens");
    let room = Room::with_reserve(None);
    room.note(Seen::default(), Level::Low, Level::Enough);
    room.look(&connection, || panic!("there is no log"));
    assert!(room.is_enough());
    assert_eq!(room.left(), None);
}
