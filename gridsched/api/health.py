"""`GET /health`: alive and able are two things (H4).

Reads a snapshot; only the deep check does more: one real request to each loaded model, as an ordinary background job,
so that it takes nothing from a chat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

import msgspec
import trio

from gridsched import __version__
from gridsched.api.exchange import Exchange, send_problem, send_whole
from gridsched.api.reply import CollectedReply
from gridsched.api.seat import House
from gridsched.api.steps import run_step
from gridsched.control.authority import Scope
from gridsched.control.problems import plain
from gridsched.control.reloading import Reloader
from gridsched.control.status import availability
from gridsched.core.commands import Rejection
from gridsched.core.ids import ModelName
from gridsched.core.instance import InstanceState
from gridsched.core.job import Job, JobClass, JobKind, OutcomeKind
from gridsched.core.snapshot import Snapshot
from gridsched.ports import Capability, CatalogModel

PATH = "/health"

DEEP_SECONDS = 30.0
"""How long the deep check waits for a slot and an answer, all models at once."""

_PROBES: Mapping[Capability, tuple[JobKind, str, bytes]] = {
    Capability.EMBEDDING: (JobKind.EMBEDDINGS, "/v1/embeddings", b'{"input":"a"}'),
    Capability.RERANK: (JobKind.RERANK, "/v1/rerank", b'{"query":"a","documents":["a"]}'),
    Capability.COMPLETION: (JobKind.COMPLETION, "/v1/completions", b'{"prompt":"a","max_tokens":1}'),
    Capability.CHAT: (
        JobKind.CHAT,
        "/v1/chat/completions",
        b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1}',
    ),
}
"""The smallest real request for what a model can do, the cheapest first."""


REFUSED = "the configuration on disk is refused; GET /api/status says why"
"""What those hear who may not read more: a fault quotes the file."""


@dataclass(frozen=True, slots=True)
class Health:
    """Answers there. `began` is the clock when the front began to serve."""

    house: House
    began: float
    reloader: Reloader | None = None

    async def answer(self, exchange: Exchange) -> bool:
        """Whoever asks may know it; the deep check makes models work, and is for who may have that."""
        caller = exchange.caller
        told = health(self.house, self.began, self.reloader, may_read=Scope.READ in caller.scopes)
        status = 200
        if parse_qs(exchange.query.decode("latin-1")).get("deep", [""])[0] in {"1", "true"}:
            needed = (Scope.INFERENCE, Scope.READ)
            if (problem := self.house.authority.refuse(caller, needed, exchange.headers)) is not None:
                await send_problem(exchange, problem)
                return True
            told["deep"] = checked = await deep(self.house)
            status = 503 if checked["status"] == "failed" else 200
        body = msgspec.json.encode(told, enc_hook=plain)
        await send_whole(exchange, status, [(b"content-type", b"application/json")], body)
        return True


def health(house: House, began: float, reloader: Reloader | None = None, *, may_read: bool = True) -> dict[str, object]:
    """What the contract says of /health. `began` is the clock when the front began to serve. Who looks after the server
    believes in a configuration only where nothing of it is refused, or waits for a restart. `may_read`: the asker may
    know more than how it is."""
    runtime = house.runtime
    snapshot = runtime.snapshot()
    engine = runtime.parts.engine.info()
    reasons = _why_not(house, snapshot)
    phase = "draining" if runtime.draining else "ready"
    running = [view for view in snapshot.instances if view.slots_busy]
    return {
        "status": "ok",
        "can_serve": not reasons,
        "reasons": reasons,
        "version": __version__,
        "uptime_s": round(trio.current_time() - began, 3),
        "loaded_models": _in_state(snapshot, InstanceState.READY, InstanceState.DRAINING),
        "loading": _in_state(snapshot, InstanceState.STARTING),
        "busy": {"requests": sum(snapshot.running.values()), "models": sorted({view.model for view in running})},
        "draining": runtime.draining,
        "boot": {"phase": phase, "ready": not runtime.draining, "error": _boot_error(runtime.parts.silent)},
        "engine": {"ok": engine.ok, "version": engine.version, "backend": engine.backend, "problem": engine.problem},
        "devices": _devices(house, snapshot),
        "models_indexed": len(runtime.parts.catalog.models()),
        "config_error": _config_error(reloader, may_read=may_read),
        "config_needs_restart": reloader.needs_restart if reloader is not None else (),
    }


def _config_error(reloader: Reloader | None, *, may_read: bool) -> str | None:
    error = reloader.error if reloader is not None else None
    return error if error is None or may_read else REFUSED


def _boot_error(silent: Sequence[str]) -> str | None:
    """What could be used and is not, until the next start: models run elsewhere meanwhile, if only on the processor."""
    return " ".join((*silent, "Restart the server once that is mended.")) if silent else None


def _devices(house: House, snapshot: Snapshot) -> list[dict[str, object]]:
    views = {view.name: view for view in snapshot.devices}
    return [
        {
            "name": info.spec.name,
            "label": info.label,
            "backend": info.backend.value,
            "total_bytes": info.spec.total_bytes,
            **(availability(house.runtime, views[info.spec.name]) if info.spec.name in views else {}),
        }
        for info in house.runtime.parts.monitor.devices()
    ]


def _why_not(house: House, snapshot: Snapshot) -> list[str]:
    """Why nothing can be served, in sentences; empty when something can: what is loaded serves without its device's
    driver (D6)."""
    runtime = house.runtime
    engine = runtime.parts.engine.info()
    reasons = [] if engine.ok else [f"no engine: {engine.problem}"]
    if runtime.draining:
        reasons.append("the server is shutting down")
    if not any(model.spec is not None for model in runtime.parts.catalog.models()):
        reasons.append("there is no model that could be served")
    all_lost = all(view.lost_since_seconds is not None for view in snapshot.devices)
    if all_lost and not _in_state(snapshot, InstanceState.READY):
        reasons += [f"{view.name} does not answer: {view.lost_why}" for view in snapshot.devices]
    return reasons


def _in_state(snapshot: Snapshot, *states: InstanceState) -> list[ModelName]:
    return sorted({view.model for view in snapshot.instances if view.state in states})


async def deep(house: House) -> dict[str, object]:
    """One real request against each ready model: `{"status", "failed", "passed"}`, failures with their reason."""
    ready = set(_in_state(house.runtime.snapshot(), InstanceState.READY))
    models = [model for model in house.runtime.parts.catalog.models() if model.name in ready]
    results: dict[str, str | None] = {}

    async def check(model: CatalogModel) -> None:
        results[model.name] = "no answer in time"
        with trio.move_on_after(DEEP_SECONDS):
            results[model.name] = await _probe(house, model)

    async with trio.open_nursery() as nursery:
        for model in models:
            nursery.start_soon(check, model)
    failed = {name: reason for name, reason in results.items() if reason is not None}
    status = "failed" if failed else "ok" if results else "no_models_loaded"
    return {"status": status, "failed": failed, "passed": sorted(set(results) - set(failed))}


async def _probe(house: House, model: CatalogModel) -> str | None:
    """Run the smallest real request; None when the model answers it, else what went wrong. A monitor that asks often
    keeps no model awake (C13)."""
    found = next((probe for capability, probe in _PROBES.items() if capability in model.capabilities), None)
    if found is None:
        return "it serves nothing that can be asked for"
    kind, target, body = found
    desk = house.runtime.desk
    job = Job(desk.new_id(), model.name, JobClass.BACKGROUND, kind, warm_only=True, looks=True)
    with desk.submit(job) as ticket:
        answer = await ticket.answer()
        if isinstance(answer, Rejection):
            return answer.message
        reply = CollectedReply()
        outcome = await run_step(house.way(), answer, target, body, reply)
        ticket.end(outcome)
        if outcome.kind is OutcomeKind.DONE and reply.status == 200:  # noqa: PLR2004 - HTTP's word for success
            return None
        return f"{outcome.kind.value}, status {outcome.status}"
    return "a person has cancelled it"
