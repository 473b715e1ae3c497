"""YAML text becomes plain containers of *written* scalars, with the place of everything. Owns ruamel.

Must never guess what a scalar means: `on`, `1.10`, `12:30` and `null` stay the text that the person wrote, and the
schema says what each key wants. So a model called `1.10` keeps its name, and no quoted "false" is ever true.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

Loc = tuple[str | int, ...]
"""The way to a value: keys and list positions, from the top."""

MAX_NODES = 20_000
"""Values in a document, an alias counted at each use: a few lines of nested aliases can stand for billions."""

MAX_BRACKETS = 100
"""Brackets that may be open at once: the parser's time grows with their square."""

_NULL_WORDS = frozenset(("", "~", "null", "Null", "NULL"))
_UNKNOWN = "\ufffd"  # what Unicode puts in the place of what is no character
_TAB = "found character '\\t' that cannot start any token"


class Written(str):
    """A scalar as the file has it. `quoted` also holds for block scalars; `folded` marks the `>` style."""

    __slots__ = ("folded", "quoted")
    quoted: bool
    folded: bool

    @property
    def is_null(self) -> bool:
        """Whether the value was left out, or is YAML's null."""
        return not self.quoted and self in _NULL_WORDS


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a file: where it is (line and column from 1, 0 for the file as a whole), its key, and a sentence."""

    line: int
    column: int
    key: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is, and where its key is (the same for a list's item), from 1. `holds_more`: it is no scalar."""

    line: int
    column: int
    key_line: int
    key_column: int
    holds_more: bool = False


@dataclass(slots=True)
class Document:
    """What a file says. `value` is a dict, whatever the file holds; faults found on the way are in `problems`."""

    value: dict[str, object] = field(default_factory=dict)
    places: dict[Loc, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def dotted(loc: Loc) -> str:
    """The way to a value as a person would write it: `models.tiny.flags[2]`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_document(text: str) -> Document:
    """Read one YAML 1.2 document. Never raises for what the text holds."""
    document = Document()
    try:
        root = _compose(text)
        if root is not None:
            _Builder(document).build_root(root)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        document.problems.append(Problem(line, column, "", _sentence(error)))
    except ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        sentence = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML"
        document.problems.append(Problem(line, column, "", sentence))
    except YAMLError as error:
        document.problems.append(Problem(0, 0, "", f"this is not YAML: {error}"))
    except RecursionError:
        document.problems.append(Problem(0, 0, "", "lists or mappings are nested too deeply, or in themselves"))
    except _TooMany:
        document.problems.append(Problem(0, 0, "", f"more than {MAX_NODES} values, each use of an alias counted"))
    return document


def _compose(text: str) -> Node | None:
    if max(accumulate((each in "[{") - (each in "]}") for each in text), default=0) > MAX_BRACKETS:
        raise RecursionError
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReusedAnchorWarning)  # legal YAML: the nearer anchor counts
        # The plain reader refuses `{host: ::1}`, which is YAML; the round-trip reader does not.
        node: Node | None = YAML(typ="rt").compose(text)
    return node


def _sentence(error: MarkedYAMLError) -> str:
    if error.problem == _TAB:
        return "a tab cannot indent YAML; use spaces"
    return "this is not YAML: " + ", ".join(part for part in (error.context, error.problem) if part)


class _TooMany(Exception):
    """The document passes MAX_NODES."""


class _Builder:
    """Walks the node tree once, and fills a document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def build_root(self, root: Node) -> None:
        """Fill the document from the top node."""
        if isinstance(root, ScalarNode) and _written(root).is_null:
            return
        if not isinstance(root, MappingNode):
            self._problem(root, (), "expected lines of the form `key: value`")
            return
        self._document.value = self._mapping(root, ())

    def _build(self, node: Node, loc: Loc) -> object:
        self._count()
        if not str(node.tag).startswith("tag:yaml.org,2002:"):
            self._problem(node, loc, f"the tag {node.tag} means nothing here; quote the value if it is text")
        if isinstance(node, MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, SequenceNode):
            return self._sequence(node, loc)
        return self._scalar(cast("ScalarNode", node), loc)  # there is no fourth kind of node

    def _scalar(self, node: ScalarNode, loc: Loc) -> Written:
        written = _written(node)
        if written.count(_UNKNOWN) > node.value.count(_UNKNOWN):
            self._problem(node, loc, "an escape here is half of a character")
        return written

    def _sequence(self, node: SequenceNode, loc: Loc) -> list[object]:
        items = []
        for number, item in enumerate(node.value):
            here = (*loc, number)
            self._document.places[here] = _place(item, item)
            items.append(self._build(item, here))
        return items

    def _mapping(self, node: MappingNode, loc: Loc) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node, own in self._pairs(node, loc):
            key = str(self._scalar(key_node, loc))
            here = (*loc, key)
            if key not in result:
                self._document.places[here] = _place(key_node, value_node)
                result[key] = self._build(value_node, here)
            elif own:
                first = self._document.places[here].key_line
                self._problem(key_node, here, f"this key is already set on line {first}")
        return result

    def _pairs(self, node: MappingNode, loc: Loc) -> Iterator[tuple[ScalarNode, Node, bool]]:
        """A mapping's own pairs, then those that `<<` brings in, which its own override."""
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged.extend(value_node.value if isinstance(value_node, SequenceNode) else [value_node])
            elif isinstance(key_node, ScalarNode):
                yield key_node, value_node, True
            else:
                self._problem(key_node, loc, "a key must be text")
        for other in merged:
            self._count()
            if not isinstance(other, MappingNode):
                self._problem(other, loc, "`<<` needs a mapping, or a list of mappings")
            else:
                yield from ((key, value, False) for key, value, _ in self._pairs(other, loc))

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooMany

    def _problem(self, node: Node, loc: Loc, sentence: str) -> None:
        mark = node.start_mark
        self._document.problems.append(Problem(mark.line + 1, mark.column + 1, dotted(loc), sentence))


def _written(node: ScalarNode) -> Written:
    # The round-trip reader marks each fold of a `>` text with a bell, which no such text can hold itself.
    written = Written(_joined(node.value.replace("\a", "") if node.style == ">" else node.value))
    written.quoted = node.style is not None
    written.folded = node.style == ">"
    return written


def _joined(text: str) -> str:
    """JSON writes a character beyond U+FFFF as two halves, which the YAML reader leaves apart; one alone is no text."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _place(key: Node, value: Node) -> Place:
    at, key_at = value.start_mark, key.start_mark
    holds_more = not isinstance(value, ScalarNode)
    return Place(at.line + 1, at.column + 1, key_at.line + 1, key_at.column + 1, holds_more)
