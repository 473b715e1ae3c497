"""`check_setup`: how the set-up stands, seen from inside, in the doctor's words."""

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from gridsched.control.authority import ANYBODY, Authority, Caller
from gridsched.control.findings import Finding
from gridsched.control.services import Place, Services
from gridsched.control.setup import VERBS, SetUp
from gridsched.control.use import use
from gridsched.control.verb import Asker, Call
from gridsched.credentials import ApiKey, Scope
from tests.support.front import House, serving
from tests.support.gateway import free_port

(CHECK,) = VERBS
EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens here
KEY = ApiKey("tom", "0" * 64, (Scope.READ,))


async def told(
    house: House, place: Place | None = None, authority: Authority | None = None, caller: Caller = ANYBODY
) -> dict[str, Finding]:
    """What is said of each thing (the last, where there are several)."""
    services = Services(house.runtime, authority or house.authority, place=place)
    answer = await use(services, CHECK, {}, Call(Asker(caller)))
    assert isinstance(answer, SetUp)
    assert answer.ok == all(each.state != "problem" for each in answer.findings)
    return {each.about: each for each in answer.findings}


async def test_a_set_up_with_nothing_wrong_is_well(autojump_clock: MockClock) -> None:
    """Every thing that was looked at is named; nothing has to be done."""
    async with serving(autojump_clock) as house:
        found = await told(house, Place("127.0.0.1", 1234))
        assert found.keys() == {"keys", "configuration", "exposure", "engine", "devices", "models"}
        assert {each.state for each in found.values()} == {"ok"}
        assert not any(each.do for each in found.values())
        assert found["models"].text == "5 can be served"


@pytest.mark.parametrize(
    ("place", "keys", "state"),
    [
        (Place("127.0.0.1", 1), (), "ok"),
        (Place("::1", 1), (KEY,), "ok"),
        (Place(EVERYWHERE, 1), (), "problem"),
        (Place(EVERYWHERE, 1), (KEY,), "note"),
        (Place("fe80::1%eth0", 1, has_tls=True), (KEY,), "ok"),
    ],
)
async def test_H6_who_can_reach_the_server_is_said(
    autojump_clock: MockClock, place: Place, keys: tuple[ApiKey, ...], state: str
) -> None:
    """Without a key it is a problem, unencrypted worth a note."""
    async with serving(autojump_clock) as house:
        found = await told(house, place, Authority(keys=keys, insecure=True))
        assert found["exposure"].state == state
        assert bool(found["exposure"].do) == (state != "ok")


async def test_keys_that_cannot_be_read_are_a_problem(autojump_clock: MockClock) -> None:
    """For nobody is let in."""
    async with serving(autojump_clock) as house:
        assert (await told(house, authority=Authority(keys=None)))["keys"].state == "problem"


async def test_a_key_for_some_models_is_told_of_those_alone(autojump_clock: MockClock) -> None:
    """As everywhere."""
    async with serving(autojump_clock) as house:
        caller = Caller(frozenset({Scope.READ}), key="tom", models=("sim-embed",))
        assert (await told(house, caller=caller))["models"].text == "1 can be served"


async def test_a_watchdog_is_asked_for_where_it_would_be() -> None:
    """A note with what to do where nothing listens; the place is a real socket's."""
    from gridsched.control.setup import _watchdog  # noqa: PLC0415 - what a real loop and no simulated server tests

    port = free_port()
    assert (await _watchdog(port)).state == "note"
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, trio.SocketStream.aclose, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        assert (await _watchdog(listener.socket.getsockname()[1])).state == "ok"
        nursery.cancel_scope.cancel()
