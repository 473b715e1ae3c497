"""The models, families and virtual models that a caller may ask for: others are not there for it (H5). Pure.

Owns what a key's list of models means: each by whichever of its names is listed. A family's models, and the base of a
virtual one, are allowed by their own names alone. Whatever lists models asks here instead of the catalog. What a key
may read of the machine (who holds its memory, who waits) names other models, too: that is no list to ask from.
"""

from collections.abc import Iterable

from gridsched.control.authority import Caller
from gridsched.ports import CatalogFamily, CatalogModel, CatalogVirtual, Names


def allowed(names: Names, caller: Caller) -> Names:
    """What there is for this caller."""
    return _Some(names, caller.models) if caller.models else names


def is_there(names: Names, caller: Caller, name: str) -> bool:
    """Whether a name that may be asked for is there for this caller; to who may ask for all each is."""
    some = allowed(names, caller)
    return some is names or some.virtual(name) is not None or some.resolve(name) is not None


class _Some:
    """Those that are listed, in the catalog's order: a `ports.Names`."""

    def __init__(self, names: Names, listed: Iterable[str]) -> None:
        self._names = names
        self._there = frozenset(map(self._own_name, listed))

    def models(self) -> tuple[CatalogModel, ...]:
        """As the catalog's."""
        return tuple(model for model in self._names.models() if model.name in self._there)

    def families(self) -> tuple[CatalogFamily, ...]:
        """As the catalog's."""
        return tuple(family for family in self._names.families() if family.name in self._there)

    def virtuals(self) -> tuple[CatalogVirtual, ...]:
        """As the catalog's."""
        return tuple(virtual for virtual in self._names.virtuals() if virtual.name in self._there)

    def resolve(self, name: str) -> CatalogModel | CatalogFamily | None:
        """As the catalog's."""
        return self._names.resolve(name) if self._is_there(name) else None

    def virtual(self, name: str) -> CatalogVirtual | None:
        """As the catalog's."""
        return self._names.virtual(name) if self._is_there(name) else None

    def closest(self, name: str) -> tuple[str, ...]:
        """As the catalog's, without those that would not be found."""
        return tuple(each for each in self._names.closest(name) if self._is_there(each))

    def _own_name(self, name: str) -> str | None:
        found = self._names.virtual(name) or self._names.resolve(name)
        return found.name if found is not None else None

    def _is_there(self, name: str) -> bool:
        own = self._own_name(name)
        return own is not None and own in self._there
