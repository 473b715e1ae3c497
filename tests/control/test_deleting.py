"""Deleting models: what was downloaded, all of it, and nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from trio.testing import MockClock

from gridsched.control.authority import NOBODY, Authority
from gridsched.control.consent import consequences
from gridsched.control.downloads import Downloads
from gridsched.control.problems import RequestError
from gridsched.control.services import Services
from gridsched.control.use import checked
from gridsched.control.verb import Asker, Call, Consequences
from gridsched.control.verbs import BY_NAME
from gridsched.library.hub import Found, Hub, HubFile, Repo
from gridsched.library.shelf import Shelf
from sim import build
from tests.control.test_leases import Kept
from tests.library.catalogs import catalog
from tests.library.models import PROJECTOR, PROJECTOR_TENSORS, write_model, write_split
from tests.support.front import ADMIN_WORD, Answer, House, serving

REPO = "someone/m-GGUF"
TOKEN = {"Authorization": f"Bearer {ADMIN_WORD}"}


def shelve(shelf: Shelf, made: list[Path]) -> None:
    """Have these files downloaded."""
    files = [HubFile(path.name, path.stat().st_size, sha256(path.read_bytes()).hexdigest(), "") for path in made]
    for path, file in zip(made, files, strict=True):
        partial = shelf.partial(REPO, file)
        partial.parent.mkdir(parents=True, exist_ok=True)
        path.rename(partial)
    shelf.put(Repo(Found(REPO, 0, 0, "", "", False, (), "", None), "1f" * 20, tuple(files)), files)


@asynccontextmanager
async def running(clock: MockClock, shelf: Shelf, theirs: Path, standing: Kept | None = None) -> AsyncIterator[House]:
    """A server with downloads and a folder of a person's."""
    world = build()
    found = catalog(folders=[shelf.folder, theirs], devices=world.monitor.devices())
    async with serving(
        clock, world=replace(world, catalog=found), hub=Downloads(Hub({}), shelf), standing=standing
    ) as house:
        yield house


async def delete(house: House, model: str) -> Answer:
    """As an operator."""
    return await house.ask("DELETE", f"/api/models/{model}", None, TOKEN)


async def planned(house: House, shelf: Shelf, model: str) -> Consequences:
    """What a deletion would come to."""
    verb = BY_NAME["delete_model"]
    services = Services(house.runtime, Authority(), hub=Downloads(Hub({}), shelf))
    return await consequences(services, verb, checked(verb, {"model": model}), Call(Asker(NOBODY)))


async def test_all_files_of_a_downloaded_model_go(autojump_clock: MockClock, tmp_path: Path) -> None:
    """All parts of a set, and the projector that nothing else needs; the plan says which, and how much that is."""
    shelf, made = Shelf(tmp_path / "models"), tmp_path / "made"
    parts = write_split(made, "m-Q8_0", 2)
    shelve(shelf, [*parts, write_model(made / "mmproj-F16.gguf", PROJECTOR, PROJECTOR_TENSORS)])
    async with running(autojump_clock, shelf, tmp_path / "theirs") as house:
        plan = await planned(house, shelf, "m-q8_0")
        assert plan.harms
        assert "3 file(s)" in plan.text
        assert len(plan.details["files"]) == 3
        answer = await delete(house, "m-q8_0")
        assert answer.status == 200, answer.body
        assert len(answer.json["files"]) == 3  # type: ignore[arg-type] # a list of JSON
        assert answer.json["model"] == f"{REPO}/m-Q8_0"
        assert list(shelf.folder.iterdir()) == []


async def test_nothing_else_is_deleted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A person's file in a person's folder, one that he put among the downloads, a name that there is none of."""
    shelf, theirs = Shelf(tmp_path / "models"), tmp_path / "theirs"
    mine = write_model(theirs / "mine.gguf")
    beside = write_model(shelf.home(REPO) / "beside.gguf")
    async with running(autojump_clock, shelf, theirs) as house:
        for name, path in (("mine", mine), ("beside", beside)):
            answer = await delete(house, name)
            assert answer.status == 409
            assert str(path) in answer.error["message"]
            assert path.exists()
        assert (await delete(house, "none")).status == 404


async def test_a_model_that_is_measured_is_not_deleted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """A benchmark's process has its files, and is no instance of the scheduler's."""
    shelf, verb = Shelf(tmp_path / "models"), BY_NAME["delete_model"]
    shelve(shelf, [write_model(tmp_path / "m-Q4.gguf")])
    async with running(autojump_clock, shelf, tmp_path) as house:
        services = Services(house.runtime, Authority(), hub=Downloads(Hub({}), shelf))
        asked = checked(verb, {"model": "m-q4"})
        (model,) = services.runtime.parts.catalog.models()
        async with services.benches.of(model.name):
            with pytest.raises(RequestError, match="is being measured"):
                await consequences(services, verb, asked, Call(Asker(NOBODY)))
        assert (await consequences(services, verb, asked, Call(Asker(NOBODY)))).harms


async def test_R7_a_pin_goes_with_the_model_that_is_deleted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """One of its name that is downloaded later is as configured, also once it is loaded."""
    shelf, kept = Shelf(tmp_path / "models"), Kept()
    shelve(shelf, [write_model(tmp_path / "m-Q4.gguf")])
    async with running(autojump_clock, shelf, tmp_path, kept) as house:
        await house.ask("POST", "/api/models/m-q4/pin", None, TOKEN)
        await house.until_logged("ready")
        await house.ask("POST", "/api/models/m-q4/unload?wait=100", None, TOKEN)
        await house.until_logged("released")
        assert [word.put_down for word in kept.latest.words] == [True]
        assert (await delete(house, "m-q4")).status == 200
        assert kept.latest.words == ()


async def test_R2_a_model_that_is_loaded_is_not_deleted(autojump_clock: MockClock, tmp_path: Path) -> None:
    """It has to be unloaded first, which drains what runs (R2)."""
    shelf = Shelf(tmp_path / "models")
    shelve(shelf, [write_model(tmp_path / "m-Q4.gguf")])
    async with running(autojump_clock, shelf, tmp_path) as house:
        await house.ask("POST", "/api/models/m-q4/load", None, TOKEN)
        await house.until_logged("ready")
        answer = await delete(house, "m-q4")
        assert (answer.status, answer.error["code"]) == (409, "conflict")
        assert "unload it first" in answer.error["message"]
        await house.ask("POST", "/api/models/m-q4/unload", None, TOKEN)
        await house.until_logged("released")
        assert (await delete(house, "m-q4")).status == 200
