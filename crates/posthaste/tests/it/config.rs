//! Wrong configurations end with exit code 2 and one line each; `posthaste config` shows what is in force. The full
//! table of wrong settings is beside the code, in `src/config/wrong.txt`.

use crate::support::{Place, err, out};

/// Its name, the file, the variables, and what is said.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);

#[test]
fn process_wrong_settings_end_with_two() {
    let cases: &[Case] = &[
        (
            "unknown key",
            "retires = 1",
            &[],
            "posthaste.toml:1: retires: there is no such setting; did you mean `retry`?\n",
        ),
        (
            "wrong type",
            "listen = 1",
            &[],
            "posthaste.toml:1: listen: must be a text in quotes, not a number\n",
        ),
        (
            "twice",
            "ttl_secs = 1\nttl_secs = 2",
            &[],
            "posthaste.toml:2: ttl_secs: is there twice; keep one of them\n",
        ),
        (
            "empty variable",
            "",
            &[("POSTHASTE_LISTEN", "")],
            "POSTHASTE_LISTEN: listen: is set but empty, which is not the same as unset; unset it or give it a value\n",
        ),
        (
            "several at once",
            "lisen = \"x\"\n[worker]\nconcurrency = 0",
            &[("POSTHASTE_WORKER__LEASE", "1")],
            "posthaste.toml:1: lisen: there is no such setting; did you mean `listen`?\n\
             posthaste.toml:3: worker.concurrency: must be from 1 to 10000\n\
             POSTHASTE_WORKER__LEASE: worker.lease: there is no such setting; did you mean POSTHASTE_WORKER__LISTEN?\n",
        ),
    ];
    for (case, file, variables, expected) in cases {
        let place = Place::new();
        place.write("posthaste.toml", file);
        for command in ["config", "serve", "doctor"] {
            let output = place.command(&[command]).envs(variables.iter().copied()).output().expect("it runs");
            assert_eq!(
                (output.status.code(), err(&output).as_str()),
                (Some(2), *expected),
                "{case}, {command}"
            );
        }
    }
}

#[test]
fn process_a_file_that_was_named_has_to_be_there() {
    let place = Place::new();
    let output = place.run(&["--config", "other.toml", "config"]);
    assert_eq!(output.status.code(), Some(2));
    let said = err(&output);
    assert_eq!(
        said,
        "other.toml: cannot be read: No such file or directory (os error 2); check the path and its mode\n"
    );
}

#[test]
fn process_what_is_in_force_hides_secrets() {
    let place = Place::new();
    place.write("posthaste.toml", "admin_token = \"0123456789secret\"\n[providers.relay]\nkind = \"smtp\"\nurl = \"smtp://ana:s3cret@localhost:2525\"\n");
    let output = place.command(&["config"]).env("POSTHASTE_TTL_SECS", "60").output().expect("it runs");
    let shown = out(&output);
    let line = |start: &str| {
        shown.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{shown}")).to_owned()
    };
    assert!(!shown.contains("secret") && !shown.contains("s3cret"), "{shown}");
    assert!(
        line("admin_token").starts_with("admin_token = \"***\"")
            && line("admin_token").ends_with("# posthaste.toml:1")
    );
    assert!(
        line("providers.relay.url").starts_with("providers.relay.url = \"smtp://ana:***@localhost:2525\"")
    );
    assert!(line("ttl_secs").ends_with("# POSTHASTE_TTL_SECS"));
    assert!(line("worker.lease_secs").ends_with("# default"));
}

#[test]
fn process_an_open_file_is_a_warning_and_with_strict_an_error() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    place.write("posthaste.toml", "admin_token = \"0123456789secret\"\n");
    let path = place.path().join("posthaste.toml");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).expect("changed");
    let line = "posthaste.toml:1: admin_token: others can read this secret (mode 0644); run: chmod 600 posthaste.toml\n";
    let output = place.run(&["config"]);
    assert_eq!((output.status.code(), err(&output)), (Some(0), format!("posthaste: warning: {line}")));
    let output = place.run(&["--strict", "config"]);
    assert_eq!((output.status.code(), err(&output)), (Some(2), line.to_owned()));
}
