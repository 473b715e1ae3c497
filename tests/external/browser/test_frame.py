"""The frame of the page: the connection and its loss, keys, the theme, another version, the keyboard."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from gridsched import __version__
from tests.external.browser.asking import asking
from tests.external.browser.conftest import opened
from tests.support.gateway import Gateway, clean_environment, command, start

pytestmark = pytest.mark.slow

Shot = Callable[[Page, str], None]
UNREACHABLE = "Failed to load resource: net::"
"""What a browser says on its console of a server that has gone, whatever the page does."""


def without(page: Page, *beginnings: str) -> None:
    """Take what the test itself has brought about out of what was said on the console."""
    faults: list[str] = page.faults  # type: ignore[attr-defined]
    faults[:] = [each for each in faults if not each.startswith(beginnings)]


def test_a_page_goes_on_when_its_server_was_started_again(browser: Browser, tmp_path: Path, shot: Shot) -> None:
    """It says that there is no connection, comes back by itself, says that the server is another run, and is live."""
    first = start(tmp_path, "--sim")
    port = int(first.url.rpartition(":")[2])
    for page in opened(browser, first.url):
        page.goto("/")
        expect(page.locator("#connection")).to_have_text("connected")
        with asking(first) as asked:
            assert asked.chat(tokens=5).result(60) == 200
        expect(page.get_by_role("heading", name="sim-chat-4b")).to_have_count(1)
        assert first.stop() == 0
        expect(page.locator("#connection")).to_have_text("no connection; trying again …")
        expect(page.get_by_text("The server does not answer; this is how it stood at")).to_be_visible()
        shot(page, "frame-no-connection")
        second = start(tmp_path, "--sim", port=port)
        try:
            expect(page.locator("#connection")).to_have_text("connected")
            expect(page.locator("#toasts")).to_contain_text("The server was started again.")
            expect(page.get_by_text("No model is loaded")).to_be_visible()
            with asking(second) as asked:
                assert asked.chat(tokens=5).result(60) == 200
            expect(page.get_by_role("heading", name="sim-chat-4b")).to_have_count(1)
            page.get_by_text("The same as a table").click()
            table = page.get_by_role("table", name="Grants of the last minutes, newest first")
            expect(table.get_by_role("row")).to_have_count(3)
        finally:
            assert second.stop() == 0
        without(page, UNREACHABLE)


def test_a_server_that_wants_a_key_is_shown_one(browser: Browser, tmp_path: Path, shot: Shot) -> None:
    """The dialog says why; a wrong one is refused in words; the right one lets in, is kept over a reload, and is
    forgotten when that is asked for."""
    gateway = start(tmp_path, "--sim")
    try:
        words = command("keys", "add", "tom", "--scope", "read,inference", "--data-dir", str(tmp_path / "data"))
        added = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=clean_environment())
        secret = next(word for word in added.stdout.split() if word.startswith("gs-"))
        for page in opened(browser, gateway.url):
            assert gateway.comes_to(lambda: gateway.get("/api/status").status_code == 401)
            page.goto("/")
            dialog = page.get_by_role("dialog", name="Key")
            expect(dialog).to_contain_text("API key")
            shot(page, "frame-key")
            dialog.get_by_label("API key or admin token").fill("gs-wrong")
            page.keyboard.press("Enter")
            expect(page.locator("#connection")).to_have_attribute("data-state", "refused")
            dialog.get_by_label("API key or admin token").fill(secret)
            dialog.get_by_role("button", name="Use it").click()
            expect(page.locator("#connection")).to_have_text("connected")
            page.reload()
            expect(page.locator("#connection")).to_have_text("connected")
            page.get_by_role("button", name="Key: set").click()
            dialog.get_by_role("button", name="Forget it").click()
            expect(page.locator("#connection")).to_have_attribute("data-state", "refused")
            assert page.evaluate("sessionStorage.length + document.cookie.length") == 0
            without(page, "Failed to load resource: the server responded with a status of 401")
    finally:
        assert gateway.stop() == 0


def test_a_page_that_is_older_than_its_server_says_so(page: Page) -> None:
    """With a button that loads the new one."""
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("connected")
    said = {"count": 0}

    def another(route: Route) -> None:
        answer = route.fetch(url=route.request.url + "&follow=0", headers={})
        said["count"] += 1
        route.fulfill(response=answer, body=answer.text().replace(f'"version":"{__version__}"', '"version":"99.1"'))

    page.route("**/api/events?*", another)
    page.get_by_role("button", name="Key").click()
    page.get_by_label("API key or admin token").fill("whatever")
    page.get_by_role("dialog").get_by_role("button", name="Use it").click()
    expect(page.locator("#banner")).to_contain_text(
        f"This page is of version {__version__}; the server is 99.1 by now."
    )
    page.unroute("**/api/events?*")
    page.locator("#banner").get_by_role("button", name="Reload").click()
    expect(page.locator("#banner")).to_be_empty()
    assert said["count"]


def test_the_theme_is_the_system_s_until_it_is_chosen_and_kept(page: Page) -> None:
    """Light, dark, and back to the system's; another page of this browser has it from its first moment."""
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    page.goto("/")
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Theme: system").click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Theme: light").click()
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Theme: dark").click()
    assert page.evaluate(ground) == light


def test_all_is_reached_by_keyboard_and_seen_to_be(page: Page, gateway: Gateway) -> None:
    """The skip link is first and leads to the content; each view's link is a stop with a visible ring."""
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("connected")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.goto("/#log")
    page.reload()
    page.keyboard.press("Tab")
    links = page.get_by_role("navigation").get_by_role("link")
    for index in range(links.count()):
        page.keyboard.press("Tab")
        expect(links.nth(index)).to_be_focused()
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert gateway.process.poll() is None
    expect(page.locator("#main")).to_be_focused()


MANY = """async () => {
  const { Spans } = await import("/panel/views/spans.js");
  const { Picture } = await import("/panel/views/picture.js");
  const spans = new Spans();
  const time = (ago) => new Date(Date.now() - ago).toISOString();
  const line = (event, ago, job, more) => spans.add({ event, time: time(ago), job, ...more });
  for (let job = 1; job <= 30000; job++) {
    line("dispatch", 300000 - 10 * job, job, { class: "batch", model: "m", device: "d" });
    line("complete", 300000 - 10 * job - 5, job);
  }
  const canvas = document.querySelector(".timeline canvas");
  const picture = new Picture(canvas, spans);
  picture.draw();
  const calm = picture.boxes.length;
  picture.chosen = spans.grants.at(-2);
  picture.draw();
  return { calm, width: canvas.clientWidth, chosen: picture.boxes.some((each) => each.span === picture.chosen) };
}"""


def test_a_timeline_draws_what_a_screen_can_show_of_a_hundred_grants_a_second(page: Page) -> None:
    """No more bars than there are points (and the edge), however many grants; the chosen one is always among them."""
    page.goto("/")
    expect(page.locator(".timeline canvas")).to_be_visible()
    found = page.evaluate(MANY)
    assert 0 < found["calm"] <= found["width"] + 1
    assert found["chosen"]


def test_what_runs_when_lines_are_lost_is_not_shown_as_running_for_ever(page: Page) -> None:
    """Behind a gap nothing that began before it goes on; it ended at the latest when the last line was read."""
    page.goto("/")
    found = page.evaluate("""async () => {
      const spans = new (await import("/panel/views/spans.js")).Spans();
      spans.add({ event: "dispatch", time: "2026-01-01T00:00:01.000Z", job: 1 });
      spans.add({ event: "load", time: "2026-01-01T00:00:02.000Z", instance: 1 });
      spans.add({ event: "gap", time: "2026-01-01T05:00:00.000Z", lost: 9 });
      spans.add({ event: "dispatch", time: "2026-01-01T04:00:00.000Z", job: 2 });
      return [...spans.grants, ...spans.loads].map((each) => each.end && new Date(each.end).toISOString());
    }""")
    assert found == ["2026-01-01T00:00:02.000Z", None, "2026-01-01T00:00:02.000Z"]


def test_a_page_that_nobody_looks_at_leaves_its_connection_to_others(page: Page) -> None:
    """A browser has six for all pages of a server. After a minute unseen it asks nothing; seen again, it is live."""
    page.clock.install()
    page.goto("/")
    page.clock.run_for(2000)
    expect(page.locator("#connection")).to_have_text("connected")
    see = """(state) => {
      Object.defineProperty(document, "visibilityState", { get: () => state, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(see, "hidden")
    page.clock.run_for(61_000)
    page.clock.run_for(30_000)
    expect(page.locator("#connection")).to_have_attribute("data-state", "off")
    assert asked == []
    page.evaluate(see, "visible")
    page.clock.resume()
    expect(page.locator("#connection")).to_have_text("connected")


def test_a_question_goes_with_the_view_that_it_is_about(page: Page) -> None:
    """Who goes back in the browser's history is not left with a dialog over another view."""
    page.goto("/")
    page.goto("/#log")
    page.get_by_role("button", name="Key").click()
    expect(page.get_by_role("dialog", name="Key")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("main")).to_have_attribute("data-view", "overview")
