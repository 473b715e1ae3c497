"""The ladders of models for contexts and slots that nobody has configured, remembered while they stay true.

Owns what is remembered, and when that is forgotten: a model that is planned anew (other files, other measurements,
another configuration) has another `spec`. Must never make a ladder itself: that is the catalog's.
"""

from gridsched.core.ids import ModelName
from gridsched.core.model import LaunchOption, ModelSpec
from gridsched.ports import Catalog, CatalogModel

MOST_SHAPES = 64
"""Of one model: a dozen contexts with four counts of slots, and those that somebody asks for by name."""

Ladder = tuple[LaunchOption, ...]


class Ladders:
    """One per server."""

    def __init__(self) -> None:
        self._known: dict[ModelName, tuple[ModelSpec, dict[tuple[int, int], Ladder]]] = {}

    async def of(self, catalog: Catalog, model: CatalogModel, ctx_per_slot: int, slots: int) -> Ladder:
        """The launches with so many slots of so many tokens each, best first; none where there can be none."""
        spec = model.spec
        if spec is None:
            return ()
        known = self._of(spec)
        shape = (ctx_per_slot, slots)
        if shape not in known:
            try:
                found = await catalog.options(model.name, ctx_per_slot * slots, slots)
            except (ValueError, KeyError):
                found = ()
            while len(known) >= MOST_SHAPES:
                del known[next(iter(known))]
            known[shape] = found
        return known[shape]

    def keep_only(self, names: set[ModelName]) -> None:
        """Forget models that are gone."""
        for name in [name for name in self._known if name not in names]:
            del self._known[name]

    def _of(self, spec: ModelSpec) -> dict[tuple[int, int], Ladder]:
        known = self._known.get(spec.name)
        if known is None or known[0] is not spec:
            known = self._known[spec.name] = (spec, {})
        return known[1]
