//! Spans on their way to collectors that work, that refuse and that are not there.

use std::num::{NonZeroU64, NonZeroU128};

use gateway::trace::SEND;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use model::{SystemClock, TraceContext};
use testkit::http::{self, Server};

use super::*;

fn a_span(number: u64) -> FinishedSpan {
    FinishedSpan {
        name: SEND.into(),
        kind: SpanKind::Client,
        context: TraceContext {
            trace: NonZeroU128::new(0xabc).expect("a number"),
            span: NonZeroU64::new(number).expect("a number"),
            is_sampled: true,
        },
        parent: NonZeroU64::new(0x1f),
        started_nanos: 1_767_225_600_000_000_001,
        ended_nanos: 1_767_225_600_250_000_000,
        attributes: vec![("provider", SpanValue::Text("main".to_owned())), ("attempt", SpanValue::Number(2))],
        error: Some("SES_THROTTLING".to_owned()),
    }
}

fn to(url: &str) -> Export {
    let headers = vec![("x-key".to_owned(), Secret::new("k-1".to_owned()))];
    let traces = Traces { url: Secret::new(format!("{url}/v1/traces")), headers, sample_per_mille: 1000 };
    export_to(&traces, json!({ "attributes": [] }), Arc::new(SystemClock)).expect("it starts")
}

/// Makes so many spans as fast as it can.
fn make_spans(export: &Export, count: usize) {
    let tracer = export.tracer();
    (0..count).for_each(|_| drop(tracer.request(|| "GET /v1/emails".to_owned(), None)));
}

fn counted(recorder: &PrometheusRecorder, name: &str) -> usize {
    let text = recorder.handle().render();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect("it is counted");
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn a_span_as_collectors_read_it() {
    assert_eq!(
        span_json(&a_span(0xb)),
        json!({
            "traceId": "00000000000000000000000000000abc",
            "spanId": "000000000000000b",
            "parentSpanId": "000000000000001f",
            "name": "send",
            "kind": 3,
            "flags": 1,
            "startTimeUnixNano": "1767225600000000001",
            "endTimeUnixNano": "1767225600250000000",
            "attributes": [
                { "key": "provider", "value": { "stringValue": "main" } },
                { "key": "attempt", "value": { "intValue": "2" } },
                { "key": "error.type", "value": { "stringValue": "SES_THROTTLING" } },
            ],
            "status": { "code": 2, "message": "SES_THROTTLING" },
        })
    );
}

#[tokio::test]
async fn everything_arrives_before_the_end() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let collector = Server::start(|_| http::json(200, "{}")).await;
    let export = to(&collector.url());
    make_spans(&export, BATCH_MAX * 2 + 7);
    export.finish().await;
    let requests = collector.requests();
    let sizes: Vec<usize> = requests.iter().map(|request| spans_in(&request.body)).collect();
    assert_eq!(sizes.iter().sum::<usize>(), BATCH_MAX * 2 + 7, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= BATCH_MAX), "{sizes:?}");
    assert!(
        requests.iter().all(|request| request.path == "/v1/traces" && request.header("x-key") == Some("k-1"))
    );
    assert_eq!((counted(&recorder, EXPORTED), counted(&recorder, DROPPED)), (BATCH_MAX * 2 + 7, 0));
}

fn spans_in(body: &[u8]) -> usize {
    let body: Value = serde_json::from_slice(body).expect("JSON");
    body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("a list of spans").len()
}

/// Nobody waits for a collector that is not there, refuses, or never answers; every span is accounted for.
#[tokio::test]
async fn a_collector_in_trouble_costs_a_count() {
    let refusing = Server::start(|_| http::json(503, "{}")).await;
    for url in [http::nobody(), refusing.url()] {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let export = to(&url);
        make_spans(&export, WAITING_MAX + 1_000);
        assert_eq!(counted(&recorder, DROPPED), 1_000, "what does not fit is thrown away at once");
        export.finish().await;
        assert_eq!(
            (counted(&recorder, EXPORTED), counted(&recorder, DROPPED)),
            (0, WAITING_MAX + 1_000),
            "{url}"
        );
    }
}

#[tokio::test]
async fn the_end_does_not_wait_for_a_silent_collector() {
    let silent = Server::start(|_| http::Answer::Silence).await;
    let export = to(&silent.url());
    make_spans(&export, 1);
    export.finish().await;
}

#[tokio::test]
async fn without_a_collector_nothing_is_traced() {
    let export = Export::default();
    assert!(!export.tracer().is_on());
    export.finish().await;
}
