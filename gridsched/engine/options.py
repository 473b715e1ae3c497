"""What an engine's own help says of its flags, and whether a command line fits it.

Owns the reading of `llama-server --help`: the names of each flag, how many values it takes, which words they may be,
its environment variable. Pure. What flags mean for memory is `vram.flags`'.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from gridsched.vram.words import long_name

_TEXT_COLUMN = 40  # where the help's explanations begin; names that reach so far stand on a line of their own
_NAME = re.compile(r"(--?[A-Za-z][\w.-]*)(,\s*|\s+|$)")
_ALLOWED = re.compile(r"allowed values: ([\w, ]+?)\s*(?:\(|$)")
_ENVIRONMENT = re.compile(r"\(env: (\w+)\)")
_FILE = re.compile(r"\b(FNAME|FILE|PATH)\b|_FILE\b")
_REMOVED = re.compile(r"the argument has been removed\.?\s*(.*?)\s*(?:\(env|$)")
_WORD = re.compile(r"[a-z0-9][\w+-]*", re.ASCII)
LEAST_LISTED = 3  # words with commas between them, in place of a value's name, are the words that it may be


@dataclass(frozen=True, slots=True)
class Option:
    """One flag of an engine. `values` counts the words that follow it; `words` are all that may stand there, if the
    help says so, and `several` of them with commas between; `file` says that they are paths. `removed` is what the help
    says of a flag that is no more.
    """

    names: tuple[str, ...]
    values: int = 0
    words: tuple[str, ...] = ()
    several: bool = False
    file: bool = False
    environment: str | None = None
    removed: str | None = None


def read_options(text: str) -> Mapping[str, Option]:
    """The flags in a help text, each under all of its names. Never raises: what is no flag is passed over."""
    found: dict[str, Option] = {}
    for lines in _blocks(text):
        option = _option(lines)
        found |= dict.fromkeys(option.names, option)
    return found


def _blocks(text: str) -> Iterator[list[str]]:
    """The lines of each flag: one that begins with its names, and those that go on about it."""
    block: list[str] = []
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("---"):
            if block:
                yield block
            block = [line]
        elif block and line.startswith(" "):
            block.append(line)
    if block:
        yield block


def _option(lines: list[str]) -> Option:
    first = lines[0]
    shares_line = len(first) > _TEXT_COLUMN and first[_TEXT_COLUMN - 3 : _TEXT_COLUMN].isspace()
    head, told = (first[:_TEXT_COLUMN], first[_TEXT_COLUMN:]) if shares_line else (first, "")
    names: list[str] = []
    at = 0
    while (match := _NAME.match(head, at)) is not None:
        names.append(match.group(1))
        at = match.end()
        if not match.group(2).startswith(","):
            break
    hint = head[at:].strip()
    explained = " ".join([told, *(line.strip() for line in lines[1:])])
    words, several = _words(hint, explained)
    environment = _ENVIRONMENT.search(explained)
    removed = _REMOVED.search(explained)
    return Option(
        names=tuple(names),
        values=0 if not hint else 2 if re.fullmatch(r"[A-Z]+ [A-Z]+", hint) else 1,
        words=words,
        several=several,
        file=_FILE.search(hint) is not None,
        environment=environment.group(1) if environment else None,
        removed=removed.group(1) if removed else None,
    )


def _words(hint: str, explained: str) -> tuple[tuple[str, ...], bool]:
    """What a value may be. `[on|off|auto]` says nothing: the engine takes more words than those."""
    if hint.startswith("{") and hint.endswith("}"):
        return tuple(hint[1:-1].split(",")), False
    listed = hint.split(",")
    if len(listed) >= LEAST_LISTED and all(map(_WORD.fullmatch, listed)):
        return tuple(listed), True
    allowed = _ALLOWED.search(explained)
    return (tuple(word.strip() for word in allowed.group(1).split(",")), False) if allowed else ((), False)


@dataclass(frozen=True, slots=True)
class Fault:
    """A word of a command line at which the engine would end, by its place among them, and why."""

    index: int
    sentence: str


def flag_faults(flags: Sequence[str], options: Mapping[str, Option]) -> Iterator[Fault]:
    """Where an engine with these options would refuse these flags. Without options nothing can be said."""
    if not options:
        return
    index = 0
    while index < len(flags):
        written = flags[index]
        name, sign, text = written.partition("=") if written.startswith("--") else (written, "", "")
        option = options.get(long_name(name))
        begun, index = index, index + 1
        if option is None:
            yield Fault(begun, _unknown(name, options))
            while index < len(flags) and not _is_flag(flags[index]):
                index += 1  # values of a flag of which nothing is known
            continue
        given = [text] if sign else []
        while len(given) < option.values and index < len(flags):
            given.append(flags[index])
            index += 1
        if sentence := _mismatch(name, option, given, inline=bool(sign)):
            yield Fault(begun, sentence)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d.*", word)


def _unknown(name: str, options: Mapping[str, Option]) -> str:
    if not name.startswith("-"):
        return f"{name!r} is no flag, and no flag before it takes it as a value"
    close = get_close_matches(long_name(name), options, 1)
    return f"this llama-server's help has no {name}{f'; did you mean {close[0]}?' if close else ''}"


def _mismatch(name: str, option: Option, given: list[str], *, inline: bool) -> str | None:
    """What is wrong with a known flag."""
    if option.removed is not None:
        return f"this llama-server has no {name} any more{f': {option.removed}' if option.removed else ''}"
    if inline and not option.values:
        return f"{name} takes no value"
    if len(given) < option.values:
        return f"{name} needs {option.values} values" if option.values > 1 else f"{name} needs a value"
    for word in given[0].split(",") if option.several else given:
        if option.words and word not in option.words:
            close = get_close_matches(word, option.words, 1)
            hint = f"; did you mean {close[0]}?" if close else f" ({', '.join(option.words)})"
            return f"{name}: this llama-server does not know {word!r}{hint}"
    return None


def settings_of(options: Mapping[str, Option]) -> dict[str, str]:
    """The flag behind each environment variable that the engine would read; `LLAMA_ARG_NO_X` switches X off."""
    found: dict[str, str] = {}
    for option in options.values():
        if option.environment is not None:
            found[option.environment] = next((name for name in option.names if name.startswith("--")), option.names[0])
            off = next((name for name in option.names if name.startswith("--no-")), None)
            if off is not None:
                found[option.environment.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")] = off
    return found
