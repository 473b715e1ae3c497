"""A simulated card and engine behind the real ports, and a fast runner that drives the core without trio.

`build` is the door for the server's `--sim` and for tests under a jumping clock. The package imports the core, the
planner and the ports; nothing of the product imports it except the command line, and that only when asked to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gridsched.ports import VirtualEntry
from sim.engine import SimulatedEngine
from sim.gpu import DEFAULT_CARDS, SimulatedCards
from sim.models import MODELS, SimModel, SimulatedCatalog, models_of
from sim.sharing import Figures
from sim.whatif.scenario import Scenario


@dataclass(frozen=True, slots=True)
class SimWorld:
    """Everything the server needs of the outside, simulated. The engine is its own upstream."""

    monitor: SimulatedCards
    engine: SimulatedEngine
    catalog: SimulatedCatalog

    @property
    def upstream(self) -> SimulatedEngine:
        """The same object as `engine`."""
        return self.engine


def build(
    seed: int = 0,
    cards: Sequence[int] = DEFAULT_CARDS,
    models: Sequence[SimModel] = MODELS,
    virtuals: Sequence[VirtualEntry] = (),
) -> SimWorld:
    """A simulated machine: `cards` are sizes in bytes, `seed` decides the little that is random, `virtuals` are names
    over simulated models."""
    monitor = SimulatedCards(cards, Random(seed))  # noqa: S311 - repeatable numbers, not secrets
    catalog = SimulatedCatalog([info.spec for info in monitor.devices()], models, virtuals)
    return SimWorld(monitor=monitor, engine=SimulatedEngine(monitor), catalog=catalog)


def build_scenario(scenario: Scenario, seed: int = 0, virtuals: Sequence[VirtualEntry] = ()) -> SimWorld:
    """The machine of a scenario: its cards and models, and its figures of how they share."""
    monitor = SimulatedCards(scenario.cards, Random(seed))  # noqa: S311 - repeatable numbers, not secrets
    catalog = SimulatedCatalog(scenario.cards, models_of(scenario), virtuals)
    return SimWorld(monitor=monitor, engine=SimulatedEngine(monitor, Figures.of(scenario)), catalog=catalog)
