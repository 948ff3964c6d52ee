"""What the tests share: a browser, a server with mail of every kind, and a page that tells when something is wrong."""

import pathlib
import sys

import pytest
from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import world  # noqa: E402
from stage import OUTPUT, PATIENCE_SECS, Posthaste, chromium  # noqa: E402

expect.set_options(timeout=1000 * PATIENCE_SECS)


@pytest.fixture(scope="session")
def browser():
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for old in OUTPUT.glob("*.png"):
        old.unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-proxy-server"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server():
    server = Posthaste()
    try:
        world.fill(server)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def guarded():
    """A server with an admin token."""
    server = Posthaste(f'admin_token = "{world.TOKEN}"\n')
    yield server
    server.stop()


@pytest.fixture
def person(browser):
    """Somebody at a browser. What went wrong unseen is told at the end of the test."""
    person = world.Person(browser)
    yield person
    person.leave()
