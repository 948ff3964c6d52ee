//! What became of the emails about one thing.

use std::time::Duration;

use model::{KeyMode, Scope};
use serde_json::{Value, json};

use crate::hooks::{Stage, resend_event};
use crate::world::World;

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn get(world: &World, key: &str, path: &str) -> Value {
    let answer = world.get(path).key(key).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    world.gateway.store.fold(u32::MAX).await.expect("folded");
    answer.json()
}

fn day(day: &str, [delivered, bounced, complained, sent, failed]: [u64; 5]) -> Value {
    json!({
        "day": day, "delivered": delivered, "bounced": bounced, "complained": complained, "sent": sent,
        "failed": failed,
    })
}

#[tokio::test]
async fn a_summary_counts_events_and_people_by_day() {
    let stage = Stage::new().await;
    let world = &stage.world;
    let club = |to: &str| json!({ "to": to, "entity": { "id": "club/9 ü", "name": "Nine" } });
    for (number, to) in ["ana@example.com", "ana@example.com", "bob@example.com"].iter().enumerate() {
        let id = stage.taken(club(to)).await;
        let event = resend_event("email.delivered", id, to);
        stage.result(&stage.resend(&format!("d-{number}"), &event)).await;
        if number == 2 {
            stage.world.clock.advance(2 * DAY);
            stage.result(&stage.resend("b", &resend_event("email.bounced", id, to))).await;
        }
    }
    stage.taken(json!({ "entity": { "id": "club-1" } })).await;
    let path = "/v1/entities/club%2F9%20%C3%BC/summary";
    let summary = get(world, &world.live, &format!("{path}?days=3")).await;
    assert_eq!(summary["entity"], json!({ "id": "club/9 ü" }));
    assert_eq!((&summary["days"], &summary["since"]), (&json!(3), &json!("2026-01-01T00:00:00.000Z")));
    assert_eq!(
        summary["events"],
        json!([
            { "event": "DELIVERED", "total": 3, "uniqueRecipients": 2 },
            { "event": "SENT", "total": 3, "uniqueRecipients": 2 },
            { "event": "BOUNCED", "total": 1, "uniqueRecipients": 1 },
        ])
    );
    let nothing = [0; 5];
    assert_eq!(
        summary["trend"],
        json!([day("2026-01-01", [3, 1, 0, 3, 0]), day("2026-01-02", nothing), day("2026-01-03", nothing),])
    );
    let today = get(world, &world.live, &format!("{path}?days=1")).await;
    assert_eq!((&today["events"], &today["trend"]), (&json!([]), &json!([day("2026-01-03", nothing)])));
    let usual = get(world, &world.live, path).await;
    assert_eq!((&usual["days"], usual["trend"].as_array().map(Vec::len)), (&json!(30), Some(30)));
    let year = get(world, &world.live, &format!("{path}?days=365")).await;
    assert_eq!(
        (&year["since"], &year["trend"][364]["day"]),
        (&json!("2025-01-04T00:00:00.000Z"), &json!("2026-01-03"))
    );

    let listed = get(world, &world.live, "/v1/entities").await;
    let expected = json!({ "data": [
        { "id": "club-1", "lastActiveOn": "2026-01-03" }, { "id": "club/9 ü", "lastActiveOn": "2026-01-01" },
    ] });
    assert_eq!(listed, expected);
    let limited = get(world, &world.live, "/v1/entities?limit=1").await;
    assert_eq!(limited["data"].as_array().map(Vec::len), Some(1));

    let all = get(world, &world.live, "/v1/summary?days=3").await;
    let events = json!([
        { "event": "SENT", "total": 4 }, { "event": "DELIVERED", "total": 3 }, { "event": "BOUNCED", "total": 1 },
    ]);
    assert_eq!(all["events"], events, "with those about something else");
    assert_eq!(
        all["trend"],
        json!([
            day("2026-01-01", [3, 1, 0, 3, 0]),
            day("2026-01-02", nothing),
            day("2026-01-03", [0, 0, 0, 1, 0])
        ])
    );

    let other = world.company("other").await;
    let stranger = world.key(&other, KeyMode::Live, &[Scope::Admin]).await;
    assert_eq!(get(world, &stranger, "/v1/entities").await, json!({ "data": [] }));
    assert_eq!(get(world, &stranger, "/v1/summary").await["events"], json!([]));
    let theirs = get(world, &stranger, &format!("{path}?days=3")).await;
    let mut nobodys = get(world, &stranger, "/v1/entities/nothing/summary?days=3").await;
    nobodys["entity"]["id"] = json!("club/9 ü");
    assert_eq!(theirs, nobodys, "somebody else's looks like nobody's");
}

#[tokio::test]
async fn wrong_questions_are_named() {
    let stage = Stage::new().await;
    let long = format!("/v1/entities/{}/summary", "x".repeat(256));
    let cases = [
        ("/v1/entities/a/summary?days=0", 400, "OUT_OF_RANGE"),
        ("/v1/entities/a/summary?days=366", 400, "OUT_OF_RANGE"),
        ("/v1/entities/a/summary?days=all", 400, "INVALID_TYPE"),
        ("/v1/entities/a/summary?day=1", 400, "UNKNOWN_PARAMETER"),
        ("/v1/summary?days=0", 400, "OUT_OF_RANGE"),
        ("/v1/entities?limit=0", 400, "OUT_OF_RANGE"),
        ("/v1/entities?cursor=x", 400, "UNKNOWN_PARAMETER"),
        ("/v1/entities/%00/summary", 404, "ENTITY_NOT_FOUND"),
        ("/v1/entities/%ff/summary", 404, "ENTITY_NOT_FOUND"),
        (long.as_str(), 404, "ENTITY_NOT_FOUND"),
    ];
    for (path, status, code) in cases {
        let answer = stage.world.get(path).key(&stage.world.live).send().await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{path}");
    }
}
