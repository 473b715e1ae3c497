"""The chat in a real browser: the path of every client, streamed, stopped, with its figures."""

import pytest
from playwright.sync_api import Page, expect

from tests.external.browser.entering import go_to
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow


def test_an_answer_streams_in_as_text_with_its_figures(page: Page) -> None:
    """Who answered, as which class and job, when the first token came, how fast the others did; markup is text."""
    go_to(page, "chat")
    page.get_by_label("Model").select_option("sim-chat-2b")
    page.get_by_label("Message (Enter sends").fill("Hello <img src=x>")
    page.get_by_label("Message (Enter sends").press("Enter")
    expect(page.get_by_role("article", name="You")).to_have_text("Hello <img src=x>")
    told = page.get_by_role("article", name="Model")
    expect(told).to_contain_text("sim-chat-2b, interactive, job", timeout=30_000)
    expect(told).to_contain_text("first token after")
    expect(told).to_contain_text("tokens/s")
    assert len((told.locator("p").first.text_content() or "").split()) > 3
    page.get_by_role("button", name="Begin anew").click()
    expect(page.get_by_role("article")).to_have_count(0)


def test_an_answer_is_stopped(page: Page, gateway: Gateway) -> None:
    """In the page at once, and on the server: nothing runs on for nobody."""
    go_to(page, "chat")
    page.get_by_label("Model").select_option("sim-chat-12b")
    page.get_by_label("Class").select_option("background")
    page.get_by_label("Message (Enter sends").fill("Tell me all of it")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("article", name="Model")).to_contain_text("stopped")
    assert gateway.comes_to(lambda: not any(gateway.get("/api/jobs").json()[each] for each in ("waiting", "running")))
    expect(page.get_by_role("button", name="Send")).not_to_have_attribute("aria-busy", "true")


def test_a_picture_is_offered_where_the_model_sees(page: Page) -> None:
    """And nowhere else."""
    go_to(page, "chat")
    page.get_by_label("Model").select_option("sim-chat-4b")
    expect(page.get_by_label("Picture")).to_be_visible()
    page.get_by_label("Model").select_option("sim-chat-12b")
    expect(page.get_by_label("Picture")).to_be_hidden()
