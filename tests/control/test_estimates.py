"""Estimates for who has no shell: who may have what read, and that the figures are the command line's."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from trio.testing import MockClock

from gridsched.library.estimating import Target, as_json, estimate
from gridsched.library.shards import read_model
from gridsched.ports import ModelEntry
from sim import SimWorld, build
from sim.models import SimulatedCatalog
from tests.library.catalogs import catalog
from tests.library.models import write_model
from tests.support.front import ADMIN_WORD, Answer, House, serving
from tests.support.range_server import serving as range_serving

ADMIN = {"Authorization": f"Bearer {ADMIN_WORD}"}


def _with(*entries: ModelEntry) -> SimWorld:
    """A simulated machine whose models are files. Made inside trio."""
    world = build()
    real = catalog(*entries, devices=world.monitor.devices())
    return replace(world, catalog=cast("SimulatedCatalog", real))


async def _estimated(house: House, headers: Mapping[str, str] = ADMIN, **asked: object) -> Answer:
    return await house.ask("POST", "/api/estimate", asked, dict(headers))


async def test_a_file_is_estimated_as_on_the_command_line(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The same object for the same flags and devices."""
    path = write_model(tmp_path / "m.gguf")
    words = ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--ctx-size", "4096", "--parallel", "2")
    file = read_model(path)
    async with serving(autojump_clock) as house:
        told = await _estimated(house, path=str(path), ctx=4096, parallel=2, cache_type="q8_0", device_count=2)
        target = Target("cuda", 2, (), tuple(info.label for info in house.world.monitor.devices()))
        expected: Any = as_json(file, found := estimate(file, words, target), target, found.notes)
        assert told.status == 200
        assert {key: told.json[key] for key in expected if key != "devices"} == {
            key: value for key, value in expected.items() if key not in {"devices", "host"}
        } | {"host": {**expected["host"], "available_bytes": None}}
        assert [part["total_bytes"] for part in cast("list[Any]", told.json["devices"])] == [
            part["total_bytes"] for part in expected["devices"]
        ]


async def test_a_model_of_this_server_is_estimated_as_it_would_be_launched(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """By any name, on the devices of its first launch; whoever may read may ask, and say another context."""
    entry = ModelEntry("m", write_model(tmp_path / "m.gguf"), aliases=("alias",), flags=("-np", "2"))
    async with serving(autojump_clock, world=_with(entry)) as house:
        spec = house.world.catalog.models()[0].spec
        assert spec is not None
        told: Any = (await _estimated(house, {}, model="alias")).json
        assert (told["ctx_size"], told["parallel"]) == (spec.options[0].ctx_size, 2)
        assert told["fits"]
        more: Any = (await _estimated(house, {}, model="m", ctx=2 * told["ctx_size"], parallel=4)).json
        assert (more["ctx_size"], more["parallel"]) == (2 * told["ctx_size"], 4)
        assert more["devices"][0]["kv_bytes"] > told["devices"][0]["kv_bytes"]


@pytest.mark.parametrize(
    "asked",
    [{"path": "/m.gguf"}, {"url": "https://huggingface.co/a/b/resolve/main/m.gguf"}, {"model": "x", "flags": ["-fa"]}],
)
async def test_H6_files_and_addresses_are_read_for_an_admin_alone(
    autojump_clock: MockClock, asked: Mapping[str, object]
) -> None:
    """And so are flags, which may name files: 403 for whoever is only on this machine."""
    async with serving(autojump_clock) as house:
        answer = await _estimated(house, {}, **asked)
        assert (answer.status, answer.error["code"]) == (403, "remote_admin_requires_credential")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "model"),
        ({"model": "m", "path": "/m.gguf"}, "model"),
        ({"path": "m.gguf"}, "path"),
        ({"path": "/etc/passwd"}, "path"),
        ({"path": "/nowhere/m.gguf"}, "path"),
        ({"path": "/m.gguf", "cache_type": "q9"}, "cache_type"),
        ({"url": "file:///m.gguf"}, "url"),
        ({"url": "http://169.254.169.254/latest/m.gguf"}, "url"),
        ({"url": "http://127.0.0.1:1/m.gguf"}, "url"),
        ({"url": "http://localhost/m.gguf"}, "url"),
        ({"url": "http://[::1]/m.gguf"}, "url"),
        ({"url": "http://0x7f000001/m.gguf"}, "url"),
    ],
)
async def test_what_cannot_be_estimated_is_told(
    autojump_clock: MockClock, asked: Mapping[str, object], param: str
) -> None:
    """400, with the argument that is wrong."""
    async with serving(autojump_clock) as house:
        answer = await _estimated(house, **asked)
        assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.mark.slow
async def test_no_address_within_this_network_is_asked(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by itself nor by a redirect; the hub that a person has named is, wherever it is."""
    path = write_model(tmp_path / "m.gguf")
    with range_serving() as inside, range_serving() as hub:
        inside.files["m.gguf"] = hub.files["m.gguf"] = path.read_bytes()
        hub.moved["away.gguf"] = f"{inside.url}/good/m.gguf"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        async with serving(autojump_clock) as house:
            assert (await _estimated(house, url=f"{inside.url}/good/m.gguf")).status == 400
            assert (await _estimated(house, url=f"{hub.url}/moved/away.gguf")).status == 400
            assert not inside.asked
            told = await _estimated(house, url=f"{hub.url}/good/m.gguf", ctx=4096)
            assert (told.status, told.json["ctx_size"]) == (200, 4096)
