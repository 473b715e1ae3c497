"""The user's service manager: whether a gateway is one of its units, and the restart of that unit.

Must never take long where there is no service manager, and never touch another unit.
"""

from pathlib import Path

from gridsched.watchdog.commands import CannotRun, Commands

UNIT = "gridsched.service"
ASK_SECONDS = 5.0
RESTART_SECONDS = 120.0


class Units:
    """Asks `systemctl --user`, for the gateway of one data directory."""

    def __init__(self, commands: Commands, data: Path) -> None:
        self._commands = commands
        self._data = data

    def unit_of(self, pid: int) -> str:
        """The unit that this process is the main one of, or with no process (0) the unit that should run one; else
        empty."""
        properties = "--property=LoadState,ActiveState,UnitFileState,MainPID,ExecStart"
        try:
            ran = self._commands.run(("systemctl", "--user", "show", UNIT, properties), ASK_SECONDS)
        except CannotRun:
            return ""
        said = dict(line.partition("=")[::2] for line in ran.output.splitlines())
        if ran.code != 0 or said.get("LoadState") != "loaded":
            return ""
        if pid:
            return UNIT if said.get("MainPID") == str(pid) else ""
        command = said.get("ExecStart", "")
        ours = f"--data-dir {self._data} " in command or f"--data-dir={self._data} " in command
        if not ours and ("--data-dir" in command or said.get("MainPID", "0") != "0"):
            return ""  # of another data directory, which may serve well
        wanted = said.get("ActiveState") in ("active", "activating", "failed") or said.get("UnitFileState") == "enabled"
        return UNIT if wanted else ""

    def restart(self, unit: str) -> str:
        """Restart a unit; why that has failed, empty when it has not."""
        try:
            # A unit that has failed too often is not started again before that is forgotten.
            self._commands.run(("systemctl", "--user", "reset-failed", unit), ASK_SECONDS)
            ran = self._commands.run(("systemctl", "--user", "restart", unit), RESTART_SECONDS)
        except CannotRun as error:
            return str(error)
        return "" if ran.code == 0 else f"systemctl --user restart {unit} has failed ({ran.code}): {ran.output.strip()}"
