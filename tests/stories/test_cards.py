"""Which card a model is loaded on, where it fits on several."""

from tests.stories.world import BACKGROUND, CHAT, World, model, option


def rig(cards: int = 2, load_seconds: float = 1.0, chat_seconds: float = 1.0) -> World:
    """A chat's model and two small ones that fit on any card, all of them on one; nothing is loaded."""
    names = [f"gpu{number}" for number in range(cards)]
    return World(
        models=tuple(
            model(
                name, *(option(size, 2, card) for card in names), load=chat_seconds if name == "chat" else load_seconds
            )
            for name, size in (("chat", 8.0), ("small", 4.0), ("tiny", 2.0))
        ),
        cards=dict.fromkeys(names, 16.0),
    )


def card_of(world: World, name: str) -> str:
    """Where a model's process is."""
    return str(world.scheduler.state.instances[world.instance(name)].device)


def test_low_work_is_loaded_beside_nobody_who_chats() -> None:
    """Four minutes after the last chat nothing is held by S4, and still the free card is taken."""
    world = rig()
    world.warm("chat")
    world.advance(240.0)
    world.warm("small", job_class=BACKGROUND)
    assert (card_of(world, "chat"), card_of(world, "small")) == ("gpu0", "gpu1")


def test_people_are_given_the_card_where_nobody_works() -> None:
    """A generation of an hour runs on the first card: the chat's model is loaded on the other."""
    world = rig()
    world.submit("small", BACKGROUND)
    world.advance(5.0)
    world.submit("chat", CHAT)
    world.advance(5.0)
    assert (card_of(world, "small"), card_of(world, "chat")) == ("gpu0", "gpu1")


def test_low_work_shares_a_card_with_low_work_before_it_shares_one_with_people() -> None:
    """Both cards are in use: the one without people is the better one; on a third, empty one there is no company."""
    for cards, expected in ((2, "gpu1"), (3, "gpu2")):
        world = rig(cards)
        world.warm("chat")
        world.submit("small", BACKGROUND)
        world.advance(5.0)
        world.submit("tiny", BACKGROUND)
        world.advance(5.0)
        assert card_of(world, "small") == "gpu1"
        assert card_of(world, "tiny") == expected


def test_a_model_that_people_wait_for_counts_before_it_has_served_them() -> None:
    """While the chat's model still loads on the first card, low work that may be relieved there goes to the second,
    though both hold one model."""
    world = rig(load_seconds=5.0, chat_seconds=20.0)
    world.submit("chat", CHAT)
    world.submit("small", BACKGROUND)
    world.advance(1.0)
    world.submit("tiny", BACKGROUND)
    world.advance(10.0)
    assert [card_of(world, name) for name in ("chat", "small", "tiny")] == ["gpu0", "gpu1", "gpu1"]


def test_a_better_rung_goes_before_better_company() -> None:
    """More context beside the chat's model is taken before less context on the empty card."""
    world = World(
        models=(
            model("chat", option(8.0, device="gpu0"), load=1.0),
            model("small", option(6.0, device="gpu0", ctx=8192), option(3.0, device="gpu1", ctx=4096), load=1.0),
        ),
        cards={"gpu0": 16.0, "gpu1": 4.0},
    )
    world.warm("chat")
    world.warm("small", job_class=BACKGROUND)
    assert card_of(world, "small") == "gpu0"


def test_L3_a_chat_takes_the_card_that_is_really_free() -> None:
    """The ledger has room on both cards, the first says that a program has just taken its own: the chat does not wait
    beside room that fits it."""
    world = rig()
    world.warm("small", job_class=BACKGROUND)
    world.submit("tiny", BACKGROUND)
    world.advance(0.25)
    world.dies(world.instance("small"), None)  # what is used is not believed for a while after a process has gone
    world.read(16.0, {})
    job_id = world.submit("chat", CHAT)
    world.advance(5.0)
    assert card_of(world, "chat") == "gpu1"
    assert world.granted_at(job_id) is not None
