"""What chats and background had of the machine, as a picture. Owns it; needs matplotlib, so only the command that was
asked for a picture may import it. Must never show a median without its rounds."""

import io
from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.bench.contention_result import CHAT_LIMIT, LEAST_KEPT, SETTINGS, Each
from loadtest.bench.figures import middle

COLOURS = ("#2f7fd6", "#c77700")


def draw(all_figures: Mapping[str, Each]) -> bytes:
    """An SVG: to the left how much longer a chat takes than alone, to the right what the background keeps."""
    with mpl.rc_context({"svg.hashsalt": "gridsched"}):
        picture = Figure(figsize=(9.0, 3.2), layout="constrained")
        left, right = picture.subplots(1, 2)
        _bars(left, all_figures, "chat_p50_ratio", "median chat / alone", CHAT_LIMIT)
        _bars(right, all_figures, "kept", "background / its solo rate", LEAST_KEPT)
        raw = io.BytesIO()
        picture.savefig(raw, format="svg", metadata={"Date": None})
    return raw.getvalue()


def _bars(axes: Axes, all_figures: Mapping[str, Each], figure: str, title: str, limit: float) -> None:
    """A bar for each setting's median, a dot for each round, a line at the mark."""
    for place, name in enumerate(SETTINGS):
        values = [value for value in all_figures[name][figure] if value is not None]
        axes.bar(place, middle(values) or 0.0, color=COLOURS[name == "pause"], width=0.6)
        axes.plot([place] * len(values), values, "o", color="#808890", markersize=4)
    axes.axhline(limit, color="#d6336c", linewidth=1)
    axes.set_xticks(range(len(SETTINGS)), list(SETTINGS))
    axes.set_title(title, loc="left", fontsize=10)
