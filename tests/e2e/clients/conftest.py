"""What the tests of clients share beside the gateway for the session."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import start_real
from tests.support.gateway import Gateway


def until(holds: Callable[[], bool]) -> None:
    """Look again and again, for a minute at most."""
    for _ in range(1200):
        if holds():
            return
        threading.Event().wait(0.05)
    pytest.fail("not within a minute")


@pytest.fixture
def short_queue(models: tuple[Path, Path], tmp_path: Path) -> Iterator[Gateway]:
    """A gateway of one's own, in which one background job may wait."""
    running = start_real(tmp_path, *models, more="scheduler: {queues: {background: {max_length: 1}}}\n")
    yield running
    running.stop()
