"""A process's phases: the table, tried pair by pair, and its picture. `python -m tests.engine.test_phases` draws it."""

from itertools import product
from pathlib import Path

import pytest

from gridsched.core.errors import IllegalMove
from gridsched.core.transitions import diagram, moved
from gridsched.engine import phases
from gridsched.engine.phases import PHASE_MOVES, Phase, PhaseMove

README = Path(phases.__file__).with_name("README.md")
BEGIN, END = "<!-- drawn from the table -->\n", "<!-- end of what is drawn -->\n"


def redrawn(text: str) -> str:
    """The README with what the table says now between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}```mermaid\n{diagram(PHASE_MOVES)}\n```\n{END}{rest.split(END)[1]}"


@pytest.mark.parametrize(("phase", "move"), list(product(Phase, PhaseMove)))
def test_every_pair_is_in_the_table_or_refused(phase: Phase, move: PhaseMove) -> None:
    """A move that the table lacks is a bug of ours, and says so."""
    if move in PHASE_MOVES[phase]:
        assert moved(PHASE_MOVES, phase, move) is PHASE_MOVES[phase][move]
    else:
        with pytest.raises(IllegalMove, match=f"{phase.name} does not allow {move.name}"):
            moved(PHASE_MOVES, phase, move)


def test_there_are_no_dead_words() -> None:
    """Every phase has a row and is reached, every move is possible, and two phases are ends."""
    assert set(PHASE_MOVES) == set(Phase)
    assert {move for row in PHASE_MOVES.values() for move in row} == set(PhaseMove)
    assert {phase for row in PHASE_MOVES.values() for phase in row.values()} == set(Phase)
    assert {phase for phase, row in PHASE_MOVES.items() if not row} == {Phase.STOPPED, Phase.FAILED}


def test_the_readme_draws_the_table_as_it_is() -> None:
    """Move by move."""
    text = README.read_text(encoding="utf-8")
    assert text == redrawn(text), "the table has changed: python -m tests.engine.test_phases"


if __name__ == "__main__":
    README.write_text(redrawn(README.read_text(encoding="utf-8")), encoding="utf-8")
