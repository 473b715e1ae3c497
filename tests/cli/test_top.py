"""What `gridsched top` shows: its view for any size, what it remembers, and one view of a server for a pipe."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import httpx
import pytest
from rich.cells import cell_len

from gridsched.cli.board import CLASSES, STRIP_SECONDS, Board
from gridsched.cli.failures import NotOurs
from gridsched.cli.top_view import bar, memory, strip, view
from gridsched.cli.watching import Came, Failed, Gone, Line, Status, frames, news

GIB = 2**30
NOW = 1_800_000_000.0
HOSTILE = "m\x1b]0;owned\x07\x1b[2J\u202ex"


def device(name: str, **other: object) -> dict[str, Any]:
    """A card of 10 GiB with nothing on it."""
    nothing = dict.fromkeys(("used", "external", "reserved", "freeing", "lost", "headroom"), 0)
    figures = {f"{each}_bytes": value for each, value in nothing.items()}
    told = {"name": name, "total_bytes": 10 * GIB, "mode": "open", "pressure": False, "available": True}
    return {**told, **figures, "why": None, "lease": None, **other}


def instance(model: str, **other: object) -> dict[str, Any]:
    """A process of 2 GiB on one card."""
    told = {"model": model, "state": "ready", "tier": "hot", "devices": ["gpu0"], "slots": {"total": 4, "busy": 1}}
    return {**told, "reserved_bytes": 2 * GIB, "measured_bytes": None, "paused": False, **other}


def job(number: int, **other: object) -> dict[str, Any]:
    """One that waits for a slot."""
    told = {"job": number, "class": "background", "model": "m", "waited_s": 7.0, "step": 2, "steps": 32, "rule": "S6"}
    return {**told, "reason": "all slots are busy", "estimate_s": 3.0, **other}


def status(**other: object) -> dict[str, Any]:
    """A server with one card and one model."""
    queues = {
        name: {"length": 0, "running": 0, "oldest_wait_s": None} for name in ("interactive", "background", "batch")
    }
    told: dict[str, Any] = {"draining": False, "devices": [device("gpu0")], "instances": [instance("m")]}
    return {**told, "queues": queues, "waiting": [], "failed": {}, "config_error": None, **other}


def line(seconds: float, event: str, **other: object) -> Line:
    """A line of the log, so long before now."""
    at = datetime.fromtimestamp(NOW - seconds, UTC).isoformat()
    return Line({"seq": 1, "time": at, "event": event, **other})


def board(told: Mapping[str, Any]) -> Board:
    """One that has heard of this."""
    found = Board("http://h", lambda: NOW)
    found.hear(Came("1.0", 0.0))
    found.hear(Status(told))
    return found


def shown(told: Mapping[str, Any], width: int = 80, height: int | None = None) -> list[str]:
    """Its view, as plain lines."""
    return [each.plain for each in view(board(told), width, height)]


def test_a_bar_shows_whose_the_memory_is() -> None:
    """By tier, what is reserved for a process that starts, others, what comes back, what never did, headroom; what is
    spread over two cards by what is reserved on each."""
    both = instance("c", tier="cold", devices=["gpu0", "gpu1"], reserved_bytes=4 * GIB)
    instances = [instance("a", tier="pinned"), instance("b", state="starting", reserved_bytes=GIB), both]
    card = device("gpu0", reserved_bytes=4 * GIB, external_bytes=GIB, freeing_bytes=GIB, headroom_bytes=GIB)
    held = memory(card, instances)
    assert held == {
        "pinned": 2 * GIB, "hot": 0, "cold": GIB, "reserved": GIB, "others": GIB, "freeing": GIB, "lost": 0,
        "headroom": GIB,
    }  # fmt: skip
    assert bar(held, 10 * GIB, 20).plain == "PPPPCCrroorrff--......".replace("rroorr", "rroo")
    assert bar({**held, "lost": 1}, 10 * GIB, 20).plain.count("x") == 1
    assert len(bar({**held, "others": 90 * GIB}, 10 * GIB, 20).plain) == 20
    assert bar(held, 0, 5).cell_len == 5


def test_the_view_says_who_waits_and_why() -> None:
    """Counts, the oldest wait, the estimate, reasons, slots, and what is wrong."""
    queues = {
        "interactive": {"length": 0, "running": 1},
        "background": {"length": 2, "running": 0, "oldest_wait_s": 7.0},
    }
    failed = {"bad": {"retry_after_s": 5.0, "reason": "no memory"}}
    away = device("gpu1", available=False, why="GPU is lost")
    lease = device("gpu2", lease={"owner": "ComfyUI", "state": "held", "left_s": None})
    told = status(
        queues=queues, waiting=[job(7), job(8, waited_s=2.0, estimate_s=None)], failed=failed,
        devices=[device("gpu0", mode="interactive"), away, lease],
    )  # fmt: skip
    text = "\n".join(shown(told, 120))
    for words in (
        "background         0        2       7s       3s",
        "7 background 2/32 m  7s  S6 all slots are busy, in about 3s",
        "8 background 2/32 m  2s  S6 all slots are busy\n",
        "1/4 #...",
        "people chat",
        "does not answer: GPU is lost",
        "leased to ComfyUI (held)",
        "bad failed: no memory; tried again in 5s",
    ):
        assert words in text, words


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 10), (20, 3), (1, 1)])
def test_the_view_fits_into_any_terminal(width: int, height: int) -> None:
    """However much there is to show, the state of the connection is always there."""
    told = status(
        waiting=[job(number) for number in range(150)],
        devices=[device(f"gpu{number}") for number in range(8)],
        instances=[instance("m" * 100) for _ in range(20)],
    )
    found = board(told)
    for number in range(300):
        found.hear(line(10.0, "load", model=f"m{number}"))
    lines = [each.plain for each in view(found, width, height)]
    assert 0 < len(lines) <= height
    assert "connected" in lines[0]
    if height >= 24:
        assert lines[-1].endswith("-> m299")


def test_a_small_terminal_shows_the_classes_whole() -> None:
    """Whatever else has no room there, how many run and wait does; a device of a long name still has its bar."""
    told = status(
        waiting=[job(number) for number in range(150)],
        devices=[device("gpu" * 50) for _ in range(64)],
        instances=[instance(f"m{number}") for number in range(200)],
    )
    for height in range(5, 24):
        lines = shown(told, 40, height)
        assert [each.split()[0] for each in lines if each.startswith(("inter", "back", "batch"))] == list(CLASSES)
        assert len(lines) <= height
        assert not any(before.startswith("  and") and after.startswith("  and") for before, after in pairwise(lines))
    assert "[......" in shown(told, 80, 24)[1]


def test_what_a_gap_has_swallowed_does_not_run_for_ever() -> None:
    """The end of a step may be among the lines that are kept no more."""
    found = board(status())
    found.hear(line(20, "dispatch", job=1, **{"class": "batch"}))
    found.hear(line(15, "gap", lost=7))
    assert found.ran("batch", int(STRIP_SECONDS / 10))[-3:] == [0, 1, 0]


def test_hours_of_steps_take_no_more_memory_than_minutes() -> None:
    """What has left the strip is forgotten, of each class and of what no class knows."""
    found = board(status())
    for number in range(3000):
        for each in ("batch", HOSTILE):
            found.hear(line(6000 - 2 * number, "dispatch", job=f"{each}{number}", **{"class": each}))
            found.hear(line(5999 - 2 * number, "complete", job=f"{each}{number}"))
    assert sum(map(len, found.runs.values())) <= STRIP_SECONDS / 2 + 1


def test_nothing_from_outside_does_anything_to_a_terminal() -> None:
    """Names of models, devices and owners, reasons, versions, lines of the log."""
    bad = status(
        devices=[device(HOSTILE, lease={"owner": HOSTILE, "state": HOSTILE, "left_s": 1.0}), device("b", why=HOSTILE)],
        instances=[instance(HOSTILE, devices=[HOSTILE], state=HOSTILE, tier=HOSTILE)],
        waiting=[job(1, model=HOSTILE, reason=HOSTILE, rule=HOSTILE)],
        failed={HOSTILE: {"retry_after_s": 5.0, "reason": HOSTILE}},
        config_error=HOSTILE,
    )
    found = board(bad)
    found.hear(Came(HOSTILE, 0.0))
    found.hear(line(1.0, HOSTILE, model=HOSTILE))
    for each in view(found, 120):
        assert each.plain.isprintable(), each.plain
        assert "\u202e" not in each.plain


def test_a_strip_shows_which_class_ran_when() -> None:
    """How many at once; what runs goes on to now, and what ran in a server that was started anew has ended."""
    found = board(status())
    half = STRIP_SECONDS / 2
    for event in (
        line(half + 25, "dispatch", job=1, **{"class": "batch"}),
        line(half + 15, "dispatch", job=2, **{"class": "batch"}),
        line(half + 5, "step", job=1),
        line(half + 5, "complete", job=2),
        line(15, "dispatch", job=3, **{"class": "interactive"}),
    ):
        found.hear(event)
    cells = int(STRIP_SECONDS / 10)
    ran = found.ran("batch", cells)
    middle = cells // 2
    assert ran[middle - 4 : middle + 1] == [0, 1, 2, 2, 0]
    assert found.ran("interactive", cells)[-3:] == [0, 1, 1]
    assert strip([0, 1, 2, 9], letters=True) == " 12+"
    assert cell_len(strip([0, 1, 2, 9], letters=False)) == 4
    found.hear(line(5, "start"))
    found.wall_seconds = lambda: NOW + 60
    assert found.ran("interactive", cells)[-6:] == [0] * 6


def test_a_server_that_is_gone_is_said_and_what_it_was_stays() -> None:
    """Until it is back."""
    found = board(status())
    found.hear(Gone())
    found.wall_seconds = lambda: NOW + 4
    lines = [each.plain for each in view(found, 80)]
    assert "gone for 4s, and waited for" in lines[0]
    assert any("1/4" in each for each in lines)
    found.hear(Came("1.1", 0.0))
    assert view(found, 80)[0].plain == "gridsched 1.1 connected http://h"


def test_an_answer_of_another_version_is_no_traceback() -> None:
    """It is said what is missing."""
    spread = [instance("m", devices=["gpu0", "gpu1"], reserved_bytes=0)]
    assert "m  " in "".join(shown(status(instances=spread)))
    for broken in (
        {"devices": []},
        status(devices=[{"name": "gpu0"}]),
        status(waiting=[{}]),
        status(queues=[]),
        status(waiting=[job(1, waited_s=1e999)]),
    ):
        with pytest.raises(NotOurs):
            shown(broken)


class Sent(httpx.SyncByteStream):
    """A stream in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces


def test_the_stream_is_read_however_it_is_cut_and_taken_up_after_its_last_line() -> None:
    """Comments and unknown fields are nothing; a status has no number."""
    told = json.dumps({"time": "2026-01-01T00:00:00.5Z", "event": "ready"})
    text = f"retry: 5\n\nevent: status\ndata: {{}}\n\n: nothing\n\nid: 7\ndata: {told}\n\nevent: status\ndata: {{}}\n\n"
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.path == "/health":
            return httpx.Response(200, json={"version": "1.0"})
        data = text.encode()
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, stream=Sent(data[:31], data[31:90], data[90:])
        )

    with httpx.Client(base_url="http://h", transport=httpx.MockTransport(answer)) as client:
        came = list(news(client, "3"))
    assert [number for number, _ in came] == ["3", "3", "7", "7"]
    assert [type(one) for _, one in came] == [Came, Status, Line, Status]
    assert (asked[-1].headers["last-event-id"], asked[-1].url.query) == ("3", b"status=1")


@pytest.mark.parametrize("data", ["[]", "nonsense", '{"event": "load"}', '{"time": 5}', "[" * 100_000])
def test_what_is_no_stream_of_ours_is_said(data: str) -> None:
    """And no traceback."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(200, json={})
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, stream=Sent(f"data: {data}\n\n".encode())
        )

    with httpx.Client(base_url="http://h", transport=httpx.MockTransport(answer)) as client, pytest.raises(NotOurs):
        list(news(client))


def test_frames_that_break_off_are_none() -> None:
    """Half of one is not shown."""
    answer = httpx.Response(200, stream=Sent(b"data: 1\ndata: 2\n\n", b"data: 3\n"))
    assert list(frames(answer)) == [("", "", "1\n2")]


def test_what_failed_is_not_remembered() -> None:
    """The command says it."""
    found = board(status())
    found.hear(Failed(NotOurs("no")))
    assert found.gone_since is None
