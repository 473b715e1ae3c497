"""The load test's page in a real browser, from a file and without a network."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from loadtest import report_page
from loadtest.compare import Comparison
from tests.external.browser.conftest import DESKTOP, PHONE, opened
from tests.loadtest.results import CLEAN, EVIL, a_whole_result

pytestmark = pytest.mark.slow

LOOKS = {
    "desktop, light": {"viewport": DESKTOP, "color_scheme": "light"},
    "phone, dark": {"viewport": PHONE, "color_scheme": "dark"},
}
FIT = "document.documentElement.scrollWidth <= window.innerWidth"


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest, browser: Browser) -> Iterator[tuple[str, Page]]:
    """A page that may not ask the network for anything."""
    for page in opened(browser, "about:blank", offline=True, **LOOKS[request.param]):
        yield request.param, page


def test_M9_a_report_is_seen_whole_and_its_names_are_text(
    look: tuple[str, Page], tmp_path: Path, shot: Callable[[Page, str], None]
) -> None:
    """Every picture is there with its words, nothing is wider than the page, only the file itself is asked for, and a
    name that would be a picture is none."""
    name, page = look
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    report_page.write(a_whole_result(errors=2), tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text("Failed")
    pictures = page.get_by_role("img")
    expect(pictures).to_have_count(4)
    for place in range(4):
        expect(pictures.nth(place)).to_be_visible()
        box = pictures.nth(place).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 100
    expect(page.get_by_text("seconds of the run").first).to_be_visible()
    expect(page.get_by_text(CLEAN).first).to_be_visible()
    assert page.evaluate(FIT)
    assert page.locator("img, script").count() == 0
    assert page.title() == "Load test: Failed"
    assert asked == [page.url]
    page.get_by_text("What the server did to models").click()
    expect(page.get_by_role("cell", name="evict")).to_be_visible()
    assert page.evaluate(FIT)
    shot(page, f"report {name}")


def test_two_runs_side_by_side_fit_the_page(
    look: tuple[str, Page], tmp_path: Path, shot: Callable[[Page, str], None]
) -> None:
    """The verdict, the table and both pictures."""
    name, page = look
    both = Comparison(a=a_whole_result(), b=a_whole_result(errors=2, seed=8), a_path="before.json", b_path=EVIL)
    report_page.write_comparison(both, tmp_path / "both.html")
    page.goto((tmp_path / "both.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text("B is worse")
    expect(page.get_by_role("img")).to_have_count(2)
    expect(page.get_by_role("row", name="interactive B/A")).to_be_visible()
    assert page.evaluate(FIT)
    shot(page, f"comparison {name}")
