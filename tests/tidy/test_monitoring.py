"""The dashboard and the alerts: what they speak of exists; every alert has its row and its tests."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from ruamel.yaml import YAML

from gridsched.cli.main import COMMANDS
from gridsched.metrics import catalog
from gridsched.watchdog import metrics as watchdog
from tests.support.promql import groupings, legs, selectors, tokens

CONFIG = Path(__file__).parents[2] / "config"
BOARD: dict[str, Any] = json.loads((CONFIG / "grafana/gridsched.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
PLOTS = [panel for panel in PANELS if panel["type"] != "row"]
VARIABLES = {variable["name"] for variable in BOARD["templating"]["list"]}
EVERYWHERE = frozenset(("instance", "job"))
"""Labels that Prometheus puts on every series."""

OF_GRAFANA = frozenset(("__rate_interval", "__range"))
NOT_SHOWN = frozenset(("gridsched_watchdog_build_info", "gridsched_watchdog_gateway_since_timestamp_seconds"))
"""Who the watchdog is: for its variable. Since when: the timeline shows it."""
SHOWN_BY_ALERTS = frozenset(
    ("gridsched_watchdog_gateway_up", "gridsched_watchdog_gateway_held", "gridsched_watchdog_rollbacks_total")
)
"""Seen in the gateway's timeline and in the restarts; `held` and roll-backs raise alerts."""


@cache
def yaml(name: str) -> Any:
    """One of Prometheus' files, read once."""
    return YAML(typ="safe").load(CONFIG / "prometheus" / name)


RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml("alerts.yml")["groups"] for rule in group["rules"]
}


def known() -> Mapping[str, frozenset[str]]:
    """Every metric that can be asked for, with its labels."""
    found = {"up": EVERYWHERE}
    for metric in ProcessCollector(registry=CollectorRegistry()).collect():
        found |= {sample.name: EVERYWHERE for sample in metric.samples}
    for family in catalog.FAMILIES:
        labels = EVERYWHERE | frozenset(family.labels)
        if family.kind is catalog.Kind.HISTOGRAM:
            found |= {family.name + end: labels for end in ("_sum", "_count")} | {
                f"{family.name}_bucket": labels | {"le"}
            }
        else:
            found[family.name] = labels
    return found | {family.name: EVERYWHERE | frozenset(family.labels) for family in watchdog.FAMILIES}


KNOWN = known()


def sources(value: object) -> Iterator[dict[str, str]]:
    """Every data source that is named in some part of the dashboard."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts:
        yield from sources(part)
    if isinstance(value, dict) and "datasource" in value:
        yield value["datasource"]


def queries() -> Iterator[tuple[str, str]]:
    """Every expression there is, with where it stands."""
    for panel in PLOTS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for mark in BOARD["annotations"]["list"]:
        if "expr" in mark:
            yield mark["name"], mark["expr"]
    for name, rule in RULES.items():
        yield name, rule["expr"]


@pytest.mark.parametrize(("where", "expr"), [pytest.param(*one, id=one[0]) for one in queries()])
def test_a_query_asks_for_what_there_is(where: str, expr: str) -> None:
    """Metrics of the catalogs, labels that they have, variables of the dashboard."""
    asked = set(re.findall(r"\$(\w+)", expr))
    assert asked <= VARIABLES | OF_GRAFANA, where
    read = list(selectors(expr))
    assert read, where
    for metric, labels in read:
        assert metric in KNOWN, f"{where}: no metric {metric}"
        assert set(labels) <= KNOWN[metric], f"{where}: {metric} has no label {set(labels) - KNOWN[metric]}"
    have = frozenset[str]().union(*(KNOWN[metric] for metric, _ in read))
    assert set(groupings(expr)) <= have, where


def test_every_family_is_on_the_dashboard() -> None:
    """A new metric gets a panel, or a reason here."""
    shown = {metric for panel in PLOTS for target in panel["targets"] for metric, _ in selectors(target["expr"])}
    families = {family.name for family in catalog.FAMILIES} | {family.name for family in watchdog.FAMILIES}
    missing = {name for name in families if not {name, f"{name}_bucket", f"{name}_count"} & shown}
    assert missing == NOT_SHOWN | SHOWN_BY_ALERTS


def test_the_dashboard_can_be_imported_anywhere() -> None:
    """Nothing of one Grafana is in it: no number of its own, no data source but the variable's."""
    assert BOARD["uid"] == "gridsched"
    assert BOARD["schemaVersion"] >= 39
    assert "id" not in BOARD
    assert {source["uid"] for source in sources(BOARD)} == {"${datasource}", "-- Grafana --"}
    first = BOARD["templating"]["list"][0]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    used = {panel["type"] for panel in PLOTS}
    assert {item["id"] for item in BOARD["__requires"] if item["type"] == "panel"} == used
    assert used <= {"timeseries", "stat", "state-timeline", "table", "bargauge"}
    titles = [panel["title"] for panel in PANELS if panel["type"] == "row"]
    assert titles == ["Overview", "Classes", "Queues", "Devices", "Models", "Health", "Estimates"]


@pytest.mark.parametrize(("where", "expr"), [pytest.param(*one, id=one[0]) for one in queries()])
def test_what_every_program_tells_is_asked_of_ours_alone(where: str, expr: str) -> None:
    """A Prometheus has more to look after: `up` and `process_…` without the job would show, and mark, all of that."""
    for metric, labels in selectors(expr):
        assert metric.startswith("gridsched_") or "job" in labels, f"{where}: whose {metric}?"


def test_two_servers_have_timelines_of_their_own() -> None:
    """The states of one model on two of them, added up, would be the word for another state."""
    for panel in PLOTS:
        for target in panel["targets"] if panel["type"] == "state-timeline" else ():
            assert " by (" not in target["expr"] or "instance" in set(groupings(target["expr"])), panel["title"]
            assert "{{instance}}" in target["legendFormat"], panel["title"]


def test_a_bar_counts_what_happened_once() -> None:
    """Between points closer than the range of `increase` one event would be several bars."""
    for panel in PLOTS:
        if any("increase(" in target["expr"] and not target.get("instant") for target in panel["targets"]):
            assert panel["interval"] == "1m", panel["title"]


def test_panels_have_places_of_their_own() -> None:
    """No number twice, no cell twice, nothing beyond the right edge, each below its row."""
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    lowest = -1
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert place["y"] >= lowest, panel["title"]
        taken |= cells
        lowest = max(y for _, y in cells) + 1 if panel["type"] == "row" else lowest


@pytest.mark.parametrize("panel", PLOTS, ids=[panel["title"] for panel in PLOTS])
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """A description of sentences, a unit, a legend for every query with labels that its series have."""
    assert panel["description"].endswith("."), "a sentence"
    mapped = bool(panel["fieldConfig"]["defaults"].get("mappings"))
    assert panel["fieldConfig"]["defaults"].get("unit") or mapped
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for target in panel["targets"]:
        assert target["legendFormat"] or panel["type"] == "table"
        told = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        by = set(groupings(target["expr"]))
        kept = (
            by
            if " by (" in target["expr"]
            else frozenset[str]().union(*(KNOWN[m] for m, _ in selectors(target["expr"])))
        )
        assert told <= kept, f"{told - kept} is summed away"
        ranged = {text for kind, text in tokens(target["expr"].replace("$", "")) if kind == "duration"}
        assert ranged <= {"[__rate_interval]", "[__range]"}, "as long as the resolution wants"


@pytest.mark.parametrize("name", RULES)
def test_an_alert_says_what_it_is_and_what_to_do(name: str) -> None:
    """Severity, summary, description, and a row of the runbook, which its annotation leads to."""
    rule = RULES[name]
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"README.md#{name.lower()}"
    rows = [row for row in runbook() if f'<a id="{name.lower()}"></a>`{name}`' in row]
    assert len(rows) == 1
    assert all(len(cell.strip()) > 10 for cell in rows[0].strip("| ").split(" | "))


def test_the_runbook_has_no_row_too_many_and_names_commands_that_there_are() -> None:
    """In the alerts' order."""
    assert [re.findall(r"`(Gridsched\w+)`", row)[0] for row in runbook()] == list(RULES)
    named = set(re.findall(r"`gridsched (\w[\w-]*)", "\n".join(runbook())))
    assert named
    assert named <= set(COMMANDS)


@pytest.mark.parametrize("name", RULES)
def test_an_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not(name: str) -> None:
    """One that waits is also asked for before its time is over."""
    cases = [
        case
        for test in yaml("alerts_test.yml")["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == name
    ]
    assert any(case["exp_alerts"] for case in cases)
    silent = sum(not case["exp_alerts"] for case in cases)
    assert silent >= (2 if "for" in RULES[name] else 1)


def test_an_expression_is_taken_apart_where_it_compares() -> None:
    """What is left and right of a comparison or of a word between vectors; numbers are none."""
    assert legs('a{x="1 > 2"} > 5') == ['a{x="1 > 2"}']
    assert legs("a / b > 0.5\n  unless on (job) c[5m] > 0") == ["a / b", "c[5m]"]
    assert legs("sum by (x) (a > 1) or b == 0") == ["sum by (x) (a > 1)", "b"]
    with pytest.raises(ValueError, match="is missing"):
        tokens("sum(a")


def runbook() -> list[str]:
    """The rows of the table."""
    text = (CONFIG / "prometheus/README.md").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith('| <a id="')]
