"""`GET /api/events`: the decision log as server-sent events, resumed where a client left off.

Owns what is told beside the lines: that there is nothing new (a comment, so that no proxy takes the silence for
an end), which lines were lost to this reader, and the status for whoever asks. Must never keep a line for one who does
not read: the log keeps what it keeps, and whoever is too slow is told what he has missed.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec
import trio
from quart import Response, request

from gridsched.api.since import number_of
from gridsched.api.sse import EVENT_STREAM, STREAM_HEADERS
from gridsched.api.status_feed import StatusFeed
from gridsched.control.problems import invalid, plain
from gridsched.core.commands import LogEvent
from gridsched.core.job import JobClass
from gridsched.runtime.decisions import Line, rfc3339
from gridsched.runtime.past import ALL, Numbered, Which
from gridsched.runtime.runtime import Runtime

KEEP_ALIVE_SECONDS: Final = 15.0
RETRY_MS: Final = 2000
"""How long a client waits before it comes back."""

MOST_AT_ONCE: Final = 200
"""Lines that are held for a reader that is slow."""

GAP: Final = "gap"

PARAMETERS: Final[Mapping[str, str]] = {
    "since": "Only lines after this: the number of a line, how long ago (5m), a time with its zone, or start: where "
    "this run began. The header Last-Event-ID goes before. Without it what is in memory; of a job all there is.",
    "follow": "0: end with the lines that are kept.",
    "event": "Only these events; may be given several times.",
    "class": "Only lines about this class.",
    "model": "Only lines about this model, by any of its names.",
    "job": "Only lines about this job.",
    "status": "1: the server's status too, as events of that name.",
}
"""All that may be asked."""

_WORDS: Final = frozenset(event.value for event in LogEvent)


_CLASSES: Final = tuple(each.label for each in JobClass)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines a client wants: those after `since`, as long as the server runs where it follows. `since` None: all
    that are in memory, whatever was before. `with_status`: how the server stands, too."""

    since: int | None
    follows: bool
    which: Which = ALL
    with_status: bool = False


async def events(runtime: Runtime, feed: StatusFeed, lasts: Callable[[], bool]) -> Response:
    """The answer to this request, for as long as `lasts` says that who asked may know. Raises RequestError."""
    wanted = await _wanted(runtime)
    headers = {name.decode(): value.decode() for name, value in STREAM_HEADERS}
    response = Response(_told(runtime, wanted, feed, lasts), content_type=EVENT_STREAM.decode(), headers=headers)
    response.timeout = None
    return response


async def _wanted(runtime: Runtime) -> Wanted:
    """Raises RequestError."""
    query = dict(request.args.lists())
    for name, values in query.items():
        if name not in PARAMETERS:
            raise invalid(f"events takes no {name!r}; it takes {', '.join(PARAMETERS)}", name)
        if len(values) > 1 and name != "event":
            raise invalid(f"{name} is given {len(values)} times, and taken once", name)
    which = _which(runtime, query)
    since = request.headers.get("Last-Event-ID") or query.get("since", ["" if which.job is None else "0"])[0]
    return Wanted(
        since=await number_of(since, runtime.log, runtime.parts.clock) if since else None,
        follows=_flag(query, "follow", default=True) and request.method != "HEAD",
        which=which,
        with_status=_flag(query, "status", default=False),
    )


def _which(runtime: Runtime, query: Mapping[str, list[str]]) -> Which:
    """Raises RequestError."""
    words = query.get("event", [])
    if unknown := [word for word in words if word not in _WORDS]:
        raise invalid(f"{unknown[0][:100]!r} is no event; there are {', '.join(sorted(_WORDS))}", "event")
    label = query["class"][0] if "class" in query else None
    if label is not None and label not in _CLASSES:
        raise invalid(f"{label[:100]!r} is no class; there are {', '.join(_CLASSES)}", "class")
    job = query["job"][0] if "job" in query else None
    return Which(
        events=frozenset(words),
        job_class=label,
        model=_model(runtime, query["model"][0]) if "model" in query else None,
        job=_number(job, "job") if job is not None else None,
    )


def _flag(query: Mapping[str, list[str]], name: str, *, default: bool) -> bool:
    """Raises RequestError."""
    word = query.get(name, ["1" if default else "0"])[0]
    if word not in {"0", "1", "true", "false"}:
        raise invalid(f"{name} is 0 or 1", name)
    return word in {"1", "true"}


def _model(runtime: Runtime, name: str) -> str:
    """The model that a name means; a name that is none may have been one before."""
    found = runtime.parts.catalog.resolve(name)
    return found.name if found is not None else name


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise invalid(f"{text[:100]!r} is not a number", name)
    return int(text.lstrip("0")[:20] or "0")


async def _told(runtime: Runtime, wanted: Wanted, feed: StatusFeed, lasts: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The stream. It ends with the log, with what is kept, or where its reader's key is gone."""
    log, last, told = runtime.log, wanted.since, 0
    if wanted.follows:
        yield b"retry: %d\n\n" % RETRY_MS
    while lasts():
        if wanted.with_status and (frame := feed.newer(told)) is not None:
            told = frame.number
            yield frame.text
        was = last
        async with aclosing(_next(runtime, last, wanted.which)) as texts:
            async for text in texts:
                last = text.last
                if text.frames:
                    yield text.frames
        if last != was:
            continue
        if not wanted.follows:
            return
        quiet_at = trio.current_time() + KEEP_ALIVE_SECONDS
        with trio.move_on_at(feed.due_at() if wanted.with_status else quiet_at):
            if not await log.news(last or 0):
                return
        if trio.current_time() >= quiet_at:
            yield b": nothing new\n\n"


@dataclass(frozen=True, slots=True)
class _Text:
    """Some frames of the stream, and the number of the last line that was looked at for them."""

    last: int
    frames: bytes


async def _next(runtime: Runtime, last: int | None, which: Which) -> AsyncGenerator[_Text, None]:
    """What is wanted after a line: the next of what is in memory, or else what is not any more."""
    lines = runtime.log.since(last or 0, MOST_AT_ONCE)
    if not lines:
        return
    if last is None or lines[0][0] == last + 1:
        yield _Text(lines[-1][0], _events(lines, which))
        return
    async with aclosing(_older(runtime, last, which)) as older:
        async for text in older:
            yield text


async def _older(runtime: Runtime, last: int, which: Which) -> AsyncGenerator[_Text, None]:
    """What is wanted after a line and no longer in memory; and what is missing before all that is kept, and where the
    disk has not taken what memory does not have any more."""
    log = runtime.log
    oldest = await log.oldest()
    if oldest is not None and oldest[0] > last + 1:
        yield _Text(oldest[0] - 1, _gap(runtime, last, oldest))
        last = oldest[0] - 1
    async with aclosing(log.older(last, which)) as reads:
        async for read in reads:
            last = read.last
            yield _Text(last, _events(read.found, which))
    here = log.since(last, 1)
    if here and here[0][0] > last + 1:
        yield _Text(here[0][0] - 1, _gap(runtime, last, here[0]))


def _events(lines: Iterable[Numbered], which: Which) -> bytes:
    return b"".join(_event(seq, line) for seq, line in lines if which.has(line))


def _event(seq: int, line: Line) -> bytes:
    return b"id: %d\ndata: %s\n\n" % (seq, msgspec.json.encode(line, enc_hook=plain))


def _gap(runtime: Runtime, last: int, following: Numbered) -> bytes:
    """That lines were lost to this reader between two: the log does not keep them any more. Shaped like a line. Nothing
    where there were none, because a run has left numbers out after one that was killed."""
    seq, line = following
    before = line.get("after", seq - 1) if line["event"] == LogEvent.START.value else seq - 1
    if before <= last:
        return b""
    wall_seconds = runtime.parts.clock.wall_seconds()
    told = {"seq": seq - 1, "time": rfc3339(wall_seconds), "event": GAP, "first": last + 1, "lost": before - last}
    return b"event: %s\n%b" % (GAP.encode(), _event(seq - 1, told))
