"""The catalog that everybody holds, over the one that is true now: a `ports.Catalog` that can be given another.

Owns the moment of the change. Must never answer one question from two of them: each call asks one catalog, once.
"""

from collections.abc import Mapping

from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.model import LaunchOption
from gridsched.ports import (
    Catalog,
    CatalogFamily,
    CatalogModel,
    CatalogVirtual,
    LargestFit,
    Launch,
    Measurement,
)


class LiveCatalog:
    """Implements `ports.Catalog`."""

    def __init__(self, catalog: Catalog) -> None:
        self.now = catalog

    def become(self, catalog: Catalog) -> None:
        """From now on it is this one. Whoever holds a model of the other has it as it was."""
        self.now = catalog

    def models(self) -> tuple[CatalogModel, ...]:
        """As `ports.Names`."""
        return self.now.models()

    def families(self) -> tuple[CatalogFamily, ...]:
        """As `ports.Names`."""
        return self.now.families()

    def virtuals(self) -> tuple[CatalogVirtual, ...]:
        """As `ports.Names`."""
        return self.now.virtuals()

    def resolve(self, name: str) -> CatalogModel | CatalogFamily | None:
        """As `ports.Names`."""
        return self.now.resolve(name)

    def virtual(self, name: str) -> CatalogVirtual | None:
        """As `ports.Names`."""
        return self.now.virtual(name)

    def closest(self, name: str) -> tuple[str, ...]:
        """As `ports.Names`."""
        return self.now.closest(name)

    def launch(self, model: ModelName, option: LaunchOption) -> Launch:
        """As `ports.Catalog`."""
        return self.now.launch(model, option)

    def learn(self, measurements: Mapping[str, Measurement]) -> bool:
        """As `ports.Catalog`."""
        return self.now.learn(measurements)

    async def renew(self, model: ModelName) -> str | None:
        """As `ports.Catalog`."""
        return await self.now.renew(model)

    async def look_again(self, model: ModelName) -> bool:
        """As `ports.Catalog`."""
        return await self.now.look_again(model)

    async def options(self, model: ModelName, ctx_size: int, parallel: int | None = None) -> tuple[LaunchOption, ...]:
        """As `ports.Catalog`."""
        return await self.now.options(model, ctx_size, parallel)

    async def largest_fit(
        self, model: ModelName, usable_bytes: Mapping[DeviceName, int], ctx_size: int | None = None
    ) -> LargestFit:
        """As `ports.Catalog`."""
        return await self.now.largest_fit(model, usable_bytes, ctx_size)
