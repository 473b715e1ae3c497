"""The status in the stream of events: one at once, soon after a decision, now and then in any case; one for all."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11
import pytest
import trio
from trio.testing import MockClock

from gridsched.api import status_feed
from gridsched.api.status_feed import LATEST_SECONDS, SOONEST_SECONDS
from gridsched.control import status as told
from tests.support.front import Client, House, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


class Watcher:
    """One who reads the stream on a connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._rest = ""

    async def open(self, target: str = "/api/events?status=1") -> None:
        """Ask for it."""
        await self._client.send("GET", target)
        assert (await self._client.head()).status == 200

    async def event(self) -> str:
        """The next event; "" at the end."""
        while "\n\n" not in self._rest:
            event = await self._client.event()
            if not isinstance(event, h11.Data):
                return ""
            self._rest += bytes(event.data).decode()
        told, _, self._rest = self._rest.partition("\n\n")
        return told

    async def status(self) -> tuple[float, dict[str, object]]:
        """The next status, and when it came."""
        while not (told := await self.event()).startswith("event: status\n"):
            assert told
        return trio.current_time(), json.loads(told.partition("data: ")[2])


@asynccontextmanager
async def watching(house: House) -> AsyncIterator[Watcher]:
    """A watcher of a server."""
    async with await house.connect() as client:
        watcher = Watcher(client)
        await watcher.open()
        yield watcher


async def test_a_watcher_is_told_the_status_at_once_and_every_two_seconds(autojump_clock: MockClock) -> None:
    """What `GET /api/status` says, without a number that a reader would come back with."""
    async with serving(autojump_clock) as house, watching(house) as watcher:
        began = trio.current_time()
        found = [await watcher.status() for _ in range(3)]
        assert [at - began for at, _ in found] == pytest.approx([0.0, LATEST_SECONDS, 2 * LATEST_SECONDS])
        assert found[0][1].keys() == (await house.ask("GET", "/api/status")).json.keys()


async def test_a_decision_is_told_soon_and_many_are_told_together(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many lines there are meanwhile; the lines themselves come as they always do."""
    monkeypatch.setattr(status_feed, "SHARE", 0)
    async with serving(autojump_clock) as house, watching(house) as watcher, trio.open_nursery() as nursery:
        began, idle = await watcher.status()
        assert idle["instances"] == []
        nursery.start_soon(house.ask, "POST", CHAT, HELLO | {"max_tokens": 500})
        lines = 0
        while not (event := await watcher.event()).startswith("event: status"):
            lines += event.startswith("id: ")
        assert lines > 1
        assert trio.current_time() - began == pytest.approx(SOONEST_SECONDS)
        assert json.loads(event.partition("data: ")[2])["instances"]


async def test_what_is_dear_to_tell_is_told_less_often(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status that takes long to make does not hold up the loop twice a second."""
    monkeypatch.setattr(status_feed, "SHARE", 10**9)
    async with serving(autojump_clock) as house, watching(house) as watcher, trio.open_nursery() as nursery:
        first, _ = await watcher.status()
        nursery.start_soon(house.ask, "POST", CHAT, HELLO)
        second, _ = await watcher.status()
        assert second - first == pytest.approx(LATEST_SECONDS)


async def test_a_status_is_made_once_for_all_who_watch(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none while nobody does."""
    made = []

    def counted(*args: object) -> object:
        made.append(trio.current_time())
        return told.status(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(status_feed, "status", counted)
    async with serving(autojump_clock) as house:

        async def watch() -> None:
            async with watching(house) as watcher:
                for _ in range(4):
                    await watcher.status()

        await trio.sleep(10.0)
        assert made == []
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(watch)
        assert len(made) <= 5


async def test_a_reader_who_does_not_follow_has_one_status(autojump_clock: MockClock) -> None:
    """With the lines that are kept; and what is no flag is a 400."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", CHAT, HELLO)
        text = (await house.ask("GET", "/api/events?status=1&follow=0")).body.decode()
        assert text.count("event: status") == 1
        assert text.count("\nid: ") == len(house.lines)
        assert (await house.ask("GET", "/api/events?status=yes")).error["param"] == "status"


async def test_the_stream_ends_with_the_server(autojump_clock: MockClock) -> None:
    """A watcher does not keep it alive."""
    async with serving(autojump_clock) as house, watching(house) as watcher:
        await watcher.status()
        house.runtime.end()
        while event := await watcher.event():
            assert event.startswith(("event: status", "id: "))
        await house.ended.wait()


async def test_a_status_names_the_first_who_wait_and_counts_them_all(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each class; the list of jobs has them all."""
    monkeypatch.setattr(told, "MOST_SHOWN", 2)
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        for each in ("background", "batch"):
            for _ in range(5):
                nursery.start_soon(house.ask, "POST", CHAT, HELLO, {"X-Class": each})
        await house.until_logged("enqueue", 10)
        status = (await house.ask("GET", "/api/status")).json
        listed = [(one["class"], one["position"]) for one in status["waiting"]]  # type: ignore[attr-defined]
        assert listed == [("background", 1), ("background", 2), ("batch", 1), ("batch", 2)]
        assert [status["queues"][each]["length"] for each in ("background", "batch")] == [5, 5]  # type: ignore[index]
        assert len((await house.ask("GET", "/api/jobs")).json["waiting"]) == 10  # type: ignore[arg-type]
