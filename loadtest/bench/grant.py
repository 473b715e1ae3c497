"""The case `grant`: how long a decision takes, and from an arrival to its grant, while a crowd waits.

Owns what is asked of the program that measures it, in a process of its own, and how its figures become rows. Nothing
here goes over HTTP, and nobody stands in for gridsched: the reference is the same with nobody waiting, in the same
round. Times are of the processor.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from loadtest.bench.figures import added
from loadtest.bench.result import LeftOut, Plan, Row, row_of

PROGRAM = "sim.grant"
ROOT = Path(__file__).resolve().parents[2]
SIZES = (0, 100, 10_000)
TIMES_A_SECOND = 400
"""Grants of each kind, for a second of the plan."""
LONGEST_SECONDS = 600.0

ADDED = {"added_p50_us": "arrival_chat_p50_us", "added_p99_us": "arrival_chat_p99_us"}
"""What a crowd adds to a chat's way to its grant, of which figure."""


class _Size(msgspec.Struct):
    """So many wait; the figures of each round by name."""

    waiting: int
    rounds: list[dict[str, float]]


class _Said(msgspec.Struct):
    """What the program says."""

    sizes: list[_Size]
    a_waiting_job: dict[str, float]


def measure(plan: Plan, sizes: Sequence[int] = SIZES) -> Iterator[Row]:
    """A row for each size of the crowd; the first is the reference of the others. Raises LeftOut where it does not
    run."""
    plan.say(f"grants while {', '.join(f'{size:,}' for size in sizes)} wait")
    said = _run(plan, sizes)
    reference = _by_name(said.sizes[0])
    for size in said.sizes:
        each = _by_name(size)
        for name, figure in ADDED.items() if size is not said.sizes[0] else ():
            each[name] = added(each[figure], reference[figure])
        taken = ", ".join(f"{name} {value:,.0f}" for name, value in said.a_waiting_job.items())
        yield row_of(
            each,
            case="grant",
            variant="gridsched",
            reference=f"{said.sizes[0].waiting} waiting",
            setting=f"{size.waiting} waiting",
            notes=(f"a waiting job: {taken}",) if size is said.sizes[-1] else (),
        )


def _by_name(size: _Size) -> dict[str, list[float | None]]:
    return {name: [each[name] for each in size.rounds] for name in size.rounds[0]}


def _run(plan: Plan, sizes: Sequence[int]) -> _Said:
    options: Mapping[str, Sequence[int]] = {
        "--rounds": [plan.rounds],
        "--times": [max(1, int(TIMES_A_SECOND * plan.seconds))],
        "--sizes": sizes,
    }
    words = [word for option, values in options.items() for word in (option, *map(str, values))]
    command = [sys.executable, "-m", PROGRAM, *words, "--json"]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter and a module of this tree
            command, cwd=ROOT, capture_output=True, timeout=LONGEST_SECONDS, check=True
        )
        return msgspec.json.decode(done.stdout, type=_Said)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise LeftOut(f"{PROGRAM} ended with {error.returncode}: {last}") from None
    except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise LeftOut(f"{PROGRAM}: {error}") from None
