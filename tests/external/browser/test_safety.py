"""M9: whatever comes from outside is text in the panel: names, files, logs, errors, owners of leases, programs."""

import json
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.external.browser.conftest import opened
from tests.faults.bench import Bench, Served, serve
from tests.support.gateway import Gateway

pytestmark = pytest.mark.slow

IMG = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script><xss-mark>"
QUOTES = "\"'><xss-mark onclick=alert(3)>"
ALIAS = "');alert(1)//"

FOUND = """() => ({
  made: document.querySelectorAll("xss-mark, img[onerror], [onclick], [style*=alert], iframe, object").length,
  scripts: [...document.scripts].map((each) => each.getAttribute("src")),
  text: document.body.innerText + [...document.querySelectorAll("input, textarea")].map((each) => each.value).join(" "),
})"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A server whose every name is markup: a model, its file, its aliases, what its engine prints and says."""
    folder = tmp_path_factory.mktemp("bench")
    served = {IMG: Served(settings={"aliases": [ALIAS, QUOTES]}), "broken": Served()}
    found = serve(folder, served, settings={"families": {"<xss-mark>": {"preferred": IMG}}})
    try:
        found.tell(IMG, print_lines=[f"stderr {SCRIPT}"])
        found.tell("broken", exit_at="start", print_lines=[f"error: {SCRIPT}"])
        assert found.chat(IMG).status == 200
        assert found.chat("broken").status == 503
        yield found
    finally:
        assert found.gateway.stop() == 0


def as_admin(bench: Bench, method: str, path: str, body: object) -> None:
    """What changes the machine."""
    token = (bench.folder / "data/admin.token").read_text(encoding="utf-8").strip()
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.request(method, bench.gateway.url + path, json=body, headers=headers, trust_env=False, timeout=30.0)
    assert answer.status_code < 300, answer.text


def walked(page: Page) -> Iterator[tuple[str, str]]:
    """Each view and all that can be read there, when it has been filled; nothing was made of it."""
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("connected")
    own = page.evaluate(FOUND)["scripts"]
    for name in page.get_by_role("navigation").get_by_role("link").all_inner_texts():
        page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        page.wait_for_timeout(700)  # what the view asks for has come
        for closed in page.locator("main details:not([open]) > summary").all():
            if closed.is_visible():
                closed.click()
        page.wait_for_timeout(200)
        found = page.evaluate(FOUND)
        assert (found["made"], found["scripts"]) == (0, own), name
        yield name, found["text"]


def test_M9_what_comes_from_outside_is_text_in_every_view(browser: Browser, bench: Bench) -> None:
    """Nothing runs, nothing is made of it, the policy is not even asked; and it is there to be read."""
    device = bench.status()["devices"][0]["name"]
    as_admin(bench, "POST", "/api/leases", {"devices": [device], "owner": f"owner {QUOTES}", "ttl_s": 60})
    said: list[str] = []
    for page in opened(browser, bench.gateway.url):
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        texts = dict(walked(page))
        assert IMG in texts["Overview"]
        assert f"owner {QUOTES}" in texts["Overview"]
        assert IMG in texts["Log"]
        page.goto("/#log")
        for name, text in ((IMG, f"stderr {SCRIPT}"), ("broken", f"error: {SCRIPT}")):
            page.get_by_label("Log of").select_option(name)
            expect(page.get_by_role("group", name="Lines of the log")).to_contain_text(text)
        assert page.evaluate(FOUND)["made"] == 0
    assert said == []


def test_M9_names_that_only_a_driver_tells_are_text_too(browser: Browser, gateway: Gateway) -> None:
    """Devices and programs outside, reasons, and an error of the server itself."""
    status = gateway.get("/api/status").json()
    device = status["devices"][0]
    device |= {"name": IMG, "foreign": [{"pid": 1, "name": SCRIPT, "bytes": 5}], "external_bytes": 2**33}
    device |= {"lease": {"owner": QUOTES, "state": "held", "left_s": 5.0}, "available": False, "why": SCRIPT}
    status |= {"failed": {IMG: {"retry_after_s": 5, "reason": SCRIPT}}, "config_error": QUOTES}
    job = {"job": 7, "class": QUOTES, "kind": IMG, "model": SCRIPT, "position": 1, "waited_s": 1, "step": 1, "steps": 1}
    status["waiting"] = [job | {"rule": QUOTES, "reason": SCRIPT, "estimate_s": None, "keepers": [], "text": IMG}]
    line = {"seq": 1, "time": "2026-01-01T00:00:00.000Z", "event": IMG, "class": QUOTES, "model": SCRIPT, IMG: QUOTES}
    line |= {"event": "dispatch", "job": 7, "rule": IMG} | {f"field {IMG}": SCRIPT}
    told = f"event: status\ndata: {json.dumps(status)}\n\nid: 1\ndata: {json.dumps(line)}\n\n"

    def events(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=told)

    def refused(route: Route) -> None:
        error = {"message": SCRIPT, "type": "x", "param": None, "code": QUOTES, "gridsched": {"do": IMG}}
        route.fulfill(status=503, content_type="application/json", body=json.dumps({"error": error}))

    said: list[str] = []
    for page in opened(browser, gateway.url):
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.route("**/api/events?*", events)
        page.route("**/api/jobs/7", refused)
        page.goto("/")
        expect(page.locator("body")).to_contain_text(f"Outside: {SCRIPT} (1)")
        page.get_by_role("button", name="Explain job 7").click()
        expect(page.locator("#toasts")).to_contain_text(f"{SCRIPT}. {IMG}")
        text = page.evaluate(FOUND)
        assert text["made"] == 0
        for each in (IMG, SCRIPT, QUOTES):
            assert each in text["text"]
        page.get_by_role("navigation").get_by_role("link", name="Log").click()
        expect(page.get_by_role("log")).to_contain_text(f"field {IMG}={SCRIPT}")
        assert page.evaluate(FOUND)["made"] == 0
        page.faults[:] = [each for each in page.faults if "status of 503" not in each]  # type: ignore[attr-defined]
    assert said == []


def test_M9_the_policy_stands_behind_it(page: Page, gateway: Gateway) -> None:
    """Even a script of the page itself cannot make markup of a text, nor run one; no file asks elsewhere."""
    page.goto("/")
    tried = "(text) => { try { document.body.innerHTML = text; return 'made'; } catch (fault) { return fault.name; } }"
    assert page.evaluate(tried, IMG) == "TypeError"
    assert gateway.get("/").headers["x-content-type-options"] == "nosniff"
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/#log")
    page.reload()
    expect(page.locator("#connection")).to_have_text("connected")
    assert {each.startswith((gateway.url, "data:")) for each in asked} == {True}
    page.faults.clear()  # type: ignore[attr-defined]  # the try above
