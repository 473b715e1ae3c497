"""One launch with the real engine, started as the gateway starts it: predicted, allocated, measured.

Owns the order of readings: before the start, when it is ready, after a request. Must never end a process that it has
not started, and leaves none behind, whatever happens. Judges nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

import trio

from gridsched.core.events import DeviceRead, Event, InstanceExited, InstanceReady
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.devices.procfs import PROC, memory_of
from gridsched.engine.locate import FoundEngine
from gridsched.engine.supervisor import LlamaEngine
from gridsched.engine.upstream import SocketUpstream, read_all
from gridsched.ports import Backend, Capability, DeviceInfo, DeviceMonitor, Launch, UpstreamFailure
from gridsched.vram.flags import parse_flags
from gridsched.vram.footprint import Footprint, footprint
from gridsched.vram.geometry import Geometry
from gridsched.vram.overhead import overhead

START_SECONDS = 180.0
STOP_SECONDS = 10.0
REQUEST_SECONDS = 120.0
TOKEN = 70
"""Any that is an ordinary one in every vocabulary."""

MAX_ANSWER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One launch: a file, so many of the devices, slots, the pool in tokens, and flags beside those."""

    path: Path
    geometry: Geometry
    flags: tuple[str, ...] = ()
    slots: int = 1
    ctx_size: int = 8192
    devices: int = 1

    @property
    def words(self) -> tuple[str, ...]:
        """The command line as it is planned."""
        embeds = ("--embeddings",) if self.geometry.is_embedding else ()
        return ("-c", str(self.ctx_size), "-np", str(self.slots), *embeds, *self.flags)


@dataclass(frozen=True, slots=True)
class Process:
    """What one process holds on one device, in bytes. `held` is the driver's or the kernel's figure of the process,
    None where it tells none; `grown` is by how much the whole device was fuller than before the start."""

    device: DeviceName
    held: int | None
    grown: int

    @property
    def bytes(self) -> int:
        """The better of the two."""
        return self.grown if self.held is None else self.held


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a case. `allocated` is what the engine's own log says of each device, empty where it does not.
    `resident` is what the process has of host memory, `mapped` what of that are pages of the file. `failure` is why it
    was not served, or empty.
    """

    case: Case
    predicted: Footprint
    allocated: tuple[DeviceFootprint, ...] = ()
    loaded: tuple[Process, ...] = ()
    served: tuple[Process, ...] = ()
    resident: int = 0
    mapped: int = 0
    seconds: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """What launches are made with. `folder` takes sockets and logs."""

    engine: FoundEngine
    monitor: DeviceMonitor
    folder: Path
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Those of the monitor."""
        return self.monitor.devices()


def predict(case: Case, devices: Sequence[DeviceInfo]) -> Footprint:
    """As planning does it for the first devices. Raises FlagError."""
    used = devices[: case.devices]
    outside = {info.spec.name: overhead(info.backend.value, info.label, info.spec.total_bytes).bytes for info in used}
    on_host = all(info.backend is Backend.CPU for info in used)
    names = tuple(info.spec.name for info in used)
    return footprint(case.geometry, parse_flags(case.words), names, on_host=on_host, overhead_bytes=outside)


async def measure(bench: Bench, case: Case) -> Measured:
    """Start, read, ask once, read, end. Raises FlagError."""
    predicted = predict(case, bench.devices)
    option = LaunchOption("check", case.ctx_size, case.slots, predicted.devices, host=predicted.host)
    capability = Capability.EMBEDDING if case.geometry.is_embedding else Capability.COMPLETION
    launch = Launch(ModelName(case.path.stem), case.path, option, frozenset((capability,)), flags=case.flags)
    engine = LlamaEngine(
        bench.engine,
        bench.devices,
        run_dir=bench.folder / "run",
        log_dir=bench.folder / "log",
        startup_timeout_seconds=START_SECONDS,
        stop_grace_seconds=STOP_SECONDS,
    )
    number = InstanceId(next(bench.numbers))
    before = await bench.monitor.read({})
    begun = trio.current_time()
    result = Measured(case, predicted)
    life = _Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(engine.run, number, launch, life.post))
        await life.turned.wait()
        if life.ready is not None:
            result = replace(result, allocated=life.ready.allocated, seconds=trio.current_time() - begun)
            result = await _used(bench, engine, number, result, before)
        engine.stop(number)
    if life.exited is not None and life.exited.failure is not None:
        result = replace(result, failure=life.exited.failure.message)
    return result


class _Life:
    """What the engine has told of the process."""

    def __init__(self) -> None:
        self.turned = trio.Event()
        self.ready: InstanceReady | None = None
        self.exited: InstanceExited | None = None

    def post(self, event: Event) -> None:
        """Ready, or gone: either way there is something to do."""
        if isinstance(event, InstanceReady):
            self.ready = event
        elif isinstance(event, InstanceExited):
            self.exited = event
        self.turned.set()


async def _used(
    bench: Bench, engine: LlamaEngine, number: InstanceId, result: Measured, before: tuple[DeviceRead, ...]
) -> Measured:
    pids = dict(engine.processes())
    loaded = _processes(await bench.monitor.read(pids), before, number, result)
    failure = await _ask(SocketUpstream(engine.endpoint), number, result)
    served = _processes(await bench.monitor.read(pids), before, number, result)
    if (pid := pids.get(number)) is not None:
        memory, mapped = memory_of((pid,)), _resident_bytes(pid, result.case.path)
        result = replace(result, resident=memory.total_bytes if memory else 0, mapped=mapped)
    return replace(result, loaded=loaded, served=served, failure=failure)


def _processes(
    now: tuple[DeviceRead, ...], before: tuple[DeviceRead, ...], number: InstanceId, result: Measured
) -> tuple[Process, ...]:
    """Of the devices of the launch, those that answer."""
    used = {read.device: read.used_bytes for read in before}
    parts = {part.device for part in result.predicted.devices}
    return tuple(
        Process(read.device, dict(read.held).get(number), read.used_bytes - used.get(read.device, 0))
        for read in now
        if read.device in parts
    )


async def _ask(upstream: SocketUpstream, number: InstanceId, result: Measured) -> str:
    """One request that fills a micro-batch, so that every buffer is used; why it was not answered, or nothing."""
    ubatch, room = result.predicted.ubatch, result.predicted.ctx_per_slot
    asked: dict[str, object] = {"prompt": [TOKEN] * min(ubatch + 64, room - 64), "n_predict": 4, "cache_prompt": False}
    target = "/completion"
    if result.case.geometry.is_embedding:  # one that is not causal must have it in a single micro-batch
        target, asked = "/embedding", {"content": [TOKEN] * (min(ubatch, room) - 2)}
    try:
        with trio.fail_after(REQUEST_SECONDS):
            body = json.dumps(asked).encode()
            head = ((b"content-type", b"application/json"),)
            async with upstream.request(number, "POST", target, head, body) as answer:
                said = await read_all(answer, MAX_ANSWER_BYTES)
                return "" if answer.status == 200 else f"{target} was answered with {answer.status}: {said[:200]!r}"
    except (UpstreamFailure, trio.TooSlowError) as error:
        return f"{target} was not answered: {error or 'no answer in time'}"


def _resident_bytes(pid: int, path: Path) -> int:
    """How much of a mapped file is in memory for a process; 0 where the kernel does not tell."""
    total, inside = 0, False
    try:
        lines = (PROC / str(pid) / "smaps").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    for line in lines:
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):
            inside = len(words) == 6 and words[5] == str(path)  # a mapping's own line ends with its file
        elif inside and words[0] == "Rss:":
            total += int(words[1]) * 1024
    return total
