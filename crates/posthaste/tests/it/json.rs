//! `--json` everywhere: every command is run with it, and what it prints is JSON. The list of commands is that of the manual
//! pages, so a new command fails here until it has a line. Also the manual pages themselves.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::support::{Place, Server, curl, err, out};

/// Why some commands print no JSON.
const WITHOUT: &[(&str, &str)] = &[
    ("completions", "a shell reads its output"),
    ("serve", "it prints nothing; its log, on standard error, is JSON already"),
];

/// A command line for each command, `ID` being an email that failed and `KEY` a key.
const LINES: &[(&str, &[&str])] = &[
    ("migrate", &["migrate"]),
    ("company-add", &["company", "add", "second"]),
    ("company-list", &["company", "list"]),
    ("company-resume", &["company", "resume", "acme"]),
    ("key-create", &["key", "create", "--company", "acme"]),
    ("key-list", &["key", "list"]),
    ("key-revoke", &["key", "revoke", "KEY"]),
    (
        "send",
        &["send", "--company", "acme", "--to", "a@b.com", "--subject", "x", "--html", "mail.html", "--test"],
    ),
    ("import", &["import", "--company", "acme", "mail.ndjson", "--test"]),
    ("tail", &["tail", "--since", "1h", "--limit", "3"]),
    ("show", &["show", "ID"]),
    ("explain", &["explain", "ID"]),
    ("dlq-list", &["dlq", "list", "--company", "acme"]),
    ("dlq-replay", &["dlq", "replay", "--company", "acme", "--all", "--dry-run"]),
    ("dlq-drop", &["dlq", "drop", "--company", "acme", "ID"]),
    ("suppression-add", &["suppression", "add", "--company", "acme", "a@b.com"]),
    ("suppression-list", &["suppression", "list", "--company", "acme"]),
    ("suppression-lift", &["suppression", "lift", "--company", "acme", "a@b.com"]),
    ("template-push", &["template", "push", "--company", "acme", "templates"]),
    ("template-list", &["template", "list", "--company", "acme"]),
    ("template-delete", &["template", "delete", "--company", "acme", "welcome"]),
    ("trigger", &["trigger", "bounced", "ID"]),
    ("erase", &["erase", "--company", "acme", "nobody@example.com"]),
    ("doctor", &["doctor"]),
    ("config", &["config"]),
    ("bench", &["bench", "--emails", "20", "--connections", "2"]),
    ("man", &["man", "pages"]),
];

/// `resume` fails when nobody is paused, which is how it is here; it says so in one line and prints nothing.
const FAIL: &[&str] = &["company-resume"];

/// The commands that do something, by the names of their pages.
fn commands(place: &Place) -> BTreeSet<String> {
    let written = place.json(&["man", "pages"]).remove(0);
    let pages: Vec<&str> =
        written["pages"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let names: BTreeSet<String> = pages
        .iter()
        .filter_map(|page| page.strip_prefix("posthaste-")?.strip_suffix(".1"))
        .map(str::to_owned)
        .collect();
    let is_leaf = |name: &String| !names.iter().any(|other| other.starts_with(&format!("{name}-")));
    names.iter().filter(|name| is_leaf(name)).cloned().collect()
}

#[test]
fn process_every_command_speaks_json() {
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let mut serve = place.command(&["serve"]);
    serve.env("POSTHASTE_LISTEN", "127.0.0.1:0");
    let server = Server::start(serve);
    server.address();
    let id = place.send("acme", "rejected@posthaste.test", &["--test"]);
    place.wait_for(&id, "FAILED");
    server.stop();
    let key = place.json(&["key", "create", "--company", "acme"]).remove(0)["prefix"].clone();
    place.write("mail.ndjson", "{\"to\":\"a@b.com\",\"subject\":\"x\",\"html\":\"<p>x</p>\"}\n");
    std::fs::create_dir(place.path().join("templates")).expect("a folder");
    place.write("templates/welcome.html", "<p>hi</p>");
    place.write("templates/welcome.subject.txt", "Hi");

    let known: BTreeSet<String> = LINES
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .chain(WITHOUT.iter().map(|(name, _)| (*name).to_owned()))
        .chain(["dev".to_owned()])
        .collect();
    assert_eq!(commands(&place), known, "every command has a line here, or a reason why not");
    for (name, args) in LINES {
        let filled = args.iter().map(|arg| match *arg {
            "ID" => id.as_str(),
            "KEY" => key.as_str().expect("a prefix"),
            other => other,
        });
        let args: Vec<&str> = std::iter::once("--json").chain(filled).collect();
        let output = place.run(&args);
        let text = out(&output);
        assert_eq!(output.status.success(), !FAIL.contains(name), "{name}: {}", err(&output));
        assert_eq!(text.is_empty(), FAIL.contains(name), "{name}: {text}");
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{name}: {line}"));
            assert!(value.is_object(), "{name}: {line}");
        }
    }
}

#[test]
fn process_dev_greets_in_json() {
    let place = Place::new();
    let server = Server::start(place.command(&["--json", "dev", "--listen", "127.0.0.1:0"]));
    let line = server.printed_until("{").remove(0);
    let greeting: Value = serde_json::from_str(&line).expect("JSON");
    let api = greeting["api"].as_str().expect("an address");
    assert_eq!(curl(&["-o", "/dev/null", "-w", "%{http_code}", &format!("{api}/livez")]), "200");
    server.stop();
}

/// What a person sees of a page, by whatever reader is installed. Its complaints fail the test.
fn rendered(place: &Place, page: &str) -> Option<String> {
    let path = place.path().join("pages").join(page);
    for (reader, args) in
        [("mandoc", &["-T", "utf8", "-W", "warning"][..]), ("groff", &["-man", "-Tutf8", "-ww", "-z"])]
    {
        let Ok(output) = Command::new(reader).args(args).arg(&path).output() else { continue };
        assert!(output.status.success() && output.stderr.is_empty(), "{reader} {page}: {}", err(&output));
    }
    let output = Command::new("groff").args(["-man", "-Tascii", "-P-c"]).arg(&path).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn process_manual_pages_can_be_read() {
    let place = Place::new();
    let written = place.json(&["man", "pages"]).remove(0);
    let pages: Vec<String> = written["pages"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    assert!(pages.len() > 30, "{pages:?}");
    for page in &pages {
        let source = std::fs::read_to_string(place.path().join("pages").join(page)).expect("a page");
        let headings: Vec<&str> = source
            .lines()
            .filter_map(|line| line.strip_prefix(".SH "))
            .map(|it| it.trim_matches('"'))
            .collect();
        for heading in ["NAME", "SYNOPSIS", "OPTIONS", "EXIT STATUS", "FILES", "ENVIRONMENT"] {
            assert!(headings.contains(&heading), "{page}: {headings:?}");
        }
        if let Some(text) = rendered(&place, page) {
            assert!(text.contains("posthaste"), "{page}: {text}");
        }
    }
    let printed = place.print(&["man"]);
    assert_eq!(printed, std::fs::read_to_string(place.path().join("pages/posthaste.1")).expect("a page"));
}

#[test]
fn process_completions_know_every_command() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.print(&["completions", shell]);
        for word in ["import", "tail", "replay", "concurrency"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(place.run(&["completions", "cobol"]).status.code(), Some(2));
}
