"""What the browser tests run against: the real binary with a folder and a port of its own, and servers that listen for
what must not come."""

import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
BINARY = pathlib.Path(os.environ.get("POSTHASTE_BIN", TARGET / "debug" / "posthaste")).resolve()
# Screenshots and logs: what a build leaves behind, never part of the repository.
OUTPUT = TARGET / "browser"
# How long anything that has to come may take: a server that stands still for three seconds while it looks for changes
# looks again only thirty seconds later.
PATIENCE_SECS = 60


def chromium():
    wanted = os.environ.get("POSTHASTE_TEST_CHROMIUM")
    found = wanted or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "no chromium: tests/browser/run.sh installs it"
    return found


def until(what, look):
    """Looks again and again until there is something to see."""
    deadline = time.monotonic() + PATIENCE_SECS
    while time.monotonic() < deadline:
        seen = look()
        if seen:
            return seen
        time.sleep(0.05)
    raise AssertionError(f"waited in vain: {what}")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.bytes = response.read()

    @property
    def json(self):
        return json.loads(self.bytes)


class Posthaste:
    """A server, from its start to its end. `settings` is its posthaste.toml; without any it is `posthaste dev`."""

    def __init__(self, settings=None):
        assert BINARY.exists(), f"no binary at {BINARY}: cargo build -p posthaste"
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="posthaste-browser."))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        if settings is None:
            command = ["dev", "--listen", f"127.0.0.1:{self.port}", "--data-dir", str(self.directory)]
        else:
            file = self.directory / "posthaste.toml"
            file.write_text(f'listen = "127.0.0.1:{self.port}"\n{settings}')
            file.chmod(0o600)
            command = ["serve"]
        environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith("POSTHASTE_") and name != "ADMIN_EMAIL"
        }
        self.log = self.directory / "server.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [BINARY, *command], cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )
        self.key = None
        try:
            until("the server is ready", self.is_ready)
        except AssertionError:
            self.stop()
            raise
        if settings is None:
            self.key = re.search(r"^key +(test_\S+)", self.log.read_text(), re.MULTILINE)[1]

    def is_ready(self):
        assert self.process.poll() is None, f"the server ended:\n{self.log.read_text()[-4000:]}"
        try:
            return self.call("GET", "/readyz").status == 200
        except OSError:
            return False

    def call(self, method, path, body=None, key=None, kind="application/json", **headers):
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            headers["Content-Type"] = kind
        if key:
            headers["X-API-Key"] = key
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECS)
        try:
            connection.request(method, path, body, headers)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def must(self, method, path, body=None, **more):
        answer = self.call(method, path, body, **more)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.bytes[:2000]!r}"
        return answer.json if answer.bytes else None

    def send(self, body, key=None):
        return self.must("POST", "/v1/email/send", body, key=key or self.key)["outboxId"]

    def wait_for(self, id, *statuses, key=None):
        def look():
            email = self.must("GET", f"/v1/emails/{id}", key=key or self.key)
            return email if email["status"] in statuses else None
        return until(f"{id} is {' or '.join(statuses)}", look)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the server did not end within 30 seconds of SIGTERM") from None
        finally:
            OUTPUT.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.log, OUTPUT / f"server-{self.port}.log")
            shutil.rmtree(self.directory, ignore_errors=True)


class Listener(socketserver.ThreadingTCPServer):
    """Where hostile emails call home: writes down who came, what was asked for, and who hung up without asking."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Caller)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked = []
        self.connections = 0
        self.lock = threading.Lock()
        self.pages = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def calls_of(self, name):
        with self.lock:
            return [path for path in self.asked if path.split("/")[1] == name]


class Caller(http.server.BaseHTTPRequestHandler):
    def setup(self):
        with self.server.lock:
            self.server.connections += 1
        super().setup()

    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        page = self.server.pages.get(self.path)
        if page is None:
            with self.server.lock:
                self.server.asked.append(urllib.parse.unquote(self.path))
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8" if page else "text/plain")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            self.wfile.write(page.encode() if page else b"")
        except BrokenPipeError:
            pass  # The page led elsewhere meanwhile.

    do_POST = do_GET
    do_HEAD = do_GET

    def log_message(self, *_):
        pass


class RudeMailServer(socketserver.ThreadingTCPServer):
    """An SMTP server that refuses every recipient, in the words it is given."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, words):
        super().__init__(("127.0.0.1", 0), RudeTalk)
        self.words = words
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()


class RudeTalk(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 rude.test\r\n")
        for line in self.rfile:
            verb = line[:4].upper()
            if verb == b"RCPT":
                answer = f"550 {self.server.words}"
            elif verb == b"QUIT":
                return
            else:
                answer = "250 fine"
            self.wfile.write(f"{answer}\r\n".encode())


