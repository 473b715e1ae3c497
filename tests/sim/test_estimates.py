"""S9b: what waiting jobs are told against what came, on the mixed load that a busy card lives with."""

from collections import defaultdict
from statistics import median

import pytest

from gridsched.core.commands import Command, GrantStep
from gridsched.core.estimate import forecast
from gridsched.core.events import Event
from gridsched.core.ids import JobId
from gridsched.core.scheduler import Scheduler
from sim.bench import mixed_load
from sim.faults import KINDS
from sim.workload import draw
from sim.world import World

WARM_SECONDS = 60.0
EVERY = 37


class Foretold:
    """Asks for all estimates every few steps and keeps how wrong each was, by what it was told to: the class, and
    embeddings apart."""

    def __init__(self, scheduler: Scheduler, after: float) -> None:
        self.errors: defaultdict[str, list[float]] = defaultdict(list)
        self.untold = 0
        self._scheduler = scheduler
        self._after = after
        self._steps = 0
        self._open: defaultdict[JobId, list[tuple[float, float, str]]] = defaultdict(list)

    def saw(self, _: Event, commands: tuple[Command, ...], now: float) -> None:
        """One step has been made."""
        for command in commands:
            if isinstance(command, GrantStep):
                for at, foretold_at, told in self._open.pop(command.grant.job_id, ()):
                    if now > at:
                        self.errors[told].append(abs(foretold_at - now) / (now - at))
        self._steps += 1
        if self._steps % EVERY == 0 and now >= self._after:
            self._ask(now)

    def _ask(self, now: float) -> None:
        state = self._scheduler.state
        told = forecast(state, now)
        for record in (record for model in state.waiting_models.values() for record in model.queue):
            job = record.job
            if job.id not in told:
                self.untold += 1
                continue
            kind = "embeddings" if job.steps > 1 else job.job_class.label
            self._open[job.id].append((now, told[job.id], kind))


@pytest.mark.slow
def test_S9b_half_of_all_estimates_are_less_than_a_quarter_wrong_under_mixed_load() -> None:
    """For each class by itself, asked at any moment of a wait; in this world everybody can be told something."""
    scenario = mixed_load()
    scheduler = Scheduler(scenario.policy)
    foretold = Foretold(scheduler, WARM_SECONDS)
    World(scenario, scheduler, [foretold]).run(5000)
    assert foretold.untold == 0
    assert set(foretold.errors) == {"interactive", "background", "batch", "embeddings"}
    for kind, errors in foretold.errors.items():
        assert len(errors) > 100, kind
        assert median(errors) < 0.25, kind


@pytest.mark.slow
def test_S9b_a_forecast_can_be_asked_for_at_any_moment_of_a_run_full_of_faults() -> None:
    """It never lies in the past and never fails, whatever state it meets; one job is told what the list tells."""

    class Asker:
        steps = 0

        def saw(self, _: Event, __: tuple[Command, ...], now: float) -> None:
            told = forecast(scheduler.state, now)
            assert all(at >= now for at in told.values())
            self.steps += 1
            if self.steps % 5:
                return
            for view in scheduler.jobs(now).waiting:
                alone = scheduler.waiting(view.id, now)
                assert alone is not None
                assert (alone.position, alone.estimate_seconds) == (view.position, view.estimate_seconds)

    for seed in (1, 515, 561):
        scenario = draw(seed, KINDS)
        scheduler = Scheduler(scenario.policy)
        World(scenario, scheduler, [Asker()]).run(300)
