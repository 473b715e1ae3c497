"""Gateways for the faults, and the check behind every test here: nothing may be left that should not be."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.faults.bench import Bench, Served, begin, own_children, serve, settle

Start = Callable[..., Bench]


@pytest.fixture(scope="session")
def benches() -> Iterator[list[Bench]]:
    """The gateways that run now; when the last has been stopped, nothing of it is left either."""
    running: list[Bench] = []
    yield running
    assert [sentence for bench in running for sentence in settle(bench)] == []


@pytest.fixture(autouse=True)
def nothing_is_left(benches: list[Bench]) -> Iterator[None]:
    """After each test, whatever it did: no work in flight, no memory booked for nobody, no stray process or file."""
    before = {*own_children(set()), *(bench.gateway.process.pid for bench in benches)}
    yield
    wrong = [f"{bench.folder.name}: {sentence}" for bench in benches for sentence in settle(bench)]
    benches[:] = [bench for bench in benches if bench.gateway.process.poll() is None]
    known = before | {bench.gateway.process.pid for bench in benches}
    wrong += [f"the test has left a child: {pid}" for pid in own_children(known)]
    assert wrong == []


@pytest.fixture
def start(benches: list[Bench], tmp_path: Path) -> Iterator[Start]:
    """Starts gateways for one test, which are stopped behind it; called again, the same one anew."""
    begun: list[Bench] = []

    def begin_one(
        models: Mapping[str, Served] | None = None,
        settings: Mapping[str, Mapping[str, object]] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Bench:
        bench = begin(tmp_path, env) if models is None else serve(tmp_path, models, settings=settings, env=env)
        begun.append(bench)
        benches.append(bench)
        return bench

    yield begin_one
    for bench in begun:
        bench.gateway.stop()
