//! What is served at /metrics is what observability/METRICS.md says, name by name and label by label, and the source
//! knows no label that is not written there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Place, Server, curl, until};

type Labels = BTreeSet<String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The table: type and labels by name.
fn written() -> BTreeMap<String, (String, Labels)> {
    let text = std::fs::read_to_string(root().join("observability/METRICS.md")).expect("the table");
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = text.lines().filter(|line| line.starts_with("| `")).map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        (words(cells[1]).remove(0), (cells[2].to_owned(), words(cells[3]).into_iter().collect()))
    });
    rows.collect()
}

/// What is served: type by name, and the labels each name was seen with. The parts of a histogram count as one.
fn served(text: &str) -> BTreeMap<String, (String, BTreeSet<Labels>)> {
    let mut found: BTreeMap<String, (String, BTreeSet<Labels>)> = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a type");
        found.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
    }
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (place, value) = line.rsplit_once(' ').expect("a value");
        assert!(value == "+Inf" || value.parse::<f64>().is_ok(), "{line}");
        let (name, labels) = place.split_once('{').unwrap_or((place, ""));
        let suffixes = ["_bucket", "_sum", "_count"];
        let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
        let name = base.filter(|base| found.contains_key(*base)).unwrap_or(name);
        let labels = labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(name, _)| name);
        let labels = labels.filter(|name| *name != "le").map(str::to_owned).collect();
        found.get_mut(name).unwrap_or_else(|| panic!("no type is told of {name}")).1.insert(labels);
    }
    found
}

/// A gateway that has met all kinds of things.
fn busy(place: &Place) -> (Server, String) {
    place.write(
        "posthaste.toml",
        "[providers.second]\nkind = \"resend\"\napi_key = \"re_0123456789\"\nwebhook_secret = \
         \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\nendpoint = \"http://127.0.0.1:9\"\n\
         [routes]\ndefault = [\"capture\"]\n[retry.fast]\ndelays_secs = [1]\nmax_attempts = 2\n\
         [telemetry]\notlp_endpoint = \"http://127.0.0.1:9\"\n",
    );
    place.print(&["company", "add", "acme", "--from", "shop@acme.test"]);
    let key = place.print(&[
        "key",
        "create",
        "--company",
        "acme",
        "--test",
        "--scope",
        "send",
        "--scope",
        "read",
        "--scope",
        "admin",
    ]);
    let mut command = place.command(&["serve"]);
    command.env("POSTHASTE_LISTEN", "127.0.0.1:0");
    let server = Server::start(command);
    let address = server.address();
    let key = format!("X-API-Key: {}", key.trim());
    let post = |path: &str, body: &Value| {
        let (url, body) = (format!("http://{address}{path}"), body.to_string());
        let answer = curl(&["-H", &key, "-H", "Content-Type: application/json", "-d", &body, &url]);
        serde_json::from_str::<Value>(&answer).unwrap_or(Value::Null)
    };
    let email = |to: &str| json!({ "to": to, "subject": "s", "html": "<p>x</p>" });
    let ends = [
        ("ana@reader.test", "SENT"),
        ("delivered@posthaste.test", "DELIVERED"),
        ("bounced@posthaste.test", "BOUNCED"),
        ("rejected@posthaste.test", "FAILED"),
        ("throttled@posthaste.test", "FAILED"),
    ];
    let ids = ends.map(|(to, end)| (post("/v1/email/send", &email(to))["outboxId"].clone(), end));
    for (id, end) in &ids {
        place.wait_for(id.as_str().expect("an id"), end);
    }
    let mut later = email("ana@reader.test");
    later["delay"] = json!(3_600_000);
    let later = post("/v1/email/send", &later)["outboxId"].clone();
    post(&format!("/v1/emails/{}/cancel", later.as_str().expect("an id")), &json!({}));
    post("/v1/dlq/replay", &json!({ "filter": { "code": "CAPTURE_REJECTED" } }));
    // Not signed, so refused, and counted.
    post("/v1/webhooks/resend", &json!({}));
    (server, address)
}

#[test]
fn process_what_is_served_is_what_is_written() {
    let place = Place::new();
    let (server, address) = busy(&place);
    let url = format!("http://{address}/metrics");
    let text = until("every metric is served", || {
        let text = curl(&[&url]);
        let found = served(&text);
        let all =
            written().into_keys().all(|name| found.get(&name).is_some_and(|(_, labels)| !labels.is_empty()));
        let counted = text.contains("pipeline_state_transitions_total{state=\"REPLAYED\"} 1");
        (all && counted).then_some(text)
    });
    let (written, served) = (written(), served(&text));
    for (name, (kind, labels)) in &served {
        let (kind_written, labels_written) =
            written.get(name).unwrap_or_else(|| panic!("{name} is not in METRICS.md"));
        assert_eq!((kind, labels), (kind_written, &BTreeSet::from([labels_written.clone()])), "{name}");
        let described = text.contains(&format!("# HELP {name} "));
        assert!(described, "{name} says what it is");
    }
    let lines = [
        "email_send_result_total{status=\"success\",error_code=\"\",attempt=\"1\"}",
        "email_send_result_total{status=\"retryable_error\",error_code=\"CAPTURE_THROTTLED\",attempt=\"1\"} 1",
        "email_send_result_total{status=\"permanent_error\",error_code=\"CAPTURE_THROTTLED\",attempt=\"2\"} 1",
        "pipeline_state_transitions_total{state=\"ENQUEUED\"} 6",
        "pipeline_state_transitions_total{state=\"CANCELLED\"} 1",
        "pipeline_final_state_total{state=\"CANCELLED\"} 1",
        "pipeline_final_state_total{state=\"DELIVERED\"} 1",
        "pipeline_final_state_total{state=\"BOUNCED\"} 1",
        "pipeline_retries_total{category=\"QUOTA_ERROR\"} 1",
        "webhooks_in_total{provider=\"second\",result=\"refused\"} 1",
    ];
    for line in lines {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    server.stop();
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The labels in a call of one of the macros: the texts before `=>`, up to the end of its arguments.
fn labels_in(call: &str) -> Labels {
    let mut depth = 0_i32;
    let end = call.find(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    let arguments = &call[..end.unwrap_or(call.len())];
    let before = arguments.split("=>").collect::<Vec<_>>();
    let last_text = |part: &&str| part.trim().trim_end_matches('"').rsplit('"').next().map(str::to_owned);
    before[..before.len() - 1].iter().filter_map(last_text).collect()
}

/// What no traffic of a test brings about is found in the source.
#[test]
fn no_metric_has_a_label_that_is_not_written_down() {
    let known: Labels = written().into_values().flat_map(|(_, labels)| labels).collect();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("crates").filter_map(Result::ok) {
        let source = entry.path().join("src");
        if source.is_dir() {
            sources(&source, &mut files);
        }
    }
    let mut calls = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source");
        for name in ["counter!", "gauge!", "histogram!"] {
            for (at, _) in text.match_indices(name).filter(|(at, _)| !text[..*at].ends_with("describe_")) {
                let place = file.strip_prefix(root().join("crates")).unwrap_or(&file).display().to_string();
                let may_count =
                    place.starts_with("gateway/src/observe") || place.starts_with("posthaste/src/telemetry");
                assert!(may_count, "{place} counts by itself: name the metric in gateway/src/observe.rs");
                let labels = labels_in(&text[at + name.len()..]);
                let unknown: Vec<_> = labels.difference(&known).collect();
                assert!(unknown.is_empty(), "{place}: {unknown:?} is not among the labels of METRICS.md");
                calls += 1;
            }
        }
    }
    assert!(calls > 20, "only {calls} places count: does this test still find them?");
}
