//! `tail`: what happens is told as it happens, with filters, as text and as JSON, and to its end.

use serde_json::Value;

use crate::support::{Place, Server, out};

fn a_place() -> Place {
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "Acme <hello@acme.com>"]);
    place.print(&["company", "add", "other", "--from", "Other <hello@other.com>"]);
    place
}

fn serve(place: &Place) -> Server {
    let mut command = place.command(&["serve"]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0").env("POSTHASTE_RETRY__FAST__DELAYS_SECS", "1,1,1,1");
    let server = Server::start(command);
    server.address();
    server
}

fn parsed(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn types(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["type"].as_str().expect("a type")).collect()
}

#[test]
fn process_a_tail_follows_what_happens_until_it_is_told_to_end() {
    let place = a_place();
    let server = serve(&place);
    let before = place.send("acme", "before@example.com", &["--test"]);
    place.wait_for(&before, "SENT");
    let mut tail = Server::start(place.command(&["tail", "--long"]));
    tail.log_until("Ctrl-C");
    let id = place.send("acme", "ana@example.com", &["--test"]);
    let lines = tail.printed_until("  SENT  ");
    assert_eq!(lines.len(), 5, "{lines:#?}");
    for (line, kind) in lines.iter().zip(["ENQUEUED", "RECEIVED", "VALIDATED", "SENT_ATTEMPT", "SENT"]) {
        let is_whole = [kind, id.as_str(), "acme", "ana@example.com", "\"Hello\""]
            .iter()
            .all(|part| line.contains(part));
        assert!(is_whole, "{line}");
    }
    // The gateway may come and go meanwhile.
    server.stop();
    let server = serve(&place);
    let second = place.send("other", "bob@example.com", &["--test"]);
    let lines = tail.printed_until("  SENT  ");
    assert!(lines.iter().all(|line| line.contains(&second)) && lines.len() == 5, "{lines:#?}");
    tail.interrupt();
    assert_eq!(tail.wait().code(), Some(0));
    server.stop();
}

#[test]
fn process_a_tail_tells_programs_of_one_company() {
    let place = a_place();
    let server = serve(&place);
    let tail = Server::start(place.command(&["--json", "tail", "--since", "1h", "--company", "acme"]));
    let other = place.send("other", "bob@example.com", &["--test"]);
    place.wait_for(&other, "SENT");
    let id = place.send("acme", "ana@example.com", &["--test"]);
    let lines = parsed(&tail.printed_until("\"type\":\"SENT\""));
    assert_eq!(types(&lines), ["ENQUEUED", "RECEIVED", "VALIDATED", "SENT_ATTEMPT", "SENT"]);
    assert!(lines.iter().all(|line| line["id"] == id.as_str()), "{lines:?}");
    let sent = lines.last().expect("a line");
    assert_eq!(
        (sent["to"].as_str(), sent["subject"].as_str(), sent["company"].as_str(), sent["provider"].as_str()),
        (Some("ana@example.com"), Some("Hello"), Some("acme"), Some("capture"))
    );
    tail.stop();
    server.stop();
}

#[test]
fn process_a_tail_of_the_past_is_filtered() {
    let place = a_place();
    let server = serve(&place);
    let rejected = place.send("acme", "rejected@posthaste.test", &["--test"]);
    place.wait_for(&rejected, "FAILED");
    let sent = place.send("other", "ana@example.com", &["--test"]);
    place.wait_for(&sent, "SENT");
    server.stop();

    let tail = |args: &[&str]| {
        let args: Vec<&str> = ["tail", "--since", "1h"].iter().chain(args).copied().collect();
        place.json(&args)
    };
    let all = tail(&["--limit", "9"]);
    let expected =
        ["ENQUEUED", "RECEIVED", "VALIDATED", "SENT_ATTEMPT", "FAILED", "ENQUEUED", "RECEIVED", "VALIDATED"];
    assert_eq!(types(&all)[..8], expected);
    let cases: &[(&[&str], usize, &str, &str)] = &[
        (&["--status", "failed"], 1, "FAILED", &rejected),
        (&["--event", "SENT_ATTEMPT", "--company", "other"], 1, "SENT_ATTEMPT", &sent),
        (&["--to", "ANA@example.com"], 1, "ENQUEUED", &sent),
        (&["--company", "acme"], 2, "ENQUEUED", &rejected),
    ];
    for (args, limit, kind, id) in cases {
        let limit = limit.to_string();
        let args: Vec<&str> = args.iter().copied().chain(["--limit", &limit]).collect();
        let lines = tail(&args);
        assert_eq!((types(&lines)[0], lines[0]["id"].as_str()), (*kind, Some(*id)), "{args:?}");
    }
    let text = place.print(&["tail", "--since", "1h", "--status", "FAILED", "--limit", "1"]);
    assert!(
        text.contains("FAILED")
            && text.contains("rejected@posthaste.test")
            && text.contains("CAPTURE_REJECTED: "),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "no colours where there is no terminal: {text:?}");
}

#[test]
fn process_a_wrong_filter_is_wrong_usage() {
    let place = a_place();
    for args in [&["tail", "--status", "DONE"][..], &["tail", "--since", "later"], &["tail", "--limit", "0"]]
    {
        assert_eq!(place.run(args).status.code(), Some(2), "{args:?}");
    }
    let missing = place.run(&["tail", "--company", "nobody"]);
    assert_eq!((missing.status.code(), out(&missing).as_str()), (Some(1), ""));
}
