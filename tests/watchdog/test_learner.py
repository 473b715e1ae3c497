"""Which configuration is good where the gateway takes over another one while it runs."""

import os
from typing import Any

from gridsched.watchdog.commands import Commands
from gridsched.watchdog.configuration import Configuration, digest
from gridsched.watchdog.front import Answer
from gridsched.watchdog.learner import Learner
from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import identify
from gridsched.watchdog.watch import Owner, State, Verdict

RUNS: dict[str, Any] = {"config_error": None, "config_needs_restart": []}
FIRST, SECOND = b"# one\n", b"# another\n"


class Gateway:
    """A gateway that serves, and the one who learns of it: a healthy look is enough here."""

    def __init__(self, places: Places) -> None:
        assert places.config_flag is not None
        self.path = places.config_flag
        self.path.write_bytes(FIRST)
        self.configuration = Configuration(places, (), Commands(places.environ))
        self.learner = Learner(self.configuration, healthy_seconds=0.0)
        self.learner.starts(digest(FIRST))

    def says(self, told: dict[str, Any]) -> list[str]:
        """What is good after a look at which its health said this."""
        owner = Owner(identify(os.getpid()), 1)
        self.learner.saw(Verdict(State.SERVING, "", owner, answer=Answer(200, told)))
        return [good.sha256 for good in self.configuration.good()]


def test_what_was_taken_over_and_serves_well_is_good_too(places: Places) -> None:
    """The newest goes first: it is what is put back."""
    gateway = Gateway(places)
    assert gateway.says(RUNS) == [digest(FIRST)]
    gateway.path.write_bytes(SECOND)
    assert gateway.says(RUNS) == [digest(SECOND), digest(FIRST)]


def test_what_is_refused_or_waits_for_a_start_is_not(places: Places) -> None:
    """The gateway serves well, but without it; nor is anything said by one that does not follow its file."""
    gateway = Gateway(places)
    gateway.says(RUNS)
    gateway.path.write_bytes(SECOND)
    gateway.learner._healthy_seconds = 0.001  # so that a look does not count at once
    for told in (
        {"config_error": "c.yaml:1:1: no", "config_needs_restart": []},
        {"config_error": None, "config_needs_restart": ["engine.path"]},
        {},
    ):
        assert gateway.says(told) == [digest(FIRST)]
