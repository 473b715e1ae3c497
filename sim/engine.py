"""A simulated engine behind `ports.Engine` and `ports.Upstream`: processes that load, answer, misbehave and end.

Owns the simulated processes: their memory on the cards, their slots, how long everything takes, and the faults that a
test switches on. Speeds follow the mixed-load scenario. It never decides anything; time is trio's own, so a jumping
clock works. More steps than slots are a fault of ours: counted in `overfilled`, then served late, as the real one does.
"""

import math
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

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
from sim.models import load_seconds_of
from sim.protocols import ENDPOINTS, Scores

FIRST_PID = 900_000
LOG_LINES = 20
STOP_SECONDS = 0.2  # from TERM to the exit of a willing process
KILL_AFTER_SECONDS = 10.0  # a process that ignores TERM is killed then
CARD_BYTES_PER_SECOND = 400e9  # each token reads all weights once
PREFILL_TOKENS_PER_SECOND = 4000.0
EMBED_TOKENS_PER_SECOND = 8000.0
STEP_FLOOR_SECONDS = 0.01
STREAM_COST = 0.2  # n streams of one process run at 1 / (1 + STREAM_COST (n - 1)) each
CARD_GAIN = (1.0, 1.0, 1.19, 1.23)  # what k processes that share a card get through, together
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
    vet: Vet | None = None
    ready: bool = False
    paused: bool = False
    running: int = 0
    settling: list[float] = field(default_factory=list)
    stop_asked: trio.Event = field(default_factory=trio.Event)
    crashed: trio.Event = field(default_factory=trio.Event)
    dead: bool = False
    turned: trio.Event = field(default_factory=trio.Event)  # set, and made anew, when it stands, goes on or dies
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
        """Wake whoever lets time pass here."""
        self.turned.set()
        self.turned = trio.Event()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass for one answer, in which the process does not stand still. Raises UpstreamFailure if it ends
        meanwhile."""
        left = math.inf if self.faults.hang else seconds
        while not self.dead:
            began, stands = trio.current_time(), self.paused
            with trio.move_on_after(math.inf if stands else left) as wait:
                await self.turned.wait()
            if wait.cancelled_caught:
                return
            if not stands:
                left = max(0.0, left - (trio.current_time() - began))  # woken late: a busy loop
        raise UpstreamFailure(UpstreamFailureKind.BROKEN, f"process {self.pid} ended inside an answer")


class SimulatedEngine:
    """The engine of the simulation; it is its own upstream. `overfilled` counts requests that met no free slot."""

    def __init__(self, cards: SimulatedCards) -> None:
        self._cards = cards
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
        process = _Process(instance_id, FIRST_PID + self._spawned, launch, faults, vet)
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
            process.paused = True
            process.turn()

    def resume(self, instance_id: InstanceId) -> None:
        """Let it go on."""
        if process := self._living.get(instance_id):
            process.paused = False
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
        seconds = load_seconds_of(process.weights_bytes) * process.faults.load_factor
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
            yield _Answer(process, bad.status, iter(((0.0, bad.body),)))
            return
        if isinstance(asked, bytes):
            yield _Answer(process, 200, iter(((0.0, asked),)))
            return
        async with self._slot(process) as leave:
            answer = await self._start(process, asked)
            try:
                yield answer
            finally:
                leave.early = not answer.finished

    async def busy_slots(self, instance_id: InstanceId) -> int:
        """Slots in use. Raises UpstreamFailure for a process that is gone or hangs without being killed."""
        await trio.lowlevel.checkpoint()
        process = self._find(instance_id)
        while process.paused:  # one that stands still does not answer
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
            await process.pass_time(STEP_FLOOR_SECONDS)
        process.running += 1
        leaving = _Leaving()
        try:
            yield leaving
        finally:
            process.running -= 1
            if leaving.early:
                process.settling.append(trio.current_time() + (math.inf if process.faults.hang else SETTLE_SECONDS))

    async def _start(self, process: _Process, asked: Generation | Embedding | Scores) -> "_Answer":
        """Let the time pass until the head of the answer comes: the prompt for a stream, the whole work otherwise."""
        self._answers += 1
        if not isinstance(asked, Generation):
            seconds = STEP_FLOOR_SECONDS + asked.tokens / EMBED_TOKENS_PER_SECOND
            await process.pass_time(self._stretch(process) * seconds)
            body = embedding_json(asked) if isinstance(asked, Embedding) else asked.body
            return _Answer(process, 200, iter(((0.0, body),)))
        plain = asked.shape in (CHAT, "completion")
        began_at = trio.current_time()
        await process.pass_time(self._stretch(process) * (asked.prompt_tokens / PREFILL_TOKENS_PER_SECOND))
        if asked.stream:
            told = (stream_frames if plain else protocols.frames)(asked, self._answers)
            frames = ((self._token_seconds(process), frame) for frame in told)
            return _Answer(process, 200, frames, b"text/event-stream")
        read_at = trio.current_time()
        for _ in asked.words:
            await process.pass_time(self._token_seconds(process))
        took = read_at - began_at, trio.current_time() - read_at
        body = generation_json(asked, self._answers, took) if plain else protocols.whole(asked, self._answers)
        return _Answer(process, 200, iter(((0.0, body),)))

    def _token_seconds(self, process: _Process) -> float:
        """How long one token of one stream takes at this moment."""
        return self._stretch(process) * process.weights_bytes / CARD_BYTES_PER_SECOND

    def _stretch(self, process: _Process) -> float:
        """How much slower a stream runs for those beside it: in its process, and on the fullest of its cards."""
        streams = 1.0 + STREAM_COST * max(0, process.running - 1)
        cards = set(process.launch.option.devices)
        running = (one for one in self._living.values() if one.running and not one.paused)
        active = [one for one in running if cards & set(one.launch.option.devices)]
        count = max(1, len(active))
        return streams * count / CARD_GAIN[min(count, len(CARD_GAIN) - 1)]


@dataclass(slots=True)
class _Leaving:
    """How a slot was left: `early` when the answer had not ended."""

    early: bool = True


class _Answer:
    """An answer whose parts come after a time each."""

    def __init__(
        self,
        process: _Process,
        status: int,
        parts: Iterator[tuple[float, bytes]],
        content_type: bytes = b"application/json; charset=utf-8",
    ) -> None:
        self._process = process
        self._parts = parts
        self.status = status
        self.headers = ((b"content-type", content_type),)
        self.finished = False

    async def receive(self) -> bytes:
        """The next part, b"" at the end."""
        part = next(self._parts, None)
        if part is None:
            await trio.lowlevel.checkpoint()
            self.finished = True
            return b""
        seconds, data = part
        await self._process.pass_time(seconds)
        return data


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
