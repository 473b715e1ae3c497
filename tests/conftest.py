"""What holds for every test."""

import signal
import socket
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The suite may itself be run under nohup, which processes that a test starts would inherit: they would then rightly
# ignore a closed terminal, and the tests about that would show nothing.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The suite tries the same examples each time, so that it cannot fail by chance. `make explore` tries others.
settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=3000, stateful_step_count=80, deadline=None, print_blob=True)
settings.load_profile("suite")


@pytest.fixture
def refused_port() -> Iterator[int]:
    """A port of 127.0.0.1 at which nobody listens, whatever else runs on this machine: it is taken, and silent."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
