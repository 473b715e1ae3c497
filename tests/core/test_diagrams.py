"""The README's pictures of states are drawn from the tables. `python -m tests.core.test_diagrams` draws them anew."""

from collections.abc import Iterator
from pathlib import Path

from gridsched.core import transitions
from gridsched.core.transitions import JOB_MOVES, diagram

README = Path(transitions.__file__).with_name("README.md")
BEGIN, END = "<!-- drawn from the tables -->\n", "<!-- end of what is drawn -->\n"


def drawn() -> Iterator[str]:
    """A picture of each table there is, with its name."""
    for name, table in vars(transitions).items():
        if name.endswith("_MOVES"):
            yield f"{name.removesuffix('_MOVES').capitalize()}:\n\n```mermaid\n{diagram(table)}\n```\n"


def redrawn(text: str) -> str:
    """The README with what the tables say now between its marks."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(drawn()) + "\n" + END + rest.split(END)[1]


def test_the_readme_draws_the_tables_as_they_are() -> None:
    """All of them, move by move."""
    text = README.read_text(encoding="utf-8")
    assert text == redrawn(text), "the tables have changed: python -m tests.core.test_diagrams"
    assert len(list(drawn())) >= 3


def test_a_diagram_has_every_move_once_and_the_ends() -> None:
    """Nothing is left out for beauty."""
    lines = diagram(JOB_MOVES).splitlines()
    assert "    [*] --> WAITING" in lines
    assert "    RUNNING --> WAITING: step end" in lines
    assert "    REJECTED --> [*]" in lines
    moves = sum(len(row) for row in JOB_MOVES.values())
    ends = sum(1 for row in JOB_MOVES.values() if not row)
    assert len(lines) == len(set(lines)) == 2 + moves + ends


if __name__ == "__main__":
    README.write_text(redrawn(README.read_text(encoding="utf-8")), encoding="utf-8")
