"""Is the process ready (P6)? Ours, healthy, slots and context as planned, and one real request served.

Owns the questions put to a starting process. Knows nothing of its life: whoever calls it cancels it when the process
exits. Ready is only what the engine answers, never what it prints.
"""

import json
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import trio

from gridsched.core.events import FailureCause
from gridsched.engine.address import Address, Listener, Port, listener
from gridsched.engine.upstream import open_answer, read_all
from gridsched.ports import Capability, UpstreamFailure
from gridsched.threads import in_thread

FIRST_POLL_SECONDS = 0.01
POLL_GROWTH = 1.5
LONGEST_POLL_SECONDS = 0.25
HEALTH_TIMEOUT_SECONDS = 5.0  # a process that hangs on it is asked again, until the start's own limit
MAX_ANSWER_BYTES = 16 * 1024 * 1024  # /props carries a chat template, an embedding its vector
CTX_PADDING = 256  # the engine rounds a context up to a multiple of this


@dataclass(frozen=True, slots=True)
class Expected:
    """What the plan says the process will be. `tag` is empty for an engine that cannot carry one; `group` is the
    process's own."""

    address: Address
    group: int
    tag: str
    parallel: int
    ctx_size: int
    capabilities: frozenset[Capability]


class NotReady(Exception):
    """It answers, but not as it should, and will not get better by waiting. `cause` is None where its log may know."""

    def __init__(self, message: str, cause: FailureCause | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause


class PortTaken(NotReady):
    """Another program listens at the port that was chosen: another port may be free."""


async def wait_ready(expected: Expected) -> None:
    """Return when the process is ready. Waits for ever: the caller sets the limit. Raises NotReady.

    A connection that breaks proves nothing, since the process may be about to exit: all is asked again.
    """
    pause = FIRST_POLL_SECONDS
    while True:
        try:
            if await _is_ours(expected) and await _is_healthy(expected.address):
                await _check_identity(expected)
                await _check_size(expected)
                await _probe(expected)
                return
        except UpstreamFailure:
            pass
        await trio.sleep(pause)
        pause = min(LONGEST_POLL_SECONDS, pause * POLL_GROWTH)


async def _is_ours(expected: Expected) -> bool:
    """Whether it listens, as nobody but it may: a socket in a folder of ours, or a port that its group holds (B13)."""
    if not isinstance(expected.address, Port):
        return True
    try:
        who = await in_thread(partial(listener, expected.address.number, expected.group))
    except OSError:
        return False  # out of descriptors: asked again
    if who is Listener.FOREIGN:
        raise PortTaken(f"another program listens at port {expected.address.number}")
    return who is Listener.OURS


async def _is_healthy(address: Address) -> bool:
    """There is no socket at first, then 503 while the model loads."""
    with trio.move_on_after(HEALTH_TIMEOUT_SECONDS):
        async with open_answer(address, "GET", "/health", (), b"") as answer:
            return answer.status == HTTPStatus.OK
    return False


async def _check_identity(expected: Expected) -> None:
    """The tag of this spawn proves that it is our process that answers (B13)."""
    if not expected.tag:
        return
    listed = await _ask(expected.address, "GET", "/v1/models")
    try:
        ours = expected.tag in listed["data"][0].get("tags", ())
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise NotReady("its list of models cannot be read") from error
    if not ours:
        raise NotReady("another program answers at the engine's address")


async def _check_size(expected: Expected) -> None:
    """Slots exactly, and never more context than was planned: a flag or a default would break the ledger unseen."""
    props = await _ask(expected.address, "GET", "/props")
    try:
        slots = int(props["total_slots"])
        slot_ctx = int(props["default_generation_settings"]["n_ctx"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise NotReady("its properties cannot be read") from error
    if slots != expected.parallel:
        message = f"it runs {slots} slots where {expected.parallel} were planned"
        raise NotReady(message, FailureCause.BAD_FLAGS)
    if slot_ctx >= expected.ctx_size + CTX_PADDING:
        message = f"a slot's context is {slot_ctx} where {expected.ctx_size} was planned for all slots"
        raise NotReady(message, FailureCause.BAD_FLAGS)


async def _probe(expected: Expected) -> None:
    """One token, or one vector, or one score: what a healthy answer to /health does not prove."""
    if Capability.EMBEDDING in expected.capabilities:
        await _ask(expected.address, "POST", "/v1/embeddings", {"input": "a"})
    elif Capability.RERANK in expected.capabilities:
        await _ask(expected.address, "POST", "/v1/rerank", {"query": "a", "documents": ["a"]})
    else:
        await _ask(expected.address, "POST", "/completion", {"prompt": "a", "n_predict": 1, "cache_prompt": False})


async def _ask(address: Address, method: str, target: str, question: dict[str, object] | None = None) -> Any:
    """The answer's JSON; it must come with 200. Raises NotReady, and UpstreamFailure."""
    body = json.dumps(question).encode() if question else b""
    async with open_answer(address, method, target, ((b"Content-Type", b"application/json"),), body) as answer:
        text = await read_all(answer, MAX_ANSWER_BYTES)
        if answer.status != HTTPStatus.OK:
            cause = None if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR else FailureCause.BAD_FLAGS
            message = f"it answered {answer.status} to {target}: {text[:300].decode('utf-8', 'replace')}"
            raise NotReady(message, cause)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotReady(f"its answer to {target} is not JSON") from error
