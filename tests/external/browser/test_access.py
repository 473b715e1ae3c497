"""Whoever sees badly: every view, dark and light, on a desktop and a phone, as axe-core judges it."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.external.browser.asking import Asking, asking
from tests.external.browser.conftest import DESKTOP, PHONE, ROOT, opened
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

AXE = ROOT / ".cache/external/node/node_modules/axe-core/axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
JUDGE = """async (tags) => {
  const told = await axe.run(document, { runOnly: { type: "tag", values: tags }, resultTypes: ["violations"] });
  const where = (node) => `${node.target.join(" ")} ${node.any[0]?.message ?? ""}`;
  return told.violations.map((each) => `${each.id}: ${each.nodes.map(where).join(" | ")}`);
}"""


@pytest.fixture(scope="module")
def busy(gateway: Gateway) -> Iterator[Asking]:
    """A server with a chat that runs, work that waits for it, and a grant behind it."""
    with asking(gateway) as asked:
        assert asked.chat(tokens=5).result(60) == 200
        asked.chat()
        assert gateway.comes_to(lambda: gateway.get("/api/status").json()["queues"]["interactive"]["running"] == 1)
        for _ in range(16):
            asked.chat(job_class="batch", tokens=600)
        yield asked


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_breaks_the_rules_of_wcag_aa_or_scrolls_sideways(
    browser: Browser,
    gateway: Gateway,
    busy: Asking,
    size: dict[str, int],
    scheme: str,
    shot: Callable[[Page, str], None],
) -> None:
    """With a dialog and a message open, too."""
    assert busy.gateway is gateway
    still = {"bypass_csp": True, "reduced_motion": "reduce"}
    for page in opened(browser, gateway.url, viewport=size, color_scheme=scheme, **still):
        page.goto("/")
        page.add_script_tag(content=AXE.read_text(encoding="utf-8"))
        expect(page.locator("#connection")).to_have_text("connected")
        wrong: dict[str, list[str]] = {}
        for name in page.get_by_role("navigation").get_by_role("link").all_inner_texts():
            page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
            page.wait_for_timeout(600)
            wrong[name] = page.evaluate(JUDGE, RULES)
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > size["width"]:
                wrong[name].append(f"it is {width} wide")
            shot(page, f"{name}-{'phone' if size is PHONE else 'desktop'}-{scheme}")
        page.get_by_role("navigation").get_by_role("link", name="Overview").click()
        page.get_by_role("button", name=re.compile("Explain job")).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        wrong["dialog"] = page.evaluate(JUDGE, RULES)
        assert {name: found for name, found in wrong.items() if found} == {}
