"""`gridsched events --follow` over the end of a server, and operations that are followed to theirs."""

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice

import httpx
import pytest

from gridsched.cli import client as asking
from gridsched.cli import events
from gridsched.cli.failures import Refused

BEGUN = {"id": "op-3", "state": "running", "text": "", "done": 0, "total": None}


def line(seq: int) -> bytes:
    """One decision as the server sends it."""
    told = {"seq": seq, "time": "2026-01-01T00:00:00.5Z", "event": "ready"}
    return f"id: {seq}\ndata: {json.dumps(told)}\n\n".encode()


class Going(httpx.SyncByteStream):
    """An answer that breaks off after these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self._data
        raise httpx.ReadError("gone")


def scripted(
    monkeypatch: pytest.MonkeyPatch, answers: Sequence[httpx.Response | httpx.HTTPError]
) -> tuple[argparse.Namespace, list[httpx.Request]]:
    """Arguments of a command whose server gives these answers, one after the other; and what it was asked."""
    seen: list[httpx.Request] = []
    left = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        told = next(left)
        if isinstance(told, httpx.HTTPError):
            raise told
        return told

    def connect(_: argparse.Namespace) -> httpx.Client:
        return httpx.Client(base_url="http://h", transport=httpx.MockTransport(answer))

    monkeypatch.setattr("gridsched.cli.events.connect", connect)
    monkeypatch.setattr("gridsched.cli.events.AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("gridsched.cli.client.LOOK_SECONDS", 0.0)
    return argparse.Namespace(
        since="5m", follow=True, server="http://h", events=["load", "evict"], model="m", job=None, job_class="batch"
    ), seen


def stream(data: bytes) -> httpx.Response:
    """The log, which breaks off."""
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Going(data))


def test_what_is_followed_goes_on_where_it_was_when_the_server_is_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told once that the server has gone, and tried until it answers; no line comes twice."""
    starting = httpx.Response(503, json={"error": {"code": "starting", "message": "not yet"}})
    answers = [stream(line(1) + line(2)), httpx.ConnectError("refused"), starting, stream(line(3))]
    args, seen = scripted(monkeypatch, answers)
    told = [each["seq"] for each in islice(events.lines(args), 3)]
    assert told == [1, 2, 3]
    assert [request.url.params["since"] for request in seen] == ["5m", "2", "2", "2"]
    assert {request.extensions["timeout"]["read"] for request in seen} == {events.SILENT_SECONDS}
    others = {request.url.copy_remove_param("since").query for request in seen}
    assert others == {b"event=load&event=evict&class=batch&model=m&follow=1"}
    assert capsys.readouterr().err == "gridsched: the server at http://h has gone; this goes on when it is back\n"


def test_what_was_never_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that refuses us."""
    args, _ = scripted(monkeypatch, [httpx.ConnectError("refused")])
    with pytest.raises(httpx.ConnectError):
        next(events.lines(args))
    refusal = httpx.Response(401, json={"error": {"code": "invalid_api_key", "message": "no"}})
    args, _ = scripted(monkeypatch, [stream(line(1)), refusal])
    lines = events.lines(args)
    assert next(lines)["seq"] == 1
    with pytest.raises(Refused):
        next(lines)


@contextmanager
def nobody_reads() -> Iterator[None]:
    """Standard output is a pipe whose other end is closed."""
    was, (reader, writer) = os.dup(1), os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    try:
        yield
    finally:
        os.dup2(was, 1)
        os.close(was)
        os.close(writer)


@pytest.mark.parametrize("silence", [b": nothing new\n\n", b""])
def test_whoever_follows_ends_when_nobody_reads_it_any_more(monkeypatch: pytest.MonkeyPatch, silence: bytes) -> None:
    """As in a pipe to `head -1`, also while the server has nothing to say, or has gone."""
    args, _ = scripted(monkeypatch, [stream(line(1) + silence)])
    lines = events.lines(args)
    assert next(lines)["seq"] == 1
    with nobody_reads(), pytest.raises(BrokenPipeError):
        next(lines)


def followed(answers: Sequence[Mapping[str, object]]) -> tuple[list[str], Mapping[str, object]]:
    """What is told of an operation, and its end, where looks at it give these answers."""
    left = iter(answers)
    heard: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/api/jobs/op-3"
        return httpx.Response(200, json={**BEGUN, **next(left)})

    def hear(done: float, total: float | None, text: str) -> None:
        heard.append(f"{done:g}/{total} {text}")

    with httpx.Client(base_url="http://h", transport=httpx.MockTransport(answer)) as client:
        return heard, asking.follow(client, BEGUN, hear)


def test_an_operation_is_followed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is told; its result is the answer, its error a refusal in its own words, a cancel one too."""
    monkeypatch.setattr("gridsched.cli.client.LOOK_SECONDS", 0.0)
    half = {"done": 1, "total": 2, "text": "half"}
    heard, end = followed([half, {"state": "done", "result": {"model": "m"}}])
    assert (heard, end["result"]) == (["0/None ", "1/2 half"], {"model": "m"})
    error = {"code": "insufficient_vram", "message": "m does not fit"}
    for last, words in (({"state": "failed", "error": error}, "m does not fit"), ({"state": "cancelled"}, "cancelled")):
        with pytest.raises(Refused, match=words):
            followed([half, last])


def test_a_time_is_asked_for_as_the_server_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times without a zone are this machine's; what is none is refused in words."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert [events.since(text) for text in ("17", "5m", "1.5h", "start")] == ["17", "5m", "1.5h", "start"]
        assert events.since("2026-12-01T11:20:27Z") == "2026-12-01T16:50:27+05:30"
        assert events.since("2026-12-01 11:20") == "2026-12-01T11:20:00+05:30"
        assert events.since("2026-12-01") == "2026-12-01T00:00:00+05:30"
        for text in ("00:00", "23:59:59.999"):
            at = datetime.fromisoformat(events.since(text))
            assert timedelta(0) <= datetime.now(UTC) - at < timedelta(days=1, seconds=1)
            assert at.strftime("%H:%M") == text[:5]
    finally:
        monkeypatch.undo()
        time.tzset()
    for text in ("soon", "-5m", "25:00", "9999-99-99", "5 m", "0001-01-01T00:00:00"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no time such as 5m"):
            events.since(text)


def test_lines_that_were_lost_are_told() -> None:
    """As the server counts them; a gap in time is no decision."""
    told = {"seq": 9, "time": "2026-01-01T00:00:00.5Z", "event": "gap", "first": 3, "lost": 7}
    assert events.sentence(told).endswith(" gap: 7 lines are kept no more, and were not read")
