"""What commands print: tables and progress for a person, plain columns for a program, one JSON document on demand.

Owns how things look, and that nothing which is printed does anything to a terminal. On a terminal `rich` draws; where
the output is piped there are no boxes, no colours and no cut words. Must never decide what is shown.
"""

import os
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Literal, Protocol

from gridsched.library.names import printable

if TYPE_CHECKING:
    from rich.console import Console

Row = Sequence[str]

LINE_SECONDS = 10.0
"""Between two lines that tell how far the same thing has come, where there is no bar."""

SHORTEST_NAME = 10
"""Letters of a name that still tell something."""


class Tell(Protocol):
    """Says how far something has come."""

    def __call__(self, done: float, total: float | None, text: str) -> None:
        """So much of so much (None: nobody knows), and one sentence."""


def say(sentence: str) -> None:
    """A sentence, or one a line, beside the output, for whoever started the command."""
    beside("\n".join(f"gridsched: {printable(line)}" for line in sentence.split("\n")))


def beside(lines: str) -> None:
    """Lines beside the output that do nothing to a terminal."""
    with suppress(OSError):
        print(lines, file=sys.stderr, flush=True)


def agrees(question: str) -> bool:
    """Whether whoever sits at the terminal says yes; a program has said so by starting the command."""
    if not sys.stdin.isatty():
        return True
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def is_terminal(stream: IO[str]) -> bool:
    """Whether a person looks at it; `FORCE_COLOR` says so too, as rich takes it."""
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def table(heads: Row, rows: Sequence[Row], right: Sequence[str] = ()) -> None:
    """Print rows under their heads; those of `right` are figures."""
    if not is_terminal(sys.stdout):
        print("\n".join(plain(heads, rows, right)))
        return
    from rich.table import Table  # noqa: PLC0415 - a program that reads our output does not wait for it
    from rich.text import Text  # noqa: PLC0415 - the same

    screen = console(sys.stdout)
    gap = 2 if _width(heads, rows) <= screen.width else 1
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    names = [at for at in {0, len(heads) - 1} if heads[at] not in right]  # these have any length, and are folded first
    is_narrow = _width(heads, rows, names) > screen.width
    for at, head in enumerate(heads):
        side: Literal["left", "right"] = "right" if head in right else "left"
        drawn.add_column(head, justify=side, no_wrap=at not in names and not is_narrow, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    screen.print(drawn)


def _width(heads: Row, rows: Sequence[Row], shortened: Sequence[int] = ()) -> int:
    """Cells that a table takes as it is; with these columns folded to the least that can be read, and narrower gaps."""
    widths = [max(width(printable(cell)) for cell in column) for column in zip(heads, *rows, strict=True)]
    told = sum(min(each, SHORTEST_NAME) if at in shortened else each for at, each in enumerate(widths))
    return told + (1 if shortened else 2) * (len(heads) - 1)


def plain(heads: Row, rows: Sequence[Row], right: Sequence[str] = ()) -> list[str]:
    """The same in lines: columns as wide as they need, none left out, none cut."""
    shown = [[printable(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(width, column)) for column in zip(*shown, strict=True)]
    sides = [head in right for head in heads]
    return ["  ".join(map(_pad, row, widths, sides)).rstrip() for row in shown]


def _pad(cell: str, to: int, is_right: bool) -> str:
    space = " " * (to - width(cell))
    return space + cell if is_right else cell + space


def width(text: str) -> int:
    """Cells of a terminal: letters of some scripts take two, accents none."""
    if text.isascii():
        return len(text)
    marks = sum(unicodedata.combining(each) != 0 for each in text)
    return len(text) - marks + sum(unicodedata.east_asian_width(each) in "WF" for each in text)


def console(stream: IO[str]) -> "Console":
    """A rich console that takes every word as it is: what a model is called is no markup."""
    from rich.console import Console  # noqa: PLC0415 - see `table`

    return Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=False)


@contextmanager
def progress() -> Iterator[Tell]:
    """Show how far something comes, on standard error: a bar on a terminal, else a line now and then."""
    if not is_terminal(sys.stderr):
        yield _lines()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - see `table`

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as bars:
        bar = bars.add_task("", total=None)

        def tell(done: float, total: float | None, text: str) -> None:
            bars.update(bar, completed=done, total=total, description=printable(text))

        yield tell


def _lines() -> Tell:
    last, since = "", 0.0

    def tell(done: float, total: float | None, text: str) -> None:  # noqa: ARG001 - figures are for a bar
        nonlocal last, since
        what = text.partition(":")[0]  # behind it are figures
        if text and (what != last or time.monotonic() - since >= LINE_SECONDS):
            last, since = what, time.monotonic()
            say(text)

    return tell
