"""Section D, and what of B needs cards: a gateway over a stand-in driver that says what a test wants it to."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.devices.driver import NOT_SUPPORTED, UNKNOWN_ERROR
from tests.faults.bench import GIB, Bench, Served, Status, serve
from tests.faults.cards import Card, Driver
from tests.faults.conftest import Start

pytestmark = pytest.mark.slow

SMALL = Card("GPU-small", "NVIDIA Small", "01", 8 * GIB, reserved_bytes=GIB // 2)
BIG = Card("GPU-big", "NVIDIA Big", "41", 24 * GIB, used_bytes=GIB)
MODELS = {
    "d8": Served(weights_bytes=12 * GIB),
    "d10": Served(weights_bytes=11 * GIB),
    "b21": Served(weights_bytes=16 * GIB),
    "b21next": Served(weights_bytes=15 * GIB),
    "b16": Served(weights_bytes=4 * GIB),
    "b16silent": Served(weights_bytes=4 * GIB),
    "d13": Served(weights_bytes=2 * GIB),
    "beside": Served(weights_bytes=8 * GIB),
}


@dataclass
class Machine:
    """A gateway and its driver."""

    bench: Bench
    driver: Driver

    def device(self, name: str) -> Status:
        """One card, as the gateway tells of it."""
        (found,) = (card for card in self.bench.status()["devices"] if card["name"] == name)
        return dict(found)

    def hold(self, model: str, size_bytes: int, **switches: object) -> None:
        """What a model's engine holds of its card."""
        self.bench.tell(model, card_bytes=size_bytes, **switches)


@pytest.fixture(scope="module")
def machine(benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A small card and a big one, in the order of their addresses; the engine lists them in the same."""
    folder = tmp_path_factory.mktemp("cards")
    driver = Driver(folder, SMALL, BIG)
    bench = serve(folder, MODELS, settings={"scheduler": {"fit_wait": "3s"}}, env=driver.env)
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
    machine.hold("d8", 13 * GIB)
    assert machine.bench.chat("d8").status == 200
    (env,) = machine.bench.recorded("d8", "env")
    assert (env["CUDA_DEVICE_ORDER"], env["CUDA_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", BIG.uuid)
    assert machine.bench.until_event("measure", "d8")["measured_bytes"] == {"gpu1": 13 * GIB}


def test_B21_a_load_that_failed_holds_nothing(machine: Machine) -> None:
    """B21: its memory is free at its end, so the next finds room and nobody has to go for it."""
    machine.hold("b21", 16 * GIB, start_delay_seconds=0.2, exit_at="start")
    machine.hold("b21next", 15 * GIB)
    assert machine.bench.chat("b21").error["code"] == "model_failed"
    evicted = len(machine.bench.events("evict"))
    assert machine.bench.chat("b21next").status == 200
    assert len(machine.bench.events("evict")) == evicted


def test_D10_memory_that_outlives_its_process_evicts_nobody(machine: Machine) -> None:
    """D10: right after an end it is what comes back, not a program of somebody else's: who waits for it gets it, and
    nobody goes for it. Where it stays, it is planned around, and shown."""
    bench, driver = machine.bench, machine.driver
    size_bytes = 11 * GIB + GIB // 2
    machine.hold("beside", 8 * GIB + GIB // 2)
    machine.hold("d10", size_bytes)
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


@pytest.mark.parametrize(
    ("model", "held_bytes", "lines"),
    [
        ("b16", GIB // 8, []),
        ("b16silent", 0, ["warning: no usable GPU found, --gpu-layers option will be ignored"]),
    ],
    ids=["the driver tells", "the engine tells"],
)
def test_B16_an_engine_that_computes_on_the_processor_is_a_failed_load(
    machine: Machine, model: str, held_bytes: int, lines: list[str]
) -> None:
    """B16: it answers, and holds next to nothing or says so itself: the estimate stands, and nobody tries on and on."""
    machine.hold(model, held_bytes, print_lines=lines)
    for _ in range(3):
        refused = machine.bench.chat(model)
        assert (refused.status, refused.error["code"]) == (503, "model_failed")
        assert refused.error["gridsched"]["cause"] == "cpu_fallback"
    assert machine.bench.starts(model) == 1
    assert not machine.bench.events("measure", model)


@pytest.mark.parametrize("tells", ["unknown", "unlisted"])
def test_D2_D4_a_process_of_which_the_driver_does_not_tell_is_measured_by_the_difference(
    start: Start, tmp_path: Path, tells: str
) -> None:
    """D2, D4: a figure that is missing, or a process that is not listed at all: what the card's use grew by is its own,
    never 0, never 16 EiB, and never a program of somebody else's."""
    driver = Driver(tmp_path, BIG)
    machine = Machine(start({"m": Served(weights_bytes=3 * GIB)}, env=driver.env), driver)
    machine.hold("m", 3 * GIB + GIB // 4, card_tells=tells)
    assert machine.bench.chat("m").status == 200
    measured = machine.bench.until_event("measure", "m")
    assert (measured["measured_bytes"], measured["by_difference"]) == ({"gpu0": 3 * GIB + GIB // 4}, ["gpu0"])
    assert machine.device("gpu0")["external_bytes"] == BIG.used_bytes


def test_D7_a_board_whose_memory_is_the_hosts_serves_with_a_configured_size(start: Start, tmp_path: Path) -> None:
    """D7: the driver does not tell its memory. What is planned, used and shown is of the size that was given."""
    driver = Driver(tmp_path, BIG)
    driver.tell(f"fails 0 memory {NOT_SUPPORTED}")
    given = {"devices": {"total": {BIG.uuid: "4GiB"}}}
    machine = Machine(start({"m": Served(weights_bytes=GIB)}, given, driver.env), driver)
    machine.hold("m", GIB + GIB // 8)
    assert machine.bench.chat("m").status == 200
    assert machine.bench.until_event("measure", "m")["measured_bytes"] == {"gpu0": GIB + GIB // 8}
    card = machine.device("gpu0")
    assert card["total_bytes"] == 4 * GIB
    assert card["used_bytes"] >= GIB + GIB // 8
    page = machine.bench.ask("/metrics").body.decode()
    assert 'gridsched_device_memory_bytes{device="gpu0",kind="total"} 4.294967296e+09' in page


def test_D13_a_process_whose_device_fails_is_started_anew_and_nobody_is_told(machine: Machine) -> None:
    """D13: it answers every request with the device's error; who waits is served by the next one."""
    machine.hold("d13", 3 * GIB)
    assert machine.bench.chat("d13").status == 200
    os.kill(machine.bench.pid("d13"), signal.SIGUSR1)
    assert machine.bench.chat("d13").status == 200
    assert machine.bench.starts("d13") == 2
    assert "d13" not in machine.bench.status()["failed"]


def test_D6_a_lost_driver_stops_loads_and_nothing_else(machine: Machine) -> None:
    """D6: what is loaded serves on; a load is refused with when it was lost; one line for each card, not for each poll;
    and when the driver is back, so are the loads."""
    bench, driver = machine.bench, machine.driver
    machine.hold("d8", 13 * GIB)
    machine.hold("b21next", 15 * GIB)
    assert bench.chat("d8").status == 200
    driver.tell(f"driver {UNKNOWN_ERROR}", *(f"fails {card} memory {UNKNOWN_ERROR}" for card in (0, 1)))
    bench.until(lambda: not machine.device("gpu1")["available"], "it is seen to be lost")
    assert machine.device("gpu1")["unavailable_since"]
    assert bench.chat("d8").status == 200
    refused = bench.chat("b21next")
    assert (refused.status, refused.error["code"]) == (503, "gpu_unavailable")
    assert "gpu1" in refused.error["message"]
    assert int(refused.headers["retry-after"]) > 0
    driver.tell()
    bench.until(lambda: machine.device("gpu1")["available"], "it is seen to be back")
    assert bench.chat("b21next").status == 200
    told = bench.gateway.log.read_text(encoding="utf-8").splitlines()
    assert len([line for line in told if "gpu1" in line and "Unknown Error" in line]) == 1


def test_D6_a_driver_that_does_not_answer_at_the_start_is_told_of_as_long_as_its_cards_are_not_used(
    start: Start, tmp_path: Path
) -> None:
    """D6: after an update of the driver, say. Models are served by the processor, and whoever asks how the server is
    learns that they are, why, and what ends it; not only who looks into its output."""
    driver = Driver(tmp_path, BIG)
    driver.tell(f"driver {UNKNOWN_ERROR}")
    bench = start({"m": Served()}, env=driver.env)
    health = bench.ask("/health").json
    assert [device["name"] for device in health["devices"]] == ["host"]
    assert health["boot"]["error"] == (
        "The NVIDIA driver does not answer: Unknown Error. Restart the server once that is mended."
    )
