"""What a PromQL expression speaks of, without a Prometheus: its metrics, the labels it asks for, those it leaves.

A reader of words and brackets, not of the language: a real Prometheus judges that in `tests/external`.
"""

import re
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")|(?P<duration>\[[^\]]*\])|(?P<number>\d[\w.+-]*|\.\d+)|(?P<word>[A-Za-z_:][\w:]*)"""
    r"""|(?P<op>=~|!~|!=|==|>=|<=|[-+*/%^<>=])|(?P<bracket>[(){},])|(?P<space>\s+)"""
)
_GROUPING = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
_WORDS = frozenset(("or", "and", "unless", "offset", "bool"))
_COMPARISONS = frozenset(("==", "!=", ">", "<", ">=", "<="))
_CALLED = frozenset(("(", "by", "without"))
"""What follows a function."""

_PAIRS = {"(": ")", "{": "}"}


def tokens(expr: str) -> list[tuple[str, str]]:
    """Kind and text of each. Raises ValueError for what is none, and for brackets that do not match."""
    found, at, opened = [], 0, ""
    while at < len(expr):
        match = _TOKEN.match(expr, at)
        if match is None:
            raise ValueError(f"not understood: {expr[at : at + 20]!r}")
        at = match.end()
        kind, text = str(match.lastgroup), match[0]
        if text in _PAIRS and kind == "bracket":
            opened += _PAIRS[text]
        elif kind == "bracket" and text in ")}":
            if not opened.endswith(text):
                raise ValueError(f"{text} closes nothing: {expr}")
            opened = opened[:-1]
        if kind != "space":
            found.append((kind, text))
    if opened:
        raise ValueError(f"{opened} is missing: {expr}")
    return found


def selectors(expr: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each metric that is read, with the labels by which it is chosen."""
    read, grouped = tokens(expr), _grouped(expr)
    for at, (kind, text) in enumerate(read):
        following = read[at + 1][1] if at + 1 < len(read) else ""
        if kind == "word" and at not in grouped and text not in _WORDS | _GROUPING and following not in _CALLED:
            if at and read[at - 1][1] in "{," and following in {"=", "=~", "!=", "!~"}:
                continue  # a label inside braces
            yield text, tuple(_braced(read, at + 1)) if following == "{" else ()


def groupings(expr: str) -> Iterator[str]:
    """Each label that is grouped or matched by."""
    read = tokens(expr)
    for at in _grouped(expr):
        yield read[at][1]


def legs(expr: str) -> list[str]:
    """The vectors that are compared, or joined by `and`, `or`, `unless`, outside all brackets; numbers left out."""
    parts: list[str] = [""]
    depth, after_set, rest = 0, False, expr.strip()
    while rest:
        match = _TOKEN.match(rest)
        if match is None:
            raise ValueError(f"not understood: {rest[:20]!r}")
        kind, text, rest = str(match.lastgroup), match[0], rest[match.end() :]
        depth += (text in {"(", "{"}) - (text in {")", "}"}) if kind == "bracket" else 0
        if depth == 0 and ((kind == "op" and text in _COMPARISONS) or text in {"and", "or", "unless"}):
            parts.append("")
            after_set = kind == "word"
        elif after_set and text in {"on", "ignoring"}:
            rest, after_set = rest.partition(")")[2], False
        else:
            after_set = after_set and kind == "space"
            parts[-1] += text
    return [part.strip() for part in parts if not re.fullmatch(r"-?[\d.e+]+", part.strip())]


def _braced(read: Sequence[tuple[str, str]], at: int) -> Iterator[str]:
    while read[at][1] != "}":
        if read[at][0] == "word":
            yield read[at][1]
        at += 1


def _grouped(expr: str) -> list[int]:
    """Where the words inside the brackets of `by`, `on` and the like stand."""
    found, inside = [], False
    read = tokens(expr)
    for at, (kind, text) in enumerate(read):
        if text == "(" and at and read[at - 1][1] in _GROUPING:
            inside = True
        elif inside and text == ")":
            inside = False
        elif inside and kind == "word":
            found.append(at)
    return found
