"""`python -m sim`: run seeds, judge them, and say what broke. Exit code 1 on a violation, 2 for a bad argument,
130 when interrupted.

Owns the command line of the fast runner and nothing else.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from time import perf_counter

from sim.many import Sums, run_all
from sim.run import DEFAULT_EVENTS, Report, run_seed, shrink
from sim.trace import Trace

INTERRUPTED = 130  # as a shell has it


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; the exit code."""
    asked = _parser().parse_args(arguments)
    if asked.seeds is None:
        return _run_alone(asked)
    sums = Sums()
    began = perf_counter()
    try:
        for report in run_all(asked.seeds, asked.events, shrinking=asked.shrink):
            sums.add(report)
            _tell(_lines(report, asked, alone=False))
    except KeyboardInterrupt:
        _say_at_side("interrupted")
    sums.wall_seconds = perf_counter() - began
    if not asked.json:
        _tell(sums.lines())
    if sums.runs < len(asked.seeds):
        return INTERRUPTED
    return 1 if sums.broken else 0


def _run_alone(asked: argparse.Namespace) -> int:
    """One seed, told line by line where that was asked for."""
    watchers = [Trace(_line)] if asked.trace and not asked.shrink else []
    report = run_seed(asked.seed, asked.events, watchers=watchers)
    if report.violations and asked.shrink:
        report = shrink(report, asked.events)
        if asked.trace:
            run_seed(asked.seed, asked.events, scenario=report.scenario, watchers=[Trace(_line)])
    _tell(_lines(report, asked, alone=True))
    return 1 if report.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sim", description="Run the scheduler against a simulated world.")
    parser.add_argument("--seed", type=int, default=1, help="the seed of one run (default 1)")
    parser.add_argument("--seeds", type=_seed_range, metavar="A-B", help="run all seeds from A to B")
    parser.add_argument(
        "--events", type=_positive, default=DEFAULT_EVENTS, help="events in a run, before it is wound up"
    )
    parser.add_argument("--trace", action="store_true", help="print what is heard and decided (one seed)")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller run that breaks the same rule")
    parser.add_argument("--json", action="store_true", help="one JSON object a run")
    return parser


def _lines(report: Report, asked: argparse.Namespace, *, alone: bool) -> Iterator[str]:
    """What is said about a run: with many runs only the broken ones speak."""
    if asked.json:
        yield json.dumps(report.as_json())
        return
    if alone or report.violations:
        yield f"seed {report.seed}: {report.events} events, digest {report.digest}, faults {report.faults or 'none'}"
    for violation in report.violations:
        yield f"  {violation}"
    if report.violations and asked.shrink:
        scenario = report.scenario
        yield f"  still with clients {[client.name for client in scenario.clients]}, faults {sorted(scenario.faults)}"


def _seed_range(text: str) -> range:
    """`A-B`, both included."""
    first, _, last = text.partition("-")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of seeds like 1-30") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty range of seeds")
    return seeds


def _positive(text: str) -> int:
    """A whole number above zero."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        _line(line)


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say_at_side(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
