"""A real Chromium, driven by Playwright. A page that says anything on its console as an error fails its test."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.gateway import Gateway, start

ROOT = Path(__file__).parents[3]
SCREENSHOTS = ROOT / "build" / "screenshots"
"""Kept for whoever looks at them; not in git."""

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    assert found, "Chromium is missing: tests/external/install.sh installs it, or says how"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS + sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A server on simulated hardware, one for the tests of a file."""
    gateway = start(tmp_path_factory.mktemp("gateway"), "--sim")
    yield gateway
    assert gateway.stop() == 0


@pytest.fixture
def page(browser: Browser, gateway: Gateway) -> Iterator[Page]:
    """A new page of a desktop's size, with the panel's address as its base. Errors on its console fail the test, those
    of the network that the test itself brings about aside: it takes them out of `page.faults`."""
    yield from opened(browser, gateway.url)


def opened(browser: Browser, url: str, **more: object) -> Iterator[Page]:
    """A page whose faults are watched."""
    context = browser.new_context(**{"base_url": url, "viewport": DESKTOP, **more})  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(10_000)
    faults: list[str] = []
    page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda fault: faults.append(str(fault)))
    page.faults = faults  # type: ignore[attr-defined]
    yield page
    context.close()
    assert faults == []


@pytest.fixture
def shot() -> Callable[[Page, str], None]:
    """Keep a picture of a page under a name."""

    def take(page: Page, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{re.sub(r'[^a-z0-9-]+', '-', name.lower())}.png", full_page=True)

    return take
