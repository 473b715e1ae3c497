"""One seed, run and judged; and the search for the smallest run that still breaks the same rule.

Owns what a run reports. Must never swallow an error of the scheduler: it is a violation like any other.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import process_time

from gridsched.core import invariants
from gridsched.core.commands import Command
from gridsched.core.events import Event
from gridsched.core.scheduler import Scheduler
from sim.checkers import Violation, Watch
from sim.coverage import Coverage
from sim.faults import KINDS
from sim.workload import Scenario, draw
from sim.world import Steps, Watcher, World

ENOUGH = 5  # violations, after which a run ends: what follows is mostly the same one again
DEFAULT_EVENTS = 1500
OWN_CHECKS_EVERY = 25  # steps
JUDGED_AT_ONCE = 4 * OWN_CHECKS_EVERY  # steps; more would gain little
COLLECT_EVERY = 200_000  # objects; the young generation of a run is garbage by counting references alone
Make = Callable[[Scenario], Steps]


def with_scheduler(scenario: Scenario) -> Steps:
    """The scheduler as it is, with the scenario's figures."""
    return Scheduler(scenario.policy)


@dataclass(frozen=True, slots=True)
class Report:
    """What came of one run. `events` is how many steps the scheduler made, `met` what of its tables was met how often,
    `cpu_seconds` what it cost."""

    seed: int
    events: int
    faults: dict[str, int]
    digest: str
    violations: tuple[Violation, ...]
    scenario: Scenario = field(repr=False)
    met: Mapping[str, int] = field(default_factory=dict, repr=False)
    cpu_seconds: float = field(default=0.0, compare=False)

    def as_json(self) -> dict[str, object]:
        """The public form."""
        return {
            "seed": self.seed,
            "events": self.events,
            "faults": self.faults,
            "digest": self.digest,
            "violations": [str(one) for one in self.violations],
        }


class _Enough(Exception):
    """Ends a run that has broken rules often enough."""


class _Judges:
    """Shows the steps to those who know only what passed the door, many at once: they find the same, but what they need
    stays in the processor's caches, instead of making room for the scheduler and the world from step to step. Raises
    _Enough at the step that has filled the report; nobody sees a later one.

    The scheduler's own invariants, if it is given, look at what is there now. They cost more than a step, and what they
    find does not go away by itself."""

    def __init__(self, watch: Watch, coverage: Coverage, scheduler: Scheduler | None) -> None:
        self._found = watch.found
        self._cover, self._watch = coverage.saw, watch.saw
        self._scheduler = scheduler
        self._steps: list[tuple[Event, tuple[Command, ...], float]] = []

    def saw(self, event: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        self._steps.append((event, commands, now))
        if len(self._steps) % OWN_CHECKS_EVERY == 0:
            if self._scheduler is not None:
                invariants.check(self._scheduler)
            if len(self._steps) >= JUDGED_AT_ONCE:
                self.catch_up()

    def catch_up(self) -> None:
        """Judge what has not been judged."""
        steps, self._steps = self._steps, []
        cover, watch, found = self._cover, self._watch, self._found
        for event, commands, now in steps:
            cover(event, commands, now)
            watch(event, commands, now)
            if len(found) >= ENOUGH:
                raise _Enough


def run_seed(
    seed: int,
    events: int = DEFAULT_EVENTS,
    *,
    make: Make = with_scheduler,
    scenario: Scenario | None = None,
    watchers: Iterable[Watcher] = (),
    own_checks: bool = True,
) -> Report:
    """Run one seed, or a scenario in its place, and judge it. `own_checks`: by the scheduler's own invariants too."""
    with _collecting_seldom():
        return _run(seed, events, scenario or draw(seed, KINDS), make, watchers, own_checks=own_checks)


def _run(
    seed: int, events: int, scenario: Scenario, make: Make, watchers: Iterable[Watcher], *, own_checks: bool
) -> Report:
    began = process_time()
    watch = Watch()
    coverage = Coverage(watch.book)
    scheduler = make(scenario)
    judges = _Judges(watch, coverage, scheduler if own_checks and isinstance(scheduler, Scheduler) else None)
    world = World(scenario, scheduler, (*watchers, judges))
    found = watch.found
    try:
        with coverage.counting_moves():
            try:
                world.run(events)
            finally:
                judges.catch_up()  # before a crash is told, what came before it
        if not found:
            watch.finish()
    except _Enough:
        pass
    except Exception as error:  # noqa: BLE001 - whatever the scheduler raises is the finding
        found.append(Violation("crash", watch.steps, world.now, f"{type(error).__name__}: {error}"))
    counts = {kind: count for kind, count in sorted(world.faults.counts.items()) if count}
    seconds = process_time() - began
    return Report(seed, watch.steps, counts, watch.digest, tuple(found), scenario, Counter(coverage.met), seconds)


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Look for garbage that counting references does not find only now and then."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def shrink(report: Report, events: int, make: Make = with_scheduler) -> Report:
    """The smallest scenario found that breaks the same rule first: fewer faults, clients and models, then events."""
    rule = report.violations[0].rule

    def breaks(scenario: Scenario, limit: int) -> Report | None:
        tried = run_seed(report.seed, limit, scenario=scenario, make=make)
        return tried if tried.violations and tried.violations[0].rule == rule else None

    best, better = report, True
    while better:
        better = False
        for scenario in _smaller(best.scenario):
            if tried := breaks(scenario, events):
                best, better = tried, True
                break
    return best


def _smaller(scenario: Scenario) -> Iterable[Scenario]:
    """Scenarios with one thing less."""
    for kind in sorted(scenario.faults):
        yield replace(scenario, faults=scenario.faults - {kind})
    for client in scenario.clients:
        yield replace(scenario, clients=tuple(one for one in scenario.clients if one != client))
    wanted = {client.model for client in scenario.clients}
    for model in scenario.models:
        if model.name not in wanted:
            yield replace(scenario, models=tuple(one for one in scenario.models if one != model))
    for feature in sorted(scenario.features):
        yield replace(scenario, features=scenario.features - {feature})
    if scenario.drain:
        yield replace(scenario, drain=False)
