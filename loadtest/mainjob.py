"""The main job as traffic: chat alone, then an embedding job, a batch of generations, and people who chat all the same.

Owns the order of things and what is asked; the server's models and address are told to it. Must never start or stop a
server, and never judge: `marks` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from loadtest import texts
from loadtest.clients import Client, Embedded, Generated, Measured, Vector
from loadtest.decisions import ENDINGS, LOW_CLASSES, Line
from loadtest.report import EMBEDDINGS_ROW

ALONE_ROW, CHAT_ROW, BATCH_ROW, SETUP_ROW = "chat alone", "interactive", "batch", "set-up"
QUIET_SECONDS = 2.3
"""Longer than the cool-down after a chat, so that the embedding job is under way when the first person speaks."""

BATCH_SECONDS = 0.1
FIRST_CHAT_SECONDS = 0.3
THINK_SECONDS = 0.3


class SetupFailure(Exception):
    """The server did not serve one request of each kind; the sentence is its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of which models. `people` is at most the chat model's slots, so that a chat finds one free.

    `patience_seconds` is how long low work may take after the last chat before the run is given up: a guess, two slow
    cores take 60 s.
    """

    chat_model: str
    batch_model: str
    embed_model: str
    chat_seconds: float
    people: int = 2
    chats_alone: int = 10
    chat_tokens: int = 24
    documents: int = 1000
    generations: int = 8
    generation_tokens: int = 32
    patience_seconds: float = 180.0

    @property
    def compared(self) -> tuple[int, ...]:
        """Documents that are also embedded alone, far enough apart to lie in different steps."""
        return (0, self.documents // 3, self.documents * 2 // 3, self.documents - 1)


@dataclass(slots=True)
class Progress:
    """How far the run is, for whoever shows it. `began` is trio's clock at the start of the mixed traffic."""

    phase: str = "starting"
    began: float | None = None
    chats_running: int = 0
    chats_done: int = 0
    generations_done: int = 0


@dataclass(slots=True)
class Result:
    """Everything that was measured. `first_text` is the first answer a person got, for showing."""

    measured: list[Measured] = field(default_factory=list)
    alone: dict[int, Vector] = field(default_factory=dict)
    job: Embedded = field(default_factory=lambda: Embedded(Measured(EMBEDDINGS_ROW, error="not finished in time")))

    def chats(self, row: str = CHAT_ROW) -> list[Measured]:
        """The measurements of one row."""
        return [one for one in self.measured if one.row == row]


class MainJob:
    """One run. `progress` and `result` are filled while it goes."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self.plan = plan
        self.progress = Progress()
        self.result = Result()
        self._client = client

    async def run(self) -> None:
        """All phases in order. Raises SetupFailure."""
        await self._set_up()
        self.progress.phase = "chat alone"
        await self._chat_alone()
        self.progress.phase = "quiet"
        await trio.sleep(QUIET_SECONDS)
        self.progress.phase, self.progress.began = "mixed", trio.current_time()
        self.progress.chats_done = 0
        with trio.move_on_after(self.plan.chat_seconds + self.plan.patience_seconds):
            await self._mixed()
        self.result.measured.append(self.result.job.measured)
        self.progress.phase = "done"

    async def _set_up(self) -> None:
        """Have both models loaded, and embed some documents alone to compare with later."""
        self.progress.phase = "loading the chat model"
        chat = await self._client.chat(SETUP_ROW, self.plan.chat_model, texts.question(0), tokens=1)
        _require(chat.measured)
        self.progress.phase = "loading the embedder"
        for place in self.plan.compared:
            one = await self._client.embed(SETUP_ROW, self.plan.embed_model, [texts.document(place)])
            _require(one.measured)
            self.result.alone[place] = one.vectors[0]

    async def _chat_alone(self) -> None:
        turns = -(-self.plan.chats_alone // self.plan.people)
        async with trio.open_nursery() as nursery:
            for person in range(self.plan.people):
                nursery.start_soon(self._turns, person, turns)

    async def _mixed(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._embedding_job)
            await trio.sleep(BATCH_SECONDS)
            for number in range(self.plan.generations):
                nursery.start_soon(self._generation, number)
            await trio.sleep(FIRST_CHAT_SECONDS - BATCH_SECONDS)
            for person in range(self.plan.people):
                nursery.start_soon(self._chat_until_over, person)

    async def _embedding_job(self) -> None:
        documents = texts.documents(self.plan.documents)
        self.result.job = await self._client.embed(
            EMBEDDINGS_ROW, self.plan.embed_model, documents, job_class="background"
        )

    async def _generation(self, number: int) -> None:
        gave = await self._client.complete(
            BATCH_ROW,
            self.plan.batch_model,
            texts.task(number),
            tokens=self.plan.generation_tokens,
            job_class="batch",
        )
        self.result.measured.append(gave.measured)
        self.progress.generations_done += 1

    async def _turns(self, person: int, turns: int) -> None:
        for turn in range(turns):
            await self._turn(ALONE_ROW, person, turn)

    async def _chat_until_over(self, person: int) -> None:
        until = trio.current_time() + self.plan.chat_seconds
        turn = 0
        while trio.current_time() < until:
            await self._turn(CHAT_ROW, person, turn)
            turn += 1

    async def _turn(self, row: str, person: int, turn: int) -> Generated:
        """One question and its answer, then a moment to read it."""
        self.progress.chats_running += 1
        question = texts.question(person + turn * self.plan.people)
        gave = await self._client.chat(row, self.plan.chat_model, question, tokens=self.plan.chat_tokens)
        self.progress.chats_running -= 1
        self.progress.chats_done += 1
        self.result.measured.append(gave.measured)
        await trio.sleep(THINK_SECONDS)
        return gave


def _require(measured: Measured) -> None:
    if measured.error:
        raise SetupFailure(measured.error)


def reported(result: Result) -> Sequence[Measured]:
    """The measurements the table shows: all but the set-up's, chat alone first."""
    order = {ALONE_ROW: 0, CHAT_ROW: 1, EMBEDDINGS_ROW: 2, BATCH_ROW: 3}
    return sorted(result.measured, key=lambda one: order[one.row])


def is_end_of_job(line: Line) -> bool:
    """Whether this line closes the embedding job: the last the marks need."""
    return line.event in ENDINGS and line.job_class in LOW_CLASSES and line.kind == "embeddings"
