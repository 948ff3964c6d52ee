//! The machine's clock jumps under a running server, or was never set when it started. The clock is that of libfaketime
//! (Debian's package `faketime`, which `./test` installs): the server's own, so nothing else on the machine notices.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{Place, Server, curl, until};

const DELAYED: usize = 1_000;
const HOUR_MS: u64 = 3_600_000;

/// A server, and the file that says how far its clock is from the machine's.
struct World {
    place: Place,
    key: String,
    server: Option<Server>,
    address: String,
}

impl World {
    fn new() -> Self {
        let place = Place::new();
        place.write("posthaste.toml", "[retry.fast]\ndelays_secs = [1800]\nmax_attempts = 2\n");
        place.print(&["company", "add", "acme", "--from", "shop@acme.test"]);
        let key = place.print(&["key", "create", "--company", "acme", "--test"]).trim().to_owned();
        Self { place, key, server: None, address: String::new() }
    }

    fn set_clock(&self, offset: &str) {
        // Renamed, since it may be read at any moment.
        self.place.write("offset.new", offset);
        let (new, offset) = (self.place.path().join("offset.new"), self.place.path().join("offset"));
        std::fs::rename(new, offset).expect("renamed");
    }

    /// Starts the server with its clock so far off.
    fn start(&mut self, offset: &str) {
        self.set_clock(offset);
        let mut command = self.place.command(&["serve"]);
        command
            .env("POSTHASTE_LISTEN", "127.0.0.1:0")
            .env("LD_PRELOAD", libfaketime())
            .env("FAKETIME_TIMESTAMP_FILE", self.place.path().join("offset"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let server = Server::start(command);
        self.address = server.address();
        self.server = Some(server);
    }

    fn log_until(&self, words: &str) -> Vec<String> {
        self.server.as_ref().expect("started").log_until(words)
    }

    fn post(&self, path: &str, kind: &str, body: &str) -> Value {
        self.place.write("body", body);
        let (key, kind) = (format!("X-API-Key: {}", self.key), format!("Content-Type: {kind}"));
        let file = format!("@{}", self.place.path().join("body").display());
        let url = format!("http://{}{path}", self.address);
        let answer = curl(&["--max-time", "60", "-H", &key, "-H", &kind, "--data-binary", &file, &url]);
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{path}: {answer}"))
    }

    fn send(&self, to: &str) -> Value {
        let email = json!({ "to": to, "subject": "Hello", "html": "<p>hello</p>" });
        self.post("/v1/email/send", "application/json", &email.to_string())
    }

    fn get(&self, path: &str) -> Value {
        let key = format!("X-API-Key: {}", self.key);
        let answer = curl(&["--max-time", "60", "-H", &key, &format!("http://{}{path}", self.address)]);
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{path}: {answer}"))
    }

    fn wait_for(&self, id: &Value, status: &str) {
        let id = id.as_str().unwrap_or_else(|| panic!("no id: {id}"));
        until(&format!("{id} is {status}"), || {
            (self.get(&format!("/v1/emails/{id}"))["status"] == status).then_some(())
        });
    }

    /// A worker has looked for work since, and the sweep has made a whole round: it is the sweep that takes .eml files
    /// in, and one may have been taken in by a round that was under way.
    fn work_goes_on(&self) {
        for _ in 0..2 {
            let eml = "From: shop@acme.test\r\nTo: ana@example.com\r\nSubject: Hello\r\n\r\nHello\r\n";
            let answer = self.post("/v1/email/raw", "message/rfc822", eml);
            self.wait_for(&answer["outboxId"], "SENT");
        }
    }

    /// How many emails have the status.
    fn count(&self, status: &str) -> usize {
        let (mut count, mut cursor) = (0, String::new());
        loop {
            let page = self.get(&format!("/v1/emails?status={status}&limit=100{cursor}"));
            count += page["data"].as_array().unwrap_or_else(|| panic!("{page}")).len();
            let Some(next) = page["nextCursor"].as_str() else { return count };
            cursor = format!("&cursor={next}");
        }
    }
}

fn libfaketime() -> PathBuf {
    let places = std::fs::read_dir("/usr/lib").expect("/usr/lib").flatten().map(|entry| entry.path());
    let mut found = places.map(|place| place.join("faketime/libfaketimeMT.so.1"));
    found.find(|path| path.exists()).expect("libfaketime: install the package faketime, as ./test does")
}

#[test]
fn process_a_clock_that_jumps_expires_nothing_and_sends_nothing_early() {
    let mut world = World::new();
    world.start("+0");
    let email = json!({ "to": "ana@example.com", "subject": "Later", "html": "<p>hi</p>", "delay": HOUR_MS });
    let batch = Value::Array(vec![email; DELAYED]).to_string();
    assert_eq!(world.post("/v1/email/batch", "application/json", &batch)["accepted"], DELAYED);
    let retried = world.send("throttled@posthaste.test");
    world.wait_for(&retried["outboxId"], "RETRY_SCHEDULED");
    let mut sent = 0;
    for (offset, from_now) in [("+25h", 25), ("-2h", -2)] {
        world.set_clock(offset);
        let lines = world.log_until("the clock was set by more than an hour");
        let line: Value = serde_json::from_str(lines.last().expect("a line")).expect("JSON");
        let apart_ms = moment(&line["shown"]) - moment(&line["told"]);
        assert!((apart_ms - from_now * HOUR_MS as i64).abs() < 60_000, "{line}");
        world.work_goes_on();
        let new = world.send("ana@example.com");
        world.wait_for(&new["outboxId"], "SENT");
        sent += 3;
        assert_eq!(world.count("EXPIRED"), 0, "at {offset}");
        assert_eq!(world.count("RETRY_SCHEDULED"), 1, "at {offset}");
        assert_eq!(world.count("ENQUEUED"), DELAYED, "at {offset}");
        assert_eq!(world.count("SENT"), sent, "at {offset}");
    }
    world.set_clock("+0");
    world.log_until("the clock agrees with the steady one again");
    world.server.take().expect("started").stop();
}

fn moment(text: &Value) -> i64 {
    let text = text.as_str().unwrap_or_else(|| panic!("no time: {text}"));
    model::Timestamp::parse(text).expect("RFC 3339").millis()
}

#[test]
fn process_a_clock_that_was_never_set_is_waited_for() {
    let mut world = World::new();
    let waiting = world.place.send("acme", "ana@example.com", &["--test"]);
    // Somewhere in 1970 or soon after, as on a machine without a battery.
    world.start("-20000d");
    let not_ready = world.get("/readyz");
    assert_eq!(
        (&not_ready["code"], &not_ready["detail"]),
        (&json!("NOT_READY"), &json!("clock: it was never set"))
    );
    let refused = world.send("ana@example.com");
    assert_eq!((&refused["status"], &refused["code"]), (&json!(503), &json!("NOT_READY")), "{refused}");
    world.set_clock("+0");
    world.log_until("the clock is set now");
    world.wait_for(&Value::String(waiting), "SENT");
    let new = world.send("ana@example.com");
    world.wait_for(&new["outboxId"], "SENT");
    assert_eq!((world.count("SENT"), world.count("EXPIRED")), (2, 0));
    assert_eq!(world.get("/readyz")["status"], "ready");
    world.server.take().expect("started").stop();
}
