//! Whom the pages refuse: strangers, pages of elsewhere, forms that are not ours.

use std::time::Duration;

use dashboard::DashboardSettings;
use serde_json::json;

use crate::world::{Answer, TOKEN, World, world, world_of, world_with_login};

const HOME: &str = "http://localhost:8025";

async fn log_in(world: &World, token: &str) -> Answer {
    let form = world.form_token("/ui/login", None).await;
    world.post("/ui/login").header("origin", HOME).field("csrf", &form).field("token", token).send().await
}

/// The cookie of an answer, as it is sent back.
fn cookie(answer: &Answer) -> String {
    answer.header("set-cookie").split(';').next().expect("a cookie").to_owned()
}

#[tokio::test]
async fn without_a_token_only_this_machine_is_answered() {
    let world = world().await;
    let refused = [
        ("a foreign name", world.get("/ui").header("host", "evil.example:8025")),
        ("another machine", world.get("/ui").peer("192.0.2.1:5000")),
        ("a proxy", world.get("/ui").header("x-forwarded-for", "192.0.2.1")),
        ("a page of elsewhere", world.get("/ui").header("sec-fetch-site", "cross-site")),
        ("the login, too", world.get("/ui/login").header("host", "evil.example")),
        ("a preview, too", world.get("/ui/c/shop/emails/x/preview").header("host", "evil.example")),
    ];
    for (case, call) in refused {
        let answer = call.send().await;
        assert_eq!(answer.status, 403, "{case}");
        answer.has_not("shop");
    }
    for host in ["localhost:8025", "127.0.0.1:8025", "[::1]:8025"] {
        assert_eq!(world.get("/ui").header("host", host).send().await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn forms_that_are_not_ours_change_nothing() {
    let world = world().await;
    let id = world.email(json!({ "delay": 60_000 })).await;
    let page = format!("/ui/c/shop/emails/{id}");
    let token = world.form_token(&page, None).await;
    let action = format!("{page}/cancel");
    let post = || world.post(&action);
    let cases = [
        ("no token", post().header("origin", HOME)),
        ("a wrong token", post().header("origin", HOME).field("csrf", &"0".repeat(64))),
        ("part of it", post().header("origin", HOME).field("csrf", &token[..63])),
        ("a foreign origin", post().header("origin", "https://evil.example").field("csrf", &token)),
        ("another port", post().header("origin", "http://localhost:3000").field("csrf", &token)),
        ("an opaque origin", post().header("origin", "null").field("csrf", &token)),
        ("too large", post().header("origin", HOME).field("csrf", &token).field("x", &"y".repeat(70_000))),
    ];
    for (case, call) in cases {
        assert_eq!(call.send().await.status, 403, "{case}");
        assert_eq!(world.status_of(&id).await, "ENQUEUED", "{case}");
    }
    assert_eq!(post().header("origin", HOME).field("csrf", &token).send().await.status, 303, "ours works");
    assert_eq!(world.status_of(&id).await, "CANCELLED");
}

#[tokio::test]
async fn every_form_needs_its_token() {
    let world = world().await;
    let id = world.email(json!({})).await;
    let email = format!("/ui/c/shop/emails/{id}");
    let actions =
        ["retry", "cancel", "replay", "resend", "release"].map(|action| format!("{email}/{action}"));
    let others = [
        "/ui/login",
        "/ui/logout",
        "/ui/companies",
        "/ui/c/shop/dead-letters/replay",
        "/ui/c/shop/dead-letters/drop",
        "/ui/c/shop/recipients/suppress",
        "/ui/c/shop/recipients/lift",
        "/ui/c/shop/recipients/clear",
        "/ui/c/shop/settings/switch",
        "/ui/c/shop/settings/resume",
        "/ui/c/shop/settings/keys",
        "/ui/c/shop/settings/keys/revoke",
    ];
    for path in actions.iter().map(String::as_str).chain(others) {
        assert_eq!(world.post(path).header("origin", HOME).send().await.status, 403, "{path}");
    }
}

#[tokio::test]
async fn with_a_token_people_log_in_first() {
    let world = world_with_login().await;
    let id = world.email(json!({})).await;
    let email = format!("/ui/c/shop/emails/{id}");
    let preview = format!("{email}/preview");
    let attachment = format!("{email}/attachments/0");
    let further = ["/ui/live", "/ui/c/shop/live", "/ui/c/shop/mailbox", "/ui/c/shop/alerts", &attachment];
    for path in ["/ui", "/ui/companies", "/ui/c/shop/emails", &email, &preview].into_iter().chain(further) {
        let answer = world.get(path).send().await;
        assert_eq!(answer.status, 303, "{path}");
        assert!(answer.header("location").starts_with("/ui/login"), "{path}");
        answer.has_not("shop");
    }
    let answer = world.post("/ui/c/shop/settings/switch").field("to", "off").send().await;
    assert_eq!((answer.status, answer.header("location")), (303, "/ui/login"));

    let wrong = log_in(&world, "not-the-token").await;
    assert_eq!((wrong.status, wrong.header("set-cookie")), (401, ""));
    let right = log_in(&world, TOKEN).await;
    assert_eq!((right.status, right.header("location")), (303, "/ui"));
    let set = right.header("set-cookie");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/ui", "Max-Age=43200"] {
        assert!(set.contains(part), "{set}");
    }
    assert!(!set.contains("Secure"), "plain http: {set}");
    let session = cookie(&right);
    assert_eq!(world.get("/ui").header("cookie", &session).send().await.status, 200);
    assert_eq!(world.get("/ui").header("cookie", "posthaste_session=guess").send().await.status, 303);
}

#[tokio::test]
async fn sessions_end() {
    let world = world_with_login().await;
    let session = cookie(&log_in(&world, TOKEN).await);
    let page = |session: &str| world.get("/ui").header("cookie", session).send();
    world.clock.advance(Duration::from_secs(12 * 3600 - 1));
    assert_eq!(page(&session).await.status, 200);
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(page(&session).await.status, 303, "after twelve hours");

    let session = cookie(&log_in(&world, TOKEN).await);
    let form = world.form_token("/ui", Some(&session)).await;
    let stranger = world.form_token("/ui/login", None).await;
    let log_out = |form: String| {
        let call = world.post("/ui/logout").header("origin", HOME).header("cookie", &session);
        async move { call.field("csrf", &form).send().await }
    };
    assert_eq!(log_out(stranger).await.status, 403, "the token of another session");
    assert_eq!(page(&session).await.status, 200);
    assert_eq!(log_out(form).await.header("location"), "/ui/login");
    assert_eq!(page(&session).await.status, 303, "the session is gone, not only its cookie");
}

#[tokio::test]
async fn guessing_is_slow() {
    let world = world_with_login().await;
    for _ in 0..5 {
        assert_eq!(log_in(&world, "guess").await.status, 401);
    }
    assert_eq!(log_in(&world, TOKEN).await.status, 429, "even the right one waits");
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(log_in(&world, TOKEN).await.status, 303);
}

#[tokio::test]
async fn over_tls_the_cookie_stays_there() {
    let public_url = Some("https://mail.example.com".to_owned());
    let settings = DashboardSettings { public_url, ..DashboardSettings::default() };
    let world = world_of(Some(TOKEN), settings).await;
    let form = world.form_token("/ui/login", None).await;
    let call =
        world.post("/ui/login").header("origin", "https://mail.example.com").header("host", "backend:8025");
    let answer = call.peer("192.0.2.7:1").field("csrf", &form).field("token", TOKEN).send().await;
    assert_eq!(answer.status, 303);
    assert!(answer.header("set-cookie").ends_with("; Secure"));
}

#[tokio::test]
async fn headers_are_strict_everywhere() {
    let world = world().await;
    let refused = world.get("/ui").header("host", "evil.example").send().await;
    let missing = world.get("/ui/nowhere").send().await;
    for answer in [world.get("/ui").send().await, refused, missing] {
        let policy = answer.header("content-security-policy");
        for part in
            ["default-src 'none'", "script-src 'self'", "form-action 'self'", "frame-ancestors 'none'"]
        {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "same-origin");
        assert_eq!(answer.header("cache-control"), "no-store");
    }
}

/// Pages are answers like the API's: a caller that names its request finds the name again, also where it is refused.
#[tokio::test]
async fn every_answer_names_its_request() {
    let world = world().await;
    let page = world.get("/ui").send().await;
    let asset = page.text.split('"').find(|text| text.ends_with("style.css")).expect("a link").to_owned();
    let token = world.form_token("/ui/companies", None).await;
    let post = |path: &str| world.post(path).header("origin", HOME).field("csrf", &token);
    let calls = [
        ("a page", world.get("/ui"), 200),
        ("the way to it", world.get("/"), 303),
        ("an asset", world.get(&asset), 200),
        ("nothing", world.get("/ui/nowhere"), 404),
        ("a name that is no text", world.get("/ui/c/%ff/emails"), 404),
        ("no such company", world.get("/ui/c/nobody"), 404),
        ("refused", world.get("/ui").header("host", "evil.example"), 403),
        ("a form of elsewhere", world.post("/ui/companies"), 403),
        ("another method", post("/ui/providers"), 405),
        ("another method, nowhere", post("/ui/nowhere"), 405),
        ("the API", world.get("/livez"), 200),
    ];
    for (case, call, status) in calls {
        let answer = call.header("x-request-id", "mine-1").send().await;
        assert_eq!(answer.status, status, "{case}: {}", answer.text);
        assert_eq!(answer.header("x-request-id"), "mine-1", "{case}");
        for name in ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"] {
            assert!(answer.header(name).parse::<u32>().is_ok(), "{case}: {name}");
        }
        assert!(status < 400 || !answer.text.is_empty(), "{case}: an error says something");
    }
    let live = world.get("/ui/live").begin().await;
    assert!(live.headers().contains_key("x-request-id"), "also where an answer goes on and on");
    let login = world_with_login().await.get("/ui").send().await;
    assert!(login.header("x-request-id").starts_with("req_"), "{login:?}");
}

#[tokio::test]
async fn assets_are_kept_by_browsers_under_their_hash() {
    let world = world_with_login().await;
    let page = world.get("/ui/login").send().await.text;
    for (name, kind) in [("style.css", "text/css"), ("script.js", "text/javascript")] {
        let end = page.find(name).expect("a link") + name.len();
        let start = page[..end].rfind('"').expect("its start") + 1;
        let asset = world.get(&page[start..end]).send().await;
        assert_eq!(asset.status, 200, "{name}");
        assert!(asset.header("content-type").starts_with(kind));
        assert!(asset.header("cache-control").contains("immutable"));
        for elsewhere in ["http://", "https://", "@import", "url("] {
            assert!(!asset.text.contains(elsewhere), "{name} loads from elsewhere: {elsewhere}");
        }
    }
    assert_eq!(world.get("/ui/assets/0000000000000000/style.css").send().await.status, 404);
}

/// The browser keeps cookies from pages of elsewhere, and so do we.
#[tokio::test]
async fn a_session_is_of_no_use_to_pages_of_elsewhere() {
    let world = world_with_login().await;
    let id = world.email(json!({ "delay": 60_000 })).await;
    let session = cookie(&log_in(&world, TOKEN).await);
    let form = world.form_token("/ui", Some(&session)).await;
    let cancel = |origin: &str| {
        let call = world.post(&format!("/ui/c/shop/emails/{id}/cancel")).header("cookie", &session);
        call.header("origin", origin).field("csrf", &form).send()
    };
    for origin in ["https://evil.example", "http://localhost:3000", "null"] {
        assert_eq!(cancel(origin).await.status, 403, "{origin}");
    }
    assert_eq!(world.status_of(&id).await, "ENQUEUED");
    assert_eq!(cancel(HOME).await.status, 303);
}
