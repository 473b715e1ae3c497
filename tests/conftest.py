"""What holds for every test, and in which order files are tried."""

import gc
import signal
import socket
from collections.abc import Iterator
from itertools import groupby

import pytest
from hypothesis import settings

# The suite may itself be run under nohup, which processes that a test starts would inherit: they would then rightly
# ignore a closed terminal, and the tests about that would show nothing.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The suite tries the same examples each time, so that it cannot fail by chance. `make explore` tries others.
settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=3000, stateful_step_count=80, deadline=None, print_blob=True)
settings.load_profile("suite")

# What is collected stays until the end: nothing of it is garbage, and each worker would look for some again and again.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files with slow tests evenly between the others, the last of which end the run: those that wait for
    processes and those that compute then run side by side, and no long one is left over for a single worker. A file's
    tests stay together, in their order."""
    slow: list[list[pytest.Item]] = []
    quick: list[list[pytest.Item]] = []
    for _, tests in groupby(items, lambda item: item.path):
        file = list(tests)
        (slow if any(item.get_closest_marker("slow") for item in file) else quick).append(file)
    step = max(len(quick) // (len(slow) + 1), 1)
    order = [file for number, long in enumerate(slow) for file in (long, *quick[number * step : (number + 1) * step])]
    items[:] = [item for file in (*order, *quick[len(slow) * step :]) for item in file]


def pytest_collection_finish() -> None:
    """From here on only what tests leave behind is looked through."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def refused_port() -> Iterator[int]:
    """A port of 127.0.0.1 at which nobody listens, whatever else runs on this machine: it is taken, and silent."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
