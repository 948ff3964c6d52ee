//! Companies beside each other, as the SMTP server at the other end sees them: a flood of one does not hold up
//! another, weights are kept, and so are the limits a company has of its own.

use std::io::Write as _;
use std::process::Stdio;

use rusqlite::Connection;
use serde_json::Value;

use crate::sink::{Arrival, Sink};
use crate::support::{Place, Server, curl, out, until};

/// The most emails one call takes.
const BATCH_MAX: usize = 1_000;
/// What one process has in flight at most, as configured here.
const IN_FLIGHT_MAX: usize = 64;

/// Where a server runs, and the sink as its one provider.
struct World {
    place: Place,
    sink: Sink,
}

impl World {
    fn new(sink: Sink) -> Self {
        let place = Place::new();
        let settings = format!(
            "[worker]\nconcurrency = {IN_FLIGHT_MAX}\n[providers.sink]\nkind = \"smtp\"\nurl = \"{}\"\n",
            sink.url("")
        );
        place.write("posthaste.toml", &settings);
        Self { place, sink }
    }

    /// Adds a company and returns its key.
    fn company(&self, name: &str, settings: &[&str]) -> String {
        let from = format!("{name}@sender.test");
        let args = ["company", "add", name, "--from", &from];
        self.place.print(&args.iter().chain(settings).copied().collect::<Vec<_>>());
        self.place.print(&["key", "create", "--company", name]).trim().to_owned()
    }

    fn serve(&self, role: &str) -> Server {
        let mut command = self.place.command(&["serve", "--role", role]);
        command.env("POSTHASTE_LISTEN", "127.0.0.1:0").env("POSTHASTE_LOG__LEVEL", "info,gateway=warn");
        Server::start(command)
    }

    /// Hands in emails to `0@<name>.test`, `1@<name>.test` and so on, and returns their ids.
    fn hand_in(&self, address: &str, key: &str, name: &str, count: usize) -> Vec<String> {
        let numbers: Vec<usize> = (0..count).collect();
        let batches =
            numbers.chunks(BATCH_MAX).map(|numbers| self.hand_in_batch(address, key, name, numbers));
        batches.flatten().collect()
    }

    fn hand_in_batch(&self, address: &str, key: &str, name: &str, numbers: &[usize]) -> Vec<String> {
        let email = |n: &usize| format!(r#"{{"to":"{n}@{name}.test","subject":"s","html":"x"}}"#);
        self.place
            .write("batch.json", &format!("[{}]", numbers.iter().map(email).collect::<Vec<_>>().join(",")));
        let body = format!("@{}", self.place.path().join("batch.json").display());
        let key = format!("X-API-Key: {key}");
        let url = format!("http://{address}/v1/email/batch");
        let json = "Content-Type: application/json";
        let answer = curl(&["--max-time", "60", "-H", &key, "-H", json, "--data-binary", &body, &url]);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["accepted"], numbers.len(), "{answer}");
        let results = answer["results"].as_array().expect("a list").iter();
        results.map(|result| result["outboxId"].as_str().expect("an id").to_owned()).collect()
    }

    /// Waits until so many emails of the company have arrived, however long they take one by one.
    fn wait_for_arrivals(&self, name: &str, count: usize) -> Vec<Arrival> {
        for step in (0..count).step_by(10).chain([count]) {
            until(&format!("{step} emails of {name} arrive"), || {
                (arrived_of(&self.sink.arrivals(), name) >= step).then_some(())
            });
        }
        self.sink.arrivals()
    }

    /// How many emails of other companies were started before this one was handed in, and how many between that and its
    /// own start, in the order in which all that was recorded.
    fn claims_of_others(&self, id: &str) -> (usize, usize) {
        let connection = Connection::open(self.place.path().join("posthaste.db")).expect("the database");
        let sql = "WITH own AS (
                 SELECT o.company_id, min(e.id) FILTER (WHERE e.type = 'ENQUEUED') AS came,
                        min(e.id) FILTER (WHERE e.type = 'RECEIVED') AS started
                 FROM email_outbox o JOIN events e ON e.email_seq = o.seq WHERE o.id = ?1)
             SELECT count(*) FILTER (WHERE e.id < own.came), count(*) FILTER (WHERE e.id > own.came)
             FROM own, events e JOIN email_outbox o ON o.seq = e.email_seq
             WHERE e.type = 'RECEIVED' AND e.id < own.started AND o.company_id <> own.company_id";
        connection.query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?))).expect("counted")
    }

    /// When these events of the emails happened, each in milliseconds.
    fn moments(&self, ids: &[String], kinds: [&str; 2]) -> Vec<[i64; 2]> {
        let mut command = self.place.command(&["--json", "show", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        child.stdin.take().expect("piped").write_all(ids.join("\n").as_bytes()).expect("written");
        let output = child.wait_with_output().expect("it ends");
        let shown = out(&output);
        shown.lines().filter_map(|line| moments_of(line, kinds)).collect()
    }
}

/// `None` when the email has not come that far.
fn moments_of(line: &str, kinds: [&str; 2]) -> Option<[i64; 2]> {
    let email: Value = serde_json::from_str(line).expect("JSON");
    let events = email["events"].as_array().expect("a list");
    let moment = |kind: &str| {
        let event = events.iter().find(|event| event["type"] == kind)?;
        let at = event["at"].as_str().expect("a time");
        Some(model::Timestamp::parse(at).expect("a time").millis())
    };
    Some([moment(kinds[0])?, moment(kinds[1])?])
}

fn is_of(arrival: &Arrival, name: &str) -> bool {
    arrival.to[0].ends_with(&format!("@{name}.test"))
}

fn arrived_of(arrivals: &[Arrival], name: &str) -> usize {
    arrivals.iter().filter(|arrival| is_of(arrival, name)).count()
}

/// The most of these spans, `[start, end)`, that hold one moment in common.
fn overlap_max(spans: &[[i64; 2]]) -> usize {
    let at = |moment: i64| spans.iter().filter(|[start, end]| *start <= moment && moment < *end).count();
    spans.iter().map(|[start, _]| at(*start)).max().unwrap_or(0)
}

/// The most of these moments within any second.
fn second_max(moments: &[i64]) -> usize {
    let from = |start: i64| moments.iter().filter(|at| (start..start + 1_000).contains(*at)).count();
    moments.iter().map(|start| from(*start)).max().unwrap_or(0)
}

#[test]
fn process_a_flood_of_one_company_does_not_hold_up_another() {
    const FLOOD: usize = 20_000;
    const TRICKLE: usize = 10;
    let world = World::new(Sink::start(&["--rate", "300"]));
    let flood_key = world.company("flood", &[]);
    let trickle_key = world.company("trickle", &[]);
    let api = world.serve("api");
    let address = api.address();
    world.hand_in(&address, &flood_key, "flood", FLOOD);
    let worker = world.serve("worker");
    until("sending has begun", || (!world.sink.arrivals().is_empty()).then_some(()));

    let hand_in = |n| world.hand_in_batch(&address, &trickle_key, "trickle", &[n]).remove(0);
    let ids: Vec<String> = (0..TRICKLE).map(hand_in).collect();
    world.wait_for_arrivals("trickle", TRICKLE);
    worker.stop();
    api.stop();

    let (before, overtaken_by) = world.claims_of_others(&ids[TRICKLE - 1]);
    let waiting = FLOOD - before;
    println!(
        "{waiting} of {FLOOD} emails of the flood were waiting; {overtaken_by} of them were started between the last \
         hand-in of the others and its start"
    );
    assert!(waiting >= FLOOD / 2, "only {waiting} were left to wait behind");
    assert!(overtaken_by < waiting / 100, "{overtaken_by} of {waiting}");
}

#[test]
fn process_companies_share_by_weight() {
    const LOOKED_AT: usize = 400;
    let world = World::new(Sink::start(&["--rate", "300"]));
    let heavy_key = world.company("heavy", &["--weight", "3"]);
    let light_key = world.company("light", &["--weight", "1"]);
    let api = world.serve("api");
    let address = api.address();
    world.hand_in(&address, &heavy_key, "heavy", 600);
    world.hand_in(&address, &light_key, "light", 600);
    api.stop();

    let worker = world.serve("worker");
    let arrivals = world.wait_for_arrivals("heavy", 3 * LOOKED_AT / 4 + IN_FLIGHT_MAX);
    worker.stop();
    let arrivals = &arrivals[..LOOKED_AT];
    let (heavy, light) = (arrived_of(arrivals, "heavy"), arrived_of(arrivals, "light"));
    println!("of the first {LOOKED_AT} arrivals {heavy} have weight 3 and {light} weight 1");
    let ratio = heavy as f64 / light as f64;
    assert!((3.0 * 0.85..=3.0 * 1.15).contains(&ratio), "{heavy} to {light}");
}

#[test]
fn process_a_company_has_no_more_in_flight_than_it_may() {
    const COUNT: usize = 60;
    /// A little less than the sink's latency, since clocks are read in milliseconds.
    const ANSWER_MS: i64 = 45;
    let world = World::new(Sink::start(&["--latency-ms", "50"]));
    let key = world.company("narrow", &["--concurrency-max", "2"]);
    let server = world.serve("all");
    let ids = world.hand_in(&server.address(), &key, "narrow", COUNT);
    let arrivals = world.wait_for_arrivals("narrow", COUNT);
    world.place.wait_for(&arrivals[COUNT - 1].id, "SENT");
    server.stop();

    let by_events = overlap_max(&world.moments(&ids, ["RECEIVED", "SENT"]));
    let spans = arrivals.iter().map(|arrival| (arrival.at_secs * 1_000.0) as i64);
    let by_sink = overlap_max(&spans.map(|at| [at, at + ANSWER_MS]).collect::<Vec<_>>());
    println!("in flight at once, of 2 allowed: {by_events} by the events, {by_sink} by the sink");
    // An event has the time at which its transaction was asked for, so that one may seem to come before another's end.
    assert!(by_sink <= 2 && by_events.max(by_sink) >= 2, "{by_events}, {by_sink}");
}

#[test]
fn process_a_company_starts_no_more_per_second_than_it_may() {
    const RATE: usize = 20;
    const SECONDS: usize = 5;
    let world = World::new(Sink::start(&[]));
    let rate = RATE.to_string();
    let key = world.company("paced", &["--rate-per-sec", &rate]);
    let server = world.serve("all");
    let ids = world.hand_in(&server.address(), &key, "paced", 2 * RATE * SECONDS);
    world.wait_for_arrivals("paced", RATE * SECONDS);
    server.stop();

    let moments = world.moments(&ids, ["RECEIVED", "SENT_ATTEMPT"]);
    let mut started: Vec<i64> = moments.iter().map(|[started, _]| *started).collect();
    started.sort_unstable();
    // What is started in the first moment is the second before it.
    let took_ms = started[started.len() - 1] - started[0];
    let reached = 1_000.0 * (started.len() - RATE) as f64 / took_ms as f64;
    // From its start an email takes as long to the provider as the machine lets it: that is not counted.
    let most = second_max(&started);
    println!(
        "of {RATE} per second allowed: at most {most} within any second, {reached:.1} over {took_ms} ms"
    );
    assert_eq!(most, RATE, "{started:?}");
}
