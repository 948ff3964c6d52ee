//! The OpenAPI document, made of the table in `routes`: one file per area describes its operations, `schemas`
//! the things that come and go. What every answer has in common (request id, rate, problems by access) is
//! added here once.

pub mod admin;
pub mod aftermath;
pub mod dead_letters;
pub mod emails;
pub mod schemas;
pub mod send;
pub mod system;
pub mod templates;
pub mod webhooks;

use model::Scope;
use serde_json::{Map, Value, json};

use crate::auth::Access;
use crate::codes::{CODES, WARNINGS};
use crate::routes::{self, Route};

/// How a route is described.
pub struct Operation {
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    description: String,
    parameters: Vec<Value>,
    body: Option<Value>,
    answers: Vec<(u16, Value)>,
    problems: Vec<(u16, String)>,
}

impl Operation {
    fn new(
        id: &'static str,
        tag: &'static str,
        summary: &'static str,
        description: impl Into<String>,
    ) -> Self {
        Self {
            id,
            tag,
            summary,
            description: description.into(),
            parameters: Vec::new(),
            body: None,
            answers: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn parameter(mut self, parameter: Value) -> Self {
        self.parameters.push(parameter);
        self
    }

    /// A body of JSON, and the problems every such body can have.
    fn json_body(self, types: &[&str], schema: &str, example: &Value) -> Self {
        let content: Map<String, Value> = types
            .iter()
            .map(|kind| ((*kind).to_owned(), json!({ "schema": reference(schema), "example": example })))
            .collect();
        self.body(Value::Object(content))
            .problem(400, "The body or a field is wrong; errors names every field.")
    }

    fn body(self, content: Value) -> Self {
        self.any_body(content)
            .problem(415, "The body is of another type, charset or compressed (UNSUPPORTED_MEDIA_TYPE).")
    }

    /// A body whose declared type does not matter.
    fn any_body(mut self, content: Value) -> Self {
        self.body = Some(json!({ "required": true, "content": content }));
        self.problem(408, "The body did not arrive in time (BODY_TIMEOUT).")
            .problem(413, "The body, or a part of it, is too large.")
    }

    fn answer(self, status: u16, description: &str, schema: &str, example: &Value) -> Self {
        let content = json!({ "application/json": { "schema": reference(schema), "example": example } });
        self.answer_of(status, description, content)
    }

    fn answer_of(mut self, status: u16, description: &str, content: Value) -> Self {
        self.answers.push((status, json!({ "description": description, "content": content })));
        self
    }

    fn empty_answer(mut self, status: u16, description: &str) -> Self {
        self.answers.push((status, json!({ "description": description })));
        self
    }

    /// A header that the last answer has besides the common ones.
    fn header(mut self, name: &str, header: Value) -> Self {
        if let Some((_, answer)) = self.answers.last_mut() {
            answer["headers"][name] = header;
        }
        self
    }

    /// Operations that take the id which the last answer gives.
    fn links(mut self, operations: &[&str], id: &str) -> Self {
        if let Some((_, answer)) = self.answers.last_mut() {
            for operation in operations {
                answer["links"][*operation] = json!({ "operationId": operation, "parameters": { "id": id } });
            }
        }
        self
    }

    /// Several reasons for one status are listed together.
    fn problem(mut self, status: u16, reason: &str) -> Self {
        match self.problems.iter_mut().find(|(known, _)| *known == status) {
            Some((_, reasons)) => {
                reasons.push(' ');
                reasons.push_str(reason);
            }
            None => self.problems.push((status, reason.to_owned())),
        }
        self
    }

    fn finish(self, access: Access) -> Value {
        let operation = with_problems_of(self, access);
        let mut responses = Map::new();
        for (status, mut answer) in operation.answers {
            add_common_headers(&mut answer);
            responses.insert(status.to_string(), answer);
        }
        for (status, reasons) in operation.problems {
            let mut answer = json!({
                "description": reasons,
                "content": { "application/problem+json": { "schema": reference("Problem") } },
            });
            if matches!(status, 429 | 503) {
                answer["headers"]["Retry-After"] = json!({ "$ref": "#/components/headers/RetryAfter" });
            }
            add_common_headers(&mut answer);
            responses.insert(status.to_string(), answer);
        }
        let mut json = json!({
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.summary,
            "description": operation.description,
            "security": security(access),
            "responses": responses,
        });
        if let Access::Key(scope) = access {
            json["x-scope"] = Value::from(scope.as_str());
        }
        if !operation.parameters.is_empty() {
            json["parameters"] = Value::from(operation.parameters);
        }
        if let Some(body) = operation.body {
            json["requestBody"] = body;
        }
        json
    }
}

fn with_problems_of(operation: Operation, access: Access) -> Operation {
    let operation = match access {
        Access::Public => operation,
        Access::Key(scope) => {
            let scope = format!(
                "The key lacks the scope {} (INSUFFICIENT_SCOPE) or its company is switched off.",
                scope_word(scope)
            );
            operation
                .problem(401, "No key, or one that is unknown, revoked or expired.")
                .problem(403, &scope)
                .problem(429, "More requests per second than the company may make (RATE_LIMITED).")
        }
        Access::Operator => operation.problem(401, "No admin token, or a wrong one.").problem(
            403,
            "No admin token is configured and the caller is not on this machine (ADMIN_LOCAL_ONLY).",
        ),
    };
    operation.problem(500, "Our mistake (INTERNAL_ERROR).").problem(
        503,
        "Not now: STORE_UNAVAILABLE, STORE_IN_DOUBT, STORAGE_LOW, NOT_READY, OVERLOADED or REQUEST_TIMEOUT.",
    )
}

fn scope_word(scope: Scope) -> &'static str {
    scope.as_str()
}

fn security(access: Access) -> Value {
    match access {
        Access::Public => json!([]),
        Access::Key(_) => json!([{ "apiKey": [] }, { "apiKeyBearer": [] }]),
        // On the machine itself no token may be needed.
        Access::Operator => json!([{ "adminToken": [] }, { "adminTokenHeader": [] }, {}]),
    }
}

fn add_common_headers(answer: &mut Value) {
    for (header, component) in [
        ("X-Request-Id", "RequestId"),
        ("RateLimit-Limit", "RateLimitLimit"),
        ("RateLimit-Remaining", "RateLimitRemaining"),
        ("RateLimit-Reset", "RateLimitReset"),
    ] {
        answer["headers"][header] = json!({ "$ref": format!("#/components/headers/{component}") });
    }
}

pub fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

/// The whole document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for Route { method, path, access, operation, .. } in routes::table() {
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[method.as_str().to_ascii_lowercase()] = operation().finish(access);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Posthaste API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": INTRODUCTION,
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "tags": [
            { "name": "Sending", "description": "Handing emails in. A 202 means they are on disk." },
            { "name": "Emails", "description": "Following emails, withdrawing and hurrying them." },
            { "name": "Dead letters", "description": "Emails given up for good, kept at hand for seven days." },
            { "name": "Aftermath", "description": "Who is not written to, who keeps failing, and what became of emails." },
            { "name": "Templates", "description": "Named, versioned, rendered when an email is accepted." },
            { "name": "Webhooks", "description": "Providers report here." },
            { "name": "Operator", "description": "Companies and their keys." },
            { "name": "System", "description": "Health, numbers and this document." },
        ],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "headers": headers(),
            "securitySchemes": security_schemes(),
        },
        "x-error-codes": listed(CODES),
        "x-warning-codes": listed(WARNINGS),
    })
}

const INTRODUCTION: &str = "Hand in emails, follow them, and take them back into the queue. JSON throughout, names in \
camelCase, times in RFC 3339 with their zone. Fields that are null count as absent; unknown fields are refused. Every \
answer carries X-Request-Id and RateLimit-*. What goes wrong is answered as application/problem+json with a stable \
code. Another company's things are answered like missing ones.";

fn listed(codes: &[(&str, &str)]) -> Value {
    codes.iter().map(|(code, title)| json!({ "code": code, "title": title })).collect()
}

fn headers() -> Value {
    let number = |description: &str| json!({ "description": description, "required": true, "schema": { "type": "integer", "minimum": 0 } });
    json!({
        "RequestId": {
            "description": "The caller's X-Request-Id if it had 1 to 128 of the characters A-Z a-z 0-9 . _ : -, else one of ours.",
            "required": true,
            "schema": { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9._:-]+$" },
        },
        "RateLimitLimit": number("Requests the company may make per second."),
        "RateLimitRemaining": number("Requests left within this second."),
        "RateLimitReset": number("Seconds until the count starts anew."),
        "RetryAfter": number("Seconds to wait before trying again."),
    })
}

fn security_schemes() -> Value {
    json!({
        "apiKey": { "type": "apiKey", "in": "header", "name": "X-API-Key", "description": "A company's key: live_… or test_…" },
        "apiKeyBearer": { "type": "http", "scheme": "bearer", "description": "The same key as a bearer token." },
        "adminToken": { "type": "http", "scheme": "bearer", "description": "The operator's admin token." },
        "adminTokenHeader": { "type": "apiKey", "in": "header", "name": "X-Admin-Token", "description": "The operator's admin token." },
    })
}

/// A parameter of the query string.
fn query(name: &str, schema: Value, description: &str) -> Value {
    json!({ "name": name, "in": "query", "required": false, "schema": schema, "description": description })
}

/// An id in the path.
fn path_id(name: &str, description: &str) -> Value {
    json!({
        "name": name, "in": "path", "required": true, "description": description,
        "schema": { "type": "string", "format": "uuid" },
    })
}

/// A text in the path.
fn path_text(name: &str, description: &str, max: usize) -> Value {
    json!({
        "name": name, "in": "path", "required": true, "description": description,
        "schema": { "type": "string", "minLength": 1, "maxLength": max },
    })
}

#[cfg(test)]
mod tests;
