"""The settings there are: names, types, defaults, meanings. The reference, the editors' schema and the checks follow.

A field is called in Python with its unit (`fit_wait_seconds`) and in the file without (`fit_wait`). Defaults are
written as a person would write them and go through the same readers. Only what something honours is here: a setting
that is accepted and does nothing would be a lie.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, PrivateAttr, ValidationInfo, field_validator

from gridsched.core.job import JobClass
from gridsched.core.policy import Eviction, Policy, QueueLimits
from gridsched.daytime import Window
from gridsched.ports import FamilyEntry, ModelEntry, VirtualEntry
from gridsched.settings.addresses import NETWORK, Network
from gridsched.settings.document import Document, Loc, dotted
from gridsched.settings.models import CACHES, MAX_CONTEXT, MAX_SLOTS, REASONING, FamilySettings, ModelSettings
from gridsched.settings.section import Section
from gridsched.settings.section import a_list as _list
from gridsched.settings.section import setting as _setting
from gridsched.settings.values import (
    AMOUNT,
    HOST_AND_PORT,
    NAME,
    NEVER_SECONDS,
    ORIGIN,
    PATH,
    SHARE,
    SIZE,
    SIZES,
    TEXT,
    WINDOW,
    Amount,
    duration,
    is_null,
    one_of,
    or_word,
    shown,
    whole,
)
from gridsched.vram.launches import CacheTypes

_SWITCH: Mapping[str, object] = {"on": True, "off": False}


class TlsSettings(Section):
    """The certificate that clients of other machines are shown; `null` is plain HTTP."""

    certificate: Annotated[Path | None, or_word(PATH, "null")] = _setting(
        None,
        "PEM file with the server's certificate and those of its issuers: TLS is then spoken, and plain HTTP only with"
        " who is on this machine. A renewed file is taken without a restart.",
    )
    key: Annotated[Path | None, or_word(PATH, "null")] = _setting(
        None, "PEM file with its key, without a password; `null` is the certificate's file."
    )

    @field_validator("key")
    @classmethod
    def _of_a_certificate(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if key is not None and info.data.get("certificate", key) is None:
            raise ValueError("`certificate` is missing")
        return key


class ServerSettings(Section):
    """Where the gateway listens."""

    host: Annotated[str, TEXT] = _setting("127.0.0.1", "Address to listen on.")
    port: Annotated[int, whole(0, 65535)] = _setting(1234, "Port to listen on; 0 takes a free one.")
    max_body_bytes: Annotated[int, SIZE] = _setting("64MiB", "Longest request body; longer ones get 413.")
    cors_origins: Annotated[tuple[Annotated[str, ORIGIN], ...], BeforeValidator(_list)] = _setting(
        (),
        "Origins whose pages may use this server from a browser, as in `http://localhost:3000`: each whole, with its"
        " port; there is no `*`.",
    )
    tls: TlsSettings = _setting(TlsSettings(), "TLS, for clients of other machines.")
    trusted_proxies: Annotated[tuple[Annotated[Network, NETWORK], ...], BeforeValidator(_list)] = _setting(
        (),
        "Addresses, or ranges such as `10.0.0.0/8`, of proxies in front of this server: they alone are believed when"
        " they say who called (H6).",
    )
    stream_comments: Annotated[bool, one_of(_SWITCH)] = _setting(
        "on",
        "Whether a stream in which nothing flows says in comment lines what it waits for; `X-Gridsched-Comments: on` or"
        " `off` says it for one request (H3).",
    )
    comment_interval_seconds: Annotated[float, duration(0.1)] = _setting(
        "5s", "How long nothing flows in a stream before a comment line does, and between two of them (H3)."
    )
    write_stall_seconds: Annotated[float, duration(1.0)] = _setting(
        "2m", "A client that reads nothing of its answer for this long is taken to have left (S8)."
    )
    image_urls: Annotated[bool, one_of({"fetch": True, "refuse": False})] = _setting(
        "fetch", "Images that requests name by URL: fetched from public hosts and put in as data, or refused."
    )
    image_max_bytes: Annotated[int, SIZE] = _setting("20MiB", "Longest image that is fetched.")
    image_timeout_seconds: Annotated[float, duration(0.1)] = _setting(
        "10s", "How long fetching all images of one request may take."
    )
    image_hosts: Annotated[tuple[Annotated[str, HOST_AND_PORT], ...], BeforeValidator(_list)] = _setting(
        (), "Hosts, each with its port, that images are fetched from although they are not public."
    )


class InteractiveQueue(Section):
    """How long people may queue (S9)."""

    max_length: Annotated[int, whole(1, 100_000)] = _setting(256, "Jobs that may wait; more get 429.")
    max_wait_seconds: Annotated[float | None, or_word(duration(), "null")] = _setting(
        None, "Longest wait, then 503; `null` is no limit."
    )


class LowQueue(Section):
    """How long background or batch work may queue (S9)."""

    max_length: Annotated[int, whole(1, 100_000)] = _setting(1024, "Jobs that may wait; more get 429.")
    max_wait_seconds: Annotated[float | None, or_word(duration(), "null")] = _setting(
        "24h", "Longest wait, then 503; `null` is no limit."
    )


class QueuesSettings(Section):
    """The bounds of each class's queue."""

    interactive: InteractiveQueue = _setting(InteractiveQueue(), "People who wait.")
    background: LowQueue = _setting(LowQueue(), "Work that someone will look at later.")
    batch: LowQueue = _setting(LowQueue(), "Work that nobody waits for.")


class SchedulerSettings(Section):
    """Who goes first, and how long the others may starve."""

    interactive_cooldown_seconds: Annotated[float, duration()] = _setting(
        "2s", "After the last chat on a device, how long low work still holds off there (S4)."
    )
    background_max_starvation_seconds: Annotated[float, duration()] = _setting(
        "3s", "Low work without progress for this long gets a relief turn among chats; `0s` is never (S5)."
    )
    background_share: Annotated[float, SHARE] = _setting(
        0.5, "Most of a device's time that relief turns may take under constant chat (S5a)."
    )
    relief_slots: Annotated[int, whole(1, MAX_SLOTS)] = _setting(4, "Slots that one relief turn fills (S5).")
    batch_max_starvation_seconds: Annotated[float, duration()] = _setting(
        "2m", "A batch job without progress for this long competes as background once; `0s` is never (S5b)."
    )
    embedding_chunk: Annotated[int, whole(1, 2048)] = _setting(
        32, "Inputs in one step of an embeddings request; between steps chats go first (S3)."
    )
    hot_window_seconds: Annotated[float, duration()] = _setting(
        "5m", "A model that people used this recently is hot: low work does not evict it (R1)."
    )
    min_residency_seconds: Annotated[float, duration()] = _setting(
        "30s", "A model loaded for low work stays at least this long while it has work (R4a)."
    )
    interactive_turn_seconds: Annotated[float | None, or_word(duration(), "auto")] = _setting(
        "auto",
        "How long a model that people use serves them before it goes for another that people wait for; `auto` is as"
        " long as its load takes, `0s` is strict order (R4b).",
    )
    eviction: Annotated[Eviction, one_of({word.value: word for word in Eviction})] = _setting(
        "cost",
        "Which of the models of one tier goes: `cost` weighs what its reload takes and how soon it will be wanted,"
        " `lru` takes the one used longest ago (R5).",
    )
    hot_yield_after_seconds: Annotated[float | None, or_word(duration(), "null")] = _setting(
        None, "Low work that waited this long may once have an idle hot model unloaded; `null` is never (R1)."
    )
    fit_wait_seconds: Annotated[float, duration()] = _setting(
        "10s", "How long a chat waits for memory that nothing of ours can free, before 507 (L7)."
    )
    abort_after_seconds: Annotated[float | None, or_word(duration(), "null")] = _setting(
        None,
        "Low generations that have not answered yet are taken away for a chat that has waited this long for their slot"
        " or memory, and run again later, at most twice a job; `null` is never (S11).",
    )
    background_pause: Annotated[bool, one_of(_SWITCH)] = _setting(
        "off", "Whether low work stands still while a chat generates on its device (S10)."
    )
    pause_limit_seconds: Annotated[float, duration()] = _setting(
        "3s", "How long a step of low work may stand still in all; then it runs to its end (S10)."
    )
    interactive_reserved_slots: Annotated[int | None, or_word(whole(0, MAX_SLOTS), "auto")] = _setting(
        "auto", "Slots of each model kept for interactive work; `auto` is 1 of two or more (S6)."
    )
    stall_limit_seconds: Annotated[float, duration(1.0)] = _setting(
        "10m",
        "A step in which the engine sends no byte for this long has stalled; an answer that is not streamed is silent"
        " until it is whole (S9).",
    )
    queues: QueuesSettings = _setting(QueuesSettings(), "The bounds of each class's queue (S9).")


class DevicesSettings(Section):
    """What of each device may be planned."""

    headroom: Annotated[Amount, AMOUNT] = _setting("5%", "Part of each device that is never planned (L4).")
    host_budget_bytes: Annotated[int | None, or_word(SIZE, "null")] = _setting(
        None, "Memory for models where no GPU is used; `null` is half of what is free at start."
    )
    ignore: Annotated[tuple[Annotated[str, TEXT], ...], BeforeValidator(_list)] = _setting(
        (), "Devices that are left alone, by name, UUID or PCI address."
    )
    total_bytes: Annotated[dict[str, int], SIZES] = _setting(
        {},
        "What may be planned of a GPU that borrows its memory from the host, by name, UUID or PCI address:"
        " `{gpu0: 24GiB}`; without it such a GPU is not used.",
    )


class EngineSettings(Section):
    """The llama-server that is run."""

    path: Annotated[Path | None, or_word(PATH, "auto")] = _setting(
        "auto", "The llama-server program; `auto` looks on PATH, for the wheel, and in the usual folders."
    )
    startup_timeout_seconds: Annotated[float, duration(1.0)] = _setting(
        "300s", "How long a process may take to be ready."
    )
    stop_grace_seconds: Annotated[float, duration()] = _setting(
        "10s", "How long a process may take to end when asked to, before it is killed (R3)."
    )
    starts_per_minute: Annotated[int, whole(1, 10_000)] = _setting(
        60, "Processes that may be started in any minute, all models together; more wait (P6a)."
    )
    host_memory_limit_bytes: Annotated[int | None, or_word(SIZE, "null")] = _setting(
        None,
        "Host memory that one process may come to hold (what is in RAM or swapped out, without the model file's pages);"
        " beyond it it is started anew while nobody uses it; `null` is no limit (L6b).",
    )


class LibrarySettings(Section):
    """Where model files are found."""

    dirs: Annotated[
        tuple[Annotated[Path | Literal["auto"], or_word(PATH, "auto", "auto")], ...], BeforeValidator(_list)
    ] = _setting(("auto",), "Folders with GGUF files; `auto` stands for the usual ones.")
    default_model: Annotated[str | None, or_word(NAME, "null")] = _setting(
        None, "What `default`, `auto`, `current` and `local-model` stand for; `null` is the first chat model."
    )


class DefaultSettings(Section):
    """For models that do not say it themselves."""

    ctx_target: Annotated[int, whole(1, MAX_CONTEXT)] = _setting(
        32768, "Tokens of context that a slot should get where memory allows it."
    )
    ctx_floor: Annotated[int, whole(1, MAX_CONTEXT)] = _setting(
        8192, "Tokens of context below which a slot is not planned (or the model's own, where shorter)."
    )
    parallel: Annotated[int | None, or_word(whole(1, MAX_SLOTS), "auto")] = _setting(
        "auto", "Slots of a model; `auto` takes what memory and use allow."
    )
    cache_type: Annotated[CacheTypes | None, or_word(one_of(CACHES), "auto")] = _setting(
        "auto",
        "What the cache is kept as; `auto` is f16, and what is smaller where that does not fit. A model that cannot do"
        " with a type keeps its own.",
    )
    reasoning_format: Annotated[str, one_of(REASONING)] = _setting(
        "auto", "How the engine hands out what a model thinks; `auto` is as it does by itself."
    )
    idle_ttl_seconds: Annotated[float, or_word(duration(1.0), "never", NEVER_SECONDS)] = _setting(
        "30m", "A model idle for this long is unloaded (R6)."
    )

    @field_validator("ctx_floor")
    @classmethod
    def _floor_below_target(cls, floor: int, info: ValidationInfo) -> int:
        target = info.data.get("ctx_target", floor)
        if floor > target:
            raise ValueError(f"must not be above ctx_target, which is {target}")
        return floor


class BatchesSettings(Section):
    """Files and batches: work that is handed in as a file and done when there is time."""

    in_flight: Annotated[int, whole(1, 256)] = _setting(4, "Lines of one batch that are asked for at once.")
    window: Annotated[Window | None, or_word(WINDOW, "null")] = _setting(
        None,
        "When lines of batches may begin, by this machine's clock, such as `22:00-07:00`; `null` is at any time. A"
        " batch may name its own.",
    )
    max_file_bytes: Annotated[int, SIZE] = _setting("200MiB", "Longest file that is taken; longer ones get 413.")
    keep_seconds: Annotated[float, or_word(duration(60.0), "never", NEVER_SECONDS)] = _setting(
        "30d",
        "How long the files of a batch that is over are kept, and files that no batch used; with `never` none goes.",
    )


class WatchdogSettings(Section):
    """The recovery sidecar."""

    port: Annotated[int, whole(1, 65535)] = _setting(
        1235, "Port of `gridsched watchdog` on 127.0.0.1, where its `--port` says no other."
    )


class PanelSettings(Section):
    """The page for a browser."""

    port: Annotated[int | None, or_word(whole(0, 65535), "null")] = _setting(
        None,
        "A second port of the same host, on which all is served as on the first, so that a panel can have an address of"
        " its own; 0 takes a free one, `null` is none.",
    )


def _named(what: str) -> BeforeValidator:
    """Nothing is none of them; anything but a mapping is a fault."""

    def read(value: object) -> object:
        if is_null(value):
            return {}
        if isinstance(value, Mapping):
            return value
        raise ValueError(f"expected a mapping of names to {what}, {shown(value)}")

    return BeforeValidator(read)


@dataclass(frozen=True, slots=True)
class Places:
    """Where values stand, as `file:line:column`, and what was written; of no weight when settings are compared."""

    of: Mapping[Loc, str] = field(default_factory=dict, compare=False)
    written: Mapping[str, object] = field(default_factory=dict, compare=False)


class Settings(Section):
    """The whole configuration."""

    server: ServerSettings = _setting(ServerSettings(), "Where the gateway listens.")
    scheduler: SchedulerSettings = _setting(SchedulerSettings(), "Who goes first.")
    devices: DevicesSettings = _setting(DevicesSettings(), "What of each device may be planned.")
    engine: EngineSettings = _setting(EngineSettings(), "The llama-server that is run.")
    library: LibrarySettings = _setting(LibrarySettings(), "Where model files are found.")
    defaults: DefaultSettings = _setting(DefaultSettings(), "For models that do not say it themselves.")
    models: Annotated[dict[Annotated[str, NAME], ModelSettings], _named("models")] = _setting(
        {}, "Served names, each with what is different from the defaults."
    )
    families: Annotated[dict[Annotated[str, NAME], FamilySettings], _named("families")] = _setting(
        {}, "Served names that stand for several sizes each (R10)."
    )
    batches: BatchesSettings = _setting(BatchesSettings(), "Files and batches.")
    panel: PanelSettings = _setting(PanelSettings(), "The page for a browser.")
    watchdog: WatchdogSettings = _setting(WatchdogSettings(), "The recovery sidecar.")

    _places: Places = PrivateAttr(default_factory=Places)

    def remember(self, source: str, document: Document) -> None:
        """Where each value stands, for whoever finds a fault in it later, and what was written."""
        places = {loc: f"{source}:{at.line}:{at.column}" for loc, at in document.places.items()}
        self._places = Places(places, document.value)

    @property
    def written(self) -> Mapping[str, object]:
        """What the file said, value by value as it was written; nothing where there was none."""
        return self._places.written

    @property
    def places(self) -> Mapping[Loc, str]:
        """Where each value of the file stands, as `file:line:column`."""
        return self._places.of

    def told(self, loc: Loc, sentence: str) -> str:
        """A fault that was found behind the schema, as those of the file are told.

        A value that has no place of its own, such as a word of flags that are one text, is at what holds it.
        """
        known = next((loc[:end] for end in range(len(loc), 0, -1) if loc[:end] in self._places.of), loc)
        return ": ".join(part for part in (self._places.of.get(known, ""), dotted(known), sentence) if part)

    def policy(self) -> Policy:
        """The figures of the core's rules."""
        scheduler = self.scheduler
        queues = scheduler.queues
        by_class: dict[JobClass, InteractiveQueue | LowQueue] = {
            JobClass.INTERACTIVE: queues.interactive,
            JobClass.BACKGROUND: queues.background,
            JobClass.BATCH: queues.batch,
        }
        return Policy(
            interactive_cooldown_seconds=scheduler.interactive_cooldown_seconds,
            background_max_starvation_seconds=scheduler.background_max_starvation_seconds,
            background_share=scheduler.background_share,
            relief_slots=scheduler.relief_slots,
            batch_max_starvation_seconds=scheduler.batch_max_starvation_seconds,
            hot_window_seconds=scheduler.hot_window_seconds,
            min_residency_seconds=scheduler.min_residency_seconds,
            interactive_turn_seconds=scheduler.interactive_turn_seconds,
            eviction=scheduler.eviction,
            hot_yield_after_seconds=scheduler.hot_yield_after_seconds,
            fit_wait_seconds=scheduler.fit_wait_seconds,
            abort_after_seconds=scheduler.abort_after_seconds,
            background_pause=scheduler.background_pause,
            pause_limit_seconds=scheduler.pause_limit_seconds,
            stop_grace_seconds=self.engine.stop_grace_seconds,
            starts_per_minute=self.engine.starts_per_minute,
            host_memory_limit_bytes=self.engine.host_memory_limit_bytes,
            settle_limit_seconds=min(Policy().settle_limit_seconds, scheduler.stall_limit_seconds),
            queues={each: QueueLimits(queue.max_length, queue.max_wait_seconds) for each, queue in by_class.items()},
        )

    def entries(self) -> tuple[ModelEntry, ...]:
        """The configured models that have files, in the file's order."""
        reserved_slots = self.scheduler.interactive_reserved_slots
        entries = (model.entry(name, reserved_slots) for name, model in self.models.items())
        return tuple(entry for entry in entries if entry is not None)

    def virtual_entries(self) -> tuple[VirtualEntry, ...]:
        """The configured names over other models, in the file's order."""
        entries = (model.virtual_entry(name) for name, model in self.models.items())
        return tuple(entry for entry in entries if entry is not None)

    def family_entries(self) -> tuple[FamilyEntry, ...]:
        """The configured families, in the file's order."""
        return tuple(FamilyEntry(name, family.variants) for name, family in self.families.items())
