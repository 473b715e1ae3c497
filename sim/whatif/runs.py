"""Many runs: every policy with every seed, in parallel processes, and the mean of each.

Owns the pool. A run is one process's affair from beginning to end, so the figures do not depend on how many there are.
"""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from gridsched.core.job import JobClass
from sim.whatif.scenario import ALONE, UNDISTURBED, PolicyRun, Scenario
from sim.whatif.tally import Result, mean
from sim.whatif.world import Run

FEW = 8
"""Runs that are made here: starting other processes would take longer."""

CHATS = JobClass.INTERACTIVE.label
"""The row of the people who wait."""

Task = tuple[Scenario, PolicyRun, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one scenario: the mean of each policy. `alone`: the interactive clients without low work.
    `undisturbed`: the low work without them. None where there are no such clients."""

    scenario: Scenario
    alone: Result | None
    undisturbed: Result | None
    policies: dict[str, Result]

    def ratios(self, name: str) -> tuple[float, float] | None:
        """How much longer than alone people wait under a policy, p50 and p95; None where nothing was measured."""
        row = self.policies[name].classes.get(CHATS)
        reference = self.alone.classes.get(CHATS) if self.alone is not None else None
        if row is None or reference is None:
            return None
        if not row.p50_s or not row.p95_s or not reference.p50_s or not reference.p95_s:
            return None
        return row.p50_s / reference.p50_s, row.p95_s / reference.p95_s

    def kept(self, name: str) -> float | None:
        """The part of its undisturbed answers that low work gets under a policy, embeddings included."""
        if self.undisturbed is None:
            return None
        rows = tuple(self.undisturbed.classes)
        whole = self.undisturbed.answered(*rows)
        return self.policies[name].answered(*rows) / whole if whole else None


def run(scenario: Scenario, policies: Sequence[PolicyRun] | None = None) -> Outcome:
    """Run a scenario under its policies, or under others; its variants are others' to run."""
    lean = replace(scenario, variants={}, policies=())  # what a run does not need is not sent to its process
    chosen = scenario.policies if policies is None else policies
    cases: list[tuple[Scenario, PolicyRun]] = [(lean, each) for each in chosen]
    for name, low in ((ALONE, False), (UNDISTURBED, True)):
        part = lean.only(low=low)
        if part.clients:
            cases.append((part, PolicyRun(name)))
    results = _all([(of, policy, seed) for of, policy in cases for seed in scenario.seeds])
    count = len(scenario.seeds)
    means = [mean(results[first : first + count]) for first in range(0, len(results), count)]
    by_name = {policy.name: result for (_, policy), result in zip(cases, means, strict=True)}
    return Outcome(scenario, by_name.pop(ALONE, None), by_name.pop(UNDISTURBED, None), by_name)


def _all(tasks: Sequence[Task]) -> list[Result]:
    """Every run, in order."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, len(tasks))
    if len(tasks) <= FEW or workers == 1:
        return [_one(task) for task in tasks]
    # Spawned, not forked: whoever calls may have threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context)
    # Ctrl-C reaches everybody at the terminal, and is for us alone: who starts with it blocked never hears it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        results = pool.map(_one, tasks, chunksize=max(1, len(tasks) // (8 * workers)))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return list(results)
    except BaseException:
        for child in multiprocessing.active_children():  # nobody wants what they are at, which may take hours
            child.terminate()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        pool.shutdown(cancel_futures=True)


def _one(task: Task) -> Result:
    scenario, policy, seed = task
    return Run(scenario, policy, seed).play()
