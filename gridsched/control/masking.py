"""What nobody is shown: secrets in settings, flags, arguments, sentences, known by where they stand or how they look.

Owns which these are. Pure. Must never be asked whether a secret is right.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gridsched.engine.redact import HIDDEN, redacted

__all__ = ["HIDDEN", "is_hidden", "masked", "masked_argv", "masked_sentence"]

DEEPEST = 64
"""Levels of arguments: a configuration has eight."""

LONGEST_KEPT = 2000
"""Characters of one text in an audit's row."""

_FLAG = re.compile(
    r"--?(?:[\w-]+[-_])?(?:api[-_]key|apikey|token|secret|passwd|password|credential|authorization)|-hft", re.IGNORECASE
)
_FLAG_IN_LINE = re.compile(rf"((?<!\S)(?:{_FLAG.pattern})[=\s]+)(?:\"[^\"]*\"|'[^']*'|\S)+", re.IGNORECASE)
_NAME = re.compile(r"(?:.*[_-])?(?:secret|token|password|passwd|api_?key|credential|authorization)", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/\s@'\"<>]+(?=@)")


def is_deep(value: object) -> bool:
    """Whether there is more in this, one inside another, than anything here takes: a walk through it might not end."""
    level = [value]
    for _ in range(DEEPEST):
        level = [each for one in level if isinstance(one, Mapping | list | tuple) for each in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Mapping[Any, object] | Sequence[object]) -> Iterable[object]:
    return value.values() if isinstance(value, Mapping) else value


def masked(value: object, name: str = "") -> object:  # noqa: PLR0911 - a table
    """A value of settings or arguments, as JSON has it, without the secrets in it; `name` is what it is called."""
    match value:
        case Mapping() if name == "env":
            return {key: None if each is None else HIDDEN for key, each in value.items()}
        case _ if name == "env" and value is not None:
            return HIDDEN
        case Mapping():
            return {key: masked(each, str(key)) for key, each in value.items()}
        case list() | tuple() if name in {"flags", "argv"}:
            return masked_argv([str(each) for each in value])
        case list() | tuple():
            return [masked(each, name) for each in value]
        case str() if value and _NAME.fullmatch(name):
            return HIDDEN
        case str() if name == "flags":
            return _masked_line(value)
        case str():
            return masked_sentence(value)
    return value


def masked_argv(words: Sequence[str]) -> list[str]:
    """A command line without what follows a flag for a secret."""
    told: list[str] = []
    hides = False
    for word in words:
        flag, sign, _ = word.partition("=")
        is_flag = _FLAG.fullmatch(flag) is not None
        told.append(HIDDEN if hides else f"{flag}={HIDDEN}" if is_flag and sign else masked_sentence(word))
        hides = is_flag and not sign and not hides
    return told


def masked_sentence(text: str) -> str:
    """A text without the secrets that are known by their looks, and without names and passwords in URLs."""
    return _USERINFO.sub(HIDDEN, redacted(text))


def _masked_line(text: str) -> str:
    """Flags that are one text."""
    return masked_sentence(_FLAG_IN_LINE.sub(rf"\1{HIDDEN}", text))


def is_hidden(value: object) -> bool:
    """Whether a secret was taken out somewhere in this."""
    match value:
        case Mapping():
            return any(is_hidden(each) for each in value.values())
        case list() | tuple():
            return any(is_hidden(each) for each in value)
    return isinstance(value, str) and HIDDEN in value
