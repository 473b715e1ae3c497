"""What can be had: how long people wait against how much low work is done, over turns of relief and their share.

Owns the sweep and its picture, an SVG written by hand: two plots side by side, one line for each size of turn, one
point for each share. Must never judge: the picture shows what the runs gave.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

from gridsched.core.policy import Policy
from sim.svg import frame, grid, page, square, text
from sim.whatif import runs
from sim.whatif.report import LOW_ROWS
from sim.whatif.scenario import PolicyRun, Scenario

SLOTS = (1, 2, 4, 8)
SHARES = (0.25, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)
PAUSED_SHARES = (0.25, 0.5, 1.0)
SEEDS = 6
"""Runs of each point: there are many points, and each is the mean of many answers already."""

COLOURS = ("#7a7a7a", "#2b7bba", "#1b9e4b", "#d9731a")
WIDTH, HEIGHT, LEFT, TOP, PLOT_W, PLOT_H, GAP = 1060, 496, 70, 62, 420, 330, 100


@dataclass(frozen=True, slots=True)
class Point:
    """One policy: what people and low work have of it. Ratios are to the same people alone."""

    slots: int
    share: float
    pause: bool
    p50_ratio: float
    p95_ratio: float
    low: float

    @property
    def is_default(self) -> bool:
        """Whether these are the scheduler's own figures."""
        policy = Policy()
        return (self.slots, self.share, self.pause) == (
            policy.relief_slots,
            policy.background_share,
            policy.background_pause,
        )


def sweep(scenario: Scenario) -> tuple[Point, ...]:
    """Every point of the grid, without and with pauses. Empty where nobody chats. A turn that is larger than any model
    has slots is left out: it is the same as one of all slots."""
    most = max(model.slots for model in scenario.models)
    turns = sorted({min(slots, most) for slots in SLOTS})
    grid = [(slots, share, False) for slots in turns for share in SHARES]
    grid += [(slots, share, True) for slots in turns for share in PAUSED_SHARES]
    policies = [
        PolicyRun(
            f"{slots}/{share}/{pause}",
            replace(Policy(), relief_slots=slots, background_share=share, background_pause=pause),
        )
        for slots, share, pause in grid
    ]
    outcome = runs.run(replace(scenario, seeds=scenario.seeds[:SEEDS]), policies)
    points = []
    for policy, (slots, share, pause) in zip(policies, grid, strict=True):
        ratios = outcome.ratios(policy.name)
        if ratios is not None:
            points.append(Point(slots, share, pause, *ratios, outcome.policies[policy.name].answered(*LOW_ROWS)))
    return tuple(points)


def svg(points: Sequence[Point], title: str) -> str:
    """The picture. Takes at least one point."""
    most_low = max(point.low for point in points) * 1.05 or 1.0
    most_ratio = max(1.5, *(point.p95_ratio for point in points), *(point.p50_ratio for point in points)) * 1.03
    turns = sorted({point.slots for point in points})
    parts = [text(LEFT, 26, f"{title}: what people wait against what low work gets", size=16)]
    for column, name in enumerate(("p50", "p95")):
        plot = _Plot(LEFT + column * (PLOT_W + GAP), name, most_low, most_ratio)
        parts += plot.axes()
        for paused in (False, True):
            for colour, slots in zip(COLOURS, turns, strict=False):
                line = [each for each in points if each.slots == slots and each.pause is paused]
                parts += plot.line(line, colour)
    for place, (colour, slots) in enumerate(zip(COLOURS, turns, strict=False)):
        x = LEFT + place * 130
        parts += [square(x, HEIGHT - 50, colour), text(x + 18, HEIGHT - 40, f"relief_slots {slots}")]
    legend = "beside a point: its background_share · dashed and hollow: with background_pause · ringed: the defaults"
    return page(WIDTH, HEIGHT, [*parts, text(LEFT, HEIGHT - 14, legend)])


@dataclass(frozen=True, slots=True)
class _Plot:
    """One of the two: `name` is the percentile on the upright axis."""

    left: int
    name: str
    most_low: float
    most_ratio: float

    def at(self, point: Point) -> tuple[float, float]:
        """Where a point is drawn."""
        ratio = point.p50_ratio if self.name == "p50" else point.p95_ratio
        return self._x(point.low), self._y(ratio)

    def _x(self, low: float) -> float:
        return self.left + PLOT_W * low / self.most_low

    def _y(self, ratio: float) -> float:
        return TOP + PLOT_H * (1.0 - (ratio - 0.95) / (self.most_ratio - 0.95))

    def axes(self) -> Iterator[str]:
        """Frame, grid, figures and names."""
        yield frame(self.left, TOP, PLOT_W, PLOT_H)
        for low in _ticks(0.0, self.most_low, 6):
            x = self._x(low)
            yield grid(f"M{x:.1f} {TOP}V{TOP + PLOT_H}")
            yield text(x, TOP + PLOT_H + 18, f"{low:g}", anchor="middle")
        for ratio in _ticks(1.0, self.most_ratio, 6):
            y = self._y(ratio)
            yield grid(f"M{self.left} {y:.1f}h{PLOT_W}")
            yield text(self.left - 8, y + 4, f"{ratio:g}", anchor="end")
        yield text(self.left, TOP - 10, f"chat {self.name}, times as long as alone (lower is better)")
        yield text(self.left + PLOT_W / 2, TOP + PLOT_H + 38, "low answers in a run (more is better)", anchor="middle")

    def line(self, points: Sequence[Point], colour: str) -> Iterator[str]:
        """One size of turn, from the least share to all."""
        if not points:
            return
        places = [self.at(point) for point in points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4" opacity="0.6"' if points[0].pause else ""
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>'
        for point, (x, y) in zip(points, places, strict=True):
            words = (
                f"relief_slots {point.slots}, background_share {point.share:g}{', paused' if point.pause else ''}:"
                f" p50 x{point.p50_ratio:.2f}, p95 x{point.p95_ratio:.2f}, {point.low:.0f} low"
            )
            paint = f'fill="white" stroke="{colour}"' if point.pause else f'fill="{colour}"'
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" {paint}><title>{escape(words)}</title></circle>'
            if point.is_default:
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="black" stroke-width="2"/>'
            if not point.pause:
                yield text(x + 6, y + 13, f"{point.share:g}", size=9)


def _ticks(lowest: float, highest: float, most: int) -> Iterator[float]:
    """Round figures from the lowest on, at most so many."""
    step = next(
        part * 10.0**power
        for power in range(-2, 9)
        for part in (1, 2, 2.5, 5)
        if (highest - lowest) / (part * 10.0**power) <= most
    )
    count = int((highest - lowest) / step + 1e-9)
    yield from (round(lowest + place * step, 6) for place in range(count + 1))
