"""What can be wrong with a configuration, as sentences with a place. Owns SettingsError and the checks across keys.

Must never raise for a fault it finds: faults are collected, and `load` raises them all at once.
"""

from collections.abc import Iterator
from difflib import get_close_matches

from pydantic_core import ErrorDetails

from gridsched.ports import Capability
from gridsched.settings.document import Document, Loc, Place, Problem, dotted
from gridsched.settings.reference import NAME_PART, settings_there_are
from gridsched.settings.schema import Settings

MAX_SHOWN = 40
"""Faults that are printed; the rest are counted."""

_NAMED = ("models", "families")
"""Sections whose keys are names that a person chose."""

_TOP = Place(1, 1, 1, 1)


class SettingsError(Exception):
    """The configuration cannot be used. `problems` are in the file's order; `str()` gives one line for each."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        for problem in self.problems[:MAX_SHOWN]:
            where = f"{self.source}:{problem.line}:{problem.column}" if problem.line else self.source
            yield _printable(": ".join(part for part in (where, problem.key, problem.sentence) if part))
        if len(self.problems) > MAX_SHOWN:
            yield f"{self.source}: and {len(self.problems) - MAX_SHOWN} more"


def _printable(line: str) -> str:
    """One line that does nothing to a terminal, whatever a key of the file holds."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def sentence_of(details: ErrorDetails) -> str:
    """A pydantic error as a sentence."""
    match details["type"]:
        case "extra_forbidden":
            return _unknown(details["loc"])
        case "missing":
            return f"`{details['loc'][-1]}` is missing"
        case "value_error":
            return str(details["ctx"]["error"])
        case _:
            return details["msg"]


def problem_of(document: Document, details: ErrorDetails) -> Problem:
    """A pydantic error with its place in the file: the key where the key is at fault, else the value."""
    loc = tuple(part for part in details["loc"] if part != "[key]")
    while loc and loc not in document.places:
        loc = loc[:-1]  # what is missing has no place: the fault lies with what should hold it
    place = document.places.get(loc, _TOP)
    if place.holds_more or details["type"] == "extra_forbidden" or "[key]" in details["loc"]:
        return Problem(place.key_line, place.key_column, dotted(loc), sentence_of(details))
    return Problem(place.line, place.column, dotted(loc), sentence_of(details))


def _unknown(loc: Loc) -> str:
    *parent, key = (NAME_PART if n == 1 and loc[0] in _NAMED else str(part) for n, part in enumerate(loc))
    keys = [setting.key for setting in settings_there_are()]
    homes = [".".join(known[:-1]) for known in keys if known[-1] == key]
    if homes:
        return f"unknown key here; `{key}` belongs in {' or '.join(homes)}"
    depth = len(parent)
    siblings = dict.fromkeys(known[depth] for known in keys if list(known[:depth]) == parent)
    close = get_close_matches(key, siblings, 1)
    if not close:
        everywhere = {known[-1]: ".".join(known) for known in reversed(keys)}  # of one name the first that there is
        close = [everywhere[match] for match in get_close_matches(key, everywhere, 1)]
    return f"unknown key; did you mean {close[0]}?" if close else f"unknown key; here can be {', '.join(siblings)}"


def name_clashes(document: Document) -> Iterator[Problem]:
    """Ids, aliases and families that mean two things, or the same twice. Clients' names are found without regard to
    case."""
    first: dict[str, Loc] = {}
    for loc, name in _names(document):
        other = first.setdefault(name.casefold(), loc)
        if other != loc:
            place = document.places[loc]
            line = document.places[other].key_line
            sentence = f"the name {name} is taken by {dotted(other)} on line {line} (case makes no difference)"
            yield Problem(place.key_line, place.key_column, dotted(loc), sentence)


def _names(document: Document) -> Iterator[tuple[Loc, str]]:
    models = document.value.get("models")
    for name, model in models.items() if isinstance(models, dict) else ():
        yield ("models", name), name
        aliases = model.get("aliases") if isinstance(model, dict) else None
        for number, alias in enumerate(aliases if isinstance(aliases, list) else ()):
            if isinstance(alias, str):
                yield ("models", name, "aliases", number), alias
    families = document.value.get("families")
    for name in families if isinstance(families, dict) else ():
        yield ("families", name), name


def unfit_variants(document: Document, settings: Settings) -> Iterator[Problem]:
    """R10: families without a variant, with one twice, or with one that is no model here or cannot chat. What a file
    serves that says nothing of its capabilities is known only once it has been read."""
    for name, family in settings.families.items():
        if not family.variants:
            yield _at(document, ("families", name), "a family names at least one model: preferred, balanced or compact")
        seen: dict[str, str] = {}
        for quality, model in family.variants:
            sentence = _unfit(settings, model, seen.setdefault(model, quality.label), quality.label)
            if sentence:
                yield _at(document, ("families", name, quality.label), sentence)


def chained(document: Document, settings: Settings) -> Iterator[Problem]:
    """Names over names that have no file of their own either. Whether a base is there is known once the files are."""
    names = {
        word.casefold(): (name, model.base)
        for name, model in settings.models.items()
        if model.base is not None
        for word in (name, *model.aliases)
    }
    for name, model in settings.models.items():
        other, base = names.get((model.base or "").casefold(), (None, None))
        if other is not None:
            sentence = f"{other} is a name over a model itself: name its base, {base}"
            sentence = "a name cannot be its own base" if other == name else sentence
            yield _at(document, ("models", name, "base"), sentence)


def _unfit(settings: Settings, model: str, first: str, here: str) -> str:
    if model not in settings.models:
        close = get_close_matches(model, settings.models, 1)
        known = f"did you mean {close[0]}?" if close else f"there are {', '.join(settings.models) or 'none'}"
        return f"there is no model {model} under models; {known}"
    if base := settings.models[model].base:
        return f"{model} is a name over another model: name its base, {base}"
    if first != here:
        return f"{model} is the {first} variant already"
    able = settings.models[model].capabilities
    if able is not None and Capability.CHAT not in able:
        return f"{model} does not chat, and a family is for chats and completions"
    return ""


def _at(document: Document, loc: Loc, sentence: str) -> Problem:
    place = document.places[loc]
    if place.holds_more:
        return Problem(place.key_line, place.key_column, dotted(loc), sentence)
    return Problem(place.line, place.column, dotted(loc), sentence)


def starved_models(document: Document, settings: Settings) -> Iterator[Problem]:
    """S6: models whose slots are all kept for interactive work, though they are not for chat only."""
    reserved = settings.scheduler.interactive_reserved_slots
    for name, model in settings.models.items():
        parallel = None if model.base else model.parallel or settings.defaults.parallel
        chat_only = model.capabilities == frozenset((Capability.CHAT,))
        if reserved and parallel and reserved >= parallel and not chat_only:
            loc: Loc = ("models", name, "parallel") if model.parallel else ("models", name)
            place = document.places[loc]
            sentence = (
                f"scheduler.interactive_reserved_slots keeps {reserved} slots for interactive work, and this model has"
                f" {parallel}: other work would never run; give it more slots, or capabilities: [chat]"
            )
            yield Problem(place.key_line, place.key_column, dotted(loc), sentence)
