"""L7: which rung a model is loaded with: first without an eviction, then with; and what is told where there is none."""

from dataclasses import replace

from gridsched.core.events import DevicesChanged
from gridsched.core.ids import DeviceName
from gridsched.core.model import DeviceSpec, LaunchOption
from tests.stories.world import BACKGROUND, GB, World, model, option, spanning

TWO = {"gpu0": 16.0, "gpu1": 16.0}
Q8 = ("q8_0", "q8_0")


def launched(world: World, name: str) -> LaunchOption:
    """The rung that a model was loaded with."""
    return world.scheduler.state.instances[world.instance(name)].option


def shape(world: World, name: str) -> tuple[int, int, tuple[str, ...]]:
    """Pool, slots and devices of that rung."""
    rung = launched(world, name)
    return rung.ctx_size, rung.parallel, rung.devices


def test_L7_a_worse_rung_that_evicts_nobody_goes_before_a_better_one_that_would() -> None:
    """A shorter context costs the client less than the other model's reload; without it the best rung evicts."""
    rungs = (option(12, 4, ctx=65536), option(8, 2, ctx=32768), option(5, 1, ctx=8192))
    world = World((model("idle", option(10)), model("m", *rungs)))
    world.warm("idle", job_class=BACKGROUND)
    world.submit("m")
    world.advance(11.0)
    assert shape(world, "m") == (8192, 1, ("gpu0",))
    assert world.state("idle") == "ready"
    world = World((model("idle", option(12)), model("m", *rungs)))
    world.warm("idle", job_class=BACKGROUND)
    world.submit("m")
    world.advance(11.0)
    assert shape(world, "m") == (65536, 4, ("gpu0",))
    assert world.state("idle") == "cold"


def test_L7_rungs_are_taken_in_their_order_and_not_by_their_size() -> None:
    """What the ladder puts first is loaded where both fit: a split before one card's single slot, and behind two."""
    one_slot, two_slots = option(6, 1, ctx=8192), option(6, 2, ctx=16384)
    split = spanning({"gpu0": 4, "gpu1": 4}, 2, ctx=65536)
    world = World((model("m", split, one_slot), model("n", two_slots, split)), cards=TWO)
    world.submit("m")
    world.advance(11.0)
    world.submit("n")
    world.advance(11.0)
    assert shape(world, "m") == (65536, 2, ("gpu0", "gpu1"))
    assert shape(world, "n")[:2] == (16384, 2)


def test_L7_several_cards_without_an_eviction_go_before_one_with() -> None:
    """Neither card has room for the whole; together they have."""
    world = World(
        (
            model("a", option(9)),
            model("b", option(9, device="gpu1")),
            model("m", option(10), option(10, device="gpu1"), spanning({"gpu0": 5, "gpu1": 5})),
        ),
        cards=TWO,
    )
    world.warm("a", "b", job_class=BACKGROUND)
    world.submit("m")
    world.advance(11.0)
    assert launched(world, "m").devices == ("gpu0", "gpu1")
    assert (world.state("a"), world.state("b")) == ("ready", "ready")


def test_L7_an_emptier_card_is_no_reason_for_a_smaller_cache() -> None:
    """Rungs that differ by their devices alone go to the card that fewer use; a quantized cache is another rung."""
    plain = [option(6, 2, device=card, key=f"{card}/f16") for card in TWO]
    quantized = [replace(each, key=f"{each.key}/q8", cache_types=Q8) for each in plain]
    world = World((model("a", option(6)), model("m", plain[0], *quantized), model("n", *plain)), cards=TWO)
    world.warm("a")
    world.submit("m")
    world.advance(11.0)
    assert (launched(world, "m").devices, launched(world, "m").cache_types) == (("gpu0",), ("f16", "f16"))
    world.submit("n")
    world.advance(11.0)
    assert launched(world, "n").devices == ("gpu1",)


def test_L7_a_refusal_tells_of_every_card_and_of_the_launch_that_is_nearest() -> None:
    """The small card is listed first in the ladder, and lacks more: the arithmetic is the large one's."""
    world = World((model("m", option(20, device="small"), option(20, device="large"), option(21)),))
    specs = [DeviceSpec(DeviceName(name), size * GB) for name, size in (("gpu0", 4), ("small", 8), ("large", 19))]
    world.tell(DevicesChanged(tuple(specs)))
    refusal = world.rejection(world.submit("m"))
    assert refusal is not None
    rows = refusal.detail["per_device"]
    assert isinstance(rows, list)
    assert [(row["device"], row["short_bytes"], row["available_bytes"]) for row in rows] == [
        ("large", 1 * GB, 19 * GB),
        ("small", 0, 8 * GB),
        ("gpu0", 0, 4 * GB),
    ]
    assert refusal.detail["required_bytes"] == 20 * GB
    assert "large: needs" in refusal.message
    assert "small" not in refusal.message


def test_L7_only_the_pins_in_the_way_are_to_be_unpinned() -> None:
    """One lies on a card where this model is never launched; and doing what is said is enough."""
    world = World(
        (
            model("far", option(6, device="gpu1"), pinned=True),
            model("near", option(10), pinned=True),
            model("m", option(10)),
        ),
        cards=TWO,
    )
    world.advance(30.0)
    assert (world.state("far"), world.state("near")) == ("ready", "ready")
    chat = world.submit("m")
    world.advance(10.0)
    refusal = world.rejection(chat)
    assert refusal is not None
    assert refusal.detail["suggestions"] == ["Unpin near"]
    world.pin("near", pinned=False)
    chat = world.submit("m")
    world.advance(12.0)
    assert world.granted_at(chat) is not None
