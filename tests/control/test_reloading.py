"""The configuration read again in a running server: in turn, whole or not at all, touching only what it must."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from gridsched.app.reloading import ServerWorld, Source
from gridsched.app.restarting import refuse_start
from gridsched.control import reloading
from gridsched.control.problems import RequestError
from gridsched.control.reloading import Prepared, Reloader
from gridsched.core.policy import Policy
from gridsched.library.live import LiveCatalog
from gridsched.runtime.dispatch import tell_served
from gridsched.settings.schema import Settings
from sim import build
from sim.models import MODELS, SimModel, SimulatedCatalog
from tests.support.front import House, serving

CHAT = "/v1/chat/completions"


class World(ServerWorld):
    """Over a real file and simulated models, which may become others; counts what is done at once."""

    def __init__(self, house: House, source: Source) -> None:
        self.figures: list[Settings] = []
        super().__init__(house.runtime, source, None, Policy(), lambda settings: lambda: self.figures.append(settings))
        self.house = house
        self.models: tuple[SimModel, ...] | None = None
        self.running_now = self.most_at_once = self.count = 0

    def prepare(self, settings: Settings, *, anew: bool) -> Prepared:
        """As the server does, and other models where a test has some."""
        self.running_now += 1
        self.count += 1
        self.most_at_once = max(self.most_at_once, self.running_now)
        prepared = super().prepare(settings, anew=anew)
        self.running_now -= 1
        if self.models is None:
            return prepared
        runtime = self.house.runtime
        live = runtime.parts.catalog
        assert isinstance(live, LiveCatalog)
        catalog = SimulatedCatalog([info.spec for info in self.house.world.monitor.devices()], self.models)

        def take() -> None:
            prepared.take()
            live.become(catalog)
            tell_served(live, runtime.post)

        served = tuple(model.spec for model in catalog.models() if model.spec is not None)
        return Prepared(take, served)


@dataclass
class Served:
    """A server that follows a file."""

    house: House
    world: World
    reloader: Reloader
    path: Path
    said: list[str]


@asynccontextmanager
async def following(clock: MockClock, path: Path) -> AsyncIterator[Served]:
    """For the length of a block. Nobody follows the file until a test has somebody do so."""
    write(path, "")
    world = build()
    world = replace(world, catalog=LiveCatalog(world.catalog))  # type: ignore[arg-type]  # a catalog like any
    async with serving(clock, world=world) as house:
        source = Source(path, {})
        said: list[str] = []
        mine = World(house, source)
        yield Served(house, mine, Reloader(house.runtime, mine, source.read(), said.append), path, said)


def write(path: Path, text: str) -> None:
    """What the file says from now on."""
    path.write_text(text, encoding="utf-8")


def applied(served: Served) -> list[object]:
    """The keys that were taken over, by reload."""
    return [line["applied"] for line in served.house.logged("config") if "applied" in line]


async def test_a_file_that_has_lost_its_last_byte_is_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A full disk leaves such a file to whoever saves; the defaults can be written. Only one that was empty may be."""
    async with following(autojump_clock, tmp_path / "c.yaml") as served:
        write(served.path, "scheduler: {hot_window: 7s}")
        await served.reloader.reload("a test")
        write(served.path, "")
        with pytest.raises(RequestError, match="the file is empty"):
            await served.reloader.reload("a test")
        assert served.reloader.settings.scheduler.hot_window_seconds == 7.0
        write(served.path, "{}")
        await served.reloader.reload("a test")
    assert applied(served) == [["scheduler.hot_window"], ["scheduler.hot_window"]]
    assert served.reloader.error is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"server": {"host": "::"}}, "there are no API keys"),
        ({"server": {"host": "192.0.2.1"}}, "cannot listen on 192.0.2.1"),
        ({"server": {"tls": {"certificate": "/none.pem"}}}, "server.tls.certificate"),
        ({"engine": {"path": "/none/llama-server"}}, "/none/llama-server"),
    ],
)
async def test_what_the_next_start_would_refuse_is_refused_now(
    autojump_clock: MockClock, tmp_path: Path, said: object, why: str
) -> None:
    """Who has no shell there could not start the server any more."""
    async with following(autojump_clock, tmp_path / "c.yaml") as served:
        authority, source = served.house.authority, Source(served.path, {})
        world = ServerWorld(
            served.house.runtime,
            source,
            None,
            Policy(),
            lambda _: lambda: None,
            partial(refuse_start, authority, tmp_path, {}),
        )
        reloader = Reloader(served.house.runtime, world, source.read(), served.said.append)
        write(served.path, json.dumps(said))
        with pytest.raises(RequestError, match=why):
            await reloader.reload("a test")
        assert reloader.settings == Settings()


async def test_J8_who_asks_while_one_is_under_way_shares_the_next(autojump_clock: MockClock, tmp_path: Path) -> None:
    """J8: twenty at once are one reload, and all hear the same; one who asks later has another."""
    async with following(autojump_clock, tmp_path / "c.yaml") as served:
        write(served.path, "scheduler: {hot_window: 7s}")
        heard: list[bool] = []

        async def ask() -> None:
            await served.reloader.reload("a test")
            heard.append(served.reloader.settings.scheduler.hot_window_seconds == 7.0)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        assert heard == [True] * 20
        assert served.world.count == 1
        await ask()
        assert (served.world.count, served.world.most_at_once) == (2, 1)
        assert applied(served) == [["scheduler.hot_window"], []]


async def test_J7_a_bad_file_changes_nothing_and_a_good_one_all(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Every fault is told, in one problem; what ran runs on until the file is good again."""
    async with following(autojump_clock, tmp_path / "c.yaml") as served:
        write(served.path, "scheduler: {hot_window: 7s, eviction: best}\nmodls: {}")
        with pytest.raises(RequestError) as refused:
            await served.reloader.reload("a test")
        problem = refused.value.problem
        assert (problem.code, problem.status, len(problem.detail["faults"])) == ("config_invalid", 422, 2)  # type: ignore[arg-type]  # a list
        assert served.reloader.error == problem.message
        assert served.world.figures == []
        write(served.path, "scheduler: {hot_window: 7s}")
        await served.reloader.reload("a test")
        assert served.reloader.error is None
        assert [settings.scheduler.hot_window_seconds for settings in served.world.figures] == [7.0]
        assert len(served.said) == 2


async def test_a_dry_run_says_what_would_be_and_does_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Neither is it told, nor logged."""
    async with following(autojump_clock, tmp_path / "c.yaml") as served:
        write(served.path, "scheduler: {hot_window: 7s}\nserver: {port: 4}")
        plan = await served.reloader.reload("a test", dry_run=True)
        assert [change.key for change in plan.changes] == ["server.port", "scheduler.hot_window"]
        assert plan.needs_restart == ("server.port",)
        assert (served.said, applied(served), served.world.figures) == ([], [], [])
        assert served.reloader.preview(served.world.read()).changes == plan.changes


async def test_J10_the_file_is_followed_by_what_it_says(autojump_clock: MockClock, tmp_path: Path) -> None:
    """One that is half written ends with the good one; the same again is no change; one that is gone is told."""
    async with following(autojump_clock, tmp_path / "c.yaml") as served, trio.open_nursery() as nursery:
        nursery.start_soon(served.reloader.run)

        async def until(holds: Callable[[], bool]) -> None:
            async with aclosing(cast("AsyncGenerator[object]", served.house.runtime.log.follow(0))) as lines:
                async for _ in lines:
                    if holds():
                        return

        write(served.path, "scheduler: {hot_window")
        await until(lambda: served.reloader.error is not None)
        write(served.path, "scheduler: {hot_window: 9s}")
        await until(lambda: served.reloader.error is None)
        count = served.world.count
        write(served.path, "scheduler: {hot_window: 9s}")
        await trio.sleep(60.0)
        assert (served.world.count, applied(served)[-1]) == (count, ["scheduler.hot_window"])
        served.path.unlink()
        await until(lambda: "No such file" in str(served.reloader.error))
        assert served.reloader.settings.scheduler.hot_window_seconds == 9.0
        nursery.cancel_scope.cancel()


def test_J10_a_change_is_seen_within_two_seconds() -> None:
    """One look, and as many more as wait for a file to stand still."""
    waits = reloading.LOOK_SECONDS + reloading.MOST_LOOKS * reloading.SETTLED_SECONDS
    assert waits <= 1.5  # and half a second for the reload itself


async def test_a_file_that_appears_where_none_was_is_taken(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server began with its defaults."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    source = Source(None, {"XDG_CONFIG_HOME": str(tmp_path / "none")})
    async with serving(autojump_clock) as house:
        world = World(house, source)
        assert (world.look(), source.path) == (None, None)
        (tmp_path / "gridsched.yaml").write_text("scheduler: {hot_window: 9s}", encoding="utf-8")
        assert world.look() is not None
        assert world.read().scheduler.hot_window_seconds == 9.0
        (tmp_path / "gridsched.yaml").unlink()
        assert world.look() is None
        with pytest.raises(reloading.ConfigRefused, match="No such file"):
            world.read()


@pytest.mark.slow
async def test_R2_fifty_streams_of_other_models_are_whole_over_a_reload(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """One model's launch changes, one is new, and so are figures: every byte arrives, and one process is begun anew."""
    plain = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 300}
    async with following(autojump_clock, tmp_path / "c.yaml") as served:
        house = served.house
        alone = await house.ask("POST", CHAT, plain)
        assert (await house.ask("POST", CHAT, plain | {"model": "sim-chat-2b", "max_tokens": 1})).status == 200
        assert len(house.world.engine.processes()) == 2
        lengths: list[tuple[bool, int, bytes]] = []

        async def stream() -> None:
            answer = await house.ask("POST", CHAT, plain, {"X-Gridsched-Comments": "off"})
            lengths.append((answer.complete, answer.body.count(b"data: "), answer.body[-14:]))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(stream)
            await house.until_logged("dispatch", 4)
            write(served.path, "scheduler: {hot_window: 7s, queues: {interactive: {max_length: 99}}}")
            changed = replace(MODELS[2], ctx_size=8192)
            served.world.models = (*MODELS[:2], changed, *MODELS[3:], replace(MODELS[4], name="sim-new"))
            plan = await served.reloader.reload("a test")
            assert plan.restarts == ("sim-chat-2b",)
            rerank = {"model": "sim-new", "query": "a", "documents": ["b"]}
            assert (await house.ask("POST", "/v1/rerank", rerank)).status == 200
        assert lengths == [(True, alone.body.count(b"data: "), b"data: [DONE]\n\n")] * 50
        loads = [line["model"] for line in house.logged("load")]
        assert loads.count("sim-chat-4b") == 1
        assert not [line for line in house.logged("stop") if line["model"] == "sim-chat-4b"]
        assert json.loads((await house.ask("GET", "/v1/models/sim-new")).body)["id"] == "sim-new"


async def test_S9_a_bound_of_the_file_holds_from_the_next_request_on(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A queue of one refuses the second who waits."""
    async with following(autojump_clock, tmp_path / "c.yaml") as served:
        write(served.path, "scheduler: {queues: {interactive: {max_length: 1}}}")
        await served.reloader.reload("a test")
        one = {"model": "sim-chat-12b", "messages": [{"role": "user", "content": "hi"}]}
        statuses: list[int] = []

        async def ask() -> None:
            statuses.append((await served.house.ask("POST", CHAT, one)).status)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ask)
        assert sorted(statuses) == [200, 429, 429, 429]
