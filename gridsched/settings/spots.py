"""Where everything stands in a YAML text, aliases left as they are. Owns the places; must never say what a value means.

`document.py` reads what a text means and forgets how it is written; whoever changes a text has to know that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentEndEvent,
    Event,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
)

from gridsched.settings.refusals import EditError


@dataclass(slots=True)
class Spot:
    """A value and where it stands: `start` and `end` count characters, without line ends that only follow it."""

    kind: Literal["scalar", "alias", "mapping", "sequence"]
    start: int
    end: int
    flow: bool = False
    block: bool = False
    anchor: str = ""
    text: str = ""
    pairs: "list[tuple[Spot, Spot]]" = field(default_factory=list)
    items: "list[Spot]" = field(default_factory=list)

    def own(self, key: str) -> "tuple[Spot, Spot] | None":
        """The pair of a key that the mapping has itself."""
        return next((pair for pair in self.pairs if pair[0].kind == "scalar" and pair[0].text == key), None)


def everything_in(spot: Spot) -> Iterator[Spot]:
    """It, its keys and its values."""
    yield spot
    for pair in spot.pairs:
        for each in pair:
            yield from everything_in(each)
    for item in spot.items:
        yield from everything_in(item)


def tree(text: str) -> tuple[Spot | None, frozenset[str]]:
    """The places of everything, and the anchors that are used. Raises EditError."""
    try:
        wanted = NodeEvent | CollectionEndEvent | DocumentEndEvent
        events = [each for each in YAML(typ="rt").parse(text) if isinstance(each, wanted)]
    except (YAMLError, RecursionError) as error:  # read before, so that this cannot be
        raise EditError(f"this is not YAML: {error}") from None
    used = frozenset(str(each.anchor) for each in events if isinstance(each, AliasEvent))
    rest = iter(events)
    first = next(rest, None)
    return (None if first is None or isinstance(first, DocumentEndEvent) else _spot(first, rest)), used


def _spot(event: Event, rest: Iterator[Event]) -> Spot:
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, AliasEvent):
        return Spot("alias", start, end, anchor=str(event.anchor))
    if isinstance(event, ScalarEvent):
        block = event.style in {"|", ">"}
        return Spot("scalar", start, end, block=block, anchor=str(event.anchor or ""), text=str(event.value))
    assert isinstance(event, CollectionStartEvent)  # noqa: S101 - for the type checker: there is no fourth kind
    found = Spot("mapping", start, end, flow=bool(event.flow_style), anchor=str(event.anchor or ""))
    children: list[Spot] = []
    while not isinstance(each := next(rest), CollectionEndEvent):
        children.append(_spot(each, rest))
    found.end = each.end_mark.index if found.flow else max((end, *(child.end for child in children[-1:])))
    if isinstance(event, SequenceStartEvent):
        found.kind, found.items = "sequence", children
    else:
        found.pairs = list(zip(children[::2], children[1::2], strict=True))
    return found
