"""A configuration's text with some keys changed: whatever is not touched stays byte for byte. Pure: text in, text out.

Owns where in a text a value is cut out and put in. The text is never written anew from what it means: comments, quotes,
blank lines, line ends and columns are a person's. What comes out is read back, and must mean what was asked for and
nothing else; where it does not, or where others share what stands there, the change is refused with a sentence.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from gridsched.settings.document import Written, read_document
from gridsched.settings.refusals import EditError
from gridsched.settings.spots import Spot, everything_in, tree

Way = tuple[str, ...]
"""The keys to a value, from the top. Lists have no way into them: a list is replaced whole."""

STEP = 2
"""Columns by which what is put in is indented."""

_PLAIN = re.compile(r"[\w./~$+-](?:[\w./~$+:@%=-]*[\w./~$+@%=-])?(?: [\w./~$+@%=-]+)*", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_LIKE_A_NUMBER = re.compile(r"[-+]?(?:[\d._:-]+(?:[eE][-+]?\d+)?|0[xo][\da-fA-F]+|\.(?:inf|Inf|INF|nan|NaN|NAN))")
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset(("~", "null", "Null", "NULL"))
_MERGE = "<<"


def edited(text: str, put: Mapping[str, object], taken: Sequence[Way] = ()) -> str:
    """The text with these values put in (a mapping is put into one that is there, key by key) and these keys taken
    out. Raises EditError."""
    if problems := [each for each in read_document(text).problems if not each.key]:
        raise EditError(f"the file cannot be changed key by key: line {problems[0].line}: {problems[0].sentence}")
    for path, value in leaves(put):
        text = _one(text, path, value)
    for path in taken:
        text = _one(text, path, _GONE)
    return text


def leaves(put: Mapping[str, object], path: Way = ()) -> Iterator[tuple[Way, object]]:
    """Each value that is no mapping, and each mapping without a key, with its way."""
    for key, value in put.items():
        here = (*path, key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, here)
        else:
            yield here, value


def meant(value: object) -> object:
    """What a written value is in JSON: numbers and words where they are not in quotes."""
    match value:
        case Mapping():
            return {str(key): meant(each) for key, each in value.items()}
        case list() | tuple():
            return [meant(each) for each in value]
        case Written(quoted=False):
            if value.is_null:
                return None
            if value in _WORDS:
                return _WORDS[value]
            return json.loads(value) if _NUMBER.fullmatch(value) else str(value)
    return str(value) if isinstance(value, str) else value


def with_masks(text: str, mask: Callable[[object, str], object]) -> str:
    """The text as it may be shown: each value as `mask` gives it back, which is told what the value is called. Raises
    EditError for what is no YAML."""
    root, _ = tree(text)
    cuts = sorted(_masked(root, "", mask)) if root is not None else []
    for start, end, shown in reversed(cuts):
        text = text[:start] + shown + text[end:]
    return text


def _masked(spot: Spot, name: str, mask: Callable[[object, str], object]) -> Iterator[tuple[int, int, str]]:
    """What is shown otherwise than it stands: from where to where, and as what."""
    children: list[tuple[str, Spot, object]] = []
    if spot.kind == "sequence":
        items = cast("list[object]", mask([each.text for each in spot.items], name))
        children = [(name, each, shown) for each, shown in zip(spot.items, items, strict=True)]
    elif spot.kind == "mapping":
        told = mask({key.text: value.text for key, value in spot.pairs}, name)
        shown_of = told if isinstance(told, Mapping) else {}
        children = [(key.text, value, shown_of.get(key.text)) for key, value in spot.pairs]
    for called, child, shown in children:
        if child.kind in {"mapping", "sequence"}:
            yield from _masked(child, called, mask)
        elif child.kind == "scalar" and child.start < child.end and shown != child.text:
            yield child.start, child.end, _scalar(str(shown)) + "\n" * child.block


# --- one change -----------------------------------------------------------------------------------------------------


class _Gone:
    """What stands for a key that is taken out."""


_GONE = _Gone()


def _one(text: str, path: Way, value: object) -> str:
    """One value put in or taken out, and read back. Raises EditError."""
    before = meant(read_document(text).value)
    wanted = _changed(before, path, value)
    if _same(before, wanted):
        return text
    root, used = tree(text)
    after = _Editing(text, used).change(root, path, value)
    document = read_document(after)
    if document.problems or not _same(meant(document.value), wanted):
        raise EditError(f"{'.'.join(path)}: this file is written so that the key can be changed by hand only")
    return after


def _changed(before: object, path: Way, value: object) -> object:
    """What the file should mean afterwards."""
    there: dict[str, object] = dict(before) if isinstance(before, Mapping) else {}
    key, rest = path[0], path[1:]
    if rest:
        if isinstance(value, _Gone) and key not in there:
            return before
        inside: object = there.get(key)
        if inside is not None and not isinstance(inside, Mapping):
            if isinstance(value, _Gone):
                return before
            raise EditError(f"{'.'.join(path)}: {key} is no mapping, so it has no key {rest[0]}")
        there[key] = _changed(inside or {}, rest, value)
    elif isinstance(value, _Gone):
        there.pop(key, None)
    elif not (isinstance(value, Mapping) and isinstance(there.get(key), Mapping)):
        there[key] = value
    return there


def _same(one: object, other: object) -> bool:
    """Whether two values mean the same here; an empty mapping is as good as nothing."""
    return json.dumps(_bare(one), sort_keys=True) == json.dumps(_bare(other), sort_keys=True)


def _bare(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _bare(each) for key, each in value.items()} or None
    return [_bare(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class _Editing:
    """One text while a key of it is changed. `used` are the anchors that an alias refers to."""

    text: str
    used: frozenset[str]

    def change(self, root: Spot | None, path: Way, value: object) -> str:
        """The text with the value put in, or taken out. Raises EditError."""
        if root is None or root.kind == "scalar":  # the file says nothing yet
            return self._begun(root, path, value)
        spot, pair = root, None
        for depth, key in enumerate(path):
            self._require_own(spot, path[:depth])
            pair = spot.own(key)
            rest = path[depth + 1 :]
            if pair is None:
                if isinstance(value, _Gone):
                    raise EditError(f"{'.'.join(path)} comes in by `<<` from elsewhere: it can be taken out there only")
                return self._inserted(spot, key, _nested(rest, value))
            if rest and pair[1].kind == "scalar":  # nothing, so far
                return self._opened(pair, _nested(rest, value), flow=spot.flow)
            if not rest:
                break
            spot = pair[1]
        assert pair is not None  # noqa: S101 - for the type checker: a path has a key
        self._require_own(pair[1], path, whole=True)
        return self._without(spot, pair) if isinstance(value, _Gone) else self._set(pair, value)

    def _require_own(self, spot: Spot, path: Way, *, whole: bool = False) -> None:
        """Raises EditError where somebody else shares what stands there. An alias may be replaced `whole`."""
        name = ".".join(path) or "the file"
        inside = list(everything_in(spot)) if whole else [spot]
        for each in inside:
            if each.anchor and each.kind != "alias" and each.anchor in self.used:
                raise EditError(
                    f"{name}: others take over what stands on line {self._line(each)} (&{each.anchor}) and would change"
                    " with it; change it by hand, or give those their own keys first"
                )
        if spot.kind == "alias" and not whole:
            raise EditError(
                f"{name} is *{spot.anchor} on line {self._line(spot)}, which is written elsewhere; change it by hand"
            )

    # --- putting in ---

    def _begun(self, root: Spot | None, path: Way, value: object) -> str:
        """The first keys of a file."""
        lines = _lines(_nested(path, value), 0)
        if root is None or root.start == root.end:
            return self._at_line_end(len(self.text), lines)
        return self._spliced(root.start, root.end, self._newline("\n".join(lines)))

    def _set(self, pair: tuple[Spot, Spot], value: object) -> str:
        """Another value for a key."""
        key, old = pair
        if old.kind == "mapping":
            raise EditError(f"{key.text}: a mapping stands there; take it out first")
        if old.start >= old.end:
            return self._spliced(self._colon(key), self._colon(key), f" {_flow(value)}")
        if old.kind == "sequence" and not old.flow:
            return self._list_set(old, value)
        tail = self._newline("\n") if old.block and self.text[old.end - 1] == "\n" else ""
        return self._spliced(old.start, old.end, _flow(value) + tail)

    def _list_set(self, old: Spot, value: object) -> str:
        """In the place of a list of lines: such a list again, or beside the key what cannot be one."""
        if isinstance(value, list | tuple) and value and not old.anchor:
            between = self._newline(f"\n{' ' * self._column(old.start)}")
            return self._spliced(old.start, self._content_end(old), between.join(f"- {_flow(each)}" for each in value))
        colon = self.text.rindex(":", 0, old.start) + 1
        line_end = self._line_end(colon)
        if line_end > old.start:  # an anchor stands before it, on the key's line
            return self._spliced(old.start, self._content_end(old), _flow(value))
        after = self.text[self._line_end(self._content_end(old)) :]
        return f"{self.text[:colon]} {_flow(value)}{self.text[colon:line_end]}{after}"

    def _opened(self, pair: tuple[Spot, Spot], value: object, *, flow: bool) -> str:
        """The first keys of a mapping that was left empty."""
        key, old = pair
        if old.start < old.end:
            return self._spliced(old.start, old.end, _flow(value))
        if flow:
            return self._spliced(self._colon(key), self._colon(key), f" {_flow(value)}")
        return self._at_line_end(self._colon(key), _lines(value, self._column(key.start) + STEP))

    def _inserted(self, mapping: Spot, key: str, value: object) -> str:
        """A new key, behind the others."""
        if mapping.flow:
            text = f"{_scalar(key)}: {_flow(value)}"
            if not mapping.pairs:
                inside = self.text.index("{", mapping.start) + 1
                return self._spliced(inside, inside, text)
            last_key, last = mapping.pairs[-1]
            end = last.end if last.start < last.end else max(last_key.end, self._colon(last_key, need=False))
            return self._spliced(end, end, f", {text}")
        first = mapping.pairs[0][0]
        return self._at_line_end(self._content_end(mapping), _lines({key: value}, self._column(first.start)))

    # --- taking out ---

    def _without(self, mapping: Spot, pair: tuple[Spot, Spot]) -> str:
        key, value = pair
        at = next(index for index, each in enumerate(mapping.pairs) if each[0] is key)
        if mapping.flow:
            end = value.end if value.start < value.end else max(key.end, self._colon(key, need=False))
            if at + 1 < len(mapping.pairs):
                return self._spliced(key.start, mapping.pairs[at + 1][0].start, "")
            if at and "\n" not in self.text[mapping.pairs[at - 1][1].end : key.start]:
                return self._spliced(max(mapping.pairs[at - 1][1].end, mapping.pairs[at - 1][0].end), end, "")
            return self._spliced(key.start, end, "")
        begin = self.text.rfind("\n", 0, key.start) + 1
        if self.text[begin : key.start].strip():
            raise EditError(f"{key.text}: something else stands before it on its line; take it out by hand")
        end = self._content_end(value) if value.start < value.end or value.pairs else self._colon(key)
        return self._spliced(begin, end if value.block else self._line_end(end), "")

    # --- places in the text ---

    def _colon(self, key: Spot, *, need: bool = True) -> int:
        """Behind the colon of a key. Raises EditError."""
        found = re.compile(r"[ \t]*:").match(self.text, key.end)
        if found is None:
            if need:
                raise EditError(f"{key.text}: its colon is not beside it; change it by hand")
            return key.end
        return found.end()

    def _content_end(self, spot: Spot) -> int:
        """Where what a value says ends; collections in lines end with their last value."""
        if spot.kind == "mapping" and not spot.flow and spot.pairs:
            key, value = spot.pairs[-1]
            empty = value.kind == "scalar" and value.start >= value.end
            return self._colon(key) if empty else self._content_end(value)
        if spot.kind == "sequence" and not spot.flow and spot.items:
            last = spot.items[-1]
            empty = last.kind == "scalar" and last.start >= last.end
            return last.start if empty else self._content_end(last)
        return spot.end

    def _line(self, spot: Spot) -> int:
        return self.text.count("\n", 0, spot.start) + 1

    def _column(self, at: int) -> int:
        return at - (self.text.rfind("\n", 0, at) + 1)

    def _line_end(self, at: int) -> int:
        """Behind the end of the line, or of the text."""
        end = self.text.find("\n", at)
        return len(self.text) if end < 0 else end + 1

    def _at_line_end(self, at: int, lines: Sequence[str]) -> str:
        """Lines put in behind the line in which `at` is; at the begin of a line, there."""
        end = at if at and self.text[at - 1] == "\n" else self._line_end(at)
        put = self._newline("".join(f"{line}\n" for line in lines))
        before = self.text[:end]
        if before and not before.endswith("\n"):
            before += self._newline("\n")
            put = put.removesuffix("\n").removesuffix("\r")  # the file ends without one, as before
        return before + put + self.text[end:]

    def _spliced(self, start: int, end: int, put: str) -> str:
        return self.text[:start] + put + self.text[end:]

    def _newline(self, text: str) -> str:
        """With the line ends that this file has."""
        return text.replace("\n", "\r\n") if "\r\n" in self.text else text


def _nested(path: Way, value: object) -> object:
    for key in reversed(path):
        value = {key: value}
    return value


# --- values as text -------------------------------------------------------------------------------------------------


def _lines(value: object, column: int) -> list[str]:
    """A mapping as lines, others inside it too; lists stay beside their key."""
    lines: list[str] = []
    assert isinstance(value, Mapping)  # noqa: S101 - for the type checker: only keys have lines
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            lines += [f"{' ' * column}{_scalar(key)}:", *_lines(each, column + STEP)]
        else:
            lines.append(f"{' ' * column}{_scalar(key)}: {_flow(each)}")
    return lines


def _flow(value: object) -> str:
    """A value on one line."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"{_scalar(str(key))}: {_flow(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_flow, value)) + "]"
        case str():
            return _scalar(value)
    return json.dumps(value, allow_nan=False)


def _scalar(text: str) -> str:
    """A text as it stands where nothing can be mistaken; else in quotes."""
    mistakable = text in _WORDS or text in _NULLS or text == _MERGE or _LIKE_A_NUMBER.fullmatch(text)
    if _PLAIN.fullmatch(text) and not mistakable and not text.startswith(("- ", "---")) and text not in {"-", "."}:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
