"""What becomes of a measurement: it is kept with what it is of, and other models are planned with it (L2)."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from gridsched.core.commands import KeepMeasurement
from gridsched.core.ids import DeviceName, ModelName
from gridsched.core.job import Medium
from gridsched.core.model import DeviceSpec
from gridsched.ports import Capability, CatalogFamily, CatalogModel, Measurement
from sim.models import SimulatedCatalog
from tests.runtime.inside import GIB, MIDDLE, SMALL, inside


class Pupil(SimulatedCatalog):
    """A catalog to which each first measurement of a model is news."""

    known = 0

    def learn(self, measurements: Mapping[str, Measurement]) -> bool:
        """Whether there is one more than before."""
        before, self.known = self.known, sum(bool(each.measured_bytes) for each in measurements.values())
        return self.known > before


async def test_L2_a_load_is_kept_with_what_it_is_of_and_the_models_are_planned_anew(autojump_clock: MockClock) -> None:
    """Two models are used: each is kept under its key with its estimate, and each is news for the others."""
    async with inside(autojump_clock, catalog=lambda _: Pupil([DeviceSpec(DeviceName("sim0"), 16 * GIB)])) as server:
        for name in (SMALL, MIDDLE):
            assert await server.ask(server.job(name)) == "done"
        await server.until("measure", 2)
        await trio.sleep(1.0)
        kept = server.runtime.parts.store.measurements()
        accounts = [each.account for each in kept.values() if each.measured_bytes]
        assert {account.facts.model for account in accounts if account is not None} == {SMALL, MIDDLE}
        for (_, line), account in zip(server.logged("measure"), accounts, strict=True):
            assert account is not None
            assert line["predicted_bytes"] == {part.device: part.total_bytes for part in account.predicted}
        planned = [line for _, line in server.logged("config") if "models" in line]
        assert len(planned) == 1 + 2
        assert len(server.logged("load")) == 2


@pytest.mark.parametrize("by_difference", [False, True])
async def test_D2_what_a_devices_use_grew_by_says_nothing_of_what_lies_outside_the_buffers(
    autojump_clock: MockClock, by_difference: bool
) -> None:
    """It stands for its own launch; other models are planned with their driver's figures alone."""
    async with inside(autojump_clock) as server:
        await server.ask(server.job(SMALL))
        await server.until("measure")
        parts = server.runtime.parts
        (option, *_) = next(one.spec.options for one in parts.catalog.models() if one.name == SMALL and one.spec)
        command = KeepMeasurement(ModelName(SMALL), option.key, (GIB,), option, option.footprint, by_difference)
        server.runtime.dispatch.carry_out(command)
        await trio.sleep(1.0)
        kept = parts.store.measurements()[option.key]
        assert kept.measured_bytes == (GIB,)
        assert kept.account is not None
        assert kept.account.allocated == (() if by_difference else option.footprint)


class Replaced(SimulatedCatalog):
    """A catalog whose models' files are others, the first time that anybody looks."""

    looked: frozenset[ModelName] = frozenset()

    async def renew(self, model: ModelName) -> str | None:
        """A sentence, once."""
        first = model not in self.looked
        self.looked |= {model}
        return f"{model} has changed" if first else None


async def test_L2_a_launch_that_was_planned_with_another_file_is_not_made(autojump_clock: MockClock) -> None:
    """No process is started by it, the models are planned anew, and the next that asks after the back-off is served."""
    async with inside(autojump_clock, catalog=lambda _: Replaced([DeviceSpec(DeviceName("sim0"), 16 * GIB)])) as server:
        assert await server.ask(server.job(SMALL)) == "model_failed"
        (_, gone), *_ = server.logged("exit")
        assert gone["cause"] == "missing_file"
        assert not server.logged("ready")
        assert len([line for _, line in server.logged("config") if "models" in line]) == 2
        await trio.sleep(60.0)
        assert await server.ask(server.job(SMALL)) == "done"


class Blinded(Replaced):
    """One whose best chat model understands no images any more, in the file that is there now."""

    def families(self) -> tuple[CatalogFamily, ...]:
        """What each has left."""
        return tuple(
            replace(family, variants=tuple((quality, self._seen(model)) for quality, model in family.variants))
            for family in super().families()
        )

    def _seen(self, model: CatalogModel) -> CatalogModel:
        return replace(model, capabilities=model.capabilities - {Capability.VISION}) if self.looked else model


async def test_R10_a_model_with_another_file_is_another_variant_of_its_family_too(autojump_clock: MockClock) -> None:
    """Whether it was looked at before its launch or after it had failed: no image is sent to one that sees none."""
    async with inside(autojump_clock, catalog=lambda _: Blinded([DeviceSpec(DeviceName("sim0"), 16 * GIB)])) as server:
        await server.ask(server.job(SMALL))
        (family,) = server.runtime._actor.scheduler.state.families.values()
        assert not any(Medium.IMAGE in variant.media for variant in family.variants)
