//! What the pages show, and what their forms do.

use std::time::Duration;

use api::inside::Behalf;
use dashboard::DashboardSettings;
use model::{Bounce, ReportKind, Secret};
use serde_json::json;

use crate::world::{World, world, world_of};

/// A shop with one email of most kinds; the ids of a delivered, a failed, a waiting and a scheduled one.
async fn busy() -> (World, [String; 4]) {
    let world = world().await;
    let entity = json!({ "id": "order-7", "name": "Order 7" });
    let delivered =
        world.email(json!({ "to": "delivered@posthaste.test", "tags": ["receipt"], "entity": entity })).await;
    let failed = world.email(json!({ "to": "rejected@posthaste.test", "subject": "Refused" })).await;
    let bounced = world.email(json!({ "to": "gone@example.com", "entity": entity })).await;
    let retrying = world.email(json!({ "to": "throttled@posthaste.test", "retryPolicy": "patient" })).await;
    world.work().await;
    let bounced = bounced.parse().expect("an id");
    let kind = ReportKind::Bounced(Bounce::Hard);
    gateway::sandbox::play(&world.gateway, "relay", bounced, kind, "r1".into()).await.expect("a report");
    let scheduled = world.email(json!({ "delay": 3_600_000 })).await;
    (world, [delivered, failed, retrying, scheduled])
}

#[tokio::test]
async fn every_page_answers_with_its_landmarks() {
    let (world, [delivered, ..]) = busy().await;
    let email = format!("/ui/c/shop/emails/{delivered}");
    let pages: &[(&str, &[&str])] = &[
        ("/ui", &["<h1>Server</h1>", "Oldest waiting", "1 min 30 s", "capture", "shop"]),
        ("/ui/providers", &["<h1>Providers</h1>", "relay", "14 per second", "Working"]),
        ("/ui/companies", &["<h1>Companies</h1>", "shop", "a/b &amp; &lt;c&gt;"]),
        (
            "/ui/c/shop",
            &["<h1>Overview</h1>", "Dead letters", "Refused", "Recent bounces", "An email bounced"],
        ),
        ("/ui/c/shop/emails", &["<h1>Emails</h1>", "role=\"search\"", "Retry scheduled", "receipt"]),
        (&email, &["Why", "Delivered", "Handed to the provider", "Preview of the email", "order-7"]),
        ("/ui/c/shop/dead-letters", &["<h1>Dead letters</h1>", "CAPTURE_REJECTED", "Replay…", "for 7 days"]),
        ("/ui/c/shop/recipients", &["<h1>Recipients</h1>", "gone@example.com", "Lift"]),
        ("/ui/c/shop/entities", &["<h1>Entities</h1>", "order-7"]),
        (
            "/ui/c/shop/entities/order-7",
            &["order-7", "<svg role=\"img\"", "1 delivered and 1 bounced in 30 days"],
        ),
        ("/ui/c/shop/mailbox", &["Mailbox</h1>", "data-letter", "Choose a message", "gone@example.com"]),
        (
            "/ui/c/shop/alerts",
            &["<h1>Webhooks and alerts</h1>", "An email bounced", "bounced@posthaste.test"],
        ),
        ("/ui/c/shop/settings", &["<h1>Keys and state</h1>", "Make a key", "Switch off"]),
    ];
    let frame = [
        "<!DOCTYPE html>",
        "<html lang=\"en\">",
        "<main id=\"main\"",
        "<nav aria-label=\"Pages\">",
        "</html>",
    ];
    for (path, parts) in pages {
        let page = world.get(path).send().await;
        assert_eq!(page.status, 200, "{path}");
        page.has(&frame);
        page.has(if path.starts_with(&email) { &parts[1..] } else { parts });
        assert_eq!(page.text.matches("<h1").count(), 1, "{path}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_said_so() {
    let world = world().await;
    let nobody = "/ui/c/shop/emails/01930000-0000-7000-8000-000000000000";
    for path in ["/ui/nowhere", "/ui/c/nobody/emails", "/ui/c/shop/emails/x", nobody] {
        let page = world.get(path).send().await;
        assert_eq!(page.status, 404, "{path}");
        page.has(&["<main"]);
    }
    assert_eq!(world.get("/").send().await.header("location"), "/ui");
    let api = world.get("/livez").send().await;
    assert_eq!((api.status, api.text.as_str()), (200, r#"{"status":"ok"}"#), "the API is behind");
}

#[tokio::test]
async fn companies_are_found_by_name_and_by_id() {
    let world = world().await;
    let shop = world.shop.to_string();
    for company in ["shop", &shop, "a%2Fb%20%26%20%3Cc%3E"] {
        let page = world.get(&format!("/ui/c/{company}/emails")).send().await;
        assert_eq!(page.status, 200, "{company}");
    }
    let page = world.get("/ui/go?company=a%2Fb+%26+%3Cc%3E").send().await;
    assert_eq!(page.header("location"), "/ui/c/a%2Fb%20%26%20%3Cc%3E/emails");
}

#[tokio::test]
async fn an_empty_list_teaches() {
    let world = world().await;
    let path = format!("/v1/admin/companies/{}/keys", world.shop);
    let key = world.inside.post(Behalf::Operator, &path, &json!({})).await;
    let (whole, prefix) =
        (key.body["key"].as_str().expect("a key"), key.body["prefix"].as_str().expect("a prefix"));
    let page = world.get("/ui/c/shop/emails").send().await;
    page.has(&["No email yet", "curl http://localhost:8025/v1/email/send", &format!("X-API-Key: {prefix}…")]);
    page.has_not(whole);
}

#[tokio::test]
async fn in_dev_the_line_has_the_key() {
    let dev_key = Some(("shop".to_owned(), Secret::new("test_0123".to_owned())));
    let settings = DashboardSettings { dev_key, ..DashboardSettings::default() };
    let world = world_of(None, settings).await;
    world.get("/ui/c/shop/emails").send().await.has(&["X-API-Key: test_0123", "works as it is"]);
    world.get("/ui/c/shop/mailbox").send().await.has(&["X-API-Key: test_0123"]);
    world.get("/ui/c/a%2Fb%20%26%20%3Cc%3E/emails").send().await.has_not("test_0123");
}

#[tokio::test]
async fn hostile_text_stays_text() {
    let world = world().await;
    let hostile = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>";
    let id = world
        .email(json!({
            "subject": hostile, "to": "o'b&c@example.com", "externalId": hostile,
            "text": "</pre><script>",
            "entity": { "id": "<script>e", "name": "</title><script>" },
            "html": "<p title='\"></iframe><script>'>Hi</p>",
        }))
        .await;
    let mut paths = vec![
        "/ui/c/shop/emails".to_owned(),
        "/ui/c/shop".to_owned(),
        "/ui/c/shop/emails?to=%3Cscript%3E&tag=%22%3E%3Cscript%3E&since=%3Cscript%3E&code=%3Cscript%3E"
            .to_owned(),
        "/ui/c/shop/entities".to_owned(),
        "/ui/c/shop/entities/%3Cscript%3Ee".to_owned(),
        "/ui/c/shop/dead-letters/replay?code=%3Cscript%3E".to_owned(),
        "/ui/c/%3Cscript%3E/emails".to_owned(),
        "/ui/companies?done=%3Cscript%3E".to_owned(),
    ];
    paths.extend([
        "/ui/c/shop/mailbox".to_owned(),
        format!("/ui/c/shop/mailbox?id={id}&q=%22%3E%3Cscript%3E"),
        format!("/ui/c/shop/mailbox?id={id}&tab=headers"),
        "/ui/c/shop/alerts".to_owned(),
        "/ui/c/shop?days=%22%3E%3Cscript%3E".to_owned(),
        "/ui/c/shop/emails?requestId=%3Cscript%3E&providerMessageId=%22%3E%3Cscript%3E".to_owned(),
    ]);
    paths.extend(
        ["", "?tab=text", "?tab=source", "?tab=headers", "?tab=json", "?tab=attachments"]
            .map(|tab| format!("/ui/c/shop/emails/{id}{tab}")),
    );
    for path in paths {
        let page = world.get(&path).send().await;
        assert_eq!(page.text.matches("<script").count(), 1, "{path}: only ours\n{}", page.text);
        page.has_not("<img");
    }
    world
        .get(&format!("/ui/c/shop/emails/{id}"))
        .send()
        .await
        .has(&["&lt;script&gt;alert('x')&lt;/script&gt;"]);
}

#[tokio::test]
async fn the_preview_runs_and_loads_nothing() {
    let (world, [id, ..]) = busy().await;
    let page = world.get(&format!("/ui/c/shop/emails/{id}")).send().await;
    let start = page.text.find("<iframe").expect("a frame");
    let frame = &page.text[start..start + page.text[start..].find('>').expect("its end")];
    assert!(frame.contains("sandbox=\"\""), "{frame}");
    assert!(!frame.contains("allow"), "{frame}");
    let inner = world.get(&format!("/ui/c/shop/emails/{id}/preview")).send().await;
    assert_eq!(inner.text, "<p>Hello</p>");
    let policy = inner.header("content-security-policy");
    assert!(policy.starts_with("sandbox; default-src 'none';"), "{policy}");
    assert!(
        !policy.contains("allow-") && !policy.contains("script-src") && !policy.contains("http"),
        "{policy}"
    );
    let eml = world.get(&format!("/ui/c/shop/emails/{id}/eml")).send().await;
    assert_eq!(eml.header("content-type"), "message/rfc822");
    assert!(eml.header("content-disposition").starts_with("attachment;"));
    eml.has(&["Subject: Hello"]);
}

#[tokio::test]
async fn filters_and_older_pages_are_in_the_address() {
    let world = world().await;
    for number in 0..30 {
        world.email(json!({ "subject": format!("Number {number}."), "to": format!("p{}@example.com", number % 2) })).await;
        world.clock.advance(Duration::from_secs(1));
    }
    let first = world.get("/ui/c/shop/emails?since=1h").send().await;
    first.has(&["Number 29.", "Number 5."]);
    first.has_not("Number 4.");
    world.clock.advance(Duration::from_secs(5));
    let start = first.text.find("rel=\"next\" href=\"").expect("older ones") + "rel=\"next\" href=\"".len();
    let older = first.text[start..].split('"').next().expect("an address").replace("&amp;", "&");
    let second = world.get(&older).send().await;
    second.has(&["Number 4.", "Number 0.", "Newest"]);
    second.has_not("Number 5.");
    let filtered = world.get("/ui/c/shop/emails?to=p1%40example.com").send().await;
    filtered.has(&["Number 29.", "value=\"p1@example.com\""]);
    filtered.has_not("Number 28.");
    let wrong = world.get("/ui/c/shop/emails?to=nonsense").send().await;
    assert_eq!(wrong.status, 200);
    wrong.has(&["role=\"alert\""]);
}

#[tokio::test]
async fn the_search_guesses_what_was_typed() {
    let world = world().await;
    let id = world.email(json!({ "externalId": "mine-9" })).await;
    world.work().await;
    let capture = format!("capture-{id}");
    let cases = [
        (id.as_str(), format!("/ui/c/shop/emails/{id}")),
        ("ana%40example.com", "/ui/c/shop/emails?to=ana%40example.com".to_owned()),
        ("order-7", "/ui/c/shop/emails?entity=order-7".to_owned()),
        ("mine-9", "/ui/c/shop/emails?externalId=mine-9".to_owned()),
        (&capture, format!("/ui/c/shop/emails?providerMessageId={capture}")),
        ("req_abc", "/ui/c/shop/emails?requestId=req_abc".to_owned()),
        ("nothing-at-all", "/ui/c/shop/emails?entity=nothing-at-all".to_owned()),
    ];
    for (typed, expected) in cases {
        let page = world.get(&format!("/ui/c/shop/emails?q={typed}")).send().await;
        assert_eq!(page.header("location"), expected, "{typed}");
    }
    let found = world.get(&format!("/ui/c/shop/emails?providerMessageId={capture}")).send().await;
    found.has(&[&format!("data-key=\"{id}\"")]);
    let from_elsewhere = world.get(&format!("/ui/c/a%2Fb%20%26%20%3Cc%3E/emails?q={id}")).send().await;
    assert_eq!(from_elsewhere.header("location"), format!("/ui/c/shop/emails/{id}"), "whosever it is");
}

#[tokio::test]
async fn retry_and_cancel_do_what_they_say() {
    let (world, [delivered, failed, retrying, scheduled]) = busy().await;
    let page = |id: &str| format!("/ui/c/shop/emails/{id}");
    world.get(&page(&retrying)).send().await.has(&[
        "Why is it waiting?",
        "CAPTURE_THROTTLED",
        "in 15 min",
        "Retry now",
    ]);
    world.get(&page(&delivered)).send().await.has_not("/cancel\"");

    let answer = world.submit(&page(&retrying), &format!("{}/retry", page(&retrying)), &[]).await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (303, format!("{}?done=retried", page(&retrying)).as_str())
    );
    assert_eq!(world.status_of(&retrying).await, "ENQUEUED");

    let answer = world.submit(&page(&scheduled), &format!("{}/cancel", page(&scheduled)), &[]).await;
    assert_eq!(answer.status, 303);
    assert_eq!(world.status_of(&scheduled).await, "CANCELLED");

    let answer = world.submit(&page(&retrying), &format!("{}/cancel", page(&delivered)), &[]).await;
    assert_eq!(answer.status, 409, "too late");
    answer.has(&["role=\"alert\"", "only one that has not been sent can be withdrawn"]);

    let answer = world.submit(&page(&failed), &format!("{}/replay", page(&failed)), &[]).await;
    assert_eq!(answer.status, 303);
    assert_eq!(world.status_of(&failed).await, "ENQUEUED");
}

#[tokio::test]
async fn an_email_is_resent_once_and_linked() {
    let (world, [delivered, ..]) = busy().await;
    let page = format!("/ui/c/shop/emails/{delivered}");
    world.get(&page).send().await.has(&["Resend", "Attempts", "name=\"once\""]);
    let fields = [("once", "ui-1")];
    let first = world.submit(&page, &format!("{page}/resend"), &fields).await;
    let again = world.submit(&page, &format!("{page}/resend"), &fields).await;
    assert_eq!(first.status, 303);
    assert_eq!(first.header("location"), again.header("location"), "a double click is one email");
    let copy = world.get(first.header("location")).send().await;
    copy.has(&["Sent once more.", "See the first one", &page, "A copy is on its way"]);
    world.get(&page).send().await.has(&["Resent to delivered@posthaste.test"]);
}

#[tokio::test]
async fn the_tabs_show_every_side() {
    let world = world().await;
    let attachment = json!({ "filename": "câmara 1.txt", "contentType": "text/html", "content": "PGI+" });
    let id = world.email(json!({ "text": "In words", "attachments": [attachment] })).await;
    let page = format!("/ui/c/shop/emails/{id}");
    let cases: [(&str, &[&str]); 6] = [
        ("preview", &["<iframe", "data-width=\"phone\""]),
        ("text", &["In words"]),
        ("source", &["MIME-Version: 1.0"]),
        ("headers", &["<th scope=\"row\">Subject</th><td>Hello</td>"]),
        ("attachments", &["câmara 1.txt", "3 B"]),
        ("json", &["&quot;requestId&quot;", "&quot;ENQUEUED&quot;"]),
    ];
    for (tab, parts) in cases {
        world.get(&format!("{page}?tab={tab}")).send().await.has(parts);
    }
    let file = world.get(&format!("{page}/attachments/0")).send().await;
    assert_eq!((file.text.as_str(), file.header("content-type")), ("<b>", "application/octet-stream"));
    let expected = "attachment; filename=\"c_mara_1.txt\"; filename*=UTF-8''c%C3%A2mara%201.txt";
    assert_eq!(file.header("content-disposition"), expected);
    assert_eq!(world.get(&format!("{page}/attachments/7")).send().await.status, 404);
}

#[tokio::test]
async fn the_trend_covers_as_many_days_as_asked() {
    let (world, _) = busy().await;
    for (query, days) in [("", 30), ("?days=7", 7), ("?days=90", 90), ("?days=5", 30)] {
        let page = world.get(&format!("/ui/c/shop{query}")).send().await;
        page.has(&[&format!("in {days} days"), &format!("days={days}\" aria-current=\"true\"")]);
    }
}

#[tokio::test]
async fn dead_letters_are_counted_replayed_and_dropped() {
    let world = world().await;
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.push(world.email(json!({ "to": format!("rejected+{number}@posthaste.test") })).await);
    }
    world.work().await;
    let list = "/ui/c/shop/dead-letters";
    let answer = world.submit(list, &format!("{list}/drop"), &[("id", &ids[0])]).await;
    assert_eq!(answer.header("location"), format!("{list}?done=dropped"));
    let ask = format!("{list}/replay?code=CAPTURE_REJECTED");
    world.get(&ask).send().await.has(&["2 emails"]);
    assert_eq!(world.status_of(&ids[1]).await, "FAILED", "asking changes nothing");
    let answer = world.submit(&ask, &format!("{list}/replay"), &[]).await;
    assert_eq!(answer.status, 400, "without a code nothing is replayed");
    assert_eq!(world.status_of(&ids[1]).await, "FAILED");
    let answer = world.submit(&ask, &format!("{list}/replay"), &[("code", "CAPTURE_REJECTED")]).await;
    assert_eq!(answer.status, 303);
    assert_eq!(world.status_of(&ids[0]).await, "FAILED", "it was dropped");
    assert_eq!(world.status_of(&ids[1]).await, "ENQUEUED");
}

/// A replay of many goes on step by step, and the page says how far it is.
#[tokio::test]
async fn a_long_replay_shows_its_progress() {
    let world = world().await;
    for number in 0..3 {
        world.email(json!({ "to": format!("rejected+{number}@posthaste.test") })).await;
    }
    world.work().await;
    world.get("/ui").send().await.has(&["href=\"/ui/c/shop/dead-letters\">Dead letters"]);
    let list = "/ui/c/shop/dead-letters";
    let step = [("code", "CAPTURE_REJECTED"), ("step", "2")];
    let first = world.submit(list, &format!("{list}/replay"), &step).await;
    assert_eq!(first.status, 200);
    first.has(&[
        "<strong>2</strong> of 3 emails",
        "<progress max=\"3\" value=\"2\"",
        "name=\"so-far\" value=\"2\"",
    ]);
    let last = world.submit(list, &format!("{list}/replay"), &[&step[..], &[("so-far", "2")]].concat()).await;
    assert_eq!(last.header("location"), format!("{list}?done=replayed-all"));
}

#[tokio::test]
async fn dead_letters_are_picked_by_hand_or_by_address() {
    let world = world().await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        ids.push(world.email(json!({ "to": format!("rejected+{name}@posthaste.test") })).await);
    }
    world.work().await;
    let list = "/ui/c/shop/dead-letters";
    world.get(list).send().await.has(&["type=\"checkbox\" name=\"id\"", "form=\"selected\""]);
    assert_eq!(world.get(&format!("{list}/replay")).send().await.status, 400, "nothing selected");
    let ask = format!("{list}/replay?id={}&id={}", ids[0], ids[1]);
    let page = world.get(&ask).send().await;
    page.has(&["2 emails", &format!("value=\"{}\"", ids[1])]);
    let fields = [("id", ids[0].as_str()), ("id", ids[1].as_str())];
    assert_eq!(world.submit(&ask, &format!("{list}/replay"), &fields).await.status, 303);
    for (id, status) in ids.iter().zip(["ENQUEUED", "ENQUEUED", "FAILED"]) {
        assert_eq!(world.status_of(id).await, status);
    }
    let ask = format!("{list}/replay?to=rejected%2Bc%40posthaste.test");
    world.get(&ask).send().await.has(&["1 email"]);
    let fields = [("to", "rejected+c@posthaste.test")];
    assert_eq!(world.submit(&ask, &format!("{list}/replay"), &fields).await.status, 303);
    assert_eq!(world.status_of(&ids[2]).await, "ENQUEUED");
}

#[tokio::test]
async fn addresses_are_suppressed_and_lifted() {
    let world = world().await;
    let page = "/ui/c/shop/recipients";
    let fields = [("email", "o+o@example.com"), ("reason", "asked <b>us</b>")];
    let answer = world.submit(page, &format!("{page}/suppress"), &fields).await;
    assert_eq!(answer.header("location"), format!("{page}?done=suppressed"));
    world.get(page).send().await.has(&["o+o@example.com", "asked &lt;b&gt;us&lt;/b&gt;"]);
    let answer =
        world.submit(page, &format!("{page}/suppress"), &[("email", "nonsense"), ("reason", "x")]).await;
    assert_eq!(answer.status, 400);
    answer.has(&["role=\"alert\"", "email"]);
    let answer = world.submit(page, &format!("{page}/lift"), &[("email", "o+o@example.com")]).await;
    assert_eq!(answer.header("location"), format!("{page}?done=lifted"));
    world.get(page).send().await.has(&["No address is suppressed."]);
}

#[tokio::test]
async fn a_key_is_shown_once() {
    let world = world().await;
    let page = "/ui/c/shop/settings";
    let fields = [("label", "checkout"), ("mode", "live"), ("scope", "send"), ("scope", "read")];
    let answer = world.submit(page, &format!("{page}/keys"), &fields).await;
    assert_eq!((answer.status, answer.header("cache-control")), (200, "no-store"));
    let start = answer.text.find("<code>live_").expect("the key") + "<code>".len();
    let key = answer.text[start..].split('<').next().expect("its end").to_owned();
    assert_eq!(key.len(), 48, "the whole key");
    let sent = world.get("/v1/emails").header("x-api-key", &key).send().await;
    assert_eq!(sent.status, 200, "it works");
    let later = world.get(page).send().await;
    later.has(&["checkout", "send, read", &key[..12]]);
    later.has_not(&key);
    let path = format!("/v1/admin/companies/{}/keys", world.shop);
    let id = world.inside.get(Behalf::Operator, &path).await.body["data"][0]["id"].clone();
    let id = id.as_str().expect("an id");
    world.submit(page, &format!("{page}/keys/revoke"), &[("key", id)]).await;
    assert_eq!(world.get("/v1/emails").header("x-api-key", &key).send().await.status, 401);
}

#[tokio::test]
async fn companies_are_added_and_switched() {
    let world = world().await;
    let answer = world.submit("/ui/companies", "/ui/companies", &[("name", "new one")]).await;
    assert_eq!(answer.header("location"), "/ui/c/new%20one/settings?done=added");
    let answer = world.submit("/ui/companies", "/ui/companies", &[("name", "new one")]).await;
    assert_eq!(answer.status, 409);
    answer.has(&["there is a company of that name already"]);
    let page = "/ui/c/shop/settings";
    world.submit(page, &format!("{page}/switch"), &[("to", "off")]).await;
    world.get("/ui/c/shop").send().await.has(&["switched off"]);
    world.submit(page, &format!("{page}/switch"), &[("to", "on")]).await;
    world.get("/ui/c/shop").send().await.has_not("switched off");
}
