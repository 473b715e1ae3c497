"""Section D, and what of B needs cards: a gateway over a stand-in driver that says what a test wants it to."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from tests.faults.bench import GIB, Bench, Served, serve
from tests.faults.cards import Card, Driver

pytestmark = pytest.mark.slow

SMALL = Card("GPU-small", "NVIDIA Small", "01", 8 * GIB, reserved_bytes=GIB // 2)
BIG = Card("GPU-big", "NVIDIA Big", "41", 24 * GIB, used_bytes=GIB)
MODELS = {
    "d8": Served(weights_bytes=12 * GIB),
    "d10": Served(weights_bytes=11 * GIB),
    "b21": Served(weights_bytes=16 * GIB),
    "b21next": Served(weights_bytes=15 * GIB),
    "beside": Served(weights_bytes=8 * GIB),
}


@dataclass
class Machine:
    """A gateway and its driver."""

    bench: Bench
    driver: Driver

    def device(self, name: str) -> dict[str, int]:
        """One card, as the gateway tells of it."""
        (found,) = (card for card in self.bench.status()["devices"] if card["name"] == name)
        return dict(found)

    def hold(self, model: str, card: int, size_bytes: int, **switches: object) -> None:
        """What a model's engine holds, and where."""
        self.bench.tell(model, card=card, card_bytes=size_bytes, **switches)


@pytest.fixture(scope="module")
def machine(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A small card and a big one, in the order of their addresses; the engine lists them in the same."""
    folder = tmp_path_factory.mktemp("cards")
    driver = Driver(folder, SMALL, BIG)
    bench = serve(folder, MODELS, env=driver.env)
    benches.append(bench)
    yield Machine(bench, driver)
    assert bench.gateway.stop() == 0


def test_D1_what_the_driver_keeps_for_itself_is_no_program_of_somebody_elses(machine: Machine) -> None:
    """D1: it is not there to be planned, and is not counted as used."""
    card = machine.device("gpu0")
    assert card["total_bytes"] == SMALL.total_bytes - SMALL.reserved_bytes
    assert card["external_bytes"] == 0
    assert machine.device("gpu1")["external_bytes"] == BIG.used_bytes


def test_D8_a_model_computes_on_the_card_that_it_was_planned_on(machine: Machine) -> None:
    """D8: by its UUID, in the order of the bus, which is hexadecimal; and it is measured where it was planned."""
    machine.hold("d8", 1, 13 * GIB)
    assert machine.bench.chat("d8").status == 200
    (env,) = machine.bench.recorded("d8", "env")
    assert (env["CUDA_DEVICE_ORDER"], env["CUDA_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", BIG.uuid)
    assert machine.bench.until_event("measure", "d8")["measured_bytes"] == {"gpu1": 13 * GIB}


def test_B21_a_load_that_failed_holds_nothing(machine: Machine) -> None:
    """B21: its memory is free at its end, so the next finds room and nobody has to go for it."""
    machine.hold("b21", 1, 16 * GIB, start_delay_seconds=0.2, exit_at="start")
    machine.hold("b21next", 1, 15 * GIB)
    assert machine.bench.chat("b21").error["code"] == "model_failed"
    evicted = len(machine.bench.events("evict"))
    assert machine.bench.chat("b21next").status == 200
    assert len(machine.bench.events("evict")) == evicted


def test_D10_memory_that_outlives_its_process_evicts_nobody(machine: Machine) -> None:
    """D10: right after an end it is what comes back, not a program of somebody else's: who waits for it gets it, and
    nobody goes for it. Where it stays, it is planned around, and shown."""
    bench, driver = machine.bench, machine.driver
    size_bytes = 11 * GIB + GIB // 2
    machine.hold("beside", 1, 8 * GIB + GIB // 2)
    machine.hold("d10", 1, size_bytes)
    assert [bench.chat(model).status for model in ("beside", "d10")] == [200, 200]
    bench.until_event("measure", "d10")
    beside = bench.pid("beside")
    ghost = (SMALL, replace(BIG, used_bytes=BIG.used_bytes + size_bytes))
    die(machine, "d10", ghost)
    with ThreadPoolExecutor() as pool:
        again = pool.submit(bench.chat, "d10")
        bench.until_event("released", "d10")
        driver.tell()
        assert again.result().status == 200
    die(machine, "d10", ghost)
    bench.until(lambda: machine.device("gpu1")["external_bytes"] == ghost[1].used_bytes, "it is shown")
    assert bench.ask("/api/models/d10/plan").json["refusal"]["code"] == "insufficient_vram"
    driver.tell()
    bench.until(lambda: machine.device("gpu1")["external_bytes"] == BIG.used_bytes, "it is seen to be back")
    assert bench.pid("beside") == beside


def die(machine: Machine, model: str, cards: tuple[Card, ...]) -> None:
    """Kill a model's process; its card says then what `cards` say."""
    machine.driver.tell(cards=cards)
    pid = machine.bench.pid(model)
    os.kill(pid, signal.SIGKILL)
    machine.bench.until(lambda: not machine.bench.pids(model), "it is dead")
