"""The table of faults is whole, and what it names is there."""

import re
from pathlib import Path

from tests.faults.index import INDEX, NOT_SHOWN

TESTS = Path(__file__).parent.parent
NUMBERS = {
    *(f"A{number}" for number in (1, 2, 3, 4, 6, 7, 9, 11)),
    *(f"B{number}" for number in (1, 2, 4, 5, 7, 8, 10, 11, 13, 15, 16, 17, 19, 20, 21, 24, 25, 27, 29, 30)),
    *(f"C{number}" for number in (1, 2, 4, 6, 7, 9, 11, 13, 15, 16, 18, 19, 20)),
    *(f"D{number}" for number in (1, 2, 4, 6, 7, 8, 10, 13, 14)),
    *(f"G{number}" for number in (1, 3, 4, 5, 6, 8, 9)),
    *(f"H{number}" for number in (1, 2, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18)),
    *(f"I{number}" for number in (1, 3, 4, 6, 8, 9, 11, 12, 13)),
    *(f"J{number}" for number in (1, 2, 4, 5, 7, 8, 10, 11, 13)),
    *(f"K{number}" for number in (1, 3, 4, 6, 8)),
    *(f"L{number}" for number in (1, 3, 5, 6, 7)),
    *(f"M{number}" for number in (1, 3, 5, 7, 9, 10, 11)),
}
LETTERS = "".join(sorted({number[0] for number in NUMBERS}))


def test_every_fault_is_in_the_table_once() -> None:
    """Shown by a test, or with the reason why not."""
    assert INDEX.keys() | NOT_SHOWN.keys() == NUMBERS
    assert not INDEX.keys() & NOT_SHOWN.keys()
    assert all(NOT_SHOWN.values())
    assert all(INDEX.values())


def test_every_test_that_the_table_names_is_there() -> None:
    """A file, and a function in it."""
    named = sorted({name for names in INDEX.values() for name in names})
    for file, function in (name.split("::") for name in named):
        text = (TESTS / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {function}\(", text, re.MULTILINE), f"{file} has no {function}"


def test_what_is_shown_in_this_folder_is_in_the_table() -> None:
    """A test that carries a number is found under it."""
    for path in Path(__file__).parent.glob("test_*.py"):
        for function in re.findall(
            rf"^(?:async )?def (test_[{LETTERS}]\d+_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            numbers = re.findall(rf"_([{LETTERS}]\d+)(?=_)", function)
            assert all(f"faults/{path.name}::{function}" in INDEX.get(number, ()) for number in numbers), function
