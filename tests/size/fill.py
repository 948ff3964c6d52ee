"""Fills a store with a history: fill.py URL EMAILS EVENTS. Written straight into the tables, since handing in a million
emails would take an hour; what it writes is what the program writes, counts and tallies included.

The history: eight companies of very different size, 80 days, an outage three days ago that left thousands of dead letters,
entities that are orders (many, small) and one that is a newsletter (huge), addresses that are written to once and one that
is written to all the time. The same numbers give the same history, seen from today."""

import datetime
import itertools
import json
import pathlib
import sqlite3
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "browser"))
from stage import Posthaste  # noqa: E402

# Names, and their share of a thousand emails.
COMPANIES = [("acme", 600), ("clube", 200), ("loja", 100), ("banco", 50), ("escola", 30), ("radio", 15), ("new", 4),
             ("quiet", 1)]
DAY = 86_400_000
DAYS = 80
CONTENT_DAYS = 30
DEAD_DAYS = 7
TALLIED = ("SENT", "DELIVERED", "DELIVERY_DELAYED", "BOUNCED", "SOFT_BOUNCED", "COMPLAINED", "OPENED", "CLICKED", "FAILED",
           "INVALID", "EXPIRED", "CANCELLED")
TROUBLED = ("RETRY_SCHEDULED", "FAILED", "INVALID", "EXPIRED", "CANCELLED", "BOUNCED", "COMPLAINED")
FAILURES = [
    ("SMTP_REJECTED_550", "PERMANENT_ERROR", "550 5.1.1 no such mailbox"),
    ("SES_MESSAGE_REJECTED", "PERMANENT_ERROR", "Email address is not verified"),
    ("RECIPIENT_SUPPRESSED", "VALIDATION_ERROR", "the address is suppressed"),
    ("SES_TIMEOUT", "TIMEOUT_ERROR", "no answer within 30 s"),
    ("SMTP_TRANSIENT_451", "TRANSIENT_ERROR", "451 4.3.0 local error"),
    ("SES_MAX_SEND_RATE_EXCEEDED", "QUOTA_ERROR", "Maximum sending rate exceeded"),
]
OUTAGE = ("NETWORK_ERROR", "TRANSIENT_ERROR", "connection refused")
SUBJECTS = ["Your order is on its way", "Reset your password", "Receipt for your payment", "Welcome!", "Your invitation"]
BATCH = 10_000

OUTBOX = ["id", "company_id", "status", "version", "fence", "priority", "expires_at", "attempts", "mode", "to_email",
          "subject", "created_at", "updated_at", "scheduled_at", "sent_at", "delivered_at", "failed_at", "dead_at", "ttl_ms",
          "duration_ms", "provider", "provider_message_id", "last_failure_code", "last_failure_category",
          "last_failure_reason", "last_failure_at", "request_id", "external_id", "entity_id", "recipient_id",
          "recipient_external_id", "size_bytes", "content_ref", "route", "detail"]


def mix(number, salt):
    """A number that looks like chance and is always the same."""
    number = (number * 0x9E3779B97F4A7C15 + salt * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    number ^= number >> 29
    number = (number * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    return number ^ (number >> 32)


def uuid7(millis, number):
    text = f"{millis:012x}7{number & 0xFFF:03x}{0x8000 | (number >> 12) & 0x3FFF:04x}{number:012x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def content_block():
    """As store::content_codec writes it; lz4 allows to compress nothing."""
    html = ("<html><body><h1>Hello</h1><p>Thank you for your order.</p></body></html>" * 4).encode()
    text = b"Hello, thank you for your order.\n"
    sized = lambda part: len(part).to_bytes(4, "little") + part  # noqa: E731
    plain = b"\0" + sized(html) + b"\1" + sized(text)
    rest, length = len(plain) - 15, b""
    while rest >= 255:
        length, rest = length + b"\xff", rest - 255
    return b"\1" + len(plain).to_bytes(4, "little") + b"\xf0" + length + bytes([rest]) + plain


class Email:
    """Email `number` of the history, with what became of it."""

    def __init__(self, number, count, now, companies):
        span = DAYS * DAY
        self.number = number
        self.created = now - 120_000 - span + span * number // count
        age = now - self.created
        share = mix(number, 1) % 1000
        for name, size in COMPANIES:
            if share < size:
                break
            share -= size
        self.company = companies[name]
        self.id = uuid7(self.created, number)
        person = mix(number, 2) % max(count // 3, 1)
        self.person = person
        self.to = "ops@example.com" if mix(number, 3) % 100 == 0 else f"person-{person}@mail{person % 50}.example"
        self.is_known = person % 3 == 0
        about = mix(number, 4) % 10
        self.entity = "newsletter" if about < 3 else f"order-{number // 3}" if about < 7 else None
        self.tags = [["orders"], ["welcome"], ["orders", "receipt"], [], []][mix(number, 5) % 5]
        if mix(number, 6) % 1000 == 0:
            self.tags = self.tags + ["vip"]
        self.failure = None
        chance = mix(number, 7) % 10_000
        is_outage = name == "acme" and 3 * DAY <= age < 6 * DAY and chance % 10 < 8
        if is_outage:
            self.status, self.failure = "FAILED", OUTAGE
        elif age < DAY // 4 and chance < 200:
            self.status = "ENQUEUED"
        elif age < DAY // 4 and chance < 300:
            self.status, self.failure = "RETRY_SCHEDULED", FAILURES[4]
        else:
            for self.status, part in (("DELIVERED", 9200), ("SENT", 380), ("BOUNCED", 180), ("FAILED", 150),
                                      ("CANCELLED", 40), ("EXPIRED", 20), ("INVALID", 26), ("COMPLAINED", 4)):
                if chance < part:
                    break
                chance -= part
            if self.status in ("FAILED", "INVALID"):
                self.failure = FAILURES[mix(number, 8) % len(FAILURES)]
        self.is_waiting = self.status in ("ENQUEUED", "RETRY_SCHEDULED")
        self.is_sent = self.status in ("SENT", "DELIVERED", "BOUNCED", "COMPLAINED")
        self.has_content = age < CONTENT_DAYS * DAY
        self.is_dead = self.status == "FAILED" and age < (DEAD_DAYS - 0.5) * DAY
        # What waits is due tomorrow, so that the workers of the server leave it alone.
        self.due = now + DAY // 2 + number % DAY if self.is_waiting else None

    def story(self, length):
        """Its events; as many as are wanted, where people open what they got."""
        start = self.created
        lines = [("ENQUEUED", start)]
        if self.status == "INVALID":
            lines = [("INTAKING", start), ("INVALID", start + 40)]
        elif self.status in ("EXPIRED", "CANCELLED"):
            lines.append((self.status, start + 60_000))
        elif self.failure:
            end = "RETRY_SCHEDULED" if self.is_waiting else "FAILED"
            lines += [("RECEIVED", start + 20), ("SENT_ATTEMPT", start + 25), (end, start + 900)]
        elif self.is_sent:
            lines += [("RECEIVED", start + 20), ("SENT_ATTEMPT", start + 25), ("SENT", start + 180)]
            if self.status != "SENT":
                lines.append(("BOUNCED" if self.status == "BOUNCED" else "DELIVERED", start + 4_000))
            if self.status == "COMPLAINED":
                lines.append(("COMPLAINED", start + 60_000))
        if self.status == "DELIVERED":
            lines += [("OPENED", start + 600_000 + 1_000 * nth) for nth in range(min(length - len(lines), 12))]
        return lines


class Sqlite:
    """Rows as tuples into SQLite."""

    def __init__(self, url):
        self.database = sqlite3.connect(url.removeprefix("sqlite:"), isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -400000", "temp_store = MEMORY"):
            self.database.execute(f"PRAGMA {setting}").fetchall()
        self.database.execute("BEGIN")

    is_sqlite = True

    def time(self, millis):
        return millis

    def bytes(self, value):
        return value

    def drop_indexes(self):
        found = "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        self.indexes = self.database.execute(found).fetchall()
        for name, _ in self.indexes:
            self.database.execute(f"DROP INDEX {name}")

    def write(self, table, columns, rows):
        marks = ", ".join("?" * len(columns))
        self.database.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def run(self, sql):
        self.database.execute(sql)

    def finish(self):
        for _, sql in self.indexes:
            self.database.execute(sql)
        self.database.execute("COMMIT")
        self.database.execute("PRAGMA journal_mode = WAL").fetchall()
        self.database.close()


class Postgres:
    """Rows as text into one COPY for each table, all under way at the same time."""

    def __init__(self, url):
        self.url = url
        self.copies = {}
        clock = (f"{h:02}:{m:02}:{s:02}" for h in range(24) for m in range(60) for s in range(60))
        self.clock = list(clock)
        self.dates = {}

    is_sqlite = False

    def time(self, millis):
        if millis is None:
            return None
        day, rest = divmod(millis, DAY)
        if day not in self.dates:
            self.dates[day] = (datetime.date(1970, 1, 1) + datetime.timedelta(days=day)).isoformat()
        return f"{self.dates[day]} {self.clock[rest // 1000]}.{rest % 1000:03}+00"

    def bytes(self, value):
        return "\\\\x" + value.hex()

    def ask(self, sql):
        command = ["psql", self.url, "-v", "ON_ERROR_STOP=1", "-XqAtc", sql]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def run(self, sql):
        self.ask(f"SET work_mem = '256MB'; SET maintenance_work_mem = '512MB'; {sql}")

    def drop_indexes(self):
        self.ask("ALTER TABLE events DISABLE TRIGGER note_tally")
        found = self.ask("SELECT i.indexname, i.indexdef FROM pg_indexes i WHERE schemaname = current_schema AND NOT EXISTS "
                         "(SELECT 1 FROM pg_constraint c WHERE c.conname = i.indexname)")
        self.indexes = [line.split("|", 1) for line in found.splitlines()]
        for name, _ in self.indexes:
            self.ask(f"DROP INDEX {name}")

    def write(self, table, columns, rows):
        if table not in self.copies:
            sql = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
            command = ["psql", self.url, "-v", "ON_ERROR_STOP=1", "-Xqc", sql]
            self.copies[table] = subprocess.Popen(command, stdin=subprocess.PIPE)
        lines = ["\t".join([v if type(v) is str else "\\N" if v is None else str(v) for v in row]) for row in rows]
        self.copies[table].stdin.write(("\n".join(lines) + "\n").encode())

    def end_copies(self):
        for copy in self.copies.values():
            copy.stdin.close()
            assert copy.wait() == 0, "COPY failed"
        self.copies = {}

    def finish(self):
        for _, sql in self.indexes:
            self.run(sql)
        self.ask("ALTER TABLE events ENABLE TRIGGER note_tally")
        self.ask("VACUUM (ANALYZE)")


def emails(sink, count, event_count, now, companies):
    """All that follows from emails themselves, in one pass."""
    tables = {}

    def put(table, columns, row):
        tables.setdefault(table, (columns, []))[1].append(row)

    block, written, time_of = sink.bytes(content_block()), 0, sink.time
    key = "email_seq" if sink.is_sqlite else "email_id"
    sent_detail = json.dumps({"durationMs": 155, "attempt": 1, "providerMessageId": "x"})
    outbox = OUTBOX + (["seq", "due_at"] if sink.is_sqlite else ["trouble"])
    event_columns = [key, "type", "created_at", "metadata"]
    for number in range(count):
        email = Email(number, count, now, companies)
        at, last = email.created, (email.created + 60_000)
        is_sent, failure = email.is_sent, email.failure or (None, None, None)
        name = email.number + 1 if sink.is_sqlite else email.id
        put("email_outbox", outbox, (
            email.id, email.company, email.status, 4, 1, 5, now + 2 * DAY if email.is_waiting else at + DAY,
            0 if email.status in ("ENQUEUED", "INVALID") else 1, "live", email.to, f"{SUBJECTS[number % 5]} {number}",
            time_of(at), time_of(last), None, time_of(at + 180 if is_sent else None),
            time_of(at + 4_000 if email.status in ("DELIVERED", "COMPLAINED") else None),
            time_of(last if email.status == "FAILED" else None), time_of(last if email.is_dead else None), DAY,
            155 if is_sent else None, "capture" if is_sent else None, f"msg-{number:010x}" if is_sent else None,
            *failure, time_of(last if email.failure else None), f"req-{number:010x}",
            f"ext-{number}" if number % 2 else None, email.entity,
            uuid7(1_700_000_000_000, email.person) if email.is_known else None,
            f"user-{email.person}" if email.is_known else None, 700, "db:" if email.has_content else "", "capture",
            json.dumps({"tags": email.tags}) if email.tags else "{}",
            *((number + 1, email.due) if sink.is_sqlite else (email.status if email.status in TROUBLED else None,)),
        ))
        for tag in email.tags:
            put("email_tags", ["company_id", "tag", key], (email.company, tag, name))
        if email.has_content:
            put("contents", [key, "body"], (name, block))
        if not sink.is_sqlite and is_sent:
            put("provider_messages", ["message_id", "email_id"], (f"msg-{number:010x}", email.id))
        if not sink.is_sqlite and email.is_waiting:
            put("email_queue", ["email_id", "company_id", "due_at", "expires_at", "size_bytes", "priority", "retrying", "route"],
                (email.id, email.company, email.due, now + 2 * DAY, 700, 5, email.status == "RETRY_SCHEDULED", "capture"))
        if email.status == "FAILED" and email.is_dead:
            put("address_failures", ["company_id", "address", "at", "email_id"], (email.company, email.to, last, email.id))
        story = email.story(event_count * (number + 1) // count - written)
        written += len(story)
        for kind, moment in story:
            put("events", event_columns, (name, kind, time_of(moment), sent_detail if kind == "SENT" else None))
        if number % BATCH == BATCH - 1 or number == count - 1:
            for table, (columns, rows) in tables.items():
                sink.write(table, columns, rows)
                rows.clear()
    print(f"{count} emails, {written} events")


def people(sink, count, now, companies):
    """Recipients, suppressions, addresses that keep failing and alerts of the largest company."""
    acme, ago = companies["acme"], lambda number: sink.time(now - number * 60_000)
    known = range(0, max(count // 3, 1), 3)
    sink.write("recipients", ["id", "company_id", "external_id", "email", "created_at", "updated_at"], [
        (uuid7(1_700_000_000_000, person), acme, f"user-{person}", f"person-{person}@mail{person % 50}.example", ago(5), ago(5))
        for person in known
    ])
    some = max(count // 100, 10)
    sink.write("suppressions", ["company_id", "address", "reason", "source", "created_at"], [
        (acme, f"person-{number}@mail{number % 50}.example", "550 5.1.1 no such mailbox", "BOUNCE", ago(some - number))
        for number in range(some)
    ])
    sink.write("problems", ["company_id", "address", "failures", "since", "last_failure_at", "last_failure_code"], [
        (acme, f"person-{number}@mail{number % 50}.example", 3 + number % 5, ago(some), ago(some - number), "SMTP_REJECTED_550")
        for number in range(0, some, 2)
    ])
    window = "window" if sink.is_sqlite else "time_window"
    sink.write("alerts", ["id", "company_id", "kind", "mode", "subject", window, "email_id", "address", "reason", "created_at",
                          "shown"], [
        (uuid7(now - (some - number) * 60_000, number), acme, "admin-email-bounce", "live", f"person-{number}", number,
         uuid7(now, number), f"person-{number}@mail{number % 50}.example", "550 5.1.1 no such mailbox",
         ago(some - number), "nobody to tell")
        for number in range(some)
    ])


def tallies(sink):
    """Added up from the events, as they would have been one by one."""
    if sink.is_sqlite:
        joined = "events e JOIN email_outbox o ON o.seq = e.email_seq"
        day, address, none = "e.created_at / 86400000", "o.to_email", ""
    else:
        joined = "events e JOIN email_outbox o ON o.id = e.email_id"
        day, address, none = "floor(extract(epoch FROM e.created_at) / 86400)::bigint", "lower(o.to_email)", ", shard"
    wanted = f"e.type IN ({', '.join(repr(kind) for kind in TALLIED)})"
    sink.run(f"INSERT INTO day_tallies (company_id, mode, day, type, total) SELECT o.company_id, o.mode, {day}, e.type, "
             f"count(*) FROM {joined} WHERE {wanted} GROUP BY 1, 2, 3, 4")
    sink.run(f"INSERT INTO entity_tallies (company_id, entity_id, day, type, total) SELECT o.company_id, o.entity_id, {day}, "
             f"e.type, count(*) FROM {joined} WHERE {wanted} AND o.entity_id IS NOT NULL GROUP BY 1, 2, 3, 4")
    sink.run(f"INSERT INTO entity_recipients (company_id, entity_id, type, address, last_day) SELECT o.company_id, o.entity_id, "
             f"e.type, {address}, max({day}) FROM {joined} WHERE {wanted} AND o.entity_id IS NOT NULL GROUP BY 1, 2, 3, 4")
    sink.run(f"DELETE FROM status_counts")
    sink.run(f"INSERT INTO status_counts (status{none}, emails) SELECT status{none and ', 0'}, count(*) FROM email_outbox "
             "GROUP BY status")


def main():
    url, count, event_count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    done = pathlib.Path("filled.json")
    if done.exists():
        print(f"found a store filled before: {done.read_text().strip()}")
        return
    server = Posthaste(f'[store]\nurl = "{url}"\n')
    try:
        companies = {name: server.must("POST", "/v1/admin/companies", {"name": name})["id"] for name, _ in COMPANIES}
        key = {"mode": "live", "scopes": ["send", "read", "admin"]}
        key = server.must("POST", f"/v1/admin/companies/{companies['acme']}/keys", key)["key"]
    finally:
        server.stop()
    began, now = time.monotonic(), int(time.time() * 1000)
    sink = Sqlite(url) if url.startswith("sqlite:") else Postgres(url)
    sink.drop_indexes()
    emails(sink, count, event_count, now, companies)
    people(sink, count, now, companies)
    if not sink.is_sqlite:
        sink.end_copies()
    print(f"written after {time.monotonic() - began:.0f} s; counting and indexing", flush=True)
    tallies(sink)
    sink.finish()
    print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
    samples = sample(count, now, companies)
    done.write_text(json.dumps({"emails": count, "events": event_count, "key": key, "acme": companies["acme"], **samples}))


def sample(count, now, companies):
    """One email of the largest company from the middle, to look for by all its names."""
    for number in itertools.count(count - count // 10):
        email = Email(number, count, now, companies)
        if email.company == companies["acme"] and email.is_known and number % 2 and email.status == "DELIVERED":
            return {"id": email.id, "to": email.to, "external": f"ext-{number}", "recipient": f"user-{email.person}",
                    "entity": email.entity or "newsletter", "request": f"req-{number:010x}", "message": f"msg-{number:010x}"}


main()
