"""The overview in a real browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.slow


def test_the_page_connects_and_shows_the_devices(page: Page, shot: Callable[[Page, str], None]) -> None:
    """From the first request to a live page, with nothing said on the console."""
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("connected")
    shot(page, "overview")
