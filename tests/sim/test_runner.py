"""The fast runner: repeatable, lively, and clean over its kept seeds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gridsched.core.commands import Command
from gridsched.core.events import DeviceRead, Event, JobEnded, JobSubmitted
from gridsched.core.scheduler import Scheduler
from sim.__main__ import main
from sim.faults import KINDS
from sim.run import run_seed, shrink, with_scheduler
from sim.workload import Scenario, draw

ROOT = Path(__file__).parents[2]


class Broken(Scheduler):
    """A scheduler that breaks down at the first job of a class."""

    def step(self, event: Event, now: float) -> tuple[Command, ...]:
        """Raise for a low job, else step."""
        if isinstance(event, JobSubmitted) and event.job.job_class.is_low:
            raise RuntimeError("planted")
        return super().step(event, now)


def test_the_same_seed_has_the_same_digest() -> None:
    """Twice in one process."""
    first, second = run_seed(5, 200), run_seed(5, 200)
    assert first == second
    assert run_seed(6, 200).digest != first.digest


@pytest.mark.slow
def test_the_digest_does_not_depend_on_the_process() -> None:
    """No order of a set and no address leaks into a decision: the same under other hash seeds."""
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "sim", "--seed", "11", "--events", "400", "--json"],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(json.loads(done.stdout)["digest"])
    assert len(digests) == 1


def test_nothing_goes_wrong_in_a_world_without_faults() -> None:
    """None of them strikes."""
    quiet = draw(3, ())
    assert run_seed(3, 300, scenario=quiet).faults == {}


def test_a_scenario_is_drawn_from_its_seed_alone() -> None:
    """The same for the same seed; a client that is left out changes nobody else."""
    assert draw(4, KINDS) == draw(4, KINDS)
    assert draw(4, KINDS) != draw(5, KINDS)


def test_an_error_of_the_scheduler_is_a_violation() -> None:
    """It is reported with its words, and the run ends."""
    scenario = next(one for one in (draw(seed, ()) for seed in range(1, 50)) if len(one.clients) > 5)
    report = run_seed(scenario.seed, 300, make=lambda one: Broken(one.policy), scenario=scenario)
    assert [violation.rule for violation in report.violations] == ["crash"]
    assert "planted" in str(report.violations[0])


def test_shrinking_keeps_the_rule_and_drops_the_rest() -> None:
    """One client is enough to break a scheduler that fails at the first low job."""

    def make(scenario: Scenario) -> Broken:
        return Broken(scenario.policy)

    seed = next(seed for seed in range(1, 50) if run_seed(seed, 100, make=make).violations)
    small = shrink(run_seed(seed, 100, make=make), 100, make)
    assert small.violations[0].rule == "crash"
    assert len(small.scenario.clients) == 1
    assert small.scenario.faults == frozenset()


def test_the_command_line_reports_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The contract's fields, one object a run; exit code 0 without a violation."""
    assert main(["--seed", "2", "--events", "150", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"seed", "events", "faults", "digest", "violations"}
    assert (report["seed"], report["violations"]) == (2, [])


@pytest.mark.slow
def test_many_seeds_end_with_what_they_add_up_to(capsys: pytest.CaptureFixture[str]) -> None:
    """On all cores, in order: runs, events and how fast, faults by kind, what was met and what never was."""
    assert main(["--seeds", "1-6", "--events", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "6 seeds, 0 with violations"
    assert [line.split(":")[0] for line in lines[2:]] == [
        "faults",
        "moves of the tables",
        "pairs of event and state",
        "kinds of decisions",
    ]
    assert main(["--seeds", "3-4", "--events", "50", "--json"]) == 0
    assert [json.loads(line)["seed"] for line in capsys.readouterr().out.splitlines()] == [3, 4]


def test_the_command_line_tells_the_story_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """--trace shows what was heard and decided, without the readings that led to nothing."""
    assert main(["--seed", "2", "--events", "150", "--trace"]) == 0
    out = capsys.readouterr().out
    assert JobSubmitted.__name__ in out
    assert JobEnded.__name__ in out
    assert "-> GrantStep(grant=Grant(" in out
    assert out.count(DeviceRead.__name__) < 100


@pytest.mark.parametrize("arguments", [["--seeds", "9-1"], ["--seeds", "x"], ["--events", "0"], ["--events", "-3"]])
def test_the_command_line_refuses_what_makes_no_sense(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a sentence."""
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "is" in capsys.readouterr().err


def test_the_plain_scheduler_is_what_runs_by_default() -> None:
    """With the scenario's figures."""
    assert isinstance(with_scheduler(draw(1, ())), Scheduler)
