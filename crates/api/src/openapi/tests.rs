//! The document is whole: every reference leads somewhere, every operation says what it needs to.

use std::collections::BTreeSet;

use serde_json::Value;

use super::document;
use crate::routes;

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(target)) = members.get("$ref") {
                found.push(target.clone());
            }
            members.values().for_each(|inner| references(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 100, "the document refers to its parts");
    for target in &found {
        let pointer = target.strip_prefix('#').expect("references stay inside");
        assert!(document.pointer(pointer).is_some(), "{target}");
    }
    let used: BTreeSet<&str> =
        found.iter().filter_map(|target| target.strip_prefix("#/components/schemas/")).collect();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    let unused: Vec<&String> = schemas.keys().filter(|name| !used.contains(name.as_str())).collect();
    assert!(unused.is_empty(), "schemas nobody refers to: {unused:?}");
}

#[test]
fn every_route_is_described() {
    let document = document();
    let mut ids = BTreeSet::new();
    for route in routes::table() {
        let name = format!("{} {}", route.method, route.path);
        let operation = &document["paths"][route.path][route.method.as_str().to_ascii_lowercase()];
        let id = operation["operationId"].as_str().expect(&name);
        assert!(ids.insert(id.to_owned()), "{name}: {id} stands twice");
        for part in ["summary", "description"] {
            assert!(operation[part].as_str().is_some_and(|text| !text.is_empty()), "{name}: {part}");
        }
        let responses = operation["responses"].as_object().expect(&name);
        assert!(responses.keys().any(|status| status.starts_with(['2', '3'])), "{name}: no success");
        for (status, answer) in responses {
            assert!(answer["headers"]["X-Request-Id"].is_object(), "{name} {status}: X-Request-Id");
            let is_problem = !status.starts_with(['2', '3']);
            assert_eq!(
                answer["content"]["application/problem+json"].is_object(),
                is_problem,
                "{name} {status}"
            );
        }
        let named: Vec<&str> = route.path.split(['{', '}']).skip(1).step_by(2).collect();
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let in_path: Vec<&str> = parameters
            .iter()
            .filter(|parameter| parameter["in"] == "path")
            .filter_map(|parameter| parameter["name"].as_str())
            .collect();
        assert_eq!(in_path, named, "{name}: path parameters");
    }
    let described: usize = document["paths"]
        .as_object()
        .expect("paths")
        .values()
        .filter_map(Value::as_object)
        .map(|item| item.len())
        .sum();
    assert_eq!(described, routes::table().len());
}

/// The parameters that handlers read are the parameters that are described.
#[test]
fn every_parameter_is_described() {
    use crate::v1::{
        admin, alerts, attachments, copies, dead_letters, draft, emails, entities, recipient, recipients,
        suppressions, templates,
    };
    let document = document();
    let query_of = |path: &str, method: &str| -> BTreeSet<String> {
        let parameters =
            document["paths"][path][method]["parameters"].as_array().cloned().unwrap_or_default();
        let in_query = parameters.iter().filter(|parameter| parameter["in"] == "query");
        in_query.filter_map(|parameter| parameter["name"].as_str().map(str::to_owned)).collect()
    };
    let fields_of = |schema: &str| -> BTreeSet<String> {
        document["components"]["schemas"][schema]["properties"]
            .as_object()
            .expect(schema)
            .keys()
            .cloned()
            .collect()
    };
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let cases = [
        ("emails", query_of("/v1/emails", "get"), named(emails::FILTERS)),
        ("content", query_of("/v1/emails/{id}/content", "get"), named(emails::CONTENT_PARAMETERS)),
        ("dlq", query_of("/v1/dlq", "get"), named(dead_letters::PARAMETERS)),
        ("suppressions", query_of("/v1/suppressions", "get"), named(suppressions::PARAMETERS)),
        ("recipients", query_of("/v1/recipients", "get"), named(recipients::PARAMETERS)),
        ("entities", query_of("/v1/entities", "get"), named(entities::LIST_PARAMETERS)),
        ("company summary", query_of("/v1/summary", "get"), named(entities::SUMMARY_PARAMETERS)),
        ("summary", query_of("/v1/entities/{entity}/summary", "get"), named(entities::SUMMARY_PARAMETERS)),
        ("alerts", query_of("/v1/alerts", "get"), named(alerts::PARAMETERS)),
        ("template", query_of("/v1/templates/{name}", "get"), named(templates::GET_PARAMETERS)),
        ("NewSuppression", fields_of("NewSuppression"), named(suppressions::FIELDS)),
        ("NewTemplate", fields_of("NewTemplate"), named(templates::FIELDS)),
        ("Preview", fields_of("Preview"), named(templates::PREVIEW_FIELDS)),
        ("raw", query_of("/v1/email/raw", "post"), named(draft::OPTION_FIELDS)),
        ("Send", fields_of("Send"), named(draft::FIELDS)),
        ("Release", fields_of("Release"), named(copies::RELEASE_FIELDS)),
        ("Recipient", fields_of("Recipient"), named(recipient::FIELDS)),
        ("Attachment", fields_of("Attachment"), named(attachments::FIELDS)),
        ("NewCompany", fields_of("NewCompany"), named(admin::settings::FIELDS)),
        ("CompanyPatch", fields_of("CompanyPatch"), named(admin::settings::FIELDS)),
        ("NewKey", fields_of("NewKey"), named(admin::keys::FIELDS)),
    ];
    for (case, described, read) in cases {
        assert_eq!(described, read, "{case}");
    }
}
