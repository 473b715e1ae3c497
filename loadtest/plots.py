"""A load test over time as pictures: how long answers took, who had the devices, what lay in memory, who waited.

Owns what is drawn. Every picture is SVG that stands inside a page: its words are text, its ink is the page's, and it
carries neither styles nor names of its own. Must never leave a request out: where there are more marks than a browser
likes, they are painted into one image instead. Needs matplotlib; only the report's page may import this file.
"""

import heapq
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from loadtest.report import ROWS
from loadtest.result import Grant, Result

INK, PAGES_INK = "#010203", "currentColor"
"""What stands for the colour of the page's own text while it is drawn, and what becomes of it."""
COLOURS = dict(zip(ROWS, ("#2f7fd6", "#c77700", "#8a63d2", "#1f9269"), strict=True))
OTHERS = "#808890"
RELIEF, FAILED, LOADED = "#d6336c", "#d92d20", "#0e9bb3"
MODELS = ("#2f7fd6", "#c77700", "#1f9269", "#8a63d2", "#d6336c", "#0e9bb3", "#8f7a2c", "#c0563b", "#5b7f3b")
"""On white and on black they all can be told from the page. Models beyond their number are shown together."""

MOST_MARKS = 4000
"""More in one picture are painted: a mark is a hundred bytes, an image of any number some ten thousand."""
DOTS_PER_INCH = 160
WIDTH, HEIGHT = 9.0, 3.2
GIB = float(1 << 30)
SHORTEST_SECONDS, LONGEST_SECONDS = 0.001, 1e9
LONGEST_NAME = 24
LANE = 0.8
"""How much of its band a row of the timeline fills."""

STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.15,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture. `legend`: colours and what they mean; `missing`: why there is none."""

    title: str
    says: str
    svg: str = ""
    legend: Sequence[tuple[str, str]] = ()
    missing: str = ""


def of_run(result: Result) -> Sequence[Plot]:
    """Everything there is to see of a run."""
    return (latency(result), _grants(result), _memory(result), _waiting(result))


def latency(result: Result, name: str = "latency") -> Plot:
    """How long each answer took, by when it was asked for."""
    rows = _in_order(request.row for request in result.requests)
    failed = [(one.at_s, one.end_s - one.at_s) for one in result.requests if one.error]
    title, says = "Latency over time", "Seconds from request to whole answer, by the moment of the request"
    if not rows:
        return Plot(title=title, says=says, missing="No request was made.")

    def draw(axes: Axes) -> None:
        for row in rows:
            answered = [one for one in result.requests if one.row == row and not one.error]
            _points(
                axes,
                [(one.at_s, one.end_s - one.at_s) for one in answered],
                COLOURS.get(row, OTHERS),
                "o",
                len(result.requests),
            )
        _points(axes, failed, FAILED, "x", len(result.requests))
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel("seconds")

    legend = [(COLOURS.get(row, OTHERS), row) for row in rows] + [(FAILED, "failed")] * bool(failed)
    return _plot(result, draw, name=name, title=title, says=says, legend=legend)


def _points(axes: Axes, points: Sequence[tuple[float, float]], colour: str, marker: str, among: int) -> None:
    """`among`: how many the picture has in all."""
    if points:
        at, seconds = zip(*points, strict=True)
        shown = [min(max(one, SHORTEST_SECONDS), LONGEST_SECONDS) for one in seconds]
        _light(axes.scatter(at, shown, s=14, color=colour, marker=marker, alpha=0.8, linewidths=1), among)


def _grants(result: Result) -> Plot:
    """Which class had a slot when; steps at the same time lie above one another."""
    rows = _in_order(grant.row for grant in result.grants)
    title, says = "Grants by class", "Each bar is one step that the server let run, as long as it ran"
    if not rows:
        return Plot(title=title, says=says, missing="The server's decision log was not there to read.")

    def draw(axes: Axes) -> None:
        for place, row in enumerate(rows):
            lanes = _lanes([grant for grant in result.grants if grant.row == row], _ended(result))
            height, bars, colours = LANE / len(lanes), [], []
            for number, lane in enumerate(lanes):
                low = -place - LANE / 2 + number * height
                high = low + height * 0.9
                bars += [((one.at_s, low), (end, low), (end, high), (one.at_s, high)) for one, end in lane]
                colours += [RELIEF if one.relief else COLOURS.get(row, OTHERS) for one, _ in lane]
            drawn = PolyCollection(bars, facecolors=colours, edgecolors=colours, linewidth=0.4)
            _light(drawn, len(result.grants))
            axes.add_collection(drawn, autolim=False)
        axes.set_ylim(0.5 - len(rows), 0.5)
        axes.set_yticks([-place for place in range(len(rows))], [_clean(row) for row in rows])
        axes.grid(visible=False, axis="y")

    legend = [(COLOURS.get(row, OTHERS), row) for row in rows]
    legend += [(RELIEF, "let run although somebody chats (relief)")] * any(grant.relief for grant in result.grants)
    return _plot(result, draw, name="grants", title=title, says=says, legend=legend)


def _lanes(grants: Sequence[Grant], ended: float) -> Sequence[Sequence[tuple[Grant, float]]]:
    """The grants with their ends, in as few lanes as there were at once."""
    lanes: list[list[tuple[Grant, float]]] = []
    free: list[tuple[float, int]] = []
    for grant in sorted(grants, key=lambda one: one.at_s):
        end = max(ended if grant.end_s is None else grant.end_s, grant.at_s)
        if free and free[0][0] <= grant.at_s:
            _, number = heapq.heappop(free)
        else:
            number = len(lanes)
            lanes.append([])
        lanes[number].append((grant, end))
        heapq.heappush(free, (end, number))
    return lanes


def _memory(result: Result) -> Plot:
    """What each model held, and what the devices had in use."""
    title, says = "Memory by model", "GiB that each model's processes hold, measured where it could be, else estimated"
    if not result.samples:
        return Plot(title=title, says=says, missing="The server does not tell what lies in memory.")
    most: dict[str, int] = {}
    for sample in result.samples:
        for model, size in sample.models.items():
            most[model] = max(most.get(model, 0), size)
    largest = sorted(most, key=lambda model: -most[model])
    shown, rest = largest[: len(MODELS)], largest[len(MODELS) :]
    at = [sample.at_s for sample in result.samples]
    held = [[sample.models.get(model, 0) / GIB for sample in result.samples] for model in shown]
    if rest:
        held.append([sum(sample.models.get(model, 0) for model in rest) / GIB for sample in result.samples])
    colours = [*MODELS[: len(shown)], *[OTHERS] * bool(rest)]
    total = sum(result.server.devices.values()) / GIB

    def draw(axes: Axes) -> None:
        for area in axes.stackplot(at, held, colors=colours, step="post", alpha=0.85) if held else ():
            _light(area, len(at) * len(held))
        (line,) = axes.step(at, [sum(one.devices.values()) / GIB for one in result.samples], INK, where="post", lw=1)
        line.set_linestyle("--")
        if total:
            axes.axhline(total, color=INK, lw=1, ls=":")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("GiB")

    legend = [*zip(colours, [*shown, *[f"{len(rest)} others"] * bool(rest)], strict=True)]
    legend.append((INK, "in use on all devices (dashed)" + ", and what there is (dotted)" * bool(total)))
    return _plot(result, draw, name="memory", title=title, says=says, legend=legend)


def _waiting(result: Result) -> Plot:
    """How many jobs waited, by class."""
    title, says = "Jobs that waited, by class", "How many were in each queue"
    rows = _in_order(row for sample in result.samples for row in sample.waiting)
    if not rows:
        return Plot(title=title, says=says, missing="The server does not tell who waits.")
    at = [sample.at_s for sample in result.samples]

    def draw(axes: Axes) -> None:
        for row in rows:
            axes.step(
                at, [one.waiting.get(row, 0) for one in result.samples], COLOURS.get(row, OTHERS), where="post", lw=1.2
            )
        axes.set_ylim(bottom=0)
        axes.set_ylabel("jobs")

    return _plot(
        result, draw, name="waiting", title=title, says=says, legend=[(COLOURS.get(row, OTHERS), row) for row in rows]
    )


# --- what all share ---------------------------------------------------------------------------------------------------


def _plot(
    result: Result, draw: Callable[[Axes], None], *, name: str, title: str, says: str, legend: Sequence[tuple[str, str]]
) -> Plot:
    """The picture with what is in each of them: the time axis, the warm-up, loads and evictions."""
    marks = [(LOADED, "load", "a load begins"), (INK, "evict", "a model is sent away")]
    seen = {what: [one.at_s for one in result.events if one.event == what] for _, what, _ in marks}
    style: Mapping[str, object] = STYLE | {"svg.hashsalt": name}
    with mpl.rc_context(style), warnings.catch_warnings():  # type: ignore[arg-type]  # the stubs list every key
        # Letters that the measuring font lacks are the reader's font's business, and a file may hold any figure.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        for colour, what, _ in marks:
            lines = axes.vlines(seen[what], 0, 1, color=colour, lw=1, ls="--", transform=axes.get_xaxis_transform())
            _light(lines, len(seen[what]))
        if result.measured_from_s > 0:
            axes.axvspan(0, result.measured_from_s, color=INK, alpha=0.07, lw=0)
        axes.set_xlim(0, min(max(_ended(result), SHORTEST_SECONDS), LONGEST_SECONDS))
        axes.set_xlabel("seconds of the run")
        drawn = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, dpi=DOTS_PER_INCH, metadata=nothing)
    legend = [*legend, *((colour, f"{words} (dashed)") for colour, what, words in marks if seen[what])]
    coloured = [(colour.replace(INK, PAGES_INK), words) for colour, words in legend]
    return Plot(title=title, says=says, svg=inline(drawn.getvalue(), f"{title}. {says}."), legend=coloured)


def _light(drawn: Artist, marks: int) -> None:
    """What has too many marks is painted."""
    drawn.set_rasterized(marks > MOST_MARKS)


def _ended(result: Result) -> float:
    """The last second that there is anything of."""
    ends = [one.end_s for one in result.requests] + [one.at_s for one in result.samples]
    return max([result.measured_from_s + result.measured_s, *ends])


def _in_order(rows: Iterable[str]) -> Sequence[str]:
    """The names that there are: those that everybody knows, then others as they come."""
    there = dict.fromkeys(rows)
    return [row for row in ROWS if row in there] + [row for row in there if row not in ROWS]


def _clean(words: str) -> str:
    """Words from outside, without what XML cannot hold, and no wider than the picture."""
    shown = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in words)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"


def inline(svg: bytes, says: str) -> str:
    """A drawing as a part of a page: attributes for styles, the page's ink and font, and no names that could be another
    drawing's."""
    root = ET.fromstring(svg)  # noqa: S314 - matplotlib has just written it
    for parent in root.iter():
        for child in list(parent):
            if _tag(child) in ("metadata", "style"):
                parent.remove(child)
    for each in root.iter():
        each.tag = _tag(each)
        styles = dict(_styles(each.attrib.pop("style", "")))
        told = {name.rpartition("}")[2]: value for name, value in each.attrib.items()} | styles
        if each.tag in ("g", "svg", "text"):
            told.pop("id", None)
        each.attrib.clear()
        each.attrib.update({name: value.replace(INK, PAGES_INK) for name, value in told.items()})
    size = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update({"viewBox": size, "role": "img", "aria-label": says})
    return ET.tostring(root, encoding="unicode")


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _styles(text: str) -> Iterator[tuple[str, str]]:
    """A style's parts as attributes; of a font its size, the page has its own."""
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, value = part.partition(":")
        size = re.search(r"[\d.]+px", value)
        if name.strip() != "font":
            yield name.strip(), value.strip()
        elif size:
            yield "font-size", size.group()
