"""How far the estimates are from the facts, by component, kind of launch, flag and architecture: tables and a plot.

`python -m tests.vram.report [FOLDER]` prints the tables and writes them to FOLDER (default `build`) as
`vram-report.md`, beside `vram-report.svg`. It judges nothing and knows no limits: the tests do, over the same figures.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log10
from pathlib import Path
from statistics import median
from typing import TypeAlias

from sim.svg import frame, grid, page, square, text
from tests.vram.models import MIB, Row, allocations, estimate, real
from tests.vram.test_compute import MODELS, geometry_of
from tests.vram.test_groundtruth import ROWS, ours_of
from tests.vram.test_processes import PROCESSES, errors

Table: TypeAlias = list[Sequence[str]]

COMPONENTS = ("weights", "cache", "state")
KINDS = (
    "plain",
    "quantized cache",
    "several devices",
    "no flash attention",
    "experts on the host",
    "layers on the host",
    "cache on the host",
)


@dataclass(frozen=True, slots=True)
class Bound:
    """The compute buffer of one launch on one device, in bytes: what we say, what the engine accounts for, and what of
    its buffers there are in all (0 where that is not known)."""

    architecture: str
    kind: str
    flags: tuple[str, ...]
    ours: int
    theirs: int
    device_bytes: int

    @property
    def over_mib(self) -> float:
        """How far the bound lies above the truth."""
        return (self.ours - self.theirs) / MIB

    @property
    def share(self) -> float | None:
        """The same as a part of everything on the device."""
        return (self.ours - self.theirs) / self.device_bytes if self.device_bytes else None


def launches() -> list[Row]:
    """Those of the real models that the engine does not refuse."""
    return [row for row in ROWS if row.refused is None]


def bounds() -> list[Bound]:
    """Every compute buffer of the real models."""
    return [
        Bound(
            real(row.model).architecture,
            row.kind,
            marks(row.flags),
            part.compute_bytes,
            theirs[3],
            sum(figure or 0 for figure in theirs),
        )
        for row in launches()
        for part, theirs in zip(ours_of(row).devices, row.devices, strict=True)
        if theirs[3] is not None
    ]


def other_bounds() -> list[Bound]:
    """The same for models of other architectures, described by their published sizes."""
    found = []
    for facts in MODELS:
        geometry = geometry_of(facts)
        for flags, truths in facts["launches"]:
            ours = estimate(geometry, *flags.split(), devices=len(truths)).devices
            pairs = zip(ours, truths, strict=True)
            found += [
                Bound(geometry.architecture, "", marks(flags.split()), part.compute_bytes, theirs, 0)
                for part, theirs in pairs
            ]
    return found


def marks(flags: Sequence[str]) -> tuple[str, ...]:
    """What of a command line makes a group: its flags, and the values of those that switch something."""
    return tuple(
        f"{flag} {value}" if flag in ("-fa", "-ctk", "-sm") else flag
        for flag, value in zip(flags, [*flags[1:], ""], strict=True)
        if flag.startswith("-") and flag not in ("-c", "-ctv", "-ngl") and not flag[1:].isdigit()
    ) + (("-ngl of some layers",) if _some_layers(flags) else ())


def _some_layers(flags: Sequence[str]) -> bool:
    return any(flag == "-ngl" and value != "999" for flag, value in pairwise(flags))


# --- tables -----------------------------------------------------------------------------------------------------


def exact_table() -> Table:
    """Weights, cache and state: how many figures were compared, how many are the same to the byte, the worst of the
    rest. A launch that allocated tells of the host's weights only how long the mapped range is, with what lies between
    and is on a device: there is nothing to compare with."""
    table: Table = [("component", "where", "compared", "equal to the byte", "largest difference, bytes")]
    pairs: dict[tuple[str, str], list[int]] = {}
    for row in launches():
        ours = ours_of(row)
        for where, part, theirs in (
            *(("devices", *pair) for pair in zip(ours.devices, row.devices, strict=True)),
            ("host", ours.host, row.host),
        ):
            figures = (part.weights_bytes, part.kv_bytes, part.recurrent_bytes)
            for component, mine, truth in zip(COMPONENTS, figures, theirs[:3], strict=True):
                if row.allocated and (component, where) == ("weights", "host"):
                    continue
                pairs.setdefault((component, where), []).append(abs(mine - int(truth or 0)))
    tiny = []
    for model in allocations():
        alone = estimate(model.geometry, *model.flags).devices[0]
        tiny.append(abs(alone.kv_bytes + alone.recurrent_bytes - model.bytes))
    pairs["cache and state", "tiny models of every architecture"] = tiny
    table += [
        (component, where, f"{len(gaps):,}", f"{gaps.count(0):,}", f"{max(gaps):,}")
        for (component, where), gaps in sorted(pairs.items(), key=lambda item: item[0][1])
    ]
    return table


def bound_table(first: str, groups: Iterable[tuple[str, Sequence[Bound]]]) -> Table:
    """One line for each group of compute buffers."""
    head = ("buffers", "short", "least MiB", "median", "p90", "most", "of the device: median", "most")
    return [(first, *head), *((name, *_spread(group)) for name, group in groups if group)]


def _spread(group: Sequence[Bound]) -> Iterator[str]:
    over = sorted(bound.over_mib for bound in group)
    yield from (f"{len(over):,}", str(sum(gap < 0 for gap in over)))
    yield from (f"{gap:,.1f}" for gap in (over[0], median(over), over[int(0.9 * (len(over) - 1))], over[-1]))
    shares = [share for bound in group if (share := bound.share) is not None]
    yield from (f"{median(shares):.2%}", f"{max(shares):.1%}") if shares else ("-", "-")


def grouped(found: Sequence[Bound], keys: Callable[[Bound], Iterable[str]]) -> list[tuple[str, list[Bound]]]:
    """By name; a bound stands in each group that it has a key of."""
    groups: dict[str, list[Bound]] = {}
    for bound in found:
        for key in keys(bound):
            groups.setdefault(key, []).append(bound)
    return sorted(groups.items())


def process_table() -> Table:
    """Whole processes on real cards: estimate less what the driver told."""
    table: Table = [("model", "flags", "card", "measured MiB", "error")]
    for process in PROCESSES:
        card = process.card.removeprefix("NVIDIA ") or f"{process.card_mib} MiB"
        measured = " + ".join(f"{figure:,}" for figure in process.measured_mib)
        table.append((process.model, process.flags, card, measured, " ".join(f"{e:+.1%}" for e in errors(process))))
    every = [error for process in PROCESSES for error in errors(process)]
    words = f"size: median {median(map(abs, every)):.1%}, {min(every):+.1%} to {max(every):+.1%}"
    return [*table, ("all", "", "", f"{len(every)} figures", words)]


def markdown(title: str, table: Table) -> str:
    """A table that can be read as it is, too: names to the left, figures to the right."""
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return f"| {' | '.join(w.rjust(n) if place else w.ljust(n) for place, (w, n) in enumerate(cells))} |"

    rule = "|".join(f"{'-' * (width + 1)}{':' if place else '-'}" for place, width in enumerate(widths))
    return "\n".join([f"## {title}", "", line(table[0]), f"|{rule}|", *map(line, table[1:]), ""])


# --- the plot ---------------------------------------------------------------------------------------------------

LEFT, TOP, PLOT_W, ROW_H, GAP = 170, 62, 420, 17, 240
WIDTH = LEFT + 2 * PLOT_W + GAP + 40
TICKS = (0, 1, 10, 100, 1000, 10_000)
COLOURS = {True: "#c0392b", False: "#2b7bba"}


def svg(found: Sequence[Bound], others: Sequence[Bound]) -> str:
    """Every compute buffer as a point, by kind and by architecture: MiB above the truth, on a scale that is linear up
    to 1 and logarithmic beyond. The bars are medians; red is what lies below the truth."""
    by_kind = [(kind, [bound for bound in found if bound.kind == kind]) for kind in KINDS]
    by_architecture = grouped(found, lambda bound: [bound.architecture])
    left = [*by_kind, ("", []), ("other architectures", list(others))]
    height = TOP + ROW_H * max(len(left), len(by_architecture)) + 60
    parts = [text(LEFT, 26, "Compute buffers: how far the bound lies above what the engine accounts for, MiB", size=16)]
    parts += _strips(LEFT, "by kind of launch", left)
    parts += _strips(LEFT + PLOT_W + GAP, "by architecture", by_architecture)
    parts += [square(LEFT, height - 24, COLOURS[False]), text(LEFT + 18, height - 14, "above; the bar is the median")]
    parts += [square(LEFT + 240, height - 24, COLOURS[True]), text(LEFT + 258, height - 14, "below the truth")]
    return page(WIDTH, height, parts)


def _strips(left: float, title: str, groups: Sequence[tuple[str, Sequence[Bound]]]) -> Iterator[str]:
    height = ROW_H * len(groups)
    yield frame(left, TOP, PLOT_W, height)
    yield text(left, TOP - 10, title)
    for tick in TICKS:
        yield grid(f"M{_x(left, tick):.1f} {TOP}v{height}")
        yield text(_x(left, tick), TOP + height + 16, f"{tick:,}", anchor="middle")
    for place, (name, group) in enumerate(groups):
        y = TOP + ROW_H * (place + 0.5)
        yield text(left - 8, y + 4, name, anchor="end", size=11)
        for below in (False, True):
            x = sorted({round(_x(left, b.over_mib), 1) for b in group if (b.over_mib < 0) is below})
            marks = "".join(f"M{at:.1f} {y - 3:.1f}v6" for at in x)
            if marks:
                yield f'<path d="{marks}" stroke="{COLOURS[below]}" opacity="0.45"/>'
        if group:
            middle = _x(left, median(bound.over_mib for bound in group))
            yield f'<path d="M{middle:.1f} {y - 7:.1f}v14" stroke="black" stroke-width="2"/>'


def _x(left: float, mib: float) -> float:
    def scaled(value: float) -> float:
        return max(value, -0.5) if value < 1 else 1 + log10(value)

    return left + 20 + (PLOT_W - 40) * scaled(mib) / scaled(20_000)


# --- the command ------------------------------------------------------------------------------------------------


def report(found: Sequence[Bound], others: Sequence[Bound]) -> str:
    """All tables."""
    by_flag = grouped(found, lambda bound: bound.flags)
    by_kind = [(kind, [bound for bound in found if bound.kind == kind]) for kind in KINDS]
    return "\n".join(
        [
            f"# Estimates against facts: {len(launches()):,} launches of real models\n",
            markdown("Exact: weights, cache, state", exact_table()),
            markdown(
                "Compute buffer less what the engine accounts for, by kind of launch", bound_table("kind", by_kind)
            ),
            markdown("By flag", bound_table("flag", by_flag)),
            markdown(
                "By architecture: real models",
                bound_table("architecture", grouped(found, lambda bound: [bound.architecture])),
            ),
            markdown(
                "By architecture: others, by published sizes",
                bound_table("architecture", grouped(others, lambda bound: [bound.architecture])),
            ),
            markdown("Whole processes on real cards, overhead included, against the driver", process_table()),
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Compare, print, write both files."""
    parser = argparse.ArgumentParser(prog="python -m tests.vram.report", description="Estimates against facts.")
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("build"), help="where the files go (default build)"
    )
    folder: Path = parser.parse_args(arguments).folder
    found, others = bounds(), other_bounds()
    words = report(found, others)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vram-report.md").write_text(words, encoding="utf-8")
        (folder / "vram-report.svg").write_text(svg(found, others), encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"the report cannot be written to {folder}: {error.strerror}\n")
        return 2
    sys.stdout.write(f"{words}\n{folder / 'vram-report.md'}\n{folder / 'vram-report.svg'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
