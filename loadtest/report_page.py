"""A load test's result, or two compared, as one HTML page: no script, nothing from the network, whole in one file.

Owns the page and its file. What came from outside stands in it as text. The page is there whole or not at all; what is
no plain file is never replaced. Must never judge a run: that the result does.
"""

import base64
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest import compare, report
from loadtest.compare import Comparison
from loadtest.result import Result

if TYPE_CHECKING:  # both come with the extra, and are imported when a page is made
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
NEEDED = ("matplotlib", "jinja2")
MOST_EVENTS = 500
"""Events that the page lists; the pictures have all."""


def refusal(path: Path) -> str:
    """Why no page can be made there, as a sentence; empty when one can."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        install = f"{sys.executable} -m pip install 'gridsched[report]'"
        return f"a report needs {' and '.join(missing)}, the extra `report`: {install}"
    try:
        if path.exists() and not path.is_file():
            return f"{path} is no plain file: a report is not written there"
        with _unfinished(path) as beside:
            beside.touch(exist_ok=False)
    except OSError as error:
        return f"no report can be written to {path}: {error.strerror or error}"
    return ""


def write(result: Result, path: Path) -> None:
    """The page of a run. Raises OSError; what was there is untouched then."""
    plots = importlib.import_module("loadtest.plots")
    page = _render(
        "run.html",
        result=result,
        verdict=_verdict(result),
        tables=[("By class", report.columns(result.classes)), ("By role", report.columns(result.roles))],
        counts={what.replace("_", " "): compare.number(getattr(result, what)) for what in compare.COUNTS},
        plots=plots.of_run(result),
        events=result.events[:MOST_EVENTS],
        settings=dict(compare.flat(result.settings)),
        about=dict(_about(result)),
    )
    _write(page, path)


def write_comparison(comparison: Comparison, path: Path) -> None:
    """The page of two runs. Raises OSError; what was there is untouched then."""
    plots = importlib.import_module("loadtest.plots")
    page = _render(
        "comparison.html",
        comparison=comparison,
        table=comparison.table(),
        counts={
            what.replace("_", " "): (compare.number(a), compare.number(b)) for what, (a, b) in comparison.counts.items()
        },
        plots=[("A", plots.latency(comparison.a, "a")), ("B", plots.latency(comparison.b, "b"))],
    )
    _write(page, path)


def _verdict(result: Result) -> tuple[str, str]:
    """How it went, as a word of the style sheet and as one for people."""
    if result.problems:
        return "failed", "Failed"
    if result.interrupted:
        return "unsure", "Ended early"
    return ("passed", "Passed") if result.requests else ("unsure", "Nothing was measured")


def _about(result: Result) -> Iterator[tuple[str, str]]:
    """Who was tested, by whom, when."""
    server, machine = result.server, result.machine
    yield "began", result.began
    yield "measured for", f"{result.measured_s:.1f} s, after {result.measured_from_s:.1f} s of warm-up"
    yield "seed", str(result.seed)
    yield "server", server.url
    yield "version", server.version
    yield "engine", " ".join(filter(None, (server.engine, server.backend)))
    yield "devices", ", ".join(f"{name} {size / (1 << 30):.1f} GiB" for name, size in server.devices.items())
    yield from ((f"clients' {name}", value) for name, value in machine.items())


# --- HTML -------------------------------------------------------------------------------------------------------------


def _render(name: str, **told: object) -> str:
    style = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _environment().get_template(name).render(style=style, digest=digest, **told)


def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - see NEEDED

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["lines"] = _lines
    return environment


def _shown(value: Any) -> Any:
    """What an expression of a template shows: without signs that turn or hide the text beside them. What is HTML
    already is ours."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in value) or "-"


def _lines(columns: Mapping[str, list[str]]) -> list[tuple[str, ...]]:
    """Columns as the lines of a table."""
    return list(zip(*columns.values(), strict=True))


# --- the file ---------------------------------------------------------------------------------------------------------


def _write(page: str, path: Path) -> None:
    with _unfinished(path) as beside:
        with beside.open("x", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path.resolve())


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A name beside the file, or beside what a link there points to; nothing is left under it."""
    target = path.resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield beside
    finally:
        beside.unlink(missing_ok=True)
