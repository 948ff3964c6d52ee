//! What happens after sending, described: suppressions, recipients, entities, alerts.

use model::address::ADDRESS_LENGTH_MAX;
use serde_json::{Value, json};

use super::emails::{cursor, limit};
use super::{Operation, path_text, query};
use crate::limits::{
    ID_LENGTH_MAX, PROBLEMS_LOOKED_AT_MAX, SUMMARY_DAYS_DEFAULT, SUMMARY_DAYS_MAX, SUPPRESSIONS_MAX,
};

const TAG: &str = "Aftermath";
const WRONG_PARAMETER: &str = "A parameter is wrong or unknown.";
const NOT_ON_LIST: &str = "The address is not on the company's list (SUPPRESSION_NOT_FOUND).";

pub fn list_suppressions() -> Operation {
    Operation::new(
        "listSuppressions",
        TAG,
        "List suppressed addresses",
        "The addresses the company does not write to, newest first.",
    )
    .parameter(cursor())
    .parameter(limit())
    .problem(400, WRONG_PARAMETER)
    .answer(
        200,
        "A page of suppressions",
        "SuppressionList",
        &json!({ "data": [suppression()], "nextCursor": null }),
    )
}

pub fn add_suppressions() -> Operation {
    Operation::new(
        "addSuppressions",
        TAG,
        "Suppress addresses",
        "One address, or a list of them. Nothing is sent to them until they are lifted, also not what waits already. \
         An address that is on the list stays as it is.",
    )
    .json_body(
        &["application/json"],
        "NewSuppressions",
        &json!([{ "email": "ana@example.com", "reason": "asked by phone" }]),
    )
    .problem(400, &format!("TOO_MANY_SUPPRESSIONS (more than {SUPPRESSIONS_MAX})."))
    .answer(200, "How many", "SuppressionCount", &json!({ "given": 1, "added": 1 }))
}

pub fn get_suppression() -> Operation {
    Operation::new("getSuppression", TAG, "Is an address suppressed?", "However it is spelled.")
        .parameter(address())
        .problem(404, NOT_ON_LIST)
        .answer(200, "The suppression", "Suppression", &suppression())
}

pub fn lift_suppression() -> Operation {
    Operation::new(
        "liftSuppression",
        TAG,
        "Take an address off the list",
        "The company writes to it again. Providers have lists of their own, which this does not touch.",
    )
    .parameter(address())
    .problem(404, NOT_ON_LIST)
    .empty_answer(204, "Lifted")
}

pub fn list_recipients() -> Operation {
    let problematic = json!({ "type": "boolean", "default": false });
    let description = format!(
        "The recipients that emails named, the latest known first. With problematic=true instead the addresses with \
         repeated failures (three or more within seven days), the latest first; they have no recipientId, since a \
         failure counts for an address. Whether a known recipient is problematic is told by the {PROBLEMS_LOOKED_AT_MAX} \
         latest such addresses."
    );
    Operation::new("listRecipients", TAG, "List recipients", description)
        .parameter(query("problematic", problematic, "true: only addresses with repeated failures."))
        .parameter(cursor())
        .parameter(limit())
        .problem(400, WRONG_PARAMETER)
        .answer(
            200,
            "A page of recipients",
            "KnownRecipientList",
            &json!({ "data": [recipient()], "nextCursor": null }),
        )
}

pub fn clear_problem() -> Operation {
    Operation::new(
        "clearProblematicRecipient",
        TAG,
        "Forget an address's failures",
        "It is no longer listed as problematic, and failures are counted anew.",
    )
    .parameter(address())
    .problem(404, "The address has no repeated failures (PROBLEM_NOT_FOUND).")
    .empty_answer(204, "Forgotten")
}

pub fn list_entities() -> Operation {
    Operation::new(
        "listEntities",
        TAG,
        "List lately active entities",
        "What emails were about lately, the latest first. May lag a second behind.",
    )
    .parameter(limit())
    .problem(400, WRONG_PARAMETER)
    .answer(
        200,
        "The entities",
        "EntityList",
        &json!({ "data": [{ "id": "club-9", "lastActiveOn": "2026-01-01" }] }),
    )
}

pub fn company_summary() -> Operation {
    let example = json!({
        "days": 1,
        "since": "2026-01-01T00:00:00.000Z",
        "events": [{ "event": "SENT", "total": 12 }],
        "trend": [{
            "day": "2026-01-01", "delivered": 0, "bounced": 0, "complained": 0, "sent": 12, "failed": 0,
        }],
    });
    Operation::new(
        "getSummary",
        TAG,
        "What became of the company's emails",
        "Counts by event over the last days (UTC, today included), and day by day with every day of the window. \
         Counts may lag a second behind.",
    )
    .parameter(days())
    .problem(400, WRONG_PARAMETER)
    .answer(200, "The summary", "Summary", &example)
}

fn days() -> Value {
    let days = json!({
        "type": "integer", "minimum": 1, "maximum": SUMMARY_DAYS_MAX, "default": SUMMARY_DAYS_DEFAULT,
    });
    query("days", days, "How many days to look back.")
}

pub fn entity_summary() -> Operation {
    let example = json!({
        "entity": { "id": "club-9" },
        "days": 1,
        "since": "2026-01-01T00:00:00.000Z",
        "events": [{ "event": "SENT", "total": 12, "uniqueRecipients": 9 }],
        "trend": [{
            "day": "2026-01-01", "delivered": 0, "bounced": 0, "complained": 0, "sent": 12, "failed": 0,
        }],
    });
    Operation::new(
        "getEntitySummary",
        TAG,
        "What became of the emails about an entity",
        "Counts by event over the last days (UTC, today included), and day by day with every day of the window. \
         Counts may lag a second behind. An entity nothing is known of has no events.",
    )
    .parameter(path_text("entity", "Your own id of the entity.", ID_LENGTH_MAX))
    .parameter(days())
    .problem(400, WRONG_PARAMETER)
    .problem(404, "The text cannot be the id of an entity (ENTITY_NOT_FOUND).")
    .answer(200, "The summary", "EntitySummary", &example)
}

pub fn list_alerts() -> Operation {
    let example = json!({
        "id": "0194812c-0000-7000-8000-0000000000aa",
        "kind": "admin-email-bounce",
        "mode": "live",
        "subject": "club-9",
        "emailId": "0194812c-9a7b-7cc3-9f0e-3c5d2a1b4e6f",
        "address": "ana@example.com",
        "reason": "550 no such user",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "repeats": 0,
        "sentAs": null,
        "shown": "no admin address is set",
    });
    Operation::new(
        "listAlerts",
        TAG,
        "List alerts",
        "What the company's admin was to hear of, newest first: one per kind, subject and day.",
    )
    .parameter(cursor())
    .parameter(limit())
    .problem(400, WRONG_PARAMETER)
    .answer(200, "A page of alerts", "AlertList", &json!({ "data": [example], "nextCursor": null }))
}

fn address() -> Value {
    path_text("email", "The address, percent-encoded where a path needs it.", ADDRESS_LENGTH_MAX)
}

fn suppression() -> Value {
    json!({
        "email": "ana@example.com",
        "reason": "550 no such user",
        "source": "bounce",
        "emailId": "0194812c-9a7b-7cc3-9f0e-3c5d2a1b4e6f",
        "createdAt": "2026-01-01T00:00:00.000Z",
    })
}

fn recipient() -> Value {
    json!({
        "recipientId": "0194812c-0000-7000-8000-0000000000bb",
        "externalId": "customer-67890",
        "email": "ana@example.com",
        "suppressed": false,
        "problematic": true,
        "failures": 3,
        "since": "2026-01-01T00:00:00.000Z",
        "lastFailureAt": "2026-01-03T00:00:00.000Z",
        "lastFailureCode": "SMTP_REJECTED_550",
    })
}
