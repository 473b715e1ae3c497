"""How a model's layers are shared out between devices."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridsched.vram.shares import layer_shares


def fullest(shares: tuple[int, ...], layers: list[int], fixed: list[int], rooms: list[int]) -> float:
    """The part of its room that the fullest device fills."""
    ends = list(accumulate(shares))
    parts = [sum(layers[end - count : end]) for end, count in zip(ends, shares, strict=True)]
    return max((part + taken) / room for part, taken, room in zip(parts, fixed, rooms, strict=True))


@pytest.mark.parametrize(
    ("layers", "fixed", "rooms", "shares"),
    [
        ([1] * 8, [0, 0], [10, 10], (4, 4)),
        ([1] * 8, [0, 0], [30, 10], (6, 2)),
        ([1] * 8, [4, 0], [12, 12], (2, 6)),
        ([1] * 7 + [5], [0, 0], [10, 10], (6, 2)),
        ([9, 1, 1], [0, 0, 0], [10, 10, 10], (1, 1, 1)),
        ([1] * 4, [50, 0], [10, 10], (1, 3)),
    ],
)
def test_each_device_is_filled_to_its_room(
    layers: list[int], fixed: list[int], rooms: list[int], shares: tuple[int, ...]
) -> None:
    """Alike where they are alike, less where there is less or something lies there already; the output layer, which is
    the last, counts as what it takes; nobody is left without a layer."""
    assert layer_shares(layers, fixed, rooms) == shares


@given(
    layers=st.lists(st.integers(50, 100), min_size=6, max_size=12),
    output=st.integers(1, 200),
    devices=st.lists(st.tuples(st.integers(0, 100), st.integers(300, 900)), min_size=2, max_size=3),
)
def test_no_other_split_leaves_the_fullest_device_more(
    layers: list[int], output: int, devices: list[tuple[int, int]]
) -> None:
    """Against every way to cut the layers, where a device has room for some of them."""
    layers.append(output)
    fixed, rooms = [taken for taken, _ in devices], [room for _, room in devices]
    found = layer_shares(layers, fixed, rooms)
    assert sum(found) == len(layers)
    assert min(found) >= 1
    first = range(1, len(layers))
    ways = [(one, two, len(layers) - one - two) for one in first for two in first] if len(devices) == 3 else []
    ways += [] if ways else [(one, len(layers) - one) for one in first]
    best = min(fullest(way, layers, fixed, rooms) for way in ways if min(way) >= 1)
    # The search stops at whole bytes: with such small figures one is what that comes to.
    assert fullest(found, layers, fixed, rooms) <= best + 1 / min(rooms) + 1e-6
