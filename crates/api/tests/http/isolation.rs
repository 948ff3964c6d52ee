//! No company sees another: what is somebody else's is answered byte for byte like what is not there.

use axum::http::Method;
use model::{EmailId, KeyMode, Mailbox, Scope};
use serde_json::{Value, json};
use testkit::{START, a_company};

use crate::world::{World, world};

async fn stranger(world: &World) -> String {
    let company = world.company("stranger").await;
    world.key(&company, KeyMode::Live, &[Scope::Admin]).await
}

/// Every route of companies that names something in its path, taken from the OpenAPI document so that a new one cannot
/// be forgotten, with the example of its body.
fn routes_that_name_something(world: &World) -> Vec<(Method, String, Option<Value>)> {
    let mut routes = Vec::new();
    for (path, item) in world.document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            if path.contains('{') && operation.get("x-scope").is_some() {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
                let body = operation["requestBody"]["content"]["application/json"].get("example").cloned();
                routes.push((method, path.clone(), body));
            }
        }
    }
    routes
}

const ENTITY: &str = "order-4711";
const TEMPLATE: &str = "welcome";
const SUPPRESSED: &str = "suppressed@example.com";
const FAILING: &str = "failing@example.com";

/// Something of every kind that can be named, the shop's.
struct Things {
    waiting: EmailId,
    dead: EmailId,
}

async fn things(world: &World) -> Things {
    world.sent_with(&world.live, json!({ "entity": { "id": ENTITY, "name": "Order" } })).await;
    assert_eq!(world.deliver_all("relay").await, 1, "so that its entity has something to sum up");
    // Three failures make an address problematic.
    let mut dead = None;
    for _ in 0..3 {
        let changes = json!({ "to": FAILING, "attachments": [{ "filename": "a.txt", "content": "aGk=" }] });
        dead = Some(world.sent_with(&world.live, changes).await);
        assert_eq!(world.fail_all("SMTP_REJECTED_550").await, 1);
    }
    let attached = json!({ "attachments": [{ "filename": "a.txt", "content": "aGk=" }] });
    let waiting = world.sent_with(&world.live, attached).await;
    let template = json!({ "subject": "Hi", "html": "<p>Hi</p>" });
    for _ in 0..2 {
        let path = format!("/v1/templates/{TEMPLATE}");
        let put = world.call(Method::PUT, &path).key(&world.admin).json(&template).await;
        assert_eq!(put.status, 200, "{}", put.text());
    }
    let suppression = json!({ "email": SUPPRESSED, "reason": "asked for it" });
    let suppressed = world.post("/v1/suppressions").key(&world.admin).json(&suppression).await;
    assert!(suppressed.status < 300, "{}", suppressed.text());
    Things { waiting, dead: dead.expect("a dead letter") }
}

/// The parameters of a route, each with a thing of the shop's and one that nobody has.
fn parameters(things: &Things, path: &str) -> Vec<(&'static str, Vec<String>, String)> {
    let names = path.split(['{', '}']).skip(1).step_by(2);
    let address = if path.contains("problematic") { FAILING } else { SUPPRESSED };
    names
        .map(|name| match name {
            "id" => {
                let theirs = vec![things.waiting.to_string(), things.dead.to_string()];
                ("{id}", theirs, EmailId::new(START).to_string())
            }
            "position" => ("{position}", vec!["0".to_owned()], "0".to_owned()),
            "name" => ("{name}", vec![TEMPLATE.to_owned()], "nothing".to_owned()),
            "entity" => ("{entity}", vec![ENTITY.to_owned()], "order-0000".to_owned()),
            "email" => ("{email}", vec![address.to_owned()], "nobody@example.com".to_owned()),
            other => panic!("{path} names a {other}: give the shop one, and say here what it is called"),
        })
        .collect()
}

/// What a stranger is answered, with the names it gave taken out.
async fn answer_to(
    world: &World,
    key: &str,
    (method, path, body): &(Method, String, Option<Value>),
    named: &[(&str, &String)],
) -> (u16, String) {
    let path = named.iter().fold(path.clone(), |path, (parameter, value)| path.replace(parameter, value));
    let call = world.call(method.clone(), &path).key(key).header("x-request-id", "same");
    let answer = match body {
        Some(body) => call.json(body).await,
        None => call.send().await,
    };
    let text = named.iter().fold(answer.text(), |text, (name, value)| text.replace(value.as_str(), name));
    (answer.status, text)
}

/// Every route that names something x everything of another company's it can name: answered like what is not there.
#[tokio::test]
async fn foreign_things_look_like_missing_ones() {
    let world = world().await;
    let stranger = stranger(&world).await;
    let things = things(&world).await;
    let routes = routes_that_name_something(&world);
    assert!(routes.len() >= 15, "{routes:?}");
    for route in &routes {
        let (method, path, _) = route;
        let parameters = parameters(&things, path);
        let missing: Vec<(&str, &String)> =
            parameters.iter().map(|(name, _, missing)| (*name, missing)).collect();
        let expected = answer_to(&world, &stranger, route, &missing).await;
        // A template may be written under any name, and every entity has a summary, if only of nothing.
        let is_new = *method == Method::PUT;
        let is_there = is_new || path.contains("{entity}");
        assert_eq!(expected.0, if is_there { 200 } else { 404 }, "{method} {path}: {}", expected.1);
        let choices = parameters.iter().map(|(_, theirs, _)| theirs.len()).max().unwrap_or(1);
        for choice in 0..choices {
            let foreign: Vec<(&str, &String)> = parameters
                .iter()
                .map(|(name, theirs, _)| (*name, &theirs[choice.min(theirs.len() - 1)]))
                .collect();
            let found = answer_to(&world, &stranger, route, &foreign).await;
            assert_eq!(found, expected, "{method} {path} {foreign:?}");
        }
        if path.contains("{id}") {
            let malformed = "not-an-id".to_owned();
            let mut named = missing.clone();
            named[0].1 = &malformed;
            assert_eq!(answer_to(&world, &stranger, route, &named).await, expected, "{method} {path}, no id");
        }
        if is_new {
            // Its own one, and the answer to the next stranger would differ.
            for name in [TEMPLATE, "nothing"] {
                let path = path.replace("{name}", name);
                world.call(Method::DELETE, &path).key(&stranger).send().await;
            }
        }
    }
    all_is_still_there(&world, &stranger, &things, &routes).await;
}

/// Nothing was changed by the stranger; and what it asked for is there for its owner, or the test above showed nothing.
async fn all_is_still_there(
    world: &World,
    stranger: &str,
    things: &Things,
    routes: &[(Method, String, Option<Value>)],
) {
    for route in routes.iter().filter(|(method, ..)| method == Method::GET) {
        let parameters = parameters(things, &route.1);
        let named: Vec<(&str, &String)> =
            parameters.iter().map(|(name, theirs, _)| (*name, &theirs[0])).collect();
        let (status, shown) = answer_to(world, &world.admin, route, &named).await;
        assert_eq!(status, 200, "{}: {shown}", route.1);
        assert_ne!(shown, answer_to(world, stranger, route, &named).await.1, "{}", route.1);
    }
    let email = world.get(&format!("/v1/emails/{}", things.waiting)).key(&world.live).send().await;
    assert_eq!(email.json()["status"], "ENQUEUED");
    for path in [
        format!("/v1/dlq/{}", things.dead),
        format!("/v1/recipients/problematic/{FAILING}"),
        format!("/v1/suppressions/{SUPPRESSED}"),
        format!("/v1/templates/{TEMPLATE}"),
    ] {
        let removed = world.call(Method::DELETE, &path).key(&world.admin).send().await;
        assert!(removed.status < 300, "{path} was there: {}", removed.text());
    }
}

#[tokio::test]
async fn lists_and_replays_stay_at_home() {
    let world = world().await;
    let stranger = stranger(&world).await;
    let dead = world.sent_with(&world.live, json!({ "tags": ["t"], "externalId": "e" })).await;
    world.fail_all("SMTP_REJECTED_550").await;
    world.sent().await;
    for path in [
        "/v1/emails",
        "/v1/emails?externalId=e",
        "/v1/emails?tag=t",
        "/v1/emails?to=ana@example.com",
        "/v1/dlq",
    ] {
        let answer = world.get(path).key(&stranger).send().await;
        assert_eq!(answer.json(), json!({ "data": [], "nextCursor": null }), "{path}");
    }
    for body in [json!({ "ids": [dead.to_string()] }), json!({ "filter": {} })] {
        let answer = world.post("/v1/dlq/replay").key(&stranger).json(&body).await;
        assert_eq!(answer.json(), json!({ "matched": 0, "replayed": 0 }), "{body}");
    }
    let first = world.get("/v1/emails?limit=1").key(&world.live).send().await.json();
    let cursor = first["nextCursor"].as_str().expect("a second page");
    let answer = world.get(&format!("/v1/emails?limit=1&cursor={cursor}")).key(&stranger).send().await;
    assert_eq!(answer.code(), "INVALID_CURSOR", "a cursor is of no use to others");
}

/// Rows of all companies are numbered together: a cursor that told its number would tell how much the others send.
#[tokio::test]
async fn cursors_tell_nothing_of_others() {
    let world = world().await;
    let mut other = a_company("stranger");
    other.settings.from = Some(Mailbox::parse("mail@stranger.example").expect("valid"));
    world.gateway.store.add_company(other.clone()).await.expect("a company");
    let stranger = world.key(&other, KeyMode::Live, &[Scope::Admin]).await;
    let lists = ["/v1/emails", "/v1/emails?status=FAILED", "/v1/dlq"];
    for _ in 0..2 {
        world.sent().await;
    }
    world.fail_all("SMTP_REJECTED_550").await;
    let mut given: Vec<(&str, String)> = Vec::new();
    for round in 0..2 {
        for list in lists {
            let cursor = first_cursor(&world, list).await;
            assert_eq!(cursor, first_cursor(&world, list).await, "{list}: it stays as it is");
            for piece in cursor.split(|sign: char| !(sign.is_ascii_alphanumeric() || "-_".contains(sign))) {
                assert!(piece.parse::<u64>().is_err(), "{list}: a number stands open in {cursor}");
            }
            given.push((list, cursor));
        }
        if round == 0 {
            for _ in 0..20 {
                let sent = world.post("/v1/email/send").key(&stranger).json(&crate::world::good()).await;
                assert_eq!(sent.status, 202, "{}", sent.text());
            }
            world.sent().await;
            world.fail_all("SMTP_REJECTED_550").await;
        }
    }
    let lengths: Vec<usize> = given.iter().map(|(_, cursor)| cursor.len()).collect();
    assert!(lengths.iter().all(|length| *length == lengths[0]), "no digits to be counted: {given:?}");
    for (list, cursor) in &given {
        for other in lists {
            for (who, key) in [("the company", &world.live), ("a stranger", &stranger)] {
                let separator = if other.contains('?') { '&' } else { '?' };
                let path = format!("{other}{separator}limit=1&cursor={cursor}");
                let answer = world.get(&path).key(key).send().await;
                let is_its = other == *list && who == "the company";
                let expected = if is_its { (200, "") } else { (400, "INVALID_CURSOR") };
                let code = if answer.status == 200 { String::new() } else { answer.code() };
                assert_eq!((answer.status, code.as_str()), expected, "{who}: {path} for {list}");
            }
        }
    }
}

async fn first_cursor(world: &World, list: &str) -> String {
    let separator = if list.contains('?') { '&' } else { '?' };
    let page = world.get(&format!("{list}{separator}limit=1")).key(&world.live).send().await.json();
    page["nextCursor"].as_str().unwrap_or_else(|| panic!("{list} has no second page: {page}")).to_owned()
}
