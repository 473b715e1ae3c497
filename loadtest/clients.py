"""Clients of an OpenAI-shaped server that measure every request they make.

Owns the requests (chat, completion, embeddings) and the reading of their answers. Must never retry, and never hide a
failure: whatever goes wrong ends as a `Measured` with an error. Each request uses a connection of its own, so a figure
never depends on what a pooled connection went through before.
"""

import json
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import httpx
import trio

from loadtest.sse import SseReader

QUEUE_HEADER, JOB_HEADER = "X-Gridsched-Queue-Ms", "X-Gridsched-Job-Id"
CLASS_HEADER = "X-Class"
CONNECT_SECONDS = 10.0
LARGEST = 2**63 - 1
SILENCE_SECONDS = 300.0
"""How long a client waits for the next byte: low work waits behind every chat. A guess that covers any demo."""

Vector = list[float]
Message = Mapping[str, object]
"""One turn of a conversation, as the API has it: a role and a content."""


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
async def connect(
    base_url: str,
    *,
    api_key: str | None = None,
    verify: ssl.SSLContext | bool = True,
    longest_seconds: float = math.inf,
) -> AsyncIterator["Client"]:
    """A client for as long as the block lasts. `longest_seconds`: what a request may take in all."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    headers = {b"Authorization": f"Bearer {api_key}".encode()} if api_key else {}
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, trust_env=False, limits=limits, timeout=timeout, verify=verify
    ) as http:
        yield Client(http, longest_seconds)


class Client:
    """Makes requests, any number at a time. `job_class` travels as a header; None leaves it out. `due` is the clock's
    time at which a request was to be sent, now where it is None."""

    def __init__(self, http: httpx.AsyncClient, longest_seconds: float = math.inf) -> None:
        self.http = http
        self._longest_seconds = longest_seconds

    async def chat(
        self,
        row: str,
        model: str,
        said: str | Sequence[Message],
        *,
        tokens: int,
        job_class: str | None = None,
        stream: bool = True,
        due: float | None = None,
    ) -> Generated:
        """The next turn of a conversation, streamed unless told otherwise. `tokens` are generated, and where the engine
        knows `ignore_eos` no fewer, so that every turn is the same work."""
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        body = _body(model, tokens) | {"messages": messages, "stream": stream}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        return await self._generate(row, "/v1/chat/completions", body, job_class, due)

    async def complete(
        self,
        row: str,
        model: str,
        prompt: str,
        *,
        tokens: int,
        job_class: str | None = None,
        stream: bool = False,
        more: Mapping[str, object] = MappingProxyType({}),
        due: float | None = None,
    ) -> Generated:
        """One generation that nobody watches, so it is not streamed unless told otherwise. `more`: further members of
        the request."""
        body = {**_body(model, tokens), "prompt": prompt, "stream": stream, **more}
        return await self._generate(row, "/v1/completions", body, job_class, due)

    async def embed(
        self, row: str, model: str, texts: list[str], *, job_class: str | None = None, due: float | None = None
    ) -> Embedded:
        """One embedding request with all the texts."""
        gave = Embedded(Measured(row))

        async def read(answer: httpx.Response, _: _Read) -> None:
            raw = await answer.aread()
            # A thousand vectors take a tenth of a second to parse: in a thread, so that nobody else's clock stands.
            gave.vectors, gave.indexes = await trio.to_thread.run_sync(_vectors, raw)
            if len(gave.vectors) != len(texts):
                raise AnswerFault(f"{len(gave.vectors)} vectors for {len(texts)} texts")

        body = {"model": model, "input": texts, "encoding_format": "float"}
        measured = Measured(row, due=trio.current_time() if due is None else due)
        gave.measured = await self._measure(measured, "/v1/embeddings", body, job_class, read)
        return gave

    async def _generate(
        self, row: str, path: str, body: Mapping[str, object], job_class: str | None, due: float | None
    ) -> Generated:
        gave = Generated(Measured(row, due=trio.current_time() if due is None else due))

        async def read_whole(answer: httpx.Response, found: _Read) -> None:
            told = _object(await answer.aread())
            if not told.get("choices"):
                raise AnswerFault(_no_choices(told))
            gave.text, found.tokens = _text(told), _tokens(told) or 0

        async def read_stream(answer: httpx.Response, found: _Read) -> None:
            chat_stream = ChatStream()
            async for chunk in answer.aiter_bytes():
                before = chat_stream.texts
                gave.text += chat_stream.feed(chunk)
                found.text_at += [trio.current_time()] * (chat_stream.texts - before)
                found.tokens = chat_stream.tokens
            chat_stream.end()

        read = read_stream if body.get("stream") else read_whole
        gave.measured = await self._measure(gave.measured, path, body, job_class, read)
        return gave

    async def _measure(
        self, asked: Measured, path: str, body: Mapping[str, object], job_class: str | None, read: "_Reader"
    ) -> Measured:
        """What came of a request of which row and time are known."""
        headers = {CLASS_HEADER: job_class} if job_class else {}
        found, error = _Read(), f"no answer within {self._longest_seconds:.0f} s"
        with trio.move_on_after(self._longest_seconds):
            try:
                async with self._sent(path, body, headers) as answer:
                    found.status, found.headers = answer.status_code, answer.headers
                    if answer.status_code == httpx.codes.OK:
                        await read(answer, found)
                        error = ""
                    else:
                        error = refusal(answer.status_code, await answer.aread())
            except (httpx.HTTPError, AnswerFault) as fault:
                error = str(fault) or type(fault).__name__
        return replace(
            asked,
            status=found.status,
            latency_seconds=trio.current_time() - asked.due,
            queue_seconds=_queue_seconds(found.headers),
            first_token_seconds=found.text_at[0] - asked.due if found.text_at else None,
            gaps=tuple(after - before for before, after in zip(found.text_at, found.text_at[1:], strict=False)),
            tokens=found.tokens,
            job=_job(found.headers),
            error=error,
        )

    @asynccontextmanager
    async def _sent(
        self, path: str, body: Mapping[str, object], headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """Send it; the answer is open for as long as the block lasts."""
        request = self.http.build_request("POST", path, json=body, headers=headers)
        request.stream = _Body(request.content)
        answer = await self.http.send(request, stream=True)
        try:
            yield answer
        finally:
            await answer.aclose()


class _Body(httpx.AsyncByteStream):
    """The bytes of a request in one piece. httpx's own are a generator, which is left in the middle, and complains,
    when a server goes away while it is sent to."""

    def __init__(self, raw: bytes) -> None:
        self._left = [raw]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


@dataclass(slots=True)
class _Read:
    """What is known of an answer so far; `text_at` is the clock's time of each text of a stream."""

    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    text_at: list[float] = field(default_factory=list)
    tokens: int = 0


_Reader = Callable[[httpx.Response, _Read], Awaitable[None]]
"""Reads an answer to its end, and puts down what it finds as it comes."""


class ChatStream:
    """The text of a streamed answer, as its bytes arrive. `texts` counts the frames that held some, `tokens` are the
    server's count where it gave one, else as many.

    A fault is kept until the end and raised there: an HTTP body that is left in the middle is not closed in good order,
    so the bytes that follow a fault are read and dropped.
    """

    def __init__(self) -> None:
        self._reader = SseReader()
        self._done = False
        self._answered = False
        self._fault = ""
        self._counted: int | None = None
        self.texts = 0

    @property
    def tokens(self) -> int:
        """How many were generated so far."""
        return self.texts if self._counted is None else self._counted

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
        if not self._answered:
            raise AnswerFault("the stream ended without an answer")

    def _text_of(self, data: str) -> str:
        if data == "[DONE]":
            self._done = True
            return ""
        frame = _object(data.encode())
        if "error" in frame:
            raise AnswerFault(f"in the stream: {_message(frame)}")
        self._counted = _tokens(frame) or self._counted
        self._answered |= bool(frame.get("choices"))
        text = _text(frame)
        self.texts += bool(text)
        return text


# --- reading answers --------------------------------------------------------------------------------------------


def counted(value: object) -> int:
    """A count that somebody tells; 0 for what is none, or for more than a result can hold."""
    return value if isinstance(value, int) and 0 <= value <= LARGEST else 0


def waited(ms: object) -> float | None:
    """A wait that somebody tells in milliseconds, in seconds; None for what is none: one that is no number among others
    would spoil every percentile."""
    return ms / 1000.0 if isinstance(ms, int | float) and 0 <= ms <= LARGEST else None


def parsed(raw: str | bytes) -> object:
    """The value of a JSON text. Raises ValueError for what is none, or is deeper than anybody means."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("nested too deep") from None


def readable(text: str) -> str:
    """The text without halves of letters, which JSON can name and nobody can write down or send."""
    return text.encode(errors="replace").decode()


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
        return waited(float(headers[QUEUE_HEADER]))
    except (KeyError, ValueError):
        return None


def _job(headers: httpx.Headers) -> int | None:
    number = headers.get(JOB_HEADER, "")
    return counted(int(number[:30])) if number.isascii() and number.isdigit() else None


def _tokens(answer: Mapping[str, object]) -> int | None:
    """How many tokens were generated, where the answer says so."""
    match answer.get("usage"):
        case {"completion_tokens": int(tokens)}:
            return counted(tokens)
    return None


def _object(raw: bytes) -> dict[str, object]:
    try:
        value = parsed(raw)
    except ValueError:
        raise AnswerFault(f"not JSON: {raw[:100]!r}") from None
    if not isinstance(value, dict):
        raise AnswerFault(f"not a JSON object: {raw[:100]!r}")
    return value


def _message(answer: Mapping[str, object]) -> str:
    """The sentence of an error in OpenAI's shape."""
    match answer.get("error"):
        case {"message": str(message)}:
            return readable(message)
        case other:
            return readable(str(other))


def _text(answer: Mapping[str, object]) -> str:
    """The text of a completion, of a chat's message, or of a stream's delta; a frame without any gives none."""
    match answer.get("choices"):
        case (
            [{"delta": {"content": str(text)}}, *_]
            | [{"message": {"content": str(text)}}, *_]
            | [{"text": str(text)}, *_]
        ):
            return readable(text)
        case list():
            return ""
    raise AnswerFault(_no_choices(answer))


def _no_choices(answer: Mapping[str, object]) -> str:
    return readable(f"no choices in the answer: {str(answer)[:100]}")


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
