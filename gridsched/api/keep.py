"""How long a request wants its model kept (R6), in the words of three programs: ours, LM Studio's and Ollama's. Pure.

Owns those words. Must never decide what keeping means: 0 is passed on, and ignored behind door 3.
"""

import re
from typing import Final

import msgspec

from gridsched.control.problems import invalid

MAX_TTL_SECONDS = 366 * 24 * 3600.0
"""As in the configuration: more than a year is a slip of the keyboard. For ever is as long as that, too."""

NULL: Final = b"null"
"""What stands for a member that is not there."""

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(rf"(\d+(?:\.\d*)?|\.\d+)({'|'.join(_UNITS)})")  # digits in one way only: it may be all digits
_DURATION = re.compile(rf"(-?)((?:{_PART.pattern})+|\d+)")
_number = msgspec.json.Decoder(float | None)
_words = msgspec.json.Decoder(float | str | None)


def ttl(wished: float | None, lm_studio: bytes, ollama: bytes) -> float | None:
    """Seconds, by the first that says something: `gridsched.ttl`, and the raw values of `ttl` and `keep_alive`.
    Raises RequestError."""
    if wished is not None:
        return _checked(wished, "gridsched.ttl")
    if lm_studio == NULL == ollama:
        return None
    try:
        seconds = _number.decode(lm_studio)
    except msgspec.ValidationError:
        raise invalid("ttl must be a number of seconds", "ttl") from None
    return _kept_alive(ollama) if seconds is None else _checked(seconds, "ttl")


def _kept_alive(raw: bytes) -> float | None:
    """`"5m"`, `"1h30m"`, 300 or `"300"`; whatever is below 0 is for ever. Raises RequestError."""
    try:
        value = _words.decode(raw)
    except msgspec.ValidationError:
        raise _no_duration() from None
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise _no_duration()
        parts = _PART.findall(match[2])
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(match[2])
        value = -seconds if match[1] else seconds
    if value is None:
        return None
    return MAX_TTL_SECONDS if value < 0 else _checked(value, "keep_alive")


def _no_duration() -> Exception:
    return invalid('keep_alive must be a duration such as "5m" or a number of seconds, below 0 for ever', "keep_alive")


def _checked(seconds: float, channel: str) -> float:
    if not 0 <= seconds <= MAX_TTL_SECONDS:
        raise invalid(f"{channel}: must be between 0 and {MAX_TTL_SECONDS:.0f} seconds", channel)
    return seconds
