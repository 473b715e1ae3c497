"""A benchmark's result as pictures: each case's variants beside one another, and cost against load.

Owns what is drawn. SVG whose words are text, the same bytes for the same result. Must never be needed: matplotlib may
not be installed, and only the command imports this file, where it is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from loadtest.bench import curves
from loadtest.bench.figures import figure
from loadtest.bench.result import BenchResult, Row
from loadtest.bench.variants import DIRECT

COLOURS = ("#2f7fd6", "#c77700", "#1f9269", "#8a63d2", "#d6336c", "#0e9bb3")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gridsched",
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
}
WIDTH, HEIGHT = 8.0, 3.4
LEAST_ON_LOG = 0.1
"""Where an axis of logarithms ends: a difference may be nothing, or less."""


def draw(result: BenchResult, folder: Path) -> Iterator[Path]:
    """Write every picture that the result has something for, and remove the others' earlier ones."""
    pictures: Mapping[str, Callable[[Axes, BenchResult], bool]] = {
        "small_request": lambda axes, all_: _bars(
            axes, all_, "small_request", "added_p50_us", "added p50, µs", log=True
        ),
        "small_request_rate": lambda axes, all_: _bars(
            axes, all_, "small_request", "rps_ratio", "requests/s, of direct"
        ),
        "stream": lambda axes, all_: _bars(axes, all_, "stream", "added_p99_us", "added p99 of delay, µs", log=True),
        "stream_rate": lambda axes, all_: _bars(axes, all_, "stream", "tokens_ratio", "chunks/s, of direct"),
        "cost_by_clients": lambda axes, all_: _curve(axes, all_, curves.BY_CLIENTS, ADDED, CLIENTS, SMALL),
        "rate_by_clients": lambda axes, all_: _curve(axes, all_, curves.BY_CLIENTS, RATES, CLIENTS),
        "cost_by_streams": lambda axes, all_: _curve(axes, all_, curves.BY_STREAMS, ADDED, STREAMS, CHUNK),
        "cost_by_pace": lambda axes, all_: _curve(axes, all_, curves.BY_PACE, ADDED, PACE, CHUNK),
        "grant": _grant,
        "contention_chat": lambda axes, all_: _bars(
            axes, all_, "contention", "chat_p50_ratio", "median chat, of alone"
        ),
        "contention_kept": lambda axes, all_: _bars(axes, all_, "contention", "kept", "background, of its solo rate"),
    }
    with mpl.rc_context(STYLE):
        for name, draw_one in pictures.items():
            picture = Picture(figsize=(WIDTH, HEIGHT), layout="constrained")
            path = folder / f"{name}.svg"
            path.unlink(missing_ok=True)  # an earlier run's, of which nothing else is left
            if draw_one(picture.add_subplot(), result):
                picture.savefig(path, format="svg", metadata={"Date": None})
                yield path


def _bars(axes: Axes, result: BenchResult, case: str, name: str, label: str, *, log: bool = False) -> bool:
    """A group of bars for each load, a bar for each variant, with its lowest and highest round."""
    found = [
        row for row in result.cases if row.case == case and row.variant != DIRECT and figure(row.each.get(name, ()))
    ]
    if not found:
        return False
    loads = list(dict.fromkeys(_load(row) for row in found))
    variants = list(dict.fromkeys(row.variant for row in found))
    width = 0.8 / len(variants)
    for number, variant in enumerate(variants):
        own = [row for row in found if row.variant == variant]
        at = [loads.index(_load(row)) - 0.4 + width * (number + 0.5) for row in own]
        _bars_of(axes, own, name, at, width, COLOURS[number % len(COLOURS)], least=LEAST_ON_LOG if log else None)
    axes.set_xticks(range(len(loads)), loads, rotation=20, ha="right")
    if log:
        _log(axes)
    else:
        axes.axhline(1.0, color="#808890", linewidth=1)
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8)
    return True


def _bars_of(
    axes: Axes, own: Sequence[Row], name: str, at: Sequence[float], width: float, colour: str, *, least: float | None
) -> None:
    figures = [found for row in own if (found := figure(row.each[name])) is not None]
    heights = [found.median if least is None else max(found.median, least) for found in figures]
    below = [
        height - (found.lowest if least is None else max(found.lowest, least))
        for height, found in zip(heights, figures, strict=True)
    ]
    above = [max(0.0, found.highest - height) for height, found in zip(heights, figures, strict=True)]
    errors = [[max(0.0, value) for value in below], above]
    axes.bar(at, heights, width * 0.9, color=colour, label=own[0].variant, yerr=errors, ecolor="#808890", capsize=2)


def _log(axes: Axes) -> None:
    """An axis of logarithms, with its figures written out."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _load(row: Row) -> str:
    count = f"{row.clients} cl." if row.clients is not None else f"{row.streams} str."
    return f"{row.upstream}, {count}{f', {row.setting}' if row.setting else ''}"


def _lines(axes: Axes, loads: Sequence[float], found: Sequence[Row], names: Mapping[str, str], label: str) -> None:
    for (name, title), colour in zip(names.items(), COLOURS, strict=False):
        figures = [figure(row.each.get(name, ())) for row in found]
        points = [(load, one) for load, one in zip(loads, figures, strict=True) if one is not None]
        if not points:
            continue
        at = [load for load, _ in points]
        middle, low, high = (
            [max(getattr(one, end), LEAST_ON_LOG) for _, one in points] for end in ("median", "lowest", "highest")
        )
        axes.plot(at, middle, "o-", color=colour, label=title, markersize=4)
        axes.fill_between(at, low, high, color=colour, alpha=0.15)
    axes.set_xscale("log")
    _log(axes)
    axes.set_xticks(list(loads), [f"{load:g}" for load in loads])
    axes.set_xlabel(label)
    axes.minorticks_off()


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


ADDED = {"added_p50_us": "p50", "added_p99_us": "p99"}
RATES = {"requests_per_s": "requests a second", "cpu_us_per_request": "CPU µs each"}
CLIENTS, STREAMS = "clients, each asking again and again", "streams of 100 chunks a second"
PACE = f"chunks a second asked for, in {curves.PACED_STREAMS} streams"
SMALL, CHUNK = "added to a small request, µs", "added to a chunk's delay, µs"


def _curve(axes: Axes, result: BenchResult, setting: str, names: Mapping[str, str], load: str, label: str = "") -> bool:
    """Figures against load; those with a `label` have a knee."""
    found = curves.points(result.curves, setting)
    if not found:
        return False
    _lines(axes, [curves.load_at(row) for row in found], found, names, load)
    if label:
        _mark_knee(axes, found)
        axes.set_ylabel(label)
    _legend(axes)
    return True


def _mark_knee(axes: Axes, found: Sequence[Row]) -> None:
    at = curves.knee_of(found)
    if at is not None:
        axes.axvline(at, color="#d6336c", linestyle=":", linewidth=1.5, label=f"knee: {at:g}")


def _grant(axes: Axes, result: BenchResult) -> bool:
    """From arrival to grant against how many wait, as far as the case tells it so."""
    found = [row for row in result.cases if row.case == "grant" and row.setting.split(" ")[0].isdigit()]
    names = [
        name
        for name in dict.fromkeys(name for row in found for name in row.each)
        if name.endswith("p99_us") and "added" not in name
    ]
    if not found or not names:
        return False
    loads = [float(row.setting.split(" ")[0]) + 1 for row in found]
    _lines(axes, loads, found, {name: name.replace("_", " ") for name in names}, "jobs that wait, and the one")
    axes.set_ylabel("µs")
    _legend(axes)
    return True
