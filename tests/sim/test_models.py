"""The simulated catalog: names, ladders, launches."""

import pytest

from gridsched.core.ids import DeviceName, ModelName
from gridsched.ports import Capability
from sim import build
from sim.gpu import GIB


def test_models_are_found_by_name_alias_and_the_usual_words() -> None:
    """Exact first, then without regard to case; an unknown one is None and has neighbours."""
    catalog = build().catalog
    for name in ("sim-chat-12b", "gpt-4o", "SIM-CHAT-12B", "default"):
        found = catalog.resolve(name)
        assert found is not None
        assert found.name == "sim-chat-12b"
    assert catalog.resolve("sim-chat-13b") is None
    assert "sim-chat-12b" in catalog.closest("sim-chat-13b")
    assert len(catalog.closest("sim-chat")) <= 3


def test_a_ladder_has_the_full_context_on_each_card_and_then_half_of_it() -> None:
    """Best first; every option names its device, and no two share a key."""
    world = build(cards=[16 * GIB, 16 * GIB])
    for model in world.catalog.models():
        assert model.spec is not None
        options = model.spec.options
        assert [option.devices for option in options] == [("sim0",), ("sim1",)] * 2
        assert options[0].ctx_size == 2 * options[2].ctx_size
        assert options[0].need_bytes[0][1] > options[2].need_bytes[0][1]
        assert len({option.key for option in options}) == len(options)


def test_a_launch_says_what_to_start() -> None:
    """Model, option and capabilities; a model that is not there is a KeyError."""
    catalog = build().catalog
    embedder = catalog.resolve("sim-embed")
    assert embedder is not None
    assert embedder.spec is not None
    launch = catalog.launch(embedder.name, embedder.spec.options[0])
    assert launch.capabilities == {Capability.EMBEDDING}
    with pytest.raises(KeyError):
        catalog.launch(ModelName("nothing"), embedder.spec.options[0])


async def test_the_largest_fit_follows_the_memory() -> None:
    """All of it where there is room, part of the context where there is less, nothing where weights do not fit."""
    catalog, model = build().catalog, ModelName("sim-chat-12b")
    assert (await catalog.largest_fit(model, {DeviceName("sim0"): 9 * GIB})).ctx_size == 16384
    partly = await catalog.largest_fit(model, {DeviceName("sim0"): int(7.7 * GIB)})
    assert 0 < partly.ctx_size < 16384
    assert partly.parallel == 0
    assert (await catalog.largest_fit(model, {DeviceName("sim0"): 7 * GIB})).ctx_size == 0
    assert (await catalog.largest_fit(model, {})).ctx_size == 0
