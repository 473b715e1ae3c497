"""Loads models with the real engine, reads what they take and compares: `python -m tests.vram.check [--engine PATH]`.

On the machine's NVIDIA cards, or with `--host` in host memory. It needs no network and no models, ends no process but
its own, leaves out what does not fit beside what is running, and stops in time. Leaves with 0 if every launch was as
predicted, 1 if not, 2 if nothing could be launched.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from gridsched import __version__
from gridsched.core.ids import DeviceName
from gridsched.devices.choice import Wanted
from gridsched.devices.discover import find_cards
from gridsched.devices.headroom import Headroom
from gridsched.devices.host import HostMonitor, default_budget_bytes
from gridsched.devices.nvml import driver_version
from gridsched.devices.procfs import MemoryUnreadable, available_bytes
from gridsched.engine.cards import match
from gridsched.engine.find import find_engine
from gridsched.engine.locate import FoundEngine
from gridsched.ports import DeviceInfo, DeviceMonitor
from gridsched.vram.overhead import overhead
from tests.vram.check import findings
from tests.vram.check.cases import cases, descriptions, lack
from tests.vram.check.files import write
from tests.vram.check.measure import Bench, Case, Measured, measure
from tests.vram.report import markdown

MIB = 1 << 20
SECONDS = 1200.0
LEAST_FREE_BYTES = 512 * MIB
"""What stays free of a card at least: an estimate may be short, and the card is somebody's screen."""

NOTHING = 2
NO_CARD = "no NVIDIA GPU was found: this check is for a machine that has one; --host does the same in host memory"


class Impossible(Exception):
    """Nothing can be launched; the sentence says why."""


@dataclass(slots=True)
class Run:
    """What came of it so far."""

    done: list[Measured] = field(default_factory=list)
    left_out: list[tuple[Case, str]] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    asked = _parser().parse_args(arguments)
    run = Run()
    try:
        found = _engine(asked.engine)
        monitor = _host() if asked.host else _cards(found)
        with tempfile.TemporaryDirectory(prefix="gridsched-check-", dir=asked.folder) as name:
            bench = Bench(found, monitor, Path(name))
            try:
                trio.run(_launch_all, bench, run, asked)
            except KeyboardInterrupt:
                sys.stderr.write("interrupted: what was measured so far is reported\n")
        _report(bench, run, asked.report)
    except (Impossible, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return NOTHING
    return 0 if run.done and not any(map(findings.faults, run.done)) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.vram.check", description="Predicted against measured memory, with real launches."
    )
    parser.add_argument("--engine", metavar="PATH", help="the llama-server to use (default: as gridsched finds it)")
    parser.add_argument("--host", action="store_true", help="in host memory, where there is no GPU")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="begin no more launches after so long (1200)")
    parser.add_argument("--models", default="", metavar="A,B", help="only models with one of these in their name")
    parser.add_argument("--folder", metavar="DIR", help="where the model files are made, which are holes")
    parser.add_argument("--report", type=Path, default=Path("build/gpu-check.json"), metavar="F.json")
    return parser


def _engine(configured: str | None) -> FoundEngine:
    found = find_engine(configured)
    if not found.info.ok:
        raise Impossible(found.info.problem)
    return found


def _host() -> DeviceMonitor:
    try:
        return HostMonitor(default_budget_bytes(), Headroom())
    except MemoryUnreadable as error:
        raise Impossible(str(error)) from error


def _cards(found: FoundEngine) -> DeviceMonitor:
    """The cards that the engine can compute on."""
    monitor, notes = find_cards(Wanted(), lambda infos: match(infos, found.devices).backends)
    if monitor is None:
        raise Impossible("\n".join((*notes, NO_CARD)))
    return monitor


async def _launch_all(bench: Bench, run: Run, asked: argparse.Namespace) -> None:
    files, names = {}, []
    for description in descriptions(on_host=asked.host):
        names.append(description.name)
        if any(word in description.name for word in asked.models.split(",")):
            path = bench.folder / f"{description.name}.gguf"
            files[path] = write(description, path)
    if not files:
        raise Impossible(f"--models {asked.models}: no model of this check has that in its name ({', '.join(names)})")
    planned = list(cases(files, bench.devices, on_host=asked.host))
    end = trio.current_time() + asked.seconds
    for place, case in enumerate(planned, start=1):
        late = run.done and trio.current_time() >= end
        why = "there was no time left" if late else await _lack(bench, case, on_host=asked.host)
        if why:
            run.left_out.append((case, why))
        else:
            run.done.append(await measure(bench, case))
        said = (why and f"left out: {why}") or "; ".join(findings.faults(run.done[-1])) or "as predicted"
        sys.stderr.write(f"{place}/{len(planned)} {case.path.stem} {' '.join(case.words)}: {said}\n")


async def _lack(bench: Bench, case: Case, *, on_host: bool) -> str:
    """Why a case does not fit into what is free now."""
    usable = {}
    for read in await bench.monitor.read({}):
        kept = 0 if on_host else max(LEAST_FREE_BYTES, read.total_bytes // 20)
        usable[read.device] = read.total_bytes - read.used_bytes - kept
    return lack(case, bench.devices, usable, available_bytes() * 4 // 5)


# --- what came of it --------------------------------------------------------------------------------------------


def _report(bench: Bench, run: Run, path: Path) -> None:
    """The table for a person, and the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_as_json(bench, run), indent=1) + "\n", encoding="utf-8")
    table = [findings.HEAD, *(row for measured in run.done for row in findings.rows(measured))]
    title = "Predicted less real, MiB: buffers as the engine tells of them, the process as measured"
    sys.stdout.write(f"{markdown(title, list(table))}\n")
    for device, (least, most) in findings.outside_by_device(run.done).items():
        info = next(info for info in bench.devices if info.spec.name == device)
        assumed = _assumed(info)
        sys.stdout.write(
            f"{device} ({info.label}): {least / MIB:,.0f} to {most / MIB:,.0f} MiB outside of the buffers;"
            f" {assumed / MIB:,.0f} are assumed\n"
        )
    if run.left_out:
        sys.stdout.write(f"{len(run.left_out)} launches were left out; the report says why\n")
    sys.stdout.write(f"{path}\n")


def _assumed(info: DeviceInfo) -> int:
    return overhead(info.backend.value, info.label, info.spec.total_bytes).bytes


def _as_json(bench: Bench, run: Run) -> Mapping[str, object]:
    engine = bench.engine.info
    return {
        "gridsched": __version__,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "engine": {"path": engine.path, "version": engine.version, "backend": engine.backend},
        "machine": {"system": platform.platform(), "processors": os.cpu_count(), "driver": driver_version()},
        "devices": [
            {
                "device": info.spec.name,
                "card": info.label,
                "backend": info.backend.value,
                "total_bytes": info.spec.total_bytes,
                "capability": info.capability,
                "assumed_outside_bytes": _assumed(info),
            }
            for info in bench.devices
        ],
        "outside_bytes": _outside(run.done),
        "launches": [findings.as_json(measured) for measured in run.done],
        "left_out": [{"model": case.path.stem, "flags": list(case.words), "why": why} for case, why in run.left_out],
    }


def _outside(done: Sequence[Measured]) -> Mapping[DeviceName, Sequence[int]]:
    return {device: list(sizes) for device, sizes in findings.outside_by_device(done).items()}


if __name__ == "__main__":
    sys.exit(main())
