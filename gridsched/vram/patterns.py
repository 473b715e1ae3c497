r"""Tensor name patterns, matched as the engine matches them: C++'s `std::regex_search` with ECMAScript's grammar.

Owns that grammar as libstdc++ reads it, which is not Python's: `]` ends a class at once, `\Z` is a Z, `a**` and `a++`
are repeats of repeats, `{,3}` is refused, `[[:digit:]]` is a class, and everything works on bytes. A pattern becomes an
automaton whose states are made as they are met, so that matching takes one step a byte whatever the pattern is: one
that keeps a backtracking matcher busy for ever, such as `(a+)+$`, does not. Back-references, which no automaton has,
are refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

MAX_PATTERN_BYTES = 1024
MAX_STATES = 20_000  # of the automaton; libstdc++ itself gives up at 100,000

_DIGITS = frozenset(b"0123456789")
_LOWER = frozenset(b"abcdefghijklmnopqrstuvwxyz")
_UPPER = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_WORD = _DIGITS | _LOWER | _UPPER | frozenset(b"_")
_SPACE = frozenset(b" \t\n\v\f\r")
_ANY = frozenset(range(256))
_GRAPH = frozenset(range(33, 127))
_CLASSES = {
    "digit": _DIGITS,
    "lower": _LOWER,
    "upper": _UPPER,
    "alpha": _LOWER | _UPPER,
    "alnum": _WORD - frozenset(b"_"),
    "xdigit": _DIGITS | frozenset(b"abcdefABCDEF"),
    "space": _SPACE,
    "blank": frozenset(b" \t"),
    "graph": _GRAPH,
    "punct": _GRAPH - _WORD | frozenset(b"_"),
    "print": _GRAPH | frozenset(b" "),
    "cntrl": frozenset((*range(32), 127)),
    "d": _DIGITS,
    "w": _WORD,
    "s": _SPACE,
}
_CLASS_ESCAPES = {
    ord("d"): _DIGITS,
    ord("w"): _WORD,
    ord("s"): _SPACE,
    ord("D"): _ANY - _DIGITS,
    ord("W"): _ANY - _WORD,
    ord("S"): _ANY - _SPACE,
}
_CONTROLS = {ord(letter): byte for letter, byte in zip("0fnrtv", b"\0\f\n\r\t\v", strict=True)}
_QUANTIFIERS = frozenset(b"*+?{")
_END = -1  # what follows the last byte


class PatternError(Exception):
    """A pattern that the engine refuses, or that cannot be matched here. `position` counts bytes from 0."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(f"{message} at position {position}")
        self.position = position
        self.message = message


@dataclass(frozen=True, slots=True)
class _Bytes:
    """One byte of these."""

    allowed: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple["_Node", ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    options: tuple["_Node", ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    body: "_Node"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Edge:
    """A place between bytes: `^`, `$`, `b` at a word's border, `B` elsewhere."""

    kind: str


@dataclass(frozen=True, slots=True)
class _Ahead:
    body: "_Node"
    wanted: bool


_Node = _Bytes | _Sequence | _Choice | _Repeat | _Edge | _Ahead
_EMPTY = _Sequence(())


class _Reader:
    """The grammar, by recursive descent. Raises PatternError."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0

    def read(self) -> _Node:
        """The whole pattern."""
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError(self._at, "a ) closes no group")
        return node

    def _peek(self) -> int:
        return self._text[self._at] if self._at < len(self._text) else _END

    def _next(self, missing: str) -> int:
        if self._at >= len(self._text):
            raise PatternError(self._at, missing)
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, word: bytes) -> bool:
        if not self._text.startswith(word, self._at):
            return False
        self._at += len(word)
        return True

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._takes(b"|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        parts = list(self._terms())
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _terms(self) -> Iterator[_Node]:
        while self._peek() not in (_END, ord("|"), ord(")")):
            if self._peek() in _QUANTIFIERS:
                raise PatternError(self._at, "there is nothing to repeat")
            edge = self._edge()
            if edge is not None:
                yield edge  # which the grammar lets nothing repeat
                continue
            node = self._atom()
            while self._peek() in _QUANTIFIERS:
                node = self._quantified(node)
            yield node

    def _edge(self) -> _Node | None:
        for word, kind in ((b"^", "^"), (b"$", "$"), (b"\\b", "b"), (b"\\B", "B")):
            if self._takes(word):
                return _Edge(kind)
        for word, wanted in ((b"(?=", True), (b"(?!", False)):
            if self._takes(word):
                return _Ahead(self._group(), wanted)
        return None

    def _group(self) -> _Node:
        node = self._choice()
        if not self._takes(b")"):
            raise PatternError(self._at, "a group is not closed")
        return node

    def _atom(self) -> _Node:
        if self._takes(b"(?:"):
            return self._group()
        if self._text.startswith(b"(?", self._at):
            raise PatternError(self._at, "a group begins with (?, which only (?: (?= and (?! may")
        if self._takes(b"("):
            return self._group()
        if self._takes(b"["):
            return _Bytes(self._class())
        if self._takes(b"."):
            return _Bytes(_ANY - frozenset(b"\n\r"))
        if self._takes(b"\\"):
            return _Bytes(self._escape())
        return _Bytes(frozenset((self._next("unreachable"),)))

    def _escape(self, *, in_class: bool = False) -> frozenset[int]:
        """What a backslash makes of what follows it; a byte that it makes nothing of stands for itself."""
        at = self._at - 1
        byte = self._next("a backslash ends the pattern")
        if byte in _CLASS_ESCAPES:
            return _CLASS_ESCAPES[byte]
        if byte in _CONTROLS:
            return frozenset((_CONTROLS[byte],))
        if in_class and byte == ord("B"):
            raise PatternError(at, "\\B is no character")
        if in_class and byte == ord("b"):
            return frozenset(b"\b")
        if byte == ord("c"):
            return frozenset((self._next("\\c needs a letter"),))  # libstdc++ takes the letter itself
        if byte in b"xu":
            return frozenset((self._hexadecimal(2 if byte == ord("x") else 4),))
        if byte in _DIGITS:
            raise PatternError(at, "a back-reference cannot be planned with")
        return frozenset((byte,))

    def _hexadecimal(self, digits: int) -> int:
        word = self._text[self._at : self._at + digits]
        if len(word) < digits or not frozenset(word) <= _CLASSES["xdigit"]:
            raise PatternError(self._at, f"{digits} hexadecimal digits are missing")
        self._at += digits
        return int(word, 16) & 0xFF

    def _class(self) -> frozenset[int]:
        """What stands between brackets. Here `[]` is nothing, and `[^]` anything."""
        opened = self._at - 1
        negated = self._takes(b"^")
        allowed: set[int] = set()
        while not self._takes(b"]"):
            if self._peek() == _END:
                raise PatternError(opened, "a [ is not closed")
            at = self._at
            first, single = self._class_part()
            if self._peek() == ord("-") and self._text[self._at + 1 : self._at + 2] not in (b"]", b""):
                self._at += 1
                last, single_last = self._class_part()
                if not (single and single_last) or min(first) > min(last):
                    raise PatternError(at, "a range goes from one character to a later one")
                first = frozenset(range(min(first), min(last) + 1))
            allowed |= first
        return _ANY - allowed if negated else frozenset(allowed)

    def _class_part(self) -> tuple[frozenset[int], bool]:
        """Bytes of one item of a class, and whether it is a single character, which may bound a range."""
        for mark in (b":", b".", b"="):
            if self._takes(b"[" + mark):
                return self._named(mark)
        if self._takes(b"\\"):
            found = self._escape(in_class=True)
            return found, len(found) == 1
        return frozenset((self._next("a [ is not closed"),)), True

    def _named(self, mark: bytes) -> tuple[frozenset[int], bool]:
        """`[:digit:]`, and `[.x.]` or `[=x=]` of one character."""
        at = self._at - 2
        end = self._text.find(mark + b"]", self._at)
        if end < 0:
            raise PatternError(at, f"[{mark.decode()} is not closed")
        name = self._text[self._at : end]
        self._at = end + 2
        if mark == b":":
            known = _CLASSES.get(name.decode("latin-1").lower())
            if known is None:
                raise PatternError(at, f"there is no class {name.decode('latin-1')!r}")
            return known, False
        if len(name) != 1:
            raise PatternError(at, "a character is not called by its name here")
        return frozenset(name), mark == b"."

    def _quantified(self, node: _Node) -> _Node:
        """A repeat of what came before, which may be a repeat. Whether it is greedy makes no difference here."""
        at = self._at
        byte = self._next("unreachable")
        least, most = {ord("*"): (0, None), ord("+"): (1, None), ord("?"): (0, 1)}.get(byte, (0, None))
        if byte == ord("{"):
            least, most = self._counts(at)
        self._takes(b"?")
        return _Repeat(node, least, most)

    def _counts(self, at: int) -> tuple[int, int | None]:
        least = self._number(at)
        most: int | None = least
        if self._takes(b","):
            most = None if self._peek() == ord("}") else self._number(at)
        if not self._takes(b"}"):
            raise PatternError(at, "a { is not closed, or holds more than two numbers")
        if most is not None and most < least:
            raise PatternError(at, "a repeat's numbers are the wrong way round")
        return least, most

    def _number(self, at: int) -> int:
        digits = b""
        while self._peek() in _DIGITS:
            digits += bytes((self._next("unreachable"),))
        if not digits:
            raise PatternError(at, "a { is followed by a number, as in {2} or {2,}")
        if int(digits) > MAX_STATES:
            raise PatternError(at, f"a repeat of more than {MAX_STATES} times")
        return int(digits)


@dataclass(frozen=True, slots=True)
class _Step:
    """A state of the automaton. `allowed` is the bytes that lead on to `then`; without any, all of `then` is reached
    at once, if `edge` or `ahead` hold."""

    then: tuple[int, ...]
    allowed: frozenset[int] | None = None
    edge: str | None = None
    ahead: tuple[int, bool] | None = None


_FOUND = 0  # the number of the state in which the pattern has matched


class _Builder:
    """From nodes to states, the last ones first: each knows where it leads."""

    def __init__(self) -> None:
        self.steps: list[_Step] = [_Step(())]
        self.looks_ahead = False

    def add(self, step: _Step) -> int:
        """A new state's number."""
        if len(self.steps) >= MAX_STATES:
            raise PatternError(0, f"the pattern needs more than {MAX_STATES} states, counted")
        self.steps.append(step)
        return len(self.steps) - 1

    def build(self, node: _Node, then: int) -> int:
        """The state from which `node` and then `then` are matched."""
        match node:
            case _Bytes(allowed):
                return self.add(_Step((then,), allowed=allowed))
            case _Sequence(parts):
                for part in reversed(parts):
                    then = self.build(part, then)
                return then
            case _Choice(options):
                return self.add(_Step(tuple(self.build(option, then) for option in options)))
            case _Edge(kind):
                return self.add(_Step((then,), edge=kind))
            case _Ahead(body, wanted):
                self.looks_ahead = True
                return self.add(_Step((then,), ahead=(self.build(body, _FOUND), wanted)))
            case _Repeat(body, least, most):
                return self._repeat(body, least, most, then)

    def _repeat(self, body: _Node, least: int, most: int | None, then: int) -> int:
        if most is None:
            loop = self.add(_Step(()))
            self.steps[loop] = _Step((self.build(body, loop), then))
            then = loop
        else:
            end = then
            for _ in range(most - least):
                then = self.add(_Step((self.build(body, then), end)))
        for _ in range(least):
            then = self.build(body, then)
        return then


class _Situation:
    """States that are held together after some bytes, `before` the kind of the last one: how far a search has come."""

    __slots__ = ("before", "moves", "states")

    def __init__(self, states: frozenset[int], before: str) -> None:
        self.states = states
        self.before = before
        self.moves: dict[int, _Situation | bool] = {}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern; two with the same text are equal. What has been met while searching is remembered."""

    text: str
    _steps: tuple[_Step, ...] = field(repr=False, compare=False)
    _start: int = field(repr=False, compare=False)
    _looks_ahead: bool = field(repr=False, compare=False)
    _met: dict[tuple[frozenset[int], str], _Situation] = field(default_factory=dict, repr=False, compare=False)
    _answers: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    @lru_cache(maxsize=256)  # planning reads the same flags and asks about the same tensors for every launch it weighs
    def of(cls, text: str) -> "Pattern":
        """Raises PatternError for what the engine refuses, and for what cannot be matched here."""
        raw = text.encode("utf-8", "surrogateescape")
        if len(raw) > MAX_PATTERN_BYTES:
            raise PatternError(MAX_PATTERN_BYTES, f"a pattern has at most {MAX_PATTERN_BYTES} bytes; it goes on")
        builder = _Builder()
        try:
            start = builder.build(_Reader(raw).read(), _FOUND)
        except RecursionError:
            raise PatternError(0, "groups are nested too deeply, counted") from None
        return cls(text, tuple(builder.steps), start, builder.looks_ahead)

    def search(self, name: str) -> bool:
        """Whether any part of the name matches."""
        known = self._answers.get(name)
        if known is None:
            known = self._run(name.encode("utf-8", "surrogateescape"), 0, self._start, anywhere=True)
            self._answers[name] = known
        return known

    def _run(self, text: bytes, begin: int, start: int, *, anywhere: bool) -> bool:
        """Whether the states from `start` on find something at `begin`, or later if `anywhere`."""
        remembers = anywhere and not self._looks_ahead
        now = self._situation(frozenset((start,)), _kind(text, begin - 1))
        for at in range(begin, len(text) + 1):
            byte = text[at] if at < len(text) else _END
            known = now.moves.get(byte) if remembers else None
            if known is None:
                known = self._move(now, text, at, start if anywhere else None)
                if remembers:
                    now.moves[byte] = known
            if isinstance(known, bool):
                return known
            now = known
        return False  # not come to: at the end of a text every move is an answer

    def _situation(self, states: frozenset[int], before: str) -> _Situation:
        return self._met.setdefault((states, before), _Situation(states, before))

    def _move(self, now: _Situation, text: bytes, at: int, start: int | None) -> _Situation | bool:
        """Where the next byte leads: True is a match, False that there is none any more."""
        reached = self._reached(now, text, at)
        if _FOUND in reached:
            return True
        if at == len(text):
            return False
        byte = text[at]
        steps = (self._steps[number] for number in reached)
        states = {then for step in steps if step.allowed and byte in step.allowed for then in step.then}
        if start is not None:
            states.add(start)
        return self._situation(frozenset(states), _kind(text, at)) if states else False

    def _reached(self, now: _Situation, text: bytes, at: int) -> set[int]:
        """Every state that is reached without taking a byte."""
        reached: set[int] = set()
        open_states = list(now.states)
        while open_states:
            number = open_states.pop()
            if number in reached:
                continue
            reached.add(number)
            step = self._steps[number]
            if step.allowed is None and self._holds(step, now.before, text, at):
                open_states += step.then
        return reached

    def _holds(self, step: _Step, before: str, text: bytes, at: int) -> bool:
        if step.ahead is not None:
            begin, wanted = step.ahead
            return self._run(text, at, begin, anywhere=False) is wanted
        match step.edge:
            case None:
                return True
            case "^":
                return at == 0
            case "$":
                return at == len(text)
            case kind:
                border = (before == "word") != (_kind(text, at) == "word")
                return border is (kind == "b")


def _kind(text: bytes, at: int) -> str:
    """What stands there, as far as edges care."""
    if not 0 <= at < len(text):
        return "nothing"
    return "word" if text[at] in _WORD else "other"
