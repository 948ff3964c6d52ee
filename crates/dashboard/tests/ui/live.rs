//! Streams: they tell of what happens, to whoever may know, and end when they have to.

use std::time::Duration;

use api::inside::Behalf;
use axum::body::Body;
use axum::http::Response;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::time::timeout;

use crate::world::{TOKEN, World, world, world_with_login};

/// Longer than anything here takes; only a fault waits for it.
const PATIENCE: Duration = Duration::from_secs(30);
const BEAT: &str = ":\n\n";

struct Stream(Body);

impl Stream {
    async fn open(response: Response<Body>) -> Self {
        assert_eq!(response.status(), 200);
        let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
        assert_eq!(header("content-type"), "text/event-stream");
        assert_eq!(header("x-accel-buffering"), "no");
        assert!(header("cache-control").contains("no-transform"));
        let mut stream = Self(response.into_body());
        assert_eq!(stream.next().await.as_deref(), Some("retry: 3000\n\n"));
        stream
    }

    /// What is said next, but for the sign of life of a quiet stream; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        let said = async {
            loop {
                let data = self.0.frame().await?.expect("no error").into_data().expect("data");
                let text = String::from_utf8(data.to_vec()).expect("text");
                if text != BEAT {
                    return Some(text);
                }
            }
        };
        timeout(PATIENCE, said).await.expect("something is said")
    }

    /// The mark of the next change.
    async fn changed(&mut self) -> String {
        let text = self.next().await.expect("the stream goes on");
        let mark = text.strip_prefix("event: changed\ndata: ").and_then(|rest| rest.strip_suffix("\n\n"));
        mark.unwrap_or_else(|| panic!("not a change: {text:?}")).to_owned()
    }
}

async fn watch(world: &World, path: &str) -> Stream {
    Stream::open(world.get(path).begin().await).await
}

#[tokio::test]
async fn everybody_who_watches_a_company_hears_of_its_emails() {
    let world = world().await;
    let (mut one, mut two) = (watch(&world, "/ui/c/shop/live").await, watch(&world, "/ui/c/shop/live").await);
    let before = one.changed().await;
    assert_eq!(two.changed().await, before, "they share one look");
    let id = world.email(json!({})).await;
    let after = one.changed().await;
    assert_ne!(after, before);
    assert_eq!(two.changed().await, after);
    let mut email = watch(&world, &format!("/ui/c/shop/live?email={id}")).await;
    let waiting = email.changed().await;
    world.work().await;
    assert_ne!(one.changed().await, after, "it was sent");
    assert_ne!(email.changed().await, waiting);
}

#[tokio::test]
async fn one_who_comes_later_is_told_where_things_are() {
    let world = world().await;
    let mut early = watch(&world, "/ui/c/shop/live").await;
    let mark = early.changed().await;
    let mut late = watch(&world, "/ui/c/shop/live").await;
    assert_eq!(late.changed().await, mark);
}

#[tokio::test]
async fn a_shutdown_ends_all_streams() {
    let world = world().await;
    let mut streams = [watch(&world, "/ui/live").await, watch(&world, "/ui/c/shop/live").await];
    for stream in &mut streams {
        stream.changed().await;
    }
    world.state.begin_draining();
    for stream in &mut streams {
        assert_eq!(stream.next().await, None);
    }
    let mut after = watch(&world, "/ui/live").await;
    assert_eq!(after.next().await, None, "none begins any more");
}

#[tokio::test]
async fn a_stream_ends_with_its_session() {
    let world = world_with_login().await;
    let form = world.form_token("/ui/login", None).await;
    let home = "http://localhost:8025";
    let login = world.post("/ui/login").header("origin", home).field("csrf", &form).field("token", TOKEN);
    let login = login.send().await;
    let cookie = login.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let response = world.get("/ui/c/shop/live").header("cookie", &cookie).begin().await;
    let mut stream = Stream::open(response).await;
    stream.changed().await;
    let form = world.form_token("/ui", Some(&cookie)).await;
    let logout =
        world.post("/ui/logout").header("origin", home).header("cookie", &cookie).field("csrf", &form);
    assert_eq!(logout.send().await.status, 303);
    world.email(json!({})).await;
    assert_eq!(
        stream.next().await.as_deref(),
        Some("event: ended\ndata: session\n\n"),
        "and not what happened"
    );
    assert_eq!(stream.next().await, None);
}

#[tokio::test]
async fn a_stream_ends_with_the_key_it_was_opened_with() {
    let world = world_with_login().await;
    let keys = format!("/v1/admin/companies/{}/keys", world.shop);
    let key = world.inside.post(Behalf::Operator, &keys, &json!({ "scopes": ["read"] })).await.body;
    let text = |name: &str| key[name].as_str().expect("a text").to_owned();
    let home = "http://localhost:8025";
    let form = world.form_token("/ui/login", None).await;
    let login =
        world.post("/ui/login").header("origin", home).field("csrf", &form).field("token", &text("key"));
    let cookie = login.send().await.header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let response = world.get("/ui/c/shop/live").header("cookie", &cookie).begin().await;
    let mut stream = Stream::open(response).await;
    stream.changed().await;
    assert!(world.inside.delete(Behalf::Operator, &format!("{keys}/{}", text("id"))).await.is_fine());
    world.email(json!({})).await;
    assert_eq!(stream.next().await.as_deref(), Some("event: ended\ndata: session\n\n"));
    assert_eq!(stream.next().await, None);
}

#[tokio::test]
async fn so_many_watch_and_no_more() {
    let world = world().await;
    let mut streams = Vec::new();
    loop {
        let response = world.get("/ui/c/shop/live").begin().await;
        if response.status() != 200 {
            assert_eq!(response.status(), 503);
            assert!(response.headers().contains_key("retry-after"));
            break;
        }
        streams.push(response);
        assert!(streams.len() <= 1_000, "there is a bound");
    }
    assert_eq!(world.get("/ui/c/shop/emails").send().await.status, 200, "pages come all the same");
    streams.pop();
    assert_eq!(world.get("/ui/c/shop/live").begin().await.status(), 200, "who leaves makes room");
}

#[tokio::test]
async fn pages_say_what_to_watch() {
    let world = world().await;
    let id = world.email(json!({})).await;
    let cases = [
        ("/ui".to_owned(), "/ui/live".to_owned()),
        ("/ui/c/shop".to_owned(), "/ui/c/shop/live".to_owned()),
        ("/ui/c/shop/emails".to_owned(), "/ui/c/shop/live".to_owned()),
        ("/ui/c/shop/mailbox".to_owned(), "/ui/c/shop/live".to_owned()),
        (format!("/ui/c/shop/emails/{id}"), format!("/ui/c/shop/live?email={id}")),
    ];
    for (page, stream) in cases {
        let shown = world.get(&page).send().await;
        shown.has(&[&format!("data-stream=\"{stream}\""), "data-live=", "data-live-switch"]);
        assert_eq!(world.get(&stream).begin().await.status(), 200, "{stream}");
    }
    world.get("/ui/c/shop/settings").send().await.has_not("data-stream");
    assert_eq!(world.get("/ui/c/shop/live?email=nonsense").send().await.status, 404);
}
