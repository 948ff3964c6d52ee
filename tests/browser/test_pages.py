"""Every page, driven as a person does: opened, read, clicked, typed at, on a wide screen and on a phone, light and dark."""

import re

from playwright.sync_api import expect
from stage import until
from world import COMPANY, NARROW, TOKEN, WIDE, an_email

HERE = f"/ui/c/{COMPANY}"


def notice(page):
    return page.locator(".notice[role=status]").inner_text()


def rows(page):
    return page.locator("[data-list] tbody tr")


def follow(page, link):
    """Clicks what leads to another page, and waits until that one is there."""
    with page.expect_navigation():
        page.click(link)


def test_overview(server, person):
    page = person.open(server, HERE)
    tiles = dict(zip(page.locator(".tile dt").all_inner_texts(), page.locator(".tile dd").all_inner_texts()))
    assert int(tiles["Dead letters"]) == 6, tiles
    assert int(tiles["To be retried"]) == 1, tiles
    assert page.locator(".trend svg[role=img]").count() == 1
    person.look_around("overview")
    for days in ("7", "90"):
        follow(page, f"a:has-text('{days} days')")
        assert page.locator(".trend g").count() == int(days)
    follow(page, ".tile:has-text('Dead letters')")
    assert page.url.endswith("/dead-letters")


def test_overview_of_the_server(server, person):
    page = person.open(server, "/ui")
    person.look_around("server")
    follow(page, f".card a:has-text('{COMPANY}')")
    assert page.url == server.url + HERE
    page.goto(server.url + "/")
    assert page.url == server.url + "/ui"


def test_emails_by_filter(server, person):
    page = person.open(server, HERE + "/emails")
    person.look_around("emails")
    page.select_option("#status", "BOUNCED")
    page.wait_for_url("**/emails?status=BOUNCED")
    assert rows(page).count() == 1 and "bounced+1@" in rows(page).first.inner_text()
    page.go_back()
    assert page.input_value("#status") == "", "what is chosen is what is shown"
    page.click("summary:has-text('More filters')")
    page.fill("#f-tag", "orders")
    page.click(".filters button:has-text('Filter'):visible")
    page.wait_for_url("**/emails?tag=orders")
    assert all("orders" in row for row in rows(page).all_inner_texts())
    person.look_around("emails-filtered")
    page.click("a:has-text('Clear')")
    page.wait_for_url("**/emails")
    person.open(server, HERE + "/emails?tag=nobody")
    assert "No email matches" in page.inner_text("main")


def test_emails_page_by_page(server, person):
    page = person.open(server, HERE + "/emails")
    seen = []
    for _ in range(20):
        ids = page.eval_on_selector_all("td.subject a", "links => links.map((link) => link.href)")
        assert ids and not set(ids) & set(seen), "no email twice"
        seen += ids
        older = page.locator("a[rel=next]")
        if older.count() == 0:
            break
        with page.expect_navigation():
            older.click()
    assert len(seen) > 80, len(seen)
    follow(page, "a:has-text('Newest')")
    assert page.url == server.url + HERE + "/emails"


def test_search(server, person):
    page = person.open(server, HERE + "/emails")

    def search(words):
        page.fill("[data-search]", words)
        with page.expect_navigation():
            page.press("[data-search]", "Enter")

    search(server.ids["bounced"].upper())
    assert page.url.startswith(f"{server.url}{HERE}/emails/{server.ids['bounced']}"), page.url
    person.open(server, HERE + "/emails")
    search("rejected+again@posthaste.test")
    assert rows(page).count() == 3, page.url
    search("order-2")
    assert rows(page).count() >= 10, page.url
    search("nobody-knows")
    assert "No email matches" in page.inner_text("main")


def test_email(server, person):
    page = person.open(server, f"{HERE}/emails/{server.ids['delivered']}")
    assert page.locator(".headline .pill").inner_text() == "Delivered"
    story = page.locator(".timeline li").all_inner_texts()
    assert len(story) >= 5 and any("DELIVERED" in line for line in story), story
    assert "office@example.com" in page.inner_text("main")
    expect(page.frame_locator("iframe.preview").locator("body")).to_contain_text("Thank you for order")
    person.look_around("email")
    follow(page, "nav.tabs a:has-text('Text')")
    assert "thank you for order" in page.inner_text("pre.source")
    follow(page, "nav.tabs a:has-text('Source')")
    person.look_around("email-source")
    with page.expect_download() as download:
        page.click("nav.tabs a:has-text('.eml')")
    assert b"X-Posthaste-Id" in open(download.value.path(), "rb").read()


def test_every_tab_of_an_email(server, person):
    start = f"{HERE}/emails/{server.ids['attached']}"
    page = person.open(server, start)
    tabs = page.eval_on_selector_all("nav.tabs a:not([download])", "links => links.map((link) => link.href)")
    assert len(tabs) >= 3
    for tab in tabs:
        person.open(server, tab.removeprefix(server.url))
        name = re.search(r"tab=([\w-]+)", tab)
        person.look_around(f"email-{name[1] if name else 'first'}")
    follow(page, "nav.tabs a:has-text('Attachments')")
    with page.expect_download() as download:
        page.click("a:has-text('relatório.pdf')")
    assert download.value.suggested_filename == "relatório.pdf"


def test_email_retried_and_cancelled(server, person):
    page = person.open(server, f"{HERE}/emails/{server.ids['retrying']}")
    assert "Why is it waiting?" in page.inner_text("main")
    page.click("summary:has-text('Retry now')")
    expect(page.locator("button:has-text('Yes, retry now')")).to_be_visible()
    person.look_around("email-asks")
    page.click("summary:has-text('Retry now')")
    expect(page.locator("button:has-text('Yes, retry now')")).to_be_hidden()
    page.click("summary:has-text('Retry now')")
    follow(page, "button:has-text('Yes, retry now')")
    assert notice(page) == "It is due now."
    person.open(server, f"{HERE}/emails/{server.ids['to-cancel']}")
    page.click("summary:has-text('Cancel')")
    follow(page, "button:has-text('Yes, cancel it')")
    assert "cancelled" in notice(page)
    assert server.must("GET", f"/v1/emails/{server.ids['to-cancel']}", key=server.key)["status"] == "CANCELLED"
    assert page.locator("summary:has-text('Cancel')").count() == 0, "what is done is no longer offered"


def test_email_sent_again_as_a_copy(server, person):
    page = person.open(server, f"{HERE}/emails/{server.ids['attached']}")
    page.click("summary:has-text('Resend')")
    with page.expect_navigation():
        page.locator("details[open] button[type=submit]").click()
    copy = page.locator("dd .copyable code").first.inner_text()
    assert copy != server.ids["attached"], "the copy is an email of its own"
    server.wait_for(copy, "SENT")
    page.wait_for_selector(".timeline li:has-text('SENT_ATTEMPT')")
    assert page.locator(f"main a[href*='{server.ids['attached']}']").count() >= 1, "it leads back to where it came from"
    person.look_around("email-copy")
    page.locator("summary:has-text('Release')").click()
    answer = page.locator("details[open]")
    expect(answer, "without a provider it is said what to configure").to_contain_text("provider", ignore_case=True)


def test_mailbox(server, person):
    page = person.open(server, HERE + "/mailbox")
    letters = page.locator("[data-letter]")
    assert letters.count() >= 40
    person.look_around("mailbox")
    unread = int(page.inner_text("[data-unread-count]").split()[0])
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/mailbox?id=*")
    page.wait_for_selector(".message h2")
    expect(page.frame_locator(".message iframe").locator("body")).to_contain_text("Hello")
    expect(page.locator("[data-unread-count]"), "what was opened is read").to_have_text(f"{unread - 1} unread")
    widths = {}
    for width in ("phone", "tablet", "desktop"):
        page.click(f"button[data-width={width}]")
        expect(page.locator(f"button[data-width={width}]")).to_have_attribute("aria-pressed", "true")
        widths[width] = page.locator(".message iframe").bounding_box()["width"]
    assert widths["phone"] < widths["tablet"] <= widths["desktop"] or widths["phone"] < widths["desktop"], widths
    person.look_around("mailbox-message")
    tabs = page.eval_on_selector_all("nav.tabs a:not([download])", "links => links.map((link) => link.textContent)")
    for tab in tabs[1:]:
        page.locator("nav.tabs a", has_text=re.compile(f"^{re.escape(tab)}$")).click()
        page.wait_for_function(
            "tab => document.querySelector('nav.tabs [aria-current]')?.textContent === tab", arg=tab)
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile(r"/mailbox$"))
    page.keyboard.press("/")
    page.keyboard.type("password")
    page.keyboard.press("Enter")
    page.wait_for_url("**/mailbox?q=password")
    assert 0 < letters.count() < 40 and all("password" in text for text in letters.all_inner_texts())
    page.click("button:has-text('Mark all as read')")
    expect(page.locator("[data-unread-count]")).to_have_text("All read")
    page.reload()
    assert page.inner_text("[data-unread-count]") == "All read", "it is remembered"


def test_alerts(server, person):
    page = person.open(server, HERE + "/alerts")
    assert "bounced+1@posthaste.test" in page.inner_text("main")
    person.look_around("alerts")


def test_live(person):
    from stage import Posthaste
    server = Posthaste()
    try:
        server.send(an_email(1))
        page = person.open(server, HERE + "/emails")
        page.wait_for_selector("[data-live-switch][data-state=live]")
        page.evaluate("() => { window.stays = true; }")
        page.focus("[data-search]")
        page.keyboard.type("half a wo")

        def appears(subject):
            server.send(an_email(2, subject=subject))
            page.wait_for_selector(f"[data-list] tr:has-text('{subject}')")

        appears("First of all")
        # Its status changes in place, too.
        page.wait_for_selector("[data-list] tr:has-text('First of all') .pill:has-text('Sent')")
        assert page.evaluate("() => window.stays") and page.input_value("[data-search]") == "half a wo"
        assert page.evaluate("() => document.activeElement.name") == "q", "the focus stays where it was"
        page.keyboard.press("Escape")
        page.keyboard.press("p")
        page.wait_for_selector("[data-live-switch][data-state=paused]")
        server.wait_for(server.send(an_email(3, subject="While nobody looks")), "SENT")
        assert page.locator("tr:has-text('While nobody looks')").count() == 0
        page.reload()
        page.wait_for_selector("[data-live-switch][data-state=paused]")
        server.wait_for(server.send(an_email(4, subject="Still paused")), "SENT")
        page.click("[data-live-switch]")
        page.wait_for_selector("tr:has-text('Still paused')")
        person.open(server, f"{HERE}/emails/{server.send(an_email(5, to='throttled@posthaste.test', retryPolicy='patient'))}")
        page.wait_for_selector(".timeline li:has-text('RETRY_SCHEDULED')")
        person.open(server, HERE)
        page.wait_for_selector("[data-live-switch][data-state=live]")
        server.send(an_email(6, to="rejected@posthaste.test"))
        page.wait_for_selector(".tile:has-text('Dead letters') dd:text-is('1')")
        person.expect("ERR_")
    finally:
        # With the stream open: a server that waits for it would not end in time.
        server.stop()
    page.wait_for_selector("[data-live-switch][data-state=reconnecting]")


def test_live_moves_nothing_under_the_focus(server, person):
    id = server.send(an_email(1, delay=36_000_000))
    page = person.open(server, f"{HERE}/emails/{id}")
    page.set_viewport_size(NARROW)
    page.wait_for_selector("[data-live-switch][data-state=live]")
    page.focus("nav.tabs a")
    place = "() => { const box = document.activeElement.getBoundingClientRect(); return box.top + box.height / 2; }"
    size = "() => document.scrollingElement.scrollHeight"
    before, high = page.evaluate(place), page.evaluate(size)
    server.must("POST", f"/v1/emails/{id}/cancel", key=server.key)
    page.wait_for_selector(".timeline li:has-text('CANCELLED')")
    assert page.evaluate(size) != high, "the page above it has changed"
    assert abs(page.evaluate(place) - before) < 2, "what has the focus is where it was"


def test_dead_letters(server, person):
    page = person.open(server, HERE + "/dead-letters")
    person.look_around("dead-letters")
    card = page.locator(".card", has_text="Replay").first
    before = int(card.locator(".number").inner_text())
    assert before == 6, before
    with page.expect_navigation():
        card.locator("a:has-text('Replay')").click()
    assert f"{before} emails" in page.inner_text("main"), "it is said how many, before it is done"
    person.look_around("dead-letters-ask")
    follow(page, "a:has-text('No')")
    assert rows(page).count() == before, "nothing was done"
    page.locator("summary:has-text('Drop')").first.click()
    with page.expect_navigation():
        page.locator("button:has-text('Yes, drop it'):visible").click()
    assert rows(page).count() == before - 1
    follow(page, ".card a:has-text('Replay')")
    follow(page, f"button:has-text('Replay {before - 1} emails')")
    assert "back in the queue" in notice(page)

    def replayed():
        return [
            id for name, id in server.ids.items() if name.startswith(("dead", "again"))
            and any(event["type"] == "REPLAYED" for event in server.must("GET", f"/v1/emails/{id}/events", key=server.key)["data"])
        ]

    until("they were tried again", lambda: len(replayed()) >= before - 1)
    assert len(replayed()) == before - 1


def test_recipients(server, person):
    page = person.open(server, HERE + "/recipients")
    text = page.inner_text("main")
    assert "Addresses that keep failing" in text and "bounced+1@posthaste.test" in text
    person.look_around("recipients")
    page.fill("#email", "stop@example.com")
    page.fill("#reason", "asked on the phone")
    follow(page, "button:has-text('Suppress')")
    assert "suppression list" in notice(page)
    line = page.locator("tr", has_text="stop@example.com")
    assert "asked on the phone" in line.inner_text()
    warned = server.must("POST", "/v1/email/send", {"to": "stop@example.com", "subject": "x", "html": "<p>x</p>"}, key=server.key)
    server.wait_for(warned["outboxId"], "FAILED")
    line.locator("summary:has-text('Lift')").click()
    with page.expect_navigation():
        line.locator("button:has-text('Yes, lift it')").click()
    assert "written to again" in notice(page)
    assert page.locator("tr", has_text="stop@example.com").count() == 0


def test_entities(server, person):
    page = person.open(server, HERE + "/entities")
    person.look_around("entities")
    follow(page, "td.subject a:has-text('order-2')")
    events = page.inner_text("main table")
    assert "SENT" in events
    person.look_around("entity")
    follow(page, "a:has-text('Its emails')")
    assert page.url.endswith("emails?entity=order-2") and rows(page).count() > 5


def test_providers(server, person):
    page = person.open(server, "/ui/providers")
    assert "capture" in page.inner_text("main")
    person.look_around("providers")


def test_companies_and_keys(server, person):
    page = person.open(server, "/ui/companies")
    person.look_around("companies")
    page.fill("#name", "Clube do Livro & Cia")
    follow(page, "button:has-text('Add a company')")
    assert notice(page) == "The company was added."
    page.fill("#label", "checkout")
    follow(page, "button:has-text('Make a key')")
    key = page.locator(".notice .copyable code").inner_text()
    assert key.startswith("test_") and len(key) > 40
    person.look_around("key-shown-once")
    person.open(server, "/ui/c/Clube%20do%20Livro%20%26%20Cia/settings")
    assert key not in page.content(), "shown once and never again"
    mail = {"to": "delivered@posthaste.test", "subject": "With the new key", "html": "<p>x</p>"}
    assert server.call("POST", "/v1/email/send", mail, key=key).status == 202
    person.look_around("settings")
    page.click("summary:has-text('Revoke')")
    follow(page, "button:has-text('Yes, revoke it')")
    assert "revoked" in notice(page)
    assert server.call("POST", "/v1/email/send", mail, key=key).status == 401
    page.click("summary:has-text('Switch off')")
    follow(page, "button:has-text('Yes, switch off')")
    assert "switched off" in page.inner_text("main")
    page.click("summary:has-text('Switch on')")
    follow(page, "button:has-text('Yes, switch on')")
    assert "switched off" not in page.inner_text("main")


def test_a_company_without_mail_is_taught(server, person):
    server.must("POST", "/v1/admin/companies", {"name": "fresh"})
    page = person.open(server, "/ui/c/fresh/emails")
    line = page.inner_text(".snippet pre")
    assert "curl" in line and server.url in line and "/v1/email/send" in line
    person.look_around("empty")
    for name in ("", "/dead-letters", "/recipients", "/entities"):
        person.open(server, "/ui/c/fresh" + name)
        person.look_around("empty" + name.replace("/", "-"))


def test_places_that_are_not_there(server, person):
    for path in ("/ui/nothing", "/ui/c/nobody", f"{HERE}/emails/00000000-0000-7000-8000-000000000000"):
        page = person.open(server, path, status=404)
        assert page.locator("h1").count() == 1
    person.look_around("not-there")


def test_keyboard(server, person):
    page = person.open(server, HERE + "/emails")
    focused = "() => document.activeElement.id || document.activeElement.getAttribute('href') || document.activeElement.tagName"
    page.keyboard.press("/")
    until("the search has the focus", lambda: page.evaluate(focused) == "q")
    page.keyboard.type("j?")
    expect(page.locator("#q"), "keys are letters while one types").to_have_value("j?")
    page.keyboard.press("Escape")
    until("nothing has the focus", lambda: page.evaluate(focused) in ("BODY", "main"))
    links = page.eval_on_selector_all("td.subject a:not(.aside)", "links => links.map((link) => link.getAttribute('href'))")
    for key, at in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        until(f"{key} to line {at}", lambda: page.evaluate(focused) == links[at])
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{links[1]}")
    page.keyboard.press("?")
    expect(page.locator("dialog#help")).to_be_visible()
    person.look_around("help")
    page.keyboard.press("Escape")
    expect(page.locator("dialog#help")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("e")
    page.wait_for_url("**/emails")
    person.open(server, f"{HERE}/emails/{server.ids['waiting']}")
    page.click("summary:has-text('Cancel')")
    question = page.locator("button:has-text('Yes, cancel it')")
    expect(question).to_be_visible()
    page.keyboard.press("Escape")
    expect(question, "Escape closes the question").to_be_hidden()


def test_light_and_dark_by_hand(server, person):
    page = person.open(server, HERE)
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("[data-theme-switch]")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark, "the choice is kept"
    page.emulate_media(color_scheme="dark")
    page.click("[data-theme-switch]")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate(ground) == light, "the choice wins over the system"


def test_copying(server, person):
    person.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
    page = person.open(server, f"{HERE}/emails/{server.ids['bounced']}")
    page.locator("button[data-copy]").first.click()
    until("it is copied", lambda: page.evaluate("() => navigator.clipboard.readText()") == server.ids["bounced"])


def test_pages_work_without_script(browser, server):
    from world import Person
    person = Person(browser, java_script_enabled=False)
    page = person.open(server, HERE + "/emails")
    page.select_option("#status", "BOUNCED")
    with page.expect_navigation():
        page.locator(".filters > button:has-text('Filter')").click()
    assert "status=BOUNCED" in page.url and rows(page).count() == 1
    follow(page, "td.subject a")
    assert page.locator(".timeline li").count() >= 4
    person.leave()


def test_login_and_logout(guarded, person):
    guarded.must("POST", "/v1/admin/companies", {"name": "acme"}, **{"X-Admin-Token": TOKEN})
    page = person.open(guarded, "/ui/c/acme/emails?status=FAILED")
    assert "/ui/login" in page.url
    person.look_around("login")
    person.expect("the server responded with a status of 401")
    page.fill("#token", "not the token at all")
    follow(page, "button:has-text('Log in')")
    assert "admin token" in page.inner_text("[role=alert]")
    page.fill("#token", TOKEN)
    page.click("button:has-text('Log in')")
    page.wait_for_url("**/ui/c/acme/emails?status=FAILED")
    cookie = next(one for one in person.context.cookies() if one["name"] == "posthaste_session")
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    person.look_around("logged-in")
    page.set_viewport_size(WIDE)
    page.click("button:has-text('Log out')")
    page.wait_for_url("**/ui/login")
    person.open(guarded, "/ui/c/acme")
    assert "/ui/login" in page.url
    person.context.add_cookies([cookie])
    person.open(guarded, "/ui/c/acme")
    assert "/ui/login" in page.url, "the session is over, not only forgotten by the browser"
    person.expected.clear()
