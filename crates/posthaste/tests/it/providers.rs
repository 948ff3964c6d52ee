//! Providers that are slow, broken or strict, played by servers that speak their wire formats: what the emails make of
//! it, whichever worker holds them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};
use testkit::http::{Answer, Request, Server as Http, json as reply};
use tokio::runtime::Runtime;

use crate::sink::Sink;
use crate::support::{Place, Server, curl};

/// The most emails one call takes.
const BATCH_MAX: usize = 1_000;
/// How long emails are waited for in all; a test that needs it is broken.
const PATIENCE: Duration = Duration::from_secs(240);
const IDS_KEPT: &str = "a list of ids";

/// A call to a provider as its server met it.
#[derive(Debug, Clone)]
struct Call {
    at: Instant,
    /// Our id, by header or tag.
    email: String,
    idempotency_key: Option<String>,
}

/// A provider's server, and what it was asked to send so far.
struct Fake {
    server: Http,
    calls: Arc<Mutex<Vec<Call>>>,
    _runtime: Runtime,
}

impl Fake {
    /// `answer` is given the calls so far, this one included, which is the last.
    fn start(answer: impl Fn(&[Call]) -> Answer + Send + Sync + 'static) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let kept = Arc::clone(&calls);
        let server = runtime.block_on(Http::start(move |request: &Request| {
            if request.path == "/v2/email/account" {
                return Answer::from(reply(200, ACCOUNT));
            }
            let mut calls = kept.lock().expect("no panic");
            calls.push(call(request));
            answer(&calls)
        }));
        Self { server, calls, _runtime: runtime }
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("no panic").clone()
    }

    fn resend(&self, name: &str, more: &str) -> String {
        let url = self.server.url();
        format!(
            "[providers.{name}]\nkind = \"resend\"\napi_key = \"re_test_0123456789\"\nendpoint = \"{url}\"\n{more}\n"
        )
    }

    fn ses(&self, name: &str) -> String {
        let url = self.server.url();
        format!("[providers.{name}]\nkind = \"ses\"\nregion = \"eu-west-1\"\nendpoint = \"{url}\"\n")
    }
}

/// An account without limits worth speaking of.
const ACCOUNT: &str = r#"{"SendingEnabled":true,"ProductionAccessEnabled":true,
    "SendQuota":{"Max24HourSend":1000000.0,"MaxSendRate":10000.0,"SentLast24Hours":0.0}}"#;

fn call(request: &Request) -> Call {
    let body: Value = serde_json::from_slice(&request.body).expect("JSON");
    let pairs = [&body["tags"], &body["EmailTags"]].into_iter().filter_map(Value::as_array).flatten();
    let tag = pairs
        .filter(|pair| pair["name"] == "posthaste_id" || pair["Name"] == "posthaste_id")
        .find_map(|pair| pair["value"].as_str().or(pair["Value"].as_str()));
    Call {
        at: Instant::now(),
        email: tag.expect("our id is among the tags").to_owned(),
        idempotency_key: request.header("idempotency-key").map(str::to_owned),
    }
}

/// Taken, in the words of Resend and of SES.
fn taken(call: &Call) -> testkit::http::Reply {
    reply(200, &json!({ "id": call.email, "MessageId": call.email }).to_string())
}

/// How many emails have been asked for more than once.
fn copies(calls: &[Call]) -> BTreeMap<&str, usize> {
    let mut copies = BTreeMap::new();
    for call in calls {
        *copies.entry(call.email.as_str()).or_insert(0) += 1;
    }
    copies
}

/// Where the processes run.
struct World {
    place: Place,
    address: String,
    api: Server,
}

impl World {
    fn new(settings: &str) -> Self {
        let place = Place::new();
        place.write("posthaste.toml", settings);
        let api = serve(&place, "api");
        let address = api.address();
        Self { place, address, api }
    }

    fn company(&self, name: &str, more: &[&str]) -> String {
        let from = format!("{name}@sender.test");
        let args = ["company", "add", name, "--from", &from];
        self.place.print(&args.iter().chain(more).copied().collect::<Vec<_>>());
        self.place.print(&["key", "create", "--company", name]).trim().to_owned()
    }

    fn worker(&self) -> Server {
        serve(&self.place, "worker")
    }

    fn hand_in(&self, key: &str, count: usize) -> Vec<String> {
        let numbers: Vec<usize> = (0..count).collect();
        numbers.chunks(BATCH_MAX).flat_map(|numbers| self.hand_in_batch(key, numbers)).collect()
    }

    fn hand_in_batch(&self, key: &str, numbers: &[usize]) -> Vec<String> {
        let emails: Vec<Value> = numbers
            .iter()
            .map(|n| json!({ "to": format!("{n}@there.test"), "subject": "s", "html": "<p>x</p>" }))
            .collect();
        self.place.write("batch.json", &json!(emails).to_string());
        let body = format!("@{}", self.place.path().join("batch.json").display());
        let answer = self.curl(
            key,
            "/v1/email/batch",
            &["-H", "Content-Type: application/json", "--data-binary", &body],
        );
        assert_eq!(answer["accepted"], numbers.len(), "{answer}");
        let results = answer["results"].as_array().expect(IDS_KEPT).iter();
        results.map(|result| result["outboxId"].as_str().expect("an id").to_owned()).collect()
    }

    fn curl(&self, key: &str, path: &str, args: &[&str]) -> Value {
        let (key, url) = (format!("X-API-Key: {key}"), format!("http://{}{path}", self.address));
        let all: Vec<&str> =
            ["--max-time", "60", "-H", &key].iter().chain(args).chain([&url.as_str()]).copied().collect();
        serde_json::from_str(&curl(&all)).expect("JSON")
    }

    fn providers(&self) -> Value {
        let url = format!("http://{}/v1/admin/providers", self.address);
        serde_json::from_str(&curl(&[&url])).expect("JSON")
    }

    /// How many emails of the company have this status, of at most 100.
    fn some(&self, key: &str, status: &str) -> Vec<Value> {
        let page = self.curl(key, &format!("/v1/emails?limit=100&status={status}"), &[]);
        page["data"].as_array().expect("a list").clone()
    }

    /// Waits until none of the company's emails is on its way any more. It asks the database, which sees all of them at
    /// one moment, whatever they change to meanwhile.
    fn wait_until_done(&self, company: &str) {
        let connection = Connection::open(self.place.path().join("posthaste.db")).expect("the database");
        connection.busy_timeout(PATIENCE).expect("set");
        let under_way = || -> usize {
            let sql = "SELECT count(*) FROM email_outbox o JOIN companies c ON c.id = o.company_id
                       WHERE c.name = ?1 AND o.status IN ('ENQUEUED', 'PROCESSING', 'RETRY_SCHEDULED')";
            connection.query_row(sql, [company], |row| row.get(0)).expect("a count")
        };
        let since = Instant::now();
        while under_way() > 0 {
            assert!(since.elapsed() < PATIENCE, "emails are still under way");
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    fn event_kinds(&self, key: &str, id: &str) -> Vec<String> {
        let events = self.curl(key, &format!("/v1/emails/{id}/events"), &[]);
        let kind = |event: &Value| event["type"].as_str().unwrap_or_default().to_owned();
        events["data"].as_array().expect("a list").iter().map(kind).collect()
    }
}

fn serve(place: &Place, role: &str) -> Server {
    let mut command = place.command(&["serve", "--role", role]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0").env("POSTHASTE_LOG__LEVEL", "info,gateway=warn");
    command.env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE").env("AWS_SECRET_ACCESS_KEY", "not-a-real-secret");
    Server::start(command)
}

/// Two processes share a provider's rate through the store. A start is taken some time before its call, as long as the
/// machine lets it take, so that it is the whole that is looked at: each with the rate to itself would need half the time.
#[test]
fn process_two_workers_together_keep_to_a_providers_rate() {
    const RATE: usize = 20;
    const COUNT: usize = 12 * RATE;
    const LEAST: Duration = Duration::from_secs(8);
    let fake = Fake::start(|calls| taken(calls.last().expect("this one")).into());
    let world = World::new(&fake.resend("main", &format!("rate_per_sec = {RATE}")));
    let key = world.company("paced", &[]);
    world.hand_in(&key, COUNT);
    let _workers = [world.worker(), world.worker()];
    world.wait_until_done("paced");

    let calls = fake.calls();
    assert_eq!(copies(&calls).len(), COUNT);
    assert_eq!(calls.len(), COUNT, "each once");
    let took = calls[COUNT - 1].at - calls[0].at;
    println!("{COUNT} calls took {took:?} at {RATE} per second");
    assert!(took >= LEAST, "{COUNT} calls within {took:?}");
    assert_eq!(world.providers()["data"][1]["ratePerSec"], RATE);
}

/// A minute of 503 with 5,000 emails waiting: those that met it follow the table, the others wait untouched.
#[test]
fn process_an_outage_burns_no_attempts() {
    const WAITING: usize = 5_000;
    const OUTAGE: Duration = Duration::from_secs(60);
    let fake = Fake::start(|calls| {
        let (first, last) = (calls.first().expect("this one"), calls.last().expect("this one"));
        if last.at - first.at < OUTAGE {
            return reply(503, r#"{"name":"internal_server_error","message":"down"}"#).into();
        }
        taken(last).into()
    });
    let world = World::new(&fake.resend("main", ""));
    let key = world.company("patient", &[]);
    world.hand_in(&key, WAITING);
    let workers = [world.worker(), world.worker()];
    let began = Instant::now();
    while world.providers()["data"][1]["status"] != "RESTING" {
        assert!(began.elapsed() < PATIENCE, "the breaker never opened");
        std::thread::sleep(Duration::from_millis(50));
    }
    let resting = world.providers()["data"][1].clone();
    assert_eq!(resting["breaker"]["cause"], "OUTAGE", "{resting}");
    world.wait_until_done("patient");
    drop(workers);

    assert!(world.some(&key, "FAILED").is_empty());
    let calls = fake.calls();
    assert_eq!(copies(&calls).len(), WAITING, "every one was sent");
    let first = calls[0].at;
    let during: Vec<Call> = calls.iter().filter(|call| call.at - first < OUTAGE).cloned().collect();
    let burnt = calls.len() - WAITING;
    println!("{} calls during the outage; {burnt} attempts were burnt", during.len());
    assert_eq!(burnt, during.len());
    // What two workers had in flight when it began, and probes after 1, 2, 4, 8 and then every 15 seconds.
    assert!(during.len() <= 2 * 64 + 3 + 8, "{} calls", during.len());
}

/// A provider that takes 29 s to answer holds up its own emails and nobody else's.
#[test]
fn process_a_slow_provider_slows_only_its_own() {
    const LATE: Duration = Duration::from_secs(29);
    let slow = Fake::start(|calls| Answer::Late(LATE, taken(calls.last().expect("this one"))));
    let quick = Fake::start(|calls| taken(calls.last().expect("this one")).into());
    let routes = "[routes]\ndefault = [\"quick\"]\n";
    let world = World::new(&[slow.resend("slow", ""), quick.resend("quick", ""), routes.to_owned()].concat());
    let slow_key = world.company("slow", &["--route", "slow"]);
    let quick_key = world.company("quick", &[]);
    world.hand_in(&slow_key, 300);
    let worker = world.worker();
    let since = Instant::now();
    while slow.calls().is_empty() {
        assert!(since.elapsed() < PATIENCE, "the slow provider was never called");
        std::thread::sleep(Duration::from_millis(20));
    }
    world.hand_in(&quick_key, 200);
    world.wait_until_done("quick");
    let (quick, first_answer) = (quick.calls(), slow.calls()[0].at + LATE);
    assert_eq!(quick.len(), 200);
    assert!(quick[199].at < first_answer, "the quick ones were sent before the slow provider's first answer");
    drop(worker);
}

/// Takes each email once and hangs up before it says so; the second time it answers.
fn accepts_and_resets() -> Fake {
    Fake::start(|calls| {
        let last = calls.last().expect("this one");
        let is_first = calls.iter().filter(|call| call.email == last.email).count() == 1;
        if is_first { Answer::Reset } else { taken(last).into() }
    })
}

const LOST_ANSWERS: usize = 20;

/// Resend knows its requests again by their key: asked twice, it sends once.
#[test]
fn process_a_lost_answer_of_resend_doubles_nothing() {
    let fake = accepts_and_resets();
    let world = World::new(&fake.resend("main", ""));
    let key = world.company("acme", &[]);
    let ids = world.hand_in(&key, LOST_ANSWERS);
    let _worker = world.worker();
    world.wait_until_done("acme");
    assert_eq!(world.some(&key, "SENT").len(), LOST_ANSWERS);

    let calls = fake.calls();
    for id in &ids {
        let keys: Vec<&Option<String>> =
            calls.iter().filter(|call| call.email == *id).map(|call| &call.idempotency_key).collect();
        assert!(keys.len() >= 2, "{id} was asked for again");
        assert!(keys[0].is_some() && keys.iter().all(|key| *key == keys[0]), "{id}: {keys:?}");
    }
}

/// SES does not: every copy that may be a second one is marked.
#[test]
fn process_a_lost_answer_of_ses_is_marked() {
    let fake = accepts_and_resets();
    let world = World::new(&fake.ses("main"));
    let key = world.company("acme", &[]);
    let ids = world.hand_in(&key, LOST_ANSWERS);
    let _worker = world.worker();
    world.wait_until_done("acme");
    assert_eq!(world.some(&key, "SENT").len(), LOST_ANSWERS);
    let calls = fake.calls();
    let copies = copies(&calls);
    for id in &ids {
        let doubled = copies[id.as_str()] > 1;
        let marked = world.event_kinds(&key, id).iter().any(|kind| kind == "OUTCOME_UNKNOWN");
        assert!(doubled && marked, "{id}: {} copies, marked: {marked}", copies[id.as_str()]);
    }
}

/// Nor does an SMTP server: every copy after the first is marked before it goes out, and with `hold` there is none.
#[test]
fn process_a_lost_answer_of_smtp_is_marked_or_held() {
    const EMAILS: usize = 3;
    let sink = Sink::start(&[]);
    let settings = format!(
        "default_retry = \"twice\"\n[retry.twice]\ndelays_secs = [1]\nmax_attempts = 2\n\
         [providers.relay]\nkind = \"smtp\"\nurl = \"{}\"\n",
        sink.url("")
    );
    let world = World::new(&settings);
    let (key, careful) = (world.company("acme", &[]), world.company("careful", &["--on-unknown", "hold"]));
    let hand_in = |key: &str| -> Vec<String> {
        let email = |n| json!({ "to": format!("{n}@accept-reset.test"), "subject": "s", "html": "<p>x</p>" });
        world.place.write("batch.json", &json!((0..EMAILS).map(email).collect::<Vec<_>>()).to_string());
        let body = format!("@{}", world.place.path().join("batch.json").display());
        let json = "Content-Type: application/json";
        let answer = world.curl(key, "/v1/email/batch", &["-H", json, "--data-binary", &body]);
        let results = answer["results"].as_array().expect(IDS_KEPT).iter();
        results.map(|result| result["outboxId"].as_str().expect("an id").to_owned()).collect()
    };
    let (retried, held) = (hand_in(&key), hand_in(&careful));
    let _worker = world.worker();
    let since = Instant::now();
    while world.some(&careful, "RETRY_SCHEDULED").len() < EMAILS || world.some(&key, "FAILED").len() < EMAILS
    {
        assert!(since.elapsed() < PATIENCE, "not all of them are held or given up");
        std::thread::sleep(Duration::from_millis(100));
    }
    let arrivals = sink.arrivals();
    let copies = |id: &String| arrivals.iter().filter(|arrival| arrival.id == *id).count();
    for id in &retried {
        let kinds = world.event_kinds(&key, id);
        let place = |kind: &str| kinds.iter().position(|other| other == kind).unwrap_or(usize::MAX);
        let second = kinds.iter().rposition(|kind| kind == "SENT_ATTEMPT").unwrap_or(0);
        assert_eq!(copies(id), 2, "{id}");
        assert!(place("OUTCOME_UNKNOWN") < second, "{id}: {kinds:?}");
    }
    for id in &held {
        assert_eq!(copies(id), 1, "{id}");
        assert!(world.event_kinds(&careful, id).iter().any(|kind| kind == "OUTCOME_UNKNOWN"), "{id}");
    }
}

/// With `hold` no second copy is risked: the emails wait for a report or a person.
#[test]
fn process_a_lost_answer_is_held_where_asked() {
    let fake = accepts_and_resets();
    let world = World::new(&fake.ses("main"));
    let key = world.company("careful", &["--on-unknown", "hold"]);
    let ids = world.hand_in(&key, LOST_ANSWERS);
    let _worker = world.worker();
    let since = Instant::now();
    while world.some(&key, "RETRY_SCHEDULED").len() < LOST_ANSWERS {
        assert!(since.elapsed() < PATIENCE, "not all of them are held");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Twice the longest pause between two probes, in which a second copy would be seen.
    std::thread::sleep(Duration::from_secs(5));
    let calls = fake.calls();
    let copies = copies(&calls);
    assert_eq!(copies.len(), LOST_ANSWERS);
    assert!(copies.values().all(|copies| *copies == 1), "{copies:?}");
    for id in &ids {
        assert!(world.event_kinds(&key, id).iter().any(|kind| kind == "OUTCOME_UNKNOWN"), "{id}");
    }
    drop(world.api);
}
