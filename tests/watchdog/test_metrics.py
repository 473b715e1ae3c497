"""The watchdog's metrics page: the README's table, and what it says before, while and after a gateway lives."""

import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import gridsched.watchdog
from gridsched import __version__
from gridsched.watchdog.metrics import FAMILIES, page
from gridsched.watchdog.tally import REASONS
from tests.watchdog.conftest import Bench


def samples(bench: Bench) -> dict[str, float]:
    """The page as the client library reads it; a sample by its name and the value of its label."""
    read = text_string_to_metric_families(page(bench.watch, bench.keeper))
    return {":".join((one.name, *one.labels.values())): one.value for family in read for one in family.samples}


def test_the_readme_lists_every_family_as_it_is() -> None:
    """Name, kind, label and help, in the page's order, and nothing else."""
    readme = Path(gridsched.watchdog.__file__).with_name("README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("| `gridsched_watchdog_")]
    labels = {family: ", ".join(f"`{label}`" for label in family.labels) or "-" for family in FAMILIES}
    assert rows == [f"| `{one.name}` | {one.kind} | {labels[one]} | {one.help} |" for one in FAMILIES]


def test_the_page_has_every_family_once_and_every_reason_from_the_start(bench: Bench) -> None:
    """So that a rate has something to begin at, and an alert is never about nothing."""
    read = list(text_string_to_metric_families(page(bench.watch, bench.keeper)))
    assert [(one.name.removesuffix("_total"), one.type, one.documentation) for one in read] == [
        (one.name.removesuffix("_total"), one.kind, one.help) for one in FAMILIES
    ]
    told = samples(bench)
    assert [told[f"gridsched_watchdog_restarts_total:{reason}"] for reason in REASONS] == [0.0] * len(REASONS)
    assert told[f"gridsched_watchdog_build_info:{__version__}"] == 1


@pytest.mark.slow
def test_the_page_follows_the_gateway_and_what_was_done_about_it(bench: Bench) -> None:
    """Up, then held down by a configuration that it does not start with, which nobody has run well with before."""
    began = time.time()
    bench.configure("")
    bench.turn_until(bench.serves)
    told = samples(bench)
    assert (told["gridsched_watchdog_gateway_up"], told["gridsched_watchdog_gateway_held"]) == (1, 0)
    assert told["gridsched_watchdog_gateway_state:serving"] == 1
    assert told["gridsched_watchdog_gateway_since_timestamp_seconds"] >= began - 0.001
    assert told["gridsched_watchdog_last_check_timestamp_seconds"] >= began - 0.001
    bench.close()
    bench.configure("exit 3")
    bench.turn_until(lambda: bench.keeper.is_held)
    bench.turn_until(lambda: bench.watch.last().owner is None)
    told = samples(bench)
    assert (told["gridsched_watchdog_gateway_up"], told["gridsched_watchdog_gateway_held"]) == (0, 1)
    assert told["gridsched_watchdog_gateway_state:not_running"] == 1
