//! What happens after sending: suppressions, recipients, entities, alerts, templates, webhooks.

use gateway::templates::{BODY_BYTES_MAX, SUBJECT_BYTES_MAX};
use model::suppression::SUPPRESSION_REASON_LENGTH_MAX;
use model::{AlertKind, SuppressionSource};
use serde_json::{Value, json};
use store::tallies::TALLIED;

use super::given::{address, one_line};
use super::{id, list, nullable, object, page, required_all, status, text, time, whole};
use crate::limits::SUPPRESSIONS_MAX;
use crate::openapi::{reference, templates};
use crate::v1::entities::TREND;
use crate::v1::webhooks::Outcome;

/// All schemas of this area by name.
pub fn all() -> Value {
    json!({
        "NewSuppression": new_suppression(),
        "NewSuppressions": new_suppressions(),
        "Suppression": suppression(),
        "SuppressionList": page("Suppression"),
        "SuppressionCount": suppression_count(),
        "KnownRecipient": recipient(),
        "KnownRecipientList": page("KnownRecipient"),
        "ActiveEntity": entity(),
        "EntityList": list("ActiveEntity"),
        "EntitySummary": entity_summary(),
        "Summary": company_summary(),
        "Alert": alert(),
        "AlertList": page("Alert"),
        "NewTemplate": new_template(),
        "Template": template(),
        "TemplateVersion": template_version(),
        "TemplateName": template_name(),
        "TemplateList": list("TemplateName"),
        "Preview": preview(),
        "Rendered": rendered(),
        "WebhookResult": webhook_result(),
        "ReportList": report_list(),
    })
}

fn new_suppression() -> Value {
    let properties = json!({
        "email": address("A plain address."),
        "reason": one_line(SUPPRESSION_REASON_LENGTH_MAX, "For people."),
    });
    object(properties, &["email", "reason"])
}

fn new_suppressions() -> Value {
    let many = json!({
        "type": "array", "minItems": 1, "maxItems": SUPPRESSIONS_MAX, "items": reference("NewSuppression"),
    });
    json!({ "oneOf": [reference("NewSuppression"), many] })
}

fn suppression() -> Value {
    let sources = SuppressionSource::ALL.map(SuppressionSource::as_str);
    required_all(json!({
        "email": text(),
        "reason": text(),
        "source": { "type": "string", "enum": sources, "description": "Who put it on the list." },
        "emailId": { "type": ["string", "null"], "format": "uuid", "description": "The email whose fate led to it." },
        "createdAt": time(),
    }))
}

fn suppression_count() -> Value {
    let added =
        json!({ "type": "integer", "minimum": 0, "description": "Those that were not on the list before." });
    required_all(json!({ "given": whole(), "added": added }))
}

fn recipient() -> Value {
    required_all(json!({
        "recipientId": nullable(id()),
        "externalId": nullable(text()),
        "email": text(),
        "suppressed": { "type": "boolean", "description": "Nothing is sent to it." },
        "problematic": { "type": "boolean", "description": "It keeps failing; the fields below say since when." },
        "failures": nullable(whole()),
        "since": nullable(time()),
        "lastFailureAt": nullable(time()),
        "lastFailureCode": nullable(text()),
    }))
}

fn entity() -> Value {
    required_all(json!({ "id": text(), "lastActiveOn": date() }))
}

fn entity_summary() -> Value {
    let event = json!({ "event": event_kind(), "total": whole(), "uniqueRecipients": whole() });
    let mut summary = summary(required_all(event));
    summary["entity"] = required_all(json!({ "id": text() }));
    required_all(summary)
}

fn company_summary() -> Value {
    required_all(summary(required_all(json!({ "event": event_kind(), "total": whole() }))))
}

fn event_kind() -> Value {
    json!({ "type": "string", "enum": TALLIED.map(|kind| kind.as_str()) })
}

/// What every summary has, given how it counts one kind of event.
fn summary(event: Value) -> Value {
    let mut day = json!({ "day": date() });
    for (name, _) in TREND {
        day[name] = whole();
    }
    json!({
        "days": { "type": "integer", "minimum": 1 },
        "since": time(),
        "events": { "type": "array", "items": event },
        "trend": { "type": "array", "minItems": 1, "items": required_all(day), "description": "Oldest first." },
    })
}

fn date() -> Value {
    json!({ "type": "string", "format": "date" })
}

fn alert() -> Value {
    let kinds = AlertKind::ALL.map(AlertKind::as_str);
    required_all(json!({
        "id": id(),
        "kind": { "type": "string", "enum": kinds },
        "mode": { "type": "string", "enum": ["live", "test"] },
        "subject": { "type": "string", "description": "What it is about: an entity, else an address." },
        "emailId": { "type": "string", "format": "uuid", "description": "The email that raised it." },
        "address": text(),
        "reason": text(),
        "createdAt": time(),
        "repeats": { "type": "integer", "minimum": 0, "description": "How many times more it happened within the day." },
        "sentAs": { "type": ["string", "null"], "format": "uuid", "description": "The email by which the admin was told." },
        "shown": { "type": ["string", "null"], "description": "Why nobody was told." },
    }))
}

fn new_template() -> Value {
    let part = |description: &str| json!({ "type": ["string", "null"], "maxLength": BODY_BYTES_MAX, "description": description });
    let properties = json!({
        "subject": { "type": "string", "maxLength": SUBJECT_BYTES_MAX },
        "html": part("Excludes mjml."),
        "mjml": part("Excludes html."),
        "text": part("Derived from the html unless given."),
    });
    let mut schema = object(properties, &["subject"]);
    let given = |name: &str| json!({ "required": [name], "properties": { name: { "type": "string" } } });
    schema["anyOf"] = json!([given("html"), given("mjml")]);
    schema
}

fn version_properties() -> Value {
    json!({
        "name": text(),
        "version": templates::version(),
        "variables": {
            "type": "array", "items": { "type": "string" },
            "description": "Those it mentions, with their paths; also those it can do without.",
        },
        "createdAt": time(),
    })
}

fn template_version() -> Value {
    required_all(version_properties())
}

fn template() -> Value {
    let mut properties = version_properties();
    for part in ["subject", "html", "mjml", "text"] {
        properties[part] = text();
    }
    object(properties, &["name", "version", "variables", "createdAt", "subject"])
}

fn template_name() -> Value {
    required_all(json!({ "name": text(), "version": templates::version(), "createdAt": time() }))
}

fn preview() -> Value {
    let properties = json!({
        "variables": { "type": ["object", "null"] },
        "version": nullable(templates::version()),
    });
    object(properties, &[])
}

fn rendered() -> Value {
    required_all(json!({ "subject": text(), "html": text(), "text": text() }))
}

fn webhook_result() -> Value {
    let words = Outcome::ALL.map(Outcome::as_str);
    required_all(json!({ "result": { "type": "string", "enum": words } }))
}

fn report_list() -> Value {
    let report = required_all(json!({
        "id": text(),
        "provider": text(),
        "receivedAt": time(),
        "payload": { "type": "string", "description": "As it came." },
    }));
    required_all(json!({
        "data": { "type": "array", "items": report },
        "total": { "type": "integer", "minimum": 0, "description": "How many there are; the latest are shown." },
    }))
}

pub fn recipient_states() -> Value {
    let state = required_all(json!({ "address": text(), "status": status(), "at": time() }));
    json!({
        "type": "array", "items": state,
        "description": "Only of an email to several: what was reported of each, or that its copy was refused; those of whom nothing is known are missing.",
    })
}

pub fn pause() -> Value {
    let pause = required_all(json!({ "at": time(), "reason": text() }));
    let mut pause = nullable(pause);
    pause["description"] =
        Value::from("Set while its emails wait because they would harm everybody's standing.");
    pause
}
