"""The watchdog's metrics page: what the last look at the gateway found, and what the watchdog has done about it.

Owns the names and helps of the families (the README's table is tested against them) and the page's text, written here
because the watchdog has the standard library alone. Asks nobody: a scrape neither needs the gateway nor looks at it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gridsched import __version__
from gridsched.watchdog.keeper import Keeper
from gridsched.watchdog.watch import State, Watch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `name` is as on the page, a counter's `_total` included."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


GATEWAY_UP = Family(
    "gridsched_watchdog_gateway_up",
    "gauge",
    (),
    "1 while the gateway beats and answers, as the last look found it, else 0.",
)
GATEWAY_STATE = Family(
    "gridsched_watchdog_gateway_state",
    "gauge",
    ("state",),
    "1 for the state that the gateway is in (not_running, starting, serving, wedged), 0 for the others.",
)
GATEWAY_SINCE = Family(
    "gridsched_watchdog_gateway_since_timestamp_seconds",
    "gauge",
    (),
    "Since when the gateway is in that state.",
)
GATEWAY_HELD = Family(
    "gridsched_watchdog_gateway_held",
    "gauge",
    (),
    "1 while the gateway is down and is not started again before its configuration changes or somebody asks, else 0.",
)
LAST_CHECK = Family(
    "gridsched_watchdog_last_check_timestamp_seconds",
    "gauge",
    (),
    "When the watchdog has last looked at the gateway; 0 before the first look.",
)
RESTARTS = Family(
    "gridsched_watchdog_restarts_total",
    "counter",
    ("reason",),
    "Starts of the gateway by the watchdog after one that ended: asked, crashed, wedged, hung, configuration, in_use.",
)
ROLLBACKS = Family(
    "gridsched_watchdog_rollbacks_total",
    "counter",
    (),
    "Configurations that did not start and were replaced by the last good one, without being asked.",
)
BUILD_INFO = Family("gridsched_watchdog_build_info", "gauge", ("version",), "Always 1; what is running.")

FAMILIES: tuple[Family, ...] = (
    GATEWAY_UP,
    GATEWAY_STATE,
    GATEWAY_SINCE,
    GATEWAY_HELD,
    LAST_CHECK,
    RESTARTS,
    ROLLBACKS,
    BUILD_INFO,
)


def page(watch: Watch, keeper: Keeper) -> str:
    """The whole page, at this moment."""
    last = watch.last()
    values: Mapping[Family, Mapping[str, float]] = {
        GATEWAY_UP: {"": last.healthy},
        GATEWAY_STATE: {state.value: state is last.state for state in State},
        GATEWAY_SINCE: {"": round(last.since, 3)},
        GATEWAY_HELD: {"": keeper.is_held},
        LAST_CHECK: {"": round(watch.looked_at, 3)},
        RESTARTS: keeper.tally.restarts,
        ROLLBACKS: {"": keeper.tally.rollbacks},
        BUILD_INFO: {__version__: 1},
    }
    return "".join(_told(family, values[family]) for family in FAMILIES)


def _told(family: Family, values: Mapping[str, float]) -> str:
    """One family's lines. Every value of a label is a word of ours, and needs no escape."""
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
    for label, value in values.items():
        labels = f'{{{family.labels[0]}="{label}"}}' if family.labels else ""
        lines.append(f"{family.name}{labels} {value + 0!r}")  # a truth value becomes its number
    return "\n".join(lines) + "\n"
