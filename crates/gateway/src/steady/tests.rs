//! The rule as tables and as a property. What follows from it for emails is in `emails`.

mod emails;

use proptest::prelude::*;
use testkit::START;

use super::*;

const HOUR: i64 = 3600;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// That many seconds from the start, back or forth.
fn at(secs: i64) -> Timestamp {
    Timestamp::from_millis(START.millis() + secs * 1000)
}

/// A watch that has seen the start.
fn begun() -> Watch {
    let mut watch = Watch::default();
    assert_eq!(watch.tell(START, secs(0)), (START, None), "the first look believes");
    watch
}

#[test]
fn a_clock_that_was_set_by_more_than_an_hour_is_doubted() {
    let cases = [
        // case                 shown       running   told        news
        ("running", 1, 1, 1, None),
        ("a leap second", 0, 1, 0, None),
        ("an hour, not more", HOUR + 1, 1, HOUR + 1, None),
        ("an hour back", 1 - HOUR, 1, 1 - HOUR, None),
        ("25 hours ahead", 25 * HOUR, 1, 1, Some(News::Doubted)),
        ("two hours back", -2 * HOUR, 1, 1, Some(News::Doubted)),
        ("nobody looked for long", 25 * HOUR, 25 * HOUR, 25 * HOUR, None),
        ("back to 1970", -START.millis() / 1000, 1, 1, Some(News::Doubted)),
    ];
    for (case, shown, running, told, news) in cases {
        let mut watch = begun();
        assert_eq!(watch.tell(at(shown), secs(running as u64)), (at(told), news), "{case}");
        assert_eq!(watch.doubt(at(shown)).is_some(), news.is_some(), "{case}");
    }
}

#[test]
fn the_old_time_goes_on_until_the_new_one_is_believed() {
    for jump in [25 * HOUR, -2 * HOUR] {
        let mut watch = begun();
        assert_eq!(watch.tell(at(jump), secs(0)), (START, Some(News::Doubted)));
        for running in 1..600 {
            assert_eq!(watch.tell(at(jump + running), secs(running as u64)), (at(running), None));
        }
        assert_eq!(watch.tell(at(jump + 600), secs(600)), (at(jump + 600), Some(News::Believed)));
        assert_eq!(watch.tell(at(jump + 601), secs(601)), (at(jump + 601), None), "said once");
        assert_eq!((watch.doubt(at(jump + 601)), watch.leapt_at), (None, Some(secs(600))));
    }
}

#[test]
fn a_clock_that_is_put_right_is_believed_at_once() {
    let mut watch = begun();
    watch.tell(at(25 * HOUR), secs(0));
    assert_eq!(watch.tell(at(300), secs(300)), (at(300), Some(News::AgreesAgain)));
    assert_eq!((watch.doubt(at(300)), watch.leapt_at), (None, None), "nothing happened");
}

#[test]
fn a_clock_that_is_set_again_is_doubted_anew() {
    let mut watch = begun();
    watch.tell(at(25 * HOUR), secs(0));
    assert_eq!(watch.tell(at(500 - 2 * HOUR), secs(500)), (at(500), Some(News::Doubted)));
    assert_eq!(watch.tell(at(1099 - 2 * HOUR), secs(1099)), (at(1099), None));
    assert_eq!(watch.tell(at(1100 - 2 * HOUR), secs(1100)), (at(1100 - 2 * HOUR), Some(News::Believed)));
}

#[test]
fn a_clock_that_was_never_set_is_told_of_and_believed_once_it_is() {
    let mut watch = Watch::default();
    let zero = Timestamp::from_millis(0);
    assert_eq!(watch.tell(zero, secs(0)), (zero, Some(News::NeverSet)));
    assert_eq!(watch.tell(zero.plus(secs(1)), secs(1)), (zero.plus(secs(1)), None), "said once");
    assert_eq!(watch.tell(START, secs(2)), (START, Some(News::SetAtLast)));
    assert_eq!(watch.doubt(START), None);
}

#[test]
fn a_clock_that_falls_back_to_1970_is_never_believed() {
    let mut watch = begun();
    let zero = Timestamp::from_millis(0);
    assert_eq!(watch.tell(zero, secs(0)), (START, Some(News::Doubted)));
    for hours in 1..48 {
        let passed = secs(hours * 3600);
        assert_eq!(watch.tell(zero.plus(passed), passed), (START.plus(passed), None), "after {hours} hours");
    }
    assert_eq!(watch.tell(at(48 * HOUR), secs(48 * 3600)), (at(48 * HOUR), Some(News::AgreesAgain)));
}

#[test]
fn looking_often_does_not_slow_the_old_time_down() {
    let mut watch = begun();
    let running = |looks: u64| Duration::from_micros(looks * 300);
    let shown = at(25 * HOUR);
    for looks in 0..100_000 {
        watch.tell(shown.plus(running(looks)), running(looks));
    }
    assert_eq!(watch.tell(shown.plus(secs(30)), secs(30)).0, at(30));
}

#[test]
fn leases_get_time_after_a_leap_also_a_small_one() {
    for (case, shown, leaps) in [("slewed", 9, false), ("stepped by a minute", 60, true), ("back", -60, true)]
    {
        let mut watch = begun();
        watch.tell(at(shown), secs(0));
        assert_eq!(watch.leapt_at.is_some(), leaps, "{case}");
    }
}

/// A step of a machine's life: so much time passes, then perhaps the clock is set by so much.
fn steps() -> impl Strategy<Value = Vec<(u64, i64)>> {
    let set = prop_oneof![3 => Just(0), 1 => -90 * 60..90 * 60_i64, 1 => -30 * 24 * HOUR..30 * 24 * HOUR];
    prop::collection::vec((0..400_u64, set), 1..60)
}

proptest! {
    /// The told time moves with the steady one, but for leaps of up to an hour and to a clock that stayed as it was set
    /// for ten minutes; and after ten minutes without setting it is the clock's.
    #[test]
    fn no_time_is_told_that_was_not_looked_at_for_ten_minutes(steps in steps()) {
        let mut watch = begun();
        let (mut running, mut offset, mut set_at) = (0_u64, 0_i64, 0_u64);
        let mut seen = vec![(0_i64, 0_i64, 0_i64)];
        for (passed, set) in steps {
            running += passed;
            offset += set;
            if set != 0 {
                set_at = running;
            }
            let shown = running as i64 + offset;
            let told = (watch.tell(at(shown), secs(running)).0.millis() - START.millis()) / 1000;
            let (last_running, _, last_told) = *seen.last().expect("the start");
            seen.push((running as i64, shown, told));
            prop_assert!(told == shown || watch.doubted.is_some());
            if (told - last_told - (running as i64 - last_running)).abs() > HOUR {
                let stayed_since = |first: usize| {
                    let (since, was_shown, _) = seen[first];
                    running as i64 - since >= 600
                        && seen[first..].iter().all(|(then, then_shown, _)| {
                            (then_shown - was_shown - (then - since)).abs() <= HOUR
                        })
                };
                prop_assert!((0..seen.len()).any(stayed_since), "believed too soon: {seen:?}");
            }
            if running - set_at >= 600 {
                prop_assert_eq!(told, shown, "not believed: {:?}", seen);
            }
        }
    }
}
