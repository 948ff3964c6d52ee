//! Templates, described.

use serde_json::{Value, json};

use super::{Operation, query};
use crate::limits::{TEMPLATES_MAX, WORD_LENGTH_MAX};

const TAG: &str = "Templates";
const MISSING: &str = "There is no template of this name and version (TEMPLATE_NOT_FOUND).";

pub fn list() -> Operation {
    let example =
        json!({ "data": [{ "name": "welcome", "version": 3, "createdAt": "2026-01-01T00:00:00.000Z" }] });
    Operation::new("listTemplates", TAG, "List templates", "The newest version of each, by name.").answer(
        200,
        "The templates",
        "TemplateList",
        &example,
    )
}

pub fn get() -> Operation {
    let mut example = head();
    example["subject"] = Value::from("Welcome, {{ name }}");
    example["html"] = Value::from("<p>Hello {{ name }}</p>");
    Operation::new("getTemplate", TAG, "Read a template", "As it was written.")
        .parameter(name())
        .parameter(query("version", version(), "The newest unless given."))
        .problem(400, "The parameter is wrong or unknown.")
        .problem(404, MISSING)
        .answer(200, "The template", "Template", &example)
}

pub fn put() -> Operation {
    let description = format!(
        "Subject, html or MJML, and text are Jinja templates; values are escaped in html. Without text it is derived \
         from the html. Every change is a new version; the same source again is none. Emails that were accepted keep what \
         they were made of. A company has at most {TEMPLATES_MAX} templates."
    );
    Operation::new("putTemplate", TAG, "Write a template", description)
        .parameter(name())
        .json_body(
            &["application/json"],
            "NewTemplate",
            &json!({ "subject": "Welcome, {{ name }}", "html": "<p>Hello {{ name }}</p>" }),
        )
        .problem(400, "The name is none (INVALID_NAME).")
        .problem(409, "The company has too many templates (TOO_MANY_TEMPLATES).")
        .problem(422, "It does not compile (TEMPLATE_INVALID); errors has one entry per problem.")
        .answer(200, "The version it is now", "TemplateVersion", &head())
}

pub fn remove() -> Operation {
    Operation::new(
        "deleteTemplate",
        TAG,
        "Delete a template",
        "With all its versions. A name that is used again goes on counting where it stopped.",
    )
    .parameter(name())
    .problem(404, MISSING)
    .empty_answer(204, "Deleted")
}

pub fn preview() -> Operation {
    let example = json!({ "subject": "Welcome, Ana", "html": "<p>Hello Ana</p>", "text": "Hello Ana" });
    Operation::new(
        "previewTemplate",
        TAG,
        "Try a template out",
        "Renders it; nothing is sent or stored. Whether the html may be sent is checked when an email is accepted.",
    )
    .parameter(name())
    .json_body(&["application/json"], "Preview", &json!({ "variables": { "name": "Ana" } }))
    .problem(404, MISSING)
    .problem(422, "MISSING_VARIABLE, one error for each; TEMPLATE_ERROR.")
    .answer(200, "What it makes", "Rendered", &example)
}

pub fn version() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX })
}

fn name() -> Value {
    json!({
        "name": "name", "in": "path", "required": true, "description": "The template's name.",
        "schema": {
            "type": "string", "minLength": 1, "maxLength": WORD_LENGTH_MAX, "pattern": "^[a-z0-9-]+$",
        },
    })
}

fn head() -> Value {
    json!({
        "name": "welcome", "version": 3, "variables": ["name"], "createdAt": "2026-01-01T00:00:00.000Z",
    })
}
