"""One stretch of traffic: people who chat, an indexer and a writer in the background, or one side of that alone.

Owns who asks what, and when. Every stretch asks the same in the same order, so that two can be compared, texts and all.
Must never judge: `contention_result` does.
"""

from dataclasses import dataclass, field
from itertools import accumulate, count
from random import Random
from time import time

import trio

from loadtest import texts
from loadtest.bench.contention_server import CHAT, EMBEDDER, WRITER
from loadtest.clients import Client, Generated, Measured, Vector

BATCH_DOCUMENTS = 32
"""Documents of a request: one step of the scheduler's."""
SOLO_PART = 2 / 3
"""Of the time that people chat: the background alone needs less to show its rate."""
LONGEST_SECONDS = 600.0
"""No stretch takes longer, however slow the machine."""


class TrafficFault(Exception):
    """A request failed, so that nothing can be compared; the sentence is the server's."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked. Each of `people` asks for `chat_seconds`, and thinks for `think_seconds` (varied by a fifth,
    drawn from `seed`) after each answer; the background is there `lead_seconds` before them. The first
    `settle_seconds` with people do not count: what ran when they came has its end there. `patience_seconds`: how long
    what is under way at the end may take."""

    people: int = 2
    chat_seconds: float = 10.0
    think_seconds: float = 0.3
    chat_tokens: int = 24
    writer_tokens: int = 32
    documents: int = BATCH_DOCUMENTS
    sentences: int = 3
    lead_seconds: float = 0.5
    settle_seconds: float = 3.0
    patience_seconds: float = 60.0
    seed: int = 1


@dataclass(slots=True)
class Stretch:
    """What was seen. `began` and `ended` bound what counts, on trio's clock; `began_time` in seconds since the
    epoch.

    `token_at` are the moments of the writer's tokens, `indexed` moments and documents of the indexer's answers;
    `written` and `vectors` are the complete answers by their numbers. `beside` is what the server's log says.
    """

    chats: list[Measured] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    began_time: float = 0.0
    beside: float | None = None
    token_at: list[float] = field(default_factory=list)
    indexed: list[tuple[float, int]] = field(default_factory=list)
    written: dict[int, str] = field(default_factory=dict)
    vectors: dict[int, list[Vector]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long that was."""
        return self.ended - self.began

    @property
    def tokens_per_s(self) -> float:
        """Of the writer, while it counted."""
        return sum(self.began < at <= self.ended for at in self.token_at) / self.seconds

    @property
    def documents_per_s(self) -> float:
        """Of the indexer, by its answers while it counted."""
        return sum(number for at, number in self.indexed if self.began < at <= self.ended) / self.seconds


async def stretch(client: Client, load: Load, *, people: bool, background: bool) -> Stretch:
    """One stretch. What runs in the background at its end is waited for, so that the next one begins in peace. Raises
    TrafficFault."""
    run = _Run(client, load)
    with trio.move_on_after(LONGEST_SECONDS) as whole:
        async with trio.open_nursery() as nursery:
            if background:
                nursery.start_soon(run.write)
                nursery.start_soon(run.index)
                await trio.sleep(load.lead_seconds)
            settle_seconds = load.settle_seconds if people else 0.0
            run.seen.began = trio.current_time() + settle_seconds
            run.seen.began_time = time() + settle_seconds
            if people:
                await run.chat()
            else:
                await trio.sleep(load.chat_seconds * SOLO_PART)
            run.seen.ended = trio.current_time()
            run.over = True
            nursery.cancel_scope.deadline = trio.current_time() + load.patience_seconds
    if run.fault or whole.cancelled_caught:
        raise TrafficFault(run.fault or f"it did not end within {LONGEST_SECONDS:.0f} s")
    return run.seen


class _Run:
    def __init__(self, client: Client, load: Load) -> None:
        self._client, self._load = client, load
        self.seen = Stretch()
        self.over = False
        self.fault = ""

    async def chat(self) -> None:
        """All people, until their time is over; the last answers are waited for."""
        async with trio.open_nursery() as nursery:
            for person in range(self._load.people):
                nursery.start_soon(self._person, person)

    async def _person(self, person: int) -> None:
        load, random = self._load, Random(self._load.seed * 1000 + person)  # noqa: S311 - not for secrets
        until = trio.current_time() + load.settle_seconds + load.chat_seconds
        for turn in count():
            if trio.current_time() >= until or self.fault:
                return
            question = texts.question(person + turn * load.people)
            gave = await self._client.chat("chat", CHAT, question, tokens=load.chat_tokens, job_class="interactive")
            if gave.measured.due >= self.seen.began:
                self.seen.chats.append(gave.measured)
            self._note(gave.measured)
            await trio.sleep(load.think_seconds * random.uniform(0.8, 1.2))

    async def write(self) -> None:
        """One text after the other. Nothing of the one before is kept, so that each begins from the same state."""
        load = self._load
        for number in count():
            if self.over:
                return
            gave = await self._client.complete(
                "writer",
                WRITER,
                texts.task(number),
                tokens=load.writer_tokens,
                job_class="background",
                stream=True,
                more={"cache_prompt": False, "stream_options": {"include_usage": True}},
            )
            self._note(gave.measured)
            self.seen.token_at += token_times(gave)
            self.seen.written[number] = gave.text

    async def index(self) -> None:
        """One batch of documents after the other."""
        load = self._load
        for number in count():
            if self.over:
                return
            first = number * load.documents
            passages = [texts.passage(first + each, load.sentences) for each in range(load.documents)]
            gave = await self._client.embed("indexer", EMBEDDER, passages, job_class="background")
            self._note(gave.measured)
            self.seen.indexed.append((trio.current_time(), len(gave.vectors)))
            self.seen.vectors[number] = gave.vectors

    def _note(self, measured: Measured) -> None:
        if measured.error:
            self.fault = self.fault or f"{measured.row}: {measured.error}"
            self.over = True


def token_times(gave: Generated) -> list[float]:
    """When each text of a stream came, on the clock of its request."""
    one = gave.measured
    if one.first_token_seconds is None:
        return []
    return list(accumulate(one.gaps, initial=one.due + one.first_token_seconds))


async def warm_up(client: Client) -> None:
    """Have all three processes up. Raises TrafficFault."""
    chat = await client.chat("chat", CHAT, texts.question(0), tokens=1, job_class="interactive")
    wrote = await client.complete("writer", WRITER, texts.task(0), tokens=1, job_class="background")
    embedded = await client.embed("indexer", EMBEDDER, [texts.document(0)], job_class="background")
    for measured in (chat.measured, wrote.measured, embedded.measured):
        if measured.error:
            raise TrafficFault(f"{measured.row}: {measured.error}")
