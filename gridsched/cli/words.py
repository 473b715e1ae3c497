"""Sizes and durations as a person reads and writes them. Pure; imports nothing that takes time.

Owns these words. The configuration's own are in `settings/values`, which brings pydantic with it.
"""

import argparse
import re

from gridsched.library.names import printable

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MODELS = {"bash": "_gridsched_models", "zsh": "_gridsched_models"}
"""What completes a model: functions at the beginning of the script that `completion` prints."""

MOST_TOKENS = 2**31 - 1


def size(count: int) -> str:
    """Bytes for a person: three digits and a unit."""
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:.0f} {name}"
    return f"{count} B"


def size_or_none(count: object) -> str:
    """The same, and a dash for what nobody knows."""
    return "-" if count is None else size(int(str(count)))


def span(seconds: object) -> str:
    """A time that has gone by, or is left: `4s`, `12m`, `3h05m`, `2d04h`; a dash for none."""
    if seconds is None:
        return "-"
    whole = max(0, round(float(str(seconds))))
    for unit, name, lower, lower_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            return f"{whole // unit}{name}{whole % unit // lower:02d}{lower_name}"
    return f"{whole}s"


def duration(text: str) -> float:
    """Seconds, of `90s`, `30m`, `2h` or `1d`. Raises ArgumentTypeError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{printable(text) or 'nothing'} is no duration such as 90s, 30m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def tokens(text: str) -> int:
    """A number of tokens. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MOST_TOKENS):
        raise argparse.ArgumentTypeError(f"{printable(text) or 'nothing'} is no number of tokens such as 16384")
    return int(text)


def count(text: str) -> int:
    """How many of something, one at least. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MOST_TOKENS):
        raise argparse.ArgumentTypeError(f"{printable(text) or 'nothing'} is no number such as 20")
    return int(text)


def add_model_argument(parser: argparse.ArgumentParser, text: str = "by any of its names") -> None:
    """Declare MODEL; a shell completes it."""
    action = parser.add_argument("model", metavar="MODEL", type=word, help=text)
    action.complete = MODELS  # type: ignore[attr-defined]  # shtab looks for it


def word(text: str) -> str:
    """A name. An empty one is a variable that was not set. Raises ArgumentTypeError."""
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty name")
    return text
