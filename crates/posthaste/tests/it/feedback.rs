//! What happens after sending, as users meet it: webhooks, suppression, templates and alerts through the real binary.

use std::io::Write as _;
use std::process::Stdio;

use model::Clock as _;
use serde_json::{Value, json};

use crate::support::{Place, Server, curl, err, kinds, out, until};

const SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";

struct World {
    place: Place,
    server: Server,
    address: String,
    key: String,
}

impl World {
    fn new(settings: &str) -> Self {
        let place = Place::new();
        place.write("posthaste.toml", settings);
        place.print(&["company", "add", "acme", "--from", "Acme <hi@acme.test>"]);
        let key = place.print(&["key", "create", "--company", "acme", "--test", "--scope", "admin"]);
        let mut command = place.command(&["serve"]);
        command.env("POSTHASTE_LISTEN", "127.0.0.1:0").env("ADMIN_EMAIL", "ops@acme.test");
        let server = Server::start(command);
        let address = server.address();
        Self { place, server, address, key: key.trim().to_owned() }
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (key, url) = (format!("X-API-Key: {}", self.key), format!("http://{}{path}", self.address));
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut args = vec!["-X", method, "-H", &key, "-H", "Content-Type: application/json"];
        if body.is_some() {
            args.extend(["--data-binary", &text]);
        }
        args.push(&url);
        let answer = curl(&args);
        if answer.is_empty() { Value::Null } else { serde_json::from_str(&answer).expect("JSON") }
    }

    fn send(&self, body: &Value) -> Value {
        self.call("POST", "/v1/email/send", Some(body))
    }

    fn send_to(&self, address: &str) -> String {
        let answer = self.send(&json!({ "to": address, "subject": "Hello", "html": "<p>Hello</p>" }));
        answer["outboxId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    fn status(&self, id: &str) -> String {
        self.call("GET", &format!("/v1/emails/{id}"), None)["status"].as_str().unwrap_or_default().to_owned()
    }

    fn wait_for(&self, id: &str, status: &str) {
        until(&format!("{id} is {status}"), || (self.status(id) == status).then_some(()));
    }

    /// A report of Resend, signed with that secret.
    fn report(&self, secret: &str, event_id: &str, body: &Value) -> u16 {
        let secret = ::feedback::svix::SigningSecret::parse(secret).expect("a secret");
        let now = model::SystemClock.now().millis() / 1_000;
        let body = body.to_string();
        let signature = ::feedback::svix::sign(&secret, event_id, now, body.as_bytes());
        let headers = [
            format!("svix-id: {event_id}"),
            format!("svix-timestamp: {now}"),
            format!("svix-signature: {signature}"),
        ];
        let url = format!("http://{}/v1/webhooks/resend", self.address);
        let code = curl(&[
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-H",
            &headers[0],
            "-H",
            &headers[1],
            "-H",
            &headers[2],
            "-H",
            "Content-Type: application/json",
            "--data-binary",
            &body,
            &url,
        ]);
        code.parse().expect("a status")
    }
}

const RESEND: &str = "[providers.second]\nkind = \"resend\"\napi_key = \"re_0123456789\"\n\
    endpoint = \"http://127.0.0.1:9\"\nwebhook_secret = \"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz\"\n\
    [routes]\ndefault = [\"capture\"]\n";

/// The whole story of a bounce, without a provider: status, suppression, alert in the mailbox, and no second email.
#[test]
fn process_a_sandbox_bounce_tells_the_whole_story() {
    let world = World::new("");
    let id = world.send_to("bounced@posthaste.test");
    world.wait_for(&id, "BOUNCED");
    let shown = world.place.json(&["show", &id]).remove(0);
    assert!(kinds(&shown).ends_with(&["SENT".to_owned(), "BOUNCED".to_owned()]), "{:?}", kinds(&shown));

    let listed = world.place.json(&["suppression", "list", "--company", "acme"]);
    assert_eq!(listed[0]["email"], "bounced@posthaste.test");
    assert_eq!(listed[0]["source"], "bounce");
    let again = world.send(&json!({ "to": "bounced@posthaste.test", "subject": "s", "html": "x" }));
    assert_eq!(again["warnings"][0]["code"], "RECIPIENT_SUPPRESSED", "{again}");
    world.wait_for(again["outboxId"].as_str().expect("an id"), "FAILED");
    let strict =
        json!({ "to": "bounced@posthaste.test", "subject": "s", "html": "x", "onSuppressed": "reject" });
    assert_eq!(world.send(&strict)["code"], "RECIPIENT_SUPPRESSED");

    let alert = until("an alert arrives", || {
        let page = world.call("GET", "/v1/emails?tag=posthaste-alert", None);
        page["data"].as_array().and_then(|emails| emails.first().cloned())
    });
    assert_eq!(alert["to"], "ops@acme.test");
    assert!(
        alert["subject"].as_str().is_some_and(|subject| subject.starts_with("⚠️ Email bounced - ")),
        "{alert}"
    );

    world.place.print(&["suppression", "lift", "--company", "acme", "bounced@posthaste.test"]);
    let lifted = world.place.run(&["suppression", "lift", "--company", "acme", "bounced@posthaste.test"]);
    assert_eq!(lifted.status.code(), Some(1), "{}", err(&lifted));
    world.server.stop();
}

/// A report of Resend over HTTP: believed when it is signed, carried out once.
#[test]
fn process_a_signed_report_is_carried_out() {
    let world = World::new(RESEND);
    let id = world.send_to("ana@example.com");
    world.wait_for(&id, "SENT");
    let event = |kind: &str| {
        json!({
            "type": kind, "created_at": "2026-11-16T10:00:00Z",
            "data": { "email_id": "re-1", "to": ["ana@example.com"], "tags": { "posthaste_id": id } },
        })
    };
    let other = "whsec_OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2";
    assert_eq!(world.report(other, "msg_forged", &event("email.complained")), 401);
    assert_eq!(world.status(&id), "SENT");
    assert_eq!(world.report(SECRET, "msg_1", &event("email.delivered")), 200);
    assert_eq!(world.status(&id), "DELIVERED", "carried out before the answer");
    assert_eq!(world.report(SECRET, "msg_1", &event("email.delivered")), 200);
    let shown = world.place.json(&["show", &id]).remove(0);
    assert_eq!(kinds(&shown).iter().filter(|kind| *kind == "DELIVERED").count(), 1);
    world.server.stop();
}

#[test]
fn process_trigger_plays_reports_of_captured_mail() {
    let world = World::new("");
    let id = world.send_to("ana@example.com");
    world.wait_for(&id, "SENT");
    for (event, status) in [
        ("opened", "SENT"),
        ("delivered", "DELIVERED"),
        ("soft-bounced", "DELIVERED"),
        ("complained", "COMPLAINED"),
    ] {
        let answer = world.place.json(&["trigger", event, &id]).remove(0);
        assert_eq!(answer["status"], status, "{event}");
    }
    let wrong = world.place.run(&["trigger", "exploded", &id]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(err(&wrong).contains("soft-bounced"), "{}", err(&wrong));
    let missing = world.place.run(&["trigger", "opened", "0190c3d2-7b7e-7000-8000-000000000000"]);
    assert_eq!(missing.status.code(), Some(1));
    world.server.stop();
}

#[test]
fn process_templates_are_pushed_and_used() {
    let world = World::new("");
    let folder = world.place.path().join("templates");
    std::fs::create_dir(&folder).expect("made");
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("written");
    write("welcome.html", "<p>Hello {{ name }}, order {{ order.id }}</p>");
    write("welcome.subject.txt", "Welcome {{ name }}\n");
    let push = ["templates", "push", "--company", "acme", "templates"];
    let pushed = world.place.json(&push);
    assert_eq!((&pushed[0]["version"], &pushed[0]["result"]), (&json!(1), &json!("written")));
    assert_eq!(world.place.json(&push)[0]["result"], "unchanged");

    let body = json!({ "to": "ana@example.com", "template": "welcome", "variables": { "name": "Ana <b>" } });
    let missing = world.send(&body);
    assert_eq!(missing["errors"][0]["field"], "variables.order.id", "{missing}");
    let body = json!({
        "to": "ana@example.com", "template": "welcome", "variables": { "name": "Ana <b>", "order": { "id": 7 } },
    });
    let id = world.send(&body)["outboxId"].as_str().expect("an id").to_owned();
    let content = world.call("GET", &format!("/v1/emails/{id}/content"), None);
    assert_eq!(content["html"], "<p>Hello Ana &lt;b&gt;, order 7</p>", "{content}");
    assert_eq!(world.call("GET", &format!("/v1/emails/{id}"), None)["subject"], "Welcome Ana <b>");

    write("welcome.html", "<p>{% if %}</p>");
    let broken = world.place.run(&push);
    assert_eq!(broken.status.code(), Some(1));
    assert!(err(&broken).contains("welcome: html, line 1"), "{}", err(&broken));
    assert_eq!(world.place.json(&["templates", "list", "--company", "acme"])[0]["version"], 1);
    world.server.stop();
}

#[test]
fn process_suppressions_come_from_a_file() {
    let place = Place::new();
    place.print(&["company", "add", "acme"]);
    let mut command = place.command(&["--json", "suppression", "add", "--company", "acme", "--file", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let lines = "# from the old system\nana@example.com\n\nBOB@example.com\nbob@example.com\n";
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    let answer: Value = serde_json::from_str(&out(&output)).expect("JSON");
    assert_eq!(answer, json!({ "added": 2, "known": 1 }));
    place.write("wrong.txt", "ana@example.com\nnobody\n");
    let wrong = place.run(&["suppression", "add", "--company", "acme", "--file", "wrong.txt"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(err(&wrong).contains("line 2"), "{}", err(&wrong));
    assert_eq!(place.json(&["suppression", "list", "--company", "acme"]).len(), 2);
}
