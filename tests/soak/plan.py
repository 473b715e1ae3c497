"""What happens in a run, drawn from a seed before it begins: the same seed is the same schedule."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

REQUESTS_PER_SECOND = 14.0
HARMS_PER_SECOND = 0.6
BURST_SECONDS, LULL_SECONDS = 6.0, 3.0
"""People chat in bursts; in between low work has the machine."""

CHATS = ("large-a", "large-b", "middle", "fragile")
EMBEDDER, BATCH, REAL = "embedder", "batch", "real"

ENDS: Mapping[str, int] = {"whole": 80, "leaves": 8, "breaks off": 5, "reads slowly": 5, "is killed": 2}
"""How clients end, by weight."""

HARMS: Mapping[str, int] = {
    "kill": 5,
    "stop": 4,
    "exit while loading": 2,
    "exit at a request": 3,
    "hang": 1,
    "device error": 1,
    "no HTTP": 2,
    "cut answer": 2,
    "flood": 3,
    "ignore TERM": 2,
    "grow": 2,
}
"""What goes wrong, by weight."""

FATAL = frozenset(("exit at a request", "no HTTP", "cut answer", "device error"))
"""What costs every process that is asked for anything meanwhile its life: short, or all models would be in back-off."""

SIGNALS = frozenset(("kill", "stop"))
"""All that can be done to a real engine."""


@dataclass(frozen=True)
class Ask:
    """One request. `size`: tokens, or inputs; `until_seconds`: when a client that does not wait for the end goes."""

    at: float
    model: str
    kind: str
    size: int
    end: str
    until_seconds: float


@dataclass(frozen=True)
class Harm:
    """One fault done to one model for so long."""

    at: float
    model: str
    kind: str
    seconds: float


@dataclass(frozen=True)
class Plan:
    """A run."""

    asks: tuple[Ask, ...]
    harms: tuple[Harm, ...]


def draw(seed: int, seconds: float, *, real: bool) -> Plan:
    """The schedule of a run. `real`: there is a model on the real engine."""
    source = random.Random(seed)  # noqa: S311 - a schedule, no secret
    chats = (*CHATS, REAL) if real else CHATS
    return Plan(tuple(_asks(source, seconds, chats)), tuple(_harms(source, seconds, chats)))


def _asks(source: random.Random, seconds: float, chats: tuple[str, ...]) -> list[Ask]:
    asks: list[Ask] = []
    at = 0.0
    while (at := at + source.expovariate(REQUESTS_PER_SECOND)) < seconds:
        kind = source.choices(("stream", "plain", "embeddings", "batch"), (5, 3, 2, 1))[0]
        if at % (BURST_SECONDS + LULL_SECONDS) > BURST_SECONDS and kind in ("stream", "plain"):
            continue
        model = {"embeddings": EMBEDDER, "batch": BATCH}.get(kind) or source.choice(chats)
        size = source.randint(1, 90) if kind == "embeddings" else source.randint(1, 40)
        end = source.choices(tuple(ENDS), tuple(ENDS.values()))[0]
        asks.append(Ask(at, model, kind, size, end, source.uniform(0.0, 1.0)))
    return asks


def _harms(source: random.Random, seconds: float, chats: tuple[str, ...]) -> list[Harm]:
    harms: list[Harm] = []
    at = 2.0
    while (at := at + source.expovariate(HARMS_PER_SECOND)) < seconds:
        kind = source.choices(tuple(HARMS), tuple(HARMS.values()))[0]
        model = source.choice((*chats, EMBEDDER, BATCH))
        if model == REAL and kind not in SIGNALS:
            kind = "kill"
        if kind == "exit while loading":
            model = "fragile"  # others would be in back-off for most of the run
        longest_seconds = 0.4 if kind in FATAL else 1.8
        harms.append(Harm(at, model, kind, source.uniform(0.1, longest_seconds)))
    return harms
