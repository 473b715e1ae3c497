"""The settings of models and families: served names, with files of their own or over another model.

Owns what goes with what: a name with a `base` is served by that model's process, so that it says only what is added to
its requests, and a name with a `path` says only how its process is launched. Must never look at a model file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema, field_validator

from gridsched.core.job import JobClass, Quality
from gridsched.ports import Capability, ModelEntry, VirtualEntry
from gridsched.settings.section import Section, a_list, setting
from gridsched.settings.values import (
    DEFAULTS,
    ENVIRONMENT,
    FLAGS,
    NAME,
    NEVER_SECONDS,
    PATH,
    PROMPT,
    TEXT,
    duration,
    is_null,
    one_of,
    or_word,
    whole,
)
from gridsched.vram.launches import CacheTypes
from gridsched.vram.quants import CACHE_TYPES

MAX_CONTEXT = 2**26
"""Tokens. Longer than any model's context, short enough that no arithmetic on it can surprise."""

MAX_SLOTS = 256
"""Slots of one process: the engine's own limit."""

CACHES: Mapping[str, object] = {name: (name, name) for name in CACHE_TYPES} | {"q8_0/q4_0": ("q8_0", "q4_0")}
"""What a cache may be kept as: K and V alike, or K before V."""

_CLASSES: Mapping[str, object] = {job_class.label: job_class for job_class in JobClass}
REASONING: Mapping[str, object] = {word: word for word in ("none", "auto", "deepseek", "deepseek-legacy")}
"""How the engine may hand out what a model thinks: its own words."""

_ABILITIES: Mapping[str, object] = {word.value: word for word in Capability}

_LAUNCHED = (
    *("ctx_size", "ctx_per_slot", "parallel", "cache_type", "tier"),
    *("flags", "device", "mmproj", "capabilities", "env"),
)


class LimitsSettings(Section):
    """What a client may ask of a name over another model."""

    max_tokens: Annotated[int | None, or_word(whole(1, MAX_CONTEXT), "null")] = setting(
        None, "Most tokens of one answer, and how many where a request names no number; `null` is no limit."
    )


class ModelSettings(Section):
    """One served name. A file may be served under several names, each its own process; a name with a `base` is
    virtual: it is served by the process of that model."""

    path: Annotated[Path | None, or_word(PATH, "null")] = setting(
        None, "The GGUF file (the first one, where it is split); a model has a `path` or a `base`."
    )
    base: Annotated[str | None, or_word(NAME, "null")] = setting(
        None,
        "The model or family, by any of its names, that serves this name too, in the same process: with a `base` only"
        " `class`, `idle_ttl`, `aliases` and what is added to requests can be said.",
    )
    ctx_size: Annotated[int | None, or_word(whole(1, MAX_CONTEXT), "auto")] = setting(
        "auto", "Tokens of context in all, shared by the slots: llama-server's `--ctx-size`."
    )
    ctx_per_slot: Annotated[int | None, or_word(whole(1, MAX_CONTEXT), "auto")] = setting(
        "auto", "Tokens of context for each slot, instead of `ctx_size`."
    )
    parallel: Annotated[int | None, or_word(whole(1, MAX_SLOTS), "auto")] = setting(
        "auto", "Slots: requests that are served at once."
    )
    cache_type: Annotated[CacheTypes | None, or_word(one_of(CACHES), "auto")] = setting(
        "auto", "What its cache is kept as, K and V alike, or K before V; `auto` is the default's."
    )
    tier: Annotated[Literal["auto", "pinned"], one_of({"auto": "auto", "pinned": "pinned"})] = setting(
        "auto", "`pinned`: never evicted (R1)."
    )
    job_class: Annotated[JobClass | None, or_word(one_of(_CLASSES), "null")] = setting(
        None, "Class of requests that name none; `null` is interactive."
    )
    idle_ttl_seconds: Annotated[float | None, or_word(or_word(duration(1.0), "never", NEVER_SECONDS), "null")] = (
        setting(None, "Unloaded when idle for this long; `null` is the default's (R6).")
    )
    aliases: Annotated[tuple[Annotated[str, NAME], ...], BeforeValidator(a_list)] = setting(
        (), "Other names that clients may use."
    )
    flags: Annotated[tuple[str, ...], FLAGS] = setting((), "More llama-server flags.")
    device: Annotated[str | None, or_word(TEXT, "auto")] = setting(
        "auto", "The only device it may use, by name, UUID or PCI address."
    )
    mmproj: Annotated[Path | None, or_word(PATH, "null")] = setting(
        None, "The projector file for images or audio; `null` takes one that lies beside the model."
    )
    capabilities: Annotated[
        frozenset[Annotated[Capability, one_of(_ABILITIES)]] | None,
        BeforeValidator(lambda value: None if is_null(value) or value == "auto" else a_list(value)),
        WithJsonSchema({"anyOf": [{"type": "array", "items": {"enum": [*_ABILITIES]}}, {"enum": ["auto", None]}]}),
    ] = setting("auto", "What it can be asked for, as a list; `auto` reads the file.")
    env: Annotated[dict[str, str], ENVIRONMENT] = setting({}, "Environment variables of its process.")
    system_prompt: Annotated[str | None, or_word(PROMPT, "null")] = setting(
        None, "With a `base`: the system's words for requests that bring none of their own."
    )
    sampling: Annotated[dict[str, bytes], DEFAULTS] = setting(
        {},
        "With a `base`: members of the engine's requests (`temperature`, `top_p` …) for those that do not give them.",
    )
    reasoning_format: Annotated[str | None, or_word(one_of(REASONING), "null")] = setting(
        None,
        "How the engine hands out what a model thinks; `null` is the default's. With a `base`: of requests that do not"
        " say it, and `null` is the base's.",
    )
    limits: LimitsSettings = setting(LimitsSettings(), "With a `base`: what its clients may ask for at the most.")

    @field_validator("base")
    @classmethod
    def _one_source(cls, base: str | None, info: ValidationInfo) -> str | None:
        if "path" not in info.data:
            return base  # that it is wrong is told already
        if base is None and info.data["path"] is None:
            raise ValueError("`path` is missing")
        if base is not None and info.data["path"] is not None:
            raise ValueError("give either path or base, not both")
        return base

    @field_validator(*_LAUNCHED)
    @classmethod
    def _launched_by_its_base(cls, value: object, info: ValidationInfo) -> object:
        if value and value != "auto" and (base := info.data.get("base")):
            raise ValueError(f"this name is served by the process of its base: say it of {base}")
        return value

    @field_validator("system_prompt", "sampling", "limits")
    @classmethod
    def _added_over_a_base(cls, value: object, info: ValidationInfo) -> object:
        said = value is not None and value not in ({}, LimitsSettings())
        if said and "base" in info.data and info.data["base"] is None:
            raise ValueError("this is for a name over another model, which has a base in place of a path")
        return value

    @field_validator("ctx_per_slot")
    @classmethod
    def _one_context(cls, ctx_per_slot: int | None, info: ValidationInfo) -> int | None:
        if ctx_per_slot is not None and info.data.get("ctx_size") is not None:
            raise ValueError("give either ctx_size or ctx_per_slot, not both")
        return ctx_per_slot

    def entry(self, name: str, reserved_slots: int | None) -> ModelEntry | None:
        """What the library needs to know of it; None for a name over another model."""
        if self.path is None:
            return None
        return ModelEntry(
            name=name,
            path=self.path,
            aliases=self.aliases,
            ctx_size=self.ctx_size,
            ctx_per_slot=self.ctx_per_slot,
            parallel=self.parallel,
            cache_types=self.cache_type,
            pinned=self.tier == "pinned",
            default_class=self.job_class,
            reserved_slots=reserved_slots,
            idle_ttl_seconds=self.idle_ttl_seconds,
            flags=self.flags,
            device=self.device,
            mmproj=self.mmproj,
            capabilities=self.capabilities,
            env=self.env,
            reasoning_format=self.reasoning_format,
        )

    def virtual_entry(self, name: str) -> VirtualEntry | None:
        """What is to be known of a name over another model; None for a model with a file."""
        if self.base is None:
            return None
        reasoning = (
            {} if self.reasoning_format is None else {"reasoning_format": b'"%s"' % self.reasoning_format.encode()}
        )
        return VirtualEntry(
            name=name,
            base=self.base,
            aliases=self.aliases,
            system_prompt=self.system_prompt,
            members=self.sampling | reasoning,
            max_tokens=self.limits.max_tokens,
            default_class=self.job_class,
            idle_ttl_seconds=self.idle_ttl_seconds,
        )


class FamilySettings(Section):
    """One name for several sizes of a model: a request gets the best that can serve it (R10)."""

    preferred: Annotated[str | None, or_word(NAME, "null")] = setting(None, "The model that is the best of them.")
    balanced: Annotated[str | None, or_word(NAME, "null")] = setting(None, "The model between the two.")
    compact: Annotated[str | None, or_word(NAME, "null")] = setting(None, "The model that takes the least memory.")

    @property
    def variants(self) -> tuple[tuple[Quality, str], ...]:
        """The models it names, best first."""
        named = ((each, getattr(self, each.label)) for each in Quality)
        return tuple((each, name) for each, name in named if name is not None)
