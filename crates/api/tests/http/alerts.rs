//! What admins are to hear of, and companies that are paused.

use std::time::Duration;

use model::{AlertOutcome, Clock as _, EmailId, KeyMode, Pause, Scope};
use serde_json::json;
use testkit::START;

use crate::hooks::{Stage, resend_event};
use crate::world::world;

#[tokio::test]
async fn alerts_are_listed_with_what_became_of_them() {
    let stage = Stage::new().await;
    let world = &stage.world;
    let mut ids = Vec::new();
    for (number, to) in ["a@example.com", "b@example.com", "c@example.com"].iter().enumerate() {
        let id = stage.taken(json!({ "to": to })).await;
        stage.result(&stage.resend(&format!("m-{number}"), &resend_event("email.bounced", id, to))).await;
        world.clock.advance(Duration::from_secs(1));
        ids.push(id);
    }
    let again = resend_event("email.bounced", ids[0], "a@example.com");
    stage.result(&stage.resend("again", &again)).await;
    let pending = world.gateway.store.pending_alerts(10).await.expect("alerts");
    let told = EmailId::new(START);
    let store = &world.gateway.store;
    store.end_alert(pending[0].id, AlertOutcome::Sent(told)).await.expect("ended");
    store
        .end_alert(pending[1].id, AlertOutcome::Shown("no admin address is set".into()))
        .await
        .expect("ended");

    let page = world.get("/v1/alerts?limit=2").key(&world.live).send().await.json();
    let cursor = page["nextCursor"].as_str().expect("a second page");
    assert_eq!(page["data"][0]["address"], "c@example.com", "newest first");
    assert_eq!((&page["data"][0]["sentAs"], &page["data"][0]["shown"]), (&json!(null), &json!(null)));
    assert_eq!(page["data"][1]["shown"], "no admin address is set");
    let path = format!("/v1/alerts?limit=2&cursor={cursor}");
    let first = world.get(&path).key(&world.live).send().await.json()["data"][0].clone();
    let expected = json!({
        "id": pending[0].id.to_string(), "kind": "admin-email-bounce", "mode": "live", "subject": "a@example.com",
        "emailId": ids[0].to_string(), "address": "a@example.com", "reason": "550 no such user",
        "createdAt": "2026-01-01T00:00:00.000Z", "repeats": 1, "sentAs": told.to_string(), "shown": null,
    });
    assert_eq!(first, expected);
    let other = world.company("other").await;
    let stranger = world.key(&other, KeyMode::Live, &[Scope::Admin]).await;
    let theirs = world.get("/v1/alerts").key(&stranger).send().await.json();
    assert_eq!(theirs, json!({ "data": [], "nextCursor": null }));
    for (query, code) in
        [("limit=0", "OUT_OF_RANGE"), ("cursor=1", "INVALID_CURSOR"), ("kind=x", "UNKNOWN_PARAMETER")]
    {
        let answer = world.get(&format!("/v1/alerts?{query}")).key(&world.live).send().await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{query}");
    }
}

#[tokio::test]
async fn a_paused_company_is_shown_and_resumed() {
    let world = world().await;
    let path = format!("/v1/admin/companies/{}", world.shop.id);
    let resume = format!("{path}/resume");
    assert_eq!(world.get(&path).operator().send().await.json()["paused"], json!(null));
    let early = world.post(&resume).operator().send().await;
    assert_eq!((early.status, early.code().as_str()), (409, "NOT_PAUSED"));
    let pause = Pause { at: world.clock.now(), reason: "too many complaints".into() };
    world.gateway.store.pause_company(world.shop.id, pause).await.expect("paused");
    let paused = json!({ "at": "2026-01-01T00:00:00.000Z", "reason": "too many complaints" });
    assert_eq!(world.get(&path).operator().send().await.json()["paused"], paused);
    let listed = world.get("/v1/admin/companies").operator().send().await.json();
    assert_eq!(listed["data"][0]["paused"], paused);
    world.sent().await;
    assert_eq!(world.deliver_all("relay").await, 0, "its emails wait");
    assert_eq!(world.post(&resume).key(&world.admin).send().await.status, 401, "not by its own key");

    let resumed = world.post(&resume).operator().send().await;
    assert_eq!((resumed.status, &resumed.json()["paused"]), (200, &json!(null)));
    assert_eq!(world.deliver_all("relay").await, 1);
    for missing in ["0190c3d2-7b7e-7000-8000-000000000000", "x"] {
        let answer = world.post(&format!("/v1/admin/companies/{missing}/resume")).operator().send().await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "COMPANY_NOT_FOUND"));
    }
}
