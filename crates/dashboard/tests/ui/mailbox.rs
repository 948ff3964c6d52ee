//! The mailbox of captured mail: what is in it, how it is searched, and what leaves it.

use serde_json::json;

use crate::world::{world, world_with_a_way_out};

#[tokio::test]
async fn captured_mail_is_listed_and_read() {
    let world = world().await;
    let id = world
        .email(json!({ "subject": "Welcome", "text": "In words", "from": "Shop <shop@shop.example>" }))
        .await;
    world.get("/ui/c/shop/mailbox").send().await.has(&["No email yet"]);
    world.work().await;
    let list = world.get("/ui/c/shop/mailbox").send().await;
    list.has(&[
        "Welcome",
        "Shop &lt;shop@shop.example&gt;",
        "to ana@example.com",
        &format!("data-letter=\"{id}\""),
    ]);
    let open = world.get(&format!("/ui/c/shop/mailbox?id={id}")).send().await;
    open.has(&["aria-current=\"true\"", "data-opened", "<iframe", "Phone", "All messages", "Release…"]);
    let text = world.get(&format!("/ui/c/shop/mailbox?id={id}&tab=text")).send().await;
    text.has(&["In words", &format!("mailbox?id={id}&amp;tab=headers")]);
    let foreign = world.get(&format!("/ui/c/a%2Fb%20%26%20%3Cc%3E/mailbox?id={id}")).send().await;
    foreign.has(&["role=\"alert\""]);
    foreign.has_not("Welcome");
}

#[tokio::test]
async fn the_mailbox_is_searched_by_address_and_by_words() {
    let world = world().await;
    for (to, subject) in [("ana@example.com", "Invoice 7"), ("bob@example.com", "Welcome aboard")] {
        world.email(json!({ "to": to, "subject": subject })).await;
    }
    world.work().await;
    let cases = [
        ("ana%40example.com", "Invoice 7", "Welcome aboard"),
        ("WELCOME", "Welcome aboard", "Invoice 7"),
        ("bob%40", "Welcome aboard", "Invoice 7"),
    ];
    for (typed, found, other) in cases {
        let page = world.get(&format!("/ui/c/shop/mailbox?q={typed}")).send().await;
        page.has(&[found]);
        page.has_not(other);
    }
    world.get("/ui/c/shop/mailbox?q=nothing").send().await.has(&["No captured mail matches."]);
}

#[tokio::test]
async fn without_a_provider_the_button_teaches() {
    let world = world().await;
    let id = world.email(json!({})).await;
    world.work().await;
    let page = world.get(&format!("/ui/c/shop/mailbox?id={id}")).send().await;
    page.has(&["There is no provider that sends.", "[providers.relay]"]);
    page.has_not("/release\"");
}

#[tokio::test]
async fn what_is_released_is_a_new_email_with_a_way_back() {
    let world = world_with_a_way_out().await;
    let id = world.email(json!({ "subject": "Welcome" })).await;
    world.work().await;
    let page = format!("/ui/c/shop/mailbox?id={id}");
    world.get(&page).send().await.has(&["value=\"ana@example.com\"", "<option value=\"outside\">"]);
    let action = format!("/ui/c/shop/emails/{id}/release");
    let fields = [("to", "me@example.com"), ("provider", "outside"), ("once", "ui-7")];
    let answer = world.submit(&page, &action, &fields).await;
    assert_eq!(answer.status, 303, "{}", answer.text);
    assert_eq!(world.submit(&page, &action, &fields).await.header("location"), answer.header("location"));
    let copy = world.get(answer.header("location")).send().await;
    copy.has(&["Released from the mailbox.", "me@example.com", &format!("/ui/c/shop/emails/{id}")]);
    world.get(&format!("/ui/c/shop/emails/{id}")).send().await.has(&["Released to me@example.com"]);
    let refused = world.submit(&page, &action, &[("to", "x@posthaste.test"), ("provider", "outside")]).await;
    assert_eq!(refused.status, 409);
    refused.has(&["role=\"alert\"", "capture mailbox"]);
}
