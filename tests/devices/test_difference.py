"""What a process holds where its driver does not tell: what the card's use grew by (D2, D4)."""

import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from gridsched.core.events import DeviceRead, Event, MemoryReleased
from gridsched.core.ids import InstanceId
from gridsched.core.ledger import Ledger
from gridsched.core.model import DeviceFootprint, LaunchOption
from gridsched.devices.difference import LEAVING_SECONDS, SETTLE_SECONDS, Difference, Seen
from gridsched.devices.sampler import Recent, verify_release
from tests.devices.driver import BIG, GIB, GPU0, GPU1, Driver, small

ONE, TWO = InstanceId(1), InstanceId(2)


class Card:
    """One card as the arithmetic sees it, a reading a second."""

    def __init__(self) -> None:
        self.difference = Difference()
        self.now = 0.0

    def read(
        self, used: int, *nameless: InstanceId, listed: bool = False, **others: int | None
    ) -> dict[InstanceId, int]:
        """What is told of ours at one reading; `others` are p42=7."""
        living = frozenset(nameless)
        rows = {int(pid[1:]): size for pid, size in others.items()}
        seen = Seen(used, {}, living, living if listed else frozenset(), rows)
        self.now += 1.0
        return dict(self.difference.read(seen, living, self.now))

    def settle(self, instance: InstanceId) -> None:
        """Its launch is over."""
        self.difference.settled(instance, self.now)


@pytest.fixture
def card() -> Card:
    """One that was read once, with 100 in use."""
    card = Card()
    assert card.read(100) == {}
    return card


def test_D2_growth_is_followed_and_kept_once_the_launch_is_over(card: Card) -> None:
    """From before the process was seen until a while after its launch; what comes later is somebody else's."""
    assert card.read(150, ONE) == {ONE: 50}
    assert card.read(900, ONE) == {ONE: 800}
    card.settle(ONE)
    assert card.read(950, ONE) == {ONE: 850}
    card.now += SETTLE_SECONDS
    assert card.read(960, ONE) == {ONE: 860}
    assert card.read(5000, ONE) == {ONE: 860}


def test_D2_what_another_program_took_meanwhile_is_let_go_when_it_gives_it_back(card: Card) -> None:
    """The card cannot hold less than the process does; a moment in which it says so changes nothing."""
    card.read(900, ONE)
    card.settle(ONE)
    card.now += SETTLE_SECONDS
    assert card.read(900, ONE) == {ONE: 800}
    assert card.read(500, ONE) == {ONE: 500}
    assert card.read(900, ONE) == {ONE: 800}
    card.read(500, ONE)
    card.now += SETTLE_SECONDS
    card.read(500, ONE)
    assert card.read(900, ONE) == {ONE: 500}


def test_D2_a_figure_is_never_negative_nor_beyond_what_is_used(card: Card) -> None:
    """Another program's going would have it below nothing; a card that is emptied holds nobody."""
    assert card.read(40, ONE) == {}
    assert card.read(300, ONE) == {ONE: 200}
    card.settle(ONE)
    card.now += SETTLE_SECONDS
    assert card.read(300, ONE) == {ONE: 200}
    assert card.read(70, ONE) == {ONE: 70}


def test_D2_two_that_come_together_are_both_unknown(card: Card) -> None:
    """Nobody can tell whose growth is whose, then or later: the estimates stand."""
    assert card.read(150, ONE) == {ONE: 50}
    assert card.read(900, ONE, TWO) == {}
    assert card.read(950, ONE, TWO) == {}
    assert card.read(950, ONE) == {}


def test_D2_two_that_are_first_seen_together_are_both_unknown(card: Card) -> None:
    """They have begun between two readings."""
    assert card.read(900, ONE, TWO) == {}
    assert card.read(900, ONE) == {}


def test_D2_one_that_ends_and_never_was_on_this_card_is_no_reason_to_doubt_the_next(card: Card) -> None:
    """Where a driver lists nobody, each of ours is watched on all cards; its model was on another one."""
    card.read(100, ONE)
    card.settle(ONE)
    card.now += SETTLE_SECONDS
    card.read(100, ONE)
    assert card.read(700, TWO) == {TWO: 600}


def test_D2_one_that_comes_after_the_other_is_told_from_it(card: Card) -> None:
    """What the first holds is kept at what it was before the second."""
    card.read(600, ONE)
    card.settle(ONE)
    assert card.read(610, ONE) == {ONE: 510}
    assert card.read(700, ONE, TWO) == {ONE: 510, TWO: 90}
    assert card.read(900, ONE, TWO) == {ONE: 510, TWO: 290}


def test_D2_one_that_was_there_before_the_first_reading_is_unknown() -> None:
    """There is nothing to compare with."""
    card = Card()
    assert card.read(500, ONE) == {}
    assert card.read(900, ONE) == {}


def test_D2_growth_of_others_that_the_driver_tells_is_theirs(card: Card) -> None:
    """A program that was there before and grows, or goes, changes nothing."""
    card.read(150, p42=50)
    assert card.read(550, ONE, p42=50) == {ONE: 400}
    assert card.read(800, ONE, p42=300) == {ONE: 400}
    assert card.read(500, ONE) == {ONE: 400}


def test_D2_a_program_that_comes_beside_a_listed_one_ends_the_watch(card: Card) -> None:
    """Its growth cannot be told from ours; what was seen of ours is a part only, so that nothing is said."""
    assert card.read(550, ONE, listed=True) == {ONE: 450}
    assert card.read(900, ONE, listed=True, p43=None) == {}


def test_D2_a_program_that_comes_after_the_launch_ends_the_watch_with_what_was_seen(card: Card) -> None:
    """The launch was over: it was all there."""
    card.read(550, ONE, listed=True)
    card.settle(ONE)
    assert card.read(900, ONE, listed=True, p43=None) == {ONE: 450}


def test_D4_a_new_number_may_be_ours_and_a_second_one_is_not(card: Card) -> None:
    """In a container the driver calls our process by another number."""
    assert card.read(550, ONE, p4242=450) == {ONE: 450}
    assert card.read(900, ONE, p4242=450, p4243=350) == {}


def test_D2_what_ended_may_still_be_giving_its_memory_back(card: Card) -> None:
    """One that begins before the fall was seen would be read as too small."""
    card.read(550, ONE)
    card.settle(ONE)
    card.now += SETTLE_SECONDS
    card.read(550, ONE)
    assert card.read(550) == {}
    assert card.read(600, TWO) == {}  # 450 of these are still the first one's
    assert card.read(300, TWO) == {}


@pytest.mark.parametrize("used", [100, 325])
def test_D2_one_that_begins_after_the_fall_is_known(card: Card, used: int) -> None:
    """The usual swap: the memory is back, the next one begins at once."""
    card.read(550, ONE)
    card.settle(ONE)
    card.read(550, ONE)
    card.read(550)
    card.read(used)
    assert card.read(used + 400, TWO) == {TWO: 400}


def test_D2_where_no_fall_comes_the_next_is_known_after_a_while(card: Card) -> None:
    """Memory that stays is nobody's, and no reason never to measure again (D10)."""
    card.read(550, ONE)
    card.read(550)
    card.now += LEAVING_SECONDS
    assert card.read(550) == {}
    assert card.read(700, TWO) == {TWO: 150}


def test_D2_one_that_ends_while_another_comes_leaves_it_unknown(card: Card) -> None:
    """Memory falls and rises at the same time."""
    card.read(550, ONE)
    card.settle(ONE)
    card.read(560, ONE)
    card.read(700, ONE, TWO)
    assert card.read(400, TWO) == {}


def test_D2_a_figure_that_the_driver_comes_to_tell_takes_its_place(card: Card) -> None:
    """A process is listed a moment after it has begun to take memory."""
    assert card.read(550, ONE) == {ONE: 450}
    both = frozenset({ONE, TWO})
    assert card.difference.read(Seen(560, {ONE: 455}), both, card.now) == {}
    seen = Seen(800, {ONE: 455}, frozenset({TWO}))
    assert card.difference.read(seen, both, card.now) == {TWO: 240}
    assert card.read(800, TWO) == {}  # the first is gone, and its memory is not back


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1000),
            st.frozensets(st.sampled_from([ONE, TWO, InstanceId(3)])),
            st.dictionaries(st.integers(40, 43), st.one_of(st.none(), st.integers(0, 500)), max_size=3),
            st.sampled_from([None, ONE, TWO]),
        )
    )
)
def test_D2_whatever_is_read_figures_are_of_the_living_and_within_the_use(
    readings: list[tuple[int, frozenset[InstanceId], dict[int, int | None], InstanceId | None]],
) -> None:
    """Never negative, never beyond the card, never of one that is not there; at most one that is not kept."""
    difference = Difference()
    for now, (used, nameless, others, settles) in enumerate(readings):
        found = difference.read(Seen(used, {}, nameless, frozenset(), others), nameless, float(now))
        assert found.keys() <= nameless
        assert all(0 < size <= used for size in found.values())
        if settles is not None:
            difference.settled(settles, float(now))


# --- through the driver's library ---------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["holds 0 compute 11 unknown", f"holds 0 compute 11 {17 * GIB}", "", "pid"])
async def test_D2_D4_a_process_without_a_figure_holds_what_the_use_grew_by(
    driver: Driver, mock_clock: trio.testing.MockClock, row: str
) -> None:
    """Listed without a figure, with 2^64-1 or another that cannot be, not at all, or under a container's number."""
    row = f"holds 0 compute 4242 {8 * GIB}" if row == "pid" else row
    monitor = driver.opened()
    await monitor.read({})
    driver.process(11)
    driver.tell(small(9 * GIB), BIG, row)
    mock_clock.jump(1.0)
    read, other = await monitor.read({ONE: 11})
    assert (read.held, read.by_difference) == (((ONE, 8 * GIB),), frozenset({ONE}))
    assert (other.held, other.by_difference) == ((), frozenset())


async def test_D4_own_memory_is_never_an_outside_programs(driver: Driver) -> None:
    """Else everything beside it would be said not to fit: what others hold is as it was before."""
    driver.tell(small(GIB))
    monitor = driver.opened()
    ledger = Ledger()
    ledger.set_devices([monitor.devices()[0].spec])
    ledger.read((await monitor.read({}))[0], 0.0)
    ledger.reserve(ONE, LaunchOption("key", 4096, 1, (DeviceFootprint(GPU0, weights_bytes=6 * GIB),)))
    driver.process(11)
    driver.tell(small(9 * GIB), f"holds 0 compute 4242 {8 * GIB}")
    ledger.read((await monitor.read({ONE: 11}))[0], 1.0)
    book = ledger.books[GPU0]
    assert (book.external_bytes, book.reservations[ONE].held_bytes) == (GIB, 8 * GIB)


async def test_D2_a_driver_that_tells_figures_is_believed_alone(driver: Driver) -> None:
    """Where it has told one of ours, one that it does not list has not come yet: growth is somebody else's."""
    driver.tell(small(3 * GIB), f"holds 0 compute 11 {2 * GIB}")
    driver.process(11)
    monitor = driver.opened()
    await monitor.read({ONE: 11})
    driver.process(12)
    driver.tell(small(7 * GIB), f"holds 0 compute 11 {2 * GIB}")
    (read,) = await monitor.read({ONE: 11, TWO: 12})
    assert (read.held, read.by_difference) == (((ONE, 2 * GIB),), frozenset())


async def test_D2_a_dead_process_holds_nothing_by_difference(driver: Driver) -> None:
    """Its release could never be proved otherwise (L5), though it is still asked about."""
    monitor = driver.opened()
    await monitor.read({})
    driver.process(11)
    driver.tell(small(9 * GIB), BIG)
    assert (await monitor.read({ONE: 11}))[0].held == ((ONE, 8 * GIB),)
    driver.end(11)
    assert (await monitor.read({ONE: 11}))[0].held == ()


async def test_D2_L5_memory_held_by_difference_is_proved_back_at_once(
    driver: Driver, mock_clock: trio.testing.MockClock
) -> None:
    """The fall of the card's use is the proof: a swap waits no second for it."""
    monitor = driver.opened()
    posted: list[Event] = []
    recent = Recent()
    await monitor.read({})
    driver.process(11)
    driver.tell(small(9 * GIB), BIG)
    recent.note({ONE: 11}, await monitor.read({ONE: 11}))
    driver.end(11)
    driver.tell(small(GIB), BIG)
    option = LaunchOption("key", 4096, 1, (DeviceFootprint(GPU0, weights_bytes=6 * GIB),))
    await verify_release(monitor, ONE, option, posted.append, recent)
    assert posted[-1] == MemoryReleased(ONE)
    assert mock_clock.current_time() == 0.0


async def test_D2_a_reading_of_one_process_forgets_no_other(driver: Driver) -> None:
    """Several ask, each about those that it knows."""
    monitor = driver.opened()
    await monitor.read({})
    driver.process(11)
    driver.tell(small(9 * GIB), BIG)
    await monitor.read({ONE: 11})
    assert (await monitor.read({}))[0].held == ()
    assert (await monitor.read({ONE: 11}))[0].held == ((ONE, 8 * GIB),)


async def test_D10_memory_with_no_living_owner_is_in_use_and_nobodys(driver: Driver) -> None:
    """Not believed while one of ours goes (L3), planned around where it stays for good."""
    driver.tell(small(11 * GIB), f"holds 0 compute 11 {11 * GIB}")
    driver.process(11)
    monitor = driver.opened()
    ledger = Ledger()
    ledger.set_devices([monitor.devices()[0].spec])
    ledger.reserve(ONE, LaunchOption("key", 4096, 1, (DeviceFootprint(GPU0, weights_bytes=11 * GIB),)))
    ledger.read((await monitor.read({ONE: 11}))[0], 0.0)
    driver.end(11)
    driver.tell(small(11 * GIB))  # the list is without it, the total is not
    ledger.going(ONE, 1.0)
    ledger.read((await monitor.read({ONE: 11}))[0], 1.0)
    assert ledger.books[GPU0].external_bytes == 0
    ledger.release(ONE, 2.0)
    found: list[int] = []
    for second in range(3, 7):
        (read,) = await monitor.read({})
        ledger.read(read, float(second))
        found.append(ledger.books[GPU0].external_bytes)
    assert found == [0, 0, 11 * GIB, 11 * GIB]


async def test_D14_managed_memory_never_replaces_the_estimate(driver: Driver) -> None:
    """The driver tells 200 MiB of a process that was to take 20 GiB: its figure is passed on, and not believed."""
    driver.tell(BIG, f"holds 0 compute 11 {200 << 20}")
    monitor = driver.opened()
    option = LaunchOption("key", 4096, 1, (DeviceFootprint(GPU0, weights_bytes=20 * GIB),))
    ledger = Ledger()
    ledger.set_devices([monitor.devices()[0].spec])
    ledger.reserve(ONE, option)
    (read,) = await monitor.read({ONE: 11})
    assert read == DeviceRead(GPU0, read.total_bytes, 2 * GIB, ((ONE, 200 << 20),))
    ledger.read(read, 1.0)
    assert ledger.measure(ONE, option, GPU0) is None
    assert ledger.bytes_of(ONE) == {GPU0: 20 * GIB}
    assert "under a quarter" in str(ledger.refusal(ONE, option, GPU0))


async def test_D2_a_family_with_a_figure_missing_has_none(driver: Driver) -> None:
    """A part of it would be believed for all of it."""
    driver.process(11)
    driver.process(12, parent=11)
    driver.tell(BIG, f"holds 0 compute 11 {GIB}", "holds 0 compute 12 unknown")
    (read,) = await driver.opened().read({ONE: 11})
    assert read.held == ()


async def test_D2_on_a_card_where_it_is_listed_alone_it_is_watched(driver: Driver) -> None:
    """Two that load on two cards at once are told apart where the driver lists them, though without figures."""
    monitor = driver.opened()
    await monitor.read({})
    driver.process(11)
    driver.process(12)
    rows = ("holds 0 compute 11 unknown", "holds 1 compute 12 unknown")
    driver.tell(small(5 * GIB), BIG.replace(f" {2 * GIB} ", f" {12 * GIB} "), *rows)
    first, second = await monitor.read({ONE: 11, TWO: 12})
    assert (first.held, second.held) == (((ONE, 4 * GIB),), ((TWO, 10 * GIB),))
    assert second.device == GPU1
