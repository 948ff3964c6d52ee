//! The environment guard, as the SMTP server at the other end sees it: what is not production captures, redirects or
//! lets through a list, and a database that was copied from elsewhere sends nothing at all.

use serde_json::{Value, json};

use crate::sink::Sink;
use crate::support::{Place, Server, curl, err};

/// Emails of all kinds: `to`, copies and blind copies.
type Email = (&'static str, &'static [&'static str], &'static [&'static str]);

const EMAILS: [Email; 6] = [
    ("ana@example.com", &[], &[]),
    ("bob@example.org", &[], &[]),
    ("carol@example.com", &[], &[]),
    ("ana@example.com", &["bob@example.org"], &[]),
    ("ana@example.com", &["mallory@example.net"], &[]),
    ("bob@example.org", &[], &["mallory@example.net"]),
];

/// A place whose only provider is the sink, in that environment.
fn a_place(sink: &Sink, environment: &str, guard: &str) -> Place {
    let place = Place::new();
    let url = sink.url("");
    place.write(
        "posthaste.toml",
        &format!(
            "environment = \"{environment}\"\n{guard}\n[providers.relay]\nkind = \"smtp\"\nurl = \"{url}\"\n\
             [routes]\ndefault = [\"relay\"]\n"
        ),
    );
    place
}

fn add_company(place: &Place) -> String {
    place.print(&["company", "add", "acme", "--from", "Acme <hello@acme.com>"]);
    place.print(&["key", "create", "--company", "acme"]).trim().to_owned()
}

fn serve(place: &Place) -> Server {
    let mut command = place.command(&["serve"]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0");
    Server::start(command)
}

fn hand_in(address: &str, key: &str, (to, cc, bcc): Email) -> String {
    let body = json!({ "to": to, "cc": cc, "bcc": bcc, "subject": "Hello", "html": "<p>hello</p>" });
    let (key, url) = (format!("X-API-Key: {key}"), format!("http://{address}/v1/email/send"));
    let kind = "Content-Type: application/json";
    let answer = curl(&["-H", &key, "-H", kind, "-d", &body.to_string(), &url]);
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["outboxId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Which provider took each of the emails, and to whom the messages went that reached the SMTP server.
fn sent_under(guard: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let sink = Sink::start(&[]);
    let place = a_place(&sink, "staging", guard);
    let key = add_company(&place);
    let server = serve(&place);
    let address = server.address();
    let ids: Vec<String> = EMAILS.into_iter().map(|email| hand_in(&address, &key, email)).collect();
    let provider = |id: &String| {
        place.wait_for(id, "SENT")["provider"].as_str().expect("a sent email names its provider").to_owned()
    };
    let providers = ids.iter().map(provider).collect();
    server.stop();
    let mut arrivals = sink.arrivals();
    arrivals.sort_by_key(|arrival| ids.iter().position(|id| *id == arrival.id));
    (providers, arrivals.into_iter().map(|arrival| arrival.to).collect())
}

#[test]
fn process_staging_captures_everything_unless_told_otherwise() {
    for guard in ["", "[guard]\nmode = \"capture\""] {
        let (providers, arrivals) = sent_under(guard);
        assert_eq!(providers, ["capture"; EMAILS.len()], "{guard}");
        assert_eq!(arrivals, Vec::<Vec<String>>::new(), "{guard}");
    }
}

/// Copies too: nobody but the one address is ever written to.
#[test]
fn process_staging_redirects_everything_to_one_address() {
    let (providers, arrivals) = sent_under("[guard]\nmode = \"redirect\"\nredirect_to = \"qa@acme.test\"");
    assert_eq!(providers, ["relay"; EMAILS.len()]);
    assert_eq!(arrivals, vec![vec!["qa@acme.test".to_owned()]; EMAILS.len()]);
}

/// An email goes out as a whole or not at all: one stranger among its copies keeps it in.
#[test]
fn process_staging_writes_to_those_on_the_list_only() {
    let guard = "[guard]\nmode = \"allow\"\nallow = [\"ana@example.com\", \"@example.org\"]";
    let (providers, arrivals) = sent_under(guard);
    assert_eq!(providers, ["relay", "relay", "capture", "relay", "capture", "capture"]);
    let expected: [&[&str]; 3] =
        [&["ana@example.com"], &["bob@example.org"], &["ana@example.com", "bob@example.org"]];
    assert_eq!(arrivals, expected);
}

/// A database of production, with an email that waits, taken to staging, whatever the guard there would let through;
/// and one of staging taken to production.
#[test]
fn process_a_copied_database_sends_nothing() {
    let sink = Sink::start(&[]);
    let open = "[guard]\nmode = \"allow\"\nallow = [\"@example.com\"]";
    for (from, guard, to, guard_there) in
        [("production", "", "staging", open), ("staging", open, "production", "")]
    {
        let original = a_place(&sink, from, guard);
        add_company(&original);
        let server = serve(&original);
        server.address();
        server.stop();
        let id = original.send("acme", "ana@example.com", &[]);

        let copy = a_place(&sink, to, guard_there);
        for entry in std::fs::read_dir(original.path()).expect("it can be listed") {
            let entry = entry.expect("an entry");
            let (name, is_file) = (entry.file_name(), entry.path().is_file());
            if is_file && name.to_string_lossy().starts_with("posthaste.db") {
                std::fs::copy(original.path().join(&name), copy.path().join(&name)).expect("copied");
            }
        }
        for role in ["all", "worker", "api"] {
            let mut command = copy.command(&["serve", "--role", role]);
            let output = command.env("POSTHASTE_LISTEN", "127.0.0.1:0").output().expect("it runs");
            assert_eq!(output.status.code(), Some(2), "{to} {role}: {}", err(&output));
            let said = format!("made for the environment `{from}`, but the configuration says `{to}`");
            assert!(err(&output).contains(&said), "{to} {role}: {}", err(&output));
        }
        assert_eq!(sink.arrivals(), [], "{to}");
        assert_eq!(copy.json(&["show", &id]).remove(0)["status"], "ENQUEUED", "{to}");
    }
}
