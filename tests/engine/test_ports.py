"""P1, B13, B30: an engine that cannot listen at a Unix socket, served at a port of the loopback address."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import pytest
import trio
import trio.testing

from gridsched.core.events import FailureCause, InstanceExited, InstanceReady
from gridsched.engine.address import Port, free_port
from gridsched.engine.find import find_engine, how_it_listens
from gridsched.engine.locate import FoundEngine
from gridsched.engine.phases import Phase
from gridsched.engine.upstream import open_answer
from tests.engine.conftest import FAKE, ONE, PATIENCE_SECONDS, Bench, make_bench
from tests.engine.test_find import fake

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("leak_free")]  # every test starts processes


@pytest.fixture
def at_ports(fake_engine: FoundEngine, tmp_path: Path) -> Callable[..., Bench]:
    """Benches with an engine that knows ports only; which ones, in their order, is taken from a list."""

    def make(numbers: list[int]) -> Bench:
        found = replace(fake_engine, unix_socket=False)
        return make_bench(found, tmp_path, choose_port=lambda: numbers.pop(0))

    return make


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which another program listens, and answers nothing yet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):
            server.accept()  # nobody has even asked it


async def status_of(port: Port) -> int:
    """What a request to that port is answered."""
    async with open_answer(port, "GET", "/slots", (), b"") as answer:
        return answer.status


async def test_P1_an_engine_without_sockets_is_served_at_a_port_that_asks_for_a_key(
    at_ports: Callable[..., Bench],
) -> None:
    """Reachable from this machine only, and of those who are on it only by who knows the key."""
    bench = at_ports([free_port()])
    async with bench.running(bench.launch()):
        port = bench.engine.endpoint(ONE)
        assert isinstance(port, Port)
        assert await bench.upstream.busy_slots(ONE) == 0
        assert await status_of(port) == HTTPStatus.OK
        assert await status_of(Port(port.number)) == HTTPStatus.UNAUTHORIZED
    (argv,), (env,) = bench.records("argv"), bench.records("env")
    assert isinstance(argv, list)
    assert isinstance(env, dict)
    assert (argv[argv.index("--host") + 1], argv[argv.index("--port") + 1]) == ("127.0.0.1", str(port.number))
    assert port.key not in " ".join(argv)
    assert env["LLAMA_API_KEY"] == port.key
    assert bench.exit() == InstanceExited(ONE, None)


@pytest.mark.parametrize("start_delay_seconds", [0.0, 0.3])
async def test_B13_another_programs_port_is_never_ready_and_another_is_tried(
    at_ports: Callable[..., Bench], taken: int, start_delay_seconds: float
) -> None:
    """In the same start; whether the engine finds that out first (address in use), or we do."""
    numbers = [taken, taken, free := free_port(), 9]
    bench = at_ports(numbers)
    async with bench.running(bench.launch(start_delay_seconds=start_delay_seconds)):
        port = bench.engine.endpoint(ONE)
        assert isinstance(port, Port)
        assert port.number == free
    assert numbers == [9]
    assert [type(event) for event in bench.events] == [InstanceReady, InstanceExited]


async def test_B13_a_machine_of_taken_ports_is_a_failed_start(at_ports: Callable[..., Bench], taken: int) -> None:
    """After some tries, with the reason."""
    numbers = [taken] * 9
    bench = at_ports(numbers)
    failure = (await bench.run_to_the_end(bench.launch())).failure
    assert failure is not None
    assert failure.cause is FailureCause.CRASHED
    assert "ddress already in use" in failure.message or f"another program listens at port {taken}" in failure.message
    assert len(numbers) == 9 - 5


async def test_B13_who_is_told_to_stop_tries_no_other_port(
    fake_engine: FoundEngine, tmp_path: Path, taken: int
) -> None:
    """It ends, and that is no failure."""
    bench: Bench
    asked: list[int] = []

    def choose() -> int:
        asked.append(taken)
        if len(asked) == 2:
            bench.engine.stop(ONE)
        return taken

    bench = make_bench(replace(fake_engine, unix_socket=False), tmp_path, choose_port=choose)
    assert (await bench.run_to_the_end(bench.launch())).failure is None
    assert len(asked) == 2


async def test_B13_who_is_told_to_stop_while_a_port_is_given_up_tries_no_other(
    at_ports: Callable[..., Bench], taken: int
) -> None:
    """Between the giving up and the end there is time to be told."""
    numbers = [taken] * 9
    bench = at_ports(numbers)
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.engine.run, ONE, bench.launch(), bench.post)
            await trio.testing.wait_all_tasks_blocked()
            life = bench.engine._lives[ONE]
            while life.phase is not Phase.FAILING:
                await trio.lowlevel.checkpoint()
            left = len(numbers)
            bench.engine.stop(ONE)
    assert len(numbers) == left
    assert bench.exit().failure is not None


async def test_B30_no_port_is_held_for_a_process_that_is_gone(at_ports: Callable[..., Bench]) -> None:
    """The one port there is serves one process after the other, killed ones too."""
    number = free_port()
    bench = at_ports([number] * 3)
    for turn in range(3):
        bench.events.clear()
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bench.engine.run, ONE, bench.launch(), bench.post)
                await bench.wait_for(InstanceReady)
                port = bench.engine.endpoint(ONE)
                assert isinstance(port, Port)
                assert port.number == number
                if turn % 2:
                    bench.engine.stop(ONE)
                else:
                    os.kill(bench.engine.processes()[ONE], signal.SIGKILL)


def test_P1_the_trial_finds_out_that_an_engine_knows_no_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the socket, serves at a port, and is taken so."""
    monkeypatch.setenv("FAKE_LLAMA", '{"no_unix_socket": true}')
    found = find_engine(str(fake(tmp_path)))
    assert found.info.ok, found.info.problem
    assert not found.unix_socket
    (note,) = how_it_listens(found)
    assert "with a key" in note
    (note,) = how_it_listens(replace(found, options={}))
    assert "any program here may ask" in note


def test_P1_an_engine_that_knows_sockets_is_served_at_one(tmp_path: Path) -> None:
    """A port is only the second choice."""
    assert FAKE.exists()
    found = find_engine(str(fake(tmp_path)))
    assert found.unix_socket
    assert how_it_listens(found) == ()
