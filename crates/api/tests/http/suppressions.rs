//! Whom a company does not write to.

use std::time::Duration;

use axum::http::Method;
use model::{KeyMode, Scope};
use serde_json::{Value, json};

use crate::world::{World, good, world};

async fn add(world: &World, body: &Value) -> Value {
    let answer = world.post("/v1/suppressions").key(&world.admin).json(body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn one(email: &str) -> Value {
    json!({ "email": email, "reason": "asked by phone" })
}

#[tokio::test]
async fn addresses_are_added_read_and_lifted() {
    let world = world().await;
    world.sent().await; // The company has nobody on its list, and that is remembered for a moment.
    assert_eq!(add(&world, &one("Ana@Example.com")).await, json!({ "given": 1, "added": 1 }));
    assert_eq!(add(&world, &one("ana@example.com")).await, json!({ "given": 1, "added": 0 }), "known");
    let path = "/v1/suppressions/ANA%40example.com";
    let expected = json!({
        "email": "Ana@example.com", "reason": "asked by phone", "source": "company", "emailId": null,
        "createdAt": "2026-01-01T00:00:00.000Z",
    });
    assert_eq!(world.get(path).key(&world.live).send().await.json(), expected);
    let sent = world.post("/v1/email/send").key(&world.live).json(&good()).await;
    assert_eq!(sent.json()["warnings"][0]["code"], "RECIPIENT_SUPPRESSED", "obeyed at once");

    assert_eq!(world.call(Method::DELETE, path).key(&world.admin).send().await.status, 204);
    for method in [Method::GET, Method::DELETE] {
        let again = world.call(method.clone(), path).key(&world.admin).send().await;
        assert_eq!((again.status, again.code().as_str()), (404, "SUPPRESSION_NOT_FOUND"), "{method}");
    }
    let sent = world.post("/v1/email/send").key(&world.live).json(&good()).await;
    assert_eq!(sent.json().get("warnings"), None, "lifted at once");
    for odd in ["/v1/suppressions/nobody", "/v1/suppressions/%ff", "/v1/suppressions/a%00@b.com"] {
        assert_eq!(world.get(odd).key(&world.live).send().await.code(), "SUPPRESSION_NOT_FOUND", "{odd}");
    }
}

#[tokio::test]
async fn a_thousand_are_added_at_once_and_listed_page_by_page() {
    let world = world().await;
    let mut many: Vec<Value> = (0..1000).map(|number| one(&format!("a{number}@example.com"))).collect();
    many[999] = one("A0@example.com");
    assert_eq!(add(&world, &json!(many)).await, json!({ "given": 1000, "added": 999 }), "one stands twice");
    world.clock.advance(Duration::from_secs(1));
    add(&world, &one("last@example.com")).await;
    let mut found = Vec::new();
    let mut path = "/v1/suppressions?limit=100".to_owned();
    loop {
        let page = world.get(&path).key(&world.live).send().await.json();
        let items = page["data"].as_array().expect("data");
        found.extend(items.iter().map(|item| item["email"].as_str().expect("an address").to_owned()));
        match page["nextCursor"].as_str() {
            Some(cursor) => path = format!("/v1/suppressions?limit=100&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!((found.len(), found[0].as_str()), (1000, "last@example.com"), "newest first, each once");
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), 1000);
}

#[tokio::test]
async fn wrong_lists_are_refused_as_a_whole() {
    let world = world().await;
    let long = "x".repeat(201);
    let cases = [
        (json!({ "email": "a@b.com" }), "REQUIRED", "reason"),
        (json!({ "reason": "x" }), "REQUIRED", "email"),
        (json!({ "email": "nobody", "reason": "x" }), "INVALID_EMAIL", "email"),
        (json!({ "email": 1, "reason": "x" }), "INVALID_TYPE", "email"),
        (json!({ "email": "a@b.com", "reason": "" }), "TOO_SHORT", "reason"),
        (json!({ "email": "a@b.com", "reason": long }), "TOO_LONG", "reason"),
        (json!({ "email": "a@b.com", "reason": "a\nb" }), "CONTROL_CHARACTER", "reason"),
        (json!({ "email": "a@b.com", "reason": "x", "source": "bounce" }), "UNKNOWN_FIELD", "source"),
        (json!([one("good@example.com"), one("nobody")]), "INVALID_EMAIL", "[1].email"),
        (json!(["a@b.com"]), "INVALID_TYPE", "[0]"),
        (json!("a@b.com"), "INVALID_TYPE", ""),
        (json!([]), "TOO_SHORT", ""),
        (json!(vec![one("a@b.com"); 1001]), "TOO_MANY_SUPPRESSIONS", ""),
    ];
    for (body, code, field) in cases {
        let answer = world.post("/v1/suppressions").key(&world.admin).json(&body).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{}", answer.text());
        assert_eq!(answer.json()["errors"][0]["field"], field);
    }
    let typed = world.post("/v1/suppressions").key(&world.admin).body("text/plain", "x").send().await;
    assert_eq!(typed.status, 415);
    let large = vec![b' '; 2 * 1024 * 1024 + 1];
    let large = world.post("/v1/suppressions").key(&world.admin).body("application/json", large).send().await;
    assert_eq!((large.status, large.code().as_str()), (413, "BODY_TOO_LARGE"));
    let listed = world.get("/v1/suppressions").key(&world.live).send().await.json();
    assert_eq!(listed, json!({ "data": [], "nextCursor": null }), "nothing was added");
    for (query, code) in
        [("limit=0", "OUT_OF_RANGE"), ("cursor=1", "INVALID_CURSOR"), ("x=1", "UNKNOWN_PARAMETER")]
    {
        let answer = world.get(&format!("/v1/suppressions?{query}")).key(&world.live).send().await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{query}");
    }
}

/// What each scope may do of everything after sending, and that a stranger's admin key sees and changes nothing.
#[tokio::test]
async fn scopes_and_companies_are_held() {
    let world = world().await;
    add(&world, &one("ana@example.com")).await;
    let shop = world.shop.clone();
    let send = world.key(&shop, KeyMode::Live, &[Scope::Send]).await;
    let read = world.key(&shop, KeyMode::Live, &[Scope::Read]).await;
    let other = world.company("other").await;
    let stranger = world.key(&other, KeyMode::Live, &[Scope::Admin]).await;
    let (get, post, put, delete) = (Method::GET, Method::POST, Method::PUT, Method::DELETE);
    let cases = [
        // method, path, status with a read key, a stranger's admin key
        (&get, "/v1/suppressions", 200, 200),
        (&get, "/v1/suppressions/ana@example.com", 200, 404),
        (&post, "/v1/suppressions", 403, 415),
        (&delete, "/v1/suppressions/ana@example.com", 403, 404),
        (&get, "/v1/recipients", 200, 200),
        (&delete, "/v1/recipients/problematic/ana@example.com", 403, 404),
        (&get, "/v1/entities", 200, 200),
        (&get, "/v1/entities/club-9/summary", 200, 200),
        (&get, "/v1/alerts", 200, 200),
        (&get, "/v1/templates", 200, 200),
        (&get, "/v1/templates/welcome", 404, 404),
        (&put, "/v1/templates/welcome", 403, 415),
        (&delete, "/v1/templates/welcome", 403, 404),
        (&post, "/v1/templates/welcome/preview", 415, 415),
    ];
    for (method, path, with_read, with_strange) in cases {
        for (key, status) in [(&send, 403), (&read, with_read), (&stranger, with_strange)] {
            let answer = world.call(method.clone(), path).key(key).send().await;
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        }
        assert_eq!(world.call(method.clone(), path).send().await.code(), "MISSING_API_KEY", "{path}");
    }
    let theirs = world.get("/v1/suppressions").key(&stranger).send().await.json();
    assert_eq!(theirs, json!({ "data": [], "nextCursor": null }));
    let ours = world.get("/v1/suppressions/ana@example.com").key(&world.live).send().await;
    assert_eq!(ours.status, 200, "a stranger lifted nothing");
    let first = {
        add(&world, &one("bob@example.com")).await;
        world.get("/v1/suppressions?limit=1").key(&world.live).send().await.json()
    };
    let cursor = first["nextCursor"].as_str().expect("a second page");
    for (path, key) in [("/v1/suppressions", &stranger), ("/v1/alerts", &world.live)] {
        let answer = world.get(&format!("{path}?limit=1&cursor={cursor}")).key(key).send().await;
        assert_eq!(answer.code(), "INVALID_CURSOR", "{path}");
    }
}
