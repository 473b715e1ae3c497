"""What a llama-server would answer on its other endpoints: responses, messages, rerank, tokens, templates, transcripts.

Pure, as `answers`, on which it builds: a generation is understood and counted there, and only told in another way here.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from gridsched.ports import Capability
from sim.answers import (
    BadBody,
    Embedding,
    Generation,
    frame,
    generation_of,
    json_object,
    messages_text,
    parse_embedding,
    parse_generation,
    refusal,
    usage,
    vector,
)

WORDS_PER_SECOND = 2.0
SAMPLE_BYTES_PER_SECOND = 32_000  # 16 bits at 16 kHz: what a transcript's length is guessed by


@dataclass(frozen=True, slots=True)
class Scores:
    """A rerank that was understood: the whole answer, and the tokens it takes to get there."""

    tokens: int
    body: bytes


# --- understanding ----------------------------------------------------------------------------------------------------


def parse_responses(body: bytes, ctx_tokens: int) -> Generation:
    """Understand a body of /v1/responses. Raises BadBody."""
    fields = json_object(body)
    given = fields.get("input")
    if isinstance(given, list):
        text = " ".join(
            str(_texts(item.get("content", item.get("output")))) for item in given if isinstance(item, dict)
        )
    elif isinstance(given, str):
        text = given
    else:
        raise refusal("'input' is required" if given is None else "'input' must be a string or array of objects")
    prompt = f"{fields.get('instructions') or ''} {text}"
    return generation_of(fields, prompt, "responses", ctx_tokens, ("max_output_tokens",))


def parse_messages(body: bytes, ctx_tokens: int) -> Generation:
    """Understand a body of /v1/messages. Raises BadBody."""
    fields = json_object(body)
    prompt = f"{_texts(fields.get('system'))} {messages_text(fields)}"
    return generation_of(fields, prompt, "messages", ctx_tokens)


def parse_infill(body: bytes, ctx_tokens: int) -> Generation:
    """Understand a body of /infill. Raises BadBody."""
    fields = json_object(body)
    for name in ("input_prefix", "input_suffix"):
        if name not in fields:
            raise refusal(f'"{name}" is required')
    prompt = " ".join(str(fields.get(name, "")) for name in ("input_prefix", "prompt", "input_suffix"))
    return generation_of(fields, prompt, "infill", ctx_tokens)


def parse_transcription(body: bytes) -> Generation:
    """As many words as the upload has room for speech; of the form only `stream` and the format are looked at. Raises
    BadBody."""
    if b'name="file"' not in body:
        raise refusal("No input file found for transcription")
    words = max(1, round(WORDS_PER_SECOND * len(body) / SAMPLE_BYTES_PER_SECOND))
    stream = b'name="stream"\r\n\r\ntrue\r\n' in body
    fields = {"stream": stream, "max_tokens": words}
    written = generation_of(fields, str(len(body)), "transcription", ctx_tokens=words + 2)
    return replace(written, finish="stop")


def rerank(body: bytes) -> Scores:
    """The documents by likeness, in the engine's shape, or in that of TEI where they are called `texts`. Raises
    BadBody."""
    fields = json_object(body)
    documents = fields.get("documents", texts := fields.get("texts"))
    if not isinstance(fields.get("query"), str):
        raise refusal('"query" must be provided')
    if not isinstance(documents, list) or not documents or not all(isinstance(one, str) for one in documents):
        raise refusal('"documents" must be a non-empty string array')
    query = vector(str(fields["query"]).encode())
    scored = [
        (sum(a * b for a, b in zip(query, vector(text.encode()), strict=True)), n) for n, text in enumerate(documents)
    ]
    best = sorted(scored, reverse=True)[: int(str(fields.get("top_n") or len(documents)))]
    tokens = sum(len(text.split()) for text in documents) + len(documents)
    if texts is not None:
        return Scores(tokens, json.dumps([{"index": n, "score": score} for score, n in best]).encode())
    told = {
        "model": str(fields.get("model", "")),
        "object": "list",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": [{"index": n, "relevance_score": score} for score, n in best],
    }
    return Scores(tokens, json.dumps(told).encode())


def at_once(path: str, body: bytes) -> bytes:
    """The answers that need no slot: a token is a byte here. Raises BadBody."""
    fields = json_object(body)
    match path:
        case "/tokenize":
            return json.dumps({"tokens": list(str(fields.get("content", "")).encode())}).encode()
        case "/detokenize":
            tokens = fields.get("tokens", [])
            if not isinstance(tokens, list) or not all(type(one) is int and 0 <= one < 256 for one in tokens):  # noqa: PLR2004 - a byte
                raise BadBody(500, "server_error", "type must be array of tokens")
            return json.dumps({"content": bytes(tokens).decode("utf-8", "replace")}).encode()
        case "/apply-template":
            return json.dumps({"prompt": f"<|user|>{messages_text(fields)}<|assistant|>"}).encode()
    text = f"{_texts(fields.get('system'))} {messages_text(fields)}"
    return json.dumps({"input_tokens": max(1, len(text.split()))}).encode()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a process must be able to do for it, None for nothing, and what is made of a body and a slot's context.

    Bytes are an answer that needs no slot. `understand` raises BadBody.
    """

    needs: Capability | None
    understand: Callable[[bytes, int], Generation | Embedding | Scores | bytes]


ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": Endpoint(
        Capability.CHAT, lambda body, tokens: parse_generation(body, chat=True, ctx_tokens=tokens)
    ),
    "/v1/completions": Endpoint(
        Capability.COMPLETION, lambda body, tokens: parse_generation(body, chat=False, ctx_tokens=tokens)
    ),
    "/v1/embeddings": Endpoint(Capability.EMBEDDING, parse_embedding),
    "/v1/responses": Endpoint(Capability.CHAT, parse_responses),
    "/v1/messages": Endpoint(Capability.CHAT, parse_messages),
    "/v1/rerank": Endpoint(Capability.RERANK, lambda body, _: rerank(body)),
    "/v1/audio/transcriptions": Endpoint(Capability.AUDIO, lambda body, _: parse_transcription(body)),
    "/infill": Endpoint(Capability.COMPLETION, parse_infill),
    **{
        path: Endpoint(None, lambda body, _, path=path: at_once(path, body))  # type: ignore[misc]  # each its own path
        for path in ("/v1/messages/count_tokens", "/tokenize", "/detokenize", "/apply-template")
    },
}
"""All that a simulated engine answers."""


def _texts(content: object) -> str:
    """A text, or the texts of parts."""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


# --- telling ----------------------------------------------------------------------------------------------------------


def whole(request: Generation, number: int) -> bytes:
    """The answer of a request that does not stream."""
    text = "".join(request.words)
    told: Mapping[str, object]
    match request.shape:
        case "responses":
            told = _response(request, number, "completed", text)
        case "messages":
            told = _message(request, number) | {
                "content": [{"type": "text", "text": text}],
                "stop_reason": _stop_reason(request),
                "usage": _message_usage(request, len(request.words)),
            }
        case "transcription":
            told = _transcript(request)
        case _:
            told = {"content": text, "model": request.model, "stop": True, "tokens_predicted": len(request.words)}
    return json.dumps(told).encode()


def frames(request: Generation, number: int) -> Iterator[bytes]:
    """The frames of a stream; what comes before the first word is in one piece with it."""
    match request.shape:
        case "responses":
            return _responses_frames(request, number)
        case "messages":
            return _messages_frames(request, number)
        case "transcription":
            return _transcript_frames(request)
    return _infill_frames(request)


def _event(fields: Mapping[str, object]) -> bytes:
    return f"event: {fields['type']}\n".encode() + frame(fields)


def _responses_frames(request: Generation, number: int) -> Iterator[bytes]:
    item = {"type": "message", "id": f"msg_sim{number}", "role": "assistant", "status": "in_progress", "content": ()}
    response = _response(request, number, "in_progress", None)
    yield _event({"type": "response.created", "response": response}) + _event(
        {"type": "response.output_item.added", "output_index": 0, "item": item}
    )
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    for word in request.words:
        yield _event({"type": "response.output_text.delta", **place, "delta": word})
    text = "".join(request.words)
    yield _event({"type": "response.output_text.done", **place, "text": text})
    yield _event({"type": "response.completed", "response": _response(request, number, "completed", text)})


def _response(request: Generation, number: int, status: str, text: str | None) -> dict[str, object]:
    part = {"type": "output_text", "text": text, "annotations": ()}
    item = {"type": "message", "id": f"msg_sim{number}", "role": "assistant", "status": status, "content": [part]}
    counted = usage(request)
    return {
        "id": f"resp_sim{number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": request.model,
        "output": [] if text is None else [item],
        "usage": None
        if text is None
        else {
            "input_tokens": counted["prompt_tokens"],
            "output_tokens": counted["completion_tokens"],
            "total_tokens": counted["total_tokens"],
        },
    }


def _messages_frames(request: Generation, number: int) -> Iterator[bytes]:
    message = _message(request, number) | {"content": [], "stop_reason": None, "usage": _message_usage(request, 0)}
    block = {"type": "text", "text": ""}
    yield _event({"type": "message_start", "message": message}) + _event(
        {"type": "content_block_start", "index": 0, "content_block": block}
    )
    for word in request.words:
        delta = {"type": "text_delta", "text": word}
        yield _event({"type": "content_block_delta", "index": 0, "delta": delta})
    yield _event({"type": "content_block_stop", "index": 0})
    ended = {"stop_reason": _stop_reason(request), "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": ended, "usage": {"output_tokens": len(request.words)}})
    yield _event({"type": "message_stop"})


def _message(request: Generation, number: int) -> dict[str, object]:
    fixed = {"type": "message", "role": "assistant", "stop_sequence": None}
    return {"id": f"msg_sim{number}", "model": request.model, **fixed}


def _message_usage(request: Generation, written: int) -> dict[str, int]:
    return {"input_tokens": request.prompt_tokens, "output_tokens": written}


def _stop_reason(request: Generation) -> str:
    return "end_turn" if request.finish == "stop" else "max_tokens"


def _transcript_frames(request: Generation) -> Iterator[bytes]:
    for word in request.words:
        yield frame({"type": "transcript.text.delta", "delta": word})
    yield frame(_transcript(request))


def _transcript(request: Generation) -> dict[str, object]:
    counted = usage(request)
    tokens = {"type": "tokens", "input_tokens": counted["prompt_tokens"], "output_tokens": len(request.words)}
    return {"type": "transcript.text.done", "text": "".join(request.words), "usage": tokens}


def _infill_frames(request: Generation) -> Iterator[bytes]:
    for word in request.words:
        yield frame({"content": word, "stop": False})
    yield frame({"content": "", "stop": True, "tokens_predicted": len(request.words)})
