"""What a key for some models may do with others by a verb: nothing (H5, H6)."""

from typing import Any

import msgspec
import trio
from trio.testing import MockClock

from gridsched.api.settings import FrontSettings
from gridsched.control.authority import Authority
from gridsched.control.use import MODEL
from gridsched.control.verb import Verb
from gridsched.control.verbs import BY_NAME, VERBS
from gridsched.credentials import Scope
from tests.api.test_api_keys import CHAT, key, shown
from tests.support.front import ADMIN_WORD, House, serving

OWN, OTHER = "sim-embed", "sim-chat-4b"
LIMITED = Authority(ADMIN_WORD, (key("tom", *Scope, models=(OWN,)), key("kim", *Scope)))
NAME_ONE = [verb for verb in VERBS if MODEL in {field.name for field in msgspec.structs.fields(verb.takes)}]


async def use(house: House, verb: Verb, dry: str = "") -> tuple[int, str, bytes]:
    """A verb with another's model, by REST: status, code, body."""
    assert verb.rest is not None
    path = verb.rest.path.replace("{model}", OTHER)
    needed = [each.name for each in msgspec.structs.fields(verb.takes) if each.required and each.name != MODEL]
    body: dict[str, Any] | None = None if verb.rest.method in {"GET", "DELETE"} else dict.fromkeys(needed, 4096)
    if path == verb.rest.path:
        path, body = (f"{path}?model={OTHER}", None) if body is None else (path, {"model": OTHER})
    answer = await house.ask(verb.rest.method, path + dry, body, shown())
    return answer.status, str(answer.error["code"]) if answer.status >= 400 else "", answer.body


async def test_H6_to_a_key_for_some_models_others_are_not_there_by_any_verb(autojump_clock: MockClock) -> None:
    """Not to load, plan, measure or delete, nor as a dry run; nor are the others' names told."""
    assert {"load_model", "plan_load", "model_options", "tail_logs", "delete_model"} <= {each.name for each in NAME_ONE}
    async with serving(autojump_clock, FrontSettings(), authority=LIMITED) as house:
        for verb in NAME_ONE:
            for dry in ("", "?dry_run=1") if verb.destructive else ("",):
                status, code, body = await use(house, verb, dry)
                assert (verb.name, status, code) == (verb.name, 404, "model_not_found")
                assert b"sim-chat" not in body.replace(b"'sim-chat-4b'", b"")
        for path in ("/api/models", "/api/options", "/v1/models", "/api/connection"):
            answer = await house.ask("GET", path, None, shown())
            assert answer.status == 200
            assert b"sim-chat" not in answer.body, path
        assert not house.logged("load")
        assert (await house.ask("POST", f"/api/models/{OWN}/load?wait=60", {}, shown())).status == 200


async def test_H6_a_key_for_some_models_ends_no_job_of_another(autojump_clock: MockClock) -> None:
    """Nor the load of another."""
    async with serving(autojump_clock, FrontSettings(), authority=LIMITED) as house:
        begun = await house.ask("POST", f"/api/models/{OTHER}/load", {}, shown("kim"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(house.ask, "POST", "/v1/chat/completions", CHAT, shown("kim"))
            await house.until_logged("enqueue")
            job = house.logged("enqueue")[0]["job"]
            for name in (begun.json["id"], job):
                answer = await house.ask("DELETE", f"/api/jobs/{name}", None, shown())
                assert (answer.status, answer.error["code"]) == (403, "insufficient_scope")
    assert BY_NAME["cancel_job"].scopes == (Scope.RESIDENCY, Scope.INFERENCE)
