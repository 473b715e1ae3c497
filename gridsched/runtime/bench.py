"""One engine process of a benchmark, beside the scheduler: started, asked by its own clock, ended.

Owns the questions and the arithmetic of the answers. The process is in nobody's ledger and serves no client: whoever
calls this has the devices to itself, by a lease, so that what the process holds there is memory of somebody else (L3,
R8). Must never be started elsewhere, never outlive its block, and never count as anybody's use of the model.

Why not by the scheduler's own load: its process would have eight slots that no client asked for, would be evicted,
moved and given to clients by rules that are for their good, and what is measured would be what they do meanwhile.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Final

import trio

from gridsched.core.events import Event, Failure, InstanceExited, InstanceReady
from gridsched.core.ids import InstanceId
from gridsched.ports import Capability, Engine, Launch, Upstream, UpstreamFailure

LEVELS: Final = (1, 2, 4, 8)
ROUND_SECONDS = 4.0
"""What a solo answer should take, so that its speed shows, as far as the bounds of its tokens allow."""

LONGEST_ROUND_SECONDS = 15.0
MOST_SECONDS = 90.0
"""A level whose answers took longer is not asked twice, and after so much in all there is no further level."""

LEAST_TOKENS, MOST_TOKENS = 16, 128
PROMPT_WORDS = 96
ANSWER_SECONDS = 120.0
"""One answer that takes longer is no figure."""

LONGEST_ANSWER_BYTES = 4 << 20
INPUTS = 32
INPUT_ROUNDS = 4
WORTH_OF_SOLO = 0.65
WORTH_IN_SUM = 1.15
"""Recommended are the most streams of which each keeps 65 % of a single one's speed while all of them write 15 % more
in sum than the level below."""

_WORDS: Final = (
    *("river", "stone", "lamp", "winter", "garden", "letter", "engine", "harbour", "music", "yellow", "table"),
    *("forest", "market", "window", "story", "bridge", "captain", "copper", "village", "number", "silver", "morning"),
    *("paper", "circle", "ocean", "mountain", "doctor", "shadow", "island", "castle", "wheel", "answer"),
)
_HEADERS: Final = ((b"content-type", b"application/json"),)

Step = Callable[[str], None]
"""Is told what begins now."""


class BenchFailed(Exception):
    """There is no figure: one sentence, and why the process ended, where that is why."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


class Benches:
    """One benchmark at a time, each process with a number that the scheduler gives to none of its own."""

    def __init__(self) -> None:
        self.turn = trio.Lock()
        self._last = 0
        self._model = ""

    @asynccontextmanager
    async def of(self, model: str) -> AsyncIterator[None]:
        """While this model is measured."""
        async with self.turn:
            self._model = model
            yield

    @property
    def model(self) -> str:
        """Which one is being measured, so that its files are read; "" for none."""
        return self._model if self.turn.locked() else ""

    def number(self) -> InstanceId:
        """For the next process: below those of the scheduler."""
        self._last -= 1
        return InstanceId(self._last)


@dataclass(frozen=True, slots=True)
class LevelFound:
    """So many answers at once: tokens a second of each and of all, and seconds to the first token."""

    streams: int
    tokens_per_second: float
    total_tokens_per_second: float
    first_token_seconds: float


@dataclass(slots=True)
class _Life:
    """How the process stands."""

    ready: trio.Event = field(default_factory=trio.Event)
    exited: trio.Event = field(default_factory=trio.Event)
    failure: Failure | None = None

    def heard(self, event: Event) -> None:
        """What the engine posts."""
        if isinstance(event, InstanceReady):
            self.ready.set()
        elif isinstance(event, InstanceExited):
            self.failure = event.failure
            self.exited.set()
            self.ready.set()


@dataclass(frozen=True, slots=True)
class Bench:
    """A process that is ready, and is asked."""

    upstream: Upstream
    instance_id: InstanceId
    launch: Launch

    @classmethod
    @asynccontextmanager
    async def started(
        cls, engine: Engine, upstream: Upstream, instance_id: InstanceId, launch: Launch, nursery: trio.Nursery
    ) -> "AsyncIterator[Bench]":
        """The process for the length of a block; it is gone when the block has been left, or `nursery`, which has its
        life, is cancelled. Raises BenchFailed."""
        life = _Life()
        nursery.start_soon(partial(engine.run, instance_id, launch, life.heard), name=f"benchmark {launch.model}")
        try:
            await life.ready.wait()
            if life.exited.is_set():
                raise BenchFailed(_ended(life.failure), life.failure)
            yield cls(upstream, instance_id, launch)
        finally:
            # Nobody's answer is in it, and one that works on a prompt hears a TERM only seconds later: a chat may wait.
            engine.stop(instance_id, at_once=True)
            with trio.CancelScope(shield=True):
                await life.exited.wait()

    async def levels(self, step: Step) -> tuple[LevelFound, ...]:
        """Answers at one, two, four and eight at once, as far as there are slots. Raises BenchFailed."""
        step("warming up")
        speed = (await self._complete("warm up", 8)).tokens_per_second
        tokens = min(max(int(speed * ROUND_SECONDS), LEAST_TOKENS), MOST_TOKENS)
        found: list[LevelFound] = []
        began_at = trio.current_time()
        for streams in LEVELS:
            spent = trio.current_time() - began_at
            if streams > self.launch.option.parallel or (found and spent > MOST_SECONDS):
                break
            step(f"{streams} at once")
            rounds = [await self._round(streams, 0, tokens)]
            if trio.current_time() - began_at - spent < LONGEST_ROUND_SECONDS:
                rounds.append(await self._round(streams, 1, tokens))
            found.append(_mean(streams, rounds))
        return tuple(found)

    async def _round(self, streams: int, turn: int, tokens: int) -> LevelFound:
        told: list[_Timings] = []
        failed: list[BenchFailed] = []

        async def one(stream: int) -> None:
            try:
                told.append(await self._complete(f"{streams}/{turn}/{stream}", tokens))
            except BenchFailed as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            for stream in range(streams):
                nursery.start_soon(one, stream)
        if failed:
            raise failed[0]
        speeds = [each.tokens_per_second for each in told]
        return LevelFound(streams, fmean(speeds), sum(speeds), fmean(each.prompt_seconds for each in told))

    async def _complete(self, name: str, tokens: int) -> "_Timings":
        body = {
            "model": self.launch.model,
            "prompt": _prompt(name, self._prompt_words()),
            "max_tokens": tokens,
            "ignore_eos": True,
            "cache_prompt": False,
            "temperature": 0.0,
            "stream": False,
        }
        return _timings(await self._ask("/v1/completions", body))

    def _prompt_words(self) -> int:
        return max(1, min(PROMPT_WORDS, self.launch.option.ctx_size // self.launch.option.parallel // 8))

    async def inputs_per_second(self, step: Step) -> float:
        """How many short texts an embedder, or a reranker, works through. Raises BenchFailed."""
        step("warming up")
        await self._embed("warm up")
        step(f"{INPUTS} inputs at once")
        began_at = trio.current_time()
        for turn in range(INPUT_ROUNDS):
            await self._embed(str(turn))
        return INPUTS * INPUT_ROUNDS / max(trio.current_time() - began_at, 1e-6)

    async def _embed(self, name: str) -> None:
        texts = [_prompt(f"{name}/{index}", self._prompt_words() // 4 or 1) for index in range(INPUTS)]
        if Capability.RERANK in self.launch.capabilities:
            await self._ask("/v1/rerank", {"model": self.launch.model, "query": texts[0], "documents": texts})
        else:
            await self._ask("/v1/embeddings", {"model": self.launch.model, "input": texts})

    async def _ask(self, path: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """One whole answer. Raises BenchFailed."""
        try:
            with trio.fail_after(ANSWER_SECONDS):
                status, data = await self._exchange(path, json.dumps(body).encode())
        except trio.TooSlowError:
            raise BenchFailed(f"an answer took longer than {ANSWER_SECONDS:.0f} s") from None
        except UpstreamFailure as error:
            raise BenchFailed(f"the engine broke off: {error.message}") from None
        try:
            told = json.loads(data)
        except ValueError:
            told = None
        if status != 200 or not isinstance(told, dict):  # noqa: PLR2004 - HTTP's word for well
            raise BenchFailed(f"the engine answered {status}: {data[:200].decode(errors='replace')}")
        return told

    async def _exchange(self, path: str, body: bytes) -> tuple[int, bytes]:
        data = bytearray()
        async with self.upstream.request(self.instance_id, "POST", path, _HEADERS, body) as answer:
            while part := await answer.receive():
                data += part
                if len(data) > LONGEST_ANSWER_BYTES:
                    raise BenchFailed("the engine's answer is longer than any can be")
            return answer.status, bytes(data)


@dataclass(frozen=True, slots=True)
class _Timings:
    """What an engine says of one answer."""

    prompt_seconds: float
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def recommended(levels: Sequence[LevelFound]) -> int:
    """The slots that are worth running: the largest level that is, else one."""
    worth = [
        level.streams
        for below, level in pairwise(levels)
        if level.tokens_per_second >= WORTH_OF_SOLO * levels[0].tokens_per_second
        and level.total_tokens_per_second >= WORTH_IN_SUM * below.total_tokens_per_second
    ]
    return max(worth, default=1)


def _timings(told: Mapping[str, object]) -> _Timings:
    """The engine's own `timings`. Raises BenchFailed."""
    said = told.get("timings")
    figures = {
        name: float(value)
        for name, value in (said.items() if isinstance(said, dict) else ())
        if isinstance(value, int | float) and value > 0
    }
    try:
        return _Timings(figures["prompt_ms"] / 1e3, int(figures["predicted_n"]), figures["predicted_ms"] / 1e3)
    except KeyError:
        raise BenchFailed("the engine does not say how long it took (timings)") from None


def _mean(streams: int, rounds: Sequence[LevelFound]) -> LevelFound:
    return LevelFound(
        streams,
        fmean(each.tokens_per_second for each in rounds),
        fmean(each.total_tokens_per_second for each in rounds),
        fmean(each.first_token_seconds for each in rounds),
    )


def _prompt(name: str, words: int) -> str:
    """A text that no other one begins like: what an engine remembers of one is of no use for another."""
    digest = hashlib.shake_256(name.encode()).digest(words)
    return " ".join(_WORDS[each % len(_WORDS)] for each in digest)


def _ended(failure: Failure | None) -> str:
    return failure.message if failure is not None else "the engine ended before it was ready"
