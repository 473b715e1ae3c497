"""`python -m sim`: run seeds, judge them, and say what broke. Exit code 1 on a violation, 2 for a bad argument.

Owns the command line of the fast runner and nothing else.
"""

import argparse
import json
import sys
from collections.abc import Iterator

from sim.run import DEFAULT_EVENTS, Report, run_seed, shrink
from sim.trace import Trace


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; the exit code."""
    asked = _parser().parse_args(arguments)
    seeds = asked.seeds if asked.seeds is not None else [asked.seed]
    broken = 0
    for seed in seeds:
        watchers = [Trace(_line)] if asked.trace and not asked.shrink else []
        report = run_seed(seed, asked.events, watchers=watchers)
        if report.violations and asked.shrink:
            report = shrink(report, asked.events)
            if asked.trace:
                run_seed(seed, asked.events, scenario=report.scenario, watchers=[Trace(_line)])
        broken += bool(report.violations)
        for line in _lines(report, asked, alone=len(seeds) == 1):
            _line(line)
    if not asked.json and len(seeds) > 1:
        _line(f"{len(seeds)} seeds, {broken} with violations")
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sim", description="Run the scheduler against a simulated world.")
    parser.add_argument("--seed", type=int, default=1, help="the seed of one run (default 1)")
    parser.add_argument("--seeds", type=_seed_range, metavar="A-B", help="run all seeds from A to B")
    parser.add_argument(
        "--events", type=_positive, default=DEFAULT_EVENTS, help="events in a run, before it is wound up"
    )
    parser.add_argument("--trace", action="store_true", help="print what is heard and decided")
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


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
