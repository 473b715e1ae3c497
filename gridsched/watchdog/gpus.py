"""What the graphics cards say, by whatever this machine has: nvidia-smi, the amdgpu driver's files, else host memory.

Must never fail and never hang: a driver that has died takes its tools with it, which is when somebody asks.
"""

import csv
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridsched.watchdog.commands import CannotRun, Commands

SECONDS = 5.0
_CARD = "index,name,uuid,memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu"
_PROCESS = "gpu_uuid,pid,process_name,used_memory"
DRM = Path("/sys/class/drm")
MEMINFO = Path("/proc/meminfo")


def gpu_status(commands: Commands, drm: Path = DRM, meminfo: Path = MEMINFO) -> dict[str, Any]:
    """Cards, the processes on them, and the host's memory; what could not be asked is said under `notes`."""
    notes: list[str] = []
    said: dict[str, Any] = {"cards": [], "processes": [], "source": "", "host_memory": host_memory(meminfo)}
    try:
        said["cards"] = _query(commands, f"--query-gpu={_CARD}", _CARD)
        said["source"] = "nvidia-smi"
        said["processes"] = _query(commands, f"--query-compute-apps={_PROCESS}", _PROCESS)
    except (CannotRun, csv.Error) as error:
        notes.append(str(error))
    if not said["cards"] and (cards := amd_cards(drm)):
        said |= {"cards": cards, "source": "amdgpu"}
    if not said["cards"]:
        notes.append("no card answers; what there is of host memory is under host_memory")
    return said | {"notes": notes}


def amd_cards(drm: Path) -> list[dict[str, Any]]:
    """The cards of the amdgpu driver."""
    found = []
    for total in sorted(drm.glob("card[0-9]*/device/mem_info_vram_total")):
        used, total_bytes = _number(total.with_name("mem_info_vram_used")), _number(total)
        if total_bytes is not None:
            found.append({"name": total.parents[1].name, "total_bytes": total_bytes, "used_bytes": used})
    return found


def host_memory(meminfo: Path) -> dict[str, int]:
    """Total and available, in bytes."""
    said = {}
    with suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable", "SwapFree"):
                said[name] = int(value.split()[0]) * 1024
    return said


def _query(commands: Commands, query: str, fields: str) -> list[dict[str, Any]]:
    """Rows of nvidia-smi. Raises CannotRun, also where it fails: then its own words are the reason."""
    ran = commands.run(("nvidia-smi", query, "--format=csv,noheader,nounits"), SECONDS)
    if ran.code != 0:
        raise CannotRun(f"nvidia-smi has failed ({ran.code}): {ran.output.strip()[-500:]}")
    names = [name.replace("memory", "memory_mib").replace(".", "_") for name in fields.split(",")]
    rows = csv.reader(io.StringIO(ran.output), skipinitialspace=True)
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
