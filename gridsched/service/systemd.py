"""Asks the user's service manager, through its own programs. Bounded; must never wait for a person.

Every answer is what a program printed and its exit code: what to make of it is the caller's to say.
"""

import os
import pwd
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ASK_SECONDS = 30.0
START_SECONDS = 330.0
"""Longer than a unit may take to start, so that systemd's own word on it comes first."""

LONGEST_SAID = 500
"""Characters of what a program printed that a person is shown."""

NOT_FOUND = 127
TOO_LONG = 124


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said, and its exit code."""

    code: int
    said: str

    @property
    def well(self) -> bool:
        """It has done it."""
        return self.code == 0


class Systemd:
    """The manager of this user's services."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Of `environ`, what says where the manager is; after `su` and in cron that is missing and usually so."""
        self._environ = dict(environ)
        usual = Path(f"/run/user/{os.getuid()}")
        if "XDG_RUNTIME_DIR" not in environ and usual.is_dir():
            self._environ["XDG_RUNTIME_DIR"] = str(usual)

    def systemctl(self, *words: str, within_seconds: float = ASK_SECONDS) -> Answer:
        """One command to the manager."""
        return self._run("systemctl", "--user", *words, within_seconds=within_seconds)

    def status_of(self, unit: str) -> str:
        """What a service said last about itself."""
        return self.systemctl("show", unit, "--property=StatusText", "--value").said

    def lingers(self) -> Answer:
        """Whether this user's services start at boot and outlive a log-out: well if so, else why that is not known to
        be so, or nothing where it is known not to be."""
        user = user_name()
        answer = self._run("loginctl", "show-user", user, "--property=Linger", "--value")
        if answer.well:
            return Answer(0 if answer.said == "yes" else 1, "")
        # loginctl knows nobody who is not logged in; what it would remember is this file.
        return Answer(0, "") if (Path("/var/lib/systemd/linger") / user).exists() else answer

    def _run(self, *words: str, within_seconds: float = ASK_SECONDS) -> Answer:
        try:
            done = subprocess.run(  # noqa: S603 - the service manager's own programs, found on PATH as a person finds them
                words,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=within_seconds,
                check=False,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            return Answer(TOO_LONG, f"{words[0]} does not answer within {within_seconds:.0f} s")
        except OSError as error:
            return Answer(NOT_FOUND, f"{words[0]} cannot be run: {error.strerror}")
        return Answer(done.returncode, " ".join(done.stdout.split())[:LONGEST_SAID])


def user_name() -> str:
    """Who this is, as loginctl takes it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
