//! Dead letters, described.

use model::Category;
use serde_json::{Value, json};

use super::emails::{cursor, limit, text, time};
use super::{Operation, path_id, query};

const TAG: &str = "Dead letters";

pub fn list() -> Operation {
    Operation::new(
        "listDeadLetters",
        TAG,
        "List dead letters",
        "Newest first, with the job as it was queued.",
    )
    .parameter(query("code", text(), "The code of the last failure."))
    .parameter(query("category", category(), "The category of the last failure."))
    .parameter(query("to", json!({ "type": "string", "format": "email" }), "The address it goes to."))
    .parameter(query("recipient", text(), "The recipient's externalId or id."))
    .parameter(query("since", time(), "Failed at or after."))
    .parameter(query("until", time(), "Failed before."))
    .parameter(cursor())
    .parameter(limit())
    .problem(400, "A parameter is wrong or unknown.")
    .answer(
        200,
        "A page of dead letters",
        "DeadLetterList",
        &json!({ "data": [example()], "nextCursor": null }),
    )
}

pub fn replay() -> Operation {
    Operation::new(
        "replayDeadLetters",
        TAG,
        "Put dead letters back into the queue",
        "Those named by ids, or all that match a filter (an empty one matches all). They keep their ids; attempts go \
         on counting, retries and time to live start anew. With a test key only test emails are \
         meant. When replayed is less than matched, somebody else was first, the limit was reached or the time was \
         up: call again.",
    )
    .json_body(&["application/json"], "Replay", &json!({ "filter": { "code": "SES_THROTTLING" }, "dryRun": true }))
    .answer(200, "How many", "ReplayCount", &json!({ "matched": 12, "replayed": 0 }))
}

pub fn remove() -> Operation {
    Operation::new(
        "dropDeadLetter",
        TAG,
        "Take a dead letter off the list",
        "The email stays FAILED and can still be read.",
    )
    .parameter(path_id("id", "The email's id."))
    .problem(404, "There is no such dead letter, or it belongs to another company (DEAD_LETTER_NOT_FOUND).")
    .empty_answer(204, "Dropped")
}

pub fn category() -> Value {
    let words: Vec<&str> = Category::ALL.iter().map(|category| category.as_str()).collect();
    json!({ "type": "string", "enum": words })
}

fn example() -> Value {
    let id = "0194812c-9a7b-7cc3-9f0e-3c5d2a1b4e6f";
    let company = "0194812c-0000-7000-8000-000000000001";
    json!({
        "jobId": id,
        "outboxId": id,
        "companyId": company,
        "originalData": {
            "outboxId": id,
            "companyId": company,
            "requestId": "req_1737329400_abc123",
            "to": "cliente@example.com",
            "cc": [],
            "bcc": [],
            "subject": "Seu pedido foi confirmado",
            "htmlRef": format!("db:{id}"),
            "headers": {},
            "tags": [],
            "attempt": 1,
            "enqueuedAt": "2025-01-19T19:30:00.123Z",
        },
        "failedAttempts": 1,
        "lastFailureReason": "554 message rejected",
        "lastFailureCode": "SMTP_REJECTED_554",
        "lastFailureCategory": "PERMANENT_ERROR",
        "lastFailureTimestamp": "2025-01-19T19:30:05.123Z",
        "outcomeUnknown": false,
        "enqueuedAt": "2025-01-19T19:30:00.123Z",
        "movedToDLQAt": "2025-01-19T19:30:05.123Z",
        "ttl": 604_800_000,
    })
}
