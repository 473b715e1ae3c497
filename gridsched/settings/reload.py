"""What a reload comes to: the settings that run beside those of the file, each difference and what it takes. Pure.

Owns the table of effects: every setting is in it, and a test sees to that. Must never show a secret: of environment
variables the names are told, and of flags that carry a key or a token not what follows.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar, cast

from pydantic.fields import FieldInfo

from gridsched.settings.models import ModelSettings
from gridsched.settings.reference import NAME_PART, settings_there_are
from gridsched.settings.schema import Settings
from gridsched.settings.section import Section
from gridsched.settings.values import Amount, Reads

EFFECTS_BEGIN = "<!-- effects: begin (written by `python -m gridsched.settings.reload`) -->"
EFFECTS_END = "<!-- effects: end -->"

LONGEST_SHOWN = 80
"""Characters of a value that a plan shows."""


class Effect(Enum):
    """What it takes for a changed setting to hold."""

    NOW = "now"
    MODEL = "model restart"
    SERVER = "server restart"
    WATCHDOG = "watchdog restart"


_WORDS: Final[Mapping[Effect, str]] = {
    Effect.NOW: """
        server.max_body server.cors_origins server.trusted_proxies server.stream_comments server.comment_interval
        server.write_stall server.image_urls server.image_max server.image_timeout server.image_hosts
        scheduler.interactive_cooldown scheduler.background_max_starvation scheduler.background_share
        scheduler.relief_slots scheduler.batch_max_starvation scheduler.embedding_chunk scheduler.hot_window
        scheduler.min_residency scheduler.interactive_turn scheduler.eviction scheduler.hot_yield_after
        scheduler.fit_wait scheduler.abort_after scheduler.background_pause scheduler.pause_limit
        scheduler.interactive_reserved_slots scheduler.stall_limit
        scheduler.queues.interactive.max_length scheduler.queues.interactive.max_wait
        scheduler.queues.background.max_length scheduler.queues.background.max_wait
        scheduler.queues.batch.max_length scheduler.queues.batch.max_wait
        devices.headroom
        engine.startup_timeout engine.stop_grace engine.starts_per_minute engine.host_memory_limit
        library.dirs library.default_model defaults.idle_ttl
        models.NAME.base models.NAME.tier models.NAME.class models.NAME.idle_ttl models.NAME.aliases
        models.NAME.system_prompt models.NAME.sampling models.NAME.limits.max_tokens
        families.NAME.preferred families.NAME.balanced families.NAME.compact
        batches.in_flight batches.window batches.max_file batches.keep
        """,
    Effect.MODEL: """
        defaults.ctx_target defaults.ctx_floor defaults.parallel defaults.cache_type defaults.reasoning_format
        models.NAME.path models.NAME.ctx_size models.NAME.ctx_per_slot models.NAME.parallel models.NAME.cache_type
        models.NAME.flags models.NAME.device models.NAME.mmproj models.NAME.capabilities models.NAME.env
        models.NAME.reasoning_format
        """,
    Effect.SERVER: """
        server.host server.port server.tls.certificate server.tls.key
        devices.host_budget devices.ignore devices.total engine.path panel.port
        """,
    Effect.WATCHDOG: "watchdog.port",
}

EFFECTS: Final[Mapping[str, Effect]] = {key: effect for effect, keys in _WORDS.items() for key in keys.split()}
"""What each setting takes, by its key in the reference."""

_SAID_BY_MODEL: Final[Mapping[str, tuple[str, ...]]] = {
    "defaults.ctx_target": ("ctx_size", "ctx_per_slot"),
    "defaults.ctx_floor": ("ctx_size", "ctx_per_slot"),
    "defaults.parallel": ("parallel",),
    "defaults.cache_type": ("cache_type",),
    "defaults.reasoning_format": ("reasoning_format",),
}
"""Defaults of launches, and the fields of a model of which any goes before them."""

_SECRET_FLAG = re.compile(r"--?[\w-]*(?:key|token|secret|password)[\w-]*", re.IGNORECASE)
HIDDEN = "***"
THERE = "there"
"""Of a model or a family as a whole."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that is another, as a person would write it. `before` None: it was not there; `after` None: it is
    gone. `models` are those whose launch it may change."""

    key: str
    before: str | None
    after: str | None
    effect: Effect
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """What a reload does. `restarts` are the models that are loaded anew: no step of them is broken off, and whoever
    waits for one is served by its new process. `needs_restart` are settings that stay as they were until the server is
    started again."""

    changes: tuple[Change, ...] = ()
    restarts: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the settings are what they were."""
        return not self.changes

    @property
    def text(self) -> str:
        """In a sentence or three."""
        said = [f"{change.key}: {_arrow(change)}" for change in self.changes]
        sentences = ["; ".join(said) if said else "nothing has changed"]
        if self.restarts:
            sentences.append(f"loaded anew when idle: {', '.join(self.restarts)}")
        if self.needs_restart:
            sentences.append(f"as before until the server is started again: {', '.join(self.needs_restart)}")
        return ". ".join(sentences)


def _arrow(change: Change) -> str:
    if change.before is None:
        return "added"
    return "removed" if change.after is None else f"{change.before} → {change.after}"


def compare(before: Settings, after: Settings, served: Iterable[str] = ()) -> ReloadPlan:
    """What it would do to go from one to the other. `served` are all names of models, those from folders too: a default
    of launches concerns each that does not say it itself."""
    changes = tuple(_differences(before, after, tuple(dict.fromkeys((*after.models, *served)))))
    return ReloadPlan(
        changes,
        tuple(dict.fromkeys(name for change in changes for name in change.models)),
        tuple(change.key for change in changes if change.effect is Effect.SERVER),
    )


def running(before: Settings, after: Settings) -> Settings:
    """What runs when all of `after` has been taken over but what takes a start of the server."""
    kept = after
    for key in (key for key, effect in EFFECTS.items() if effect is Effect.SERVER):
        kept = _with(kept, before, key.split("."))
    return kept


S = TypeVar("S", bound=Section)


def _with(section: S, other: Section, way: Sequence[str]) -> S:
    """A section with one setting as another has it."""
    field = next(field for field, info in type(section).model_fields.items() if info.alias == way[0])
    value = getattr(other, field)
    if way[1:]:
        value = _with(getattr(section, field), value, way[1:])
    return section.model_copy(update={field: value})


# --- differences ----------------------------------------------------------------------------------------------------


def _differences(before: Settings, after: Settings, served: tuple[str, ...]) -> Iterator[Change]:
    for field, info in Settings.model_fields.items():
        old, new = getattr(before, field), getattr(after, field)
        key = str(info.alias)
        if isinstance(old, Section):
            for each in _of_section(old, new, key, key):
                yield _of_default(each, after, served)
        else:
            yield from _of_named(old, new, key)


def _of_named(before: Mapping[str, Section], after: Mapping[str, Section], section: str) -> Iterator[Change]:
    """Of models or families, by their names."""
    for name in dict.fromkeys((*before, *after)):
        old, new, key = before.get(name), after.get(name), f"{section}.{name}"
        if old is None or new is None:
            yield Change(key, THERE if old else None, THERE if new else None, Effect.NOW)
            continue
        for change in _of_section(old, new, key, f"{section}.{NAME_PART}"):
            launched = change.effect is Effect.MODEL and _has_file(old) and _has_file(new)
            if launched:
                yield Change(change.key, change.before, change.after, Effect.MODEL, (name,))
            else:  # a name over another model has no process of its own
                yield Change(change.key, change.before, change.after, Effect.NOW)


def _has_file(section: Section) -> bool:
    return isinstance(section, ModelSettings) and section.path is not None


def _of_section(before: Section, after: Section, key: str, known: str) -> Iterator[Change]:
    """`key` is the way to the section, `known` the same as the reference has it."""
    for field, info in type(before).model_fields.items():
        old, new = getattr(before, field), getattr(after, field)
        here, known_here = f"{key}.{info.alias}", f"{known}.{info.alias}"
        if isinstance(old, Section):
            yield from _of_section(old, new, here, known_here)
        elif old != new:
            was, becomes = _shown(field, info, old), _shown(field, info, new)
            if was == becomes:  # what differs is hidden, or too long
                becomes += " (changed)"
            yield Change(here, was, becomes, EFFECTS[known_here])


def _of_default(change: Change, after: Settings, served: tuple[str, ...]) -> Change:
    """With the models whose launch a default changes."""
    said = _SAID_BY_MODEL.get(change.key)
    if said is None:
        return change
    configured = after.models
    silent = (
        name
        for name in served
        if (own := configured.get(name)) is None
        or (own.path is not None and all(getattr(own, field) is None for field in said))
    )
    return Change(change.key, change.before, change.after, change.effect, tuple(silent))


# --- words ----------------------------------------------------------------------------------------------------------


def _shown(field: str, info: FieldInfo, value: object) -> str:
    """A value as it would be written, with nothing in it that is secret."""
    if value is None:
        return _word_for_none(info)
    if field == "flags":
        value = tuple(_without_secrets(cast("tuple[str, ...]", value)))
    elif field == "env":
        value = dict.fromkeys(cast("Mapping[str, str]", value), HIDDEN)
    text = _text(field, value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def _text(field: str, value: object) -> str:  # noqa: PLR0911 - one for each kind of value
    match value:
        case bool():
            return "on" if value else "off"
        case Enum():
            return str(getattr(value, "label", value.value))
        case Amount():
            return f"{value.share * 100:g}%" if value.share else _size(value.size_bytes)
        case bytes():
            return value.decode("utf-8", "replace")
        case Path() | str():
            return " ".join(str(value).split())
        case int() | float() if field.endswith("_bytes"):
            return _size(int(value))
        case int() | float() if field.endswith("_seconds"):
            return "never" if math.isinf(value) else f"{value:g}s"
        case Mapping():
            return "{" + ", ".join(f"{key}: {_text(field, each)}" for key, each in value.items()) + "}"
        case tuple() | frozenset():
            words = [_text("", each) for each in value]
            return "[" + ", ".join(sorted(words) if isinstance(value, frozenset) else words) + "]"
        case _:
            return str(value)


def _word_for_none(info: FieldInfo) -> str:
    words = [each.word for each in info.metadata if isinstance(each, Reads)]
    found = re.findall(r"`(\w+)`$", words[0]) if words else []
    return found[0] if found else str(info.default or "null")


def _size(size_bytes: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes and size_bytes % (1 << power) == 0:
            return f"{size_bytes >> power}{unit}"
    return f"{size_bytes}B"


def _without_secrets(flags: tuple[str, ...]) -> Iterator[str]:
    hide_next = False
    for flag in flags:
        name, equals, _ = flag.partition("=")
        is_secret = _SECRET_FLAG.fullmatch(name) is not None
        if hide_next and not flag.startswith("-"):
            yield HIDDEN
        elif is_secret and equals:
            yield f"{name}={HIDDEN}"
        else:
            yield flag
        hide_next = is_secret and not equals


# --- the table ------------------------------------------------------------------------------------------------------


def table() -> str:
    """The README's table of what each setting takes."""
    rows = ["| a change of | holds after |", "|---|---|"]
    rows += [f"| `{key}` | {EFFECTS[key].value} |" for key in (".".join(each.key) for each in settings_there_are())]
    return "\n".join(rows)


def with_table(readme: str) -> str:
    """A README's text with the table between its two marks. Raises ValueError where a mark is missing."""
    before, _, rest = readme.partition(EFFECTS_BEGIN)
    _, end, after = rest.partition(EFFECTS_END)
    if not end:
        raise ValueError("the README has lost the marks of its table of effects")
    return f"{before}{EFFECTS_BEGIN}\n\n{table()}\n\n{EFFECTS_END}{after}"


def _write() -> None:
    readme = Path(__file__).with_name("README.md")
    readme.write_text(with_table(readme.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    _write()
