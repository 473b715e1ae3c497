"""What of a repository would fit here: headers read by ranges, and the ladder of a real load."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from gridsched.control.downloads import Downloads
from gridsched.library.hub import Hub
from gridsched.library.shelf import Shelf
from sim import build
from tests.library.catalogs import catalog
from tests.library.models import CHAT, PROJECTOR, PROJECTOR_TENSORS, write_model, write_split
from tests.support import hub_host
from tests.support.front import House, serving
from tests.support.hub_host import HubHost

REPO = "someone/m-GGUF"


@pytest.fixture
def host() -> Iterator[HubHost]:
    """A hub of models."""
    from huggingface_hub.utils._http import close_session  # noqa: PLC0415 - as in production

    with hub_host.serving() as world:
        yield world
        close_session()


@asynccontextmanager
async def running(clock: MockClock, host: HubHost, folder: Path) -> AsyncIterator[House]:
    """A server that plans real files, and asks that hub."""
    world = build()
    planned = replace(world, catalog=catalog(folders=[folder], devices=world.monitor.devices()))
    downloads = Downloads(Hub(host.environ), Shelf(folder))
    async with serving(clock, world=planned, hub=downloads) as house:
        yield house


async def fits(house: House, query: str = "") -> list[dict[str, object]]:
    """The matrix of the repository."""
    told = (await house.ask("GET", f"/api/hub/repos/{REPO}{query}")).json["context_fit"]
    assert isinstance(told, list)
    return told


def put(host: HubHost, tmp_path: Path, *names: str) -> None:
    """Have the hub hold a chat model under these names."""
    model = write_model(tmp_path / "made.gguf").read_bytes()
    host.repos[REPO] = dict.fromkeys(names, model)


async def test_a_model_is_planned_before_it_is_here_as_it_would_be_if_it_were(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path
) -> None:
    """Each context up to the trained one, with the very bytes that a file in a folder would be planned with."""
    put(host, tmp_path, "m-Q8_0.gguf")
    async with running(autojump_clock, host, tmp_path / "here") as house:
        (fit,) = await fits(house)
        assert (fit["name"], fit["architecture"], fit["ctx_train"]) == ("m-Q8_0", "llama", 16384)
        rows = fit["rows"]
        assert isinstance(rows, list)
        assert [row["ctx"] for row in rows] == [4096, 8192, 16384]
        assert {row["fits"] for row in rows} == {"now"}
        write_model(tmp_path / "there" / "m.gguf")
        devices = house.world.monitor.devices()
        here = catalog(folders=[tmp_path / "there"], devices=devices)
        for row in rows:
            option = (await here.options(here.models()[0].name, row["ctx"], 1))[0]
            assert row["bytes_by_device"] == dict(option.need_bytes)
            assert row["devices"] == list(option.devices)


async def test_what_is_larger_than_the_machine_never_fits(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path
) -> None:
    """A cache for more tokens than any device has bytes for: the row says so."""
    wide = {**CHAT, "llama.context_length": 1 << 27, "llama.attention.head_count_kv": 4}
    host.repos[REPO] = {"m-Q8_0.gguf": write_model(tmp_path / "made.gguf", wide).read_bytes()}
    async with running(autojump_clock, host, tmp_path / "here") as house:
        (fit,) = await fits(house)
        rows = fit["rows"]
        assert isinstance(rows, list)
        assert (rows[0]["fits"], rows[-1]["fits"]) == ("now", "never")


async def test_a_few_likely_models_are_looked_at_and_each_header_only_once(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path
) -> None:
    """Without a name those that people mostly take; what was read is not asked for again."""
    put(host, tmp_path, "m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-F16.gguf", "m-Q6_K.gguf")
    async with running(autojump_clock, host, tmp_path / "here") as house:
        assert [fit["name"] for fit in await fits(house)] == ["m-Q4_K_M", "m-Q8_0", "m-Q6_K"]
        read = len(host.ranges)
        assert [fit["name"] for fit in await fits(house, "?quant=q8_0")] == ["m-Q8_0"]
        assert len(host.ranges) == read
        assert [fit["name"] for fit in await fits(house, "?file=m-Q2_K.gguf")] == ["m-Q2_K"]
        assert len(host.ranges) == read + 1
        assert (await house.ask("GET", f"/api/hub/repos/{REPO}?file=none.gguf")).status == 404


async def test_a_set_is_planned_with_all_its_parts_and_its_projector(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path
) -> None:
    """What would be loaded is what is counted."""
    parts = write_split(tmp_path / "made", "m-Q8_0", 3)
    host.repos[REPO] = {path.name: path.read_bytes() for path in parts}
    async with running(autojump_clock, host, tmp_path / "here") as house:
        (alone,) = await fits(house)
    eyes = write_model(tmp_path / "mmproj-F16.gguf", PROJECTOR, PROJECTOR_TENSORS)
    host.repos[REPO][eyes.name] = eyes.read_bytes()
    async with running(autojump_clock, host, tmp_path / "here") as house:
        (seeing,) = await fits(house)
    assert all(fit["problem"] is None for fit in (alone, seeing))
    assert seeing["rows"][0]["total_bytes"] > alone["rows"][0]["total_bytes"]  # type: ignore[index] # rows of JSON


async def test_a_header_that_cannot_be_read_is_said_and_the_rest_is_told(
    autojump_clock: MockClock, host: HubHost, tmp_path: Path
) -> None:
    """One damaged file is no reason to say nothing of a repository."""
    put(host, tmp_path, "m-Q4_K_M.gguf")
    host.repos[REPO]["m-Q8_0.gguf"] = b"rubbish " * 100
    async with running(autojump_clock, host, tmp_path / "here") as house:
        good, bad = await fits(house)
        assert good["problem"] is None
        assert bad["rows"] == []
        assert "not a GGUF file" in str(bad["problem"])
