"""Pictures as SVG, written by hand: what the plots share. Owns the page, words, squares and grids; knows no figures."""

from collections.abc import Iterable
from xml.sax.saxutils import escape


def page(width: int, height: int, parts: Iterable[str]) -> str:
    """A white page of so many units with everything on it."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12) -> str:
    """Words whose baseline is at `y`; `anchor` is which end of them is at `x`: start, middle or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="#222">{escape(words)}</text>'


def frame(x: float, y: float, width: float, height: float) -> str:
    """The outline of a plot."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="#999"/>'


def square(x: float, y: float, colour: str) -> str:
    """A legend's mark."""
    return f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>'


def grid(path: str) -> str:
    """A faint line behind a plot, as an SVG path."""
    return f'<path d="{path}" stroke="#e5e5e5"/>'
