"""Hostile emails in every view of the dashboard: no code of theirs runs, nothing leaves, nothing leads elsewhere.

The same emails are shown once on a page without any protection, where each has to fire: so that a trap that never snaps
proves nothing here."""

import asyncio
import pathlib
import re
import shutil
import tempfile
import threading
import time

import hostile
from playwright.async_api import Error, async_playwright
from stage import PATIENCE_SECS, Listener, Posthaste, RudeMailServer, chromium

COMPANY = "acme"
# Pages at a time: what waits for a trap to snap costs nothing.
PAGES = 4
# How long a trap has to snap after everything was loaded.
LINGER_SECS = 0.12
# How long the control waits for it before it shows the email again.
CONTROL_SECS = 3.0
VIEWPORT = {"width": 1280, "height": 900}


class Witness:
    """All that a browser tells of what happens in its pages and in all frames of them."""

    def __init__(self, own_url):
        self.own_url = own_url
        self.lines = []
        self.opened = 0
        self.outside = {}

    def watch(self, context):
        context.on("console", lambda message: self.lines.append(message.text))
        context.on("weberror", lambda error: self.lines.append(str(error.error)))
        context.on("dialog", self.on_dialog)
        context.on("page", self.on_page)
        context.on("request", self.on_request)
        context.on("requestfailed", self.on_failure)

    async def on_dialog(self, dialog):
        self.lines.append(f"{hostile.MARK}dialog {dialog.message}")
        await dialog.dismiss()

    def on_page(self, _):
        self.opened += 1

    def on_request(self, request):
        if not request.url.startswith((self.own_url + "/", "data:", "about:", "blob:")):
            self.outside[request] = request.url

    def on_failure(self, request):
        # What the policy stopped never left the browser.
        if "csp" in (request.failure or "").lower() or "BLOCKED_BY_CSP" in (request.failure or ""):
            self.outside.pop(request, None)

    def scripts(self):
        """Code that ran. Chromium quotes code that it stopped; only code that ran says this and nothing else."""
        return sorted({line for line in self.lines if re.fullmatch(f"{hostile.MARK}[\\w -]+", line)})


class Chromium:
    """A browser that writes down all it does on the network, names it looks up and sockets it opens included. It has a
    profile, as people's browsers do: without one Chromium does nothing ahead of time, and some traps never snap."""

    def __init__(self, playwright):
        self.playwright = playwright
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="posthaste-chromium."))

    async def __aenter__(self):
        self.context = await self.playwright.chromium.launch_persistent_context(
            self.directory / "profile",
            executable_path=chromium(),
            args=[f"--log-net-log={self.directory}/net.json", "--no-proxy-server"],
            ignore_default_args=["--disable-background-networking"],
            viewport=VIEWPORT,
        )
        self.context.set_default_timeout(1000 * PATIENCE_SECS)
        return self

    async def __aexit__(self, *_):
        await self.context.close()
        # Complete once the browser has ended.
        self.network = self.log()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self):
        return (self.directory / "net.json").read_text(errors="replace")


def in_a_loop_of_its_own(coroutine):
    """The other tests' browser runs a loop in this thread."""
    outcome = {}

    def run():
        try:
            outcome["value"] = asyncio.run(coroutine)
        except BaseException as error:  # noqa: BLE001 (handed on)
            outcome["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


async def in_parallel(context, visits):
    """Each visit is an async function of a page; pages are used again."""
    waiting = list(reversed(visits))

    async def worker():
        page = await context.new_page()
        while waiting:
            await waiting.pop()(page)
        await page.close()

    await asyncio.gather(*[worker() for _ in range(PAGES)])


# The dashboard.


def hand_in(server, trap):
    """Every case in both forms; gives what was taken, and which forms were refused at the door."""
    for name in (COMPANY, "other"):
        server.must("POST", "/v1/admin/companies", {"name": name, "from": hostile.SENDER})
    key = make_key(server, COMPANY, "live")
    taken, refused = [], {}
    for case in hostile.CASES:
        words = hostile.short_words(case, trap)
        if case.place == "suppression":
            server.must("POST", "/v1/suppressions", {"email": "no@example.com", "reason": words}, key=key)
        elif case.place == "company":
            server.must("POST", "/v1/admin/companies", {"name": words[:100]})
        elif case.place == "key":
            make_key(server, COMPANY, "test", label=words[:100])
        for form, path, kind, body in (
            ("json", "/v1/email/send", "application/json", hostile.as_json(case, trap)),
            ("raw", "/v1/email/raw", "message/rfc822", hostile.as_eml(case, trap)),
        ):
            answer = server.call("POST", path, body, key=key, kind=kind)
            if answer.status == 202:
                taken.append((case, form, answer.json["outboxId"]))
            else:
                assert answer.status in (400, 422), f"{case.name} {form}: {answer.status} {answer.bytes[:500]!r}"
                refused.setdefault(case.name, []).append(form)
    return key, taken, refused


def make_key(server, company, mode, label=None):
    companies = server.must("GET", "/v1/admin/companies")["data"]
    id = next(one["id"] for one in companies if one["name"] == company)
    body = {"mode": mode, "scopes": ["send", "read", "admin"]} | ({"label": label} if label else {})
    return server.must("POST", f"/v1/admin/companies/{id}/keys", body)["key"]


def settle(server, key, taken):
    """Until every email has come to its end: then all that can be shown of it is there."""
    ends = ("SENT", "DELIVERED", "FAILED", "INVALID", "BOUNCED")
    for _, _, id in taken:
        server.wait_for(id, *ends, key=key)


def assert_policy(response, url):
    policy = response.headers.get("content-security-policy", "")
    assert "default-src 'none'" in policy and "base-uri 'none'" in policy, f"{url}: {policy}"
    assert "script-src 'unsafe" not in policy and "script-src *" not in policy, f"{url}: {policy}"
    assert response.headers.get("x-content-type-options") == "nosniff", url


async def open_page(page, url):
    response = await page.goto(url, wait_until="load")
    assert_policy(response, url)
    return response


async def preview_frame(page):
    """The frame of the preview, checked; None where the email has no html."""
    element = await page.query_selector("iframe")
    if element is None:
        return None
    allowed = await element.get_attribute("sandbox")
    assert allowed is not None, f"{page.url}: a frame without sandbox"
    assert not set(allowed.split()) - {"allow-popups"}, f"{page.url}: the frame may {allowed}"
    assert await element.get_attribute("srcdoc") is None, f"{page.url}: srcdoc inherits the page's policy"
    frame = await element.content_frame()
    origin = await asyncio.wait_for(frame.evaluate("() => self.origin"), PATIENCE_SECS)
    assert origin == "null", f"{page.url}: the preview has the origin {origin}"
    return frame


async def fall_for_it(target, case):
    """Clicks what the email wants clicked."""
    if case.click:
        try:
            await target.locator(case.click).first.click(force=True, no_wait_after=True)
        except Error:
            pass  # It may have vanished; then it cannot be clicked by a person either.


def visit_to(server, case, id, is_whole):
    """All views of one email; of its second form only the one that shows its html."""
    start = f"{server.url}/ui/c/{COMPANY}/emails/{id}"

    async def look(page):
        await open_page(page, start)
        await preview_frame(page)
        await asyncio.sleep(LINGER_SECS)
        assert page.url == start, f"{case.name} led to {page.url}"
        if not is_whole:
            return
        tabs = await page.eval_on_selector_all("nav.tabs a:not([download])", "links => links.map((link) => link.href)")
        assert len(tabs) >= 3, f"{start}: {tabs}"
        # Html is in the source alone; other texts may turn up anywhere.
        for tab in tabs[1:] if case.place else [tab for tab in tabs if "source" in tab]:
            await open_page(page, tab)
            assert page.url == tab, f"{case.name} led to {page.url}"
        mailbox = f"{server.url}/ui/c/{COMPANY}/mailbox?id={id}"
        await open_page(page, mailbox)
        await preview_frame(page)
        await asyncio.sleep(LINGER_SECS)
        assert page.url == mailbox, f"{case.name} led to {page.url}"
        preview = await page.request.get(f"{start}/preview")
        if preview.status == 200:
            await look_alone(page, f"{start}/preview", case)
        download = await page.request.get(f"{start}/eml")
        assert download.headers["content-disposition"].startswith("attachment;"), f"{case.name}: {download.headers}"
        assert download.headers["x-content-type-options"] == "nosniff"

    return look


def visit_that_falls_for_it(server, case, id):
    start = f"{server.url}/ui/c/{COMPANY}/emails/{id}"

    async def look(page):
        await open_page(page, start)
        await fall_for_it(await preview_frame(page), case)
        await asyncio.sleep(2 * LINGER_SECS)
        assert page.url == start, f"{case.name} led to {page.url}"

    return look


async def look_alone(page, url, case):
    """The preview in a tab of its own, as somebody opens it who wants to see more of it."""
    response = await page.goto(url, wait_until="load")
    policy = response.headers["content-security-policy"]
    assert "sandbox" in policy and "default-src 'none'" in policy, policy
    assert "allow-scripts" not in policy and "allow-same-origin" not in policy, policy
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    await asyncio.sleep(LINGER_SECS)
    assert await asyncio.wait_for(page.evaluate("() => self.origin"), PATIENCE_SECS) == "null"
    assert page.url == url, f"{case.name} led to {page.url}"


def visits_of_lists(server):
    """Every other page of the dashboard, found by following its own links: lists show what emails call themselves."""
    seen = set()
    places = {"/ui": 0}

    async def look(page):
        while waiting := [path for path in places if path not in seen]:
            path = waiting[0]
            seen.add(path)
            await open_page(page, server.url + path)
            await asyncio.sleep(LINGER_SECS)
            assert page.url.startswith(server.url + "/ui"), f"{path} led to {page.url}"
            depth = places[path]
            links = await page.eval_on_selector_all(
                "a[href^='/ui']:not([download])", "links => links.map((link) => link.getAttribute('href'))"
            )
            for link in links:
                link = link.split("#")[0]
                is_email = re.search(r"/emails/[0-9a-f-]{36}", link)
                if depth < 6 and not is_email and len(places) < 80:
                    places.setdefault(link, depth + 1)
        assert len(seen) > 12, f"hardly a page was found: {seen}"

    return look


async def show_in_dashboard(server, taken, listener):
    witness = Witness(server.url)
    async with async_playwright() as playwright, Chromium(playwright) as browser:
        witness.watch(browser.context)
        await in_parallel(browser.context, [visits_of_lists(server)])
        # Hundreds of pages that watch a server in which nothing happens would only cost time; the lists were live.
        page = await browser.context.new_page()
        await page.goto(f"{server.url}/ui")
        await page.evaluate("() => localStorage.setItem('posthaste-live', 'paused')")
        await page.close()
        visits, whole = [], set()
        for case, _, id in taken:
            visits.append(visit_to(server, case, id, case.name not in whole))
            whole.add(case.name)
        await in_parallel(browser.context, visits)
        await asyncio.sleep(0.5)
        assert listener.connections == 0, f"without a click somebody connected to the listener: {listener.asked}"
        # A click of a person is another matter: Chromium connects to where a link leads before it asks whether it may go
        # there. It must not go, and must not ask for anything.
        visits = [visit_that_falls_for_it(server, case, id) for case, _, id in taken if case.click]
        await in_parallel(browser.context, visits)
        await asyncio.sleep(0.5)
        assert witness.opened == 3 * PAGES + 1, f"{witness.opened - 3 * PAGES - 1} windows were opened"
    return witness, browser.network


# The control: a page that shows emails as careless programs do.


async def show_without_protection(listener):
    witness = Witness(listener.url)
    async with async_playwright() as playwright, Chromium(playwright) as browser:
        witness.watch(browser.context)

        def is_told(case):
            return listener.calls_of(case.name) or f"{hostile.MARK}{case.name}" in witness.scripts()

        def has_fired(case):
            # Nobody answers to a name that does not exist: the browser's log alone tells that it was looked up.
            return is_told(case) or ("%HOST%" in case.html and f"{case.name}.evil.test" in browser.log())

        async def show(page, case):
            try:
                await page.goto(f"{listener.url}/page/{case.name}", wait_until="load")
            except Error:
                pass  # It led elsewhere before it was loaded.
            await asyncio.sleep(LINGER_SECS)
            await fall_for_it(page, case)
            deadline = time.monotonic() + CONTROL_SECS
            while not has_fired(case) and not case.inert and time.monotonic() < deadline:
                await asyncio.sleep(0.05)

        def visit(case):
            async def look(page):
                deadline = time.monotonic() + PATIENCE_SECS
                await show(page, case)
                # A click that came too early does nothing, and the log is written in lumps: showing it again fills it.
                while not has_fired(case) and not case.inert and time.monotonic() < deadline:
                    await show(page, case)
                try:
                    await page.goto("about:blank")
                except Error:
                    pass  # It is led elsewhere right now.
            return look

        await in_parallel(browser.context, [visit(case) for case in hostile.CASES])
        await asyncio.sleep(1)
    fired = {case.name for case in hostile.CASES if is_told(case)}
    return fired | set(re.findall(r"([\w-]+)\.evil\.test", browser.network))


def test_every_case_fires_where_nothing_protects():
    hostile.check()
    listener = Listener()
    for case in hostile.CASES:
        listener.pages[f"/page/{case.name}"] = case.bait(listener.url)
    fired = in_a_loop_of_its_own(show_without_protection(listener))
    listener.shutdown()
    expected = {case.name for case in hostile.CASES if not case.inert}
    assert not expected - fired, f"these prove nothing: {sorted(expected - fired)}"
    surprising = {case.name for case in hostile.CASES if case.inert} & fired
    assert not surprising, f"called inert, and fired: {sorted(surprising)}"
    print(f"{len(fired)} of {len(hostile.CASES)} cases fire without protection")


def test_nothing_fires_in_the_dashboard():
    listener = Listener()
    error = next(case for case in hostile.CASES if case.place == "error")
    rude = RudeMailServer(hostile.short_words(error, listener.url))
    server = Posthaste(
        f'[providers.relay]\nkind = "smtp"\nurl = "smtp://127.0.0.1:{rude.port}?tls=none"\n'
        '[routes]\ndefault = ["capture"]\n'
    )
    try:
        key, taken, refused = hand_in(server, listener.url)
        settle(server, key, taken)
        names = {case.name for case, _, _ in taken}
        missing = {case.name for case in hostile.CASES} - names
        assert not missing, f"never shown, since refused in every form: {sorted(missing)}"
        forms = [form for _, form, _ in taken]
        assert forms.count("json") >= 30 and forms.count("raw") >= 60, (forms.count("json"), forms.count("raw"))
        witness, network = in_a_loop_of_its_own(show_in_dashboard(server, taken, listener))
    finally:
        server.stop()
        rude.shutdown()
        listener.shutdown()
    assert not witness.scripts(), witness.scripts()
    assert not witness.outside, sorted(set(witness.outside.values()))
    assert not listener.asked, f"somebody called home: {listener.asked}"
    looked_up = sorted(set(re.findall(r"[\w-]+\.evil\.test", network)))
    assert not looked_up, f"names were looked up or connected to: {looked_up}"
    assert server.url.removeprefix("http://") in network, "the browser kept no log of the network"
    print(f"{len(names)} cases: {forms.count('json')} by JSON, {forms.count('raw')} raw; refused at the door: "
          f"{sum(map(len, refused.values()))}")
