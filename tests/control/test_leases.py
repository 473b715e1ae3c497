"""reserve, release, list: whole devices for somebody else (R8), by verbs and over REST."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest
import trio
from trio.testing import MockClock

from gridsched.control.problems import RequestError
from gridsched.core.ids import DeviceName
from gridsched.core.standing import Standing
from sim import build
from sim.gpu import GIB
from tests.control.acting import Steps, act, plan
from tests.support.fakes import StandingClock
from tests.support.front import ADMIN_WORD, House, serving

CHAT = "/v1/chat/completions"
SMALL, TINY = "sim-chat-4b", "sim-chat-2b"
HELLO: dict[str, object] = {"model": SMALL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
ADMIN = {"Authorization": f"Bearer {ADMIN_WORD}"}
TWO = (16 * GIB, 16 * GIB)


class Kept:
    """A `ports.StandingStore` without a disk: no thread writes, during which the test's clock would run on."""

    def __init__(self) -> None:
        self.latest = Standing()

    def standing(self) -> Standing:
        """As it was left."""
        return self.latest

    def take(self, standing: Standing) -> None:
        """What there is now."""
        self.latest = standing

    async def write(self) -> str:
        """It is kept already."""
        await trio.lowlevel.checkpoint()
        return ""


class GoingClock(StandingClock):
    """A wall clock that goes on with the test's."""

    def wall_seconds(self) -> float:
        """From where the other one stands."""
        return super().wall_seconds() + trio.current_time()


@contextmanager
def a_process() -> Iterator[subprocess.Popen[bytes]]:
    """One that lives until it is told a line."""
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield owner
    finally:
        owner.kill()
        owner.communicate()


async def leases(house: House) -> list[dict[str, object]]:
    """As they are listed."""
    answer = await house.ask("GET", "/api/leases")
    assert answer.status == 200
    rows = answer.json["leases"]
    assert isinstance(rows, list)
    return rows


async def test_R8_a_lease_over_rest_runs_as_an_operation_and_ends_by_itself(autojump_clock: MockClock) -> None:
    """202, then the device is somebody's; what had to go is told, and is back a while after its end."""
    async with serving(autojump_clock) as house:
        await act(house, "load_model", model=SMALL)
        asked = {"devices": ["sim0"], "owner": "ComfyUI", "ttl_s": 120}
        accepted = await house.ask("POST", "/api/leases", asked, ADMIN)
        assert accepted.status == 202
        await trio.sleep(5)
        (row,) = await leases(house)
        assert (row["device"], row["owner"], row["state"], row["displaced"]) == ("sim0", "ComfyUI", "held", [SMALL])
        assert isinstance(row["left_s"], float)
        assert 100 < row["left_s"] < 120
        assert str(row["until"]).startswith("20")
        assert not house.runtime.snapshot().instances
        await trio.sleep(130)
        assert await leases(house) == []
        assert [view.model for view in house.runtime.snapshot().instances] == [SMALL]


async def test_H6_a_lease_is_an_administrators(autojump_clock: MockClock) -> None:
    """Who may only load and look is refused, and may see whose a device is."""
    async with serving(autojump_clock) as house:
        asked = {"devices": "all", "owner": "me", "ttl_s": 5}
        assert (await house.ask("POST", "/api/leases", asked)).status == 403
        assert (await house.ask("DELETE", "/api/leases/sim0")).status == 403
        assert await leases(house) == []


async def test_R8_a_lease_tells_what_it_waits_for_and_is_planned_first(autojump_clock: MockClock) -> None:
    """Running steps end; who would go is named before, and a device that is taken is told of."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        await house.ask("POST", CHAT, HELLO)
        before = len(house.logged("dispatch"))
        nursery.start_soon(house.ask, "POST", CHAT, HELLO | {"max_tokens": 200})
        await house.until_logged("dispatch", before + 1)
        told = await plan(house, "reserve_gpus", devices="sim0", owner="me")
        assert told.harms
        assert [(one.model, one.running_steps) for one in told.evicted] == [(SMALL, 1)]
        steps: Steps = []
        held = await act(house, "reserve_gpus", steps, devices="sim0", owner="me", ttl_s=60)
        assert held["devices"] == ["sim0"]
        assert (held["displaced"], held["ttl_s"]) == ([SMALL], 60)
        assert any("1 running steps" in text for _, _, text in steps)
        assert not (await plan(house, "reserve_gpus", devices="all", owner="you")).harms


async def test_R8_a_second_lease_and_a_pinned_model_are_conflicts(autojump_clock: MockClock) -> None:
    """Named, and nothing of the other devices is had."""
    async with serving(autojump_clock, world=build(cards=TWO)) as house:
        await act(house, "reserve_gpus", devices="sim1", owner="training", ttl_s=60)
        for devices in ("sim1", "all", ["sim0", "sim1"], "sim0,sim1"):
            with pytest.raises(RequestError) as refused:
                await act(house, "reserve_gpus", devices=devices, owner="me", ttl_s=60)
            assert refused.value.problem.status == 409
            assert "sim1 is leased to training" in refused.value.problem.message
        await act(house, "pin_model", model=SMALL)
        await act(house, "load_model", model=SMALL)
        with pytest.raises(RequestError) as refused:
            await act(house, "reserve_gpus", devices="sim0", owner="me", ttl_s=60)
        assert f"{SMALL} is pinned on sim0" in refused.value.problem.message
        assert [row["device"] for row in await leases(house)] == ["sim1"]
        assert await act(house, "release_gpus", device="all") == {"devices": ["sim1"], "loads_again": []}


async def test_R8_giving_back_a_card_that_is_in_use_harms(autojump_clock: MockClock) -> None:
    """By its owner's process, or by programs outside; one that nobody uses comes back unasked."""
    async with serving(autojump_clock, world=build(cards=TWO)) as house:
        with a_process() as owner:
            await act(house, "reserve_gpus", devices="sim0", owner="training", pid=owner.pid)
            await act(house, "reserve_gpus", devices="sim1", owner="ComfyUI", ttl_s=600)
            assert not (await plan(house, "release_gpus", device="sim1")).harms
            told = await plan(house, "release_gpus", device="all")
            assert told.harms
            assert f"sim0 would be training's no more, whose process {owner.pid} lives" in told.text
        house.world.monitor.set_foreign(DeviceName("sim1"), 3 * GIB)
        await trio.sleep(30)
        told = await plan(house, "release_gpus", device="sim1")
        assert (told.harms, "3.00 GiB there" in told.text) == (True, True)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"devices": "sim0", "owner": "me"}, "ttl_s"),
        ({"devices": "sim0", "owner": "a\nb", "ttl_s": 5}, "owner"),
        ({"devices": "sim0", "owner": "\u202e", "ttl_s": 5}, "owner"),
        ({"devices": "sim0", "owner": " ", "ttl_s": 5}, "owner"),
        ({"devices": "sim9", "owner": "me", "ttl_s": 5}, "devices"),
        ({"devices": "sim0", "owner": "me", "pid": 4194304}, "pid"),
    ],
)
async def test_R8_a_lease_that_cannot_be_is_refused(
    autojump_clock: MockClock, given: dict[str, object], param: str
) -> None:
    """One without an end, for nobody, of a device or for a process that is not there."""
    async with serving(autojump_clock) as house:
        with pytest.raises(RequestError) as refused:
            await act(house, "reserve_gpus", **given)
        assert refused.value.problem.param == param
        with pytest.raises(RequestError) as unknown:
            await act(house, "release_gpus", device="sim0")
        assert unknown.value.problem.status == 404


async def test_R8_a_lease_ends_with_its_owners_process(autojump_clock: MockClock) -> None:
    """That very process; whose it is, is shown."""
    with a_process() as owner:
        async with serving(autojump_clock) as house:
            await act(house, "reserve_gpus", devices="sim0", owner="training", pid=owner.pid)
            await trio.sleep(100)
            (row,) = await leases(house)
            assert (row["pid"], row["until"]) == (owner.pid, None)
            owner.communicate(b"\n")
            await trio.sleep(2)
            assert await leases(house) == []
            assert house.logged("lease")[-1]["why"] == f"its process {owner.pid} has ended"


async def test_R8_a_lease_outlives_the_server_by_the_wall_clock(autojump_clock: MockClock) -> None:
    """A server that is started again knows it, loads nothing there before its end, and then what had to go."""
    kept = Kept()
    async with serving(autojump_clock, wall=GoingClock(), standing=kept) as house:
        await act(house, "load_model", model=SMALL)
        await act(house, "reserve_gpus", devices="sim0", owner="training", ttl_s=600)
        (first,) = await leases(house)
    await trio.sleep(100)
    async with serving(autojump_clock, wall=GoingClock(), standing=kept) as house:
        await trio.sleep(1)
        (row,) = await leases(house)
        assert (row["owner"], row["state"], row["displaced"]) == ("training", "held", [SMALL])
        assert isinstance(row["left_s"], float)
        assert isinstance(first["left_s"], float)
        assert row["left_s"] < first["left_s"] - 100
        ends = [datetime.fromisoformat(str(each["until"])) for each in (first, row)]
        assert abs((ends[1] - ends[0]).total_seconds()) < 1
        refused = await house.ask("POST", CHAT, HELLO)
        assert refused.status == 507
        assert "sim0 is leased to training" in str(refused.error["message"])
        await trio.sleep(row["left_s"] + 10)
        assert [view.model for view in house.runtime.snapshot().instances] == [SMALL]
    assert kept.latest == Standing()


async def test_R8_a_lease_that_is_given_up_before_it_is_held_leaves_nothing(autojump_clock: MockClock) -> None:
    """Its operation is cancelled: what drains for it takes work again."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        await house.ask("POST", CHAT, HELLO)
        before = len(house.logged("dispatch"))
        nursery.start_soon(house.ask, "POST", CHAT, HELLO | {"max_tokens": 500})
        await house.until_logged("dispatch", before + 1)
        with trio.move_on_after(0.5):
            await act(house, "reserve_gpus", devices="sim0", owner="me", ttl_s=60)
        await trio.sleep(0.1)
        assert await leases(house) == []
        assert [view.state.value for view in house.runtime.snapshot().instances] == ["ready"]
