use provider::Quota;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

fn secs(secs: u64) -> Timestamp {
    NOW.plus(Duration::from_secs(secs))
}

fn account(rate: f64, sent: f64, may_send: bool) -> Account {
    let quota = Some(Quota { max_24_hours: 200.0, sent_24_hours: sent });
    Account { rate_per_sec: Some(rate), quota, may_send, is_sandboxed: false }
}

fn resting(trouble: Trouble, now: Timestamp) -> Health {
    Health::default().after(trouble, "SES_X", None, 10, now)
}

#[test]
fn what_is_kept_reads_back() {
    let full = resting(Trouble::Outage, NOW)
        .after(Trouble::Throttled, "SES_THROTTLING", None, 14, secs(2))
        .told(&account(14.0, 3.0, true), secs(3));
    let probing = full.probing(secs(30)).expect("a probe is due");
    for health in [Health::default(), full, probing] {
        assert_eq!(Health::decode(&health.encode()), health);
    }
    assert_eq!(Health::decode("{broken"), Health::default());
}

#[test]
fn the_rate_is_the_operators_else_the_accounts() {
    let told = Health::default().told(&account(14.7, 0.0, true), NOW);
    let cases = [
        ("nothing known", Health::default(), None, None),
        ("set by the operator", Health::default(), Some(5), Some(5)),
        ("said by the account", told.clone(), None, Some(14)),
        ("the operator wins", told, Some(50), Some(50)),
        ("never nothing", Health::default().told(&account(0.2, 0.0, true), NOW), None, Some(1)),
    ];
    for (case, health, configured, expected) in cases {
        assert_eq!(health.per_sec(configured, NOW), expected, "{case}");
    }
}

#[test]
fn throttling_halves_the_rate_at_once_and_it_climbs_back() {
    let slowed = Health::default().after(Trouble::Throttled, "SES_THROTTLING", None, 100, NOW);
    assert_eq!(slowed.rest, None, "it goes on, slower");
    let rates: Vec<Option<u32>> = [0, 1, 5, 7, 8, 60].map(|at| slowed.per_sec(Some(100), secs(at))).to_vec();
    assert_eq!(rates, [50, 55, 80, 97, 100, 100].map(Some).to_vec());
    // Errors of the same moment count once, a later one again.
    let same = slowed.clone().after(
        Trouble::Throttled,
        "SES_THROTTLING",
        None,
        50,
        NOW.plus(Duration::from_millis(500)),
    );
    assert_eq!(same, slowed);
    let again = slowed.after(Trouble::Throttled, "SES_THROTTLING", None, 55, secs(1));
    assert_eq!(again.per_sec(Some(100), secs(1)), Some(27));
    let floor = Health::default().after(Trouble::Throttled, "SES_THROTTLING", None, 1, NOW);
    assert_eq!(floor.per_sec(None, NOW), Some(1));
    assert_eq!(floor.per_sec(None, secs(61)), None, "nothing to climb back to");
}

#[test]
fn a_broken_provider_is_probed_once_at_a_time_and_less_and_less() {
    let mut health = resting(Trouble::Outage, NOW);
    let mut now = NOW;
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let due = health.rest.as_ref().expect("it rests").next_probe_at;
        pauses.push(due.since(now).as_secs());
        assert_eq!(health.probing(Timestamp::from_millis(due.millis() - 1)), None, "not yet");
        let probing = health.probing(due).expect("now");
        assert_eq!(probing.probing(due), None, "one at a time");
        assert!(probing.probing(due.plus(PROBE_TIME)).is_some(), "the one who probed has died");
        now = due;
        health = probing.after(Trouble::Outage, "SES_SERVICE_UNAVAILABLE", None, 10, now);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 15, 15, 15]);
    assert_eq!(health.rest.as_ref().expect("it rests").since, NOW);
    assert_eq!(health.works_again().rest, None);
}

#[test]
fn a_provider_that_asks_for_time_gets_it() {
    let health = Health::default().after(Trouble::Outage, "X", Some(Duration::from_secs(90)), 10, NOW);
    assert_eq!(health.probing(secs(89)), None);
    assert!(health.probing(secs(90)).is_some());
}

#[test]
fn the_account_decides_about_quota_and_pause() {
    for trouble in [Trouble::QuotaUsedUp, Trouble::Paused] {
        let health = resting(trouble, NOW);
        assert_eq!(health.probing(secs(59)), None, "asking more often gains nothing");
        let probing = health.probing(secs(60)).expect("now");
        let still = probing.clone().told(&account(14.0, 200.0, true), secs(60));
        assert_eq!(still.rest.as_ref().map(|rest| rest.cause), Some(Trouble::QuotaUsedUp));
        let paused = probing.clone().told(&account(14.0, 0.0, false), secs(60));
        assert_eq!(paused.rest.as_ref().map(|rest| rest.cause), Some(Trouble::Paused));
        assert_eq!(probing.told(&account(14.0, 199.0, true), secs(60)).rest, None);
    }
    // That an account may send does not mend a broken provider.
    assert!(resting(Trouble::Outage, NOW).told(&account(14.0, 0.0, true), secs(1)).rest.is_some());
    // No limit at all is written as -1.
    let endless =
        Account { quota: Some(Quota { max_24_hours: -1.0, sent_24_hours: 5.0 }), ..account(1.0, 0.0, true) };
    assert_eq!(Health::default().told(&endless, NOW).rest, None);
}

#[test]
fn a_probe_that_says_nothing_is_made_again() {
    let probing = resting(Trouble::Outage, NOW).probing(secs(1)).expect("now");
    let spent = probing.probe_spent(secs(1));
    assert_eq!(spent.probing(secs(1)), None);
    assert!(spent.probing(secs(2)).is_some());
}
