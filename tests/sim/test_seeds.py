"""Many seeds with faults, judged by the independent checkers: safety under faults, then liveness in a healed world."""

from pathlib import Path

import pytest

from sim.coverage import ALL_MOVES
from sim.faults import KINDS
from sim.many import Sums, run_all

ROOT = Path(__file__).parents[2]
EVENTS = 2000
LAST = 120
"""The seeds from here to 200 met nothing that those before had not: no move of a table, no pair of event and state, no
kind of decision. `make sim` plays 10,000."""

SELDOM = {"ServerState DRAINING DRAIN"}  # a second signal: that is the server's own test
KEPT = [
    int(line.split(maxsplit=1)[0])
    for line in (ROOT / "sim" / "seeds.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.slow
def test_runs_with_faults_break_no_rule_and_everything_ends() -> None:
    """120 seeds and those that once found something, on all cores: faults of every kind, healing, and an end for every
    job, wish, lease and pin. Whatever a table allows happens somewhere."""
    sums = Sums()
    broken: list[str] = []
    for report in run_all(sorted({*range(1, LAST + 1), *KEPT}), EVENTS):
        assert report.events >= EVENTS or report.violations
        broken += [f"seed {report.seed}: {violation}" for violation in report.violations]
        sums.add(report)
    assert broken == []
    assert {kind for kind in KINDS if not sums.faults[kind]} == set()
    assert {move for move in ALL_MOVES if not sums.met[move]} <= SELDOM
