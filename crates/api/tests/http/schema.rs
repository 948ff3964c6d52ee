//! Holds answers against the OpenAPI document: as much of JSON Schema as the document uses.

use axum::http::Method;
use model::Timestamp;
use serde_json::Value;

use crate::world::Answer;

/// The answer's status, type and body are those the document describes for the route.
pub fn check_answer(document: &Value, method: &Method, path: &str, answer: &Answer) {
    let name = format!("{method} {path} {}", answer.status);
    let template = template_of(document, path).unwrap_or_else(|| panic!("{name}: no such path"));
    let operation = &document["paths"][&template][method.as_str().to_ascii_lowercase()];
    let described = &operation["responses"][answer.status.to_string()];
    assert!(described.is_object(), "{name} is not described: {}", answer.text());
    let Some(content) = described["content"].as_object() else {
        assert!(answer.bytes.is_empty(), "{name}: a body where none is described");
        return;
    };
    let kind = answer.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    let media = content.get(kind).unwrap_or_else(|| panic!("{name}: {kind} is not described"));
    if kind.ends_with("json") {
        let faults = faults(document, &media["schema"], &answer.json(), "$");
        assert!(faults.is_empty(), "{name}: {faults:#?}\n{}", answer.text());
    }
}

fn template_of(document: &Value, path: &str) -> Option<String> {
    let fits = |template: &str| {
        let (wanted, given): (Vec<&str>, Vec<&str>) =
            (template.split('/').collect(), path.split('/').collect());
        wanted.len() == given.len()
            && wanted.iter().zip(&given).all(|(wanted, given)| wanted.starts_with('{') || wanted == given)
    };
    let mut fitting: Vec<&String> =
        document["paths"].as_object()?.keys().filter(|template| fits(template)).collect();
    fitting.sort_by_key(|template| template.matches('{').count());
    fitting.first().map(|template| (*template).clone())
}

/// Everything about a value that its schema does not allow.
pub fn faults(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(target) = schema["$ref"].as_str() {
        let found = document.pointer(&target[1..]).unwrap_or_else(|| panic!("{target} leads nowhere"));
        return faults(document, found, value, at);
    }
    let mut found = Vec::new();
    if let Some(choices) = schema["oneOf"].as_array() {
        let fitting = choices.iter().filter(|choice| faults(document, choice, value, at).is_empty()).count();
        if fitting != 1 {
            found.push(format!("{at} fits {fitting} of the choices: {value}"));
        }
    }
    if !type_fits(&schema["type"], value) {
        found.push(format!("{at} is not {}: {value}", schema["type"]));
        return found;
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        found.push(format!("{at} is none of {}: {value}", schema["enum"]));
    }
    if schema.get("const").is_some_and(|only| only != value) {
        found.push(format!("{at} is not {}", schema["const"]));
    }
    match value {
        Value::Object(members) => object_faults(document, schema, members, at, &mut found),
        Value::Array(items) => {
            let least = schema["minItems"].as_u64().unwrap_or(0);
            if (items.len() as u64) < least {
                found.push(format!("{at} has fewer than {least} items"));
            }
            for (index, item) in items.iter().enumerate() {
                found.extend(faults(document, &schema["items"], item, &format!("{at}[{index}]")));
            }
        }
        Value::String(text) => {
            let fits = match schema["format"].as_str() {
                Some("date-time") => Timestamp::parse(text).is_some(),
                Some("uuid") => text.parse::<model::EmailId>().is_ok(),
                _ => true,
            };
            if !fits {
                found.push(format!("{at} is no {}: {text}", schema["format"]));
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            let in_range = schema["minimum"].as_f64().is_none_or(|least| number >= least)
                && schema["maximum"].as_f64().is_none_or(|most| number <= most);
            if !in_range {
                found.push(format!("{at} is out of range: {number}"));
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
    found
}

fn object_faults(
    document: &Value,
    schema: &Value,
    members: &serde_json::Map<String, Value>,
    at: &str,
    found: &mut Vec<String>,
) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !members.contains_key(name) {
            found.push(format!("{at}.{name} is missing"));
        }
    }
    for (name, value) in members {
        let place = format!("{at}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(inner), _) => found.extend(faults(document, inner, value, &place)),
            (None, Value::Bool(false)) => found.push(format!("{place} is not described")),
            (None, Value::Object(inner)) => {
                found.extend(faults(document, &Value::Object(inner.clone()), value, &place));
            }
            (None, _) => {}
        }
    }
}

fn type_fits(kind: &Value, value: &Value) -> bool {
    let fits = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        _ => false,
    };
    match kind {
        Value::String(kind) => fits(kind),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).any(fits),
        _ => true,
    }
}

/// The examples in the document fit the schemas beside them.
#[test]
fn examples_fit_their_schemas() {
    let document = api::openapi_document();
    let mut checked = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let answers = operation["responses"].as_object().expect("responses").values();
            for part in answers.chain([&operation["requestBody"]]) {
                for media in part["content"].as_object().into_iter().flat_map(|content| content.values()) {
                    if let Some(example) = media.get("example") {
                        let faults = faults(&document, &media["schema"], example, "$");
                        assert!(faults.is_empty(), "{method} {path}: {faults:#?}");
                        checked += 1;
                    }
                }
            }
        }
    }
    assert!(checked > 20, "only {checked} examples");
}
