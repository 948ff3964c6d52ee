#!/usr/bin/env python3
"""An SMTP server that takes mail and keeps a ledger, for the SMTP provider tests and the crash runs.

The first line on stdout is `listening 127.0.0.1:PORT`. The domain of a recipient chooses the behaviour:

    451.test, 450.test, 550.test   that code, as the answer to RCPT
    421.test                       421 as the answer to RCPT, then the connection is closed, as RFC 5321 wants
    554.test, 452-data.test        that code, as the answer to the end of DATA; nothing is recorded
    slow.test                      recorded at once, answered after --slow-secs
    reset.test                     the connection is closed in place of the answer; nothing is recorded
    accept-reset.test              recorded, then the connection is closed in place of the answer
    any other                      recorded, answered 250

A message is recorded before --latency-ms passes and before it is answered. A client that dies or gives up in between
has therefore handed the message over without knowing it: sending it again shows as a second line, never as none.
Line n of a fresh ledger is n.eml in the dump folder, and the file is written before the line.
"""

import argparse
import asyncio
import json
import logging
import os
import pathlib
import re
import signal
import ssl
import sys
import threading
import time
import warnings

from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

RCPT_ANSWERS = {
    "421.test": "421 4.3.2 closing, try later",
    "450.test": "450 4.2.1 mailbox busy, try later",
    "451.test": "451 4.3.0 local error, try later",
    "550.test": "550 5.1.1 no such mailbox",
}
DATA_ANSWERS = {
    "452-data.test": "452 4.3.1 insufficient storage",
    "554.test": "554 5.6.0 message refused",
}
ID_HEADER = re.compile(rb"^x-posthaste-id:((?:.*\r?\n[ \t])*.*)\r?$", re.IGNORECASE | re.MULTILINE)


class Ledger:
    """What was accepted: a JSON line and, if asked for, the bytes, for each message."""

    def __init__(self, ledger_path, dump_dir):
        self.file = open(ledger_path, "a", buffering=1, encoding="utf-8") if ledger_path else None
        self.dump_dir = pathlib.Path(dump_dir) if dump_dir else None
        if self.dump_dir:
            self.dump_dir.mkdir(parents=True, exist_ok=True)
        self.count = 0

    def record(self, connection, envelope, session):
        self.count += 1
        if self.dump_dir:
            (self.dump_dir / f"{self.count}.eml").write_bytes(envelope.content)
        if self.file:
            line = {
                "id": posthaste_id(envelope.content),
                "from": envelope.mail_from,
                "to": envelope.rcpt_tos,
                "at": round(time.time(), 6),
                "connection": connection.number,
                "tls": connection.transport.get_extra_info("ssl_object") is not None,
                "auth": session.auth_data if session.authenticated else None,
                "bytes": len(envelope.content),
            }
            self.file.write(json.dumps(line) + "\n")


def posthaste_id(content):
    header_end = content.find(b"\r\n\r\n")
    found = ID_HEADER.search(content, 0, header_end if header_end >= 0 else len(content))
    return "".join(found[1].decode("ascii", "replace").split()) if found else None


class Connection(SMTP):
    """One client. aiosmtpd speaks the protocol; asyncio has set TCP_NODELAY on the socket."""

    def __init__(self, number, *args, **kwargs):
        self.number = number
        super().__init__(*args, **kwargs)

    async def push(self, status):
        await super().push(status)
        if status[:3] in ("421", b"421") and self.transport:
            self.transport.close()

    async def drop(self):
        """Closes without an answer. The wait ends when the loss of the connection cancels this task."""
        self.transport.abort()
        await asyncio.Future()


class Behaviour:
    """The hooks aiosmtpd calls."""

    def __init__(self, args, ledger):
        self.ledger = ledger
        self.latency_secs = args.latency_ms / 1000
        self.slow_secs = args.slow_secs
        self.secs_per_message = 1 / args.rate if args.rate else 0
        self.next_slot = 0.0

    async def handle_RCPT(self, server, session, envelope, address, rcpt_options):
        answer = RCPT_ANSWERS.get(domain(address))
        if answer:
            return answer
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 OK"

    async def handle_DATA(self, server, session, envelope):
        domains = {domain(address) for address in envelope.rcpt_tos}
        if "reset.test" in domains:
            await server.drop()
        await self.wait_for_slot()
        refusal = next((DATA_ANSWERS[name] for name in sorted(domains) if name in DATA_ANSWERS), None)
        if not refusal:
            self.ledger.record(server, envelope, session)
        if "accept-reset.test" in domains:
            await server.drop()
        if "slow.test" in domains:
            await asyncio.sleep(self.slow_secs)
        if self.latency_secs:
            await asyncio.sleep(self.latency_secs)
        return refusal or f"250 2.0.0 OK {self.ledger.count}"

    async def wait_for_slot(self):
        """Holds --rate over all connections: each message takes the next free slot."""
        if self.secs_per_message:
            now = time.monotonic()
            slot = max(now, self.next_slot)
            self.next_slot = slot + self.secs_per_message
            await asyncio.sleep(slot - now)


def domain(address):
    return address.rpartition("@")[2].lower()


def smtp_options(args, tls_context):
    options = {
        "hostname": "sink.test",
        # The client's patience is under test, not the server's.
        "timeout": max(300, args.slow_secs + 60),
        "auth_require_tls": False,
    }
    if args.starttls:
        options.update(tls_context=tls_context, require_starttls=True)
    if args.auth:
        user, _, password = args.auth.partition(":")
        expected = LoginPassword(user.encode(), password.encode())

        def authenticate(server, session, envelope, mechanism, login):
            # handled=False leaves the 535 to aiosmtpd.
            return AuthResult(success=login == expected, handled=False, auth_data=user)

        options.update(auth_required=True, authenticator=authenticate)
    else:
        options.update(auth_exclude_mechanism=["LOGIN", "PLAIN"])
    return options


async def serve(args):
    tls_context = None
    if args.starttls or args.tls:
        tls_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls_context.load_cert_chain(args.cert, args.key)
    loop = asyncio.get_running_loop()
    behaviour = Behaviour(args, Ledger(args.ledger, args.dump))
    options = smtp_options(args, tls_context)
    connections = 0

    def connect():
        nonlocal connections
        connections += 1
        return Connection(connections, behaviour, loop=loop, **options)

    server = await loop.create_server(
        connect, "127.0.0.1", args.port, backlog=1024, ssl=tls_context if args.tls else None
    )
    print(f"listening 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if args.until_stdin_closes:
        threading.Thread(target=watch_stdin, args=(loop, stop), daemon=True).start()
    await stop.wait()
    server.close()


def watch_stdin(loop, stop):
    """A thread, since an event loop cannot watch a stdin that is a file or /dev/null."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--ledger", metavar="FILE", help="append one JSON line for each accepted message")
    parser.add_argument("--dump", metavar="DIR", help="write each accepted message to DIR/<n>.eml")
    parser.add_argument("--starttls", action="store_true", help="offer STARTTLS and insist on it")
    parser.add_argument("--tls", action="store_true", help="TLS from the first byte")
    parser.add_argument("--cert", metavar="FILE")
    parser.add_argument("--key", metavar="FILE")
    parser.add_argument("--auth", metavar="USER:PASS", help="insist on this login")
    parser.add_argument("--slow-secs", type=float, default=60, metavar="N")
    parser.add_argument("--latency-ms", type=float, default=0, metavar="N", help="wait before each final answer")
    parser.add_argument("--rate", type=float, default=0, metavar="N", help="messages per second, all connections")
    parser.add_argument("--until-stdin-closes", action="store_true", help="exit when stdin reaches its end")
    args = parser.parse_args()
    if args.starttls and args.tls:
        parser.error("--starttls and --tls exclude each other")
    if (args.starttls or args.tls) and not (args.cert and args.key):
        parser.error("--starttls and --tls need --cert and --key")
    return args


if __name__ == "__main__":
    # aiosmtpd warns of each login without TLS, which is what some tests want.
    warnings.filterwarnings("ignore", message="Requiring AUTH while not requiring TLS")
    logging.getLogger("mail.log").setLevel(logging.ERROR)
    sys.exit(asyncio.run(serve(arguments())))
