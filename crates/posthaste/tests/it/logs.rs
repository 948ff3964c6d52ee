//! The log as machines and people read it: JSON lines whose fields are always called the same, and text on a terminal.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Place, Server, curl};

const CANARY: &str = "kanarienvogel";

/// Sends the body as JSON; the answer's fields.
fn post(address: &str, key: &str, path: &str, body: &Value) -> Value {
    let (key, url, body) = (format!("X-API-Key: {key}"), format!("http://{address}{path}"), body.to_string());
    let answer = curl(&["-H", &key, "-H", "Content-Type: application/json", "-d", &body, &url]);
    serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{path}: {answer}"))
}

fn id_of(answer: &Value) -> String {
    answer["outboxId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn raw(address: &str, key: &str, place: &Place) -> String {
    let eml = format!(
        "From: shop@acme.test\r\nTo: {CANARY}@reader.test\r\nSubject: {CANARY}\r\n\r\nHello {CANARY}\r\n"
    );
    place.write("mail.eml", &eml);
    let (key, url) = (format!("X-API-Key: {key}"), format!("http://{address}/v1/email/raw"));
    let file = format!("@{}", place.path().join("mail.eml").display());
    let answer = curl(&["-H", &key, "-H", "Content-Type: message/rfc822", "--data-binary", &file, &url]);
    id_of(&serde_json::from_str(&answer).expect("JSON"))
}

/// Emails that met all kinds of ends, and all that the server logged meanwhile.
struct Story {
    sent: String,
    rejected: String,
    throttled: String,
    message: String,
    /// Of all emails, those above included.
    ids: Vec<String>,
    lines: Vec<String>,
}

fn a_story() -> Story {
    let place = Place::new();
    place.write(
        "posthaste.toml",
        "[log]\nformat = \"json\"\nlevel = \"debug\"\n[retry.fast]\ndelays_secs = [1]\nmax_attempts = 2\n",
    );
    place.print(&["company", "add", "acme", "--from", "shop@acme.test"]);
    let key = place.print(&["key", "create", "--company", "acme", "--test"]).trim().to_owned();
    let mut command = place.command(&["serve"]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0");
    let server = Server::start(command);
    let address = server.address();
    let email = |to: &str| json!({ "to": to, "subject": format!("about {CANARY}"), "html": format!("<p>{CANARY}</p>") });
    let send = |body: &Value| id_of(&post(&address, &key, "/v1/email/send", body));
    let sent = send(&email(&format!("{CANARY}@reader.test")));
    let rejected = send(&email("rejected@posthaste.test"));
    let throttled = send(&email("throttled@posthaste.test"));
    let bounced = send(&email("bounced@posthaste.test"));
    let message = raw(&address, &key, &place);
    let mut later = email(&format!("{CANARY}@reader.test"));
    later["delay"] = json!(3_600_000);
    let cancelled = send(&later);
    post(&address, &key, &format!("/v1/emails/{cancelled}/cancel"), &json!({}));
    let batch = json!([email("a@reader.test"), email("b@reader.test")]);
    let batch = post(&address, &key, "/v1/email/batch", &batch);
    let in_batch: Vec<String> = batch["results"].as_array().expect("a list").iter().map(id_of).collect();
    for (id, status) in
        [(&sent, "SENT"), (&rejected, "FAILED"), (&throttled, "FAILED"), (&bounced, "BOUNCED")]
    {
        place.wait_for(id, status);
    }
    for id in in_batch.iter().chain([&message]) {
        place.wait_for(id, "SENT");
    }
    server.terminate();
    let lines = server.log_until("\"stopped\"");
    let ids = [&sent, &rejected, &throttled, &bounced, &message, &cancelled].into_iter().chain(&in_batch);
    Story { ids: ids.cloned().collect(), sent, rejected, throttled, message, lines }
}

#[test]
fn process_every_line_about_an_email_says_which() {
    let Story { sent, rejected, throttled, message, ids, lines } = a_story();
    let mut ended: BTreeSet<(String, u64, String)> = BTreeSet::new();
    let mut accepted = BTreeSet::new();
    for line in &lines {
        assert!(!line.contains(CANARY), "{line}");
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        let text = line.to_string();
        let is_about_one = line.get("outboxId").is_some();
        assert!(is_about_one || !ids.iter().any(|id| text.contains(id.as_str())), "which email? {line}");
        if !is_about_one {
            continue;
        }
        for field in ["outboxId", "requestId", "companyId"] {
            assert!(line[field].is_string(), "{field} in {line}");
        }
        let id = line["outboxId"].as_str().unwrap_or_default().to_owned();
        match line["message"].as_str().unwrap_or_default() {
            "attempt ended" => {
                let attempt = line["attempt"].as_u64().expect("a number");
                let state = line["state"].as_str().expect("a state").to_owned();
                assert!(line["durationMs"].is_u64(), "{line}");
                ended.insert((id, attempt, state));
            }
            "accepted" | "intake ended" => {
                assert!(line["durationMs"].is_u64() && line["state"].is_string(), "{line}");
                accepted.insert(id);
            }
            _ => {}
        }
    }
    let has =
        |id: &str, attempt: u64, state: &str| ended.contains(&(id.to_owned(), attempt, state.to_owned()));
    assert!(has(&sent, 1, "SENT") && has(&message, 1, "SENT") && has(&rejected, 1, "FAILED"), "{ended:?}");
    assert!(has(&throttled, 1, "RETRY_SCHEDULED") && has(&throttled, 2, "FAILED"), "{ended:?}");
    assert!(ids.iter().all(|id| accepted.contains(id.as_str())), "{accepted:?}");
}

#[test]
fn process_a_terminal_gets_text_and_a_file_gets_json() {
    let place = Place::new();
    // `script` runs its command on a terminal of its own, which goes away with it.
    let worker = format!("{} serve --role worker", env!("CARGO_BIN_EXE_posthaste"));
    let mut script = Command::new("script");
    script.args(["-qec", &worker, "/dev/null"]).current_dir(place.path()).env("TERM", "xterm");
    let text = Server::start(script).printed_until("worker started").join("\n");
    assert!(!text.contains("\"message\""), "{text}");

    let server = Server::start(place.command(&["serve", "--role", "worker"]));
    let line = server.log_until("worker started").pop().expect("a line");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["message"], "worker started");
    server.stop();
}
