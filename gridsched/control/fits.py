"""What of a repository would fit here: the header of a file that is not here, planned as if it were.

Owns which files are looked at, and the rows that come of it. Must never have a formula of its own for what fits: the
launches are the ladder's that a real load would have, on this machine's devices.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import trio
from msgspec import Meta

from gridsched.control.models import fit_of
from gridsched.control.services import Services
from gridsched.control.verb import Answer
from gridsched.core.snapshot import Snapshot
from gridsched.library.catalog import ModelCatalog
from gridsched.library.headers import HubHeaders
from gridsched.library.hub import Hub, HubError, HubFile, Repo
from gridsched.library.live import LiveCatalog
from gridsched.library.offers import Offer, Offers
from gridsched.library.planning import Plan, Unservable
from gridsched.library.projectors import goes_with
from gridsched.library.read import Unreadable
from gridsched.library.shards import ModelFile
from gridsched.threads import in_thread
from gridsched.vram.flags import FlagError

LIKELY = ("Q4_K_M", "Q8_0", "Q6_K", "Q5_K_M", "UD-Q4_K_XL", "IQ4_XS", "Q4_0", "MXFP4", "F16", "BF16")
"""What people mostly take, in the order in which they are looked at where no file is named."""

MOST_FILES = 3
FIRST_TIER = 4096


class FitRow(Answer, frozen=True, kw_only=True):
    """So much context in one slot, and whether this machine would carry it."""

    ctx: Annotated[int, Meta(description="Tokens of context, in one slot.")]
    fits: Annotated[str, Meta(description="now, if_idle (once nothing else runs), or never.")]
    devices: tuple[str, ...]
    cache_type: Annotated[str, Meta(description="What K and V of the cache are kept as.")]
    total_bytes: int
    bytes_by_device: Mapping[str, int]


class FitTold(Answer, frozen=True, kw_only=True):
    """What a model would take here, by context. `problem` says why nothing can be said of it; then there are no
    rows."""

    name: str
    architecture: str
    ctx_train: int | None
    rows: tuple[FitRow, ...]
    problem: str | None


@dataclass(frozen=True, slots=True)
class Reading:
    """A repository that is looked at."""

    hub: Hub
    headers: HubHeaders
    repo: Repo
    offers: Offers

    async def header(self, file: HubFile) -> ModelFile:
        """One file's. Raises HubError, and Unreadable."""
        return await in_thread(partial(self.headers.of, self.hub, self.repo, file), abandon_on_cancel=True)


def looked_at(offers: Offers, chosen: Offer | None) -> tuple[Offer, ...]:
    """The model that was named, else a few likely ones."""
    if chosen is not None:
        return (chosen,)
    whole = [offer for offer in offers.models if not offer.missing]
    likely = [offer for word in LIKELY for offer in whole if offer.quantization == word]
    return tuple(likely[:MOST_FILES] or sorted(whole, key=lambda offer: offer.size_bytes)[:MOST_FILES])


async def fits_of(services: Services, reading: Reading, chosen: Offer | None) -> tuple[FitTold, ...]:
    """What they would take here; nothing where this server plans no files."""
    catalog = services.runtime.parts.catalog
    now = catalog.now if isinstance(catalog, LiveCatalog) else catalog
    if not isinstance(now, ModelCatalog):
        return ()
    wanted = looked_at(reading.offers, chosen)
    told: dict[str, FitTold] = {}

    async def look(offer: Offer) -> None:
        told[offer.name] = await _fit(now, services, reading, offer)

    async with trio.open_nursery() as nursery:
        for offer in wanted:
            nursery.start_soon(look, offer)
    return tuple(told[offer.name] for offer in wanted)


async def _fit(catalog: ModelCatalog, services: Services, reading: Reading, offer: Offer) -> FitTold:
    try:
        file = await reading.header(offer.files[0])
        eyes = [await reading.header(each) for each in reading.offers.projectors[:1]]
        projector = next((each for each in eyes if goes_with(each, file)), None)
        planned = await in_thread(partial(catalog.plan_of, file, projector), abandon_on_cancel=True)
        trained = planned.geometry.context_train
        ladders = await in_thread(partial(_ladders, planned, trained), abandon_on_cancel=True)
    except (HubError, Unreadable, Unservable) as error:
        return FitTold(name=offer.name, architecture="", ctx_train=None, rows=(), problem=str(error))
    now = services.runtime.snapshot()
    rows = tuple(_row(ctx, plan, now) for ctx, plan in ladders)
    return FitTold(
        name=offer.name, architecture=planned.geometry.architecture, ctx_train=trained or None, rows=rows, problem=None
    )


def _ladders(planned: Plan, trained: int) -> Sequence[tuple[int, Plan]]:
    """For each context the ladder that a load with it would have."""
    found = []
    for ctx in _tiers(trained):
        try:
            found.append((ctx, planned.at(ctx, 1)))
        except FlagError:
            continue
    return [(ctx, plan) for ctx, plan in found if plan.options]


def _tiers(trained: int) -> Iterator[int]:
    """By doubling up to the trained window, and that itself."""
    tier = FIRST_TIER
    while tier < trained:
        yield tier
        tier *= 2
    yield trained or FIRST_TIER


def _row(ctx: int, plan: Plan, now: Snapshot) -> FitRow:
    word, option = fit_of(plan.options, now)
    keys, values = option.cache_types
    return FitRow(
        ctx=ctx,
        fits=word,
        devices=option.devices,
        cache_type=keys if keys == values else f"{keys}/{values}",
        total_bytes=sum(need for _, need in option.need_bytes),
        bytes_by_device={str(device): need for device, need in option.need_bytes},
    )
