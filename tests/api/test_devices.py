"""What is told of devices that do not answer (D6), and of host memory that processes hold (M11)."""

from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.ids import DeviceName, InstanceId
from gridsched.ports import MemoryPressure
from tests.support.fakes import FailingCards
from tests.support.front import House, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
SIM0 = DeviceName("sim0")
THERE = {"available": True, "unavailable_since": None, "why": None}
GONE = {"available": False, "unavailable_since": "2027-01-15T07:59:50.000Z", "why": "GPU is lost"}


async def told(house: House) -> tuple[object, object, object]:
    """Of the one card: what /health and /api/status say of its answering, and whether anything can be served."""
    health, status = (await house.ask("GET", "/health")).json, (await house.ask("GET", "/api/status")).json
    views = []
    for page in (health, status):
        (view,) = page["devices"]  # type: ignore[misc, has-type]  # one card
        views.append({name: view[name] for name in THERE})
    return (*views, health["can_serve"])


async def available(house: House) -> bytes:
    """The metric's line."""
    page = (await house.ask("GET", "/metrics")).body
    (line,) = [line for line in page.splitlines() if line.startswith(b"gridsched_device_available{")]
    return line


async def test_D6_a_lost_card_is_told_and_what_is_loaded_can_serve(autojump_clock: MockClock) -> None:
    """Since when and why, on every page; back, it is as before."""
    cards = FailingCards()
    async with serving(autojump_clock, monitor=cards.over) as house:
        await house.ask("POST", CHAT, HELLO)
        assert await told(house) == (THERE, THERE, True)
        assert await available(house) == b'gridsched_device_available{device="sim0"} 1.0'
        cards.failed = {SIM0: "GPU is lost"}
        await house.until_logged("device")
        await trio.sleep(10.0)
        assert await told(house) == (GONE, GONE, True)
        assert await available(house) == b'gridsched_device_available{device="sim0"} 0.0'
        assert (await house.ask("POST", CHAT, HELLO)).status == 200
        cards.failed = {}
        await house.until_logged("device", 2)
        assert await told(house) == (THERE, THERE, True)


async def test_D6_where_nothing_is_loaded_and_no_card_answers_nothing_can_be_served(autojump_clock: MockClock) -> None:
    """From the first reading on, with the driver's word for it; the server lives, and serves as soon as it can."""
    cards = FailingCards()
    cards.failed = {SIM0: "GPU is lost"}
    async with serving(autojump_clock, monitor=cards.over) as house:
        health = await house.ask("GET", "/health")
        assert (health.status, health.json["can_serve"]) == (200, False)
        assert health.json["reasons"] == ["sim0 does not answer: GPU is lost"]
        cards.failed = {}
        await house.until_logged("device", 2)
        assert (await house.ask("GET", "/health")).json["can_serve"] is True
        assert (await house.ask("POST", CHAT, HELLO)).status == 200


async def test_M11_host_memory_of_a_process_is_told(autojump_clock: MockClock) -> None:
    """In the status and as a metric; it is read as soon as the process is ready, before it can have grown."""

    async def held(processes: Mapping[InstanceId, int]) -> Mapping[InstanceId, int]:
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(processes, 123_000)

    async with serving(autojump_clock, host=(held, lambda: None)) as house:
        await house.ask("POST", CHAT, HELLO)
        (instance,) = (await house.ask("GET", "/api/status")).json["instances"]  # type: ignore[misc]  # one process
        assert instance["host_held_bytes"] == 123_000
        page = (await house.ask("GET", "/metrics")).body
        assert b'gridsched_model_host_memory_bytes{model="sim-chat-4b"} 123000.0' in page


@pytest.mark.parametrize("told", [None, MemoryPressure(0.25, 0.125)])
async def test_memory_pressure_is_told_where_the_kernel_does(
    autojump_clock: MockClock, told: MemoryPressure | None
) -> None:
    """In the status and as a metric; where nothing is known, nothing is made up."""
    async with serving(autojump_clock, host=(None, lambda: told)) as house:
        shown = (await house.ask("GET", "/api/status")).json["host"]
        assert shown == {"memory_pressure": None if told is None else {"some": 0.25, "full": 0.125}}
        page = (await house.ask("GET", "/metrics")).body
        assert (b'gridsched_host_memory_pressure_ratio{kind="some"} 0.25' in page) is (told is not None)
