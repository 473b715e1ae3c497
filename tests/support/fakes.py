"""Fakes behind the ports for what tests must script: an engine's answers byte by byte, and a clock that stands.

Everything else that tests need of the outside is the product's own simulation.
"""

from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.ports import DeviceInfo, DeviceMonitor, EngineAnswer, Upstream, UpstreamFailure, UpstreamFailureKind

Headers = tuple[tuple[bytes, bytes], ...]
JSON: Headers = ((b"content-type", b"application/json"),)
EVENTS: Headers = ((b"content-type", b"text/event-stream"),)


class StandingClock:
    """The wall clock of a test: one moment."""

    def wall_seconds(self) -> float:
        """2027-01-15T08:00:00Z."""
        return 1_800_000_000.0

    def boot_seconds(self) -> float:
        """As long after a start."""
        return 1_000_000.0

    def awake_seconds(self) -> float:
        """It never slept."""
        return 1_000_000.0


class FailingCards:
    """A monitor between a server and its cards that reads nothing of those in `failed`, by the driver's word for it.
    Implements `ports.DeviceMonitor`."""

    def __init__(self) -> None:
        self.failed: dict[DeviceName, str] = {}
        self._inner: DeviceMonitor

    def over(self, inner: DeviceMonitor) -> "FailingCards":
        """Put it there."""
        self._inner = inner
        return self

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The inner one's."""
        return self._inner.devices()

    def lost(self) -> Mapping[DeviceName, str]:
        """Those that fail."""
        return self.failed

    def settled(self, instance_id: InstanceId) -> None:
        """The inner one is told."""
        self._inner.settled(instance_id)

    async def read(self, processes: Mapping[InstanceId, int]) -> tuple[DeviceRead, ...]:
        """The others."""
        return tuple(read for read in await self._inner.read(processes) if read.device not in self.failed)


@dataclass(frozen=True)
class Script:
    """One answer. A part is bytes, seconds of silence, or `BROKEN`; `head_seconds` pass before the head.

    `before_head`: the engine breaks off before it has answered.
    """

    parts: Sequence[bytes | float | UpstreamFailureKind] = ()
    status: int = 200
    headers: Headers = JSON
    head_seconds: float = 0.0
    before_head: bool = False


@dataclass
class Asked:
    """What an engine was sent, and how the exchange ended."""

    instance_id: InstanceId
    method: str
    target: str
    headers: Headers
    body: bytes
    closed_at: float | None = None
    read_whole: bool = False


class ScriptedAnswer:
    """Plays one script. Implements `ports.EngineAnswer`."""

    def __init__(self, script: Script, asked: Asked) -> None:
        self.status = script.status
        self.headers = script.headers
        self._parts = iter(script.parts)
        self._asked = asked

    async def receive(self) -> bytes:
        """The next bytes, after the silences before them."""
        for part in self._parts:
            if isinstance(part, UpstreamFailureKind):
                raise UpstreamFailure(part, "scripted")
            if isinstance(part, bytes):
                await trio.lowlevel.checkpoint()
                return part
            await trio.sleep(part)
        await trio.lowlevel.checkpoint()
        self._asked.read_whole = True
        return b""


@dataclass
class ScriptedUpstream:
    """Plays `scripts` in order, one for each request; `inner` answers when there is none left."""

    inner: Upstream
    scripts: deque[Script | Exception] = field(default_factory=deque)
    asked: list[Asked] = field(default_factory=list)

    @asynccontextmanager
    async def request(
        self, instance_id: InstanceId, method: str, target: str, headers: Headers, body: bytes
    ) -> AsyncIterator[EngineAnswer]:
        """One exchange; its end is noted."""
        asked = Asked(instance_id, method, target, headers, body)
        self.asked.append(asked)
        try:
            if not self.scripts:
                async with self.inner.request(instance_id, method, target, headers, body) as answer:
                    yield answer
                return
            script = self.scripts.popleft()
            if isinstance(script, Exception):
                raise script
            await trio.sleep(script.head_seconds)
            if script.before_head:
                raise UpstreamFailure(UpstreamFailureKind.BROKEN, "scripted")
            yield ScriptedAnswer(script, asked)
        finally:
            asked.closed_at = trio.current_time()

    async def busy_slots(self, instance_id: InstanceId) -> int:
        """The inner one's."""
        return await self.inner.busy_slots(instance_id)
