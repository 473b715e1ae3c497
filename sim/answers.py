"""What a llama-server would answer, as bytes: OpenAI-shaped JSON, SSE frames and engine-shaped errors.

Pure: a request's bytes in, a description of the answer out; how long each part takes is the engine's affair. Words and
vectors are drawn from a digest of the input, so the same request always has the same answer.
"""

import base64
import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

CHAT = "chat"
LIMITS = ("max_completion_tokens", "max_tokens", "n_predict")
DIMENSIONS = 384
CREATED = 1_700_000_000  # no wall clock here
DEFAULT_TOKENS = 42  # a chat answer of about a second on the large simulated model
WORDS = (
    "a",
    "the",
    "one",
    "its",
    "that",
    "of",
    "to",
    "in",
    "so",
    "then",
    "while",
    "next",
    "slow",
    "quick",
    "quiet",
    "small",
)


class BadBody(Exception):
    """The engine refuses the request: an HTTP status and an error body as the engine would write it."""

    def __init__(self, status: int, kind: str, message: str, **more: int) -> None:
        super().__init__(message)
        self.status = status
        error = {"code": status, "message": message, "type": kind, **more}
        self.body = json.dumps({"error": error}).encode()


def refusal(message: str) -> BadBody:
    """What is wrong with a request in itself."""
    return BadBody(400, "invalid_request_error", message)


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that writes and was understood. `shape` is how its answer is told; `words` are the tokens of it."""

    shape: str
    stream: bool
    include_usage: bool
    model: str
    prompt_tokens: int
    words: tuple[str, ...]
    finish: str


@dataclass(frozen=True, slots=True)
class Embedding:
    """An embeddings request that was understood; `tokens` is the sum over its inputs."""

    model: str
    texts: tuple[bytes, ...]
    as_base64: bool
    tokens: int


def parse_generation(body: bytes, *, chat: bool, ctx_tokens: int) -> Generation:
    """Understand a chat or completion body. Raises BadBody as the engine would answer it."""
    fields = json_object(body)
    prompt = messages_text(fields) if chat else _prompt_text(fields)
    return generation_of(fields, prompt, CHAT if chat else "completion", ctx_tokens)


def generation_of(
    fields: Mapping[str, object], prompt: str, shape: str, ctx_tokens: int, limits: Sequence[str] = LIMITS
) -> Generation:
    """What a request that writes asks for; `limits` are the names of the most tokens it wants. Raises BadBody."""
    prompt_tokens = max(1, len(prompt.split()))
    if prompt_tokens >= ctx_tokens:
        message = f"request ({prompt_tokens} tokens) exceeds the available context size ({ctx_tokens} tokens)"
        more = {"n_prompt_tokens": prompt_tokens, "n_ctx": ctx_tokens}
        raise BadBody(400, "exceed_context_size_error", message, **more)
    limit = _limit(fields, limits)
    length = min(limit if limit is not None else DEFAULT_TOKENS, ctx_tokens - prompt_tokens)
    options = fields.get("stream_options")
    return Generation(
        shape=shape,
        stream=fields.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        model=str(fields.get("model", "")),
        prompt_tokens=prompt_tokens,
        words=_words(prompt, length),
        finish="stop" if limit is None else "length",
    )


def parse_embedding(body: bytes, ctx_tokens: int) -> Embedding:
    """Understand an embeddings body: a text, a list of texts, token numbers, or lists of them. Raises BadBody."""
    fields = json_object(body)
    if "input" not in fields:
        raise refusal('"input" must be provided')
    encoding = fields.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise refusal('The format to return the embeddings in. Can be "float" or "base64"')
    texts, counts = zip(*(_input(one) for one in _inputs(fields["input"])), strict=True)
    for count in counts:
        if count > ctx_tokens:
            message = f"input ({count} tokens) is too large to process (context size: {ctx_tokens})"
            raise BadBody(400, "exceed_context_size_error", message, n_prompt_tokens=count, n_ctx=ctx_tokens)
    return Embedding(str(fields.get("model", "")), texts, encoding == "base64", sum(counts))


def generation_json(request: Generation, number: int, seconds: tuple[float, float] = (0.0, 0.0)) -> bytes:
    """The whole answer of a request that does not stream; `seconds` are those of its prompt and of its words."""
    text = "".join(request.words)
    if request.shape == CHAT:
        choice: dict[str, object] = {"message": {"role": "assistant", "content": text}}
    else:
        choice = {"text": text, "logprobs": None}
    choice |= {"index": 0, "finish_reason": request.finish}
    answer = _head(request, number, "chat.completion" if request.shape == CHAT else "text_completion")
    told = {"choices": [choice], "usage": usage(request), "timings": _timings(request, *seconds)}
    return json.dumps(answer | told).encode()


def stream_frames(request: Generation, number: int) -> Iterator[bytes]:
    """The frames of a stream, one for each token, with the role before them and usage and [DONE] after them."""
    head = _head(request, number, "chat.completion.chunk" if request.shape == CHAT else "text_completion")
    if request.shape == CHAT:
        yield _frame(head, {"delta": {"role": "assistant", "content": None}}, None)
    for word in request.words:
        yield _frame(head, {"delta": {"content": word}} if request.shape == CHAT else {"text": word}, None)
    yield _frame(head, {"delta": {}} if request.shape == CHAT else {"text": ""}, request.finish)
    if request.include_usage:
        yield frame(head | {"choices": [], "usage": usage(request)})
    yield b"data: [DONE]\n\n"


def embedding_json(request: Embedding) -> bytes:
    """The vectors in input order."""
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector(text), as_base64=request.as_base64)}
        for index, text in enumerate(request.texts)
    ]
    usage = {"prompt_tokens": request.tokens, "total_tokens": request.tokens}
    return json.dumps({"object": "list", "model": request.model, "data": data, "usage": usage}).encode()


def vector(text: bytes) -> tuple[float, ...]:
    """A unit vector that depends on the input alone."""
    raw = struct.unpack(f"<{DIMENSIONS}h", hashlib.shake_256(text).digest(2 * DIMENSIONS))
    length = math.sqrt(sum(one * one for one in raw)) or 1.0
    return tuple(one / length for one in raw)


def _encoded(values: tuple[float, ...], *, as_base64: bool) -> list[float] | str:
    """A vector as the client asked for it: JSON numbers, or little-endian 32-bit floats in base64."""
    if not as_base64:
        return list(values)
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def json_object(body: bytes) -> Mapping[str, object]:
    """The body as a JSON object. Raises BadBody."""
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise refusal(f"parse error: {error}") from error
    if not isinstance(fields, dict):
        raise refusal("the body must be a JSON object")
    return fields


def messages_text(fields: Mapping[str, object]) -> str:
    """The text of all messages. Raises BadBody."""
    messages = fields.get("messages")
    if messages is None:
        raise refusal("'messages' is required")
    if not isinstance(messages, list) or not messages:
        raise refusal("'messages' must be an array that is not empty")
    return " ".join(_content_text(message) for message in messages)


def _content_text(message: object) -> str:
    """The text of one message, whose content is a string or a list of parts. Raises BadBody."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise refusal("each message must be an object with a 'role'")
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if content is None or isinstance(content, str):
        return content or ""
    raise refusal("'content' must be a string or an array")


def _prompt_text(fields: Mapping[str, object]) -> str:
    """The prompt of a completion: a text, or token numbers. Raises BadBody."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt:
        return " ".join(str(one) for one in prompt)
    raise refusal('"prompt" must be a string or an array that is not empty')


def _limit(fields: Mapping[str, object], names: Sequence[str]) -> int | None:
    """The most tokens the client wants, by any of the names the engine knows; None for no limit. Raises BadBody."""
    for name in names:
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise refusal(f"'{name}' must be a whole number")
        return value if value >= 0 else None
    return None


def _inputs(value: object) -> list[object]:
    """The inputs of an embeddings request, one for each vector. A bare list of numbers is one input. Raises BadBody."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        return [value] if all(type(one) is int for one in value) else value
    raise refusal('"input" must be a string or an array that is not empty')


def _input(value: object) -> tuple[bytes, int]:
    """The bytes that stand for one input, and its tokens. Raises BadBody."""
    if isinstance(value, str) and value:
        return value.encode("utf-8", "replace"), max(1, len(value.split()))
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        return json.dumps(value).encode(), len(value)
    raise refusal("each input must be text or token numbers, and not empty")


def _words(prompt: str, length: int) -> tuple[str, ...]:
    """As many words as asked for, the same for the same prompt."""
    digest = hashlib.shake_256(prompt.encode("utf-8", "replace")).digest(max(length, 1))
    return tuple(("" if index == 0 else " ") + WORDS[digest[index] % len(WORDS)] for index in range(length))


def _head(request: Generation, number: int, kind: str) -> dict[str, object]:
    """What every answer and frame of a request begins with."""
    identifier = f"{'chatcmpl' if request.shape == CHAT else 'cmpl'}-sim{number}"
    return {"id": identifier, "object": kind, "created": CREATED, "model": request.model}


def usage(request: Generation) -> dict[str, int]:
    """The count of tokens."""
    written = len(request.words)
    total = request.prompt_tokens + written
    return {"prompt_tokens": request.prompt_tokens, "completion_tokens": written, "total_tokens": total}


def _timings(request: Generation, prompt_seconds: float, seconds: float) -> dict[str, float]:
    """What an engine says of how long it took, in its own words."""
    written = len(request.words)
    return {
        "cache_n": 0,
        "prompt_n": request.prompt_tokens,
        "prompt_ms": prompt_seconds * 1e3,
        "predicted_n": written,
        "predicted_ms": seconds * 1e3,
        "predicted_per_second": written / seconds if seconds else 0.0,
    }


def _frame(head: dict[str, object], choice: dict[str, object], finish: str | None) -> bytes:
    """One frame with one choice."""
    return frame(head | {"choices": [{"index": 0, **choice, "finish_reason": finish}]})


def frame(fields: Mapping[str, object]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"
