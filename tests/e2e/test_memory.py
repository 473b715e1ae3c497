"""Predicted and real memory of real engines in host memory, by component.

The engine here is llama.cpp b10068. Weights, cache and state are the same in the build that the formulas were made on
(b11434); its compute buffer is smaller by one embedding row of a micro-batch, which stands in the bound (4 x ub x E).
"""

import json
from pathlib import Path

import pytest

from gridsched.core.model import DeviceFootprint
from gridsched.devices.headroom import Headroom
from gridsched.devices.host import HostMonitor
from gridsched.engine.find import find_engine
from gridsched.library.read import read_file
from gridsched.vram.geometry import Geometry
from tests.support.gateway import start
from tests.vram.check.__main__ import main
from tests.vram.check.cases import HOST_FLAGS, ON_HOST
from tests.vram.check.files import cut, whole, write
from tests.vram.check.findings import faults, findings
from tests.vram.check.measure import Bench, Case, Measured, measure

pytestmark = pytest.mark.slow

MIB = 1 << 20
BUDGET_BYTES = 4 << 30
Q8 = ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """The engine that a gateway would find, in so much of host memory."""
    return Bench(find_engine(), HostMonitor(BUDGET_BYTES, Headroom()), tmp_path)


def held_to_the_prediction(measured: Measured) -> DeviceFootprint:
    """What is true of every launch: buffers to the rounding of a log line, a bound that holds, a process that takes no
    more than was said, and no less than what cannot be put off. Gives what the engine allocated."""
    assert faults(measured) == []
    (finding,) = findings(measured)
    predicted, allocated, served = finding.predicted, finding.allocated, finding.served
    assert allocated is not None
    assert served is not None
    assert served.held is not None
    assert allocated.compute_bytes <= predicted.compute_bytes
    assert served.held <= predicted.total_bytes
    # Pages of the graph's memory that nothing has been written to yet are not there; everything else is.
    assert served.held >= predicted.total_bytes - predicted.overhead_bytes - predicted.compute_bytes
    assert measured.resident == pytest.approx(served.held, rel=0.02)
    mapped = measured.predicted.mapped_bytes
    assert 0.98 * mapped <= measured.mapped <= mapped + MIB  # the file's header shares the first page
    return allocated


@pytest.mark.parametrize(
    "flags",
    [(), (*HOST_FLAGS, *Q8), (*HOST_FLAGS, "--flash-attn", "off")],
    ids=["plain", "quantized", "no flash attention"],
)
async def test_a_real_model_takes_what_was_predicted(
    bench: Bench, models: tuple[Path, Path], flags: tuple[str, ...]
) -> None:
    """SmolLM2-135M with two slots."""
    geometry = Geometry.from_header(read_file(models[0]).header)
    measured = await measure(bench, Case(models[0], geometry, flags, slots=2, ctx_size=4096))
    allocated = held_to_the_prediction(measured)
    over = measured.predicted.devices[0].compute_bytes - allocated.compute_bytes
    newer_row = 4 * measured.predicted.ubatch * geometry.embedding_length
    assert over <= newer_row + (3 if flags == () else 48) * MIB


async def test_an_embedder_takes_what_was_predicted(bench: Bench, models: tuple[Path, Path]) -> None:
    """MiniLM keeps no cache."""
    geometry = Geometry.from_header(read_file(models[1]).header)
    allocated = held_to_the_prediction(await measure(bench, Case(models[1], geometry, ctx_size=512)))
    assert allocated.kv_bytes == 0


@pytest.mark.parametrize("shape", ON_HOST, ids=[name for name, *_ in ON_HOST])
async def test_a_generated_model_takes_what_was_predicted(
    bench: Bench, tmp_path: Path, shape: tuple[str, int, int]
) -> None:
    """A few blocks of real widths over holes: dense with weights laid out anew, windows, experts, states."""
    path = tmp_path / "generated.gguf"
    geometry = write(cut(*shape), path)
    allocated = held_to_the_prediction(await measure(bench, Case(path, geometry, HOST_FLAGS, slots=2)))
    assert bool(allocated.recurrent_bytes) is any(layer.recurrent for layer in geometry.layers)


def test_the_check_of_a_machine_says_what_each_launch_took_and_what_was_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One launch, because there is no time for more: a table, and everything in bytes in a file."""
    path = tmp_path / "new" / "report.json"
    assert main(["--host", "--models", "Llama", "--seconds", "0", "--report", str(path)]) == 0
    told = json.loads(path.read_text(encoding="utf-8"))
    (launch,) = told["launches"]
    (device,) = launch["devices"]
    assert launch["faults"] == []
    assert abs(device["error_bytes"]["kv"]) < MIB
    assert device["served"]["process_bytes"] == device["predicted"]["total_bytes"] - device["error_bytes"]["total"]
    assert {left["why"] for left in told["left_out"]} == {"there was no time left"}
    assert told["engine"]["path"].endswith("llama-server")
    printed = capsys.readouterr().out
    assert "| Llama-3.2-1B-Q4_K_M-2-blocks |" in printed
    assert "outside of the buffers; 128 are assumed" in printed


def test_E24_a_load_that_host_memory_does_not_carry_is_refused_and_nothing_is_started(tmp_path: Path) -> None:
    """Eight billion parameters in 2 GiB: the arithmetic instead of a process that the kernel would kill."""
    path = tmp_path / "large.gguf"
    geometry = write(whole("Llama-3.1-8B-Q4_K_M"), path)
    config = tmp_path / "gridsched.yaml"
    words = f'devices: {{host_budget: 2GiB}}\nlibrary: {{dirs: []}}\nmodels: {{large: {{path: "{path}"}}}}\n'
    config.write_text(words, encoding="utf-8")
    gateway = start(tmp_path, "--config", str(config))
    try:
        answer = gateway.post("/v1/completions", {"model": "large", "prompt": "x", "max_tokens": 1})
        assert gateway.children() == []
    finally:
        assert gateway.stop() == 0
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (507, "insufficient_vram")
    assert error["gridsched"]["required_bytes"] > geometry.file_bytes
    assert error["gridsched"]["available_bytes"] <= 2 << 30
