"""`GET /api/events`: the decision log as server-sent events, resumed where a client left off.

Owns what is told beside the lines: that there is nothing new (a comment, so that no proxy takes the silence for
an end), which lines were lost to this reader, and the status for whoever asks. Must never keep a line for one who does
not read: the log keeps what it keeps, and whoever is too slow is told what he has missed.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import trio
from quart import Response, request

from gridsched.api.sse import EVENT_STREAM, STREAM_HEADERS
from gridsched.api.status_feed import StatusFeed
from gridsched.control.problems import invalid, plain
from gridsched.core.commands import LogEvent
from gridsched.runtime.decisions import Line, rfc3339
from gridsched.runtime.runtime import Runtime

KEEP_ALIVE_SECONDS: Final = 15.0
RETRY_MS: Final = 2000
"""How long a client waits before it comes back."""

MOST_AT_ONCE: Final = 200
"""Lines that are held for a reader that is slow."""

GAP: Final = "gap"

PARAMETERS: Final[Mapping[str, str]] = {
    "since": "The number of the last line that is known; the header Last-Event-ID goes before.",
    "follow": "0: end with the lines that are kept.",
    "event": "Only these events; may be given several times.",
    "model": "Only lines about this model, by any of its names.",
    "job": "Only lines about this job.",
    "status": "1: the server's status too, as events of that name.",
}
"""All that may be asked."""

_WORDS: Final = frozenset(event.value for event in LogEvent)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines a client wants: those after `since`, as long as the server runs where it follows. `since` None: all
    that are kept, whatever was before. `with_status`: how the server stands, too."""

    since: int | None
    follows: bool
    events: frozenset[str] = frozenset()
    model: str | None = None
    job: int | None = None
    with_status: bool = False

    def has(self, line: Line) -> bool:
        """Whether it wants a line."""
        return (
            (not self.events or line["event"] in self.events)
            and (self.model is None or line.get("model") == self.model)
            and (self.job is None or line.get("job") == self.job)
        )


def events(runtime: Runtime, feed: StatusFeed) -> Response:
    """The answer to this request. Raises RequestError."""
    wanted = _wanted(runtime)
    headers = {name.decode(): value.decode() for name, value in STREAM_HEADERS}
    response = Response(_told(runtime, wanted, feed), content_type=EVENT_STREAM.decode(), headers=headers)
    response.timeout = None
    return response


def _wanted(runtime: Runtime) -> Wanted:
    """Raises RequestError."""
    query = dict(request.args.lists())
    for name, values in query.items():
        if name not in PARAMETERS:
            raise invalid(f"events takes no {name!r}; it takes {', '.join(PARAMETERS)}", name)
        if len(values) > 1 and name != "event":
            raise invalid(f"{name} is given {len(values)} times, and taken once", name)
    words = query.get("event", [])
    if unknown := [word for word in words if word not in _WORDS]:
        raise invalid(f"{unknown[0][:100]!r} is no event; there are {', '.join(sorted(_WORDS))}", "event")
    job = query["job"][0] if "job" in query else None
    return Wanted(
        since=_since(request.headers.get("Last-Event-ID") or query.get("since", [None])[0], runtime.log.last_seq),
        follows=_flag(query, "follow", default=True) and request.method != "HEAD",
        events=frozenset(words),
        model=_model(runtime, query["model"][0]) if "model" in query else None,
        job=_number(job, "job") if job is not None else None,
        with_status=_flag(query, "status", default=False),
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


def _since(text: str | None, last_seq: int) -> int | None:
    """The number after which lines are wanted; one from an earlier run of the server means all. Raises RequestError."""
    if text is None:
        return None
    seq = _number(text, "since")
    return seq if seq <= last_seq else None


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise invalid(f"{text[:100]!r} is not a number", name)
    return int(text.lstrip("0")[:20] or "0")


async def _told(runtime: Runtime, wanted: Wanted, feed: StatusFeed) -> AsyncIterator[bytes]:
    """The stream. It ends with the log, or with what is kept."""
    log, last, told = runtime.log, wanted.since, 0
    if wanted.follows:
        yield b"retry: %d\n\n" % RETRY_MS
    while True:
        if wanted.with_status and (frame := feed.newer(told)) is not None:
            told = frame.number
            yield frame.text
        if lines := log.since(last or 0, MOST_AT_ONCE):
            if last is not None and lines[0][0] > last + 1:
                yield _gap(runtime, last + 1, lines[0][0] - 1)
            last = lines[-1][0]
            if text := b"".join(_event(seq, line) for seq, line in lines if wanted.has(line)):
                yield text
            continue
        if not wanted.follows:
            return
        quiet_at = trio.current_time() + KEEP_ALIVE_SECONDS
        with trio.move_on_at(feed.due_at() if wanted.with_status else quiet_at):
            if not await log.news(last or 0):
                return
        if trio.current_time() >= quiet_at:
            yield b": nothing new\n\n"


def _event(seq: int, line: Line) -> bytes:
    return b"id: %d\ndata: %s\n\n" % (seq, msgspec.json.encode(line, enc_hook=plain))


def _gap(runtime: Runtime, first: int, last: int) -> bytes:
    """That lines were lost to this reader: the log does not keep them any more. Shaped like a line."""
    wall_seconds = runtime.parts.clock.wall_seconds()
    told = {"seq": last, "time": rfc3339(wall_seconds), "event": GAP, "first": first, "lost": last - first + 1}
    return b"event: %s\n%b" % (GAP.encode(), _event(last, told))
