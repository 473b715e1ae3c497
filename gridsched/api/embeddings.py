"""Embeddings (S3): a request's inputs in chunks, each chunk one step, and one assembled answer in input order.

Owns the cutting, the checking and the joining. Inputs and vectors stay raw slices of JSON: neither is ever turned into
Python numbers or text. Must never answer with fewer vectors than there were inputs, nor with one that is not finite.
"""

import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import msgspec
import trio

from gridsched.api.body import beside
from gridsched.api.decode import InferenceRequest
from gridsched.api.exchange import send_whole
from gridsched.api.judged import fault_of_client
from gridsched.api.members import BadBody, Member, items
from gridsched.api.reply import CollectedReply
from gridsched.api.seat import Seat
from gridsched.api.settings import LARGE_BODY_BYTES
from gridsched.api.splice import OURS, splice
from gridsched.control.problems import Header, Problem, RequestError, invalid
from gridsched.core.job import OutcomeKind

MAX_INPUTS = 2048
"""OpenAI's limit."""
MOST_TOKENS = 1_000_000
"""Of one input: no engine takes as many, and to look at more takes a while."""

HTTP_OK, BAD_REQUEST, SERVER_ERROR = 200, 400, 500
JSON_ALONE: Sequence[Header] = ((b"content-type", b"application/json"),)
EMPTY_BYTES = 2  # of `[]` and `""`
NOT_FINITE = "nan_embedding"
DIFFERENT_LENGTHS = "the engine gave vectors of different lengths"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a request is run: raw inputs, and the range of inputs that each step takes."""

    body: bytes
    members: tuple[Member, ...]
    model: str
    inputs: tuple[bytes, ...]
    chunks: tuple[range, ...]
    removed: frozenset[str]

    def chunk_body(self, chunk: range) -> bytes:
        """The body of one step. A request that is one step keeps its input's own bytes."""
        replaced = {"model": msgspec.json.encode(self.model)}
        if len(self.chunks) > 1:
            replaced["input"] = b"[" + b",".join(self.inputs[chunk.start : chunk.stop]) + b"]"
        return splice(self.body, self.members, replaced=replaced, removed=self.removed)


class _Item(msgspec.Struct):
    index: int
    embedding: msgspec.Raw


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    total_tokens: int = 0


class _Answer(msgspec.Struct):
    data: list[_Item]
    usage: _Usage = msgspec.field(default_factory=_Usage)


_answers = msgspec.json.Decoder(_Answer)
_FIRST = re.compile(rb"\[[ \t\r\n]*(.)", re.DOTALL)
_Token = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]  # beyond that an engine takes it for another one
_tokens = msgspec.json.Decoder(list[_Token])
_BARE = re.compile(rb"[\[,:]\s*-?(?:nan|inf)", re.IGNORECASE)
_HUGE = re.compile(rb"[eE]\+?[0-9]{3}")
_OF_NUMBERS = b"0123456789+-.eE, \t\r\n"
_EXPONENT = 0x7F, 0x80
"""The bits of a float's exponent in its two highest bytes; in one that is no number all of them are set."""


# --- before: cutting --------------------------------------------------------------------------------------------------


def plan(request: InferenceRequest, model: str, chunk: int) -> Plan:
    """Cut a request into steps of `chunk` inputs. Raises RequestError."""
    raw = {member.key: request.body[member.value_start : member.end] for member in request.members}
    encoding = raw.get("encoding_format", b"null")
    if encoding not in {b"null", b'"float"', b'"base64"'}:
        raise invalid('encoding_format must be "float" or "base64"', "encoding_format")
    inputs = split_inputs(raw["input"])
    chunks = tuple(range(start, min(start + chunk, len(inputs))) for start in range(0, len(inputs), chunk))
    removed = (
        OURS | {"encoding_format"} if encoding == b"null" else OURS
    )  # null is float, which the engine does not know
    return Plan(request.body, request.members, model, inputs, chunks, removed)


def split_inputs(raw: bytes) -> tuple[bytes, ...]:
    """The inputs as raw JSON: a text, token numbers (one input), or a list of either. Raises RequestError."""
    if raw.startswith(b'"'):
        _check_text(raw, "input")
        return (raw,)
    first = _FIRST.match(raw)
    if first is not None and first[1] in b"-0123456789":
        _check_tokens(raw, "input")
        return (raw,)
    if first is None or first[1] not in b'"[]':
        raise _no_inputs()
    try:
        slices = items(raw)
    except BadBody as error:
        raise invalid(f"input: {error}; at most {MAX_INPUTS} are taken in one request", "input") from None
    if not slices:
        raise invalid("input is empty", "input")
    if len(slices) > MAX_INPUTS:
        raise invalid(f"input has {len(slices)} items; at most {MAX_INPUTS} are taken in one request", "input")
    inputs = tuple(map(bytes, slices))
    kinds = {item[:1] for item in inputs}
    if kinds not in ({b'"'}, {b"["}):
        raise _no_inputs()
    check = _check_text if kinds == {b'"'} else _check_tokens
    for index, item in enumerate(inputs):
        check(item, f"input[{index}]")
    return inputs


def _no_inputs() -> RequestError:
    return invalid("input must be texts only, or lists of token numbers only", "input")


def _check_text(raw: bytes, where: str) -> None:
    if raw == b'""':
        raise invalid(f"{where} is an empty text", "input")


def _check_tokens(raw: bytes, where: str) -> None:
    if raw.count(b",") >= MOST_TOKENS:
        raise invalid(f"{where} has more than {MOST_TOKENS} tokens", "input")
    try:
        tokens = _tokens.decode(raw)
    except msgspec.ValidationError:
        raise invalid(f"{where} is not a list of token numbers", "input") from None
    if not tokens:
        raise invalid(f"{where} is empty", "input")


# --- after: checking and joining --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vectors:
    """What one step gave: raw vectors in input order, the width of them all, and its tokens."""

    raw: tuple[bytes, ...]
    width: int
    prompt_tokens: int
    total_tokens: int


def read_vectors(content: bytes, count: int) -> Vectors:
    """The vectors of one engine's answer to `count` inputs. Raises RequestError: 502 for what cannot be passed on."""
    try:
        answer = _answers.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if _BARE.search(content):
            raise _not_finite() from None
        raise _unusable(f"the engine's embeddings cannot be read: {error}") from None
    ordered: list[bytes] = [b""] * count
    for item in answer.data:
        if 0 <= item.index < count:
            ordered[item.index] = bytes(item.embedding)
    if len(answer.data) != count or not all(len(raw) > EMPTY_BYTES for raw in ordered):
        raise _unusable(f"the engine gave {len(answer.data)} vectors for {count} inputs")
    if not all(map(_is_finite, ordered)):
        raise _not_finite()
    return Vectors(tuple(ordered), _width(ordered), answer.usage.prompt_tokens, answer.usage.total_tokens)


def _is_finite(raw: bytes) -> bool:
    """Whether a raw vector holds numbers only, without making one of them. The engine writes a NaN as null."""
    if not raw.startswith(b'"'):
        small = raw.count(b"e-") + raw.count(b"E-") == raw.count(b"e") + raw.count(b"E")  # what a search would cost
        return raw.translate(None, _OF_NUMBERS) == b"[]" and (small or _HUGE.search(raw) is None)
    try:
        data = binascii.a2b_base64(raw[1:-1].replace(b"\\/", b"/"), strict_mode=True)
    except binascii.Error:
        return False
    if len(data) % 4:  # cut off within a number
        return False
    low, high = _EXPONENT
    tops = data[3::4]
    if low not in tops and low | high not in tops:
        return True
    return all(top & low != low or not second & high for top, second in zip(tops, data[2::4], strict=True))


def _width(vectors: Sequence[bytes]) -> int:
    """The same for vectors of one length and one encoding. Raises RequestError where they differ."""
    widths = {len(raw.replace(b"\\/", b"/")) if raw.startswith(b'"') else -raw.count(b",") for raw in vectors}
    if len(widths) > 1:
        raise _unusable(DIFFERENT_LENGTHS)
    return widths.pop()


def _not_finite() -> RequestError:
    return RequestError(Problem(NOT_FINITE, "the engine's vector holds a value that is no number", "input"))


def _unusable(message: str) -> RequestError:
    return RequestError(Problem("upstream_error", message))


def assembled(model: str, parts: Iterable[Vectors]) -> list[bytes]:
    """One OpenAI-shaped answer, indexed through all steps, with the usage summed: a piece for each step, because all of
    them in one would be copied while nobody else has a turn."""
    pieces, index, prompt_tokens, total_tokens = [b'{"object":"list","data":['], 0, 0, 0
    for step in parts:
        items: list[bytes] = []
        for raw in step.raw:
            items += (b'%s{"object":"embedding","index":%d,"embedding":' % (b"," if index else b"", index), raw, b"}")
            index += 1
        pieces.append(b"".join(items))
        prompt_tokens += step.prompt_tokens
        total_tokens += step.total_tokens
    usage = (msgspec.json.encode(model), prompt_tokens, total_tokens)
    pieces.append(b'],"model":%s,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % usage)
    return pieces


def assemble(model: str, parts: Iterable[Vectors]) -> bytes:
    """As `assembled`, in one piece: for a few."""
    return b"".join(assembled(model, parts))


def refused(status: int, content: bytes, chunk: range, *, alone: bool) -> Problem:
    """An engine's refusal of one step: its own bytes if the step was all there was, else naming the inputs. Where it
    wrongly says that the fault is its own the words are ours, and the fault the client's (see `judged`)."""
    if status == SERVER_ERROR and fault_of_client(content):
        status = BAD_REQUEST
    elif alone:
        return Problem(_code(status), _message(content), "input", passed_status=status, passed_body=content)
    first, last = chunk.start, chunk.stop - 1
    where = f"inputs {first} to {last}" if first < last else f"input {first}"
    detail = {"inputs": [first, last]}
    return Problem(_code(status), f"{where}: {_message(content)}", "input", detail=detail, passed_status=status)


def _code(status: int) -> str:
    return "invalid_request" if status < SERVER_ERROR else "upstream_error"


def _message(content: bytes) -> str:
    """The sentence in an engine's error body, else the body itself."""
    try:
        return str(msgspec.json.decode(content)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return content.decode("utf-8", "replace")


# --- the exchange -----------------------------------------------------------------------------------------------------


async def answer(seat: Seat, plan: Plan) -> bool:
    """Run the steps one after the other and send the one answer. Always whole."""
    done: list[Vectors] = []
    while True:
        grant = await seat.grant()
        if isinstance(grant, Problem):
            return await _refuse(seat, grant)
        chunk, reply = plan.chunks[len(done)], CollectedReply()
        outcome = await seat.run(grant, plan.chunk_body(chunk), reply)
        if outcome.kind in {OutcomeKind.ENGINE_DIED, OutcomeKind.DEVICE_FAULT}:
            seat.ticket.step_ended(replace(outcome, answered=False))  # nothing of it has reached the client
            continue
        stalled = outcome.kind is not OutcomeKind.DONE
        result = seat.broken(grant, outcome) if stalled else await _read(reply, chunk, done, plan)
        if isinstance(result, Problem):
            seat.ticket.end(outcome)
            if result.code == NOT_FINITE:
                seat.house.observer.vector_not_finite(grant.model)
            return await _refuse(seat, result)
        done.append(result)
        if len(done) == len(plan.chunks):
            seat.ticket.end(outcome)
            return await _send_all(seat, plan, done)
        seat.ticket.step_ended(outcome)


async def _read(reply: CollectedReply, chunk: range, done: Sequence[Vectors], plan: Plan) -> Vectors | Problem:
    content = reply.content
    if reply.status != HTTP_OK:
        return refused(reply.status, content, chunk, alone=len(plan.chunks) == 1)
    try:
        vectors = await beside(len(content), partial(read_vectors, content, len(chunk)))
    except RequestError as error:
        return error.problem
    if done and done[0].width != vectors.width:
        return _unusable(DIFFERENT_LENGTHS).problem
    return vectors


async def _refuse(seat: Seat, problem: Problem) -> bool:
    return await _send(seat, problem.status, problem.head(), problem.body())


def _taken(done: list[Vectors]) -> Iterator[Vectors]:
    """What was done, which is not kept beside what is made of it: it goes where that is made, and in no one's time."""
    done.reverse()
    while done:
        yield done.pop()


async def _send_all(seat: Seat, plan: Plan, done: list[Vectors]) -> bool:
    """The one answer. A large one goes down step by step, and waits for whoever reads it slowly; what has gone down is
    not kept."""
    size = sum(len(raw) for step in done for raw in step.raw)
    if size < LARGE_BODY_BYTES:
        return await _send(seat, HTTP_OK, JSON_ALONE, assemble(plan.model, done))
    pieces = await beside(size, partial(assembled, plan.model, _taken(done)))
    length = sum(map(len, pieces))
    seat.began_answering(trio.current_time())
    head = [*seat.headers(), *JSON_ALONE, (b"content-length", b"%d" % length)]
    await seat.exchange.send_start(HTTP_OK, head)
    pieces.reverse()
    while pieces:
        await seat.exchange.send_body(pieces.pop())
    seat.tally.code = HTTP_OK
    return True


async def _send(seat: Seat, status: int, headers: Sequence[Header], body: bytes) -> bool:
    seat.began_answering(trio.current_time())
    await send_whole(seat.exchange, status, [*seat.headers(), *headers], body)
    seat.tally.code = status
    return True
