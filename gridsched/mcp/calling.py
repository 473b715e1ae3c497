"""One call of a tool, from its arguments to its result: the verb used, its progress told, its error worded.

Owns how answers and errors look to a client. A long verb goes on when its client has left: whether that is of use is
the scheduler's to say (S6c). Must never know what a verb does.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import trio
from mcp_types import CallToolResult, ContentBlock, TextContent

from gridsched.control.consent import use_with_consent
from gridsched.control.operations import Operation, State
from gridsched.control.problems import Problem, RequestError, plain
from gridsched.control.services import Services
from gridsched.control.verb import Call, Verb
from gridsched.mcp.schemas import WRAPPED

log = logging.getLogger(__name__)

LEAST_SECONDS = 0.2
"""Between two notifications of one call: a download tells far more than anybody reads."""
MOST_SECONDS = 5.0
"""Without a word of the verb's, that it still goes on is said so often: clients give up on a call that is silent."""

Progress = Callable[[float, float | None, str], Awaitable[None]]
"""Tells the client how far its call has come."""


async def called(
    services: Services, verb: Verb, given: Mapping[str, Any], call: Call, progress: Progress | None
) -> CallToolResult:
    """What came of it, an error as what it is."""
    try:
        told = await use_with_consent(services, verb, given, call)
        if isinstance(told, Operation):
            told = await _end_of(told, progress)
        return _result(told)
    except RequestError as error:
        return failed(error.problem)
    except Exception:
        log.exception("a call of %s failed", verb.name)
        return failed(Problem("internal", "an error of this server; its log has the details"))


async def _end_of(operation: Operation, progress: Progress | None) -> object:
    """The result of an operation, whose progress is told meanwhile. Raises RequestError."""
    if progress is None:
        await operation.wait()
    last = 0.0
    while progress is not None and operation.state is State.RUNNING:
        changed = operation.changed
        last = operation.done if operation.done > last else last + 0.001  # it must grow
        await progress(last, operation.total, operation.text or f"{operation.verb} has begun")
        with trio.move_on_after(LEAST_SECONDS):
            await operation.wait()
        with trio.move_on_after(MOST_SECONDS):
            await changed.wait()
    return operation.outcome()


def _result(told: object) -> CallToolResult:
    content = msgspec.to_builtins(told, str_keys=True, enc_hook=plain)
    if not isinstance(content, dict):
        content = {WRAPPED: content}
    return CallToolResult(content=_said(content.get("text"), content), structured_content=content)


def failed(problem: Problem) -> CallToolResult:
    """An error: the body that REST gives, and its sentences."""
    body = msgspec.json.decode(problem.body())
    do = body["error"].get("gridsched", {}).get("do")
    text = f"{problem.message.rstrip('.')}. {do}" if do else problem.message
    return CallToolResult(content=_said(text, body), structured_content=body, is_error=True)


def _said(text: object, content: Mapping[str, Any]) -> list[ContentBlock]:
    """A sentence where there is one, and all of it as JSON for clients that read only text."""
    blocks: list[ContentBlock] = [TextContent(text=text)] if isinstance(text, str) and text else []
    return [*blocks, TextContent(text=msgspec.json.encode(content).decode())]
