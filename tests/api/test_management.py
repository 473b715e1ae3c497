"""The verbs over REST: what a request may say and how, long verbs, ends before their time, and names with slashes."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gridsched.api.management import as_segments, rule_of
from gridsched.control.verbs import VERBS
from gridsched.credentials import Scope
from sim.engine import Faults
from tests.api.test_api_keys import key, shown
from tests.support.front import House, serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
LONG = HELLO | {"max_tokens": 400}


async def asked_into(house: House, found: list[Any], *request: Any) -> None:
    """Ask, and keep the answer."""
    found.append(await house.ask(*request))


# --- long verbs -------------------------------------------------------------------------------------------------------


async def test_a_long_verb_is_an_operation_that_can_be_followed(autojump_clock: MockClock) -> None:
    """202 with its id and where it is; then done, with the answer."""
    async with serving(autojump_clock) as house:
        begun = await house.ask("POST", "/api/models/sim-chat-4b/load")
        assert begun.status == 202
        assert begun.headers["location"] == f"/api/jobs/{begun.json['id']}"
        assert (begun.json["state"], begun.json["verb"], begun.json["result"]) == ("running", "load_model", None)
        (listed,) = (await house.ask("GET", "/api/jobs")).json["operations"]  # type: ignore[misc]  # JSON
        assert listed["id"] == begun.json["id"]
        await house.until_logged("ready")
        told = (await house.ask("GET", begun.headers["location"])).json
        assert (told["state"], told["job"], told["error"]) == ("done", None, None)
        assert told["result"]


@pytest.mark.parametrize(("query", "headers"), [("?wait=500", {}), ("", {"Prefer": "respond-async, wait=500"})])
async def test_a_long_verb_is_waited_for_by_whoever_says_so(
    autojump_clock: MockClock, query: str, headers: Mapping[str, str]
) -> None:
    """Its own answer where it ends in time, and its own refusal."""
    async with serving(autojump_clock) as house:
        told = await house.ask("POST", f"/api/models/sim-chat-4b/load{query}", None, headers)
        assert told.status == 200
        house.world.engine.plan_faults("sim-embed", Faults(load_factor=1000.0))
        began = trio.current_time()
        slow = await house.ask("POST", "/api/models/sim-embed/load?wait=1.5")
        assert (slow.status, trio.current_time() - began) == (202, pytest.approx(1.5, abs=0.1))
        lost = await house.ask("POST", f"/api/models/sim-nothing/load{query}", None, headers)
        assert (lost.status, lost.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("wait", ["x", "-1", "601", "nan", "1&wait=2", ""])
async def test_a_wait_that_is_none_is_a_400(autojump_clock: MockClock, wait: str) -> None:
    """Nothing is begun; and a verb that is not long takes none."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", f"/api/models/sim-chat-4b/load?wait={wait}")
        assert (answer.status, answer.error["param"]) == (400, "wait")
        assert house.logged("load") == []
        assert (await house.ask("GET", "/api/status?wait=1")).error["param"] == "wait"


async def test_a_second_load_of_a_model_is_the_one_that_runs(autojump_clock: MockClock) -> None:
    """The same operation; when that is over, a new one."""
    async with serving(autojump_clock) as house:
        ids = [(await house.ask("POST", "/api/models/sim-chat-4b/load")).json["id"] for _ in range(2)]
        assert ids == ["op-1", "op-1"]
        await house.until_logged("ready")
        assert (await house.ask("POST", "/api/models/sim-chat-4b/load")).json["id"] == "op-2"


async def test_a_dry_run_says_what_would_be_done(autojump_clock: MockClock) -> None:
    """And does nothing of it, whoever asks."""
    async with serving(autojump_clock) as house:
        told = await house.ask("POST", "/api/models/sim-chat-4b/unload?dry_run=true")
        assert told.status == 200
        assert {"text", "harms", "evicted", "waiting_jobs"} <= told.json.keys()
        assert (await house.ask("GET", "/api/jobs")).json["operations"] == []
        odd = await house.ask("POST", "/api/models/sim-chat-4b/unload?dry_run=perhaps")
        assert (odd.status, odd.error["param"]) == (400, "dry_run")
        reading = await house.ask("GET", "/api/status?dry_run=1")
        assert (reading.status, reading.error["param"]) == (400, "dry_run")


# --- ends before their time -------------------------------------------------------------------------------------------


async def test_a_job_that_waits_is_cancelled_and_its_client_told(autojump_clock: MockClock) -> None:
    """It leaves its queue; nobody repeats it; a second time it is over."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        house.world.engine.plan_faults("sim-chat-4b", Faults(load_factor=50.0))
        found: list[Any] = []
        nursery.start_soon(asked_into, house, found, "POST", CHAT, HELLO)
        await house.until_logged("load")
        told = await house.ask("DELETE", "/api/jobs/1")
        assert (told.status, told.json["id"], told.json["state"]) == (200, "1", "cancelled")
        await house.until_logged("cancel")
        await trio.sleep(0.1)
        (answer,) = found
        assert (answer.status, answer.error["code"]) == (502, "cancelled")
        assert answer.headers["x-should-retry"] == "false"
        assert (await house.ask("GET", "/api/jobs")).json["waiting"] == []
        again = await house.ask("DELETE", "/api/jobs/1")
        assert (again.status, again.error["code"]) == (409, "conflict")
        assert (await house.ask("DELETE", "/api/jobs/77")).status == 404


async def test_a_job_that_runs_is_cancelled_with_its_engine_s_connection(autojump_clock: MockClock) -> None:
    """A stream gets an error frame, an answer in one piece a 502; the slots are free again."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        await house.ask("POST", CHAT, HELLO)
        found: list[Any] = []
        nursery.start_soon(asked_into, house, found, "POST", CHAT, LONG | {"stream": True})
        await house.until_logged("dispatch", 2)
        nursery.start_soon(asked_into, house, found, "POST", CHAT, LONG)
        await house.until_logged("dispatch", 3)
        await trio.sleep(1.0)
        for job in (2, 3):
            assert (await house.ask("DELETE", f"/api/jobs/{job}")).status == 200
            await trio.sleep(0.1)
        streamed, plain = found
        assert streamed.status == 200
        assert streamed.complete
        frame = streamed.body.split(b"\n\n")[-2]
        assert b'"code":"cancelled"' in frame
        assert b"[DONE]" not in streamed.body
        assert (plain.status, plain.error["code"]) == (502, "cancelled")
        assert (await house.ask("GET", "/api/jobs")).json["running"] == []
        assert (await house.ask("POST", CHAT, HELLO)).status == 200


async def test_an_operation_is_cancelled(autojump_clock: MockClock) -> None:
    """It says so, and whoever waited for it is told."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        house.world.engine.plan_faults("sim-chat-4b", Faults(load_factor=50.0))
        found: list[Any] = []
        nursery.start_soon(asked_into, house, found, "POST", "/api/models/sim-chat-4b/load?wait=500")
        await house.until_logged("load")
        assert (await house.ask("DELETE", "/api/jobs/op-1")).status == 200
        await trio.sleep(0.1)
        assert (found[0].status, found[0].error["code"]) == (502, "cancelled")
        told = (await house.ask("GET", "/api/jobs/op-1")).json
        assert (told["state"], str(told["text"]).partition(";")[0]) == ("cancelled", "cancelled")
        assert (await house.ask("DELETE", "/api/jobs/op-1")).status == 409
        for method in ("GET", "DELETE"):
            assert (await house.ask(method, "/api/jobs/op-7")).status == 404


async def test_H6_a_key_that_may_only_ask_models_cancels_its_own_jobs_alone(autojump_clock: MockClock) -> None:
    """Another's is a 403; one that may neither gets nothing."""
    async with serving(autojump_clock) as house, trio.open_nursery() as nursery:
        house.authority.keep([key(name, *scopes) for name, scopes in KEYS.items()])
        house.world.engine.plan_faults("sim-chat-4b", Faults(load_factor=50.0))
        found: list[Any] = []
        for _ in range(2):
            nursery.start_soon(asked_into, house, found, "POST", CHAT, HELLO, shown("tom"))
        await house.until_logged("enqueue", 2)
        for name, status in {"ann": 403, "reader": 403, "tom": 200}.items():
            assert (await house.ask("DELETE", "/api/jobs/1", None, shown(name))).status == status
        assert (await house.ask("DELETE", "/api/jobs/2", None, shown("operator"))).status == 200
        begun = await house.ask("POST", "/api/models/sim-embed/load", None, shown("operator"))
        assert (await house.ask("DELETE", f"/api/jobs/{begun.json['id']}", None, shown("tom"))).status == 403


KEYS: Mapping[str, tuple[Scope, ...]] = {
    "tom": (Scope.INFERENCE,),
    "ann": (Scope.INFERENCE,),
    "reader": (Scope.READ,),
    "operator": (Scope.RESIDENCY,),
}


# --- what a request may say -------------------------------------------------------------------------------------------

WRONG: list[tuple[str, str, bytes | None, int, str | None]] = [
    ("GET", "/api/status?colour=red", None, 400, "colour"),
    ("GET", "/api/models?limits=3", None, 400, "limits"),
    ("GET", "/api/models?limit=0", None, 400, "limit"),
    ("GET", "/api/models?limit=1&limit=2", None, 400, "limit"),
    ("GET", "/api/models?limit=99999999999999999999999999", None, 400, "limit"),
    ("GET", "/api/models?limit=1e3000", None, 400, "limit"),
    ("GET", "/api/models?limit=", None, 400, "limit"),
    ("GET", "/api/jobs?cursor=nonsense", None, 400, "cursor"),
    ("GET", "/api/jobs?cursor=" + "x" * 2000, None, 400, "cursor"),
    ("GET", "/api/status", b"{}", 400, None),
    ("GET", "/api/models/sim-chat-4b?model=other", None, 400, "model"),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"model": "other"}', 400, "model"),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"forse": true}', 400, "forse"),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"force": "true"}', 400, "force"),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"force": 1}', 400, "force"),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"force": null}', 400, "force"),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"force": true, "force": false}', 400, None),
    ("POST", "/api/models/sim-chat-4b/unload?force=maybe", None, 400, "force"),
    ("POST", "/api/models/sim-chat-4b/unload?force=true", b'{"force": true}', 400, "force"),
    ("POST", "/api/models/sim-chat-4b/unload", b"[]", 400, None),
    ("POST", "/api/models/sim-chat-4b/unload", b"3", 400, None),
    ("POST", "/api/models/sim-chat-4b/unload", b"{", 400, None),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"force": 1e999}', 400, None),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"force": NaN}', 400, None),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"a":' * 5000 + b"1" + b"}" * 5000, 400, None),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"\xff": 1}', 400, None),
    ("POST", "/api/models/sim-chat-4b/unload", b'{"force": ' + b" " * 1_100_000 + b"true}", 413, None),
    ("DELETE", "/api/jobs/1", b'{"force": true}', 400, None),
    ("GET", "/api/jobs/%00", None, 404, None),
    ("GET", "/api/jobs/op-1%2F..%2F..", None, 404, None),
    ("GET", "/api/models/..", None, 404, "model"),
    ("GET", "/api/models/%2e%2e%2fstatus", None, 404, "model"),
    ("GET", "/api/models/%FF%FE", None, 404, "model"),
    ("GET", "/api/models/" + "%E2%98%83" * 500, None, 404, "model"),
    ("GET", "/api/models/", None, 404, None),
    ("GET", "/api/models//", None, 404, None),
]


@pytest.mark.parametrize(("method", "target", "body", "status", "param"), WRONG, ids=str)
async def test_H1_what_is_wrong_is_named(
    autojump_clock: MockClock, method: str, target: str, body: bytes | None, status: int, param: str | None
) -> None:
    """In one shape, and nothing is done for it."""
    async with serving(autojump_clock) as house:
        answer = await house.ask(method, target, body)
        assert (answer.status, answer.error["param"]) == (status, param)
        assert answer.error.keys() == {"message", "type", "param", "code", "gridsched"}
        assert len(str(answer.error["message"])) < 1100
        assert house.runtime.desk.open_tickets == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, 202),
        ({"Content-Type": "text/plain"}, 202),
        ({"Content-Type": "application/json; charset=utf-16"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Encoding": "gzip"}, 415),
    ],
)
async def test_what_cannot_be_json_is_a_415(autojump_clock: MockClock, headers: Mapping[str, str], status: int) -> None:
    """What a client calls its JSON is not judged."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", "/api/models/sim-chat-4b/unload", b'{"force": false}', headers)
        assert answer.status == status


async def test_a_query_says_what_a_body_says(autojump_clock: MockClock) -> None:
    """Numbers and words of it are read as what is taken."""
    async with serving(autojump_clock) as house:
        for query, body in (("?force=true", None), ("", {"force": True}), ("?wait=500", {"force": True})):
            told = await house.ask("POST", f"/api/models/sim-chat-4b/unload{query}", body)
            assert told.status in {200, 202}
        ran = (await house.ask("GET", "/api/jobs")).json["operations"]
        assert [each["arguments"]["force"] for each in ran] == [True] * 3  # type: ignore[attr-defined]  # JSON


# --- routes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.rest is not None], ids=lambda verb: verb.name)
async def test_every_route_says_which_methods_it_takes(autojump_clock: MockClock, verb: Any) -> None:
    """OPTIONS and a 405 name them; HEAD goes with GET."""
    path = verb.rest.path.replace("{", "a-").replace("}", "")
    taken = {other.rest.method for other in VERBS if other.rest is not None and other.rest.path == verb.rest.path}
    taken |= {"OPTIONS"} | ({"HEAD"} if "GET" in taken else set())
    async with serving(autojump_clock) as house:
        options = await house.ask("OPTIONS", path)
        assert options.status in {200, 204}
        assert set(options.headers["allow"].split(", ")) == taken
        other = await house.ask("PUT", path)
        assert (other.status, other.error["code"]) == (405, "method_not_allowed")
        assert set(other.headers["allow"].split(", ")) == taken


async def test_names_with_slashes_come_raw_and_encoded(autojump_clock: MockClock) -> None:
    """What ends like another route is that route; with its slashes encoded it is a name."""
    async with serving(autojump_clock) as house:

        async def named(target: str, method: str = "GET") -> str:
            return str((await house.ask(method, target)).error["message"])

        assert "'a/b/c'" in await named("/api/models/a/b/c")
        assert "'a/b/c'" in await named("/api/models/a%2Fb%2fc")
        assert "'a/b'" in await named("/api/models/a/b/plan")
        assert "'a/b/plan'" in await named("/api/models/a/b%2Fplan")
        assert "'plan'" in await named("/api/models/plan")
        assert "'a%2Fb'" in await named("/api/models/a%252Fb")
        assert "'ä b'" in await named("/api/models/%C3%A4%20b")
        assert "'a//b'" in await named("/api/models/a//b")
        assert "takes OPTIONS, POST, not GET" in await named("/api/models/a/load")
        assert "'a/load'" in await named("/api/models/a%2Fload/load?wait=9", "POST")


def test_a_route_knows_how_the_others_end() -> None:
    """One that is no name's end changes nothing."""
    paths = ["/api/m/{name}", "/api/m/{name}/load", "/api/m/{name}/parts/{part}", "/api/m"]
    assert [rule_of(path, paths) for path in paths] == [
        '/api/m/<name("load"):name>',
        "/api/m/<name:name>/load",
        "/api/m/<name:name>/parts/<name:part>",
        "/api/m",
    ]


def test_the_path_of_a_target_with_a_host_is_taken_as_it_is() -> None:
    """Its raw path is another."""
    scope: Any = {"path": "/api/models/a/b", "raw_path": b"http://localhost/api/models/a%2Fb"}
    assert as_segments(scope) == "/api/models/a/b"


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/models", "/api/jobs"])
async def test_a_list_comes_in_pages_that_miss_nobody(autojump_clock: MockClock, path: str) -> None:
    """Each entry once, whatever the limit; what has gone meanwhile moves nobody."""
    async with serving(autojump_clock) as house:
        for model in ("sim-chat-2b", "sim-chat-4b", "sim-embed"):
            await house.ask("POST", f"/api/models/{model}/unload?wait=500")
        whole = (await house.ask("GET", path)).json
        told, cursor = [], ""
        while True:
            page = (await house.ask("GET", f"{path}?limit=2{cursor}")).json
            told += [each["id"] for each in page.get("models", page.get("operations"))]  # type: ignore[attr-defined]
            assert page["total"] == whole["total"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert sorted(told) == sorted(each["id"] for each in whole.get("models", whole.get("operations")))  # type: ignore[attr-defined]
        assert len(told) == whole["total"]
