//! The operator's routes, described.

use serde_json::{Value, json};

use super::{Operation, path_id};
use crate::limits::REPORTS_SHOWN_MAX;
use crate::v1::admin::companies::PATCH_TYPES;

const TAG: &str = "Operator";
const MISSING: &str = "There is no such company (COMPANY_NOT_FOUND).";

pub fn list_companies() -> Operation {
    Operation::new("listCompanies", TAG, "List companies", "All of them, by name.").answer(
        200,
        "The companies",
        "CompanyList",
        &json!({ "data": [company_example()] }),
    )
}

pub fn add_company() -> Operation {
    Operation::new(
        "addCompany",
        TAG,
        "Add a company",
        "Only the name is required; everything else has its default.",
    )
    .json_body(
        &["application/json"],
        "NewCompany",
        &json!({ "name": "shop", "from": "Shop <shop@example.com>" }),
    )
    .problem(409, "The name is taken (COMPANY_EXISTS).")
    .problem(422, "A provider or retry policy that is not configured here.")
    .answer(201, "Added", "Company", &company_example())
    .header("Location", json!({ "description": "Where the company is.", "schema": { "type": "string" } }))
}

pub fn get_company() -> Operation {
    Operation::new("getCompany", TAG, "Read a company", "Its name and settings.")
        .parameter(company_id())
        .problem(404, MISSING)
        .answer(200, "The company", "Company", &company_example())
}

pub fn patch_company() -> Operation {
    Operation::new(
        "changeCompany",
        TAG,
        "Change a company",
        "Changes the fields it names; null brings back the default. disabled: true refuses its keys and lets its emails wait.",
    )
    .parameter(company_id())
    .json_body(PATCH_TYPES, "CompanyPatch", &json!({ "dailyLimit": 10_000, "route": null }))
    .problem(404, MISSING)
    .problem(409, "The name is taken (COMPANY_EXISTS).")
    .problem(422, "A provider or retry policy that is not configured here.")
    .answer(200, "The company as it is now", "Company", &company_example())
}

pub fn resume_company() -> Operation {
    Operation::new(
        "resumeCompany",
        TAG,
        "End a company's pause",
        "Its emails go on. What led to the pause counts no more.",
    )
    .parameter(company_id())
    .problem(404, MISSING)
    .problem(409, "The company is not paused (NOT_PAUSED).")
    .answer(200, "The company as it is now", "Company", &company_example())
}

pub fn list_reports() -> Operation {
    let example = json!({ "total": 1, "data": [{
        "id": "resend:msg_1", "provider": "second", "receivedAt": "2026-01-01T00:00:00.000Z",
        "payload": "{\"type\":\"email.delivered\"}",
    }] });
    let description = format!(
        "What providers reported of an email, as it came, oldest first; at most the {REPORTS_SHOWN_MAX} latest."
    );
    Operation::new("listReports", TAG, "Read the reports of an email", description)
        .parameter(path_id("id", "The email's id, of whatever company."))
        .problem(404, "There is no such email (EMAIL_NOT_FOUND).")
        .answer(200, "The reports", "ReportList", &example)
}

pub fn list_providers() -> Operation {
    let example = json!({ "data": [{
        "name": "main", "kind": "ses", "status": "RESTING", "ratePerSec": 14, "configuredRatePerSec": null,
        "breaker": {
            "cause": "OUTAGE", "code": "SES_SERVICE_UNAVAILABLE", "since": "2026-01-01T00:00:00.000Z",
            "probes": 3, "nextProbeAt": "2026-01-01T00:00:15.000Z",
        },
        "account": {
            "ratePerSec": 14.0, "max24Hours": 50_000.0, "sent24Hours": 1_200.0,
            "readAt": "2026-01-01T00:00:00.000Z",
        },
        "lastReportAt": "2026-01-01T00:00:00.000Z",
    }] });
    Operation::new(
        "listProviders",
        TAG,
        "How the providers are doing",
        "Each provider with the rate it is given, what its account allows, and why it rests if it does. lastReportAt is when its \
         webhook last brought something that was kept; null where it never did.",
    )
    .answer(200, "The providers", "ProviderList", &example)
}

pub fn list_keys() -> Operation {
    Operation::new(
        "listKeys",
        TAG,
        "List a company's keys",
        "Newest first; the keys themselves are not kept.",
    )
    .parameter(company_id())
    .problem(404, MISSING)
    .answer(200, "The keys", "KeyList", &json!({ "data": [key_example()] }))
}

pub fn add_key() -> Operation {
    let mut created = key_example();
    created["key"] = Value::from("live_abc123xyz7890abc123xyz7890abc123xyz7890abcd");
    Operation::new("addKey", TAG, "Make a key", "The key itself is in this answer and nowhere else.")
        .parameter(company_id())
        .json_body(
            &["application/json"],
            "NewKey",
            &json!({ "mode": "live", "scopes": ["send"], "label": "shop" }),
        )
        .problem(404, MISSING)
        .answer(201, "Made", "CreatedKey", &created)
}

pub fn revoke_key() -> Operation {
    Operation::new(
        "revokeKey",
        TAG,
        "Revoke a key",
        "Refused at once here, within five seconds on other nodes.",
    )
    .parameter(company_id())
    .parameter(path_id("keyId", "The key's id, not the key."))
    .problem(404, MISSING)
    .problem(404, "The company has no such key (KEY_NOT_FOUND).")
    .empty_answer(204, "Revoked")
}

fn company_id() -> Value {
    path_id("id", "The company's id.")
}

fn company_example() -> Value {
    json!({
        "id": "0194812c-0000-7000-8000-000000000001",
        "name": "shop",
        "createdAt": "2025-01-19T19:30:00.123Z",
        "disabled": false,
        "disabledAt": null,
        "paused": null,
        "from": "Shop <shop@example.com>",
        "senders": ["@example.com"],
        "route": null,
        "weight": 1,
        "concurrencyMax": null,
        "ratePerSec": null,
        "dailyLimit": null,
        "retryPolicy": null,
        "onUnknown": null,
        "adminEmail": null,
    })
}

fn key_example() -> Value {
    json!({
        "id": "0194812c-0000-7000-8000-00000000000a",
        "mode": "live",
        "scopes": ["send"],
        "label": "shop",
        "prefix": "live_abc123x",
        "createdAt": "2025-01-19T19:30:00.123Z",
        "expiresAt": null,
        "revokedAt": null,
        "lastUsedAt": null,
    })
}
