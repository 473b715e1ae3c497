"""What one setting may be: durations, sizes, counts, words, paths, flags. Owns the readers, and their sentences.

A reader takes what the file has (a `Written` scalar, a list, a mapping) or what code gives, and returns the value or
raises ValueError with one sentence for a person. Must never look at a file system: whether a path exists is the
library's to say.
"""

import json
import math
import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from gridsched.core.job import JobClass
from gridsched.daytime import Window, window_of
from gridsched.settings.document import Written

LONGEST_SECONDS = 366 * 24 * 3600.0
"""No duration may be longer: more than a year is a slip of the keyboard."""

LONGEST_NAME = 200
"""Characters in a model's id or alias: they are written into logs, tables and headers."""

HIGHEST_PORT = 65535

LONGEST_SHOWN = 60
"""Characters of a faulty value that a sentence repeats."""

NEVER_SECONDS = math.inf
"""What `never` means where a duration may be `never`: a time that does not come."""

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1} | {f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)}
_BYTES |= {f"{letter}B": 1000**n for n, letter in enumerate("KMGT", 1)}
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZE = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_BYTES)})")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?) ?%")
_WHOLE = re.compile(r"[-+]?\d{1,18}")
_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)\}|)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What paths are read against: the folder of the configuration file, and the environment."""

    folder: Path
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Amount:
    """A part of something: a share of it (0 to 1) or a size. One of the two is 0."""

    share: float = 0.0
    size_bytes: int = 0


Reader = Callable[[object, ValidationInfo], object]


@dataclass(frozen=True, eq=False)
class Reads:
    """How a field is read: put it in `Annotated[type, Reads(…)]`, and the reader is all the validation there is.

    `word` says in the documentation what a person may write; `json_schema` says it to an editor.
    """

    word: str
    reader: Reader
    json_schema: Mapping[str, Any]  # Any: pydantic's own type for JSON Schema

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The reader, as pydantic wants it."""
        return core_schema.with_info_plain_validator_function(self.reader)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """What an editor is told."""
        return dict(self.json_schema)


def shown(value: object) -> str:
    """What the file has, as a sentence ends with it."""
    match value:
        case Written(is_null=True):
            what = "nothing"
        case Written(quoted=True):
            what = f'"{_short(value)}" in quotes'
        case str() | int() | float():
            what = _short(str(value)) or "nothing"
        case Mapping():
            what = "a mapping"
        case list() | tuple():
            what = "a list"
        case _:
            what = repr(value)
    return f"got {what}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_SHOWN else line[:LONGEST_SHOWN] + "…"


def is_null(value: object) -> bool:
    """Whether nothing was said."""
    return value is None or (isinstance(value, Written) and value.is_null)


def or_word(reads: Reads, word: str, meaning: object = None) -> Reads:
    """The same, or a word (`auto`, `null`, `never`) that stands for `meaning`; where that is None, null does too."""

    def read(value: object, info: ValidationInfo) -> object:
        if (meaning is None and is_null(value)) or (isinstance(value, str) and value == word):
            return meaning
        return reads.reader(value, info)

    choices: list[Mapping[str, Any]] = [reads.json_schema, {"type": "null"} if word == "null" else {"const": word}]
    if meaning is None and word != "null":
        choices.append({"type": "null"})
    return Reads(f"{reads.word} or `{word}`", read, {"anyOf": choices})


# --- text and words ---------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    """Text as written, quoted or not. Raises ValueError."""
    if not isinstance(value, str) or value == "":
        raise ValueError(f"expected text, {shown(value)}")
    if any(unicodedata.category(character) == "Cc" for character in value.replace("\n", "")):
        raise ValueError("control characters are not allowed here")
    return str(value)


def _name(value: object) -> str:
    """A name that clients send. Raises ValueError."""
    name = _text(value)
    if len(name) > LONGEST_NAME or name != name.strip() or len(name.splitlines()) > 1:
        raise ValueError(f"a name is one line of at most {LONGEST_NAME} characters, with no space around it")
    _, at, suffix = name.rpartition("@")
    if at and suffix.lower() in {job_class.label for job_class in JobClass}:
        raise ValueError(f"a name cannot end in @{suffix}: clients write that to ask for the class")
    return name


def _host_and_port(value: object) -> str:
    """A host and a port of it, in lower case. Raises ValueError."""
    text = _text(value).lower()
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", "/")  # IPv6 needs brackets
    if not bare or set(bare) & set("/@?#[] ") or not (port.isdecimal() and 0 < int(port[:6]) <= HIGHEST_PORT):
        raise ValueError(f"expected a host and a port, as in nas.local:8080, {shown(value)}")
    return text


def _prompt(value: object) -> str:
    """Text for a model, with its tabs and line ends. Raises ValueError."""
    if isinstance(value, str):
        _text(value.replace("\t", " "))
        return str(value)
    raise ValueError(f"expected text, {shown(value)}")


PROMPT = Reads("text", lambda value, _: _prompt(value), {"type": "string"})
TEXT = Reads("text", lambda value, _: _text(value), {"type": "string"})
NAME = Reads("name", lambda value, _: _name(value), {"type": "string", "maxLength": LONGEST_NAME})
HOST_AND_PORT = Reads("host:port", lambda value, _: _host_and_port(value), {"type": "string"})
# In an editor a bare 4096 among flags is a number; here it is the text that it is.
WRITTEN_TEXT = Reads("text", lambda value, _: _text(value), {"type": ["string", "number", "boolean"]})


_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^\s/?#@:*\[\]]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def _origin(value: object) -> str:
    """An origin as browsers write it: in lower case, without a port that its scheme implies. Raises ValueError."""
    text = _text(value).lower()
    if text in {"*", "null"}:
        raise ValueError(f"{text} would let any page use this server; name each origin, as in http://localhost:3000")
    found = _ORIGIN.fullmatch(text.removesuffix("/"))
    if found is None:
        raise ValueError(f"expected an origin, as in http://localhost:3000 (scheme, host, port), {shown(value)}")
    scheme, host, port = found.groups()
    if port is None or port == _DEFAULT_PORTS.get(scheme):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{int(port)}"


ORIGIN = Reads("origin", lambda value, _: _origin(value), {"type": "string", "pattern": "^[^*/]+://[^*/]+/?$"})


def one_of(meanings: Mapping[str, object]) -> Reads:
    """One of some words, and what each stands for."""
    words = " or ".join(meanings)

    def read(value: object, _: ValidationInfo) -> object:
        if isinstance(value, str) and value in meanings:
            return meanings[value]
        close = get_close_matches(str(value).lower(), meanings, 1) if isinstance(value, str) else []
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"expected {words}, {shown(value)}{hint}")

    return Reads(" or ".join(f"`{word}`" for word in meanings), read, {"enum": list(meanings)})


# --- figures ----------------------------------------------------------------------------------------------------


def whole(lowest: int, highest: int) -> Reads:
    """A whole number between two figures, both allowed. Quoted ones are refused: one way to write a number."""

    def read(value: object, _: ValidationInfo) -> int:
        if isinstance(value, Written) and not value.quoted and _WHOLE.fullmatch(value):
            number = int(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            number = value
        else:
            raise ValueError(f"expected a whole number from {lowest} to {highest}, {shown(value)}")
        if not lowest <= number <= highest:
            raise ValueError(f"must be from {lowest} to {highest}, {shown(value)}")
        return number

    return Reads(f"{lowest}…{highest}", read, {"type": "integer", "minimum": lowest, "maximum": highest})


def _share(value: object) -> float:
    """A number above 0, at most 1. Raises ValueError."""
    plain = isinstance(value, Written) and not value.quoted and re.fullmatch(r"\d*\.?\d+", value)
    if plain or (isinstance(value, int | float) and not isinstance(value, bool)):
        share = float(str(value))
        if 0 < share <= 1:
            return share
        raise ValueError(f"must be above 0 and at most 1, {shown(value)}")
    raise ValueError(f"expected a number above 0 and at most 1, {shown(value)}")


SHARE = Reads(
    "above 0, at most 1", lambda value, _: _share(value), {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
)


def duration(lowest_seconds: float = 0.0) -> Reads:
    """A number with a unit (`300ms`, `2s`, `5m`, `1h`, `7d`), in seconds."""

    def read(value: object, _: ValidationInfo) -> float:
        match = DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected a duration such as 300ms, 2s, 5m or 1h, {shown(value)}")
        seconds = float(match[1]) * SECONDS[match[2]]
        if not lowest_seconds <= seconds <= LONGEST_SECONDS:
            raise ValueError(f"must be from {lowest_seconds:g}s to {LONGEST_SECONDS / 3600:g}h, {shown(value)}")
        return seconds

    return Reads("duration", read, {"type": "string", "pattern": f"^{DURATION.pattern}$"})


def size_of(value: object) -> int:
    """Bytes, of a number with a unit. Raises ValueError."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a size such as 512MiB or 8GB, {shown(value)}")
    size_bytes = float(match[1]) * _BYTES[match[2]]
    if not 1 <= size_bytes < 2**60:
        raise ValueError(f"must be from 1B to less than an exbibyte, {shown(value)}")
    return int(size_bytes)


def _amount(value: object) -> Amount:
    """A size, or a percentage below 100. Raises ValueError."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        try:
            return Amount(size_bytes=size_of(value))
        except ValueError as error:
            raise ValueError(str(error).replace("such as 512MiB", "such as 5%, 512MiB")) from None
    if float(match[1]) >= 100:  # noqa: PLR2004 - a per cent sign's hundred
        raise ValueError(f"must be below 100%, {shown(value)}")
    return Amount(share=float(match[1]) / 100)


SIZE = Reads("size", lambda value, _: size_of(value), {"type": "string", "pattern": f"^{_SIZE.pattern}$"})

AMOUNT = Reads(
    "size or percentage",
    lambda value, _: _amount(value),
    {"type": "string", "pattern": f"^(?:{_SIZE.pattern}|{_PERCENT.pattern})$"},
)


def _window(value: object) -> Window:
    """A window of the day. Raises ValueError."""
    try:
        return window_of(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ValueError(f"{error}, {shown(value)}") from None


WINDOW = Reads("window of the day", lambda value, _: _window(value), {"type": "string"})


def _sizes(value: object) -> dict[str, int]:
    """Sizes by name. Raises ValueError."""
    match value:
        case None | Written(is_null=True):
            return {}
        case Mapping():
            return {str(name): _size_of(name, size) for name, size in value.items()}
    raise ValueError(f"expected a mapping of names to sizes, {shown(value)}")


def _size_of(name: object, size: object) -> int:
    try:
        return size_of(size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


SIZES = Reads(
    "mapping of names to sizes",
    lambda value, _: _sizes(value),
    {"type": ["object", "null"], "additionalProperties": SIZE.json_schema},
)


# --- paths, flags, environment ----------------------------------------------------------------------------------


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    """`${NAME}` becomes the variable's value, `$$` a dollar sign. Raises ValueError for one that is unset or empty."""

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if match[0] == "$$":
            return "$"
        if name is None:
            raise ValueError("write ${NAME} for an environment variable, or $$ for a dollar sign")
        if not environ.get(name):
            raise ValueError(f"the environment variable {name} is not set, or is empty")
        return environ[name]

    return _VARIABLE.sub(value_of, text)


def _path(value: object, info: ValidationInfo) -> Path:
    """A path, relative ones from the configuration's folder. Raises ValueError."""
    if isinstance(value, Path):
        return value
    around = info.context if isinstance(info.context, Surroundings) else Surroundings(Path(), os.environ)
    text = _expanded(_text(value), around.environ)
    try:
        return around.folder / Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home folder for {text.split('/')[0]}") from None


PATH = Reads("path", _path, {"type": "string"})


def _argument(value: object) -> str:
    """One argument of a command line, as written, `""` too. Raises ValueError."""
    if isinstance(value, str) and "\0" not in value:
        return str(value)
    raise ValueError(f"expected text, {shown(value)}")


def _split(text: str) -> tuple[str, ...]:
    """A text as a shell would split it, without its comment lines and line continuations. Raises ValueError."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    if getattr(text, "folded", False) and len(lines) < len(text.splitlines()):
        raise ValueError("in a folded (`>`) text a comment would swallow what follows; use `|`, or write a list")
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    joined = re.sub(r"(?:^|(?<=\s))\\(?=\s|$)", " ", joined)  # a folded text has already lost the line's end
    try:
        words = shlex.split(joined)
    except ValueError as error:
        raise ValueError(f"cannot split these flags: {str(error).lower()}") from None
    if any(word.startswith("#") for word in words):
        raise ValueError("a comment needs a line of its own in a `|` text; write flags as a list to be sure")
    return tuple(words)


def _flags(value: object) -> tuple[str, ...]:
    """Engine flags: a list is taken as it is, a text is split. Raises ValueError."""
    match value:
        case None | Written(is_null=True):
            return ()
        case list() | tuple():
            return tuple(_argument(item) for item in value)
        case str():
            return _split(value)
    raise ValueError(f"expected a list of flags, or one text, {shown(value)}")


FLAGS = Reads(
    "list, or text split as a shell does",
    lambda value, _: _flags(value),
    {"anyOf": [{"type": "array", "items": WRITTEN_TEXT.json_schema}, {"type": "string"}, {"type": "null"}]},
)


def _environment(value: object) -> dict[str, str]:
    """Environment variables, values as written. Raises ValueError."""
    match value:
        case None | Written(is_null=True):
            return {}
        case Mapping() if not any(text is None or (text and is_null(text)) for text in value.values()):
            return {_variable(name): _argument(text) for name, text in value.items()}
    raise ValueError("expected a mapping of names to text")  # what is there may be a secret


def _variable(name: str) -> str:
    """The name of an environment variable. Raises ValueError."""
    if not _ENV_NAME.fullmatch(name):
        raise ValueError(f"{name} cannot be the name of an environment variable")
    return str(name)


ENVIRONMENT = Reads(
    "mapping",
    lambda value, _: _environment(value),
    {"type": ["object", "null"], "additionalProperties": WRITTEN_TEXT.json_schema},
)


# --- members of requests ----------------------------------------------------------------------------------------

_NOT_ADDED: Mapping[str, str] = {
    **dict.fromkeys(("model", "stream", "messages", "prompt", "input"), "that is the request's own"),
    **dict.fromkeys(("system", "instructions"), "write it as system_prompt"),
    **dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"), "it is limits.max_tokens"
    ),
    **dict.fromkeys(("x_class", "gridsched", "service_tier"), "the class is the setting `class`"),
    **dict.fromkeys(("ttl", "keep_alive"), "that is the setting `idle_ttl`"),
    "reasoning_format": "that is a setting of its own",
}
"""Members of a request that `sampling` cannot add, and why."""

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_JSON_WORDS = {word: name.encode() for name in ("true", "false") for word in (name, name.title(), name.upper())}


def _members(value: object) -> dict[str, bytes]:
    """Members with their values in JSON; one that says nothing is left out. Raises ValueError."""
    match value:
        case None | Written(is_null=True):
            return {}
        case Mapping():
            for name in value:
                if name in _NOT_ADDED:
                    raise ValueError(f"{name} cannot be added here: {_NOT_ADDED[name]}")
            return {str(name): _json(each) for name, each in value.items() if not is_null(each)}
    raise ValueError(f"expected a mapping of a request's members to values, {shown(value)}")


def _json(value: object) -> bytes:
    """A value in JSON, numbers digit for digit as they were written. Raises ValueError."""
    match value:
        case Mapping():
            return b"{%s}" % b",".join(b"%s:%s" % (_json(str(name)), _json(each)) for name, each in value.items())
        case list() | tuple():
            return b"[%s]" % b",".join(map(_json, value))
        case Written(quoted=False):
            return _JSON_WORDS.get(value) or _number(value) or (b"null" if value.is_null else _quoted(value))
        case str():
            return _quoted(value)
    return json.dumps(value, allow_nan=False).encode()


def _quoted(text: str) -> bytes:
    return json.dumps(str(text), ensure_ascii=False).encode()


def _number(text: str) -> bytes | None:
    """None where it is none. Raises ValueError for one that JSON does not know."""
    try:
        number = float(text)
    except ValueError:
        return None
    if math.isfinite(number) and _JSON_NUMBER.fullmatch(text):
        return text.encode()
    raise ValueError(f"expected a number as JSON has it, such as 0.5, or text in quotes, {shown(text)}")


DEFAULTS = Reads(
    "mapping of members to values",
    lambda value, _: _members(value),
    {"type": ["object", "null"], "not": {"anyOf": [{"required": [name]} for name in _NOT_ADDED]}},
)
