"""The set-up in a real browser: what is well, what is not, and what to write in a client. And how each view looks."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.external.browser.conftest import DESKTOP, PHONE, opened
from tests.external.browser.entering import admin_token, enter_key, go_to
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

VIEWS = {
    "models": "text-embedding-3-small",
    "chat": "takes the same way",
    "work": "There is no batch.",
    "settings": "nobody needs one",
    "setup": "Nothing is wrong.",
}
"""The views, and what is on each once all of it is there."""


def test_each_thing_that_was_looked_at_says_how_it_is(page: Page) -> None:
    """A server on its own is well; that nobody watches over it is worth a note, with what to do."""
    go_to(page, "setup")
    expect(page.get_by_text("Nothing is wrong.")).to_be_visible()
    for about in ("disk", "keys", "exposure", "engine", "devices", "models", "configuration"):
        expect(page.locator(f"[data-about={about}]")).to_have_attribute("data-state", "ok")
    watchdog = page.locator("[data-about=watchdog]")
    expect(watchdog).to_have_attribute("data-state", "note")
    expect(watchdog).to_contain_text("To do: gridsched install-service")


def test_what_to_write_in_a_client_is_copied(page: Page, gateway: Gateway) -> None:
    """For the client, the model and the class that were chosen, with the address of this server."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    go_to(page, "setup")
    page.get_by_label("Client", exact=True).select_option("curl")
    page.get_by_label("Model").select_option("sim-chat-2b")
    page.get_by_label("Class").select_option("batch")
    page.get_by_role("button", name="Copy what to write").click()
    expect(page.get_by_role("button", name="Copy what to write")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert f"{gateway.url}/v1/chat/completions" in copied
    assert "X-Class: batch" in copied
    assert '"model":"sim-chat-2b"' in copied


@pytest.fixture(params=[("phone", PHONE, "dark"), ("desktop", DESKTOP, "light")], ids=["phone", "desktop"])
def looked_at(request: pytest.FixtureRequest, browser: Browser, gateway: Gateway) -> Iterator[tuple[str, int, Page]]:
    """A page on a phone in the dark, or on a desk."""
    name, size, scheme = request.param
    for page in opened(browser, gateway.url, viewport=size, color_scheme=scheme):
        yield name, size["width"], page


def test_every_view_fits_its_screen(
    looked_at: tuple[str, int, Page], gateway: Gateway, shot: Callable[[Page, str], None]
) -> None:
    """Nothing of a page is wider than it, so that nobody scrolls sideways; the pictures are kept."""
    name, width, page = looked_at
    go_to(page, "models")
    enter_key(page, admin_token(gateway))
    for view, text in VIEWS.items():
        go_to(page, view)
        expect(page.locator("main")).to_contain_text(text)
        expect(page.locator("#connection")).to_have_text("connected")
        shot(page, f"{view} {name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
