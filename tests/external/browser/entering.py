"""What a person does first on a page: waits until it is connected, enters a key, goes to a view."""

from playwright.sync_api import Page, expect

from tests.support.gateway import Gateway


def admin_token(gateway: Gateway) -> str:
    """As its owner reads it from the data directory."""
    return (gateway.log.parent / "data" / "admin.token").read_text(encoding="utf-8").strip()


def go_to(page: Page, view: str) -> None:
    """Show a view of a page, opened if it is not yet."""
    if page.url == "about:blank":
        page.goto(f"/#{view}")
        expect(page.locator("#connection")).to_have_text("connected")
    else:
        page.evaluate("view => { location.hash = view; }", view)
    expect(page.locator("main")).to_have_attribute("data-view", view)


def enter_key(page: Page, word: str) -> None:
    """Through the dialog at the top."""
    page.locator("#tools").get_by_role("button", name="Key").click()
    page.get_by_label("API key or admin token").fill(word)
    page.get_by_role("button", name="Use it").click()


def refusals(page: Page, status: int) -> int:
    """How many answers of this status the browser has told of on its console; those are forgotten."""
    faults: list[str] = page.faults  # type: ignore[attr-defined]
    told = [each for each in faults if f"status of {status}" in each]
    faults[:] = [each for each in faults if each not in told]
    return len(told)
