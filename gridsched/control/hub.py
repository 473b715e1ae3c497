"""Verbs about models that are not here yet: searched for on the hub, looked at before a byte is fetched, downloaded.

Owns their words and types. Must never ask the hub but for a caller: nothing leaves this machine unasked.
"""

from typing import Annotated

from msgspec import Meta

from gridsched.control.downloads import Download, Downloads, Order, Room, State, asked, problem_of
from gridsched.control.fits import FitTold, Reading, fits_of
from gridsched.control.pages import Page, cut
from gridsched.control.problems import Problem, RequestError
from gridsched.control.services import Services
from gridsched.control.verb import Answer, Arguments, Call, Consequences, Rest, Verb
from gridsched.credentials import Scope
from gridsched.library.hub import Found, HubError
from gridsched.library.offers import Offer, Offers, chosen, offers_of
from gridsched.library.shelf import Partial
from gridsched.threads import in_thread

GIB = 1 << 30
RepoId = Annotated[str, Meta(description="PUBLISHER/NAME on the hub.", min_length=3, max_length=200)]
Revision = Annotated[str | None, Meta(description="A branch, tag or commit; the main branch where none is named.")]
Word = Annotated[str, Meta(min_length=1, max_length=1000)]
Limit = Annotated[int, Meta(description="How many at most.", ge=1, le=100)]


class SearchArguments(Arguments, frozen=True, kw_only=True):
    """What is searched for."""

    q: Annotated[str, Meta(description="Words of the repository's name.", max_length=200)] = ""
    limit: Limit = 20
    cursor: Annotated[
        Annotated[str, Meta(max_length=2000)] | None, Meta(description="`next_cursor` of the page before.")
    ] = None


class RepoArguments(Arguments, frozen=True, kw_only=True):
    """Which repository, and which model of it is held against this machine; without one a few likely ones are."""

    repo: RepoId
    revision: Revision = None
    file: Annotated[Word | None, Meta(description="Any file of the model.")] = None
    quant: Annotated[Word | None, Meta(description="Its quantization, where no file is named.")] = None


class DownloadArguments(Arguments, frozen=True, kw_only=True):
    """What is downloaded: all parts of one model, by a file of it or by its quantization."""

    repo: RepoId
    file: Annotated[Word | None, Meta(description="Any file of the model; its other parts come, too.")] = None
    quant: Annotated[Word | None, Meta(description="Which quantization, where no file is named: Q4_K_M.")] = None
    revision: Revision = None
    projector: Annotated[bool, Meta(description="Fetch its projector, too, where there is one.")] = True


class CancelArguments(Arguments, frozen=True, kw_only=True):
    """Which download ends."""

    download: Annotated[str, Meta(description="Its id, or its operation's.", min_length=1)]
    remove: Annotated[bool, Meta(description="Remove what has come; else the next download goes on from there.")] = (
        False
    )


class RepoTold(Answer, frozen=True, kw_only=True):
    """A repository on the hub. `gated`: how one gets permission (auto, manual), "" where none is needed."""

    id: str
    downloads: int
    likes: int
    updated: str
    gated: str
    private: bool
    tags: tuple[str, ...]
    architecture: str
    ctx_train: int | None


class SearchTold(Answer, frozen=True, kw_only=True):
    """One page of repositories with GGUF files, the most downloaded first."""

    repos: tuple[RepoTold, ...]
    next_cursor: str | None


class FileTold(Answer, frozen=True, kw_only=True):
    """One file."""

    path: str
    size_bytes: int


class OfferTold(Answer, frozen=True, kw_only=True):
    """One model in a repository, with all its parts. `missing` names parts that the repository has not."""

    name: str
    quantization: str
    size_bytes: int
    files: tuple[FileTold, ...]
    missing: tuple[str, ...]


class DetailsTold(Answer, frozen=True, kw_only=True):
    """What a repository holds, and what of it would fit here."""

    repo: RepoTold
    commit: str
    models: tuple[OfferTold, ...]
    projectors: tuple[FileTold, ...]
    context_fit: Annotated[tuple[FitTold, ...], Meta(description="What would fit here, by model and context.")]


class DownloadTold(Answer, frozen=True, kw_only=True):
    """A download. `state`: queued, running, done, failed, cancelled, or broken_off, which is left of an earlier run of
    this server; `rest_s` is how long it still takes. `model` is its id once it is here."""

    id: str
    state: str
    repo: str
    commit: str
    files: tuple[str, ...]
    size_bytes: int | None
    done_bytes: int
    bytes_per_s: float | None
    rest_s: float | None
    text: str
    operations: tuple[str, ...]
    model: str | None = None


class DownloadsTold(Answer, frozen=True, kw_only=True):
    """One page of downloads: those that run, those that ended, what is left of earlier ones."""

    downloads: tuple[DownloadTold, ...]
    total: Annotated[int, Meta(description="How many there are on all pages.")]
    next_cursor: str | None


class CancelTold(Answer, frozen=True, kw_only=True):
    """What became of a download, and of what had come of it: kept, or removed."""

    id: str
    text: str
    kept_bytes: int
    removed_bytes: int


def downloads_of(services: Services) -> Downloads:
    """The server's downloads. Raises RequestError where it has none."""
    if services.hub is None:
        raise RequestError(Problem("conflict", "this server has no data directory to keep downloads in"))
    return services.hub


async def look_again(services: Services) -> None:
    """Have the library see what has come or gone, where this server can be told to."""
    if services.reloader is not None:
        await services.reloader.refresh_library()


async def _search(services: Services, wanted: SearchArguments, _: Call) -> SearchTold:
    hub = downloads_of(services).hub
    found, following = await asked(lambda: hub.search(wanted.q, wanted.limit, wanted.cursor))
    return SearchTold(repos=tuple(map(_repo_told, found)), next_cursor=following)


async def _details(services: Services, wanted: RepoArguments, _: Call) -> DetailsTold:
    downloads = downloads_of(services)
    hub = downloads.hub
    repo = await asked(lambda: hub.repo(wanted.repo, wanted.revision))
    offers, one = offers_of(repo), None
    if wanted.file is not None or wanted.quant is not None:
        one = _chosen(offers, repo.id, wanted)
    fits = await fits_of(services, Reading(hub, downloads.headers, repo, offers), one)
    return DetailsTold(
        repo=_repo_told(repo.found),
        commit=repo.commit,
        models=tuple(map(_offer_told, offers.models)),
        projectors=tuple(FileTold(path=each.path, size_bytes=each.size_bytes) for each in offers.projectors),
        context_fit=fits,
    )


def _chosen(offers: Offers, repo_id: str, wanted: RepoArguments) -> Offer:
    try:
        return chosen(offers, repo_id, wanted.file, wanted.quant)
    except HubError as error:
        raise RequestError(problem_of(error)) from None


async def _order(services: Services, wanted: DownloadArguments) -> Order:
    return await downloads_of(services).order(
        wanted.repo, wanted.revision, wanted.file, wanted.quant, projector=wanted.projector
    )


async def _download(services: Services, wanted: DownloadArguments, call: Call) -> DownloadTold:
    downloads = downloads_of(services)
    call.tell(0, None, f"asking {downloads.hub.host} for {wanted.repo}")
    order = await _order(services, wanted)
    download = await downloads.carry_out(order, call.operation, call.tell)
    await look_again(services)
    told = _told(download)
    first = downloads.shelf.target(order.repo.id, order.offer.files[0].path)
    models = services.runtime.parts.catalog.models()
    name = next((str(model.name) for model in models if model.path == first), None)
    return DownloadTold(**{**{key: getattr(told, key) for key in told.__struct_fields__}, "model": name})


async def _plan(services: Services, wanted: DownloadArguments, _: Call) -> Consequences:
    downloads = downloads_of(services)
    order = await _order(services, wanted)
    room = await downloads.room(order)
    return Consequences(
        text=_plan_text(order, room, str(downloads.shelf.home(order.repo.id))),
        harms=room.is_tight,
        details={
            "files": [file.path for file in order.files],
            "size_bytes": order.size_bytes,
            "need_bytes": room.need_bytes,
            "free_bytes": room.free_bytes,
            "left_bytes": room.left_bytes,
        },
        essence=f"{order.id}@{order.repo.commit}",
    )


def _plan_text(order: Order, room: Room, folder: str) -> str:
    text = f"{order.id} is downloaded into {folder}: {len(order.files)} file(s), {order.size_bytes / GIB:.2f} GiB"
    text += f" of which {room.need_bytes / GIB:.2f} are still to come" if room.need_bytes < order.size_bytes else ""
    left = max(0, room.left_bytes)
    return f"{text}. The disk then has {left / GIB:.2f} of {room.total_bytes / GIB:.2f} GiB free."


async def _list(services: Services, page: Page, _: Call) -> DownloadsTold:
    downloads = downloads_of(services)
    known: dict[str, DownloadTold] = {}
    for each in downloads.all():  # of several of one model the one that runs, else the last
        known.setdefault(each.order.id, _told(each))
    for partial in await in_thread(downloads.shelf.partials, abandon_on_cancel=True):
        known.setdefault(partial.id, _left_told(partial))
    told, following = cut(page, tuple(known.values()), lambda each: each.id, str)
    return DownloadsTold(downloads=tuple(told), total=len(known), next_cursor=following)


async def _cancel(services: Services, wanted: CancelArguments, _: Call) -> CancelTold:
    """End one that runs; of one that does not, what has come is removed where that is asked for."""
    downloads = downloads_of(services)
    download = downloads.running(wanted.download)
    name = download.order.id if download is not None else wanted.download
    if download is not None:
        for each in download.operations:
            if (operation := services.operations.find(each)) is not None:
                services.operations.cancel(operation)
        while download.is_under_way:
            await download.changed.wait()
    left = [each for each in await in_thread(downloads.shelf.partials) if each.id == name]
    if download is None and not left:
        raise RequestError(
            Problem("not_found", f"there is no download {name[:200]!r} that runs, or is left", "download")
        )
    if not wanted.remove:
        said = "is cancelled" if download is not None else "does not run"
        text = f"{name} {said}; what came is kept, and the next download of it goes on from there"
        return CancelTold(id=name, text=text, kept_bytes=sum(each.size_bytes for each in left), removed_bytes=0)
    removed = await in_thread(lambda: downloads.shelf.drop_partials(name))
    return CancelTold(id=name, text=f"{name} is cancelled, what came is removed", kept_bytes=0, removed_bytes=removed)


def _repo_told(found: Found) -> RepoTold:
    return RepoTold(**{key: getattr(found, key) for key in RepoTold.__struct_fields__})


def _offer_told(offer: Offer) -> OfferTold:
    return OfferTold(
        name=offer.name,
        quantization=offer.quantization,
        size_bytes=offer.size_bytes,
        files=tuple(FileTold(path=each.path, size_bytes=each.size_bytes) for each in offer.files),
        missing=offer.missing,
    )


def _told(download: Download) -> DownloadTold:
    order = download.order
    return DownloadTold(
        id=order.id,
        state=download.state.value,
        repo=order.repo.id,
        commit=order.repo.commit,
        files=tuple(file.path for file in order.files),
        size_bytes=order.size_bytes,
        done_bytes=download.done_bytes,
        bytes_per_s=download.bytes_per_s,
        rest_s=download.rest_s,
        text=download.text(),
        operations=tuple(download.operations),
    )


def _left_told(left: Partial) -> DownloadTold:
    """What an earlier run of the server has left; how much there would be, only the hub knows."""
    publisher, name, *rest = left.id.split("/")
    return DownloadTold(
        id=left.id,
        state=State.BROKEN_OFF.value,
        repo=f"{publisher}/{name}",
        commit="",
        files=("/".join(rest),),
        size_bytes=None,
        done_bytes=left.size_bytes,
        bytes_per_s=None,
        rest_s=None,
        text=f"{left.id}: broke off; a download of it goes on from there",
        operations=(),
    )


VERBS = (
    Verb(
        name="search_models",
        summary="Search the hub for models",
        description="Repositories of the hub with GGUF files, the most downloaded first. The hub is asked now.",
        scope=Scope.READ,
        takes=SearchArguments,
        gives=SearchTold,
        act=_search,
        rest=Rest("GET", "/api/hub/search"),
        tool=True,
        reads=True,
        idempotent=True,
        open_world=True,
    ),
    Verb(
        name="repo_details",
        summary="What a repository of the hub holds",
        description="Its models with sizes and quantizations, split ones as one, and what of them would fit here.",
        scope=Scope.READ,
        takes=RepoArguments,
        gives=DetailsTold,
        act=_details,
        rest=Rest("GET", "/api/hub/repos/{repo}"),
        tool=True,
        reads=True,
        idempotent=True,
        open_world=True,
    ),
    Verb(
        name="download_model",
        summary="Download a model from the hub",
        description="Fetch all parts of a model, and its projector, into this server's own folder; checked, and listed"
        " when it is there. One that broke off goes on from where it was.",
        scope=Scope.ADMIN,
        takes=DownloadArguments,
        gives=DownloadTold,
        act=_download,
        rest=Rest("POST", "/api/downloads"),
        tool=True,
        idempotent=True,
        open_world=True,
        long=True,
        plan=_plan,
    ),
    Verb(
        name="list_downloads",
        summary="The downloads there are",
        description="Those that run and how fast, those that ended lately, and what is left of earlier ones.",
        scope=Scope.READ,
        takes=Page,
        gives=DownloadsTold,
        act=_list,
        rest=Rest("GET", "/api/downloads"),
        reads=True,
        idempotent=True,
    ),
    Verb(
        name="cancel_download",
        summary="Cancel a download",
        description="End a download, or remove what is left of one that broke off. What came is kept unless it is to be"
        " removed.",
        scope=Scope.ADMIN,
        takes=CancelArguments,
        gives=CancelTold,
        act=_cancel,
        rest=Rest("DELETE", "/api/downloads/{download}"),
        destructive=True,
        idempotent=True,
    ),
)
