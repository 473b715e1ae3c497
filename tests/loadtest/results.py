"""A result of the load test with everything in it, some of it from people who would like to be more than text."""

from loadtest.clients import Measured
from loadtest.report import ROWS, row_of
from loadtest.result import Event, Failure, Grant, Request, Result, Sample, Server

GIB = 1 << 30
EVIL = '<img src=x onerror="document.title=1"></script>{{ 7 * 7 }}$x_1$&amp;\x1b[31m\u202e'
"""A name as nobody should have one: HTML, a template, a formula, signs for terminals, a sign that turns text."""
CLEAN = EVIL.replace("\x1b", "\N{REPLACEMENT CHARACTER}").replace("\u202e", "\N{REPLACEMENT CHARACTER}")
"""How it is shown."""


def a_whole_result(requests: int = 20, errors: int = 0, **more: object) -> Result:
    """So many requests of each row, of which so many of the chat's failed."""
    told = [_request(row, number, errors) for row in ROWS for number in range(requests)]
    measured = {row: [_measured(one) for one in told if one.row == row] for row in ROWS}
    fields: dict[str, object] = {
        "classes": {row: row_of(those, 100.0) for row, those in measured.items()},
        "roles": {"chat": row_of(measured["interactive"], 100.0), EVIL: row_of([], 100.0)},
        "loads": 2,
        "needless_loads": 0,
        "evictions": 1,
        "relief_steps": None,
        "seed": 7,
        "settings": {"mix": "published", "seconds": 100.0, "counts": {"chat": 6}, "models": {"chat": EVIL}},
        "failures": (Failure(role="chat", error=EVIL, count=errors),) if errors else (),
        "left_out": {"ocr": f"no model sees, {EVIL} neither"},
        "notes": ("The decision log is not whole: it broke off.",),
        "began": "2026-01-01T00:00:00+00:00",
        "measured_from_s": 3.0,
        "measured_s": 100.0,
        "server": Server(url="http://127.0.0.1:1", version="9.9", engine=EVIL, devices={"gpu0": 16 * GIB}),
        "machine": {"cores": "2"},
        "requests": tuple(told),
        "grants": tuple(_grant(one, number) for number, one in enumerate(told)),
        "events": (Event(at_s=1.0, event="load", model=EVIL), Event(at_s=50.0, event="evict", model=EVIL, rule="R4")),
        "samples": tuple(_sample(float(second)) for second in range(0, 104, 4)),
    }
    return Result(**{**fields, **more})  # type: ignore[arg-type]  # a test names fields


def _request(row: str, number: int, errors: int) -> Request:
    error = "503: no" if row == "interactive" and number < errors else ""
    at_s, place = 4.0 + number * 4.0, ROWS.index(row)
    return Request(
        role=row, row=row, job_class=row, model=EVIL, at_s=at_s, end_s=at_s + 1 + place * 3, status=200, error=error
    )


def _measured(one: Request) -> Measured:
    return Measured(one.row, one.status, one.end_s - one.at_s, 0.002, error=one.error)


def _grant(one: Request, number: int) -> Grant:
    end_s = None if number % 20 == 0 else one.end_s
    is_relief = one.row == "background"
    return Grant(
        at_s=one.at_s, end_s=end_s, row=one.row, job=number, model=EVIL, device="gpu0", rule="S5", relief=is_relief
    )


def _sample(at_s: float) -> Sample:
    models = {f"model-{number}": number * GIB // 8 for number in range(12)} | {EVIL: 3 * GIB if at_s < 50 else 0}
    return Sample(at_s=at_s, models=models, devices={"gpu0": 11 * GIB}, waiting={"interactive": 0, "batch": 2})
