"""One seed, run and judged; and the search for the smallest run that still breaks the same rule.

Owns what a run reports. Must never swallow an error of the scheduler: it is a violation like any other.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from time import process_time

from gridsched.core import invariants
from gridsched.core.scheduler import Scheduler
from sim.checkers import Violation, Watch
from sim.coverage import Coverage
from sim.faults import KINDS
from sim.workload import Scenario, draw
from sim.world import Steps, Watcher, World

ENOUGH = 5  # violations, after which a run ends: what follows is mostly the same one again
DEFAULT_EVENTS = 1500
OWN_CHECKS_EVERY = 25  # steps
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


class _Invariants:
    """The scheduler's own checks. Made after every few steps only: they cost more than the step, and what they find
    does not go away by itself."""

    def __init__(self, scheduler: object) -> None:
        self._scheduler = scheduler
        self._steps = 0

    def saw(self, *_: object) -> None:
        """One step has been made."""
        self._steps += 1
        if self._steps % OWN_CHECKS_EVERY == 0 and isinstance(self._scheduler, Scheduler):
            invariants.check(self._scheduler)


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
    scenario = scenario or draw(seed, KINDS)
    began = process_time()
    watch = Watch()
    coverage = Coverage(watch.book)
    scheduler = make(scenario)
    everyone = (*watchers, coverage, watch, *([_Invariants(scheduler)] if own_checks else []))
    world = World(scenario, scheduler, everyone, stop_early=lambda: len(watch.found) >= ENOUGH)
    found = watch.found
    try:
        with coverage.counting_moves():
            world.run(events)
        if not found:
            watch.finish()
    except Exception as error:  # noqa: BLE001 - whatever the scheduler raises is the finding
        found.append(Violation("crash", world.steps, world.now, f"{type(error).__name__}: {error}"))
    counts = {kind: count for kind, count in sorted(world.faults.counts.items()) if count}
    seconds = process_time() - began
    return Report(seed, world.steps, counts, watch.digest, tuple(found), scenario, Counter(coverage.met), seconds)


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
