//! What the doctor makes of what it finds, as tables. What a database server's settings mean is decided, and tested, where
//! that server is known.

use super::*;

#[test]
fn the_file_system_of_a_path() {
    let mounts =
        "/dev/a / ext4 rw 0 0\nserver:/x /srv/mail nfs4 rw 0 0\n/dev/b /srv/my\\040disk xfs rw 0 0\n";
    let cases = [
        ("/var/lib", Some("ext4")),
        ("/srv/mail/posthaste", Some("nfs4")),
        ("/srv/mailbox", Some("ext4")),
        ("/srv/my disk/x", Some("xfs")),
    ];
    for (path, kind) in cases {
        assert_eq!(file_system_of(mounts, Path::new(path)), kind, "{path}");
    }
    assert_eq!(file_system_of("", Path::new("/x")), None);
}

fn verdicts(cases: impl IntoIterator<Item = (&'static str, Finding, Verdict)>) {
    for (case, found, expected) in cases {
        assert_eq!(found.verdict, expected, "{case}: {}", found.text);
    }
}

#[test]
fn databases_on_disks_of_others() {
    let kinds = NETWORK_FILE_SYSTEMS.iter().map(|kind| (*kind, file_system(Some(kind)), Verdict::Wrong));
    verdicts(kinds);
    verdicts([
        ("local", file_system(Some("ext4")), Verdict::Fine),
        ("local", file_system(Some("btrfs")), Verdict::Fine),
        ("in memory", file_system(Some("tmpfs")), Verdict::Warning),
        ("in memory", file_system(Some("ramfs")), Verdict::Warning),
        ("not known", file_system(None), Verdict::Warning),
    ]);
}

#[test]
fn clocks_that_are_wrong() {
    let now = CLOCK_MIN.plus(Duration::from_secs(3600));
    let beyond = SKEW_MAX + Duration::from_millis(1);
    verdicts([
        ("set", clock(CLOCK_MIN), Verdict::Fine),
        ("never set", clock(CLOCK_MIN.minus(Duration::from_millis(1))), Verdict::Wrong),
        ("never set", clock(Timestamp::from_millis(0)), Verdict::Wrong),
        ("the disk's agrees", clock_of_disk(now, Some(now)), Verdict::Fine),
        ("the disk's is a little behind", clock_of_disk(now, Some(now.minus(SKEW_MAX))), Verdict::Fine),
        ("the disk's is a little ahead", clock_of_disk(now, Some(now.plus(SKEW_MAX))), Verdict::Fine),
        ("the disk's is behind", clock_of_disk(now, Some(now.minus(beyond))), Verdict::Wrong),
        ("the disk's is ahead", clock_of_disk(now, Some(now.plus(beyond))), Verdict::Wrong),
        ("the disk does not say", clock_of_disk(now, None), Verdict::Fine),
    ]);
}

#[test]
fn leases_that_end_before_the_call() {
    let timeout = provider::SEND_TIMEOUT;
    verdicts([
        ("longer", lease(timeout + Duration::from_secs(1)), Verdict::Fine),
        ("as long", lease(timeout), Verdict::Wrong),
        ("shorter", lease(timeout / 2), Verdict::Wrong),
    ]);
}

#[test]
fn settings_of_a_server() {
    let weakness = |loses_data| Weakness { setting: "fsync".into(), text: "off".into(), loses_data };
    let told = |weaknesses| settings(weaknesses).into_iter().map(|found| found.verdict).collect::<Vec<_>>();
    assert_eq!(told(vec![]), [Verdict::Fine]);
    assert_eq!(told(vec![weakness(true), weakness(false)]), [Verdict::Wrong, Verdict::Warning]);
}
