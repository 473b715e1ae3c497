"""Pages of lists that grow: how many entries are told at once, and where the next page goes on.

A cursor names the last entry that was told, not its place: what leaves the list meanwhile moves nobody. Owns these
arguments and the cutting. Pure.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta

from gridsched.control.problems import invalid
from gridsched.control.verb import Arguments

MOST: Final = 10_000
LONGEST_CURSOR: Final = 1000

T = TypeVar("T")


class Page(Arguments, frozen=True, kw_only=True):
    """Which part of a list is told; all of it, where it is no longer than `limit`."""

    limit: Annotated[int, Meta(description="The most entries that are told.", ge=1, le=MOST)] = MOST
    cursor: Annotated[str, Meta(description="`next_cursor` of the page before.", max_length=LONGEST_CURSOR)] | None = (
        None
    )


def cut(
    page: Page, entries: Sequence[T], name: Callable[[T], str], key: Callable[[str], Any]
) -> tuple[Sequence[T], str | None]:
    """The entries of a page, and the next one's cursor. An entry's cursor is its `name`, and the order of pages is by
    the `key` of that, which raises ValueError for what is no cursor. Raises RequestError."""
    if page.cursor is None and len(entries) <= page.limit:
        return entries, None
    left = sorted(entries, key=lambda entry: key(name(entry)))
    if page.cursor is not None:
        try:
            after = key(page.cursor)
        except ValueError:
            raise invalid(f"{page.cursor[:100]!r} is no cursor of this list", "cursor") from None
        left = [entry for entry in left if key(name(entry)) > after]
    told = left[: page.limit]
    return told, name(told[-1]) if len(left) > len(told) else None
