"""What a launch that nobody has asked for would take: `gridsched estimate`, for whoever has no shell here.

Owns who may have what read: a model of this server anybody with read, a file by its path or an address an admin alone,
because both say what there is behind them. The figures are `library.estimating`'s; nothing is started or fetched whole.
"""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from gridsched.control.plans import DevicePart
from gridsched.control.problems import Problem, RequestError, invalid, unknown_model
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Arguments, Call, Rest, Verb
from gridsched.credentials import Scope
from gridsched.library.estimating import ENGINE_NAMES, MOST_DEVICES, Target, as_json, estimate
from gridsched.library.names import printable
from gridsched.library.read import Unreadable
from gridsched.library.shards import SUFFIX, ModelFile, read_model
from gridsched.ports import Backend, CatalogFamily, CatalogModel
from gridsched.threads import in_thread
from gridsched.vram.flags import FlagError
from gridsched.vram.geometry import GeometryError
from gridsched.vram.quants import CACHE_TYPES

REMOTE_SECONDS = 60.0
_READERS = trio.CapacityLimiter(4)
"""A slow server keeps a thread: no more than a few at once."""

_Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class EstimateArguments(Arguments, frozen=True, kw_only=True):
    """Of which model, and how it would be launched; exactly one of model, path and url."""

    model: Annotated[str | None, Meta(description="Any name of a model of this server.")] = None
    path: Annotated[str | None, Meta(description="A GGUF file of this server by its whole path; admin only.")] = None
    url: Annotated[
        str | None,
        Meta(description="A GGUF file at the hub or a public host; its header alone is read. Admin only."),
    ] = None
    ctx: Annotated[_Tokens | None, Meta(description="Tokens of context for all slots together.")] = None
    parallel: Annotated[Annotated[int, Meta(ge=1, le=256)] | None, Meta(description="Slots that share them.")] = None
    cache_type: Annotated[str | None, Meta(description="What K and V are kept as: f16, q8_0, …")] = None
    flags: Annotated[
        Annotated[tuple[str, ...], Meta(max_length=200)] | None,
        Meta(description="llama-server's own flags, which may name files of this server: admin only."),
    ] = None
    device_count: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_DEVICES)] | None,
        Meta(description="So many equal cards instead of this server's; it is not said whether it fits then."),
    ] = None


class EstimatedPart(DevicePart, frozen=True, kw_only=True):
    """The same of one device, with what may be planned there (`available_bytes`)."""

    available_bytes: int | None = None


class EstimateAnswer(Answer, frozen=True, kw_only=True):
    """As `gridsched estimate --json` says it."""

    model: str
    architecture: str
    devices: tuple[EstimatedPart, ...]
    host: EstimatedPart
    total_bytes: int
    ctx_size: int
    ctx_per_slot: int
    parallel: int
    ubatch: int
    flash_attn: bool
    layers: Mapping[str, int]
    backend: str
    fits: Annotated[bool | None, Meta(description="Whether the devices carry it; null where their size is not known.")]
    max_ctx_that_fits: int | None
    max_parallel_that_fits: int | None
    suggestions: Annotated[tuple[str, ...], Meta(description="Flags, each of which makes it fit by itself.")]
    notes: tuple[str, ...]


async def _estimate(services: Services, asked: EstimateArguments, call: Call) -> EstimateAnswer:
    named = {name: getattr(asked, name) for name in ("model", "path", "url") if getattr(asked, name) is not None}
    if len(named) != 1:
        raise invalid("give exactly one of model, path and url", next(iter(named), "model"))
    if asked.model is None or asked.flags is not None:
        _only_admin(services, call)
    model = _model(services, asked.model) if asked.model is not None else None
    own = _own_flags(services, model) if model is not None else ()
    read = partial(read_model, model.path) if model is not None else _reader(asked)
    words = (*own, *_words(asked), *(asked.flags or ()))
    target = _target(services, asked.device_count, model)
    work = partial(_answer, read, words, target, remote=asked.url is not None)
    try:
        told = await in_thread(work, limiter=_READERS, abandon_on_cancel=True)
    except (Unreadable, GeometryError, FlagError) as error:
        param = "flags" if isinstance(error, FlagError) else next(iter(named))
        raise invalid(f"{param}: {printable(str(error))}", param) from None
    return msgspec.convert(told, EstimateAnswer)


def _answer(read: partial[ModelFile], words: tuple[str, ...], target: Target, *, remote: bool) -> Mapping[str, object]:
    """In a thread. Raises Unreadable, GeometryError, FlagError."""
    file = read()
    found = estimate(file, words, target, remote=remote)
    return as_json(file, found, target, found.notes)


def _only_admin(services: Services, call: Call) -> None:
    problem = services.authority.refuse(call.asker.caller, (Scope.ADMIN,), call.asker.headers)
    if problem is not None:
        raise RequestError(problem)


def _model(services: Services, name: str) -> CatalogModel:
    """The model that any of its names means, of a family the best. Raises RequestError."""
    catalog = services.runtime.parts.catalog
    found = catalog.resolve(name)
    model = found.best if isinstance(found, CatalogFamily) else found
    if model is None:
        raise RequestError(unknown_model(name, catalog.closest(name)))
    if model.spec is None:
        raise RequestError(Problem("model_unavailable", f"{model.name} cannot be served: {model.unavailable}", "model"))
    return model


def _own_flags(services: Services, model: CatalogModel) -> tuple[str, ...]:
    """How the server itself would launch it first; what is said after this wins."""
    if model.spec is None:
        return ()
    option = model.spec.options[0]
    launch = services.runtime.parts.catalog.launch(model.name, option)
    projector = ("--mmproj", str(launch.mmproj)) if launch.mmproj is not None else ()
    shape = ("--ctx-size", str(option.ctx_size), "--parallel", str(option.parallel))
    return (*shape, *option.flags, *projector, *launch.flags)


def _words(asked: EstimateArguments) -> tuple[str, ...]:
    """What is asked for, as flags. Raises RequestError."""
    words: tuple[str, ...] = ()
    if asked.cache_type is not None:
        if asked.cache_type not in CACHE_TYPES:
            raise invalid(f"cache_type: {asked.cache_type[:40]!r} is none of {', '.join(CACHE_TYPES)}", "cache_type")
        words += ("--cache-type-k", asked.cache_type, "--cache-type-v", asked.cache_type)
    words += ("--ctx-size", str(asked.ctx)) if asked.ctx is not None else ()
    return words + (("--parallel", str(asked.parallel)) if asked.parallel is not None else ())


def _reader(asked: EstimateArguments) -> partial[ModelFile]:
    """Reads the header of a file or an address. Raises RequestError."""
    if asked.path is not None:
        path = Path(asked.path)
        if not path.is_absolute() or not path.name.lower().endswith(SUFFIX) or "\0" in asked.path:
            raise invalid(f"path: the whole path of a file that ends in {SUFFIX}", "path")
        return partial(read_model, path)
    from gridsched.library.remote import only_public, read_remote  # noqa: PLC0415 - it brings httpx

    return partial(read_remote, asked.url or "", os.environ, seconds=REMOTE_SECONDS, vet=only_public(os.environ))


def _target(services: Services, count: int | None, model: CatalogModel | None) -> Target:
    """The devices that a model would be launched on first; of what is not served here all; or so many cards."""
    every = services.runtime.parts.monitor.devices()
    chosen = model.spec.options[0].devices if model is not None and model.spec is not None else None
    infos = [info for info in every if chosen is None or info.spec.name in chosen][:MOST_DEVICES]
    backend = every[0].backend
    word = backend.value if backend.value in ENGINE_NAMES else Backend.CUDA.value
    cards = tuple(info.label for info in infos)
    if count is not None:
        return Target(word, count if backend is not Backend.CPU else 1, (), cards)
    sizes = tuple(info.spec.total_bytes - info.spec.headroom_bytes for info in infos)
    return Target(word, len(infos), sizes, cards)


VERBS = (
    Verb(
        name="estimate_model",
        summary="What a launch would take, by device and component",
        description=(
            "Memory of a model of this server, of a GGUF file by path, or of one at the hub (its header alone is "
            "read), with any context, slots and flags, and whether this server's devices would carry it."
        ),
        scope=Scope.READ,
        takes=EstimateArguments,
        gives=EstimateAnswer,
        act=_estimate,
        rest=Rest("POST", "/api/estimate"),
        tool=True,
        reads=True,
        idempotent=True,
        open_world=True,
    ),
)
