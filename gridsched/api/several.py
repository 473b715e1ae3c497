"""Requests for several completions, `n` of them or one for each of a list of prompts: each is a step of its own (S3).

An engine would make tasks of them all, which take every slot, those kept for chats too, and stand in its own queue
before whoever comes next (S6). Owns the cutting, and the putting together of what the steps answer. Must never look
into a text, nor answer with fewer completions than were asked for.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol

import msgspec

from gridsched.api.decode import InferenceRequest
from gridsched.api.members import BadBody, inner_members, items, members
from gridsched.api.reply import Kept, Reply
from gridsched.api.splice import splice
from gridsched.control.problems import Header, Problem, invalid
from gridsched.core.job import JobKind

MOST_PARTS = 2048
MOST_ANSWERS = 128
"""OpenAI's limit of `n`."""

LONGEST_EVENT_BYTES = 1024 * 1024
"""More is no event that could be told apart; it passes as it is."""

HTTP_OK = 200
_COUNTS: Final = ("n_cmpl", "n")  # the engine's own word goes before
_GENERATES: Final = frozenset((JobKind.CHAT, JobKind.COMPLETION, JobKind.RESPONSES, JobKind.MESSAGES, JobKind.INFILL))
_HAVE_CHOICES: Final = frozenset((JobKind.CHAT, JobKind.COMPLETION))
_EVENT, _EVENT_ENDS, _DONE, _LENGTH = b"data: ", b"\n\n", b"[DONE]", b"content-length"
_SEEDS: Final = 2**32
_ANY_SEED: Final = _SEEDS - 1
_ONE_PROMPT = re.compile(rb"\[[ \t\r\n]*[-0-9]")  # token numbers
_list = msgspec.json.Decoder(list[msgspec.Raw])
_number = msgspec.json.Decoder(float)


@dataclass(frozen=True, slots=True)
class Parts:
    """The members that each step's body has with a value of its own, and how many steps in a row are of one prompt.
    `seed` is the client's."""

    edits: tuple[Mapping[str, bytes], ...] = ({},)
    answers: int = 1
    seed: bytes = b""

    def bodies(self, edits: Mapping[str, bytes]) -> tuple[Mapping[str, bytes], ...]:
        """The members of each step's body that go up with another value; `edits` are those of them all."""
        seed = edits.get("seed", self.seed)
        return tuple({**edits, **each, **_seed(seed, part % self.answers)} for part, each in enumerate(self.edits))


ONE: Final = Parts()


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


_usage = msgspec.json.Decoder(_Usage)


# --- before: cutting --------------------------------------------------------------------------------------------------


def parts_of(request: InferenceRequest) -> Parts:
    """The steps of a request; `ONE` for one completion. What is wrong in itself is left to the engine. Raises
    RequestError."""
    if request.route.kind not in _GENERATES:
        return ONE
    spans = {member.key: member for member in request.members}
    held: dict[str, bytes] = {
        key: request.body[spans[key].value_start : spans[key].end]
        for key in ("prompt", "seed", *_COUNTS)
        if key in spans
    }
    word = next((key for key in _COUNTS if held.get(key, b"null") != b"null"), "n")
    count = _whole(held.get(word, b"1"))
    if count > 1 and request.route.kind not in _HAVE_CHOICES:
        raise invalid(f"{word}: an answer here is one", word)
    if count > MOST_ANSWERS:
        raise invalid(f"{word}: at most {MOST_ANSWERS} answers are given", word)
    prompts = _prompts(held["prompt"]) if request.route.kind is JobKind.COMPLETION else ()
    if count <= 1 and len(prompts) <= 1:
        return ONE
    answers = max(count, 1)
    if answers * len(prompts) > MOST_PARTS:
        raise invalid(f"at most {MOST_PARTS} answers are given in one request", "prompt")
    counts = dict.fromkeys((key for key in _COUNTS if key in held), b"1") if count > 1 else {}
    asked: list[dict[str, bytes]] = [{"prompt": bytes(prompt)} for prompt in prompts] if len(prompts) > 1 else [{}]
    edits = ({**counts, **each} for each in asked for _ in range(answers))
    return Parts(tuple(edits), answers, held.get("seed", b""))


def _whole(raw: bytes) -> int:
    """As the engine reads a number; 1 for what is none, which it refuses."""
    try:
        return int(_number.decode(raw))
    except msgspec.ValidationError:
        return 1


def _prompts(raw: bytes) -> Sequence[msgspec.Raw]:
    """Those of a list of several. A list with a number in it is one prompt."""
    if not raw.startswith(b"[") or _ONE_PROMPT.match(raw):
        return ()
    found = items(raw)
    return () if any(bytes(memoryview(each)[:1]) in b"-0123456789" for each in found) else found


def _seed(raw: bytes, number: int) -> Mapping[str, bytes]:
    """Answers to one prompt from one seed would be one answer."""
    if not number or not raw.isdigit() or int(raw) % _SEEDS == _ANY_SEED:
        return {}
    return {"seed": b"%d" % ((int(raw) + number) % _ANY_SEED)}


# --- after: joining ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sums:
    """What the steps so far have used. A prompt counts once, however many answers it has."""

    answers: int
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def added(self, raw: bytes, part: int) -> bytes:
        """`usage` of all up to this part, whose own is given."""
        used = _usage.decode(raw)
        self.completion_tokens += used.completion_tokens
        if part % self.answers == 0:
            self.prompt_tokens += used.prompt_tokens
        total = self.prompt_tokens + self.completion_tokens
        return b'{"completion_tokens":%d,"prompt_tokens":%d,"total_tokens":%d}' % (
            self.completion_tokens,
            self.prompt_tokens,
            total,
        )


class Parted(Reply, Protocol):
    """An answer that is put together from several steps."""

    def part_over(self) -> None:
        """What came is whole, and the next step's answer comes."""


@dataclass(slots=True)
class Gathered:
    """The plain way: nothing goes down before the last step has answered. An engine's refusal of one is the answer."""

    reply: Reply
    sums: Sums
    status: int = 0
    _headers: Sequence[Header] = ()
    _content: Kept = field(default_factory=Kept)
    _whole: Kept = field(default_factory=Kept)
    _ends: list[int] = field(default_factory=list)

    @property
    def begun_at(self) -> float | None:
        """When the answer began to go down."""
        return self.reply.begun_at

    def decided(self, headers: Sequence[Header]) -> None:
        """A step begins, or the job is refused."""
        self.reply.decided(headers)

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """Of a step that is run again what came before is forgotten."""
        self.status, self._headers = status, headers
        self._content = Kept()

    async def body(self, data: bytes) -> None:
        """Keep bytes. Raises RequestError where they are too many."""
        self._content.add(data)

    def part_over(self) -> None:
        """Keep what a step has answered. Raises RequestError where that is too much in all."""
        content = self._content.content
        self._whole.add(content)
        self._ends.append(len(content) + (self._ends[-1] if self._ends else 0))

    async def finish(self) -> bool:
        """The last step, or one that the engine refuses, has answered."""
        content, headers = self._content.content, self._headers
        if self.status == HTTP_OK:
            whole = self._whole.content
            answers = [whole[start:end] for start, end in pairwise((0, *self._ends))]
            try:
                content = _joined([*answers, content], self.sums)
            except (BadBody, KeyError, msgspec.DecodeError) as error:
                return await self.refuse(Problem("upstream_error", f"the engine's answer cannot be read: {error}"))
            headers = [each for each in headers if each[0] != _LENGTH]
        self.reply.begin(self.status, headers)
        await self.reply.body(content)
        return await self.reply.finish()

    async def refuse(self, problem: Problem) -> bool:
        """There is no answer."""
        self.status = problem.status
        return await self.reply.refuse(problem)


def _joined(answers: Sequence[bytes], sums: Sums) -> bytes:
    """The first answer with the choices of all. Raises BadBody, KeyError and msgspec.DecodeError."""
    choices: list[bytes] = []
    usage = b"null"
    for part, answer in enumerate(answers):
        held = _values(answer)
        choices += _numbered(held["choices"], part)
        if "usage" in held:
            usage = sums.added(held["usage"], part)
    first = members(answers[0])
    replaced = {"choices": b"[%b]" % b",".join(choices), "usage": usage}
    return splice(answers[0], first, replaced=replaced, removed=())


def _values(content: bytes) -> dict[str, bytes]:
    return {member.key: content[member.value_start : member.end] for member in members(content)}


def _numbered(choices: bytes, part: int) -> list[bytes]:
    return [
        splice(bytes(each), inner_members(bytes(each)), replaced={"index": b"%d" % part}, removed=())
        for each in _list.decode(choices)
    ]


@dataclass(slots=True)
class Renumbered:
    """The streamed way: the steps' events one after the other, under one id and with the choice that they are of. Only
    the last step's end is the end; `usage` is of all that has come."""

    reply: Reply
    sums: Sums
    parts: int
    status: int = 0
    _part: int = 0
    _id: bytes | None = None
    _has_events: bool = False
    _rest: bytes = b""

    @property
    def begun_at(self) -> float | None:
        """When the answer began to go down."""
        return self.reply.begun_at

    def decided(self, headers: Sequence[Header]) -> None:
        """A step begins, or the job is refused."""
        self.reply.decided(headers)

    def begin(self, status: int, headers: Sequence[Header]) -> None:
        """The engine's head has come."""
        self.status, self._rest = status, b""
        self._has_events = status == HTTP_OK
        self.reply.begin(status, headers)

    async def body(self, data: bytes) -> None:
        """Pass on the events that are whole; a refusal as it comes."""
        if self._has_events:
            *events, self._rest = (self._rest + data).split(_EVENT_ENDS)
            data = b"".join(map(self._event, events))
            if len(self._rest) > LONGEST_EVENT_BYTES:
                data, self._rest = data + self._rest, b""
        if data:
            await self.reply.body(data)

    def part_over(self) -> None:
        """The next choice's events come."""
        self._part += 1

    async def finish(self) -> bool:
        """The last step, or one that the engine refuses, has answered."""
        if self._rest:
            await self.reply.body(self._rest)
        return await self.reply.finish()

    async def refuse(self, problem: Problem) -> bool:
        """There is no answer, or no rest of it."""
        self.status = problem.status
        return await self.reply.refuse(problem)

    def _event(self, event: bytes) -> bytes:
        """One event as it goes down, b"" for none. What has no choices is passed on: an error ends the stream."""
        last = self._part + 1 == self.parts
        data = event.removeprefix(_EVENT)
        if data == _DONE and not last:
            return b""
        try:
            held = _values(data)
            choices = _numbered(held["choices"], self._part)
        except (BadBody, KeyError, msgspec.DecodeError):
            if data.startswith(b'{"error"'):
                self.status = Problem("upstream_error", "").status
            return event + _EVENT_ENDS
        replaced = {"choices": b"[%b]" % b",".join(choices)}
        if held.get("usage", b"null") != b"null":
            replaced["usage"] = self.sums.added(held["usage"], self._part)
            if not choices and not last:
                return b""
        if "id" in held:
            self._id = replaced["id"] = self._id or held["id"]
        return _EVENT + splice(data, members(data), replaced=replaced, removed=()) + _EVENT_ENDS


def parted(reply: Reply, parts: Parts, *, stream: bool) -> tuple[Reply, Callable[[], None]]:
    """The reply to the steps, and what to tell when one is over and the next begins."""
    if len(parts.edits) == 1:
        return reply, lambda: None
    sums = Sums(parts.answers)
    several: Parted = Renumbered(reply, sums, len(parts.edits)) if stream else Gathered(reply, sums)
    return several, several.part_over
