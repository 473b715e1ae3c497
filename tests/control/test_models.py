"""The lists of models: OpenAI's, Anthropic's, LM Studio's."""

import json
from dataclasses import replace
from urllib.parse import quote

from trio.testing import MockClock

from gridsched.api.mirrors import anthropic
from sim import MODELS, build
from tests.support.front import serving

NAMED = replace(MODELS[2], name="org/m:Q4 x", aliases=("a/b",))
LISTS = ("/v1/models", "/api/v0/models")


async def test_H12_the_list_is_openais_and_never_changes_its_order(autojump_clock: MockClock) -> None:
    """Every entry has its four members; `data` is an empty list, not null, where there is no model."""
    async with serving(autojump_clock) as house:
        first = (await house.ask("GET", "/v1/models")).json
        assert set(first) == {"object", "data"}
        for told in first["data"]:  # type: ignore[attr-defined]  # JSON
            assert (told["object"], type(told["created"]), type(told["owned_by"])) == ("model", int, str)
        await house.ask("POST", "/v1/embeddings", {"input": "a"})
        for path in ("/v1/models", "/v1/models/"):
            again = (await house.ask("GET", path)).json
            assert [one["id"] for one in again["data"]] == [one["id"] for one in first["data"]]  # type: ignore[attr-defined]  # JSON
    async with serving(autojump_clock, world=build(models=())) as empty:
        for path in LISTS:
            assert (await empty.ask("GET", path)).json == {"object": "list", "data": []}
        page = (await empty.ask("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})).json
        assert (page["data"], page["has_more"], page["first_id"], page["last_id"]) == ([], False, None, None)


async def test_H12_a_model_is_found_by_a_name_with_slashes_raw_or_encoded(autojump_clock: MockClock) -> None:
    """By its name and its aliases, in each of the lists; an unknown one is a 404 in shape."""
    async with serving(autojump_clock, world=build(models=(*MODELS, NAMED))) as house:
        for folder in LISTS:
            for name in ("org/m:Q4 x", "a/b", "ORG/M:q4 X"):
                for safe in ("/:", "/", ""):
                    told = await house.ask("GET", f"{folder}/{quote(name, safe=safe)}")
                    assert (told.status, told.json["id"]) == (200, "org/m:Q4 x"), (folder, name, safe)
            unknown = await house.ask("GET", f"{folder}/org%2Fm:Q5")
            assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
            assert "org/m:Q4 x" in str(unknown.error["message"])


async def test_a_head_is_the_get_without_its_body(autojump_clock: MockClock) -> None:
    """On every route that is read, with the length that the body would have."""
    async with serving(autojump_clock) as house:
        paths = ("/v1/models/sim-embed", "/api/v0/models", "/api/v0/models/sim-embed", "/api/models", "/api/jobs")
        for path in (*paths, "/v1/models", "/api/models/sim-embed", "/api/models/sim-embed/plan"):
            whole, head = await house.ask("GET", path), await house.ask("HEAD", path)
            assert (whole.status, head.status, head.body) == (200, 200, b""), path
            assert head.headers["content-length"] == str(len(whole.body)), path
        for path in ("/health", "/metrics", "/api/status"):  # what they say changes from one moment to the next
            head = await house.ask("HEAD", path)
            assert (head.status, head.body) == (200, b""), path
            assert int(head.headers["content-length"]) > 0


async def test_anthropics_clients_find_their_members_beside_openais(autojump_clock: MockClock) -> None:
    """Of the list and of one model; nobody else gets them."""
    async with serving(autojump_clock) as house:
        said = {"anthropic-version": "2023-06-01", "x-api-key": "any"}
        page = (await house.ask("GET", "/v1/models?limit=20", headers=said)).json
        assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "sim-chat-12b", "sim-chat")
        for told in (page["data"][0], (await house.ask("GET", "/v1/models/gpt-4o", headers=said)).json):  # type: ignore[index]  # JSON
            assert (told["type"], told["id"], told["display_name"]) == ("model", "sim-chat-12b", "sim-chat-12b")
            assert told["created_at"] == "2023-11-14T22:13:20Z"
            assert told["gridsched"]["state"] == "cold"
        assert "type" not in (await house.ask("GET", "/v1/models/gpt-4o")).json


def test_a_files_time_may_be_anything() -> None:
    """A list is never a 500 for it."""
    for created, said in ((-5, "1970-01-01T00:00:00Z"), (1 << 60, "9999-12-31T23:59:59Z")):
        assert anthropic({"id": "a", "created": created})["created_at"] == said


async def test_lm_studios_list_has_its_members(autojump_clock: MockClock) -> None:
    """What a model is for, whether it is loaded, and how much context a request then has."""
    async with serving(autojump_clock) as house:
        await house.ask("POST", "/v1/embeddings", {"input": "a"})
        told = (await house.ask("GET", "/api/v0/models")).json
        assert told["object"] == "list"
        found = {one["id"]: one for one in told["data"]}  # type: ignore[attr-defined]  # JSON
        assert found["sim-chat-12b"] == {
            "id": "sim-chat-12b",
            "object": "model",
            "type": "llm",
            "publisher": "gridsched",
            "arch": "simulated",
            "compatibility_type": "gguf",
            "quantization": "Q4_K_M",
            "state": "not-loaded",
            "max_context_length": 32768,
        }
        kinds = {name: one["type"] for name, one in found.items()}
        assert kinds == {
            "sim-chat-12b": "llm",
            "sim-chat-4b": "vlm",
            "sim-chat-2b": "llm",
            "sim-embed": "embeddings",
            "sim-rerank": "embeddings",
            "sim-chat": "llm",
        }
        embedder = (await house.ask("GET", "/api/v0/models/text-embedding-3-small")).json
        assert (embedder["id"], embedder["state"], embedder["loaded_context_length"]) == ("sim-embed", "loaded", 2048)
        assert {line["model"] for line in house.logged("load")} == {"sim-embed"}
        assert json.dumps(told).count('"loaded"') == 1
        wrong = await house.ask("POST", "/api/v0/models", {})
        assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
