"""What a gateway costs as load grows: small requests by clients, streams by number and pace.

Owns the loads of the curves. Rows are like those of the cases, with the direct way beside. Others than gridsched are
left out: the curve is to show where our own knee is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadtest.bench.cases import Bench, Setting, measured, paced, small_settings
from loadtest.bench.figures import knee, saturation
from loadtest.bench.result import Row
from loadtest.bench.variants import DIRECT, GRIDSCHED

CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STREAMS = (1, 5, 10, 20, 50, 100)
PACES = (100, 250, 500, 1000, 2000, 4000, 8000)
"""Events a second of each of PACED_STREAMS streams."""
PACED_STREAMS = 8
MOST_ROUNDS = 3
"""A curve has many points, each of which steadies its neighbours."""
SHARE = 0.5
"""Of the time that a turn of the other cases has."""
BY_CLIENTS, BY_STREAMS, BY_PACE = "by clients", "by streams", "by pace"
KNEE_US = 10_000.0
"""An added p99 that a reader of a stream begins to see."""


def points(curves: Sequence[Row], setting: str, variant: str = GRIDSCHED) -> list[Row]:
    """The rows of one curve, BY_CLIENTS, BY_STREAMS or BY_PACE, of one variant."""
    return [row for row in curves if row.variant == variant and row.setting.startswith(setting)]


def load_at(row: Row) -> float:
    """A point's load: clients, streams, or chunks a second of all streams."""
    if row.setting.startswith(BY_PACE):
        return float(row.setting.removeprefix(BY_PACE)) * PACED_STREAMS
    return float(row.clients or row.streams or 0)


def knee_of(found: Sequence[Row]) -> float | None:
    """Where the cost of one curve begins to be felt; None where it never does, or nothing was measured.

    Of clients who ask again at once that is where the rate grows no more: each one more only waits for the others.
    """
    loads = [load_at(row) for row in found]
    if found and found[0].setting.startswith(BY_CLIENTS):
        return saturation(loads, [row.figures.get("requests_per_s") for row in found])
    if not any(row.added_p99_us is not None for row in found):
        return None
    return knee(loads, [row.added_p99_us for row in found], KNEE_US)


def settings(bench: Bench) -> Iterator[Setting]:
    """Every point of every curve."""
    for setting in small_settings(bench, CLIENTS):
        yield replace(setting, setting=BY_CLIENTS)
    for streams in STREAMS:
        yield paced(bench, streams, setting=BY_STREAMS)
    for pace in PACES:
        yield paced(bench, PACED_STREAMS, pace, setting=f"{BY_PACE} {pace}")


def steps(bench: Bench) -> int:
    """How many points there are, of which `measure` tells."""
    return sum(1 for _ in settings(bench))


def measure(bench: Bench) -> Iterator[Row]:
    """The rows of the curves, over the stub engine."""
    plan = replace(bench.plan, seconds=SHARE * bench.plan.seconds)
    ours = replace(bench, plan=plan, up=[variant for variant in bench.up if variant.name in (DIRECT, GRIDSCHED)])
    for setting in settings(ours):
        count = setting.clients or setting.streams
        bench.plan.step(f"cost curve of {setting.case} {setting.setting}: {count}")
        yield from measured(ours, replace(setting, rounds=min(MOST_ROUNDS, bench.plan.rounds)))
