"""Deleting a model that this server downloaded. Nothing else on the disk is deleted: not what a person put there, nor
what other programs keep.

Owns what belongs to a model, and what keeps it from going. Must never delete a file that a process has.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from msgspec import Meta

from gridsched.control.downloads import Downloads
from gridsched.control.hub import downloads_of, look_again
from gridsched.control.looking import OneModel
from gridsched.control.problems import Problem, RequestError, unknown_model
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Call, Consequences, Rest, Verb
from gridsched.core.events import PinAsked
from gridsched.credentials import Scope
from gridsched.library.read import real_path
from gridsched.library.shards import part_names
from gridsched.library.shelf import NotOurs
from gridsched.ports import CatalogModel
from gridsched.threads import in_thread

T = TypeVar("T")


class Deleted(Answer, frozen=True, kw_only=True):
    """What went."""

    model: str
    files: tuple[str, ...]
    freed_bytes: Annotated[int, Meta(description="What the disk has got back.")]


async def _delete(services: Services, asked: OneModel, _: Call) -> Deleted:
    downloads = downloads_of(services)
    model, files = await _files(services, downloads, asked.model)
    freed = await _on_disk(partial(downloads.shelf.remove, files))
    await _unpin(services, model)
    await look_again(services)
    return Deleted(model=model.name, files=tuple(map(str, files)), freed_bytes=freed)


async def _unpin(services: Services, model: CatalogModel) -> None:
    """A person's pin goes with the model: it would wait for another of its name."""
    if model.spec is not None and not model.spec.pinned:
        await services.runtime.wishes.ask(lambda request: PinAsked(request, model.name, pinned=False, keep=True))


async def _plan(services: Services, asked: OneModel, _: Call) -> Consequences:
    model, files = await _files(services, downloads_of(services), asked.model)
    size = await _on_disk(lambda: sum(path.stat().st_size for path in files))
    return Consequences(
        text=f"{model.name} is deleted from the disk: {len(files)} file(s), {size / 2**30:.2f} GiB."
        " To have it again it must be downloaded again.",
        harms=True,
        details={"files": [str(path) for path in files], "size_bytes": size},
        essence="\n".join(map(str, files)),
    )


async def _files(services: Services, downloads: Downloads, name: str) -> tuple[CatalogModel, tuple[Path, ...]]:
    """The model, and everything of it that goes. Raises RequestError for what must stay."""
    catalog = services.runtime.parts.catalog
    found = catalog.resolve(name)
    if found is None:
        raise RequestError(unknown_model(name, catalog.closest(name)))
    if not isinstance(found, CatalogModel) or catalog.virtual(name) is not None:
        raise RequestError(Problem("conflict", f"{name} is a name for other models: name the model itself", "model"))
    files = await _on_disk(partial(_owned, downloads, found.path))
    _refuse_in_use(services, downloads, found, files)
    return found, files


def _owned(downloads: Downloads, path: Path) -> tuple[Path, ...]:
    """All parts of it that are there, and the projectors that nothing else needs."""
    shelf = downloads.shelf
    parts = tuple(each for each in (path.parent / name for name in part_names(path.name)) if each.exists())
    if not parts:
        raise NotOurs(f"{path} is not there")
    for part in parts:
        shelf.check_ours(part)
    return (*parts, *shelf.projectors_left_alone(parts))


def _refuse_in_use(services: Services, downloads: Downloads, model: CatalogModel, files: tuple[Path, ...]) -> None:
    snapshot, catalog = services.runtime.snapshot(), services.runtime.parts.catalog
    going = {real_path(path) for path in files}
    names = {each.name for each in catalog.models() if real_path(each.path) in going}
    for view in snapshot.instances:
        if view.model in names:
            raise RequestError(Problem("conflict", f"{view.model} is {view.state.value}: unload it first", "model"))
    if services.benches.model in names:
        message = f"{services.benches.model} is being measured: cancel its benchmark first"
        raise RequestError(Problem("conflict", message, "model"))
    pinned = next((each for each in catalog.models() if each.name in names and each.name in snapshot.pins_down), None)
    if pinned is not None:
        raise RequestError(Problem("conflict", f"{pinned.name} is pinned: unpin it first", "model"))
    folder = downloads.shelf.folder.resolve()
    ids = {str(path.relative_to(folder)) for path in going if folder in path.parents}
    if any(each in ids for each in (download.order.id for download in downloads.all() if download.is_under_way)):
        raise RequestError(Problem("conflict", f"{model.name} is being downloaded: cancel that first", "model"))


async def _on_disk(work: Callable[[], T]) -> T:
    """Work on files, in a thread. Raises RequestError for what is not ours, or what the disk refuses."""
    try:
        return await in_thread(work)
    except NotOurs as error:
        raise RequestError(Problem("conflict", str(error), "model")) from None
    except OSError as error:
        problem = Problem("storage_unavailable", f"{error.filename} cannot be deleted: {error.strerror}")
        raise RequestError(problem) from None


VERBS = (
    Verb(
        name="delete_model",
        summary="Delete a downloaded model from the disk",
        description="Delete all files of a model that this server downloaded. A loaded one must be unloaded first."
        " Files that a person or another program put on the disk are never deleted.",
        scope=Scope.ADMIN,
        takes=OneModel,
        gives=Deleted,
        act=_delete,
        rest=Rest("DELETE", "/api/models/{model}"),
        tool=True,
        destructive=True,
        plan=_plan,
    ),
)
