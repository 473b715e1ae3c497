import httpx
import pytest
import trio

from loadtest import server
from loadtest.server import FAMILIES, ServerFault
from tests.loadtest.stand_in import GIB, StandIn
from tests.loadtest.stub import Asked, Reply, as_json, serving
from tests.support.gateway import PLAIN

PAGE = """# HELP gridsched_model_loads_total Loads that ended.
# TYPE gridsched_model_loads_total counter
gridsched_model_loads_total{model="a",outcome="ready"} 3.0
gridsched_model_loads_total{model="b \\"}",outcome="device_oom"} 1.0
# TYPE gridsched_evictions_total counter
# TYPE gridsched_relief_steps_total counter
gridsched_relief_steps_total 7.0
# TYPE gridsched_thrash_total gauge
gridsched_thrash_total 7.0
# TYPE other_total counter
other_total 99
"""


async def counters_of(reply: Reply) -> server.Counters:
    """What is read from a page."""
    async with serving(lambda _: reply) as stub, httpx.AsyncClient(base_url=stub.url, **PLAIN) as http:
        return await server.counters(http)


async def test_counters_are_summed_over_their_labels_and_missing_ones_unknown() -> None:
    """A family without a series yet is 0; one that is not there, or no counter, is not known."""
    counted = await counters_of(Reply(200, {}, (PAGE.encode(),)))
    assert counted == {"loads": 4, "needless_loads": None, "evictions": 0, "relief_steps": 7, "thrash": None}


@pytest.mark.parametrize(
    "reply",
    [
        Reply(404, {}, (b"no",)),
        Reply(200, {}, (b"<html>metrics</html>",)),
        Reply(200, {}, (b'{"a": 1}',)),
        Reply(200, {}, (b"# TYPE gridsched_model_loads_total counter\ngridsched_model_loads_total{ 1\n",)),
        Reply(200, {}, (b"# TYPE gridsched_thrash_total counter\ngridsched_thrash_total NaN\n",)),
        Reply(200, {}, (b"# TYPE gridsched_thrash_total counter\ngridsched_thrash_total 1e300\n",)),
        Reply(200, {}, (b"# TYPE gridsched_thrash_total counter\ngridsched_thrash_total +Inf\n",)),
        Reply(200, {}, (b"# TYPE gridsched_thrash_total counter\ngridsched_thrash_total -Inf\n",)),
        Reply(200, {}, (b"\xff\xfe",)),
    ],
)
async def test_a_page_that_is_none_tells_nothing(reply: Reply) -> None:
    """Of another program, or broken."""
    assert await counters_of(reply) == dict.fromkeys(FAMILIES)


async def test_a_look_finds_models_devices_and_versions() -> None:
    """What models may take of a device is less what others have and what is kept free."""
    stand_in = StandIn()
    async with serving(stand_in) as stub, httpx.AsyncClient(base_url=stub.url, **PLAIN) as http:
        told = await server.look(http)
        status = await server.told(http, "/api/status")
    assert [one.id for one in told.models] == ["big", "seeing", "small", "embedder"]
    assert told.models[1].can == {"chat", "completion", "vision"}
    assert told.models[3].bytes == GIB // 2
    assert told.free == {"gpu0": 16 * GIB}
    assert (told.server.url, told.server.engine, told.server.backend) == (stub.url, "b1", "made up")
    assert status is not None
    assert (server.living(status), server.loading(status)) == ({1: "big"}, 0)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"instances": None, "devices": 3, "queues": []},
        {"instances": [1, {}], "devices": [None, {"name": 5}], "queues": {"batch": 1}},
        {"instances": [{"model": "a", "measured_bytes": "x"}]},
    ],
)
def test_a_status_of_another_shape_is_read_for_what_it_has(odd: dict[str, object]) -> None:
    """No traceback for what another version tells."""
    sample = server.sample_of(odd, 1.0)
    assert sum(sample.models.values()) + sum(sample.devices.values()) + sum(sample.waiting.values()) == 0
    assert server.loading(odd) == 0
    assert server.living(odd) == {}


DEEP = b"[" * 100_000
"""Deeper than Python reads."""


@pytest.mark.parametrize("raw", [DEEP, b'{"data": {"a": 1}}', b'{"data": [1]}', b"[]", b"\xff"])
async def test_what_lists_no_models_cannot_be_tested(raw: bytes) -> None:
    """Whatever it answers, it is a sentence."""
    async with (
        serving(lambda _: Reply(200, {}, (raw,))) as stub,
        httpx.AsyncClient(base_url=stub.url, **PLAIN) as http,
    ):
        with pytest.raises(ServerFault, match="lists no models"):
            await server.look(http)
        assert raw.startswith(b"{") or await server.told(http, "/api/status") is None


async def test_a_server_that_answers_whatever_it_is_asked_is_no_gridsched() -> None:
    """What it does is not known, and no 0."""
    async with (
        serving(lambda _: as_json({"error": "Unexpected endpoint"})) as stub,
        httpx.AsyncClient(base_url=stub.url, **PLAIN) as http,
    ):
        assert await server.status(http) is None
        assert await server.sample(http, 1.0) is None


async def test_a_server_that_never_ends_an_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where it is looked at before a run, and not while it is watched."""
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.1)
    begins = Reply(200, {"Content-Length": "1000"}, (b" ",), hold=True)
    async with (
        serving(lambda _: begins) as stub,
        httpx.AsyncClient(base_url=stub.url, timeout=60.0, **PLAIN) as http,
    ):
        with trio.fail_after(10.0):
            assert await server.told(http, "/api/status") is None
            assert await server.counters(http) == dict.fromkeys(FAMILIES)
            with pytest.raises(httpx.ReadTimeout, match="no whole answer"):
                await server.look(http)


async def test_a_key_that_is_not_taken_is_told_as_such() -> None:
    """The command says which option names another one."""

    def refuse(_: Asked) -> Reply:
        return as_json({"error": {"message": "no"}}, status=401)

    async with serving(refuse) as stub, httpx.AsyncClient(base_url=stub.url, **PLAIN) as http:
        with pytest.raises(httpx.HTTPStatusError):
            await server.look(http)
