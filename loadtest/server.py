"""What a server tells of itself: its models, who it is, its counters, how it is at one moment.

Owns the reading of those answers. Any OpenAI server has models; what else there is, gridsched tells, and another server
has none of it: then it is None here, never a guess. Must never change anything at the server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import trio
from prometheus_client.parser import text_string_to_metric_families

from loadtest.clients import LARGEST, counted, parsed, readable, refusal
from loadtest.result import Sample, Server

LOOK_SECONDS = 20.0
"""What a look takes a server no second; one that hangs, or that sends a byte now and then, is not waited for."""

FAMILIES = {
    "loads": "gridsched_model_loads_total",
    "needless_loads": "gridsched_needless_loads_total",
    "evictions": "gridsched_evictions_total",
    "relief_steps": "gridsched_relief_steps_total",
    "thrash": "gridsched_thrash_total",
}
"""Which counter says what, summed over its labels."""

Counters = Mapping[str, int | None]


class ServerFault(Exception):
    """The server cannot be tested; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Model:
    """One that can be asked for. `can`: its capabilities, None where the server does not tell; `bytes`: what it takes
    of a device, 0 where that is not told. `is_own`: with a file of its own, no family and no name over another."""

    id: str
    can: frozenset[str] | None = None
    bytes: int = 0
    is_ready: bool = False
    is_own: bool = True


@dataclass(frozen=True, slots=True)
class Told:
    """The server before the run. `free`: what models may take of each device."""

    server: Server
    models: Sequence[Model]
    free: Mapping[str, int] = field(default_factory=dict)


async def look(http: httpx.AsyncClient) -> Told:
    """Who it is and what it has. Raises httpx.HTTPError where nobody answers, and ServerFault."""
    answer = await _get(http, "/v1/models")
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        answer.raise_for_status()
    if not answer.is_success:
        raise ServerFault(f"it answers {refusal(answer.status_code, answer.content)} where its models are listed")
    try:
        models = [_model(one) for one in _listed(parsed(answer.content))]
    except (ValueError, KeyError, TypeError):
        raise ServerFault("what answers lists no models at /v1/models as OpenAI's servers do") from None
    health, state = await told(http, "/health") or {}, await status(http) or {}
    engine = _mapping(health.get("engine"))
    devices = [one for one in _list(state.get("devices")) if isinstance(one, dict)]
    server = Server(
        url=str(http.base_url).rstrip("/"),
        version=_word(health, "version"),
        engine=_word(engine, "version"),
        backend=_word(engine, "backend"),
        devices={_word(one, "name"): _count(one, "total_bytes") for one in devices},
    )
    return Told(server, models, {_word(one, "name"): _usable(one) for one in devices})


async def _get(http: httpx.AsyncClient, path: str) -> httpx.Response:
    """The whole answer. Raises httpx.HTTPError."""
    with trio.move_on_after(LOOK_SECONDS):
        return await http.get(path)
    raise httpx.ReadTimeout(f"no whole answer within {LOOK_SECONDS:.0f} s")


async def told(http: httpx.AsyncClient, path: str) -> Mapping[str, Any] | None:
    """The JSON object there; None where there is none for us."""
    try:
        answer = await _get(http, path)
        found = parsed(answer.content) if answer.is_success or path == "/health" else None
    except (httpx.HTTPError, ValueError):
        return None
    return found if isinstance(found, dict) else None


async def status(http: httpx.AsyncClient) -> Mapping[str, Any] | None:
    """How it is; None of another server, also of one that answers whatever it is asked."""
    found = await told(http, "/api/status")
    return None if found is None or "queues" not in found else found


async def counters(http: httpx.AsyncClient) -> Counters:
    """How far each of `FAMILIES` has come; None for one that the server does not have."""
    totals: dict[str, int | None] = dict.fromkeys(FAMILIES)
    try:
        answer = await _get(http, "/metrics")
        page = list(text_string_to_metric_families(answer.text)) if answer.is_success else []
    except (httpx.HTTPError, ValueError):
        return totals
    pages = {f"{family.name}_total": family.samples for family in page if family.type == "counter"}
    for what, name in FAMILIES.items():
        total = sum(sample.value for sample in pages.get(name, ()) if sample.name == name)
        totals[what] = round(total) if name in pages and 0 <= total <= LARGEST else None
    return totals


async def sample(http: httpx.AsyncClient, at_s: float) -> Sample | None:
    """How it is now; None where the server does not tell."""
    found = await status(http)
    return None if found is None else sample_of(found, at_s)


def sample_of(status: Mapping[str, Any], at_s: float) -> Sample:
    """The same, of what it told."""
    models: dict[str, int] = {}
    for one in _list(status.get("instances")):
        if isinstance(one, dict):
            name, measured = _word(one, "model"), _count(one, "measured_bytes")
            models[name] = models.get(name, 0) + (measured or _count(one, "reserved_bytes"))
    devices = [one for one in _list(status.get("devices")) if isinstance(one, dict)]
    queues = _mapping(status.get("queues"))
    return Sample(
        at_s=at_s,
        models=models,
        devices={_word(one, "name"): _count(one, "used_bytes") for one in devices},
        waiting={readable(name): _count(_mapping(queue), "length") for name, queue in queues.items()},
    )


def living(status: Mapping[str, Any]) -> Mapping[int, str]:
    """The processes that were not stopped: their numbers, with their models."""
    found = (one for one in _list(status.get("instances")) if isinstance(one, dict))
    return {
        _count(one, "id"): _word(one, "model")
        for one in found
        if _word(one, "state") in ("starting", "ready", "draining")
    }


def loading(status: Mapping[str, Any]) -> int:
    """How many loads are under way."""
    found = (one for one in _list(status.get("instances")) if isinstance(one, dict))
    return sum(_word(one, "state") == "starting" for one in found)


def _listed(raw: object) -> Sequence[object]:
    """Raises TypeError for no list as OpenAI's."""
    match raw:
        case {"data": list(listed)}:
            return listed
    raise TypeError(raw)


def _model(raw: object) -> Model:
    """Raises TypeError and KeyError for none."""
    if not isinstance(raw, dict) or not isinstance(raw["id"], str):
        raise TypeError(raw)
    more = raw.get("gridsched")
    if not isinstance(more, dict):
        return Model(readable(raw["id"]))
    memory = _mapping(more.get("memory_bytes"))
    return Model(
        id=readable(raw["id"]),
        can=frozenset(map(str, _list(more.get("capabilities")))),
        bytes=_count(memory, "measured") or _count(memory, "estimated"),
        is_ready=more.get("state") == "ready",
        is_own=more.get("base") is None and "variants" not in more,
    )


def _usable(device: Mapping[str, Any]) -> int:
    total, others = _count(device, "total_bytes"), _count(device, "external_bytes")
    return max(0, total - others - _count(device, "headroom_bytes"))


def _word(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    return readable(value) if isinstance(value, str) else ""


def _count(raw: Mapping[str, Any], key: str) -> int:
    return counted(raw.get(key))


def _mapping(raw: object) -> Mapping[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _list(raw: object) -> Sequence[object]:
    return raw if isinstance(raw, list) else ()
