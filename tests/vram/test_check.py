"""The check of a machine: the files that it makes, what it tries, what it finds; without launching anything."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceSpec
from gridsched.engine.locate import FoundEngine
from gridsched.library.read import read_file
from gridsched.ports import Backend, DeviceInfo, EngineInfo
from tests.devices.driver import build_library
from tests.vram.check.__main__ import Impossible, _cards
from tests.vram.check.cases import ON_CARDS, ON_HOST, WAYS, cases, lack
from tests.vram.check.files import ONE, cut, whole, write
from tests.vram.check.findings import as_json, faults, outside_by_device, rows
from tests.vram.check.measure import Case, Measured, Process, predict
from tests.vram.models import MIB, real

CARD = DeviceName("gpu0")
CARDS = tuple(DeviceInfo(DeviceSpec(DeviceName(f"gpu{n}"), 24 << 30), "NVIDIA L4", Backend.CUDA, n) for n in (0, 1))


def measured(**changes: float) -> Measured:
    """A launch of a small model that took what was predicted, but for these MiB by component; `outside` is overhead."""
    case = Case(Path("Qwen2.5-1.5B.gguf"), real("Qwen2.5-1.5B-Q4_K_M"))
    predicted = predict(case, CARDS)
    (part,) = predicted.devices
    more = {name: round(changes.get(name, 0) * MIB) for name in ("weights", "kv", "recurrent", "compute")}
    real_parts = {f"{name}_bytes": getattr(part, f"{name}_bytes") + size for name, size in more.items()}
    allocated = replace(part, **real_parts, overhead_bytes=0)
    held = allocated.total_bytes + part.overhead_bytes + round(changes.get("outside", 0) * MIB)
    return Measured(case, predicted, (allocated,), (), (Process(part.device, held, held + MIB),))


@pytest.mark.parametrize("shape", ON_HOST, ids=[name for name, *_ in ON_HOST])
def test_a_cut_model_keeps_its_widths_and_loses_blocks(tmp_path: Path, shape: tuple[str, int, int]) -> None:
    """Layers are those of the whole model, in the same order; the table has the new vocabulary."""
    name, blocks, vocabulary = shape
    geometry, full = write(cut(*shape), tmp_path / "cut.gguf"), real(name)
    assert geometry.layers == full.layers[:blocks]
    assert (geometry.embedding_length, geometry.tied_output) == (full.embedding_length, full.tied_output)
    assert cut(*shape).vocabulary == vocabulary


def test_a_made_file_is_holes_but_for_what_is_divided_by(tmp_path: Path) -> None:
    """It has its true size; the factors of rotations are ones."""
    path = tmp_path / "model.gguf"
    geometry = write(whole("Llama-3.2-1B-Q4_K_M"), path)
    assert path.stat().st_size > geometry.file_bytes > 700 * MIB
    assert path.stat().st_blocks * 512 < 16 * MIB
    factors = next(size for name, _, size in _places(path) if name == "rope_freqs.weight")
    with path.open("rb") as file:
        file.seek(factors)
        assert file.read(8) == ONE * 2


def _places(path: Path) -> list[tuple[str, int, int]]:
    header = read_file(path).header
    return [(tensor.name, tensor.size_bytes, header.data_offset + tensor.offset) for tensor in header.tensors]


def test_every_model_is_tried_plainly_before_any_is_tried_otherwise(tmp_path: Path) -> None:
    """Two cards get a split, experts stay on the host where there are any, an encoder has one way."""
    files = {tmp_path / f"{name}.gguf": real(name) for name in ON_CARDS}
    every = list(cases(files, CARDS, on_host=False))
    assert [case.path.stem for case in every[: len(files)]] == list(ON_CARDS)
    assert {case.path.stem for case in every if "--cpu-moe" in case.flags} == {
        name for name in ON_CARDS if real(name).experts.count
    }
    assert sum(case.devices == 2 for case in every) == len(files) - 1
    assert not any(case.devices == 2 for case in cases(files, CARDS[:1], on_host=False))
    assert len(every) < len(files) * len(WAYS)


def test_what_does_not_fit_beside_what_is_there_is_not_tried() -> None:
    """On the card, or in host memory beside it."""
    case = Case(Path("m.gguf"), real("Qwen3-30B-A3B-Q4_K_M"))
    assert lack(case, CARDS, {CARD: 24 << 30}, 64 << 30) == ""
    assert lack(case, CARDS, {CARD: 8 << 30}, 64 << 30).endswith("GiB on gpu0, which has 8.0 GiB")
    assert lack(replace(case, flags=("--cpu-moe",)), CARDS, {CARD: 8 << 30}, 4 << 30).endswith("of host memory")


def test_a_launch_that_took_what_was_said_has_no_faults() -> None:
    """Its process as the driver told it; the rest is what lies outside of the buffers."""
    good = measured()
    assert faults(good) == []
    assert [row[3:9] for row in rows(good)] == [("+0.00", "+0.00", "+0.00", "+0.00", "1,703", "+0.0%")]
    assert outside_by_device([good, measured(outside=-100)]) == {CARD: (370 * MIB, 470 * MIB)}
    told = as_json(good)
    assert told["faults"] == []
    assert told["flags"] == ["-c", "8192", "-np", "1"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"weights": 1}, "weights: -1.00 MiB on gpu0"),
        ({"kv": -1}, "kv: +1.00 MiB on gpu0"),
        ({"compute": 40, "outside": -40}, "the compute buffer is 40.0 MiB over its bound"),
        ({"outside": 100}, "the process takes 100.0 MiB more than was predicted"),
    ],
)
def test_what_is_not_as_predicted_is_said(changes: dict[str, float], sentence: str) -> None:
    """Buffers to the rounding of a log line, a bound that holds, a process that is not much larger."""
    assert faults(measured(**changes)) == [sentence]


def test_a_process_that_the_driver_does_not_list_is_known_by_what_its_card_grew() -> None:
    """In a container the driver's pids are others'."""
    good = measured()
    hidden = replace(good, served=(replace(good.served[0], held=None),))
    assert hidden.served[0].bytes == good.served[0].bytes + MIB


def test_a_launch_that_failed_says_why_and_a_card_without_a_reading_too() -> None:
    """Never a pass by silence."""
    assert faults(replace(measured(), failure="it died")) == ["it died"]
    assert faults(replace(measured(), served=())) == ["gpu0 gave no reading"]


def test_where_the_engine_can_use_no_nvidia_card_there_is_nothing_to_check() -> None:
    """Without a driver, and with one beside an engine that lists no card."""
    with pytest.raises(Impossible, match="no NVIDIA GPU was found"):
        _cards(FoundEngine(EngineInfo(ok=True, version="b1", backend="cpu")))


TESTS = Path(__file__).parents[1]
ENGINE = """#!/bin/sh
case "$1" in
--list-devices) echo "  CUDA0: NVIDIA L4 (24576 MiB, 24000 MiB free)"; exit ;;
--model) echo "holds 0 compute $$ {held}" >> "$NVML_STORY" ;;
esac
exec {python} {fake} "$@"
"""
"""It tells the driver's stand-in what its process holds, and becomes the engine's."""


@pytest.mark.slow
def test_on_a_card_the_drivers_figures_and_the_engines_lines_are_compared_with_what_was_predicted(
    tmp_path: Path,
) -> None:
    """The whole way through the driver's library and a process of its own, with stand-ins behind both."""
    build_library(tmp_path)
    story, report = tmp_path / "story", tmp_path / "report.json"
    story.write_text(f"card GPU-1 00000000:01:00.0 {24 << 30} 0 {1 << 30} NVIDIA L4\n", encoding="utf-8")
    (part,) = predict(Case(Path("m"), real("Qwen2.5-1.5B-Q4_K_M")), CARDS).devices
    sizes = {"model": part.weights_bytes, "KV": part.kv_bytes, "compute": part.compute_bytes - 2 * MIB}
    lines = [f"x: CUDA0 {name} buffer size = {size / MIB:.2f} MiB" for name, size in sizes.items()]
    held = part.total_bytes - 50 * MIB
    engine = tmp_path / "llama-server"
    engine.write_text(
        ENGINE.format(held=held, python=sys.executable, fake=TESTS / "support" / "fake_llama_server.py"),
        encoding="utf-8",
    )
    engine.chmod(0o755)
    words = ["--engine", engine, "--models", "Qwen2.5", "--seconds", "0", "--report", report]
    outside = {"LD_LIBRARY_PATH": str(tmp_path), "NVML_STORY": str(story)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.vram.check", *words],
        cwd=TESTS.parent,
        env={**os.environ, **outside, "FAKE_LLAMA": json.dumps({"print_lines": lines})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(report.read_text(encoding="utf-8"))
    (launch,) = told["launches"]
    (device,) = launch["devices"]
    assert device["served"]["process_bytes"] == held
    assert device["error_bytes"]["total"] == 50 * MIB
    assert device["error_bytes"]["compute"] == pytest.approx(2 * MIB, abs=MIB // 100)
    assert told["devices"][0]["card"] == "NVIDIA L4"
    assert "gpu0 (NVIDIA L4): 422 to 422 MiB outside of the buffers; 470 are assumed" in done.stdout
