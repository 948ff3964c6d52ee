"""Times every page and every list on a filled store: measure.py URL, in the folder that fill.py left its notes in."""

import http.client
import json
import pathlib
import re
import sqlite3
import statistics
import subprocess
import sys
import time
import urllib.parse
import datetime

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "browser"))
from stage import ROOT, Posthaste  # noqa: E402

RUNS = 5
SLOW_MS = 200
DEEP_PAGES = 200
STATUSES = ("ACCEPTED", "ENQUEUED", "PROCESSING", "RETRY_SCHEDULED", "SENT", "DELIVERED", "BOUNCED", "COMPLAINED", "FAILED",
            "INVALID", "EXPIRED", "CANCELLED")


class Client:
    """One connection that is kept, as browsers keep theirs."""

    def __init__(self, server, key):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.key = key

    def call(self, path, body=None):
        headers = {"X-API-Key": self.key} if path.startswith("/v1/") else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        began = time.perf_counter()
        self.connection.request("POST" if body is not None else "GET", path, body, headers)
        response = self.connection.getresponse()
        answer = response.read()
        return (time.perf_counter() - began) * 1000, response, answer


def deep(client, path):
    """The path of a page far down a list."""
    here = path
    for _ in range(DEEP_PAGES):
        cursor = json.loads(client.call(here)[2]).get("nextCursor")
        if not cursor:
            break
        here = f"{path}&cursor={urllib.parse.quote(cursor)}"
    return here


def calls(client, sample):
    """What is measured: a name, a path, and a body where it is posted."""
    ago = lambda days: urllib.parse.quote((datetime.datetime.now(datetime.timezone.utc)  # noqa: E731
                                           - datetime.timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ"))
    quoted = {name: urllib.parse.quote(str(value), safe="") for name, value in sample.items()}
    id, to, entity = quoted["id"], quoted["to"], quoted["entity"]
    yield "emails, first page", "/v1/emails", None
    yield "emails, 100 of them", "/v1/emails?limit=100", None
    yield f"emails, page {DEEP_PAGES}", deep(client, "/v1/emails?limit=100"), None
    for status in STATUSES:
        yield f"emails by status {status}", f"/v1/emails?status={status}", None
    for name, query in [
        ("to, few", f"to={to}"), ("to, many", "to=ops%40example.com"), ("to, nobody", "to=nobody%40example.com"),
        ("tag, many", "tag=orders"), ("tag, few", "tag=vip"), ("tag, none", "tag=none"), ("entity", f"entity={entity}"),
        ("entity, huge", "entity=newsletter"), ("externalId", f"externalId={quoted['external']}"),
        ("recipient", f"recipient={quoted['recipient']}"), ("requestId", f"requestId={quoted['request']}"),
        ("providerMessageId", f"providerMessageId={quoted['message']}"), ("code", "code=SMTP_REJECTED_550"),
        ("code of the outage", "code=NETWORK_ERROR"), ("since an hour", f"since={ago(0.04)}"),
        ("until 60 days ago", f"until={ago(60)}"), ("status and since", f"status=FAILED&since={ago(7)}"),
        ("status and until", f"status=BOUNCED&until={ago(60)}"), ("to and status", "to=ops%40example.com&status=FAILED"),
        ("tag and status", "tag=orders&status=COMPLAINED"), ("entity and status", "entity=newsletter&status=INVALID"),
    ]:
        yield f"emails by {name}", f"/v1/emails?{query}", None
    yield "emails of the outage, deep", deep(client, "/v1/emails?limit=100&code=NETWORK_ERROR"), None
    yield "email", f"/v1/emails/{id}", None
    yield "email, events", f"/v1/emails/{id}/events", None
    yield "email, content", f"/v1/emails/{id}/content", None
    yield "dead letters", "/v1/dlq", None
    yield "dead letters, deep", deep(client, "/v1/dlq?limit=100"), None
    yield "dead letters by code", "/v1/dlq?code=SES_TIMEOUT", None
    yield "dead letters by code, none", "/v1/dlq?code=NONE", None
    yield "dead letters by address", f"/v1/dlq?to={to}", None
    yield "dead letters, dry run of all", "/v1/dlq/replay", '{"filter": {}, "dryRun": true}'
    yield "dead letters, dry run by code", "/v1/dlq/replay", '{"filter": {"code": "NETWORK_ERROR"}, "dryRun": true}'
    yield "recipients", "/v1/recipients", None
    yield "recipients, problematic", "/v1/recipients?problematic=true", None
    yield "suppressions", "/v1/suppressions", None
    yield "suppressions, deep", deep(client, "/v1/suppressions?limit=100"), None
    yield "alerts", "/v1/alerts", None
    yield "entities", "/v1/entities", None
    for days in (7, 30, 90):
        yield f"entity summary, {days} days", f"/v1/entities/{entity}/summary?days={days}", None
        yield f"entity summary, huge, {days} days", f"/v1/entities/newsletter/summary?days={days}", None
        yield f"company summary, {days} days", f"/v1/summary?days={days}", None
    yield "metrics", "/metrics", None
    here = "/ui/c/acme"
    pages = [
        "/ui", "/ui/providers", "/ui/companies", here, f"{here}?days=7", f"{here}?days=30", f"{here}?days=90",
        f"{here}/emails", f"{here}/emails?status=ENQUEUED", f"{here}/emails?status=PROCESSING", f"{here}/emails?status=FAILED",
        f"{here}/emails?since=24h", f"{here}/emails?tag=vip", f"{here}/emails?q={to}", f"{here}/emails?q={id}",
        f"{here}/emails?q={entity}", f"{here}/emails?q={quoted['request']}", f"{here}/emails?q={quoted['message']}",
        f"{here}/emails/{id}", f"{here}/emails/{id}?tab=text", f"{here}/emails/{id}?tab=source", f"{here}/emails/{id}/preview",
        f"{here}/dead-letters", f"{here}/dead-letters?code=NETWORK_ERROR", f"{here}/dead-letters/replay?code=NETWORK_ERROR",
        f"{here}/recipients", f"{here}/entities", f"{here}/entities/{entity}", f"{here}/entities/newsletter",
        f"{here}/entities/newsletter?days=90", f"{here}/settings",
    ]
    # Whatever else the side bar leads to.
    links = re.findall(r'href="(/ui[^"#]*)"', client.call(here)[2].decode())
    pages += [link for link in dict.fromkeys(links) if link not in pages and "/assets/" not in link and "/emails" not in link]
    for page in pages:
        yield f"page {page.replace(id, 'ID').replace(here, '…')}", page, None


def measure(client, path, body):
    """Milliseconds of each run; a search that leads on is followed, as a browser does."""
    taken = []
    for _ in range(RUNS):
        millis, response, answer = client.call(path, body)
        if response.status in (302, 303, 307):
            more, response, answer = client.call(response.headers["Location"])
            millis += more
        if response.status >= 400:
            return response.status, None
        taken.append(millis)
    return response.status, taken


def entity_statement(store):
    """The very statement that the store sends, read from its source."""
    source = (ROOT / "crates" / f"store-{store}" / "src" / "tallies.rs").read_text()
    return re.search(r'"(SELECT tallied\.type.*?)",\n', source, re.DOTALL)[1]


def plan(url, sample):
    """How the store finds the summary of the largest entity, and how long that takes."""
    since = int(time.time() // 86400) - 29
    if url.startswith("sqlite:"):
        sql = entity_statement("sqlite")
        database = sqlite3.connect(f"file:{url.removeprefix('sqlite:')}?mode=ro", uri=True)
        values = (sample["acme"], "newsletter", since)
        lines = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        began = time.perf_counter()
        rows = database.execute(sql, values).fetchall()
        lines.append(f"{(time.perf_counter() - began) * 1000:.1f} ms, {len(rows)} rows: {rows}")
        return "\n".join(lines)
    sql = entity_statement("postgres")
    sql = sql.replace("$1", f"'{sample['acme']}'").replace("$2", "'newsletter'").replace("$3", str(since))
    command = ["psql", url, "-XqAtc", f"EXPLAIN (ANALYZE, BUFFERS) {sql}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main():
    url = sys.argv[1]
    sample = json.loads(pathlib.Path("filled.json").read_text())
    server = Posthaste(f'[store]\nurl = "{url}"\n')
    slow = 0
    try:
        client = Client(server, sample["key"])
        print(f"{sample['emails']} emails, {sample['events']} events, {url.split(':')[0]}; milliseconds of {RUNS} calls")
        print(f"{'median':>8} {'worst':>8}")
        for name, path, body in calls(client, sample):
            status, taken = measure(client, path, body)
            if taken is None:
                print(f"{'-':>8} {'-':>8}    {name}: answered {status}")
                continue
            median, worst = statistics.median(taken), max(taken)
            mark = "!!" if median > SLOW_MS else " !" if worst > SLOW_MS else "  "
            slow += worst > SLOW_MS
            print(f"{median:8.1f} {worst:8.1f} {mark} {name}")
    finally:
        server.stop()
    print(f"\n{slow} of them took longer than {SLOW_MS} ms\n\nThe summary of the largest entity, 30 days:\n{plan(url, sample)}")


main()
