//! Laws of what is known and done about the providers, by all processes together.

use std::time::Duration;

use testkit::{START, at_millis, at_secs};

use super::stage::race;
use crate::{StartsWish, Store};

/// So many of that rate, or fewer.
fn up_to(most: u32, per_sec: u32) -> StartsWish {
    StartsWish { least: 1, most, per_sec }
}

/// A provider is called no more often within a second than it may, whoever asks; others are not affected.
pub async fn starts_keep_the_rate(store: &dyn Store) {
    let mut times = Vec::new();
    for step in 0..60 {
        let now = at_millis(step * 50);
        let taken = store.take_starts("main", up_to(3, 14), now).await.expect("answered");
        times.extend((0..taken).map(|_| now));
    }
    for &from in &times {
        let until = from.plus(Duration::from_secs(1));
        let within = times.iter().filter(|&&at| at >= from && at < until).count();
        assert!(within <= 14, "{within} starts within the second after {from}");
    }
    assert!(times.len() >= 30, "three seconds at fourteen: {} starts", times.len());
    assert_eq!(store.take_starts("other", up_to(3, 14), at_millis(2_950)).await, Ok(3));
}

/// What is wanted is given while there is room, the rest is not, and a pause earns no burst.
pub async fn starts_are_given_while_there_is_room(store: &dyn Store) {
    assert_eq!(store.take_starts("main", up_to(5, 8), START).await, Ok(5));
    assert_eq!(store.take_starts("main", up_to(5, 8), START).await, Ok(3));
    assert_eq!(store.take_starts("main", up_to(5, 8), at_millis(999)).await, Ok(0));
    assert_eq!(store.take_starts("main", up_to(100, 8), at_secs(60)).await, Ok(8));
    assert_eq!(store.take_starts("main", up_to(0, 8), at_secs(120)).await, Ok(0));
    assert_eq!(store.take_starts("main", up_to(4, 10), at_secs(60)).await, Ok(2), "a rate may change");
}

/// Who needs several at once gets them together or gets none; more than the rate allows is had when all of it is free.
pub async fn starts_come_together_or_not_at_all(store: &dyn Store) {
    let several = |least, per_sec| StartsWish { least, most: least, per_sec };
    assert_eq!(store.take_starts("main", several(6, 10), START).await, Ok(6));
    assert_eq!(store.take_starts("main", several(6, 10), at_millis(10)).await, Ok(0));
    assert_eq!(store.take_starts("main", several(4, 10), at_millis(20)).await, Ok(4), "none were wasted");
    assert_eq!(store.take_starts("main", several(11, 5), at_millis(900)).await, Ok(0));
    assert_eq!(store.take_starts("main", several(11, 5), at_secs(9)).await, Ok(5));
}

/// Starts noted by a process whose clock is a little ahead count for the others.
pub async fn a_clock_that_is_ahead_counts(store: &dyn Store) {
    assert_eq!(store.take_starts("main", up_to(10, 10), at_millis(300)).await, Ok(10));
    assert_eq!(store.take_starts("main", up_to(10, 10), START).await, Ok(0));
}

/// Eight askers at once get no more than one would.
pub async fn starts_keep_the_rate_in_a_race(store: &dyn Store) {
    let taken =
        race(8, |_| async { store.take_starts("main", up_to(10, 25), START).await.expect("answered") });
    assert_eq!(taken.iter().sum::<u32>(), 25);
}

/// A note is what was last written; it changes only for who knows its version.
pub async fn a_note_is_changed_by_who_saw_the_last(store: &dyn Store) {
    assert!(store.provider_notes().await.expect("read").is_empty());
    store.take_starts("main", up_to(1, 10), START).await.expect("answered");
    assert!(store.provider_notes().await.expect("read").is_empty(), "starts are no note");
    assert_eq!(store.note_provider("main", 0, "first").await, Ok(true));
    assert_eq!(store.note_provider("main", 0, "another").await, Ok(false));
    assert_eq!(store.note_provider("main", 1, "second").await, Ok(true));
    assert_eq!(store.note_provider("main", 1, "late").await, Ok(false));
    assert_eq!(store.note_provider("relay", 3, "unseen").await, Ok(false));
    assert_eq!(store.note_provider("relay", 0, "other").await, Ok(true));
    let notes = store.provider_notes().await.expect("read");
    let found: Vec<(&str, u64, &str)> =
        notes.iter().map(|note| (note.provider.as_str(), note.version, note.note.as_str())).collect();
    assert_eq!(found, [("main", 2, "second"), ("relay", 1, "other")]);
    assert_eq!(store.take_starts("main", up_to(10, 10), START).await, Ok(9), "a note forgets no start");
}

/// Of many that saw the same note one changes it.
pub async fn a_note_is_changed_once_in_a_race(store: &dyn Store) {
    for seen in 0..3 {
        let answers = race(8, |_| store.note_provider("main", seen, "mine"));
        let won = answers.into_iter().filter(|answer| *answer == Ok(true)).count();
        assert_eq!(won, 1, "version {seen}");
    }
}
