"""A real Prometheus scrapes two servers and a watchdog, under the alerts and for the dashboard that we hand out.

One server has simulated cards, keys, and traffic of all classes; the other has the real engine's stand-in, which dies,
fails and holds host memory. Every query of the dashboard and every vector that an alert compares must then come to
numbers: an empty one would be a panel that shows nothing, or an alert that can never fire.
"""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from gridsched.devices.procfs import memory_pressure
from tests.external.prometheus import CONFIG, Prometheus, handed_out, prometheus, tool
from tests.faults.bench import Bench, Served, serve
from tests.support import gateway as gateways
from tests.support.gateway import Gateway, clean_environment, command, free_port
from tests.support.promql import legs

pytestmark = pytest.mark.slow

BOARD: dict[str, Any] = json.loads((CONFIG.parent / "grafana/gridsched.json").read_text(encoding="utf-8"))
RULES: dict[str, str] = {
    rule["alert"]: rule["expr"]
    for group in YAML(typ="safe").load(CONFIG / "alerts.yml")["groups"]
    for rule in group["rules"]
}
TIMELINES = [panel for panel in BOARD["panels"] if panel["type"] == "state-timeline"]
RATE_INTERVAL = "10s"
"""What Grafana would put for `$__rate_interval`: a good many scrapes."""

FAILING, DYING = "failing", "dying"
RANKING: dict[str, object] = {"model": "sim-rerank", "query": "a", "documents": ["b", "c"]}


@dataclass
class Scene:
    """What the tests of this file share, made once: it has run, and Prometheus has seen its end."""

    prometheus: Prometheus
    simulated: Gateway
    bench: Bench
    watchdog_port: int
    key: str

    def page(self, url: str, accept: str = "text/plain") -> httpx.Response:
        """A metrics page as it comes."""
        headers = {"Accept": accept, "Authorization": f"Bearer {self.key}"}
        return httpx.get(f"{url}/metrics", headers=headers, trust_env=False, timeout=10.0)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Two servers, a watchdog and a Prometheus; then traffic; then two more scrapes of it all."""
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        (folder / "simulated").mkdir()
        making = stack.enter_context(ThreadPoolExecutor(1)).submit(made_bench, folder / "bench")
        stack.callback(lambda: making.result().gateway.stop())  # noqa: PLW0108 - it is there only by then
        keys = {name: made_key(folder / "simulated", name) for name in ("prometheus", "client")}
        simulated = gateways.begin(folder / "simulated", "--sim")
        stack.callback(simulated.stop)
        port = stack.enter_context(watchdog(folder / "simulated"))
        simulated.wait_until_up()
        bench = making.result()
        (folder / "gridsched.key").write_text(keys["prometheus"], encoding="utf-8")
        servers = [one.url.removeprefix("http://") for one in (simulated, bench.gateway)]
        targets = {"gridsched": servers, "gridsched-watchdog": [f"127.0.0.1:{port}"]}
        running = stack.enter_context(prometheus(folder / "data", handed_out(folder / "gridsched.key", targets)))
        running.until_scraped(3, time.time())
        make_traffic(simulated, bench, keys["client"])
        running.until_scraped(3, time.time() + 1.0)
        yield Scene(running, simulated, bench, port, keys["prometheus"])


def made_key(folder: Path, name: str) -> str:
    """A key for Prometheus, which may only read, or for clients."""
    scope = "read" if name == "prometheus" else "inference,read,residency,admin"
    words = command("keys", "add", name, "--scope", scope, "--data-dir", str(folder / "data"), "--json")
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=clean_environment(), timeout=60)
    return str(json.loads(done.stdout)["secret"])


def made_bench(folder: Path) -> Bench:
    """A server on the stand-in: one model that dies in its second answer, one that never comes up."""
    folder.mkdir()
    bench = serve(folder, {DYING: Served(), FAILING: Served()})
    bench.tell(FAILING, exit_at="start", print_lines=["error: no such tensor"])
    return bench


@contextmanager
def watchdog(folder: Path) -> Iterator[int]:
    """The watchdog of a data directory; its port."""
    port = free_port()
    words = command("watchdog", "--data-dir", str(folder / "data"), "--port", str(port))
    with (folder / "watchdog.log").open("w", encoding="utf-8") as output:
        process = subprocess.Popen(words, env=clean_environment(), stdout=output, stderr=subprocess.STDOUT)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)


def make_traffic(simulated: Gateway, bench: Bench, key: str) -> None:
    """All classes, endpoints and ends that queries ask about, side by side; each is seen to come out as meant."""
    headers = {"Authorization": f"Bearer {key}"}

    def ask(path: str, status: int, body: dict[str, object]) -> None:
        answer = simulated.post(path, body, headers)
        assert answer.status_code == status, answer.text

    chat = partial(ask, "/v1/chat/completions")
    work: list[Callable[[], None]] = [
        *(partial(chat, 200, asked("sim-chat-4b", word)) for word in ("interactive", "background", "batch")),
        partial(chat, 200, asked("sim-chat-12b", "interactive")),
        partial(chat, 200, asked("sim-chat-2b", "interactive")),
        partial(ask, "/v1/embeddings", 200, {"model": "sim-embed", "input": ["x"] * 70, "x_class": "background"}),
        partial(chat, 404, asked("nobody", "interactive")),
        partial(ask, "/v1/rerank", 503, RANKING | {"x_class": "background", "gridsched": {"warm_only": True}}),
        partial(a_batch, simulated, headers),
        partial(what_goes_wrong, bench),
    ]
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(one) for one in work]:
            done.result(60)
    # Now that all others are there, one model has to go for it.
    ask("/v1/rerank", 200, RANKING)


def asked(model: str, job_class: str) -> dict[str, object]:
    """A short chat."""
    messages = [{"role": "user", "content": "hello"}]
    return {"model": model, "messages": messages, "max_tokens": 4, "x_class": job_class}


def a_batch(simulated: Gateway, headers: dict[str, str]) -> None:
    """Two lines, of which one is for a model that there is not; until it is over."""
    bodies = [asked(model, "batch") | {"x_class": None} for model in ("sim-chat-4b", "nobody")]
    url = "/v1/chat/completions"
    lines = [
        json.dumps(
            {"custom_id": body["model"], "method": "POST", "url": url, "body": {k: v for k, v in body.items() if v}}
        )
        for body in bodies
    ]
    with httpx.Client(base_url=simulated.url, headers=headers, trust_env=False, timeout=30.0) as client:
        file = client.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", "\n".join(lines))}
        ).json()
        made = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
        batch = client.post("/v1/batches", json=made).json()["id"]
        assert simulated.comes_to(lambda: client.get(f"/v1/batches/{batch}").json()["status"] == "completed")


def what_goes_wrong(bench: Bench) -> None:
    """An engine that dies in mid-answer, and is started anew; one that never comes up."""
    assert bench.chat(DYING).status == 200
    bench.tell(DYING, exit_at="request")
    assert bench.chat(DYING).status == 502
    bench.tell(DYING)
    assert bench.chat(DYING).status == 200
    assert bench.chat(FAILING).status == 503


# --- queries ------------------------------------------------------------------------------------------------------


def shown() -> Iterator[Any]:
    """Every query of the dashboard."""
    for panel in BOARD["panels"]:
        for target in panel.get("targets", ()):
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")


def filled_in(expr: str) -> str:
    """What Grafana would send with everything chosen."""
    for variable in BOARD["templating"]["list"]:
        expr = expr.replace(f"${variable['name']}", variable.get("allValue") or ".*")
    expr = expr.replace("$__rate_interval", RATE_INTERVAL).replace("$__range", "1m")
    assert "$" not in expr
    return expr


def expect_numbers(scene: Scene, expr: str) -> None:
    """A series at the least, and in it a number."""
    if "host_memory_pressure" in expr and memory_pressure() is None:
        return  # this machine's kernel does not tell, and neither do we
    found = scene.prometheus.series(expr)
    assert found, f"nothing comes of {expr}"
    assert any(not isnan(value) for values in found for value in values), f"no numbers come of {expr}"


@pytest.mark.parametrize("expr", list(shown()))
def test_every_query_of_the_dashboard_comes_to_numbers(scene: Scene, expr: str) -> None:
    """Over the time of the test, as Grafana would ask: a panel that shows nothing after all of that never does."""
    expect_numbers(scene, filled_in(expr))


@pytest.mark.parametrize("panel", [pytest.param(panel, id=panel["title"]) for panel in TIMELINES])
def test_a_timeline_has_a_word_for_every_state_that_was(scene: Scene, panel: dict[str, Any]) -> None:
    """The numbers that its queries came to are among those that the panel maps to words."""
    words = {float(number) for one in panel["fieldConfig"]["defaults"]["mappings"] for number in one["options"]}
    for target in panel["targets"]:
        values = {value for series in scene.prometheus.series(filled_in(target["expr"])) for value in series}
        assert values <= words, target["expr"]


def test_every_variable_of_the_dashboard_has_values(scene: Scene) -> None:
    """`label_values(…)` is asked of Prometheus as Grafana does it: the series, and the label's values in them."""
    for variable in BOARD["templating"]["list"]:
        if variable["type"] != "query":
            continue
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert found, variable
        values = scene.prometheus.ask(f"label/{found[2]}/values", **{"match[]": filled_in(found[1])})
        assert values, variable


def test_every_mark_on_the_dashboard_is_a_query(scene: Scene) -> None:
    """None was started twice, so there is nothing to show: what is compared is there."""
    for mark in BOARD["annotations"]["list"]:
        if "expr" in mark:
            for leg in legs(filled_in(mark["expr"])):
                expect_numbers(scene, leg)


@pytest.mark.parametrize("name", RULES)
def test_every_vector_that_an_alert_compares_comes_to_numbers(scene: Scene, name: str) -> None:
    """What stands left and right of its comparisons and of `unless`, each by itself. Three hours ago there was no
    server: what is taken from then is taken from now. The whole is evaluated by the rules' own test below."""
    found = legs(RULES[name])
    assert found
    for leg in found:
        expect_numbers(scene, re.sub(r" offset \w+", "", leg))


def test_all_alerts_are_evaluated_and_none_is_raised_by_a_busy_minute(scene: Scene) -> None:
    """None has an error. A few refusals, a death and a failed load are no alarm; the model that never came up was in
    back-off, so its alert has waited for its time."""
    groups = scene.prometheus.ask("rules")["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(rules) == set(RULES)
    assert {name: rule.get("lastError") for name, rule in rules.items() if rule["health"] == "err"} == {}
    assert all(rule["lastEvaluation"] > "2000" for rule in rules.values())
    assert [alert["labels"] for alert in scene.prometheus.ask("alerts")["alerts"] if alert["state"] == "firing"] == []
    waited = f'ALERTS{{alertname="GridschedModelFailed", alertstate="pending", model="{FAILING}"}}'
    expect_numbers(scene, waited)


# --- pages --------------------------------------------------------------------------------------------------------


def test_prometheus_takes_every_page_whole(scene: Scene) -> None:
    """All targets are up, and nothing on a page was malformed, twice, out of order or of the wrong time. A scrape that
    a busy machine did not finish in its half second is none of that."""
    scene.prometheus.until_scraped(3, time.time())
    assert len(scene.prometheus.ask("targets")["activeTargets"]) == 3
    log = scene.prometheus.log.read_text(encoding="utf-8")
    wrong = re.compile(r"level=(warn|error)|duplicate|out.of.order|out of bounds|different value|Append failed")
    assert [line for line in log.splitlines() if wrong.search(line)] == []


@pytest.mark.parametrize(
    "family",
    [
        "gridsched_request_seconds_bucket",
        "gridsched_queue_wait_seconds_bucket",
        "gridsched_time_to_first_byte_seconds_bucket",
    ],
)
def test_an_exemplar_leads_from_a_time_to_a_job(scene: Scene, family: str) -> None:
    """Prometheus asks for OpenMetrics, keeps the exemplars, and gives job numbers that the server can explain."""
    end = time.time()
    asked_for = {"query": family, "start": f"{scene.prometheus.began:.3f}", "end": f"{end:.3f}"}
    kept = scene.prometheus.ask("query_exemplars", **asked_for)
    ours = [one for one in kept if one["seriesLabels"]["instance"] == scene.simulated.url.removeprefix("http://")]
    jobs = {example["labels"]["job"] for one in ours for example in one["exemplars"]}
    assert jobs
    headers = {"Authorization": f"Bearer {scene.key}"}
    for job in jobs:
        url = f"{scene.simulated.url}/api/jobs/{job}"
        answer = httpx.get(url, headers=headers, trust_env=False, timeout=10.0)
        assert answer.status_code == 200, answer.text


def test_promtool_finds_nothing_wrong_with_any_page(scene: Scene) -> None:
    """`promtool check metrics` on the pages of both servers and of the watchdog; OpenMetrics ends as it must."""
    for url in (scene.simulated.url, scene.bench.gateway.url, f"http://127.0.0.1:{scene.watchdog_port}"):
        page = scene.page(url).text
        assert "# TYPE gridsched_" in page
        done = subprocess.run(
            [tool("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), url
    told = scene.page(scene.simulated.url, "application/openmetrics-text; version=1.0.0")
    assert told.headers["Content-Type"].startswith("application/openmetrics-text")
    assert told.text.endswith("# EOF\n")
