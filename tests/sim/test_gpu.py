# ruff: noqa: ARG001 - a jumping clock works by being asked for
"""The simulated cards: who holds what, and since when it is free."""

from random import Random

import pytest
import trio

from gridsched.core.ids import DeviceName, InstanceId
from gridsched.ports import Backend
from sim import build
from sim.gpu import GIB, CardFull, SimulatedCards

FIRST, SECOND = DeviceName("sim0"), DeviceName("sim1")


def test_cards_have_the_sizes_they_are_given() -> None:
    """One card of 16 GiB unless told otherwise; each has a name, a number and a headroom."""
    (only,) = SimulatedCards().devices()
    assert only.spec.total_bytes == 16 * GIB
    first, second = SimulatedCards([24 * GIB, 8 * GIB]).devices()
    assert (first.spec.name, second.spec.name) == (FIRST, SECOND)
    assert (first.index, second.index) == (0, 1)
    assert second.spec.total_bytes == 8 * GIB
    assert 0 < second.spec.headroom_bytes < GIB
    assert second.backend is Backend.SIMULATED


async def test_a_reading_counts_ours_and_what_others_hold(autojump_clock: trio.abc.Clock) -> None:
    """Used is everything, held is ours by process, each card for itself."""
    cards = SimulatedCards([16 * GIB, 16 * GIB])
    cards.take(InstanceId(1), FIRST, 3 * GIB)
    cards.take(InstanceId(1), SECOND, 2 * GIB)
    cards.set_foreign(SECOND, GIB)
    first, second = await cards.read({InstanceId(1): 11})
    assert (first.used_bytes, first.held) == (3 * GIB, ((InstanceId(1), 3 * GIB),))
    assert (second.used_bytes, second.held) == (3 * GIB, ((InstanceId(1), 2 * GIB),))


async def test_memory_comes_back_late_and_the_same_way_for_the_same_seed(autojump_clock: trio.abc.Clock) -> None:
    """A gone process's bytes stay used for the lag, which the seed decides."""
    lags = []
    for _ in range(2):
        cards = SimulatedCards(rng=Random(7), release_seconds=(1.0, 2.0))  # noqa: S311 - repeatable numbers
        cards.take(InstanceId(1), FIRST, GIB)
        cards.let_go(InstanceId(1))
        (read,) = await cards.read({InstanceId(1): 11})
        assert (read.used_bytes, read.held) == (GIB, ())
        waited = 0
        for _ in range(200):
            waited += cards.free_bytes(FIRST) < 16 * GIB
            await trio.sleep(0.01)
        lags.append(waited)
    assert 100 <= lags[0] <= 200
    assert lags[0] == lags[1]


async def test_a_full_card_refuses_and_changes_nothing(autojump_clock: trio.abc.Clock) -> None:
    """Out of memory names the card and both figures."""
    cards = SimulatedCards()
    cards.take(InstanceId(1), FIRST, 15 * GIB)
    with pytest.raises(CardFull, match="sim0") as full:
        cards.take(InstanceId(2), FIRST, 2 * GIB)
    assert (full.value.asked_bytes, full.value.free_bytes) == (2 * GIB, GIB)
    assert cards.free_bytes(FIRST) == GIB


def test_the_four_models_just_live_side_by_side_on_the_default_card() -> None:
    """The mixed-load scenario, in which the fifth has no part: none has to go on a card of 16 GiB with its headroom."""
    world = build()
    (info,) = world.monitor.devices()
    needs = [model.spec.options[0].need_bytes[0][1] for model in world.catalog.models() if model.spec][:4]
    assert sum(needs) <= info.spec.total_bytes - info.spec.headroom_bytes
    assert sum(needs) > 15 * GIB
