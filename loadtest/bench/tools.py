"""The two C programs of the benchmark, the tiny model, and the load generator's answers as types.

Owns how they are made and asked. Must never count a run that did not end as it should: it is None, and its failures are
told.
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadtest.bench.processes import ROOT, printed
from loadtest.bench.result import BenchFault

SOURCES = Path(__file__).parent
FLAGS = ("-O2", "-Wall", "-Wextra", "-pthread")
LOAD, STUB = "load", "engine_stub"
NEEDS_COMPILER = "there is no C compiler (cc, gcc or clang): install one, the load generator and the stub engine are C"
SPREAD_MS = 10
"""Clients begin within so much of one another, lest their streams tick together."""


def compiler() -> str:
    """A C compiler of this machine. Raises BenchFault where there is none."""
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found is None:
        raise BenchFault(NEEDS_COMPILER)
    return found


def compiled(name: str, folder: Path, *flags: str) -> Path:
    """The program made of NAME.c. Raises BenchFault."""
    program = folder / name
    printed((compiler(), *FLAGS, *flags, "-o", str(program), str(SOURCES / f"{name}.c")))
    return program


def tiny_model(path: Path, maker: str = "tiny_model.make_tiny_chat") -> Path:
    """A chat model of 0.3 MB, or what else of the tests' makers is named. Raises BenchFault.

    It answers nonsense, but as long as it is asked for.
    """
    module, _, function = maker.partition(".")
    code = f"import sys, pathlib, tests.support.{module} as made; made.{function}(pathlib.Path(sys.argv[1]))"
    printed((sys.executable, "-c", code, str(path)), cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    return path


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """How some times lie, in microseconds."""

    count: int
    p50_us: float
    p90_us: float
    p99_us: float
    most_us: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator prints (`load.c`)."""

    answers: int
    all_texts: int
    requests: int
    errors: int
    stale: int
    cut: int
    events: int
    texts: int
    seconds: float
    requests_per_s: float
    events_per_s: float
    bytes_up: int
    bytes_down: int
    cpu_s: float
    latency: Values | None
    first_byte: Values | None
    delay: Values | None
    gap: Values | None
    failures: dict[str, int]
    status: int
    closed_ns: list[int]

    @property
    def failed(self) -> str:
        """Its failures in words, "" where there are none."""
        told = ", ".join(f"{count} {kind}" for kind, count in self.failures.items())
        return f"{told}{f' (last status {self.status})' if self.status else ''}" if told else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One load: whom to ask what, how many clients, for how long. `more` are words for the load generator."""

    body: Path
    clients: int
    seconds: float
    warm_s: float = 0.2
    path: str = "/v1/chat/completions"
    more: Sequence[str] = field(default_factory=tuple)


def drive(load: Path, port: int, key: str, traffic: Traffic) -> Seen:
    """Run one load to its end. Raises BenchFault."""
    text = printed(
        (
            *(str(load), "--port", str(port), "--path", traffic.path, "--body", str(traffic.body)),
            *("--clients", str(traffic.clients), "--seconds", f"{traffic.seconds:g}", "--warm", f"{traffic.warm_s:g}"),
            *("--spread-ms", str(SPREAD_MS), "--key", key, *traffic.more),
        )
    )
    try:
        return msgspec.json.decode(text, type=Seen)
    except msgspec.DecodeError as error:
        raise BenchFault(f"the load generator's answer cannot be read ({error}): {text[:200]}") from None
