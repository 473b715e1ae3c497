"""A bench for real processes: the stand-in engine behind the real spawn, and a check that nothing is left behind."""

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from gridsched.core.events import Event, InstanceExited, InstanceReady
from gridsched.core.ids import DeviceName, InstanceId, ModelName
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption
from gridsched.engine.guard import guard
from gridsched.engine.identity import ProcessId
from gridsched.engine.locate import FoundEngine, located
from gridsched.engine.supervisor import LlamaEngine
from gridsched.engine.upstream import SocketUpstream
from gridsched.ports import Backend, Capability, DeviceInfo, Launch
from tests.support.processes import children_of

FAKE = Path(__file__).parent.parent / "support" / "fake_llama_server.py"
HOST = DeviceInfo(DeviceSpec(DeviceName("host"), 1 << 30), "host", Backend.CPU)
ONE = InstanceId(1)
PATIENCE_SECONDS = 30.0  # on a busy machine; nothing here takes a second on an idle one


def children() -> set[int]:
    """The processes that live as our children, zombies too."""
    return set(children_of("self"))


def descriptors() -> int:
    """How many files are open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(scope="session", autouse=True)
def guarded() -> None:
    """The guard lives as long as this process does: no test leaves it behind."""
    guard().watch(ProcessId.of_child(os.getpid()))()


@pytest.fixture(scope="session")
def fake_engine(tmp_path_factory: pytest.TempPathFactory) -> FoundEngine:
    """The stand-in, asked as any engine is; run by this interpreter, since others on PATH may be slow wrappers."""
    program = tmp_path_factory.mktemp("engine") / "llama-server"
    program.write_text(f"#!{sys.executable}\n" + FAKE.read_text(encoding="utf-8"), encoding="utf-8")
    program.chmod(0o755)
    found = next(located(str(program)))
    assert found.info.ok, found.info.problem
    return found


@pytest.fixture
def leak_free() -> Iterator[None]:
    """Fails when a test leaves a child or an open file."""
    before = children(), descriptors()
    yield
    assert (children(), descriptors()) == before


@dataclass
class Bench:
    """An engine, a way to talk to it, and what it has said."""

    engine: LlamaEngine
    upstream: SocketUpstream
    record: Path
    model: Path
    events: list[Event] = field(default_factory=list)
    said: trio.Event = field(default_factory=trio.Event)

    def post(self, event: Event) -> None:
        """Where the engine's events go."""
        self.events.append(event)
        self.said.set()
        self.said = trio.Event()

    def launch(
        self, capability: Capability = Capability.CHAT, flags: tuple[str, ...] = (), **switches: object
    ) -> Launch:
        """A launch of two slots over 1024 tokens, the stand-in's switches in its environment."""
        option = LaunchOption("key", 1024, 2, (DeviceFootprint(HOST.spec.name),))
        env = {"FAKE_LLAMA": json.dumps({"record": str(self.record), **switches})}
        return Launch(ModelName("org/tiny"), self.model, option, frozenset({capability}), flags=flags, env=env)

    async def wait_for(self, kind: type[Event]) -> None:
        """Until the engine has said it."""
        while not any(isinstance(event, kind) for event in self.events):
            await self.said.wait()

    def exit(self) -> InstanceExited:
        """The one exit there must be, after which nothing more was said."""
        exits = [event for event in self.events if isinstance(event, InstanceExited)]
        assert len(exits) == 1
        assert self.events[-1] is exits[0]
        return exits[0]

    def records(self, key: str) -> list[object]:
        """What the stand-in wrote down under a key."""
        lines = self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []
        return [fact[key] for fact in map(json.loads, lines) if key in fact]

    @asynccontextmanager
    async def running(self, launch: Launch) -> AsyncIterator[None]:
        """A ready process, ended at the block's exit."""
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.engine.run, ONE, launch, self.post)
                await self.said.wait()
                assert [type(event) for event in self.events] == [InstanceReady], self.events
                yield
                self.engine.stop(ONE)

    async def run_to_the_end(self, launch: Launch) -> InstanceExited:
        """A whole life that ends by itself."""
        with trio.fail_after(PATIENCE_SECONDS):
            await self.engine.run(ONE, launch, self.post)
        return self.exit()


def make_bench(found: FoundEngine, folder: Path, devices: tuple[DeviceInfo, ...] = (HOST,), **limits: Any) -> Bench:
    """A bench with its files in `folder`."""
    engine = LlamaEngine(found, devices, run_dir=folder / "run", log_dir=folder / "logs", **limits)
    return Bench(engine, SocketUpstream(engine.endpoint), folder / "record.jsonl", folder / "m.gguf")


@pytest.fixture
def bench(fake_engine: FoundEngine, leak_free: None, tmp_path: Path) -> Bench:  # noqa: ARG001 - it checks at the end
    """A bench with the stand-in."""
    return make_bench(fake_engine, tmp_path)
