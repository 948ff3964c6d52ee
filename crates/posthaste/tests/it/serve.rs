//! `posthaste serve`: roles in processes of their own, metrics, and signals.

use std::net::TcpListener;

use crate::support::{Place, Server, curl, kinds, until};

#[test]
fn process_api_and_worker_apart() {
    let place = Place::new();
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let key = place.print(&["key", "create", "--company", "acme", "--test"]);
    let first = place.send("acme", "ana@example.com", &["--test"]);
    let mut api = place.command(&["serve", "--role", "api"]);
    api.env("POSTHASTE_LISTEN", "127.0.0.1:0");
    let api = Server::start(api);
    let address = api.address();
    let waiting = || curl(&[&format!("http://{address}/metrics")]).contains("email_queue_size 1");
    until("the API process counts what waits", || waiting().then_some(()));
    let body = r#"{"to":"ana@example.com","subject":"Hello","html":"<p>hi</p>"}"#;
    let key_header = format!("X-API-Key: {}", key.trim());
    let url = format!("http://{address}/v1/email/send");
    let answer = curl(&["-H", &key_header, "-H", "Content-Type: application/json", "-d", body, &url]);
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    let id = answer["outboxId"].as_str().expect("an id").to_owned();
    assert_eq!(place.json(&["show", &id]).remove(0)["status"], "ENQUEUED", "nobody sends yet");

    let mut worker = place.command(&["serve", "--role", "worker"]);
    worker.env("POSTHASTE_WORKER__LISTEN", "127.0.0.1:0");
    let worker = Server::start(worker);
    let health = worker.address();
    place.wait_for(&first, "SENT");
    place.wait_for(&id, "SENT");
    let metrics = curl(&[&format!("http://{health}/metrics")]);
    let line = "email_send_result_total{status=\"success\"";
    assert!(metrics.contains(line) && metrics.contains("posthaste_build_info"), "{metrics}");
    assert!(metrics.contains("email_processing_duration_seconds_bucket"), "{metrics}");
    let closed = curl(&["-i", "-H", &key_header, &format!("http://{health}/v1/emails")]);
    assert!(closed.starts_with("HTTP/1.1 404 "), "a worker has no API: {closed}");
    for part in ["application/problem+json", "x-request-id: req_", "ratelimit-limit: ", "ROUTE_NOT_FOUND"] {
        assert!(closed.contains(part), "{part}: {closed}");
    }
    worker.stop();
    api.stop();
}

#[test]
fn process_a_second_signal_ends_it_at_once_and_loses_nothing() {
    let place = Place::new();
    // A mail server that takes the call and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    place.write(
        "posthaste.toml",
        &format!("[providers.relay]\nkind = \"smtp\"\nurl = \"smtp://127.0.0.1:{port}\"\n"),
    );
    place.print(&["company", "add", "acme", "--from", "hello@acme.com"]);
    let id = place.send("acme", "ana@example.com", &[]);
    let mut command = place.command(&["serve"]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0");
    let mut server = Server::start(command);
    until("the provider is called", || {
        let email = place.json(&["show", &id]).remove(0);
        kinds(&email).contains(&"SENT_ATTEMPT".to_owned()).then_some(())
    });
    server.terminate();
    server.log_until("shutting down");
    assert!(server.is_running(), "what is in flight gets its time");
    server.terminate();
    assert_eq!(server.wait().code(), Some(130));
    drop(silent);

    // The next start finds it at once, and says that the provider may have taken it.
    place.write("posthaste.toml", "");
    let mut command = place.command(&["serve"]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0");
    let server = Server::start(command);
    let email = place.wait_for(&id, "RETRY_SCHEDULED");
    let events = kinds(&email);
    assert!(events.contains(&"LEASE_LOST".to_owned()), "{events:?}");
    assert!(events.contains(&"OUTCOME_UNKNOWN".to_owned()), "{events:?}");
    let explained = place.json(&["explain", &id]).remove(0);
    assert!(explained["next"].as_str().is_some_and(|next| next.starts_with("Attempt 2 of 5")), "{explained}");
    server.stop();
}
