"""Which configuration is good: the gateway was started with it, or has taken it over since, and has served well with it
for a while.

Must never call one good that the gateway may not have read: what it was started with has to be known, and of one that
came later the gateway must have nothing to say against it, nor settings that it will try at its next start only.
"""

import time
from contextlib import suppress

from gridsched.watchdog.configuration import Configuration
from gridsched.watchdog.processes import ProcessId, age_seconds
from gridsched.watchdog.watch import Verdict


class Learner:
    """Finds out which configuration is good: the gateway was started with it and has served well for a while."""

    def __init__(self, configuration: Configuration, healthy_seconds: float) -> None:
        self._configuration = configuration
        self._healthy_seconds = healthy_seconds
        self._process: ProcessId | None = None
        self._started_with = ""
        self._before = ""
        self._healthy_since: float | None = None
        self._same_since = 0.0
        self._done = False

    def starts(self, sha256: str) -> None:
        """One is started, and will read this."""
        self._before = sha256

    def saw(self, verdict: Verdict) -> tuple[bool, str]:
        """Whether the gateway has served well for long enough by now, and a sentence when its configuration is kept."""
        now, sha256 = time.monotonic(), self._configuration.fingerprint()
        if verdict.process != self._process:
            self._process, self._healthy_since, self._done = verdict.process, None, False
            self._started_with = self._read_at_start(verdict, sha256)
        if sha256 != self._before or not _runs(verdict):
            self._same_since = now
        self._before = sha256
        if not verdict.healthy:
            self._healthy_since = None
            return False, ""
        self._healthy_since = now if self._healthy_since is None else self._healthy_since
        settled = now - self._healthy_since >= self._healthy_seconds
        taken_over = settled and now - self._same_since >= self._healthy_seconds
        if taken_over and sha256 != self._started_with:
            self._started_with, self._done = sha256, False
        sentence = ""
        if not self._done and self._started_with and (settled or self._started_with in self._configuration.passed):
            self._done = True
            with suppress(OSError):
                if self._configuration.keep_good(self._started_with):
                    sentence = f"the configuration {self._started_with[:12]} is kept as the last good one"
        return settled, sentence

    def _read_at_start(self, verdict: Verdict, sha256: str) -> str:
        """What a gateway that was not there before has read: what was there before and is still. Of one that was there
        before us, what has not been touched since it started."""
        if self._before:
            return sha256 if sha256 == self._before else ""
        touched = self._configuration.touched_seconds_ago()
        if verdict.process is None or touched is None:
            return ""
        return sha256 if touched > age_seconds(verdict.process) + 2.0 else ""


def _runs(verdict: Verdict) -> bool:
    """Whether a gateway that follows its file says that all of it runs."""
    told = verdict.answer.told if verdict.answer is not None else {}
    return told.get("config_error", "") is None and told.get("config_needs_restart") == []
