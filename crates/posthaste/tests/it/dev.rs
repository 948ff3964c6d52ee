//! `posthaste dev`: what it prints works when pasted, and is the same after a restart.

use std::net::TcpListener;
use std::process::Command;

use serde_json::Value;

use crate::support::{Place, Server, curl, err, kinds, out, until};

const LAST_LINE: &str = "Ctrl-C stops it.";

/// What follows the word at the beginning of a printed line.
fn printed(lines: &[String], word: &str) -> String {
    let line =
        lines.iter().find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("{word}: {lines:#?}"));
    line.trim().to_owned()
}

fn dev(place: &Place, more: &[&str]) -> (Server, Vec<String>) {
    let args: Vec<&str> = ["dev"].iter().chain(more).copied().collect();
    let server = Server::start(place.command(&args));
    let lines = server.printed_until(LAST_LINE);
    (server, lines)
}

/// What a printed line prints when it is pasted into a shell there.
fn pasted_in(place: &Place, line: &str) -> String {
    let mut shell = Command::new("sh");
    let pasted =
        shell.args(["-c", line]).env("no_proxy", "*").current_dir(place.path()).output().expect("a shell");
    assert!(pasted.status.success(), "{line}: {}", err(&pasted));
    out(&pasted)
}

#[test]
fn process_the_printed_line_works_and_the_key_stays() {
    let place = Place::new();
    let (server, lines) = dev(&place, &["--listen", "127.0.0.1:0"]);
    let (api, key) = (printed(&lines, "api "), printed(&lines, "key "));
    assert!(lines.contains(&format!("api      {api}")) && api.starts_with("http://127.0.0.1:"), "{lines:#?}");
    assert!(lines.contains(&format!("key      {key}")) && key.starts_with("test_"), "{lines:#?}");

    let line = lines.iter().find(|line| line.trim().starts_with("curl ")).expect("a line to paste");
    // The line as printed, asked to name the status as well.
    let answer = pasted_in(&place, &line.replacen("curl ", "curl -w '\\n%{http_code}' ", 1));
    let (answer, status) = answer.trim_end().rsplit_once('\n').expect("an answer and its status");
    assert_eq!(status, "202", "{answer}");
    let answer: Value = serde_json::from_str(answer).expect("JSON");
    assert_eq!(answer["status"], "ENQUEUED", "{answer}");
    let id = answer["outboxId"].as_str().expect("an id").to_owned();

    let hint = lines.iter().find(|line| line.contains("show OUTBOX_ID")).expect("a hint");
    let email = place.wait_for(&id, "SENT");
    assert_eq!(kinds(&email), ["ENQUEUED", "RECEIVED", "VALIDATED", "SENT_ATTEMPT", "SENT"]);
    let shown = pasted_in(&place, &hint.replace("OUTBOX_ID", &id));
    assert!(shown.contains("SENT_ATTEMPT") && shown.contains("capture"), "{shown}");

    let from_api = curl(&["-H", &format!("X-API-Key: {key}"), &format!("{api}/v1/emails/{id}")]);
    let from_api: Value = serde_json::from_str(&from_api).expect("JSON");
    assert_eq!(from_api["status"], "SENT", "{from_api}");

    server.stop();
    let (server, lines) = dev(&place, &["--listen", "127.0.0.1:0"]);
    assert_eq!(printed(&lines, "key "), key);
    server.stop();
    assert!(place.print(&["explain", &id]).contains("capture took it"));
}

/// A page that is open in a browser hears of what happens, and does not keep the server from ending.
#[test]
fn process_an_open_page_follows_and_lets_go() {
    let place = Place::new();
    let (mut server, lines) = dev(&place, &["--listen", "127.0.0.1:0"]);
    let (api, key) = (printed(&lines, "api "), printed(&lines, "key "));
    let page = curl(&[&format!("{api}/ui/c/dev/emails")]);
    assert!(page.contains(&format!("X-API-Key: {key}")), "the line to paste is whole: {page}");

    let mut stream = Command::new("curl");
    stream.args(["-sSN", "--noproxy", "*", &format!("{api}/ui/c/dev/live")]);
    let mut stream = Server::start(stream);
    stream.printed_until("event: changed");
    let line = lines.iter().find(|line| line.trim().starts_with("curl ")).expect("a line to paste");
    pasted_in(&place, line);
    stream.printed_until("event: changed");

    server.terminate();
    assert_eq!(stream.wait().code(), Some(0), "the stream has an end");
    assert_eq!(server.wait().code(), Some(0));
    let log = server.log_until("stopped");
    assert!(!log.iter().any(|line| line.contains("still open")), "{log:#?}");
}

#[test]
fn process_a_taken_port_is_stepped_over_unless_it_was_asked_for() {
    let place = Place::new();
    // Whoever has it: it is taken.
    let _taken = TcpListener::bind("127.0.0.1:8025");
    let (server, lines) = dev(&place, &["--data-dir", "data"]);
    let api = printed(&lines, "api ");
    assert_ne!(api, "http://127.0.0.1:8025");
    assert!(lines.iter().any(|line| line.starts_with("port 8025 is taken")), "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.ends_with("posthaste --store sqlite:data/posthaste.db show OUTBOX_ID")),
        "{lines:#?}"
    );
    until("it is ready", || curl(&[&format!("{api}/readyz")]).contains("ready").then_some(()));

    let again =
        place.run(&["dev", "--listen", api.strip_prefix("http://").expect("http"), "--data-dir", "other"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(err(&again).starts_with("posthaste: cannot listen on 127.0.0.1:"), "{}", err(&again));
    server.stop();
}

#[test]
fn process_what_dev_made_is_not_sent_from_in_production() {
    let place = Place::new();
    let (server, _) = dev(&place, &["--listen", "127.0.0.1:0"]);
    server.stop();
    let served = place.command(&["serve"]).env("POSTHASTE_LISTEN", "127.0.0.1:0").output().expect("it runs");
    assert_eq!(served.status.code(), Some(2));
    let said = err(&served);
    assert!(
        said.contains(
            "this database was made for the environment `dev`, but the configuration says `production`"
        ),
        "{said}"
    );
}
