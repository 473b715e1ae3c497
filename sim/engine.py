"""A simulated engine behind `ports.Engine` and `ports.Upstream`: processes that load, answer, misbehave and end.

Owns the simulated processes: their memory on the cards, their slots, how long everything takes, and the faults that a
test switches on. How processes share a card is `sharing`'s. It never decides anything; time is trio's own, so a jumping
clock works. More steps than slots are a fault of ours: counted in `overfilled`, then served late, as the real one does.
"""

import math
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import trio

from gridsched.core.events import Failure, FailureCause, InstanceExited, InstanceReady
from gridsched.core.ids import InstanceId, ModelName
from gridsched.ports import (
    EngineAnswer,
    EngineInfo,
    Launch,
    Post,
    UpstreamFailure,
    UpstreamFailureKind,
    Vet,
)
from sim import protocols
from sim.answers import (
    CHAT,
    BadBody,
    Embedding,
    Generation,
    embedding_json,
    generation_json,
    stream_frames,
)
from sim.gpu import CardFull, SimulatedCards
from sim.protocols import ENDPOINTS, Scores
from sim.sharing import Figures, SharedCard, Sharing
from sim.whatif.fluid import Process, Stream

FIRST_PID = 900_000
LOG_LINES = 20
STOP_SECONDS = 0.2  # from TERM to the exit of a willing process
KILL_AFTER_SECONDS = 10.0  # a process that ignores TERM is killed then
CARD_BYTES_PER_SECOND = 400e9  # each token reads all weights once
PREFILL_TOKENS_PER_SECOND = 4000.0
EMBED_TOKENS_PER_SECOND = 8000.0
STEP_FLOOR_SECONDS = 0.01
SETTLE_SECONDS = 0.05  # how long a slot stays busy after its client has closed


@dataclass(frozen=True, slots=True)
class Faults:
    """What a process does wrong. `load_factor` stretches a load; `out_of_memory` and `crash_in_load` end it half way;
    `crash_after_seconds` counts from readiness; `hang`: no more bytes; `ignore_stop`: only the kill ends it."""

    load_factor: float = 1.0
    out_of_memory: bool = False
    crash_in_load: bool = False
    crash_after_seconds: float | None = None
    hang: bool = False
    ignore_stop: bool = False


@dataclass(slots=True)
class _Process:
    """One simulated llama-server."""

    instance_id: InstanceId
    pid: int
    launch: Launch
    faults: Faults
    card: SharedCard
    share: Process
    vet: Vet | None = None
    ready: bool = False
    running: int = 0
    settling: list[float] = field(default_factory=list)
    stop_asked: trio.Event = field(default_factory=trio.Event)
    crashed: trio.Event = field(default_factory=trio.Event)
    dead: bool = False
    turned: trio.Event = field(default_factory=trio.Event)  # set, and made anew, when it goes on or dies
    log: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))

    @property
    def slots(self) -> int:
        return self.launch.option.parallel

    @property
    def ctx_per_slot(self) -> int:
        return self.launch.option.ctx_size // self.slots

    @property
    def weights_bytes(self) -> int:
        return sum(part.total_bytes for part in self.launch.option.footprint)

    def busy(self) -> int:
        """Slots in use, those of clients that have just closed among them."""
        now = trio.current_time()
        self.settling = [until for until in self.settling if until > now]
        return self.running + len(self.settling)

    def turn(self) -> None:
        """Wake whoever waits for an answer about its slots."""
        self.turned.set()
        self.turned = trio.Event()

    async def work(self, stream: Stream, left: float) -> None:
        """Wait until so much of an answer's work is left. Raises UpstreamFailure if the process ends meanwhile."""
        if not await self.card.reach(self.share, stream, -math.inf if self.faults.hang else left):
            self.broken()

    def broken(self) -> NoReturn:
        """Raises UpstreamFailure: the process has ended."""
        raise UpstreamFailure(UpstreamFailureKind.BROKEN, f"process {self.pid} ended inside an answer")


class SimulatedEngine:
    """The engine of the simulation; it is its own upstream. `overfilled` counts requests that met no free slot."""

    def __init__(self, cards: SimulatedCards, figures: Figures | None = None) -> None:
        self._cards = cards
        self._sharing = Sharing(figures or Figures(), [info.spec.name for info in cards.devices()])
        self._living: dict[InstanceId, _Process] = {}
        self._logs: dict[InstanceId, deque[str]] = {}
        self._printed: dict[ModelName, list[deque[str]]] = {}
        self._planned: dict[ModelName, Faults] = {}
        self._stopped_ahead: set[InstanceId] = set()
        self._spawned = 0
        self._answers = 0
        self.overfilled = 0

    # --- faults -------------------------------------------------------------------------------------------------------

    def plan_faults(self, model: str, faults: Faults) -> None:
        """What the processes of a model that are started from now on will do wrong."""
        self._planned[ModelName(model)] = faults

    def set_faults(self, instance_id: InstanceId, faults: Faults) -> None:
        """What a living process does wrong from now on. Raises KeyError for one that is not there."""
        self._living[instance_id].faults = faults

    def crash(self, instance_id: InstanceId) -> None:
        """End a living process at once. Raises KeyError for one that is not there."""
        self._living[instance_id].crashed.set()

    # --- ports.Engine -------------------------------------------------------------------------------------------------

    def info(self) -> EngineInfo:
        """A simulated engine is always found."""
        return EngineInfo(ok=True, version="simulated", backend="simulated")

    async def run(self, instance_id: InstanceId, launch: Launch, post: Post, vet: Vet | None = None) -> None:
        """One process's whole life; see the port."""
        if instance_id in self._stopped_ahead:
            self._stopped_ahead.remove(instance_id)
            self._logs[instance_id] = deque()
            post(InstanceExited(instance_id))
            return
        self._spawned += 1
        faults = self._planned.get(launch.model, Faults())
        card = self._sharing.card(launch.option)
        share = self._sharing.process(instance_id, launch.model, launch.option)
        process = _Process(instance_id, FIRST_PID + self._spawned, launch, faults, card, share, vet)
        card.add(share)
        self._living[instance_id] = process
        self._logs[instance_id] = process.log
        self._printed.setdefault(launch.model, []).append(process.log)
        failure: Failure | None = None
        try:
            failure = await self._life(process, post)
        finally:
            process.ready = False
            process.dead = True
            process.turn()
            card.remove(share)
            del self._living[instance_id]
            self._cards.let_go(instance_id)
            post(InstanceExited(instance_id, failure))

    def stop(self, instance_id: InstanceId, *, at_once: bool = False) -> None:  # noqa: ARG002 - none is ever deaf
        """Ask a process to end. One whose task has not had its first turn yet never starts."""
        if process := self._living.get(instance_id):
            process.stop_asked.set()
        elif instance_id not in self._logs:
            self._stopped_ahead.add(instance_id)

    def pause(self, instance_id: InstanceId) -> None:
        """Let a process stand still (S10)."""
        if process := self._living.get(instance_id):
            process.card.pause(process.share, paused=True)

    def resume(self, instance_id: InstanceId) -> None:
        """Let it go on."""
        if process := self._living.get(instance_id):
            process.card.pause(process.share, paused=False)
            process.turn()

    def processes(self) -> Mapping[InstanceId, int]:
        """The pid of every living process."""
        return {process.instance_id: process.pid for process in self._living.values()}

    def command_line(self, instance_id: InstanceId) -> tuple[str, ...]:
        """No program runs."""
        return ("simulated", str(instance_id)) if instance_id in self._living else ()

    def log_tail(self, instance_id: InstanceId) -> tuple[str, ...]:
        """The last lines a process printed."""
        return tuple(self._logs.get(instance_id, ()))

    def last_log_lines(self, model: ModelName, count: int) -> Sequence[str]:
        """The last lines of its processes, the living and the gone."""
        return [line for log in self._printed.get(model, ()) for line in log][-count:]

    def lost_log_lines(self) -> Mapping[ModelName, int]:
        """There are no files to lose any from."""
        return {}

    async def _life(self, process: _Process, post: Post) -> Failure | None:
        """Load and serve until something ends it: None if that was the stop, else what went wrong."""
        failure = None
        with trio.CancelScope() as life:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_stopped, process, life)
                nursery.start_soon(self._end_when_crashed, process, life)
                failure = await self._load(process)
                if failure is None and process.vet is not None:
                    failure = await process.vet(process.instance_id, process.pid)
                if failure is None:
                    process.ready = True
                    process.log.append("server is listening")
                    post(InstanceReady(process.instance_id))
                    await self._serve(process)
                nursery.cancel_scope.cancel()
        if failure is None and not process.stop_asked.is_set():
            return _failure(process, FailureCause.CRASHED, "the process ended by itself")
        return failure

    async def _load(self, process: _Process) -> Failure | None:
        """Take memory in two halves, as weights come before caches. The failure, if the card has not enough."""
        process.log.append(f"loading model {process.launch.model}")
        seconds = process.share.model.load_seconds * process.faults.load_factor
        for half in (0, 1):
            if half and process.faults.crash_in_load:
                return _failure(process, FailureCause.CRASHED, "the process ended while it loaded")
            try:
                self._take_half(process, second=bool(half))
            except CardFull as full:
                process.log.append(f"out of memory: {full}")
                return _failure(process, FailureCause.DEVICE_OOM, f"out of memory on {full}")
            await trio.sleep(math.inf if process.faults.hang else seconds / 2)
        return None

    def _take_half(self, process: _Process, *, second: bool) -> None:
        """One half of the launch's memory, on each of its cards. Raises CardFull."""
        for part in process.launch.option.footprint:
            first = part.total_bytes // 2
            self._cards.take(process.instance_id, part.device, part.total_bytes - first if second else first)
        if second and process.faults.out_of_memory:
            device = process.launch.option.devices[0]
            raise CardFull(device, process.weights_bytes, self._cards.free_bytes(device))

    async def _serve(self, process: _Process) -> None:
        """Stay until cancelled, or until the planned crash."""
        seconds = process.faults.crash_after_seconds
        await trio.sleep(math.inf if seconds is None else seconds)
        process.crashed.set()

    async def _end_when_stopped(self, process: _Process, life: trio.CancelScope) -> None:
        await process.stop_asked.wait()
        await trio.sleep(KILL_AFTER_SECONDS if process.faults.ignore_stop else STOP_SECONDS)
        life.cancel()

    async def _end_when_crashed(self, process: _Process, life: trio.CancelScope) -> None:
        await process.crashed.wait()
        process.log.append("terminated")
        life.cancel()

    # --- ports.Upstream -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def request(
        self, instance_id: InstanceId, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...], body: bytes
    ) -> AsyncIterator[EngineAnswer]:
        """One request on a connection of its own; leaving the block early leaves the slot busy for a moment."""
        del headers  # nothing in them changes what a simulated engine answers
        await trio.lowlevel.checkpoint()
        process = self._find(instance_id)
        try:
            asked = _understand(process, method, target.partition("?")[0], body)
        except BadBody as bad:
            yield _Answer(process, bad.status, None, (bad.body,))
            return
        if isinstance(asked, bytes):
            yield _Answer(process, 200, None, (asked,))
            return
        async with self._slot(process) as leave:
            answer = await self._start(process, asked, leave)
            try:
                yield answer
            finally:
                leave.early = not answer.finished

    async def busy_slots(self, instance_id: InstanceId) -> int:
        """Slots in use. Raises UpstreamFailure for a process that is gone or hangs without being killed."""
        await trio.lowlevel.checkpoint()
        process = self._find(instance_id)
        while process.share.paused:  # one that stands still does not answer
            await process.turned.wait()
        return self._find(instance_id).busy()

    def _find(self, instance_id: InstanceId) -> _Process:
        process = self._living.get(instance_id)
        if process is None or not process.ready:
            raise UpstreamFailure(UpstreamFailureKind.CONNECT, f"instance {instance_id} takes no connection")
        return process

    @asynccontextmanager
    async def _slot(self, process: _Process) -> AsyncIterator["_Leaving"]:
        """Hold a slot. Meeting none free is a fault of ours: counted, and then waited for."""
        if process.busy() >= process.slots:
            self.overfilled += 1
        while process.busy() >= process.slots:
            await trio.sleep(STEP_FLOOR_SECONDS)
            if process.dead:
                process.broken()
        process.running += 1
        leaving = _Leaving()
        try:
            yield leaving
        finally:
            process.running -= 1
            if leaving.stream is not None:
                process.card.end(process.share, leaving.stream)
            if leaving.early:
                process.settling.append(trio.current_time() + (math.inf if process.faults.hang else SETTLE_SECONDS))

    async def _start(self, process: _Process, asked: Generation | Embedding | Scores, leaving: "_Leaving") -> "_Answer":
        """Let the time pass until the head of the answer comes: the prompt for a stream, the whole work otherwise."""
        self._answers += 1
        if not isinstance(asked, Generation):
            stream = self._begin(process, STEP_FLOOR_SECONDS + asked.tokens / EMBED_TOKENS_PER_SECOND, leaving)
            await process.work(stream, 0.0)
            body = embedding_json(asked) if isinstance(asked, Embedding) else asked.body
            return _Answer(process, 200, stream, (body,))
        plain = asked.shape in (CHAT, "completion")
        began_at = trio.current_time()
        writing = len(asked.words) * process.weights_bytes / CARD_BYTES_PER_SECOND
        stream = self._begin(process, asked.prompt_tokens / PREFILL_TOKENS_PER_SECOND + writing, leaving)
        await process.work(stream, writing)
        if asked.stream:
            frames = tuple((stream_frames if plain else protocols.frames)(asked, self._answers))
            return _Answer(process, 200, stream, frames, writing, b"text/event-stream")
        read_at = trio.current_time()
        await process.work(stream, 0.0)
        took = read_at - began_at, trio.current_time() - read_at
        body = generation_json(asked, self._answers, took) if plain else protocols.whole(asked, self._answers)
        return _Answer(process, 200, stream, (body,))

    def _begin(self, process: _Process, seconds: float, leaving: "_Leaving") -> Stream:
        """So much work, alone on the card; it takes its share of it from now until its slot is left."""
        leaving.stream = self._sharing.stream(process.share, seconds)
        process.card.begin(process.share, leaving.stream)
        return leaving.stream


@dataclass(slots=True)
class _Leaving:
    """How a slot was left: `early` when the answer had not ended, and the work that was done in it."""

    early: bool = True
    stream: Stream | None = None


class _Answer:
    """An answer whose parts come one by one while the last `seconds` of its stream's work are done."""

    def __init__(
        self,
        process: _Process,
        status: int,
        stream: Stream | None,
        parts: Sequence[bytes],
        seconds: float = 0.0,
        content_type: bytes = b"application/json; charset=utf-8",
    ) -> None:
        self._process = process
        self._stream = stream
        self._parts = parts
        self._seconds = seconds
        self._told = 0
        self.status = status
        self.headers = ((b"content-type", content_type),)
        self.finished = False

    async def receive(self) -> bytes:
        """The next part, b"" at the end."""
        if self._told == len(self._parts):
            await trio.lowlevel.checkpoint()
            self.finished = True
            return b""
        self._told += 1
        if self._stream is None:
            await trio.lowlevel.checkpoint()
        else:
            await self._process.work(self._stream, self._seconds * (1.0 - self._told / len(self._parts)))
        return self._parts[self._told - 1]


def _understand(process: _Process, method: str, path: str, body: bytes) -> Generation | Embedding | Scores | bytes:
    """What a request asks for; bytes are an answer that needs no slot. Raises BadBody."""
    if (method, path) == ("GET", "/health"):
        return b'{"status":"ok"}'
    if method != "POST" or path not in ENDPOINTS:
        raise BadBody(404, "not_found_error", "File Not Found")
    endpoint = ENDPOINTS[path]
    if endpoint.needs is not None and endpoint.needs not in process.launch.capabilities:
        raise BadBody(501, "not_supported_error", f"this server does not support {path}")
    return endpoint.understand(body, process.ctx_per_slot)


def _failure(process: _Process, cause: FailureCause, message: str) -> Failure:
    return Failure(cause=cause, message=f"{process.launch.model}: {message}", log_tail=tuple(process.log))
