//! Templates written, read, tried out and used.

use std::time::Duration;

use axum::http::Method;
use model::{KeyMode, Scope};
use serde_json::{Value, json};

use crate::world::{Answer, World, world};

async fn put(world: &World, name: &str, source: &Value) -> Answer {
    world.call(Method::PUT, &format!("/v1/templates/{name}")).key(&world.admin).json(source).await
}

async fn get(world: &World, path: &str) -> Answer {
    world.get(&format!("/v1/templates{path}")).key(&world.live).send().await
}

async fn preview(world: &World, name: &str, order: &Value) -> Answer {
    world.post(&format!("/v1/templates/{name}/preview")).key(&world.live).json(order).await
}

fn welcome(greeting: &str) -> Value {
    json!({ "subject": "Hi {{ name }}", "html": format!("<p>{greeting} {{{{ name }}}}, {{{{ order.id }}}}</p>") })
}

#[tokio::test]
async fn versions_are_written_and_read() {
    let world = world().await;
    let first = put(&world, "welcome", &welcome("Hello")).await;
    let expected = json!({
        "name": "welcome", "version": 1, "variables": ["name", "order.id"], "createdAt": "2026-01-01T00:00:00.000Z",
    });
    assert_eq!((first.status, first.json()), (200, expected.clone()));
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(
        put(&world, "welcome", &welcome("Hello")).await.json(),
        expected,
        "no new version, the old time"
    );
    assert_eq!(put(&world, "welcome", &welcome("Dear")).await.json()["version"], 2);
    let mjml = json!({
        "subject": "x", "text": "plain {{ a }}",
        "mjml": "<mjml><mj-body><mj-section><mj-column><mj-text>{{ b }}</mj-text></mj-column></mj-section></mj-body></mjml>",
    });
    assert_eq!(put(&world, "a-1", &mjml).await.json()["variables"], json!(["a", "b"]));

    let newest = get(&world, "/welcome").await.json();
    assert_eq!((&newest["version"], &newest["html"]), (&json!(2), &welcome("Dear")["html"]));
    assert_eq!((newest.get("mjml"), newest.get("text")), (None, None));
    let old = get(&world, "/welcome?version=1").await.json();
    assert_eq!((&old["html"], &old["createdAt"]), (&welcome("Hello")["html"], &expected["createdAt"]));
    let kept = get(&world, "/a-1").await.json();
    assert_eq!((&kept["mjml"], &kept["text"]), (&mjml["mjml"], &mjml["text"]));
    let listed = get(&world, "").await.json();
    let at = "2026-01-01T00:01:00.000Z";
    let heads = json!({ "data": [
        { "name": "a-1", "version": 1, "createdAt": at }, { "name": "welcome", "version": 2, "createdAt": at },
    ] });
    assert_eq!(listed, heads);

    let path = "/v1/templates/welcome";
    assert_eq!(world.call(Method::DELETE, path).key(&world.admin).send().await.status, 204);
    let again = world.call(Method::DELETE, path).key(&world.admin).send().await;
    assert_eq!((again.status, again.code().as_str()), (404, "TEMPLATE_NOT_FOUND"));
    for path in ["/welcome", "/welcome?version=1", "/a-1?version=2", "/Welcome", "/%ff", "/a_b"] {
        let answer = get(&world, path).await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "TEMPLATE_NOT_FOUND"), "{path}");
    }
    assert_eq!(put(&world, "welcome", &welcome("Hello")).await.json()["version"], 3, "counting goes on");
}

#[tokio::test]
async fn what_does_not_compile_is_told_with_its_line() {
    let world = world().await;
    let broken = json!({ "subject": "{{ a", "html": "<p>\n{% if x %}</p>", "text": "{{ b | nothing }}" });
    let answer = put(&world, "broken", &broken).await;
    assert_eq!((answer.status, answer.code().as_str()), (422, "TEMPLATE_INVALID"), "{}", answer.text());
    let problem = answer.json();
    let errors = problem["errors"].as_array().expect("errors");
    let fields: Vec<&str> = errors.iter().filter_map(|error| error["field"].as_str()).collect();
    assert_eq!(fields, ["subject", "html", "text"], "{problem}");
    let lines: Vec<bool> = errors
        .iter()
        .filter_map(|error| error["message"].as_str())
        .map(|text| text.starts_with("line "))
        .collect();
    assert_eq!(lines, [true; 3], "{problem}");
    let long = "x".repeat(65);
    let bad_mjml = json!({ "subject": "x", "mjml": "<p>no mjml</p>" });
    let cases = [
        ("mjml that is none", "t", bad_mjml, 422, "TEMPLATE_INVALID"),
        ("include", "t", json!({ "subject": "x", "html": "{% include 'a' %}" }), 422, "TEMPLATE_INVALID"),
        (
            "too long",
            "t",
            json!({ "subject": "x", "html": "x".repeat(512 * 1024 + 1) }),
            422,
            "TEMPLATE_INVALID",
        ),
        ("no subject", "t", json!({ "html": "x" }), 400, "REQUIRED"),
        ("no body", "t", json!({ "subject": "x" }), 400, "REQUIRED"),
        ("both", "t", json!({ "subject": "x", "html": "x", "mjml": "x" }), 400, "CONFLICTING_FIELDS"),
        ("a number", "t", json!({ "subject": 1, "html": "x" }), 400, "INVALID_TYPE"),
        ("NUL", "t", json!({ "subject": "x", "html": "a\0" }), 400, "CONTROL_CHARACTER"),
        ("unknown", "t", json!({ "subject": "x", "html": "x", "body": "x" }), 400, "UNKNOWN_FIELD"),
        ("a list", "t", json!([]), 400, "INVALID_TYPE"),
        ("capitals", "Welcome", welcome("x"), 400, "INVALID_NAME"),
        ("underscore", "a_b", welcome("x"), 400, "INVALID_NAME"),
        ("version", "a@1", welcome("x"), 400, "INVALID_NAME"),
        ("65 characters", long.as_str(), welcome("x"), 400, "INVALID_NAME"),
        ("not UTF-8", "%ff", welcome("x"), 400, "INVALID_NAME"),
    ];
    for (case, name, source, status, code) in cases {
        let answer = put(&world, name, &source).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{case}: {}", answer.text());
    }
    let everything = put(&world, "A", &json!({ "subject": 1 })).await;
    assert_eq!(everything.json()["errors"].as_array().map(Vec::len), Some(3), "all faults at once");
    let large = world.call(Method::PUT, "/v1/templates/t").key(&world.admin);
    let large = large.body("application/json", vec![b' '; 3 * 1024 * 1024 + 1]).send().await;
    assert_eq!((large.status, large.code().as_str()), (413, "BODY_TOO_LARGE"));
    assert_eq!(get(&world, "").await.json(), json!({ "data": [] }), "nothing was kept");
    for (query, code) in
        [("version=0", "OUT_OF_RANGE"), ("version=x", "INVALID_TYPE"), ("v=1", "UNKNOWN_PARAMETER")]
    {
        let answer = get(&world, &format!("/t?{query}")).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{query}");
    }
}

#[tokio::test]
async fn a_template_is_tried_out() {
    let world = world().await;
    put(&world, "welcome", &welcome("Hello")).await;
    put(&world, "welcome", &welcome("Dear")).await;
    let variables = json!({ "name": "<Ana>", "order": { "id": 7 } });
    let made = preview(&world, "welcome", &json!({ "variables": variables })).await;
    let expected =
        json!({ "subject": "Hi <Ana>", "html": "<p>Dear &lt;Ana&gt;, 7</p>", "text": "Dear <Ana>, 7" });
    assert_eq!((made.status, made.json()), (200, expected));
    let old = preview(&world, "welcome", &json!({ "variables": variables, "version": 1 })).await;
    assert_eq!(old.json()["text"], "Hello <Ana>, 7");

    let missing = preview(&world, "welcome", &json!({})).await;
    assert_eq!((missing.status, missing.code().as_str()), (422, "MISSING_VARIABLE"));
    let fields: Vec<Value> = missing.json()["errors"]
        .as_array()
        .expect("errors")
        .iter()
        .map(|error| error["field"].clone())
        .collect();
    assert_eq!(fields, ["variables.name", "variables.order.id"], "every one is named");
    put(&world, "endless", &json!({ "subject": "{{ s }}", "html": "x" })).await;
    let cases = [
        ("two lines", "endless", json!({ "variables": { "s": "a\nb" } }), 422, "TEMPLATE_ERROR"),
        ("no such", "nothing", json!({}), 404, "TEMPLATE_NOT_FOUND"),
        ("no such version", "welcome", json!({ "version": 3 }), 404, "TEMPLATE_NOT_FOUND"),
        ("not a name", "A", json!({}), 404, "TEMPLATE_NOT_FOUND"),
        ("a list", "welcome", json!({ "variables": [] }), 400, "INVALID_TYPE"),
        ("version 0", "welcome", json!({ "version": 0 }), 400, "OUT_OF_RANGE"),
        ("unknown", "welcome", json!({ "vars": {} }), 400, "UNKNOWN_FIELD"),
    ];
    for (case, name, order, status, code) in cases {
        let answer = preview(&world, name, &order).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{case}: {}", answer.text());
    }
}

/// A new version is used at once, and an email keeps what it was made of.
#[tokio::test]
async fn emails_are_made_of_templates() {
    let world = world().await;
    put(&world, "welcome", &welcome("Hello")).await;
    let send = async |changes: Value| {
        let mut body = json!({
            "to": "ana@example.com", "template": "welcome", "variables": { "name": "Ana", "order": { "id": 7 } },
        });
        for (name, value) in changes.as_object().expect("an object") {
            body[name] = value.clone();
        }
        world.post("/v1/email/send").key(&world.live).json(&body).await
    };
    let html_of = async |answer: &Answer| {
        assert_eq!(answer.status, 202, "{}", answer.text());
        let id = answer.json()["outboxId"].as_str().expect("an id").to_owned();
        let content = world.get(&format!("/v1/emails/{id}/content")).key(&world.live).send().await.json();
        let email = world.get(&format!("/v1/emails/{id}")).key(&world.live).send().await.json();
        (email["subject"].clone(), content["html"].clone())
    };
    let first = send(json!({})).await;
    assert_eq!(html_of(&first).await, (json!("Hi Ana"), json!("<p>Hello Ana, 7</p>")));
    put(&world, "welcome", &welcome("Dear")).await;
    assert_eq!(html_of(&send(json!({})).await).await.1, "<p>Dear Ana, 7</p>", "the new version, at once");
    assert_eq!(html_of(&send(json!({ "template": "welcome@1" })).await).await.1, "<p>Hello Ana, 7</p>");
    assert_eq!(html_of(&send(json!({ "subject": "Mine" })).await).await.0, "Mine", "a given subject wins");
    assert_eq!(html_of(&first).await.1, "<p>Hello Ana, 7</p>", "what was accepted stays");
    world.call(Method::DELETE, "/v1/templates/welcome").key(&world.admin).send().await;
    assert_eq!(send(json!({})).await.code(), "TEMPLATE_NOT_FOUND", "gone at once");
}

/// What a send is told when template and variables do not go together.
#[tokio::test]
async fn a_send_is_told_what_does_not_fit_its_template() {
    let world = world().await;
    let loops = "{% macro a(n) %}{{ a(n) }}{% endmacro %}\n{{ a(1) }}";
    let sources = [
        ("welcome", welcome("Hello")),
        ("endless", json!({ "subject": "x", "html": loops })),
        ("environment", json!({ "subject": "x", "html": "<p>{{ env('PATH') }}</p>" })),
        ("environment-name", json!({ "subject": "x", "html": "<p>{{ env }}</p>" })),
        ("document", json!({ "subject": "CPF {{ number }}", "html": "x" })),
        ("bare", json!({ "subject": "{{ a }}", "html": "{{ b }}" })),
    ];
    for (name, source) in &sources {
        assert_eq!(put(&world, name, source).await.status, 200, "{name}");
    }
    let send = async |template: &str, variables: Value| {
        let body = json!({ "to": "ana@example.com", "template": template, "variables": variables });
        world.post("/v1/email/send").key(&world.live).json(&body).await
    };
    let cases = [
        ("nothing given", "welcome", json!({}), 422, "MISSING_VARIABLE", "variables.name"),
        ("one missing", "welcome", json!({ "name": "Ana" }), 422, "MISSING_VARIABLE", "variables.order.id"),
        ("recursion", "endless", json!({}), 422, "TEMPLATE_ERROR", "template"),
        ("a call into the environment", "environment", json!({}), 422, "TEMPLATE_ERROR", "template"),
        ("the environment", "environment-name", json!({}), 422, "MISSING_VARIABLE", "variables.env"),
        ("no such template", "nothing", json!({}), 422, "TEMPLATE_NOT_FOUND", "template"),
        ("an empty subject", "bare", json!({ "a": " ", "b": "x" }), 422, "INVALID_SUBJECT", "subject"),
        (
            "a subject turned around",
            "bare",
            json!({ "a": "a\u{202e}b", "b": "x" }),
            422,
            "CONTROL_CHARACTER",
            "subject",
        ),
        (
            "an encoded word",
            "bare",
            json!({ "a": "=?utf-8?q?x?=", "b": "x" }),
            422,
            "INVALID_SUBJECT",
            "subject",
        ),
        ("no html", "bare", json!({ "a": "a", "b": " " }), 422, "INVALID_HTML", "html"),
        ("NUL in the html", "bare", json!({ "a": "a", "b": "x\0y" }), 422, "CONTROL_CHARACTER", "html"),
        ("a CPF", "document", json!({ "number": "529.982.247-25" }), 400, "PII_NOT_ALLOWED", "subject"),
    ];
    let path = std::env::var("PATH").expect("a path");
    for (case, template, variables, status, code, field) in cases {
        let answer = send(template, variables).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{case}: {}", answer.text());
        let errors = answer.json()["errors"].clone();
        let errors = errors.as_array().expect("errors");
        assert!(errors.iter().any(|error| error["field"] == field), "{case}: {errors:?}");
        assert!(!answer.text().contains(&path) && !answer.text().contains("529.982"), "{case}");
    }
    let both = send("welcome", json!({})).await.json();
    assert_eq!(both["errors"].as_array().map(Vec::len), Some(2), "every one is named: {both}");
    let deep = send("endless", json!({})).await.json();
    assert!(deep["detail"].as_str().is_some_and(|detail| detail.contains("line ")), "{deep}");
    for include in ["{% include '/etc/passwd' %}", "{% import '/etc/passwd' as x %}", "{% extends 'a' %}"] {
        let answer = put(&world, "reader", &json!({ "subject": "x", "html": include })).await;
        assert_eq!((answer.status, answer.code().as_str()), (422, "TEMPLATE_INVALID"), "{include}");
        assert_eq!(send("reader", json!({})).await.code(), "TEMPLATE_NOT_FOUND", "{include} was not kept");
    }
    let listed = world.get("/v1/emails").key(&world.live).send().await;
    assert_eq!(listed.json()["data"], json!([]), "nothing of all this was stored");
}

#[tokio::test]
async fn variables_that_nothing_mentions_are_told_and_do_no_harm() {
    let world = world().await;
    put(&world, "welcome", &welcome("Hello")).await;
    let send = async |variables: Value| {
        let body = json!({ "to": "ana@example.com", "template": "welcome", "variables": variables });
        let answer = world.post("/v1/email/send").key(&world.live).json(&body).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()
    };
    let fitting = json!({ "name": "Ana", "order": { "id": 7, "unused": "is handed over with the order" } });
    assert_eq!(send(fitting.clone()).await.get("warnings"), None);
    let mut more = fitting.clone();
    more["nmae"] = json!("a secret value");
    more["orders"] = json!([]);
    let receipt = send(more).await;
    let told: Vec<(&Value, &Value)> = receipt["warnings"]
        .as_array()
        .expect("warnings")
        .iter()
        .map(|warning| (&warning["field"], &warning["code"]))
        .collect();
    let unused = json!("UNUSED_VARIABLE");
    assert_eq!(told, [(&json!("variables.nmae"), &unused), (&json!("variables.orders"), &unused)]);
    assert!(!receipt.to_string().contains("secret"), "values are not quoted: {receipt}");
    let mut many = fitting;
    for number in 0..1000 {
        many[format!("{number}{}", "x".repeat(5000))] = json!(1);
    }
    let receipt = send(many).await;
    assert_eq!(receipt["warnings"].as_array().map(Vec::len), Some(10), "bounded");
    assert!(receipt.to_string().len() < 4000, "bounded");
}

#[tokio::test]
async fn templates_stay_at_home_and_are_bounded() {
    let world = world().await;
    put(&world, "welcome", &welcome("Hello")).await;
    let other = world.company("other").await;
    let stranger = world.key(&other, KeyMode::Live, &[Scope::Admin]).await;
    let listed = world.get("/v1/templates").key(&stranger).send().await.json();
    assert_eq!(listed, json!({ "data": [] }));
    for (method, path) in [(Method::GET, "/v1/templates/welcome"), (Method::DELETE, "/v1/templates/welcome")]
    {
        let answer = world.call(method, path).key(&stranger).send().await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "TEMPLATE_NOT_FOUND"));
    }
    let tried = world.post("/v1/templates/welcome/preview").key(&stranger).json(&json!({})).await;
    assert_eq!(tried.code(), "TEMPLATE_NOT_FOUND");
    assert_eq!(get(&world, "/welcome").await.status, 200, "nothing was deleted");

    for number in 1..200 {
        assert_eq!(put(&world, &format!("t-{number}"), &welcome("x")).await.status, 200);
    }
    let refused = put(&world, "one-more", &welcome("x")).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "TOO_MANY_TEMPLATES"));
    assert_eq!(
        put(&world, "welcome", &welcome("Dear")).await.json()["version"],
        2,
        "those there are can change"
    );
}
