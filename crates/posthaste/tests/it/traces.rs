//! One trace from the HTTP request to the provider's answer, shown in a collector: the API and the worker are processes
//! of their own, the context travels through the store, and nothing of the email itself is in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use testkit::http::{Request, Server as Http, json as reply, nobody};
use tokio::runtime::Runtime;

use crate::support::{Place, Server, curl, until};

/// Planted into everything of the email that is somebody's own.
const CANARY: &str = "kanarienvogel";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER_SPAN: &str = "00f067aa0ba902b7";

/// A span as the collector read it.
#[derive(Debug, Clone)]
struct Span {
    trace: String,
    id: String,
    parent: Option<String>,
    name: String,
    kind: u64,
    role: String,
    attributes: BTreeMap<String, String>,
    is_error: bool,
}

impl Span {
    fn get(&self, key: &str) -> &str {
        self.attributes.get(key).unwrap_or_else(|| panic!("{key} in {self:?}"))
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn attributes(list: &Value) -> BTreeMap<String, String> {
    let value =
        |value: &Value| value["stringValue"].as_str().or(value["intValue"].as_str()).map(str::to_owned);
    let list = list.as_array().expect("a list");
    list.iter().map(|one| (text(&one["key"]), value(&one["value"]).expect("a value"))).collect()
}

/// The spans of an export, by the words of OTLP/JSON.
fn spans_in(request: &Request) -> Vec<Span> {
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/v1/traces"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    let body: Value = serde_json::from_slice(&request.body).expect("JSON");
    let of_one = |resource: &Value| -> Vec<Span> {
        let process = attributes(&resource["resource"]["attributes"]);
        assert_eq!(process["service.name"], "posthaste");
        let spans = resource["scopeSpans"][0]["spans"].as_array().expect("a list of spans");
        let read = |span: &Value| {
            let nanos = |name: &str| text(&span[name]).parse::<u64>().expect("a number");
            assert!(nanos("startTimeUnixNano") <= nanos("endTimeUnixNano"), "{span}");
            Span {
                trace: text(&span["traceId"]),
                id: text(&span["spanId"]),
                parent: span.get("parentSpanId").map(text),
                name: text(&span["name"]),
                kind: span["kind"].as_u64().expect("a number"),
                role: process["posthaste.role"].clone(),
                attributes: attributes(&span["attributes"]),
                is_error: span["status"]["code"] == 2,
            }
        };
        spans.iter().map(read).collect()
    };
    body["resourceSpans"].as_array().expect("a list").iter().flat_map(of_one).collect()
}

/// The collector, and a provider that fails once.
struct Others {
    collector: Http,
    provider: Http,
    _runtime: Runtime,
}

impl Others {
    fn start() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let calls = AtomicU32::new(0);
        let provider =
            runtime.block_on(Http::start(move |_: &Request| match calls.fetch_add(1, Ordering::SeqCst) {
                0 => reply(500, r#"{"statusCode":500,"name":"internal_server_error","message":"no"}"#),
                call => reply(200, &json!({ "id": format!("m-{call}") }).to_string()),
            }));
        let collector = runtime.block_on(Http::start(|_: &Request| reply(200, "{}")));
        Self { collector, provider, _runtime: runtime }
    }

    fn settings(&self, collector: &str) -> String {
        format!(
            "[providers.main]\nkind = \"resend\"\napi_key = \"re_test_0123456789\"\nendpoint = \"{}\"\n\
             [routes]\ndefault = [\"main\"]\n[retry.fast]\ndelays_secs = [1]\nmax_attempts = 2\n\
             [telemetry]\notlp_endpoint = \"{collector}\"\notlp_headers = [\"x-key=k-1\"]\n",
            self.provider.url()
        )
    }

    fn spans(&self) -> Vec<Span> {
        self.collector.requests().iter().flat_map(spans_in).collect()
    }
}

struct Fleet {
    place: Place,
    api: Server,
    worker: Server,
    address: String,
    key: String,
}

impl Fleet {
    fn start(settings: &str) -> Self {
        let place = Place::new();
        place.write("posthaste.toml", settings);
        place.print(&["company", "add", "acme", "--from", &format!("{CANARY}@sender.test")]);
        let key = place.print(&["key", "create", "--company", "acme"]).trim().to_owned();
        let serve = |role: &str| {
            let mut command = place.command(&["serve", "--role", role]);
            command.env("POSTHASTE_LISTEN", "127.0.0.1:0").env("POSTHASTE_WORKER__LISTEN", "127.0.0.1:0");
            Server::start(command)
        };
        let (api, worker) = (serve("api"), serve("worker"));
        let address = api.address();
        Self { place, api, worker, address, key }
    }

    fn send(&self, headers: &[&str], more: &Value) -> String {
        let mut body = json!({
            "to": format!("{CANARY}@reader.test"), "subject": format!("about {CANARY}"),
            "html": format!("<p>{CANARY}</p>"), "tags": [CANARY],
            "recipient": { "externalId": format!("customer-{CANARY}"), "nome": CANARY },
        });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (key, url) =
            (format!("X-API-Key: {}", self.key), format!("http://{}/v1/email/send", self.address));
        let mut args = vec!["-H", &key, "-H", "Content-Type: application/json"];
        args.extend(headers.iter().flat_map(|header| ["-H", header]));
        let body = body.to_string();
        args.extend(["-d", &body, &url]);
        let answer: Value = serde_json::from_str(&curl(&args)).expect("JSON");
        answer["outboxId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    fn stop(self) {
        self.worker.stop();
        self.api.stop();
    }
}

#[test]
fn process_one_trace_from_the_request_to_the_provider() {
    let others = Others::start();
    let fleet = Fleet::start(&others.settings(&others.collector.url()));
    let traceparent = format!("traceparent: 00-{TRACE}-{CALLER_SPAN}-01");
    let id = fleet.send(&[&traceparent, "X-Request-Id: req-traced"], &json!({}));
    fleet.place.wait_for(&id, "SENT");
    // One that brings no trace begins one; one whose caller wants none has none.
    let alone = fleet.send(&[], &json!({}));
    let unwanted = format!("traceparent: 00-{}-{CALLER_SPAN}-00", "5".repeat(32));
    let silent = fleet.send(&[&unwanted], &json!({}));
    fleet.place.wait_for(&alone, "SENT");
    fleet.place.wait_for(&silent, "SENT");
    let log = fleet.worker.log_until(&silent);
    // Whatever was traced is out before the processes end.
    fleet.stop();

    let spans = others.spans();
    let traced: Vec<&Span> = spans.iter().filter(|span| span.trace == TRACE).collect();
    let named = |name: &str| traced.iter().filter(|span| span.name == name).copied().collect::<Vec<_>>();
    let [request] = named("POST /v1/email/send")[..] else { panic!("{traced:#?}") };
    assert_eq!(
        (request.parent.as_deref(), request.kind, request.role.as_str()),
        (Some(CALLER_SPAN), 2, "api")
    );
    assert_eq!((request.get("requestId"), request.get("http.response.status_code")), ("req-traced", "202"));
    let [accept] = named("accept")[..] else { panic!("{traced:#?}") };
    assert_eq!((accept.parent.as_ref(), accept.kind), (Some(&request.id), 4));
    assert_eq!((accept.get("outboxId"), accept.get("requestId")), (id.as_str(), "req-traced"));

    let mut attempts = named("attempt");
    attempts.sort_by_key(|attempt| attempt.get("attempt").to_owned());
    let [first, second] = attempts[..] else { panic!("{traced:#?}") };
    let told = [(first, "1", "RETRY_SCHEDULED", true), (second, "2", "SENT", false)];
    for (attempt, number, state, is_error) in told {
        assert_eq!((attempt.parent.as_ref(), attempt.kind), (Some(&accept.id), 5), "{attempt:?}");
        assert_eq!((attempt.role.as_str(), attempt.get("outboxId")), ("worker", id.as_str()));
        assert_eq!((attempt.get("attempt"), attempt.get("state")), (number, state));
        assert_eq!((attempt.get("requestId"), attempt.is_error), ("req-traced", is_error));
        assert_eq!(attempt.get("companyId"), accept.get("companyId"));
        let calls: Vec<_> =
            named("send").into_iter().filter(|call| call.parent.as_ref() == Some(&attempt.id)).collect();
        let [call] = calls[..] else { panic!("one call per attempt: {calls:#?}") };
        assert_eq!((call.kind, call.get("provider"), call.get("attempt")), (3, "main", number));
        assert_eq!((call.get("outboxId"), call.is_error), (id.as_str(), is_error));
    }
    let code = first.get("error.type");
    assert!(code.starts_with("RESEND_"), "{code}");
    assert_eq!(traced.len(), 6, "{traced:#?}");

    let of_alone: Vec<&Span> =
        spans.iter().filter(|span| span.attributes.get("outboxId") == Some(&alone)).collect();
    assert_eq!(of_alone.len(), 3, "accepted, attempted, sent: {of_alone:#?}");
    assert!(of_alone.iter().all(|span| span.trace == of_alone[0].trace && span.trace != TRACE));
    assert!(
        !spans.iter().any(|span| span.attributes.get("outboxId") == Some(&silent)),
        "its caller wants none"
    );
    let line = log.iter().find(|line| line.contains(&id) && line.contains("\"SENT\"")).expect("a line of it");
    assert!(line.contains(TRACE), "the log leads to the trace: {line}");

    for request in others.collector.requests() {
        assert_eq!(request.header("x-key"), Some("k-1"));
        let body = String::from_utf8(request.body).expect("text");
        assert!(!body.contains(CANARY), "nothing of the email is told: {body}");
    }
    for call in others.provider.requests() {
        assert_eq!(
            (call.header("traceparent"), call.header("tracestate")),
            (None, None),
            "it is not their business"
        );
    }
}

#[test]
fn process_a_dead_collector_costs_a_warning_and_a_count() {
    let others = Others::start();
    let fleet = Fleet::start(&others.settings(&nobody()));
    let ids: Vec<String> = (0..5).map(|_| fleet.send(&[], &json!({}))).collect();
    for id in &ids {
        fleet.place.wait_for(id, "SENT");
    }
    let url = format!("http://{}/metrics", fleet.address);
    let dropped = until("dropped spans are counted", || {
        let metrics = curl(&[&url]);
        let line = metrics.lines().find(|line| line.starts_with("trace_spans_dropped_total "))?.to_owned();
        (!line.ends_with(" 0")).then_some(line)
    });
    assert!(dropped.starts_with("trace_spans_dropped_total "), "{dropped}");
    let warned = fleet.api.log_until("the collector does not take traces");
    assert!(warned.last().is_some_and(|line| line.contains("WARN")), "{warned:?}");
    fleet.stop();
}
