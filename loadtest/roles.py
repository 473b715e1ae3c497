"""Who makes traffic: each role's class, its pace, and what it asks, turn by turn.

Owns the roles and the mixes of them. Must never send anything, and never draw but from the generator that it is given:
the same seed asks the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from loadtest import pictures, texts
from loadtest.clients import Message
from loadtest.report import EMBEDDINGS_ROW

SPREAD = 0.20
"""How far a pause is from its usual length, either way; of the length of an answer, see `LENGTH_SPREAD`."""

LENGTH_SPREAD = 0.14
MOST_TURNS = 4
"""A conversation grows by so many questions, then a new one begins."""

CHUNK, CHUNKS = 32, (2, 2, 3)
"""Inputs in one step of the server's, and steps of an embeddings request, two being the more usual."""

DOCUMENT_SENTENCES, MANUAL_SENTENCES = 10, 60


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to make: the messages of a chat, or the texts to embed."""

    messages: Sequence[Message] = ()
    documents: Sequence[str] = ()
    tokens: int = 0


class Script(Protocol):
    """What one client asks, one after the other."""

    def ask(self) -> Ask:
        """The next request."""

    def heard(self, text: str) -> None:
        """What was answered; empty where nothing was."""


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of client. `row` is its line among the classes, `post` which of the chosen models it works with,
    `think_s` the usual pause between an answer and the next request, `tokens` the usual length of an answer."""

    name: str
    row: str
    job_class: str
    post: str
    think_s: float
    tokens: int
    streams: bool
    does: str

    def script(self, rng: Random) -> Script:
        """A client's script."""
        match self.name:
            case "chat":
                return _Conversation(rng, self.tokens)
            case "agent":
                return _Agent(rng, self.tokens)
            case "screenshot":
                return _Looking(rng, self.tokens, "What is open on this screen, and what should be done next?")
            case "ocr":
                return _Looking(rng, self.tokens, "Write down all of the text in this picture, line by line.")
            case "embed" | "index":
                return _Documents(rng)
        return _Tasks(rng, self.tokens)

    def pause_s(self, rng: Random) -> float:
        """How long a client thinks this time."""
        return self.think_s * rng.uniform(1 - SPREAD, 1 + SPREAD)


ROLES = {
    role.name: role
    for role in (
        Role("chat", "interactive", "interactive", "chat", 1.5, 42, True, "people who chat, streamed"),
        Role(
            "background", "background", "background", "background", 0.45, 45, False, "generations, one after the other"
        ),
        Role("batch", "batch", "batch", "batch", 0.45, 53, False, "generations in class batch"),
        Role("embed", EMBEDDINGS_ROW, "background", "embed", 0.45, 0, False, "documents to embed"),
        Role("agent", "background", "background", "background", 0.2, 96, True, "a coding agent with a long prompt"),
        Role("screenshot", "background", "background", "vision", 5.0, 48, True, "screenshots to describe"),
        Role("index", EMBEDDINGS_ROW, "background", "embed", 1.0, 0, False, "an indexer of documents"),
        Role("ocr", "batch", "batch", "vision", 1.0, 96, False, "pictures to read, in class batch"),
    )
}

MIXES: Mapping[str, Mapping[str, int]] = {
    "published": {"chat": 6, "background": 8, "batch": 4, "embed": 2},
    "ambient": {"chat": 2, "agent": 1, "screenshot": 1, "index": 1, "ocr": 1},
}
"""How many clients of which role. The first is the load of `sim/scenarios/4060ti-mixed.yaml`: its pauses, and answers
that are as long on the simulated card."""


# --- scripts ----------------------------------------------------------------------------------------------------------


_MANUAL: Message = {
    "role": "system",
    "content": "You are a coding agent. Answer with one call of a tool. The tools:\n"
    + "\n".join(f"tool_{number}: {texts.document(number)}" for number in range(MANUAL_SENTENCES)),
}
"""What stands before each of an agent's tasks: an engine that keeps prompts reads it once."""


class _Conversation:
    """Somebody who asks, reads, and asks again about the same."""

    def __init__(self, rng: Random, tokens: int) -> None:
        self._rng, self._tokens = rng, tokens
        self._said: list[Message] = []
        self._turns = 0

    def ask(self) -> Ask:
        if self._turns == 0:
            self._said, self._turns = [], self._rng.randint(1, MOST_TURNS)
        self._turns -= 1
        self._said.append(_user(texts.question(self._rng.randrange(texts.MANY))))
        return Ask(tuple(self._said), tokens=_length(self._rng, self._tokens))

    def heard(self, text: str) -> None:
        if text:
            self._said.append({"role": "assistant", "content": text})
        else:
            self._turns = 0


class _Agent:
    """A program that works through a task: one long manual before every task, then what its tools say."""

    def __init__(self, rng: Random, tokens: int) -> None:
        self._rng, self._tokens = rng, tokens
        self._said: list[Message] = []

    def ask(self) -> Ask:
        number = self._rng.randrange(texts.MANY)
        if len(self._said) in (0, 2 * MOST_TURNS + 1):
            self._said = [_MANUAL, _user(f"The task: {texts.task(number)}")]
        else:
            self._said.append(_user(f"tool_{number % MANUAL_SENTENCES} says: {texts.document(number)}"))
        return Ask(tuple(self._said), tokens=_length(self._rng, self._tokens))

    def heard(self, text: str) -> None:
        if text:
            self._said.append({"role": "assistant", "content": text})
        else:
            self._said = []


class _Tasks:
    """A program that has one text after the other written."""

    def __init__(self, rng: Random, tokens: int) -> None:
        self._rng, self._tokens = rng, tokens

    def ask(self) -> Ask:
        task = texts.task(self._rng.randrange(texts.MANY))
        return Ask((_user(task),), tokens=_length(self._rng, self._tokens))

    def heard(self, text: str) -> None:
        """Nobody reads it."""


class _Looking(_Tasks):
    """The same with a picture each."""

    def __init__(self, rng: Random, tokens: int, question: str) -> None:
        super().__init__(rng, tokens)
        self._question = question

    def ask(self) -> Ask:
        image = {"type": "image_url", "image_url": {"url": pictures.as_url(self._rng.randrange(texts.MANY))}}
        content = [{"type": "text", "text": self._question}, image]
        return Ask(({"role": "user", "content": content},), tokens=_length(self._rng, self._tokens))


class _Documents:
    """An indexer: some steps' worth of documents a request."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def ask(self) -> Ask:
        first, count = self._rng.randrange(texts.MANY), CHUNK * self._rng.choice(CHUNKS)
        return Ask(documents=[texts.passage(first + number, DOCUMENT_SENTENCES) for number in range(count)])

    def heard(self, text: str) -> None:
        """Vectors have no text."""


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _length(rng: Random, usual: int) -> int:
    return round(usual * rng.uniform(1 - LENGTH_SPREAD, 1 + LENGTH_SPREAD))
