"""The ledger alone: bytes in, bytes out."""

import pytest

from gridsched.core.errors import InvariantViolation
from gridsched.core.events import DeviceRead
from gridsched.core.ids import DeviceName, InstanceId
from gridsched.core.ledger import Ledger
from gridsched.core.model import DeviceFootprint, DeviceSpec, LaunchOption

GPU, HOST = DeviceName("gpu0"), DeviceName("host")
ONE, TWO = InstanceId(1), InstanceId(2)


def launch(size: int, key: str = "k", host: int = 0) -> LaunchOption:
    """A launch of so many bytes on the card, and some in host memory."""
    beside = DeviceFootprint(HOST, weights_bytes=host) if host else None
    return LaunchOption(key, 4096, 1, (DeviceFootprint(GPU, weights_bytes=size),), host=beside)


def ledger(total: int = 100, headroom: int = 10, **more: int) -> Ledger:
    """One card, and other devices by name."""
    book = Ledger()
    specs = [DeviceSpec(GPU, total, headroom), *(DeviceSpec(DeviceName(name), size) for name, size in more.items())]
    book.set_devices(specs)
    return book


def test_INV_3_a_reservation_that_does_not_fit_is_a_bug() -> None:
    """90 usable: 60 and 30 fit, one byte more never."""
    book = ledger()
    book.reserve(ONE, launch(60))
    book.reserve(TWO, launch(30))
    assert book.books[GPU].free_bytes == 0
    with pytest.raises(InvariantViolation, match="INV-3"):
        book.reserve(InstanceId(3), launch(1))


def test_growth_makes_less_than_nothing_free_and_is_no_violation() -> None:
    """What was measured is over what is usable."""
    book = ledger()
    option = launch(80)
    book.reserve(ONE, option)
    book.read(DeviceRead(GPU, 100, 95, ((ONE, 95),)), 1.0)
    assert book.measure(ONE, option, GPU) == (95,)
    assert book.books[GPU].free_bytes == -5
    assert book.books[GPU].pressure
    assert not book.fits(((GPU, 1),))
    assert book.fits(((GPU, 0),))


def test_a_measurement_replaces_the_estimate_and_later_growth_beyond_noise() -> None:
    """Down at first, up later; a hundredth more is noise."""
    book = ledger()
    option = launch(80)
    book.reserve(ONE, option)
    for held, known in ((19, None), (50, (50,)), (50, None), (40, None), (51, None), (60, (60,))):
        book.read(DeviceRead(GPU, 100, held, ((ONE, held),)), 1.0)
        assert book.measure(ONE, option, GPU) == known
    assert book.needs(option) == ((GPU, 60),)


def test_L2_what_the_engine_has_allocated_is_taken_though_nothing_was_written_there_yet() -> None:
    """60 of 80 are resident and 75 allocated: 75 stay reserved, of which 15 are still to come; a reading above that
    counts as it is, and one under a quarter is no measurement whatever was allocated."""
    for held, known, untouched in ((60, (75,), 15), (78, (78,), 0), (10, None, 70)):
        book = ledger()
        option = launch(80)
        book.reserve(ONE, option)
        book.read(DeviceRead(GPU, 100, held, ((ONE, held),)), 1.0)
        assert book.measure(ONE, option, GPU, 75) == known
        assert book.books[GPU].untouched_bytes() == untouched
        assert book.measure(ONE, option, GPU, 75) is None


def test_host_memory_counts_where_the_host_is_planned() -> None:
    """The same launch on a machine whose host memory has a budget, and on one where it has none."""
    assert ledger().needs(launch(5, host=7)) == ((GPU, 5),)
    assert ledger(host=50).needs(launch(5, host=7)) == ((GPU, 5), (HOST, 7))


def test_what_could_not_be_read_is_believed_to_hold_what_it_reserved() -> None:
    """A driver that does not tell processes apart: others hold the rest."""
    book = ledger()
    book.reserve(ONE, launch(40))
    book.settled(ONE, 1.0)
    book.read(DeviceRead(GPU, 100, 55), 2.0)
    assert book.books[GPU].external_bytes == 15
    assert book.books[GPU].untouched_bytes() == 0


def test_a_launch_under_way_has_not_taken_up_its_memory() -> None:
    """60 of it are still to come: the device's own 80 free are not all to be had."""
    book = ledger()
    book.reserve(ONE, launch(80))
    book.read(DeviceRead(GPU, 100, 20, ((ONE, 20),)), 1.0)
    assert book.books[GPU].untouched_bytes() == 60
    assert book.really_free(((GPU, 20),))
    assert not book.really_free(((GPU, 21),))


def test_a_ledger_that_was_never_read_believes_itself() -> None:
    """Before the first reading."""
    assert ledger().really_free(((GPU, 90),))


def test_lost_memory_is_not_counted_twice() -> None:
    """A gone process's memory is lost, and no program's outside; when it comes back it is free."""
    book = ledger()
    book.reserve(ONE, launch(40))
    book.going(ONE, 1.0)
    assert book.books[GPU].going_bytes == 40
    assert book.lose(ONE) == 40
    assert (book.books[GPU].going_bytes, book.books[GPU].lost_bytes) == (0, 40)
    book.read(DeviceRead(GPU, 100, 45), 30.0)
    assert book.books[GPU].external_bytes == 5
    book.release(ONE, 40.0)
    book.read(DeviceRead(GPU, 100, 5), 41.0)
    assert book.books[GPU].free_bytes == 85


def test_a_program_that_came_while_a_stop_took_long_is_seen_with_its_release() -> None:
    """The last reading had the memory back already, and a game in its place; it was taken for ours until now."""
    book = ledger()
    book.reserve(ONE, launch(40))
    book.going(ONE, 1.0)
    book.read(DeviceRead(GPU, 100, 30), 20.0)
    assert book.books[GPU].external_bytes == 0
    book.release(ONE, 20.5)
    assert book.books[GPU].external_bytes == 30


def test_a_device_that_is_gone_stays_while_something_is_held_there() -> None:
    """Then it is forgotten."""
    book = ledger(gpu1=50)
    book.reserve(ONE, launch(10))
    book.set_devices([DeviceSpec(DeviceName("gpu1"), 50)])
    assert book.books[GPU].usable_bytes == 0
    book.release(ONE, 1.0)
    book.set_devices([DeviceSpec(DeviceName("gpu1"), 50)])
    assert GPU not in book.books


def test_readings_of_a_device_that_is_not_planned_are_ignored() -> None:
    """An ignored card."""
    book = ledger()
    book.read(DeviceRead(DeviceName("gpu9"), 1, 1), 0.0)
    assert set(book.books) == {GPU}


def test_L3_a_load_that_is_aborted_before_it_was_seen_may_have_taken_all_that_it_reserved() -> None:
    """Until its memory is verified back, or lost, nothing begins that needs those bytes; one that was read is in what
    is used already."""
    book = ledger(headroom=0)
    book.read(DeviceRead(GPU, 100, 30), 1.0)
    book.read(DeviceRead(GPU, 100, 0), 20.0)
    book.reserve(ONE, launch(60))
    book.going(ONE, 21.0)
    assert not book.really_free(((GPU, 41),))
    assert book.really_free(((GPU, 40),))
    book.read(DeviceRead(GPU, 100, 30, ((ONE, 30),)), 22.0)
    assert book.really_free(((GPU, 70),))
    book.read(DeviceRead(GPU, 100, 30), 23.0)
    assert not book.really_free(((GPU, 70),))
    book.lose(ONE)
    assert book.really_free(((GPU, 70),))
