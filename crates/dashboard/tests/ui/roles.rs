//! What a company's people see who log in with a key: their company alone, and readers neither addresses nor content.

use api::inside::Behalf;
use serde_json::json;

use crate::world::{Answer, World, world_with_login};

const HOME: &str = "http://localhost:8025";
const ADDRESS: &str = "ana.maria@customer.example";

struct Key {
    text: String,
    id: String,
}

async fn a_key(world: &World, scopes: &[&str]) -> Key {
    a_key_of(world, "live", scopes).await
}

async fn a_key_of(world: &World, mode: &str, scopes: &[&str]) -> Key {
    let path = format!("/v1/admin/companies/{}/keys", world.shop);
    let body = json!({ "mode": mode, "scopes": scopes });
    let made = world.inside.post(Behalf::Operator, &path, &body).await;
    assert!(made.is_fine(), "{}", made.body);
    let field = |name: &str| made.body[name].as_str().expect("a text").to_owned();
    Key { text: field("key"), id: field("id") }
}

async fn log_in(world: &World, token: &str) -> Answer {
    let form = world.form_token("/ui/login", None).await;
    world.post("/ui/login").header("origin", HOME).field("csrf", &form).field("token", token).send().await
}

/// The cookie of somebody who logged in with such a key.
async fn as_holder(world: &World, scopes: &[&str]) -> String {
    let answer = log_in(world, &a_key(world, scopes).await.text).await;
    assert_eq!(answer.status, 303, "{}", answer.text);
    answer.header("set-cookie").split(';').next().expect("a cookie").to_owned()
}

async fn page(world: &World, cookie: &str, path: &str) -> Answer {
    world.get(path).header("cookie", cookie).send().await
}

async fn submit(world: &World, cookie: &str, on: &str, action: &str) -> Answer {
    let token = world.form_token(on, Some(cookie)).await;
    let call = world.post(action).header("origin", HOME).header("cookie", cookie);
    call.field("csrf", &token).send().await
}

#[tokio::test]
async fn a_key_opens_its_company_alone() {
    let world = world_with_login().await;
    let cookie = as_holder(&world, &["admin"]).await;
    let home = page(&world, &cookie, "/ui").await;
    assert_eq!((home.status, home.header("location")), (303, format!("/ui/c/{}", world.shop).as_str()));
    for below in ["", "/emails", "/dead-letters", "/recipients", "/entities"] {
        let answer = page(&world, &cookie, &format!("/ui/c/shop{below}")).await;
        assert_eq!(answer.status, 200, "{below}");
        for foreign in ["a/b &amp;", "/ui/companies", "/ui/providers", "/ui/c/shop/settings"] {
            answer.has_not(foreign);
        }
    }
    assert_eq!(page(&world, &cookie, "/ui/c/a%2Fb%20%26%20%3Cc%3E/emails").await.status, 404);
    for operators in ["/ui/companies", "/ui/providers", "/ui/c/shop/settings", "/ui/anything"] {
        assert_eq!(page(&world, &cookie, operators).await.status, 403, "{operators}");
    }
}

#[tokio::test]
async fn a_member_works_in_its_company() {
    let world = world_with_login().await;
    let id = world.email(json!({ "to": ADDRESS, "delay": 60_000 })).await;
    let cookie = as_holder(&world, &["admin"]).await;
    let email = format!("/ui/c/shop/emails/{id}");
    page(&world, &cookie, &email).await.has(&[ADDRESS, "cancel"]);
    assert_eq!(submit(&world, &cookie, &email, &format!("{email}/cancel")).await.status, 303);
    assert_eq!(world.status_of(&id).await, "CANCELLED");
    let keys = "/ui/c/shop/settings/keys";
    assert_eq!(submit(&world, &cookie, &email, keys).await.status, 403, "keys are the operator's");
}

/// What is done on a page is done as with a live key, which a test key is not.
#[tokio::test]
async fn a_test_key_only_looks() {
    let world = world_with_login().await;
    let id = world.email(json!({ "to": ADDRESS, "delay": 60_000 })).await;
    let answer = log_in(&world, &a_key_of(&world, "test", &["admin"]).await.text).await;
    let cookie = answer.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let email = format!("/ui/c/shop/emails/{id}");
    page(&world, &cookie, &email).await.has(&["a***@c***.example"]);
    for action in ["retry", "cancel"] {
        assert_eq!(
            submit(&world, &cookie, &email, &format!("{email}/{action}")).await.status,
            403,
            "{action}"
        );
    }
    assert_eq!(world.status_of(&id).await, "ENQUEUED");
}

#[tokio::test]
async fn a_reader_sees_no_address_and_changes_nothing() {
    let world = world_with_login().await;
    let id = world.email(json!({ "to": ADDRESS, "cc": ["bo@partner.example"], "delay": 60_000 })).await;
    let waits =
        world.email(json!({ "to": "blocked@customer.example", "html": "<p>private-words</p>" })).await;
    let suppression = json!({ "email": "blocked@customer.example", "reason": "asked for it" });
    assert!(world.inside.post(Behalf::Company(world.shop), "/v1/suppressions", &suppression).await.is_fine());
    world.work().await;
    for scopes in [&["read"][..], &["send", "read"]] {
        let cookie = as_holder(&world, scopes).await;
        let email = format!("/ui/c/shop/emails/{id}");
        let mut paths: Vec<String> = [
            "",
            "/emails",
            "/emails?q=ana.maria%40customer.example",
            "/dead-letters",
            "/recipients",
            "/entities",
        ]
        .map(|below| format!("/ui/c/shop{below}"))
        .to_vec();
        for id in [&id, &waits] {
            for tab in [
                "",
                "?tab=text",
                "?tab=source",
                "?tab=headers",
                "?tab=json",
                "/preview",
                "/eml",
                "/attachments/0",
            ] {
                paths.push(format!("/ui/c/shop/emails/{id}{tab}"));
            }
        }
        for path in &paths {
            let answer = page(&world, &cookie, path).await;
            for secret in ["maria", "customer.ex", "partner.example", "blocked@", "private-words"] {
                // What the person searched for is theirs already.
                if !path.contains("maria") {
                    assert!(!answer.text.contains(secret), "{secret} on {path}:\n{}", answer.text);
                }
            }
        }
        page(&world, &cookie, &email).await.has(&["a***@c***.example"]);
        for action in ["cancel", "retry"] {
            page(&world, &cookie, &email).await.has_not(&format!("{email}/{action}"));
            let answer = submit(&world, &cookie, &email, &format!("{email}/{action}")).await;
            assert_eq!(answer.status, 403, "{action}");
        }
        assert_eq!(world.status_of(&id).await, "ENQUEUED");
        assert_eq!(
            submit(&world, &cookie, &email, "/ui/logout").await.status,
            303,
            "logging out is anybody's"
        );
    }
}

#[tokio::test]
async fn keys_that_open_nothing() {
    let world = world_with_login().await;
    for (case, token) in [
        ("may only send", a_key(&world, &["send"]).await.text),
        ("none", "live_0000000000000000000000000000000000000000000".to_owned()),
    ] {
        assert_eq!(log_in(&world, &token).await.status, 401, "{case}");
    }
}

#[tokio::test]
async fn a_revoked_key_ends_its_session() {
    let world = world_with_login().await;
    let key = a_key(&world, &["admin"]).await;
    let answer = log_in(&world, &key.text).await;
    let cookie = answer.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    assert_eq!(page(&world, &cookie, "/ui/c/shop").await.status, 200);
    let path = format!("/v1/admin/companies/{}/keys/{}", world.shop, key.id);
    assert!(world.inside.delete(Behalf::Operator, &path).await.is_fine());
    let after = page(&world, &cookie, "/ui/c/shop").await;
    assert_eq!(after.status, 303);
    assert!(after.header("location").starts_with("/ui/login"), "{:?}", after.headers);
}
