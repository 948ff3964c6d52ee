//! Bad input, row by row: the stated status and code, nothing stored, nothing secret echoed. One table.

use serde_json::{Value, json};

use crate::world::{Answer, Call, World, good, with, world};

struct Case {
    name: &'static str,
    status: u16,
    code: &'static str,
    /// What the offending field is called, where there is one.
    field: &'static str,
    call: MakeCall,
}

/// A body handed in with a good key.
fn body(name: &'static str, status: u16, code: &'static str, field: &'static str, body: Value) -> Case {
    raw(name, status, code, field, body.to_string().into_bytes())
}

/// The good email with changes.
fn changed(name: &'static str, status: u16, code: &'static str, field: &'static str, changes: Value) -> Case {
    body(name, status, code, field, with(changes))
}

fn raw(name: &'static str, status: u16, code: &'static str, field: &'static str, bytes: Vec<u8>) -> Case {
    let call = boxed(move |world| {
        world.post("/v1/email/send").key(&world.live).body("application/json", bytes.clone())
    });
    Case { name, status, code, field, call }
}

type MakeCall = Box<dyn for<'w> Fn(&'w World) -> Call<'w>>;

fn boxed(call: impl for<'w> Fn(&'w World) -> Call<'w> + 'static) -> MakeCall {
    Box::new(call)
}

/// A request that is the good one but for what is around it.
fn around(
    name: &'static str,
    status: u16,
    code: &'static str,
    call: impl for<'w> Fn(&'w World) -> Call<'w> + 'static,
) -> Case {
    Case { name, status, code, field: "", call: boxed(call) }
}

fn send(world: &World) -> Call<'_> {
    world.post("/v1/email/send").body("application/json", good().to_string())
}

fn typed_as<'w>(world: &'w World, kind: &str) -> Call<'w> {
    world.post("/v1/email/send").key(&world.live).body(kind, good().to_string())
}

fn keyed<'w>(world: &'w World, key: &str) -> Call<'w> {
    send(world).key(&world.live).header("idempotency-key", key)
}

fn keys() -> Vec<Case> {
    let missing = "MISSING_API_KEY";
    vec![
        around("no key", 401, missing, send),
        around("wrong key, right prefix", 401, "INVALID_API_KEY", |world| {
            send(world).key("live_0000000000000000000000000000000000000000000")
        }),
        around("unknown prefix", 401, "INVALID_API_KEY", |world| send(world).key("prod_0")),
        around("key in the address", 401, missing, |world| {
            let path = format!("/v1/email/send?apiKey={}", world.live);
            world.post(&path).body("application/json", good().to_string())
        }),
        around("admin token is no key", 401, "INVALID_API_KEY", |world| send(world).operator()),
    ]
}

fn bodies() -> Vec<Case> {
    let typed = "UNSUPPORTED_MEDIA_TYPE";
    vec![
        raw("not JSON", 400, "INVALID_JSON", "", b"to=ana".to_vec()),
        raw("empty", 400, "INVALID_JSON", "", vec![]),
        raw("truncated", 400, "INVALID_JSON", "", br#"{"to":"ana@example.com","#.to_vec()),
        raw("trailing bytes", 400, "INVALID_JSON", "", [good().to_string().as_bytes(), b"}"].concat()),
        around("other type", 415, typed, |world| typed_as(world, "text/plain")),
        around("other charset", 415, typed, |world| typed_as(world, "application/json; charset=latin1")),
        around("no type", 415, typed, |world| world.post("/v1/email/send").key(&world.live)),
        around("compressed", 415, typed, |world| {
            send(world).key(&world.live).header("content-encoding", "gzip")
        }),
        raw("not UTF-8", 400, "INVALID_ENCODING", "", b"{\"subject\":\"\xff\"}".to_vec()),
        raw("lone surrogate", 400, "INVALID_ENCODING", "", br#"{"subject":"\ud800"}"#.to_vec()),
        changed("NUL", 400, "CONTROL_CHARACTER", "subject", json!({ "subject": "a\0b" })),
        changed("U+202E", 400, "CONTROL_CHARACTER", "subject", json!({ "subject": "a\u{202e}b" })),
        around("100 MB declared", 413, "BODY_TOO_LARGE", |world| {
            send(world).key(&world.live).header("content-length", "104857600")
        }),
        raw("17 MB sent", 413, "BODY_TOO_LARGE", "", vec![b' '; 17 * 1024 * 1024]),
        raw("10,000 deep", 400, "TOO_DEEP", "", "[".repeat(10_000).into_bytes()),
        raw("1e400", 400, "OUT_OF_RANGE", "", br#"{"priority":1e400}"#.to_vec()),
        raw("twice", 400, "REPEATED_FIELD", "", br#"{"to":"a@b.com","to":"c@d.com"}"#.to_vec()),
        body("a list", 400, "INVALID_TYPE", "", json!([])),
    ]
}

fn fields() -> Vec<Case> {
    let subject = "INVALID_SUBJECT";
    let header = "INVALID_HEADER";
    let forbidden = "FORBIDDEN_HEADER";
    let many: serde_json::Map<String, Value> = (0..101).map(|n| (format!("X-{n}"), json!("1"))).collect();
    vec![
        changed("-0", 400, "OUT_OF_RANGE", "priority", json!({ "priority": -0.0 })),
        changed(
            "2^53 + 1",
            400,
            "OUT_OF_RANGE",
            "priority",
            json!({ "priority": 9_007_199_254_740_993_u64 }),
        ),
        changed("CR", 400, subject, "subject", json!({ "subject": "a\rb" })),
        changed("LF", 400, subject, "subject", json!({ "subject": "a\nb" })),
        changed("folded", 400, subject, "subject", json!({ "subject": "a\r\n b" })),
        changed("U+2028", 400, subject, "subject", json!({ "subject": "a\u{2028}b" })),
        changed("encoded word", 400, subject, "subject", json!({ "subject": "=?utf-8?Q?a=0D=0Ab?=" })),
        changed("0 characters", 400, subject, "subject", json!({ "subject": "" })),
        changed("151 characters", 400, subject, "subject", json!({ "subject": "x".repeat(151) })),
        changed("header with colon", 400, header, "headers.X-A:B", json!({ "headers": { "X-A:B": "1" } })),
        changed("header with blank", 400, header, "headers.X A", json!({ "headers": { "X A": "1" } })),
        changed("header without name", 400, header, "headers.", json!({ "headers": { "": "1" } })),
        changed("header with CR", 400, header, "headers.X-A", json!({ "headers": { "X-A": "a\rb" } })),
        changed("Bcc header", 400, forbidden, "headers.Bcc", json!({ "headers": { "Bcc": "x@y.com" } })),
        changed("From header", 400, forbidden, "headers.From", json!({ "headers": { "From": "x@y.com" } })),
        changed(
            "DKIM header",
            400,
            forbidden,
            "headers.DKIM-Signature",
            json!({ "headers": { "DKIM-Signature": "x" } }),
        ),
        changed("101 headers", 400, "TOO_MANY_HEADERS", "headers", json!({ "headers": many })),
        changed(
            "not base64",
            400,
            "INVALID_BASE64",
            "attachments[0].content",
            json!({ "attachments": [{ "filename": "a", "content": "%" }] }),
        ),
        changed("mass assignment", 400, "UNKNOWN_FIELD", "status", json!({ "status": "SENT" })),
        changed("company", 400, "UNKNOWN_FIELD", "companyId", json!({ "companyId": "x" })),
    ]
}

fn people() -> Vec<Case> {
    let email = "INVALID_EMAIL";
    let six: Vec<String> = (0..6).map(|n| format!("a{n}@example.com")).collect();
    let recipient = |inner: Value| json!({ "recipient": inner });
    let long =
        format!("{}@{}.com", "l".repeat(64), ["d".repeat(62), "e".repeat(62), "f".repeat(60)].join("."));
    assert_eq!(long.len(), 255);
    vec![
        changed("no @", 400, email, "to", json!({ "to": "ana" })),
        changed("two @", 400, email, "to", json!({ "to": "a@b@c.com" })),
        changed("quoted", 400, email, "to", json!({ "to": "\"a b\"@c.com" })),
        changed("255 characters", 400, email, "to", json!({ "to": long })),
        changed("trailing dot", 400, email, "to", json!({ "to": "a@b.com." })),
        changed("literal", 400, email, "to", json!({ "to": "a@[127.0.0.1]" })),
        changed("localhost", 400, email, "to", json!({ "to": "a@localhost" })),
        changed("6 cc", 400, "TOO_MANY_CC", "cc", json!({ "cc": six })),
        changed("6 bcc", 400, "TOO_MANY_BCC", "bcc", json!({ "bcc": six })),
        changed("6 tags", 400, "TOO_MANY_TAGS", "tags", json!({ "tags": ["a", "b", "c", "d", "e", "f"] })),
        changed(
            "nobody",
            400,
            "RECIPIENT_IDENTIFIER_REQUIRED",
            "recipient",
            recipient(json!({ "nome": "J" })),
        ),
        changed(
            "bad digits",
            400,
            "INVALID_DOCUMENT",
            "recipient.cpfCnpj",
            recipient(json!({ "cpfCnpj": "52998224726" })),
        ),
        changed(
            "63 digits",
            400,
            "INVALID_HASH",
            "recipient.cpfCnpjHash",
            recipient(json!({ "cpfCnpjHash": "a".repeat(63) })),
        ),
    ]
}

fn html() -> Vec<Case> {
    let unsafe_html = |name, html: &str| changed(name, 422, "UNSAFE_HTML", "html", json!({ "html": html }));
    let limit = 512 * 1024;
    vec![
        changed("empty html", 400, "INVALID_HTML", "html", json!({ "html": "" })),
        changed("blank html", 400, "INVALID_HTML", "html", json!({ "html": " \n\t" })),
        changed("512 KB and one", 413, "HTML_TOO_LARGE", "html", json!({ "html": "x".repeat(limit + 1) })),
        changed("UTF-16 mark", 400, "INVALID_ENCODING", "html", json!({ "html": "\u{feff}<p>x</p>" })),
        unsafe_html("script", "<p>x</p><script>alert(1)</script>"),
        unsafe_html("script URL", "<a href=\"javascript:alert(1)\">x</a>"),
        unsafe_html("handler", "<p onclick=\"x()\">x</p>"),
        unsafe_html("svg", "<svg onload=x>"),
        unsafe_html("tab in scheme", "<a href=\"JaVa\tscript:x\">x</a>"),
        unsafe_html("entities", "<a href=\"&#106;avascript:x\">x</a>"),
        changed(
            "template unknown",
            422,
            "TEMPLATE_NOT_FOUND",
            "template",
            json!({ "html": null, "template": "t" }),
        ),
    ]
}

fn times_and_names() -> Vec<Case> {
    let invalid = "INVALID_IDEMPOTENCY_KEY";
    vec![
        around("empty idempotency key", 400, invalid, |world| keyed(world, "")),
        around("257 characters", 400, invalid, |world| keyed(world, &"k".repeat(257))),
        around("not ASCII", 400, invalid, |world| keyed(world, "ação")),
        around("sent twice", 400, invalid, |world| keyed(world, "a").header("idempotency-key", "a")),
        changed(
            "31 days",
            400,
            "OUT_OF_RANGE",
            "scheduledAt",
            json!({ "scheduledAt": "2026-02-01T00:00:00Z" }),
        ),
        changed(
            "no zone",
            400,
            "INVALID_SCHEDULED_AT",
            "scheduledAt",
            json!({ "scheduledAt": "2026-01-02T00:00:00" }),
        ),
        changed(
            "30 February",
            400,
            "INVALID_SCHEDULED_AT",
            "scheduledAt",
            json!({ "scheduledAt": "2025-02-30T00:00:00Z" }),
        ),
        changed("foreign sender", 422, "SENDER_NOT_ALLOWED", "from", json!({ "from": "ceo@bank.example" })),
        changed("no such provider", 422, "UNKNOWN_PROVIDER", "provider", json!({ "provider": "mars" })),
        changed(
            "no such policy",
            422,
            "UNKNOWN_RETRY_POLICY",
            "retryPolicy",
            json!({ "retryPolicy": "soon" }),
        ),
        changed(
            "file URL",
            400,
            "FORBIDDEN_URL",
            "callbackUrl",
            json!({ "callbackUrl": "file:///etc/passwd" }),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_gets_its_status_and_code() {
    let world = world().await;
    let tables = [keys(), bodies(), fields(), people(), html(), times_and_names()];
    for case in tables.into_iter().flatten() {
        let answer = (case.call)(&world).send().await;
        check(&world, &case, &answer);
    }
    let listed = world.get("/v1/emails").key(&world.live).send().await;
    assert_eq!(listed.json()["data"], json!([]), "nothing of all this was stored");
}

fn check(world: &World, case: &Case, answer: &Answer) {
    let name = case.name;
    let found = (answer.status, answer.code());
    assert_eq!(found, (case.status, case.code.to_owned()), "{name}: {}", answer.text());
    if !case.field.is_empty() {
        let errors = answer.json()["errors"].clone();
        let named = errors.as_array().is_some_and(|errors| {
            errors.iter().any(|error| error["field"] == case.field && error["code"] == case.code)
        });
        assert!(named, "{name}: {errors}");
    }
    for secret in [&world.live, "529.982.247-25", "alert(1)"] {
        assert!(!answer.text().contains(secret), "{name} echoes {secret}");
    }
    if matches!(case.status, 413 | 415) && case.field.is_empty() {
        assert_eq!(answer.header("connection"), Some("close"), "{name}");
    }
}

#[tokio::test]
async fn the_edges_of_what_is_allowed() {
    let world = world().await;
    let longest =
        format!("{}@{}.com", "l".repeat(64), ["d".repeat(62), "e".repeat(62), "f".repeat(59)].join("."));
    assert_eq!(longest.len(), 254);
    let cases = [
        ("150 characters", json!({ "subject": "x".repeat(150) })),
        ("150 emoji", json!({ "subject": "😀".repeat(150) })),
        ("IDN", json!({ "to": "ana@exämple.com" })),
        ("254 characters", json!({ "to": longest })),
        ("512 KB", json!({ "html": "x".repeat(512 * 1024) })),
        ("prose about onclick=", json!({ "html": "<p>Write onclick=\"x()\" or javascript: in prose.</p>" })),
        ("empty attachment", json!({ "attachments": [{ "filename": "a.txt", "content": "" }] })),
        ("nulls", json!({ "text": null, "cc": null, "recipient": null, "priority": null })),
    ];
    for (case, changes) in cases {
        let answer = world.post("/v1/email/send").key(&world.live).json(&with(changes)).await;
        assert_eq!(answer.status, 202, "{case}: {}", answer.text());
    }
    let key = "k".repeat(256);
    let call = world.post("/v1/email/send").key(&world.live).header("idempotency-key", key);
    assert_eq!(call.json(&good()).await.status, 202, "a key of 256 characters");
}

/// Unknown keys are told apart by nothing.
#[tokio::test]
async fn wrong_keys_look_alike() {
    let world = world().await;
    let mut bodies = Vec::new();
    for key in ["live_0000000000000000000000000000000000000000000", "prod_x", "x", &"k".repeat(5000)] {
        let answer = world.get("/v1/emails").key(key).header("x-request-id", "same").send().await;
        assert_eq!(answer.status, 401);
        bodies.push(answer.bytes);
    }
    assert!(bodies.windows(2).all(|pair| pair[0] == pair[1]));
}

#[tokio::test]
async fn json_errors_say_where() {
    let world = world().await;
    let call = world.post("/v1/email/send").key(&world.live);
    let answer = call.body("application/json", "{\n  \"to\": oops\n}").send().await;
    let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains("line 2, column 9"), "{detail}");
}

#[tokio::test]
async fn misspelled_fields_are_named_with_the_nearest() {
    let world = world().await;
    let call = world.post("/v1/email/send").key(&world.live);
    let answer = call.json(&with(json!({ "replayTo": "a@b.com" }))).await;
    assert_eq!(answer.json()["errors"][0]["message"], "is not a known field; did you mean replyTo?");
    let answer = world.get("/v1/emails?stauts=SENT").key(&world.live).send().await;
    assert_eq!(answer.code(), "UNKNOWN_PARAMETER");
    assert_eq!(answer.json()["errors"][0]["message"], "is not a known parameter; did you mean status?");
}
