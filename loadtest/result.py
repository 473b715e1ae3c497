"""What a load test leaves behind: figures by class and role, what the server did, and everything over time.

Owns the shape, as types and as JSON: the first seven fields are public and keep their names, the others may grow. Must
never measure or judge a single request; what is unknown is None, never 0. Seconds throughout; those that end a name
`at_s` count from the first request of the run, the warm-up's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from loadtest.report import Row


class ResultFault(Exception):
    """A file that is no result of a load test; the sentence names the file and, where there is one, the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. `at_s` is when it was to be sent, which in an open loop may be before it was; `row` is the line of
    `classes` it counts in, `inter_token_s` the median of its gaps between texts. `warm_up`: it loaded a model."""

    role: str
    row: str
    job_class: str
    model: str
    at_s: float
    end_s: float
    status: int
    queue_s: float | None = None
    ttft_s: float | None = None
    inter_token_s: float | None = None
    tokens: int = 0
    job: int | None = None
    error: str = ""
    warm_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One step that the server let run, of anybody's; `end_s` is None where it had not ended with the run."""

    at_s: float
    end_s: float | None
    row: str
    job: int
    model: str
    device: str
    rule: str
    relief: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that the server did to a model: load, ready, evict, stop, exit, thrash …"""

    at_s: float
    event: str
    model: str
    device: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How it was at one moment: bytes by model (measured where they are, else estimated), bytes in use by device, and
    who waited, by class."""

    at_s: float
    models: Mapping[str, int]
    devices: Mapping[str, int]
    waiting: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error and how often it came, of one role."""

    role: str
    error: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Who was tested. `devices`: bytes by name. What it does not tell is empty."""

    url: str = ""
    version: str = ""
    engine: str = ""
    backend: str = ""
    devices: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A whole run. `settings` is what it takes to run it again; `measured_s` how long requests were counted for, from
    `measured_from_s` on. `left_out`: roles without traffic, and why; `notes`: what the reader must know beside."""

    classes: Mapping[str, Row]
    loads: int | None
    needless_loads: int | None
    evictions: int | None
    relief_steps: int | None
    seed: int
    settings: Mapping[str, Any]

    roles: Mapping[str, Row] = field(default_factory=dict)
    thrash: int | None = None
    failures: tuple[Failure, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    began: str = ""
    measured_from_s: float = 0.0
    measured_s: float = 0.0
    interrupted: bool = False
    server: Server = Server()
    machine: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[Request, ...] = ()
    grants: tuple[Grant, ...] = ()
    events: tuple[Event, ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def errors(self) -> int:
        """Requests that failed, those of the warm-up among them."""
        return sum(row.errors for row in self.classes.values())

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the run is no success, a sentence each; empty when it is one."""
        needless = self.needless_loads or 0
        told = (
            (self.errors, f"{self.errors} failed request{'s' * (self.errors != 1)}"),
            (needless, f"{needless} needless load{'s' * (needless != 1)}: the model had a process already"),
        )
        return tuple(sentence for number, sentence in told if number)

    def as_json(self) -> bytes:
        """One JSON object."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        """Raises ResultFault, which names the key."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ResultFault(str(error)) from None
        except RecursionError:
            raise ResultFault("nested too deep") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ResultFault, which names the file and the key."""
        try:
            return cls.from_json(path.read_bytes())
        except OSError as error:
            raise ResultFault(f"{path} cannot be read: {error.strerror or error}") from None
        except ResultFault as fault:
            raise ResultFault(f"{path} is no result of a load test: {fault}") from None
