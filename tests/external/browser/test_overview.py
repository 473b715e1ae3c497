"""The overview and the log in a real browser: what runs, what waits and why, and who had the GPU when."""

import json
import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.external.browser.asking import Asking, asking
from tests.external.browser.conftest import PHONE, opened
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

Shot = Callable[[Page, str], None]


@pytest.fixture
def asked(gateway: Gateway) -> Iterator[Asking]:
    """Whoever asks the gateway."""
    with asking(gateway) as found:
        yield found


def test_the_page_connects_and_shows_the_devices(page: Page, shot: Shot) -> None:
    """From the first request to a live page, with nothing said on the console."""
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("connected")
    device = page.locator("section", has=page.get_by_role("heading", name="Devices")).locator("li.card")
    expect(device).to_have_count(1)
    expect(device).to_contain_text("sim0 · 16.0 GiB")
    expect(device.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"Memory of sim0: .*free .*headroom"))
    shot(page, "overview-idle")


def test_a_load_and_the_slots_of_its_process_are_seen(page: Page, asked: Asking) -> None:
    """The model comes into the bar with its size and tier, its slot says whose job it is, and frees."""
    page.goto("/")
    running = asked.chat()
    bar = page.get_by_role("img", name=re.compile("Memory of sim0"))
    expect(bar).to_have_attribute("aria-label", re.compile(r"sim-chat-4b \(hot\) 4.0 GiB"))
    process = page.locator("li.card", has=page.get_by_role("heading", name="sim-chat-4b", exact=True))
    expect(process.locator(".slot.busy")).to_contain_text("interactive")
    expect(process.locator(".slot")).to_have_count(4)
    expect(process).to_contain_text("1 of 4 slots busy on sim0; 4.0 GiB")
    asked.cancel_all()
    assert running.result(30) == 502
    expect(process.locator(".slot.busy")).to_have_count(0)


def test_a_background_job_is_seen_to_wait_behind_a_chat_and_why(page: Page, asked: Asking, shot: Shot) -> None:
    """With its rule and reason; explained in a dialog, and cancelled from the page."""
    page.goto("/")
    asked.chat()
    expect(page.locator(".slot.busy.class-interactive")).to_have_count(1)
    low = [asked.chat(job_class="batch", tokens=50) for _ in range(2)]
    row = page.get_by_role("row", name=re.compile("batch")).first
    expect(row).to_contain_text(re.compile(r"sim-chat-4b.*people chat on sim0 S4"))
    expect(page.locator(".queue.class-batch dd").first).to_have_text("2")
    shot(page, "overview-waiting")
    row.get_by_role("button", name=re.compile("Explain")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Rule S4: people chat on sim0")
    expect(dialog.locator(".lines")).to_contain_text("enqueue batch")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    row.get_by_role("button", name=re.compile("Cancel")).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#toasts")).to_contain_text("is cancelled")
    expect(page.locator(".queue.class-batch dd").first).to_have_text("1")
    asked.cancel_all()
    assert [each.result(30) for each in low] == [502, 502]


def test_the_timeline_shows_grants_of_both_classes_and_what_each_was(page: Page, asked: Asking, shot: Shot) -> None:
    """As bars in lanes of their own, by pointer, by keys and as a table."""
    page.goto("/")
    answers = [asked.chat(tokens=60), asked.embed(96), asked.chat(tokens=60)]
    assert [each.result(60) for each in answers] == [200, 200, 200]
    page.get_by_text("The same as a table").click()
    table = page.get_by_role("table", name="Grants of the last minutes, newest first")
    expect(table.get_by_role("row").filter(has_text=re.compile("interactive.*sim-chat-4b"))).not_to_have_count(0)
    expect(table.get_by_role("row").filter(has_text=re.compile("background.*3/3.*sim-embed"))).not_to_have_count(0)
    timeline = page.get_by_role("group", name=re.compile("Timeline of grants"))
    page.get_by_role("button", name="1 min").click()
    drawn = page.evaluate(DRAWN, ["interactive", "background", "batch"])
    assert min(drawn["interactive"], drawn["background"]) > 0  # how wide a bar is depends on how long it took
    assert drawn["batch"] == 0
    timeline.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".readout")).to_contain_text(re.compile(r"Job \d+, (interactive|background)"))
    before = page.locator(".readout").inner_text()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".readout")).not_to_have_text(before)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Its story")
    page.keyboard.press("Escape")
    shot(page, "overview-timeline")


DRAWN = """names => {
  const canvas = document.querySelector(".timeline canvas");
  const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const counts = {};
  for (const name of names) {
    const text = getComputedStyle(canvas).getPropertyValue(`--${name}`).trim();
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
    counts[name] = 0;
    for (let at = 0; at < all.length; at += 4) {
      if (all[at] === r && all[at + 1] === g && all[at + 2] === b && all[at + 3] === 255) counts[name] += 1;
    }
  }
  return counts;
}"""
"""How many points of the timeline have the colour of each class."""


def test_the_log_is_live_and_filtered(page: Page, asked: Asking, shot: Shot) -> None:
    """By class, event, model and job; it holds still when it is paused, and goes on."""
    assert asked.chat(tokens=5).result(60) == 200
    page.goto("/#log")
    lines = page.get_by_role("log").locator("p")
    expect(page.get_by_role("log")).to_contain_text("complete interactive")
    page.get_by_label("Event").select_option("enqueue")
    assert {each.split()[1] for each in lines.all_inner_texts()} == {"enqueue"}
    page.get_by_label("Class").select_option("batch")
    count = lines.count()
    page.get_by_role("button", name="Pause").click()
    assert asked.chat(job_class="batch", tokens=5).result(60) == 200
    assert lines.count() == count
    page.get_by_role("button", name="Pause").click()
    expect(lines).to_have_count(count + 1)
    page.get_by_label("Event").select_option("")
    page.get_by_label("Class").select_option("")
    page.get_by_label("Model").fill("nobody")
    expect(lines).to_have_count(0)
    page.get_by_label("Model").fill("")
    page.get_by_label("Log of").select_option("sim-chat-4b")
    expect(page.get_by_role("group", name="Lines of the log")).to_contain_text("server is listening")
    shot(page, "log")


def test_the_overview_fits_a_phone(browser: Browser, gateway: Gateway, asked: Asking, shot: Shot) -> None:
    """No sideways scrolling at 390 points, with jobs that run and wait, in the dark."""
    for page in opened(browser, gateway.url, viewport=PHONE, color_scheme="dark"):
        page.goto("/")
        asked.chat()
        expect(page.locator(".slot.busy.class-interactive")).to_have_count(1)
        asked.chat(job_class="batch", tokens=50)
        expect(page.get_by_role("row", name=re.compile("batch"))).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        shot(page, "overview-phone-dark")


def test_names_without_a_space_stay_within_a_phone(page: Page, gateway: Gateway) -> None:
    """Of whoever has a lease, of programs outside and of models that do not load."""
    long, status = "w" * 120, gateway.get("/api/status").json()
    status["devices"][0] |= {"lease": {"owner": long, "state": "held", "left_s": 5.0}}
    status["devices"][0] |= {"foreign": [{"pid": 1, "name": long, "bytes": 5}]}
    status["failed"] = {long: {"retry_after_s": 5, "reason": long}}
    told = f"event: status\ndata: {json.dumps(status)}\n\n"
    page.route("**/api/events?*", lambda route: route.fulfill(content_type="text/event-stream", body=told))
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/")
    expect(page.locator("body")).to_contain_text(f"lease held: {long}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
