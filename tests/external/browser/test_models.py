"""The models in a real browser: loaded, pinned, refused with the sums, sent away after a question; and leases."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.external.browser.entering import admin_token, enter_key, go_to, refusals
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def nothing_is_left(gateway: Gateway) -> Iterator[None]:
    """What a test has loaded and pinned is gone before the next."""
    yield
    for each in gateway.get("/api/status").json()["instances"]:
        gateway.post(f"/api/models/{each['model']}/unpin", {})
        gateway.post(f"/api/models/{each['model']}/unload?wait=60", {"force": True})


def row(page: Page, model: str) -> Locator:
    """A model's row."""
    return page.locator("tr", has=page.get_by_text(model, exact=True))


def press(page: Page, name: str) -> None:
    """One of the buttons that say whose they are."""
    page.get_by_role("button", name=name, exact=True).click()


def test_a_model_is_loaded_pinned_and_sent_away(page: Page, gateway: Gateway) -> None:
    """Each with its word at the edge of the page, and the row as the server has it then."""
    go_to(page, "models")
    press(page, "Load sim-embed")
    expect(row(page, "sim-embed")).to_contain_text("ready", timeout=20_000)
    expect(page.locator("#toasts")).to_contain_text("sim-embed is ready on sim0")
    press(page, "Pin sim-embed")
    expect(row(page, "sim-embed")).to_contain_text("ready, pinned")
    assert gateway.get("/api/models/sim-embed").json()["pinned"] is True
    press(page, "Unpin sim-embed")
    expect(row(page, "sim-embed")).not_to_contain_text("pinned")
    press(page, "Unload sim-embed")
    page.get_by_role("button", name="Unload it").click()
    expect(page.locator("#toasts")).to_contain_text("sim-embed is gone")
    expect(row(page, "sim-embed")).to_contain_text("cold")


def test_a_load_that_sends_somebody_away_is_asked_first(page: Page, gateway: Gateway) -> None:
    """Who goes and what that frees; whoever cancels has changed nothing."""
    go_to(page, "models")
    for model, ctx in (("sim-chat-12b", 32_768), ("sim-chat-2b", None)):
        gateway.post(f"/api/models/{model}/load?wait=60", {"ctx": ctx, "parallel": 2} if ctx else {})
    press(page, "Load sim-chat-4b")
    asked = page.get_by_role("dialog")
    expect(asked).to_contain_text("goes and gives back")
    asked.get_by_role("button", name="Cancel").click()
    assert gateway.get("/api/models/sim-chat-4b").json()["state"] == "cold"


def test_a_refused_load_shows_its_arithmetic(page: Page, shot: Callable[[Page, str], None]) -> None:
    """Needed, there and missing by device, what it takes by part, who has the memory and why he keeps it."""
    go_to(page, "models")
    press(page, "Options sim-chat-12b")
    page.get_by_role("button", name="Load with 32768 tokens a slot").click()
    expect(row(page, "sim-chat-12b")).to_contain_text("32,768", timeout=20_000)
    expect(row(page, "sim-chat-12b")).to_contain_text("ready", timeout=20_000)
    press(page, "Pin sim-chat-12b")
    expect(row(page, "sim-chat-12b")).to_contain_text("pinned")
    press(page, "Load sim-chat-4b")
    told = page.get_by_role("dialog")
    expect(told).to_contain_text("sim-chat-4b was not loaded", timeout=30_000)  # once it has waited for room (fit_wait)
    needed = told.get_by_role("table", name="Needed and there, by device")
    expect(needed.locator("tbody tr")).to_have_count(1)
    expect(needed).to_contain_text("sim0")
    expect(needed.locator("tbody td").last).to_contain_text("iB")
    holders = told.get_by_role("table", name="Who has the memory")
    expect(holders).to_contain_text("sim-chat-12b")
    expect(holders).to_contain_text("pinned")
    shot(page, "a refused load")
    told.get_by_role("button", name="Close").click()


def test_a_device_is_leased_and_given_back(page: Page, gateway: Gateway) -> None:
    """Once the admin token is there: without it the server says what it wants, and the page how to enter it."""
    go_to(page, "models")
    page.get_by_label("For", exact=True).fill("ComfyUI <b>")
    press(page, "Lease it")
    expect(page.locator("#toasts")).to_contain_text("admin token")
    assert refusals(page, 403) == 1
    enter_key(page, admin_token(gateway))
    press(page, "Lease it")
    sure = page.get_by_role("dialog").get_by_role("button", name="Lease it")
    back = page.get_by_role("button", name="Give sim0 back")
    expect(sure.or_(back).first).to_be_visible()
    if sure.is_visible():
        sure.click()
    expect(page.locator("main")).to_contain_text("ComfyUI <b>", timeout=20_000)
    back.click()
    page.get_by_role("dialog").get_by_role("button", name="Give it back").click()
    expect(page.locator("main")).to_contain_text("Every device is gridsched's.")
