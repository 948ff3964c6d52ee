//! Finished spans to a collector: OTLP over HTTP, in JSON. Written by hand, since it is a screenful, and the SDK with
//! its protobuf would make everybody's first build longer.
//!
//! A span is handed over without waiting. Between the gateway and the collector is a bounded channel: when the collector
//! is slow or dead, spans are thrown away and counted, and the log says so once a minute. Nothing else notices.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gateway::trace::{FinishedSpan, SpanKind, SpanSink, SpanValue, Tracer};
use metrics::{counter, describe_counter};
use model::{Clock, Secret};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Traces};

const EXPORTED: &str = "trace_spans_exported_total";
const DROPPED: &str = "trace_spans_dropped_total";

/// What waits for the collector: a few seconds of a busy gateway, about two megabytes.
const WAITING_MAX: usize = 4096;
const BATCH_MAX: usize = 512;
/// A span is on its way after so long, however few there are.
const BATCH_EVERY: Duration = Duration::from_secs(1);
const POST_TIMEOUT: Duration = Duration::from_secs(5);
/// After a failure the collector is left alone for a while, longer each time.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
const WARN_EVERY: Duration = Duration::from_secs(60);
/// How long the end of the process waits for the last spans.
const FINISH_TIMEOUT: Duration = Duration::from_secs(3);

/// The export of traces, or nothing where no collector is named.
#[derive(Default)]
pub struct Export(Option<Running>);

struct Running {
    tracer: Tracer,
    end: CancellationToken,
    task: JoinHandle<()>,
}

pub fn start(config: &Config, role: &str, clock: Arc<dyn Clock>) -> anyhow::Result<Export> {
    match &config.traces {
        Some(traces) => export_to(traces, resource(&config.environment, role), clock),
        None => Ok(Export::default()),
    }
}

fn export_to(traces: &Traces, resource: Value, clock: Arc<dyn Clock>) -> anyhow::Result<Export> {
    describe_counter!(EXPORTED, "Spans that the collector took");
    describe_counter!(DROPPED, "Spans that were thrown away because the collector did not take them");
    counter!(EXPORTED).increment(0);
    counter!(DROPPED).increment(0);
    let collector = Collector::new(traces, resource)?;
    let (sender, spans) = mpsc::channel(WAITING_MAX);
    let end = CancellationToken::new();
    let task = tokio::spawn(export(spans, collector, end.clone()));
    let tracer = Tracer::new(Box::new(Channel(sender)), clock, traces.sample_per_mille);
    Ok(Export(Some(Running { tracer, end, task })))
}

impl Export {
    /// What begins spans for this export; off where there is none.
    pub fn tracer(&self) -> Tracer {
        self.0.as_ref().map(|running| running.tracer.clone()).unwrap_or_default()
    }

    /// Sends what is left, as far as that goes quickly.
    pub async fn finish(self) {
        let Some(Running { end, mut task, .. }) = self.0 else { return };
        end.cancel();
        if tokio::time::timeout(FINISH_TIMEOUT, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("the last spans could not be handed to the collector in time");
        }
    }
}

struct Channel(Sender<FinishedSpan>);

impl SpanSink for Channel {
    fn take(&self, span: FinishedSpan) {
        if self.0.try_send(span).is_err() {
            counter!(DROPPED).increment(1);
        }
    }
}

/// Hands over what comes, in batches, until the end; then what is left.
async fn export(mut spans: Receiver<FinishedSpan>, mut collector: Collector, end: CancellationToken) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while !end.is_cancelled() {
        gather(&mut spans, &mut batch, &end).await;
        if batch.is_empty() {
            continue;
        }
        let pause = collector.deliver(&mut batch).await;
        let _ = end.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
    spans.close();
    while spans.recv_many(&mut batch, BATCH_MAX).await > 0 {
        if !collector.deliver(&mut batch).await.is_zero() {
            break;
        }
    }
    counter!(DROPPED).increment(u64::try_from(spans.len()).unwrap_or(u64::MAX));
}

/// A batch is full, or old, or the end has come.
async fn gather(spans: &mut Receiver<FinishedSpan>, batch: &mut Vec<FinishedSpan>, end: &CancellationToken) {
    let mut until = None;
    while batch.len() < BATCH_MAX {
        let room = BATCH_MAX - batch.len();
        let deadline = until.unwrap_or_else(|| Instant::now() + BATCH_EVERY);
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            taken = spans.recv_many(batch, room) => {
                if taken == 0 {
                    // Nobody can send any more: only the end is left to wait for.
                    end.cancelled().await;
                    return;
                }
                until.get_or_insert(deadline);
            }
            () = tokio::time::sleep_until(deadline), if until.is_some() => return,
        }
    }
}

struct Collector {
    client: reqwest::Client,
    url: Secret<String>,
    headers: Vec<(String, Secret<String>)>,
    resource: Value,
    pause: Duration,
    warned_at: Option<Instant>,
}

impl Collector {
    fn new(traces: &Traces, resource: Value) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(POST_TIMEOUT)
            .no_proxy()
            .user_agent(concat!("posthaste/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("traces cannot be exported")?;
        Ok(Self {
            client,
            url: traces.url.clone(),
            headers: traces.headers.clone(),
            resource,
            pause: Duration::ZERO,
            warned_at: None,
        })
    }

    /// Hands over the batch and empties it. Says how long to wait before the next one.
    async fn deliver(&mut self, batch: &mut Vec<FinishedSpan>) -> Duration {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let body = payload(&self.resource, batch);
        batch.clear();
        match self.post(body).await {
            Ok(()) => {
                counter!(EXPORTED).increment(count);
                self.pause = Duration::ZERO;
            }
            Err(why) => {
                counter!(DROPPED).increment(count);
                self.warn(&why);
                self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            }
        }
        self.pause
    }

    async fn post(&self, body: Value) -> Result<(), String> {
        let mut request = self.client.post(self.url.expose()).header("content-type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value.expose());
        }
        let response = request.body(body.to_string()).send().await;
        let response = response.map_err(|error| reason(&error.without_url()))?;
        if !response.status().is_success() {
            return Err(format!("it answered {}", response.status().as_u16()));
        }
        // Read to its end, so that the connection is used again.
        response.bytes().await.map(drop).map_err(|error| reason(&error.without_url()))
    }

    fn warn(&mut self, why: &str) {
        if self.warned_at.is_some_and(|warned_at| warned_at.elapsed() < WARN_EVERY) {
            return;
        }
        self.warned_at = Some(Instant::now());
        tracing::warn!(reason = why, "the collector does not take traces; spans are thrown away and counted");
    }
}

/// The innermost cause says most.
fn reason(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Who sends the spans.
fn resource(environment: &str, role: &str) -> Value {
    let pid = std::process::id().to_string();
    let attributes = [
        ("service.name", "posthaste"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", pid.as_str()),
        ("deployment.environment.name", environment),
        ("posthaste.role", role),
    ];
    let attributes: Vec<Value> =
        attributes.map(|(key, value)| json!({ "key": key, "value": { "stringValue": value } })).into();
    json!({ "attributes": attributes })
}

/// An ExportTraceServiceRequest. In OTLP's JSON ids are hexadecimal, and numbers of 64 bits are texts.
fn payload(resource: &Value, batch: &[FinishedSpan]) -> Value {
    let spans: Vec<Value> = batch.iter().map(span_json).collect();
    json!({
        "resourceSpans": [{
            "resource": resource,
            "scopeSpans": [{
                "scope": { "name": "posthaste", "version": env!("CARGO_PKG_VERSION") },
                "spans": spans,
            }],
        }],
    })
}

fn span_json(span: &FinishedSpan) -> Value {
    let mut attributes: Vec<Value> = span
        .attributes
        .iter()
        .map(|(key, value)| match value {
            SpanValue::Text(text) => json!({ "key": key, "value": { "stringValue": text } }),
            SpanValue::Number(number) => json!({ "key": key, "value": { "intValue": number.to_string() } }),
        })
        .collect();
    let mut json = json!({
        "traceId": span.context.trace_text(),
        "spanId": format!("{:016x}", span.context.span),
        "name": span.name,
        "kind": kind_number(span.kind),
        "flags": 1,
        "startTimeUnixNano": span.started_nanos.to_string(),
        "endTimeUnixNano": span.ended_nanos.to_string(),
    });
    if let Some(parent) = span.parent {
        json["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(code) = &span.error {
        attributes.push(json!({ "key": "error.type", "value": { "stringValue": code } }));
        json["status"] = json!({ "code": 2, "message": code });
    }
    json["attributes"] = attributes.into();
    json
}

/// The numbers of OTLP.
fn kind_number(kind: SpanKind) -> u8 {
    match kind {
        SpanKind::Server => 2,
        SpanKind::Client => 3,
        SpanKind::Producer => 4,
        SpanKind::Consumer => 5,
    }
}

#[cfg(test)]
mod tests;
