"""A small world to look at: mail in every state, and a person at a browser who notices what is wrong."""

import look
from playwright.sync_api import Error
from stage import OUTPUT, PATIENCE_SECS, until

TOKEN = "a-token-of-thirty-two-characters"
COMPANY = "dev"
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 360, "height": 740}

HTML = """<html><body style="font-family: Georgia, serif; background: #f6f1e7; padding: 32px">
<div style="max-width: 480px; margin: auto; background: #fff; padding: 28px; border-radius: 8px">
<h1 style="color: #8a3b12">Hello {name}</h1><p>Thank you for order {number}.</p></div></body></html>"""
SUBJECTS = [
    "Your order is on its way",
    "Reset your password",
    "Receipt for your payment of R$ 129,90",
    "Your invitation to the reading circle on Thursday evening, with everything you need to know about it",
    "Averyveryverylongwordwithoutanyblank" * 4,
]
PEOPLE = ["ana", "bruno", "carla", "diego", "eva", "grace", "hugo"]
# More than two pages of the list.
EMAILS = 70


def an_email(number, **more):
    person = PEOPLE[number % len(PEOPLE)]
    return {
        "to": f"{person}.{number}@example.com",
        "subject": SUBJECTS[number % len(SUBJECTS)],
        "html": HTML.format(name=person, number=number),
        "text": f"Hello {person},\n\nthank you for order {number}.\n",
        "entity": {"id": f"order-{number % 6}", "name": f"Order {number % 6}"},
        "tags": ["orders"] if number % 3 == 0 else [],
    } | more


def fill(server):
    """Mail in every state a person can meet. `server.ids` has one of each, by name."""
    server.ids = {}

    def put(name, *statuses, **more):
        id = server.send(an_email(len(server.ids), **more))
        server.wait_for(id, *statuses)
        server.ids[name] = id

    sent = [server.send(an_email(number)) for number in range(EMAILS)]
    put("delivered", "DELIVERED", to="delivered@posthaste.test", cc=["office@example.com"])
    put("bounced", "BOUNCED", to="bounced+1@posthaste.test")
    put("complained", "COMPLAINED", to="complained+1@posthaste.test")
    for number in range(3):
        put(f"dead-{number}", "FAILED", to=f"rejected+{number}@posthaste.test")
    for number in range(3):
        put(f"again-{number}", "FAILED", to="rejected+again@posthaste.test")
    put("retrying", "RETRY_SCHEDULED", to="throttled+1@posthaste.test", retryPolicy="patient")
    put("waiting", "ENQUEUED", to="later@example.com", delay=36_000_000)
    put("to-cancel", "ENQUEUED", to="never@example.com", delay=36_000_000)
    attachment = {"filename": "relatório.pdf", "contentType": "application/pdf", "content": "JVBERi0="}
    put("attached", "SENT", attachments=[attachment], externalId="ext-1",
        recipient={"externalId": "person-1", "email": "ana.x@example.com"}, to="ana.x@example.com")
    for id in sent:
        server.wait_for(id, "SENT")
    problems = "/v1/recipients?problematic=true"
    until("an address is known to fail", lambda: server.must("GET", problems, key=server.key)["data"])


class Person:
    """A person at a browser: opens pages, keeps an eye on the console and on the network."""

    def __init__(self, browser, **more):
        self.context = browser.new_context(viewport=WIDE, color_scheme="light", reduced_motion="reduce", **more)
        self.context.set_default_timeout(1000 * PATIENCE_SECS)
        self.page = self.context.new_page()
        self.faults = []
        self.host = None
        self.expected = []
        self.page.on("console", self.on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"{self.page.url}: {error}"))
        self.page.on("dialog", lambda dialog: (self.faults.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        self.context.on("request", self.on_request)

    def on_console(self, message):
        is_bad = message.type in ("error", "warning")
        if is_bad and not any(words in message.text for words in self.expected):
            self.faults.append(f"{self.page.url}: {message.type}: {message.text}")

    def on_request(self, request):
        if self.host and not request.url.startswith((self.host + "/", "data:", "blob:", "about:")):
            self.faults.append(f"{self.page.url} asked for {request.url}")

    def expect(self, words):
        """An error that belongs to what is tested, such as a page that is not there."""
        self.expected.append(words)

    def open(self, server, path, status=200):
        self.host = server.url
        if status >= 400:
            self.expect(f"the server responded with a status of {status}")
        response = self.page.goto(server.url + path, wait_until="load")
        assert response.status == status, f"{path}: {response.status}"
        return self.page

    def look_around(self, name):
        """The page in all its forms, with pictures of them."""
        page, complaints = self.page, []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for size in (WIDE, NARROW):
                page.set_viewport_size(size)
                form = f"{scheme}-{size['width']}"
                until("there is a picture", lambda: self.take_picture(OUTPUT / f"{name}-{form}.png"))
                complaints += [f"{name} {form}: {complaint}" for complaint in look.everything(page)]
        page.emulate_media(color_scheme="light")
        complaints += [f"{name} narrow: {complaint}" for complaint in look.focus(page)]
        page.set_viewport_size(WIDE)
        complaints += [f"{name} wide: {complaint}" for complaint in look.focus(page)]
        self.faults += complaints

    def take_picture(self, path):
        try:
            return self.page.screenshot(path=path, full_page=True)
        except Error as error:
            # Chromium gives up when one of its processes stands still.
            if "Unable to capture screenshot" not in error.message:
                raise
            return None

    def leave(self):
        self.context.close()
        assert not self.faults, "\n".join(dict.fromkeys(self.faults))
