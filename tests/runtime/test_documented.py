"""What the README says of the decision log's lines, against what is emitted."""

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from gridsched.core.commands import Command, Log, LogEvent
from gridsched.core.events import Event
from gridsched.runtime.decisions import line_of
from gridsched.runtime.past import numbered
from sim.run import run_seed

README = (Path(__file__).parents[2] / "gridsched" / "runtime" / "README.md").read_text(encoding="utf-8")
CORE = (Path(__file__).parents[2] / "gridsched" / "core" / "README.md").read_text(encoding="utf-8")
OUTSIDE = {LogEvent.CLOCK, LogEvent.START, LogEvent.END}
"""What the scheduler does not say itself."""

SELDOM = {LogEvent.STARVATION}
"""What a run seldom comes to; its story shows it."""


def rows(text: str) -> dict[str, set[str]]:
    """Of a table, what is named in the first cell of each row, with what is named in the last."""
    named: dict[str, set[str]] = {}
    for row in re.findall(r"^\| (`.*) \|$", text, re.MULTILINE):
        first, *_, last = row.split(" | ")
        for name in re.findall(r"`([a-z_]+)`", first):
            named[name] = set(re.findall(r"`([a-z_]+)`", last))
    return named


_, _, SECTION = README.partition("## The decision log")
EVERYWHERE, _, OF_EVENTS = SECTION.partition("<!-- events:")
FIELDS = set(rows(EVERYWHERE))
EVENTS = rows(OF_EVENTS.partition("<!-- end of the events -->")[0])


def test_every_event_has_its_row() -> None:
    """And no other has one; what a line has of itself is told apart."""
    assert set(EVENTS) == {event.value for event in LogEvent}
    assert {"seq", "time", "event", "class", "job", "kind", "model", "device", "step", "steps", "rule"} < FIELDS


class Lines:
    """Looks on at runs, for the fields of their lines."""

    def __init__(self) -> None:
        self.fields: defaultdict[str, set[str]] = defaultdict(set)
        self.rules: set[str] = set()
        self.unread: list[Mapping[str, object]] = []

    def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        del event, now
        for command in commands:
            if isinstance(command, Log):
                line = line_of(command, 0.0, 1)
                self.fields[command.event.value] |= set(line)
                self.rules |= {str(line[key]) for key in ("rule", "held") if key in line}
                if numbered(msgspec.json.encode(line, enc_hook=str)) is None:
                    self.unread.append(line)


def undocumented(seen: Lines) -> dict[str, set[str]]:
    """What lines have that no row tells of."""
    return {event: more for event, found in seen.fields.items() if (more := found - FIELDS - EVENTS[event])}


def seen_in(seeds: range, events: int) -> Lines:
    """The lines of some runs with faults of every kind."""
    seen = Lines()
    for seed in seeds:
        run_seed(seed, events, watchers=[seen], own_checks=False)
    return seen


def test_what_a_line_has_is_documented() -> None:
    """Over some runs of the simulator."""
    seen = seen_in(range(1, 3), 300)
    assert undocumented(seen) == {}
    assert seen.unread == []
    assert set(seen.fields) > {"enqueue", "dispatch", "load", "reject"}


@pytest.mark.slow
def test_everything_that_is_emitted_is_documented_and_all_of_it_is_emitted() -> None:
    """Over many runs: each event that the scheduler has a word for is met, each field has its meaning, each rule
    that is named is one of the rules, and each line can be read again."""
    seen = seen_in(range(1, 31), 1500)
    assert undocumented(seen) == {}
    assert seen.unread == []
    assert {event.value for event in LogEvent} - set(seen.fields) <= {event.value for event in OUTSIDE | SELDOM}
    rules = set(re.findall(r"\b[SRLPDH]\d+[a-z]?\b", CORE + SECTION))
    assert {rule for rule in seen.rules if rule not in rules} == set()


PLACES = {LogEvent.CLOCK: "gridsched/runtime/steady.py", LogEvent.CONFIG: "gridsched/control/reloading.py"}


@pytest.mark.parametrize(("event", "path"), PLACES.items(), ids=lambda each: getattr(each, "value", None))
def test_what_others_say_is_documented_too(event: LogEvent, path: str) -> None:
    """The figures that stand in the calls of whoever says it."""
    text = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
    said = re.findall(r'"([a-z_]+)": ', "".join(re.findall(r"(?:_log\(|figures=)(\{.*?\})", text, re.DOTALL)))
    assert said
    assert set(said) <= EVENTS[event.value]
