"""What the launches say of the estimates: errors by component, what lies outside of the buffers, and a verdict.

Owns the arithmetic, the JSON and the table. Bytes in JSON, MiB in the table; an error is what was predicted less what
is. Must never run anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from gridsched.core.ids import DeviceName
from gridsched.core.measuring import BUFFERS, TOTAL, errors, outside_bytes
from gridsched.core.model import DeviceFootprint
from tests.vram.check.measure import Measured, Process

MIB = 1 << 20
EXACT = ("weights", "kv", "recurrent")
ROUNDING_BYTES = 64 * 1024
"""Log lines have hundredths of a MiB, and a component may be the sum of some of them."""

MOST_UNDER = 0.03
"""A process may be this part over its estimate: overhead differs by card, until the first load is measured."""

COMPUTE_UNDER = 0.01
"""The compute bound may be short of the truth by this part of everything on the device."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One device of one launch."""

    predicted: DeviceFootprint
    allocated: DeviceFootprint | None
    served: Process | None

    @property
    def errors(self) -> Mapping[str, int]:
        """Predicted less real by component, as the gateway tells them of a load; empty where nothing was read."""
        if self.served is None:
            return {}
        return errors(self.predicted, self.served.bytes, self.allocated)

    @property
    def outside_bytes(self) -> int | None:
        """What the process takes beside the buffers that it tells of."""
        if self.allocated is None or self.served is None:
            return None
        return outside_bytes(self.served.bytes, self.allocated)

    @property
    def faults(self) -> Iterator[str]:
        """What is not as it should be."""
        if self.served is None:
            yield f"{self.predicted.device} gave no reading"
            return
        gaps = self.errors
        for name in EXACT:
            if abs(gaps.get(name, 0)) > ROUNDING_BYTES:
                yield f"{name}: {gaps[name] / MIB:+.2f} MiB on {self.predicted.device}"
        if gaps.get("compute", 0) < -COMPUTE_UNDER * self.predicted.total_bytes:
            yield f"the compute buffer is {-gaps['compute'] / MIB:.1f} MiB over its bound"
        if gaps[TOTAL] < -MOST_UNDER * self.served.bytes:
            yield f"the process takes {-gaps[TOTAL] / MIB:.1f} MiB more than was predicted"


def findings(measured: Measured) -> list[Finding]:
    """By device of the launch, in its order."""
    allocated = {part.device: part for part in measured.allocated}
    served = {process.device: process for process in measured.served}
    return [Finding(part, allocated.get(part.device), served.get(part.device)) for part in measured.predicted.devices]


def faults(measured: Measured) -> list[str]:
    """Why a launch is no good, in sentences."""
    if measured.failure:
        return [measured.failure]
    return [fault for finding in findings(measured) for fault in finding.faults]


def as_json(measured: Measured) -> dict[str, object]:
    """One launch, in bytes."""
    case = measured.case
    return {
        "model": case.path.stem,
        "architecture": case.geometry.architecture,
        "flags": list(case.words),
        "load_seconds": round(measured.seconds, 2),
        "failure": measured.failure or None,
        "faults": faults(measured),
        "host": {
            "predicted": asdict(measured.predicted.host) | {"total_bytes": measured.predicted.host.total_bytes},
            "resident_bytes": measured.resident,
            "mapped_resident_bytes": measured.mapped,
        },
        "devices": [
            {
                "device": finding.predicted.device,
                "predicted": asdict(finding.predicted) | {"total_bytes": finding.predicted.total_bytes},
                "allocated": asdict(finding.allocated) if finding.allocated else None,
                "loaded": _figures(measured.loaded, finding.predicted.device),
                "served": _figures(measured.served, finding.predicted.device),
                "outside_bytes": finding.outside_bytes,
                "error_bytes": dict(finding.errors),
            }
            for finding in findings(measured)
        ],
    }


def _figures(processes: Sequence[Process], device: DeviceName) -> dict[str, int | None] | None:
    process = next((process for process in processes if process.device == device), None)
    return None if process is None else {"process_bytes": process.held, "device_grew_bytes": process.grown}


HEAD = ("model", "flags", "device", "weights", "cache", "state", "compute", "process", "error", "outside", "")


def rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    """A line for each device: errors in MiB, the process as measured and its error, what lies outside the buffers."""
    case = measured.case
    shown = " ".join(case.words[case.words.index("-np") :])
    for finding in findings(measured):
        found = finding.errors
        process, part = "-", "-"
        if finding.served is not None:
            process = f"{finding.served.bytes / MIB:,.0f}"
            part = f"{found[TOTAL] / max(finding.served.bytes, 1):+.1%}"
        outside = "-" if finding.outside_bytes is None else f"{finding.outside_bytes / MIB:,.0f}"
        gaps = (f"{found[name] / MIB:+.2f}" if name in found else "-" for name in BUFFERS)
        verdict = "; ".join(faults(measured)) or "ok"
        yield (case.path.stem, shown, finding.predicted.device, *gaps, process, part, outside, verdict)


def outside_by_device(launches: Sequence[Measured]) -> Mapping[DeviceName, tuple[int, int]]:
    """The least and the most that lay outside of the buffers on each device: what `overhead` has a constant for."""
    found: dict[DeviceName, list[int]] = {}
    for measured in launches:
        for finding in findings(measured):
            if finding.outside_bytes is not None:
                found.setdefault(finding.predicted.device, []).append(finding.outside_bytes)
    return {device: (min(sizes), max(sizes)) for device, sizes in found.items()}
