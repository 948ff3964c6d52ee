//! Health, numbers and pages, described.

use serde_json::{Value, json};

use super::Operation;

const TAG: &str = "System";

pub fn livez() -> Operation {
    Operation::new("livez", TAG, "Is the process alive?", "Answers without asking any other part.").answer(
        200,
        "Alive",
        "Alive",
        &json!({ "status": "ok" }),
    )
}

pub fn readyz() -> Operation {
    let example = json!({ "status": "ready", "checks": { "server": "ok", "store": "ok" } });
    Operation::new(
        "readyz",
        TAG,
        "Can it take emails?",
        "Writes to and reads from the store, at most once a second.",
    )
    .problem(503, "Not ready (NOT_READY); detail names the failing part.")
    .answer(200, "Ready", "Ready", &example)
}

pub fn metrics() -> Operation {
    Operation::new("metrics", TAG, "Numbers for Prometheus", "In its text format.").answer_of(
        200,
        "The metrics",
        plain("text/plain"),
    )
}

pub fn openapi() -> Operation {
    Operation::new("openapi", TAG, "This document", "OpenAPI 3.1.").answer_of(
        200,
        "The document",
        json!({ "application/json": { "schema": { "type": "object" } } }),
    )
}

pub fn docs() -> Operation {
    Operation::new("docs", TAG, "The documentation for people", "Drawn from this document.").answer_of(
        200,
        "A page",
        plain("text/html"),
    )
}

pub fn front() -> Operation {
    let location = json!({ "description": "/ui", "required": true, "schema": { "type": "string" } });
    Operation::new("front", TAG, "Where people begin", "Leads to the dashboard.")
        .empty_answer(303, "The dashboard is at /ui")
        .header("Location", location)
}

fn plain(kind: &str) -> Value {
    json!({ kind: { "schema": { "type": "string" } } })
}
