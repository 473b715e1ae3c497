"""The MCP server over HTTP in the server's own trio loop, asked by the SDK's client on trio: old revisions and new."""

import json
from typing import Any

import jsonschema
import pytest
import trio
from mcp.shared.exceptions import MCPError
from trio.testing import MockClock

from gridsched.control.operations import State
from gridsched.credentials import Scope
from gridsched.mcp.tools import TOOLS, tool
from sim import build
from tests.mcp.clients import MODES, connected, keep_keys, leaves_generators_behind, url_of
from tests.support.front import ADMIN_WORD, House, serving

pytestmark = [pytest.mark.parametrize("mode", MODES), leaves_generators_behind]

MODEL = "sim-chat-4b"


async def state_of(house: House, model: str = MODEL) -> Any:
    """How a model stands."""
    return (await house.ask("GET", f"/api/models/{model}")).json["state"]


async def test_a_client_is_told_what_there_is(autojump_clock: MockClock, mode: str) -> None:
    """The tools in the table's order, the resources, and that models are asked elsewhere."""
    async with serving(autojump_clock) as house, connected(url_of(house), mode) as client:
        assert "/v1" in str(client.instructions)
        assert [each.name for each in (await client.list_tools()).tools] == list(TOOLS)
        resources = {str(each.uri) for each in (await client.list_resources()).resources}
        assert resources == {"gridsched://status", "gridsched://config/schema"}
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "gridsched://models/{id}/log"
        info = (await client.call_tool("connection_info", {})).structured_content
        assert info["openai_base_url"] == f"{url_of(house)}/v1"
        assert info["anthropic_base_url"] == url_of(house)
        assert info["mcp_url"] == f"{url_of(house)}/mcp"
        assert (info["wants_key"], info["classes"][0]) == (False, "interactive")
        assert ADMIN_WORD not in json.dumps(info)


async def test_what_a_tool_tells_is_what_rest_tells(autojump_clock: MockClock, mode: str) -> None:
    """As structured content that its schema allows, and as text for clients that read only that."""
    async with serving(autojump_clock) as house, connected(url_of(house), mode) as client:
        for name, path in (
            ("list_models", "/api/models"),
            ("list_jobs", "/api/jobs"),
            ("server_status", "/api/status"),
        ):
            told = await client.call_tool(name, {})
            assert not told.is_error
            assert told.structured_content == (await house.ask("GET", path)).json
            jsonschema.validate(told.structured_content, tool(name).output_schema, jsonschema.Draft202012Validator)
            assert json.loads(told.content[-1].text) == told.structured_content
        read = await client.read_resource("gridsched://status")
        assert json.loads(read.contents[0].text) == (await house.ask("GET", "/api/status")).json


async def test_a_load_tells_its_progress_and_its_end(autojump_clock: MockClock, mode: str) -> None:
    """Figures that only grow, with a sentence."""
    seen: list[tuple[float, str | None]] = []

    async def note(done: float, _: float | None, text: str | None) -> None:
        seen.append((done, text))

    async with serving(autojump_clock) as house, connected(url_of(house), mode) as client:
        told = await carried_out(client, "load_model", {"model": MODEL}, note)
        assert told.structured_content["model"] == MODEL
        assert await state_of(house) == "ready"
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert any(text.startswith(f"loading {MODEL}: ") for _, text in seen)


async def carried_out(client: Any, name: str, given: dict[str, Any], progress: Any = None) -> Any:
    """Call a tool, and again with the token of its plan where one came first."""
    told = await client.call_tool(name, given, progress_callback=progress)
    if told.structured_content is not None and "token" in told.structured_content:
        again = given | {"token": told.structured_content["token"]}
        told = await client.call_tool(name, again, progress_callback=progress)
    return told


async def test_what_harms_is_done_by_the_second_call(autojump_clock: MockClock, mode: str) -> None:
    """The first has the plan and a token; the token holds once."""
    async with serving(autojump_clock) as house, connected(url_of(house), mode) as client:
        await carried_out(client, "load_model", {"model": MODEL})
        first = await client.call_tool("unload_model", {"model": MODEL})
        assert not first.is_error
        assert first.structured_content["plan"]["harms"] is True
        assert first.content[0].text.startswith("Not done yet.")
        jsonschema.validate(
            first.structured_content, tool("unload_model").output_schema, jsonschema.Draft202012Validator
        )
        assert await state_of(house) == "ready"
        token = first.structured_content["token"]
        assert not (await client.call_tool("unload_model", {"model": MODEL, "token": token})).is_error
        assert await state_of(house) == "cold"
        await carried_out(client, "load_model", {"model": MODEL})
        again = await client.call_tool("unload_model", {"model": MODEL, "token": token})
        assert (again.is_error, again.structured_content["error"]["code"]) == (True, "conflict")
        assert again.structured_content["error"]["gridsched"]["token"] != token
        assert await state_of(house) == "ready"


async def test_a_plan_that_harms_nobody_harms_nobody_later(autojump_clock: MockClock, mode: str) -> None:
    """Two agents load what fits alone, in one moment: one has it, the other hears of a conflict, and nobody goes."""
    told: list[Any] = []
    async with (
        serving(autojump_clock, world=build(cards=(10 * 2**30,))) as house,
        connected(url_of(house), mode) as client,
        trio.open_nursery() as nursery,
    ):

        async def load(model: str) -> None:
            told.append(await client.call_tool("load_model", {"model": model}))

        nursery.start_soon(load, MODEL)
        nursery.start_soon(load, "sim-chat-12b")
        await house.until_logged("ready")
        await trio.sleep(30)
        assert sorted(each.is_error for each in told) == [False, True]
        (refused,) = (each.structured_content["error"] for each in told if each.is_error)
        assert refused["code"] == "conflict"
        assert "would have to go" in refused["message"]
        assert not house.logged("evict")


async def test_L7_a_load_that_never_fits_has_its_arithmetic_though_it_is_loaded_otherwise(
    autojump_clock: MockClock, mode: str
) -> None:
    """What must go is judged after that."""
    async with serving(autojump_clock) as house, connected(url_of(house), mode) as client:
        await carried_out(client, "load_model", {"model": MODEL})
        told = await client.call_tool("load_model", {"model": MODEL, "ctx": 99_999_999})
        assert told.structured_content["error"]["code"] == "insufficient_vram"
        assert "required_bytes" in told.structured_content["error"]["gridsched"]


async def test_a_pin_that_sends_somebody_away_is_planned_first(autojump_clock: MockClock, mode: str) -> None:
    """It is a load that holds its place for good; of a model that is there it asks nothing."""
    async with (
        serving(autojump_clock, world=build(cards=(10 * 2**30,))) as house,
        connected(url_of(house), mode) as client,
    ):
        await carried_out(client, "load_model", {"model": MODEL})
        planned = (await client.call_tool("pin_model", {"model": "sim-chat-12b"})).structured_content
        assert [each["model"] for each in planned["plan"]["evicted"]] == [MODEL]
        assert not house.runtime.snapshot().pins_down
        assert (await client.call_tool("pin_model", {"model": MODEL})).structured_content["pinned"] is True


@pytest.mark.parametrize(
    ("name", "given", "code", "param"),
    [
        ("pin_model", {"model": "sim-chat-4x"}, "model_not_found", "model"),
        ("pin_model", {}, "invalid_request", "model"),
        ("pin_model", {"modle": "a"}, "invalid_request", "modle"),
        ("pin_model", {"model": 7}, "invalid_request", "model"),
        ("pin_model", {"model": ""}, "invalid_request", "model"),
        ("explain", {"job": "999"}, "not_found", None),
    ],
)
async def test_an_error_is_a_result_that_says_what_rest_says(
    autojump_clock: MockClock, mode: str, name: str, given: dict[str, Any], code: str, param: str | None
) -> None:
    """The same body, and its sentence as text; the session goes on."""
    async with serving(autojump_clock) as house, connected(url_of(house), mode) as client:
        told = await client.call_tool(name, given)
        assert told.is_error
        error = told.structured_content["error"]
        assert (error["code"], error["param"]) == (code, param)
        assert told.content[0].text.startswith(error["message"])
        jsonschema.validate(told.structured_content, tool(name).output_schema, jsonschema.Draft202012Validator)
        assert not (await client.call_tool("server_status", {})).is_error


async def test_a_refused_load_has_the_arithmetic(autojump_clock: MockClock, mode: str) -> None:
    """The 507 of REST, figure for figure."""
    small, large = build(cards=(4 * 2**30,)), "sim-chat-12b"
    async with serving(autojump_clock, world=small) as house, connected(url_of(house), mode) as client:
        told = await carried_out(client, "load_model", {"model": large})
        error = told.structured_content["error"]
        assert (told.is_error, error["code"]) == (True, "insufficient_vram")
        plan = (await house.ask("GET", f"/api/models/{large}/plan")).json["refusal"]
        assert error["gridsched"]["required_bytes"] == plan["required_bytes"]  # type: ignore[index]  # JSON
        assert error["message"] in told.content[0].text


async def test_there_is_no_such_tool_or_resource(autojump_clock: MockClock, mode: str) -> None:
    """The protocol's own errors."""
    async with serving(autojump_clock) as house, connected(url_of(house), mode) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("chat", {})
        assert refused.value.code == -32602
        for uri in ("gridsched://nothing", "gridsched://models//log", "file:///etc/passwd"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)


async def test_H6_a_keys_scope_decides_what_it_sees_and_does(autojump_clock: MockClock, mode: str) -> None:
    """A key that may read is shown no load, and is refused one with REST's own words."""
    async with serving(autojump_clock) as house:
        keep_keys(house, reader=Scope.READ, loader=Scope.RESIDENCY)
        async with connected(url_of(house), mode, "readerreader") as client:
            names = {each.name for each in (await client.list_tools()).tools}
            assert names == {name for name, verb in TOOLS.items() if Scope.READ in verb.scopes}
            told = await client.call_tool("load_model", {"model": MODEL})
            assert (told.is_error, told.structured_content["error"]["code"]) == (True, "insufficient_scope")
            assert not (await client.call_tool("list_models", {})).is_error
        async with connected(url_of(house), mode, "loaderloader") as client:
            with pytest.raises(MCPError) as refused:
                await client.read_resource("gridsched://status")
            assert refused.value.data["error"]["code"] == "insufficient_scope"
            assert not (await carried_out(client, "load_model", {"model": MODEL})).is_error


async def test_A9_a_load_goes_on_when_whoever_asked_gives_the_call_up(autojump_clock: MockClock, mode: str) -> None:
    """The operation has its end, and the same client can be answered again."""
    async with serving(autojump_clock) as house, connected(url_of(house), mode) as client:
        token = (await client.call_tool("load_model", {"model": MODEL, "dry_run": True})).structured_content["token"]
        with trio.move_on_after(1) as given_up:
            await client.call_tool("load_model", {"model": MODEL, "token": token})
        assert given_up.cancelled_caught
        assert await state_of(house) == "loading"
        await house.until_logged("ready")
        assert await state_of(house) == "ready"
        assert not (await client.call_tool("server_status", {})).is_error


async def test_P8_a_call_that_is_open_when_the_server_ends_ends_with_it(autojump_clock: MockClock, mode: str) -> None:
    """With an error that says so, and in no more time than any other answer may take."""
    async with (
        serving(autojump_clock) as house,
        connected(url_of(house), mode) as client,
        trio.open_nursery() as nursery,
    ):
        token = (await client.call_tool("load_model", {"model": MODEL, "dry_run": True})).structured_content["token"]
        came: list[Any] = []

        async def load() -> None:
            came.append(await client.call_tool("load_model", {"model": MODEL, "token": token}))

        nursery.start_soon(load)
        await trio.sleep(1)
        began = trio.current_time()
        house.runtime.end()
        await house.ended.wait()
        assert trio.current_time() - began < 10
    (told,) = came
    assert told.is_error
    assert told.structured_content["error"]["code"] in {"conflict", "draining", State.CANCELLED.value}
