"""A what-if's file: what may stand in it, and from the text to the simulator's `Scenario`, or to all faults at once.

Owns the schema of scenario files. Figures are written as in the configuration and read by the same readers; a policy is
the configuration's `scheduler` section. Must never let a YAML or pydantic exception out, nor run anything.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.job import JobClass, JobKind
from gridsched.core.model import DeviceSpec
from gridsched.settings.document import Document, Loc, Problem, Written, dotted, read_document
from gridsched.settings.faults import SettingsError, problem_of, sentence_of
from gridsched.settings.load import read_text
from gridsched.settings.models import MAX_SLOTS
from gridsched.settings.schema import SchedulerSettings, Settings
from gridsched.settings.section import Section
from gridsched.settings.values import (
    AMOUNT,
    NAME,
    SIZE,
    Amount,
    Reads,
    duration,
    is_null,
    one_of,
    or_word,
    shown,
    whole,
)
from sim.whatif import SHIPPED
from sim.whatif.scenario import ALONE, UNDISTURBED, Clients, Engine, Model, PolicyRun, Scenario

MAX_SECONDS, MAX_SEEDS, MAX_CLIENTS, MAX_STEPS = 24 * 3600.0, 1000, 1000, 10_000
FROM_CONFIGURATION = "config"
"""The name of the policy that `--config` adds."""

CHUNK = SchedulerSettings().embedding_chunk
"""The chunk that the steps of embedding clients are counted in; under another they are cut anew."""

_CLASSES = {job_class.label: job_class for job_class in JobClass}
_KINDS = {"chat": JobKind.CHAT, "embeddings": JobKind.EMBEDDINGS}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TRUTH = one_of({"true": True, "false": False})


# --- readers ----------------------------------------------------------------------------------------------------


def _number(lowest: float, highest: float) -> Reads:
    """A plain number between two figures, both allowed."""

    def read(value: object, _: ValidationInfo) -> float:
        if isinstance(value, Written) and not value.quoted and _NUMBER.fullmatch(value):
            number = float(value)
            if lowest <= number <= highest:
                return number
            raise ValueError(f"must be from {lowest:g} to {highest:g}, {shown(value)}")
        if isinstance(value, int | float):
            return float(value)
        raise ValueError(f"expected a number from {lowest:g} to {highest:g}, {shown(value)}")

    return Reads(f"{lowest:g}…{highest:g}", read, {"type": "number", "minimum": lowest, "maximum": highest})


def _part(value: object, info: ValidationInfo) -> float:
    """A percentage below 100, as a part. Raises ValueError."""
    try:
        amount = cast("Amount", AMOUNT.reader(value, info))
    except ValueError:
        amount = Amount(size_bytes=1)
    if amount.size_bytes:
        raise ValueError(f"expected a percentage below 100%, {shown(value)}")
    return amount.share


PART = Reads("percentage", _part, {"type": "string"})


def _list(value: object) -> object:
    """A lone value is a list of one. Raises ValueError for nothing."""
    if is_null(value) or value in ([], ()):
        raise ValueError("expected a value, or a list of some, got nothing")
    return value if isinstance(value, list | tuple) else [value]


def _mapping(value: object) -> object:
    """Named things, at least one. Raises ValueError."""
    if isinstance(value, Mapping) and value:
        return value
    raise ValueError(f"expected a mapping with at least one name, {shown(value) if value else 'got nothing'}")


def _mapping_or_none(value: object) -> object:
    return {} if is_null(value) or value == {} else _mapping(value)


def _of(default: object, meaning: str) -> Any:
    """A field that may be left out. Any, because the default is text that a reader turns into the field's type."""
    return Field(default, description=meaning)


def _needed(meaning: str) -> Any:
    return Field(description=meaning)


# --- the file ---------------------------------------------------------------------------------------------------


class EngineSection(Section):
    """How processes share a card."""

    overlap: Annotated[tuple[Annotated[float, _number(0.1, 16)], ...], BeforeValidator(_list)] = _needed(
        "How much faster than one process 1, 2, 3 … busy ones are together; the last holds for more."
    )
    stream_weight: Annotated[float, PART] = _needed("What each further stream adds to a low process's weight.")
    prompt_share: Annotated[float, PART] = _needed("The part of a step that is over at its first token.")


class ModelSection(Section):
    """One model, in one process."""

    memory_bytes: Annotated[int, SIZE] = _needed("What it takes of a card.")
    slots: Annotated[int, whole(1, MAX_SLOTS)] = _needed("Requests that are served at once.")
    load_seconds: Annotated[float, duration()] = _needed("How long a load takes.")
    pinned: Annotated[bool, _TRUTH] = _of("false", "Never evicted (R1).")
    loaded: Annotated[bool, _TRUTH] = _of("false", "In memory when the clock starts.")
    card: Annotated[str | None, or_word(NAME, "any")] = _of("any", "The only card it may use.")
    idle_ttl_seconds: Annotated[float | None, or_word(duration(1.0), "never")] = _of(
        "never", "Unloaded when idle (R6)."
    )
    weight: Annotated[float, _number(0.01, 100)] = _needed("Its part of a card beside other processes.")
    stream_cost: Annotated[float, _number(0, 10)] = _needed("What each further stream costs those of its process.")


class ClientsSection(Section):
    """Clients of one kind, each in a closed loop."""

    job_class: Annotated[JobClass, one_of(_CLASSES)] = _needed("The class of their requests.")
    kind: Annotated[JobKind, one_of(_KINDS)] = _of("chat", "What they ask for; embeddings have steps.")
    model: Annotated[str, NAME] = _needed("The model they ask.")
    count: Annotated[int, whole(0, MAX_CLIENTS)] = _needed("How many there are.")
    think_seconds: Annotated[float, duration(0.001)] = _needed("The pause between an answer and the next request.")
    think_spread: Annotated[float, PART] = _of("0%", "The most by which a pause differs from that.")
    solo_seconds: Annotated[float, duration(0.001)] = _needed("A step, alone on the card.")
    solo_spread: Annotated[float, PART] = _of("0%", "The standard deviation of a step.")
    steps: Annotated[tuple[Annotated[int, whole(1, MAX_STEPS)], ...], BeforeValidator(_list)] = _of(
        [1], "Steps of a request; of several figures each request draws one."
    )

    @field_validator("steps")
    @classmethod
    def _steps_of_embeddings(cls, steps: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if info.data.get("kind") is JobKind.CHAT and steps != (1,):
            raise ValueError("only embeddings have more than one step (S3)")
        return steps


class ModelChange(Section):
    """What a variant says otherwise of a model; None is as it was."""

    memory_bytes: Annotated[int | None, or_word(SIZE, "null")] = _of(None, "What it takes of a card.")
    slots: Annotated[int | None, or_word(whole(1, MAX_SLOTS), "null")] = _of(None, "Requests served at once.")
    load_seconds: Annotated[float | None, or_word(duration(), "null")] = _of(None, "How long a load takes.")
    card: Annotated[str | None, or_word(NAME, "null")] = _of(None, "The only card it may use.")


class ClientsChange(Section):
    """What a variant says otherwise of clients; None is as it was."""

    count: Annotated[int | None, or_word(whole(0, MAX_CLIENTS), "null")] = _of(None, "How many there are.")


CARDS = Annotated[dict[Annotated[str, NAME], Annotated[int, SIZE]], BeforeValidator(_mapping)]


class VariantSection(Section):
    """The same scenario on other cards, with other models or numbers of clients."""

    cards: CARDS | None = _of(None, "The cards instead.")
    models: Annotated[dict[Annotated[str, NAME], ModelChange], BeforeValidator(_mapping_or_none)] = _of({}, "By name.")
    clients: Annotated[dict[Annotated[str, NAME], ClientsChange], BeforeValidator(_mapping_or_none)] = _of(
        {}, "By name."
    )


class ScenarioFile(Section):
    """The whole file."""

    seconds: Annotated[float, duration(1.0)] = _needed("Virtual time of a run.")
    seeds: Annotated[int, whole(1, MAX_SEEDS)] = _of(20, "Runs of each policy; their mean is given.")
    cards: CARDS = _needed("Each card and its size.")
    headroom: Annotated[Amount, AMOUNT] = _of("5%", "Part of each card that is never planned (L4).")
    engine: EngineSection = _needed("How processes share a card.")
    models: Annotated[dict[Annotated[str, NAME], ModelSection], BeforeValidator(_mapping)] = _needed("By name.")
    clients: Annotated[dict[Annotated[str, NAME], ClientsSection], BeforeValidator(_mapping)] = _needed("By name.")
    policies: Annotated[dict[Annotated[str, NAME], SchedulerSettings], BeforeValidator(_mapping)] = _of(
        {"default": {}}, "By name, each with what is different from the scheduler's defaults."
    )
    variants: Annotated[dict[Annotated[str, NAME], VariantSection], BeforeValidator(_mapping_or_none)] = _of(
        {}, "By name, each with what is different."
    )

    @field_validator("seconds")
    @classmethod
    def _bounded(cls, seconds: float) -> float:
        if seconds > MAX_SECONDS:
            raise ValueError(f"must be at most {MAX_SECONDS / 3600:g}h")
        return seconds


# --- faults -----------------------------------------------------------------------------------------------------

_SECTIONS: Mapping[tuple[str, ...], type[Section]] = {
    (): ScenarioFile,
    ("engine",): EngineSection,
    ("models", "*"): ModelSection,
    ("clients", "*"): ClientsSection,
    ("variants", "*"): VariantSection,
    ("variants", "*", "models", "*"): ModelChange,
    ("variants", "*", "clients", "*"): ClientsChange,
}
_NAMED = 2
"""Of a way such as `models.tiny.slots`, the parts that lead to the thing with a name."""


def _problem(document: Document, details: ErrorDetails) -> Problem:
    """A fault of the schema with its place; unknown keys are compared with those of a scenario."""
    problem = problem_of(document, details)
    if details["type"] != "extra_forbidden":
        return problem
    *parent, key = (str(part) for part in details["loc"])
    if parent[:1] == ["policies"]:
        return replace(problem, sentence=sentence_of({**details, "loc": ("scheduler", *details["loc"][_NAMED:])}))
    way = tuple("*" if place % _NAMED else part for place, part in enumerate(parent))
    keys = [str(each.alias) for each in _SECTIONS[way].model_fields.values()]
    close = get_close_matches(key, keys, 1)
    hint = f"did you mean {close[0]}?" if close else f"here can be {', '.join(keys)}"
    return replace(problem, sentence=f"unknown key; {hint}")


class _Checks:
    """The checks across keys, each fault at its place."""

    def __init__(self, document: Document, file: ScenarioFile) -> None:
        self._places = document.places
        self._file = file

    def faults(self) -> Iterator[Problem]:
        """All of them."""
        file = self._file
        yield from self._memory((), file.cards, {name: model.memory_bytes for name, model in file.models.items()})
        yield from self._cards_named((), file.cards, {name: model.card for name, model in file.models.items()})
        yield from self._clients()
        yield from self._policies()
        for name, variant in file.variants.items():
            yield from self._variant(name, variant)

    def _problem(self, loc: Loc, sentence: str) -> Problem:
        while loc not in self._places and len(loc) > 1:
            loc = loc[:-1]
        place = self._places[loc]
        return Problem(place.line, place.column, dotted(loc), sentence)

    def _usable(self, cards: Mapping[str, int]) -> dict[str, int]:
        headroom = self._file.headroom
        return {name: size - headroom_bytes(headroom, size) for name, size in cards.items()}

    def _memory(self, at: Loc, cards: Mapping[str, int], memory: Mapping[str, int]) -> Iterator[Problem]:
        """L7: what can never be loaded, and what cannot be in memory together at the start."""
        usable = self._usable(cards)
        for name, needed in memory.items():
            if needed > max(usable.values()):
                most = max(usable.values()) / 2**30
                sentence = f"{name} needs {needed / 2**30:.2f} GiB, and no card has more than {most:.2f} GiB for it"
                yield self._problem((*at, "models", name, "memory"), sentence)
        loaded = sum(memory[name] for name, model in self._file.models.items() if model.loaded)
        if loaded > sum(usable.values()):
            sentence = (
                f"the models that are loaded at the start need {loaded / 2**30:.2f} GiB, and the cards have"
                f" {sum(usable.values()) / 2**30:.2f} GiB"
            )
            yield self._problem((*at, "cards"), sentence)

    def _cards_named(self, at: Loc, cards: Mapping[str, int], named: Mapping[str, str | None]) -> Iterator[Problem]:
        for name, card in named.items():
            if card is not None and card not in cards:
                yield self._problem((*at, "models", name, "card"), _unknown(card, cards, "card"))

    def _clients(self) -> Iterator[Problem]:
        for name, clients in self._file.clients.items():
            if clients.model not in self._file.models:
                yield self._problem(("clients", name, "model"), _unknown(clients.model, self._file.models, "model"))

    def _policies(self) -> Iterator[Problem]:
        asked_by_low = {each.model for each in self._file.clients.values() if each.job_class.is_low}
        for name, scheduler in self._file.policies.items():
            loc: Loc = ("policies", name)
            if name in (ALONE, UNDISTURBED, FROM_CONFIGURATION):
                yield self._problem(loc, f"the name {name} is taken")
            reserved = scheduler.interactive_reserved_slots
            for model in sorted(asked_by_low & set(self._file.models)):
                if reserved is not None and reserved >= self._file.models[model].slots:
                    sentence = f"keeps all slots of {model} for interactive work: other work would never run"
                    yield self._problem((*loc, "interactive_reserved_slots"), sentence)

    def _variant(self, name: str, variant: VariantSection) -> Iterator[Problem]:
        file = self._file
        at: Loc = ("variants", name)
        for there, here, what in ((variant.models, file.models, "model"), (variant.clients, file.clients, "clients")):
            for each in there:
                if each not in here:
                    section = "models" if what == "model" else what
                    yield self._problem((*at, section, each), _unknown(each, here, what))
        changes = {each: variant.models.get(each, ModelChange()) for each in file.models}
        memory = {each: changes[each].memory_bytes or model.memory_bytes for each, model in file.models.items()}
        named = {each: changes[each].card or model.card for each, model in file.models.items()}
        if variant.cards or any(change.memory_bytes for change in changes.values()):
            yield from self._memory(at, variant.cards or file.cards, memory)
        if variant.cards or any(change.card for change in changes.values()):
            yield from self._cards_named(at, variant.cards or file.cards, named)


def _unknown(name: str, known: Mapping[str, object], what: str) -> str:
    close = get_close_matches(name, known, 1)
    return f"there is no {what} {name}; " + (f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}")


# --- from the file to the scenario ------------------------------------------------------------------------------


def found(path: Path) -> Path:
    """The file, or a shipped scenario of that name."""
    shipped = SHIPPED / f"{path.name.removesuffix('.yaml')}.yaml"
    try:
        return shipped if not path.exists() and path.parent == Path() and shipped.is_file() else path
    except OSError:
        return path  # whoever reads it says why it cannot be


def load(path: Path) -> Scenario:
    """Read a scenario file. Raises SettingsError with every fault."""
    return parse(read_text(path), str(path))


def parse(text: str, source: str) -> Scenario:
    """Read a text; `source` names it in sentences. Raises SettingsError with every fault."""
    document = read_document(text)
    problems = list(document.problems)
    try:
        if problems and not document.value:
            raise SettingsError(source, tuple(problems))  # no YAML: what would be missing is not the point
        file = ScenarioFile.model_validate(document.value)
        problems += _Checks(document, file).faults()
        if not problems:
            return _scenario(file)
    except ValidationError as error:
        problems += (_problem(document, details) for details in error.errors(include_url=False))
    raise SettingsError(source, tuple(sorted(problems, key=lambda each: (each.line, each.column))))


def policy_run(name: str, settings: Settings) -> PolicyRun:
    """The scheduler's figures of a configuration, as one more policy."""
    scheduler = settings.scheduler
    written = {key: value for key, value in scheduler.model_dump(by_alias=True).items() if key != "queues"}
    chunk = scheduler.embedding_chunk / CHUNK
    return PolicyRun(name, settings.policy(), scheduler.interactive_reserved_slots, chunk, _plain(written))


def _plain(written: Mapping[str, object]) -> dict[str, object]:
    """Figures as JSON takes them: seconds, numbers and words."""
    return {key: getattr(value, "value", value) if value != inf else None for key, value in written.items()}


def headroom_bytes(headroom: Amount, size_bytes: int) -> int:
    """What of a card is never planned."""
    return headroom.size_bytes or int(size_bytes * headroom.share)


def _scenario(file: ScenarioFile) -> Scenario:
    base = Scenario(
        seconds=file.seconds,
        seeds=tuple(range(1, file.seeds + 1)),
        cards=_cards(file, file.cards),
        models=tuple(_model(name, section) for name, section in file.models.items()),
        clients=tuple(_clients(name, section) for name, section in file.clients.items()),
        policies=tuple(policy_run(name, Settings(scheduler=each)) for name, each in file.policies.items()),
        engine=Engine(file.engine.overlap, file.engine.stream_weight, file.engine.prompt_share),
    )
    return replace(base, variants={name: _variant(file, base, each) for name, each in file.variants.items()})


def _cards(file: ScenarioFile, cards: Mapping[str, int]) -> tuple[DeviceSpec, ...]:
    return tuple(
        DeviceSpec(DeviceName(name), size, headroom_bytes(file.headroom, size)) for name, size in cards.items()
    )


def _model(name: str, section: ModelSection) -> Model:
    card = None if section.card is None else DeviceName(section.card)
    return Model(ModelName(name), **{**dict(section), "card": card})


def _clients(name: str, section: ClientsSection) -> Clients:
    return Clients(name, **{**dict(section), "model": ModelName(section.model)})


def _variant(file: ScenarioFile, base: Scenario, variant: VariantSection) -> Scenario:
    models = {name: _said(change) for name, change in variant.models.items()}
    clients = {name: _said(change) for name, change in variant.clients.items()}
    return replace(
        base,
        cards=_cards(file, variant.cards or file.cards),
        models=tuple(replace(each, **models.get(each.name, {})) for each in base.models),
        clients=tuple(replace(each, **clients.get(each.name, {})) for each in base.clients),
    )


def _said(change: ModelChange | ClientsChange) -> dict[str, Any]:
    """What a variant says: everything but what is as it was."""
    return {key: value for key, value in change if value is not None}
