"""Clients of an OpenAI-shaped server that measure every request they make.

Owns the requests (chat, completion, embeddings) and the reading of their answers. Must never retry, and never hide a
failure: whatever goes wrong ends as a `Measured` with an error. Each request uses a connection of its own, so a figure
never depends on what a pooled connection went through before.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import trio

from loadtest.sse import SseReader

QUEUE_HEADER = "X-Gridsched-Queue-Ms"
CLASS_HEADER = "X-Class"
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 300.0
"""How long a client waits for the next byte: low work waits behind every chat. A guess that covers any demo."""

Vector = list[float]
Reader = Callable[[httpx.Response], Awaitable[float | None]]
"""Reads an answer to its end; gives the clock's time of the first text of a stream, None where there is none."""


class AnswerFault(Exception):
    """An answer that is not what was asked for; the sentence becomes the request's error."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One request as its client saw it. `status` is 0 where no answer came; None is what could not be seen.

    `row` is the line of the report it counts in. `queue_seconds` is the server's own figure, the rest is the client's
    clock. `latency_seconds` runs from sending to the last byte, or from when it was to be sent (`due` on the clock),
    `first_token_seconds` to the first text of a stream, `gaps` are the seconds between its texts. `tokens` are those
    that were generated, as the server counts them, else the texts of the stream; `job` is the server's number of it.
    """

    row: str
    status: int = 0
    latency_seconds: float = 0.0
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    error: str = ""
    due: float = 0.0
    gaps: tuple[float, ...] = ()
    tokens: int = 0
    job: int | None = None


@dataclass(slots=True)
class Generated:
    """What a generation gave: its measurement, and its text."""

    measured: Measured
    text: str = ""


@dataclass(slots=True)
class Embedded:
    """What an embedding request gave: its measurement, the vectors in the order they came, and the `index` of each."""

    measured: Measured
    vectors: list[Vector] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)


@asynccontextmanager
async def connect(base_url: str) -> AsyncIterator["Client"]:
    """A client for as long as the block lasts."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, limits=limits, timeout=timeout) as http:
        yield Client(http)


class Client:
    """Makes requests, any number at a time. `job_class` travels as a header; None leaves it out."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def chat(
        self, row: str, model: str, prompt: str, *, tokens: int, job_class: str | None = None, stream: bool = True
    ) -> Generated:
        """One turn of a conversation, streamed unless told otherwise. `tokens` are generated, and where the engine
        knows `ignore_eos` no fewer, so that every turn is the same work."""
        message = {"role": "user", "content": prompt}
        body = _body(model, tokens) | {"messages": [message], "stream": stream}
        return await self._generate(row, "/v1/chat/completions", body, job_class)

    async def complete(
        self, row: str, model: str, prompt: str, *, tokens: int, job_class: str | None = None
    ) -> Generated:
        """One generation that nobody watches: not streamed."""
        return await self._generate(row, "/v1/completions", _body(model, tokens) | {"prompt": prompt}, job_class)

    async def embed(self, row: str, model: str, texts: list[str], *, job_class: str | None = None) -> Embedded:
        """One embedding request with all the texts."""
        gave = Embedded(Measured(row))

        async def read(answer: httpx.Response) -> None:
            raw = await answer.aread()
            # A thousand vectors take a tenth of a second to parse: in a thread, so that nobody else's clock stands.
            gave.vectors, gave.indexes = await trio.to_thread.run_sync(_vectors, raw)

        body = {"model": model, "input": texts, "encoding_format": "float"}
        gave.measured = await self._measure(row, "/v1/embeddings", body, job_class, read)
        return gave

    async def _generate(self, row: str, path: str, body: Mapping[str, object], job_class: str | None) -> Generated:
        gave = Generated(Measured(row))

        async def read_whole(answer: httpx.Response) -> None:
            gave.text = _text(_object(await answer.aread()))

        async def read_stream(answer: httpx.Response) -> float | None:
            first_text_at = None
            chat_stream = ChatStream()
            async for chunk in answer.aiter_bytes():
                gave.text += chat_stream.feed(chunk)
                if first_text_at is None and gave.text:
                    first_text_at = trio.current_time()
            chat_stream.end()
            return first_text_at

        read = read_stream if body.get("stream") else read_whole
        gave.measured = await self._measure(row, path, body, job_class, read)
        return gave

    async def _measure(
        self, row: str, path: str, body: Mapping[str, object], job_class: str | None, read: Reader
    ) -> Measured:
        headers = {CLASS_HEADER: job_class} if job_class else {}
        status, queue_seconds, first_text_at, error = 0, None, None, ""
        began = trio.current_time()
        try:
            async with self.http.stream("POST", path, json=body, headers=headers) as answer:
                status, queue_seconds = answer.status_code, _queue_seconds(answer.headers)
                if status == httpx.codes.OK:
                    first_text_at = await read(answer)
                else:
                    error = refusal(status, await answer.aread())
        except (httpx.HTTPError, AnswerFault) as fault:
            error = str(fault) or type(fault).__name__
        return Measured(
            row=row,
            status=status,
            latency_seconds=trio.current_time() - began,
            queue_seconds=queue_seconds,
            first_token_seconds=None if first_text_at is None else first_text_at - began,
            error=error,
        )


class ChatStream:
    """The text of a streamed answer, as its bytes arrive.

    A fault is kept until the end and raised there: an HTTP body that is left in the middle is not closed in good order,
    so the bytes that follow a fault are read and dropped.
    """

    def __init__(self) -> None:
        self._reader = SseReader()
        self._done = False
        self._fault = ""

    def feed(self, chunk: bytes) -> str:
        """The text that these bytes add; none after a fault."""
        if self._fault:
            return ""
        try:
            return "".join(map(self._text_of, self._reader.feed(chunk)))
        except (AnswerFault, ValueError) as fault:
            self._fault = str(fault)
            return ""

    def end(self) -> None:
        """The bytes are over. Raises AnswerFault for what a good stream never holds, or if it lacks its end."""
        if self._fault or not self._done:
            raise AnswerFault(self._fault or "the stream ended before [DONE]")

    def _text_of(self, data: str) -> str:
        if data == "[DONE]":
            self._done = True
            return ""
        frame = _object(data.encode())
        if "error" in frame:
            raise AnswerFault(f"in the stream: {_message(frame)}")
        return _text(frame)


# --- reading answers --------------------------------------------------------------------------------------------


def refusal(status: int, raw: bytes) -> str:
    """One sentence about an answer that is not 200."""
    try:
        return f"{status}: {_message(_object(raw))}"
    except AnswerFault:
        return f"{status}: {raw[:200].decode(errors='replace') or 'no body'}"


def _body(model: str, tokens: int) -> dict[str, object]:
    return {"model": model, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def _queue_seconds(headers: httpx.Headers) -> float | None:
    """The server's own figure; None where it sent none, as a stream does that began before its grant."""
    try:
        return float(headers[QUEUE_HEADER]) / 1000.0
    except (KeyError, ValueError):
        return None


def _object(raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw)
    except ValueError:
        raise AnswerFault(f"not JSON: {raw[:100]!r}") from None
    if not isinstance(value, dict):
        raise AnswerFault(f"not a JSON object: {raw[:100]!r}")
    return value


def _message(answer: Mapping[str, object]) -> str:
    """The sentence of an error in OpenAI's shape."""
    match answer.get("error"):
        case {"message": str(message)}:
            return message
        case other:
            return str(other)


def _text(answer: Mapping[str, object]) -> str:
    """The text of a completion, of a chat's message, or of a stream's delta; a frame without any gives none."""
    match answer.get("choices"):
        case [{"delta": {"content": str(text)}}, *_]:
            return text
        case [{"message": {"content": str(text)}}, *_]:
            return text
        case [{"text": str(text)}, *_]:
            return text
        case list():
            return ""
    raise AnswerFault(f"no choices in the answer: {str(answer)[:100]}")


def _vectors(raw: bytes) -> tuple[list[Vector], list[int]]:
    """The vectors of an embedding answer in the order they came, and the `index` of each."""
    entries = _object(raw).get("data")
    if not isinstance(entries, list):
        raise AnswerFault("no data in the embedding answer")
    vectors, indexes = [], []
    for place, entry in enumerate(entries):
        match entry:
            case {"index": int(index), "embedding": list(vector)}:
                indexes.append(index)
                vectors.append(vector)
            case _:
                raise AnswerFault(f"entry {place} of the embedding answer has no index or no vector")
    return vectors, indexes
