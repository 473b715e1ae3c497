"""What a request needs a model to be able to do, and who can (G9). Pure.

All of it is known from the files' headers: what a model cannot do is refused before anything is loaded, and the refusal
names those that can. Owns also which model a word for the default one means where that one cannot do what is asked.
"""

from collections.abc import Iterator
from typing import Final

from gridsched.api.routes import Route
from gridsched.control.problems import RequestError, invalid
from gridsched.core.job import Medium
from gridsched.library.names import DEFAULT_WORDS
from gridsched.ports import MEDIA, Capability, CatalogFamily, CatalogModel, CatalogVirtual, Names

MOST_NAMED: Final = 5
_WORDS: Final = {Medium.IMAGE: "pictures, films or files", Medium.AUDIO: "audio"}


Meant = tuple[CatalogModel | CatalogFamily | None, CatalogVirtual | None]
"""The model or family that serves, None where there is none, and the virtual model that it is asked under, if one."""


def meant(catalog: Names, asked: str, route: Route) -> Meant:
    """Whose name it is. A word for the default model means the first that can do what the route asks, where the default
    one cannot or is not there: nobody who names no model means a chat model by an embeddings request."""
    found, virtual = catalog.resolve(asked), catalog.virtual(asked)
    if not _is_for_default(catalog, asked, found):
        return found, virtual
    best = _best(found)
    if best is not None and (best.spec is None or _does(best, route.needs)):
        return found, virtual
    return next(_standing_in(catalog, route.needs), (found, virtual))


def _standing_in(catalog: Names, needs: Capability | None) -> Iterator[Meant]:
    """Those that can be served and do it, as they are listed. Families and virtual models come up where their models
    are not there for whoever asks."""
    listed: list[Meant] = [(model, None) for model in catalog.models()]
    listed += [(family, None) for family in catalog.families()]
    listed += [(virtual.base, virtual) for virtual in catalog.virtuals()]
    for found, virtual in listed:
        best = _best(found)
        if best is not None and best.spec is not None and _does(best, needs):
            yield found, virtual


def _best(found: CatalogModel | CatalogFamily | None) -> CatalogModel | None:
    return found.best if isinstance(found, CatalogFamily) else found


def check(catalog: Names, found: CatalogModel | CatalogFamily, route: Route, media: frozenset[Medium]) -> None:
    """Raises RequestError where a model cannot do what is asked, or does not take what comes with it; which variants of
    a family take what is the scheduler's affair (R10)."""
    model = _judged(found, route.needs) if isinstance(found, CatalogFamily) else found
    if model is None:
        return
    if not _does(model, route.needs):
        able = ", ".join(sorted(capability.value for capability in model.capabilities)) or "nothing"
        raise _refusal(catalog, f"{found.name} does not serve {route.kind.value}; it serves {able}", route.needs)
    for capability, medium in MEDIA.items():
        if medium in media and found is model and capability not in model.capabilities:
            raise _refusal(catalog, f"{found.name} takes no {_WORDS[medium]}", route.needs, capability)


def _judged(family: CatalogFamily, needs: Capability | None) -> CatalogModel | None:
    """The model of a family that says what may be asked of it: its best, or one that takes what is brought."""
    served = [model for _, model in family.variants if model.spec is not None]
    takes = (model for model in served if needs in MEDIA and needs in model.capabilities)
    return next(takes, family.best)


def _is_for_default(catalog: Names, asked: str, found: CatalogModel | CatalogFamily | None) -> bool:
    word = asked.strip().casefold()
    if word not in DEFAULT_WORDS:
        return False
    aliases = found.aliases if isinstance(found, CatalogModel) else ()
    names = {name.casefold() for name in (found.name, *aliases)} if found is not None else set()
    if virtual := catalog.virtual(asked):
        names |= {name.casefold() for name in (virtual.name, *virtual.entry.aliases)}
    return word not in names


def _does(model: CatalogModel, needs: Capability | None) -> bool:
    return needs is None or needs in model.capabilities


def _able(catalog: Names, *needs: Capability | None) -> Iterator[CatalogModel]:
    """Those that can be served and do all of it, in the catalog's order."""
    return (model for model in catalog.models() if model.spec is not None and all(_does(model, one) for one in needs))


def _refusal(catalog: Names, message: str, *needs: Capability | None) -> RequestError:
    names = [str(model.name) for model in _able(catalog, *needs)]
    more = ", …" if len(names) > MOST_NAMED else ""
    able = f"{', '.join(names[:MOST_NAMED])}{more} can" if names else "no model here can"
    return invalid(f"{message}; {able}", "model", "model_not_supported", {"able": names[:MOST_NAMED]})
