//! The commands beside a running server: companies, keys, sending, dead letters, forgetting, the doctor.

use std::io::Write as _;
use std::process::Stdio;

use crate::support::{Place, Server, curl, err, kinds, out};

/// A company, and a server that sends for it.
fn serving(place: &Place) -> (Server, String) {
    place.print(&["company", "add", "acme", "--from", "Acme <hello@acme.com>", "--sender", "@acme.com"]);
    let mut command = place.command(&["serve"]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0").env("POSTHASTE_RETRY__FAST__DELAYS_SECS", "1,1,1,1");
    let server = Server::start(command);
    let address = server.address();
    (server, address)
}

#[test]
fn process_a_key_opens_the_api_until_it_is_revoked() {
    let place = Place::new();
    let (server, address) = serving(&place);
    let key = place.print(&["key", "create", "--company", "acme", "--scope", "read", "--label", "reports"]);
    let key = key.trim();
    assert!(key.starts_with("live_"), "{key}");
    let url = format!("http://{address}/v1/emails");
    let status =
        || curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", &format!("X-API-Key: {key}"), &url]);
    assert_eq!(status(), "200");

    let listed = place.json(&["key", "list", "--company", "acme"]).remove(0);
    assert_eq!((listed["label"].as_str(), &listed["revokedAt"]), (Some("reports"), &serde_json::Value::Null));
    assert!(!listed.to_string().contains(key), "a key is shown once");
    place.print(&["key", "revoke", listed["prefix"].as_str().expect("a prefix")]);
    crate::support::until("the key is refused", || (status() == "401").then_some(()));
    server.stop();
}

#[test]
fn process_dead_letters_are_listed_replayed_and_dropped() {
    let place = Place::new();
    let (server, _) = serving(&place);
    let id = place.send("acme", "rejected@posthaste.test", &["--test"]);
    place.wait_for(&id, "FAILED");
    let letter = place.json(&["dlq", "list", "--company", "acme"]).remove(0);
    assert_eq!(
        (letter["id"].as_str(), letter["lastFailureCode"].as_str()),
        (Some(id.as_str()), Some("CAPTURE_REJECTED"))
    );
    let explained = place.print(&["explain", &id]);
    assert!(
        explained.contains("CAPTURE_REJECTED") && explained.contains("posthaste dlq replay --company"),
        "{explained}"
    );

    assert_eq!(place.run(&["dlq", "replay", "--company", "acme"]).status.code(), Some(2), "which ones?");
    let dry = place.json(&["dlq", "replay", "--company", "acme", "--all", "--dry-run"]).remove(0);
    assert_eq!(dry, serde_json::json!({ "matched": 1, "replayed": 0 }));
    let done = place.json(&["dlq", "replay", "--company", "acme", "--code", "CAPTURE_REJECTED"]).remove(0);
    assert_eq!(done, serde_json::json!({ "matched": 1, "replayed": 1 }));
    let email = crate::support::until("it failed again", || {
        let email = place.json(&["show", &id]).remove(0);
        (email["status"] == "FAILED").then_some(email)
    });
    assert_eq!(kinds(&email).iter().filter(|kind| *kind == "REPLAYED").count(), 1);

    assert_eq!(place.json(&["dlq", "drop", "--company", "acme", &id]).remove(0)["dropped"], 1);
    assert!(place.json(&["dlq", "list", "--company", "acme"]).is_empty());
    let gone = place.run(&["dlq", "drop", "--company", "acme", &id]);
    assert_eq!(gone.status.code(), Some(1), "it is gone");
    assert!(err(&gone).ends_with("posthaste: 1 of 1 are not among the dead letters\n"), "{}", err(&gone));
    server.stop();
}

#[test]
fn process_a_waiting_email_is_explained() {
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let id = place.send("acme", "ana@example.com", &[]);
    let explained = place.json(&["explain", &id]).remove(0);
    assert_eq!(explained["status"], "ENQUEUED");
    assert!(explained["why"].as_str().is_some_and(|why| why.contains("waits for a worker")), "{explained}");
    assert!(
        explained["next"].as_str().is_some_and(|next| next.starts_with("Attempt 1 of 5 (policy fast)")),
        "{explained}"
    );
}

#[test]
fn process_a_person_is_forgotten() {
    let place = Place::new();
    let (server, _) = serving(&place);
    let id = place.send("acme", "ana@example.com", &["--test"]);
    place.wait_for(&id, "SENT");
    let erased = place.json(&["erase", "--company", "acme", "ana@example.com"]).remove(0);
    assert_eq!(erased["emails"], 1, "{erased}");
    let shown = place.print(&["--json", "show", &id]);
    assert!(!shown.contains("ana@example.com"), "{shown}");
    server.stop();
}

#[test]
fn process_ids_come_by_the_line_and_the_unknown_are_counted() {
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let id = place.send("acme", "ana@example.com", &[]);
    let mut command = place.command(&["--json", "show", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let lines = format!("{id}\n0190c3d2-7b7e-7000-8000-000000000000\n\nnonsense\n{id}\n");
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(out(&output).lines().count(), 2);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).ends_with("posthaste: 2 of 4 not found\n"), "{}", err(&output));
}

#[test]
fn process_a_closed_pipe_is_no_failure() {
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let id = place.send("acme", "ana@example.com", &[]);
    for args in [
        &["completions", "bash"][..],
        &["config"],
        &["--help"],
        &["company", "list"],
        &["show", &id, &id],
        &["--json", "show", &id],
        &["dlq", "list", "--company", "acme"],
    ] {
        let mut command = place.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn process_the_doctor_tells_good_from_bad() {
    let place = Place::new();
    place.print(&["migrate"]);
    let healthy = place.run(&["doctor"]);
    assert_eq!(healthy.status.code(), Some(0), "{}", out(&healthy));
    // Nobody answers on port 1 of this machine.
    place.write("posthaste.toml", "[providers.relay]\nkind = \"smtp\"\nurl = \"smtp://127.0.0.1:1\"\n");
    let sick = place.run(&["doctor"]);
    assert_eq!(sick.status.code(), Some(1));
    assert!(out(&sick).contains("127.0.0.1:1 cannot be reached"), "{}", out(&sick));
    assert_eq!(err(&sick).lines().last(), Some("posthaste: 1 of 15 checks found something wrong"));
}

#[test]
fn process_mistakes_are_one_clear_line() {
    let place = Place::new();
    place.print(&["company", "add", "acme"]);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["company", "add", "acme"], 1, "posthaste: "),
        (&["company", "add", "b", "--route", "nowhere"], 2, "posthaste: there is no provider `nowhere`"),
        (&["key", "create", "--company", "nobody"], 1, "posthaste: there is no company `nobody`"),
        (
            &["--store", "sqlite:missing.db", "company", "list"],
            1,
            "posthaste: there is no database at missing.db",
        ),
        (
            &["--store", "dynamodb://u:s3cret@h/d", "company", "list"],
            2,
            "--store: store.url: dynamodb is not built",
        ),
        (
            &["--store", "postgres://u:s3cret@127.0.0.1:1/d", "company", "list"],
            1,
            "posthaste: the store is not available: cannot reach postgres://u@127.0.0.1:1/d",
        ),
        (
            &["--store", "mysql://u:s3cret@127.0.0.1:1/d", "company", "list"],
            1,
            "posthaste: the store is not available: cannot reach mysql://u@127.0.0.1:1/d",
        ),
        (&["--store", "sqlite:x.db", "dev"], 2, "posthaste: dev has its own store"),
        (&["frobnicate"], 2, "error: unrecognized subcommand"),
    ];
    for (args, code, start) in cases {
        let output = place.run(args);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {}", err(&output));
        assert!(err(&output).starts_with(start), "{args:?}: {}", err(&output));
        assert!(!err(&output).contains("s3cret"), "{args:?}");
    }
    std::fs::write(
        place.path().join("other.db"),
        "this is no database, but long enough to be looked at closely",
    )
    .expect("written");
    let output = place.run(&["--store", "sqlite:other.db", "company", "list"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert_eq!(err(&output).lines().count(), 1, "{}", err(&output));
}
