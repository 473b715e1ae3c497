"""Where things are: the data directory and the configuration, found by the same rules as the gateway finds them.

Written again with the standard library alone, because the gateway's own finders need libraries that may be broken; a
test holds the two against each other.
"""

import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CONFIG_VARIABLE = "GRIDSCHED_CONFIG"
DATA_VARIABLE = "GRIDSCHED_DATA_DIR"
CONFIG_NAME = "gridsched.yaml"


class NoPlace(Exception):
    """A folder cannot be told; one sentence."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders and files of one data directory, and how its configuration was named."""

    data: Path
    config_flag: Path | None
    environ: Mapping[str, str]
    cwd: Path

    @property
    def lock(self) -> Path:
        """The file that the gateway locks while it owns the data directory."""
        return self.data / "owner.lock"

    @property
    def heartbeat(self) -> Path:
        """The gateway's last heartbeat."""
        return self.data / "run" / "heartbeat"

    @property
    def children(self) -> Path:
        """What the gateway writes of its engines."""
        return self.data / "run" / "children.json"

    @property
    def logs(self) -> Path:
        """The engines' output."""
        return self.data / "logs"

    @property
    def own(self) -> Path:
        """What the watchdog itself keeps."""
        return self.data / "watchdog"

    @property
    def admin_token(self) -> Path:
        """The gateway's own credential of this machine."""
        return self.data / "admin.token"

    @property
    def token(self) -> Path:
        """The credential that every tool asks for."""
        return self.data / "watchdog.token"

    @property
    def gateway_log(self) -> Path:
        """What a gateway that was started from here prints."""
        return self.own / "gateway.log"

    def config(self) -> Path | None:
        """The configuration that the gateway would read now; None where it has none."""
        return find_config(self.config_flag, self.environ, self.cwd)

    def config_to_write(self) -> Path:
        """The same, or where one would be found once it is written. Raises NoPlace."""
        return self.config() or user_folder("XDG_CONFIG_HOME", ".config", self.environ) / CONFIG_NAME


def find_config(flag: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """As told by the flag, as told by the variable, in the current folder, in the user's. What was told is returned
    whether it exists or not."""
    if flag is not None:
        return cwd / flag
    if told := environ.get(CONFIG_VARIABLE):
        return cwd / told
    folders = [cwd]
    with suppress(NoPlace):
        folders.append(user_folder("XDG_CONFIG_HOME", ".config", environ))
    return next((folder / CONFIG_NAME for folder in folders if os.access(folder / CONFIG_NAME, os.F_OK)), None)


def find_data(flag: Path | None, environ: Mapping[str, str]) -> Path:
    """The data directory. Raises NoPlace."""
    told = flag or (Path(environ[DATA_VARIABLE]) if environ.get(DATA_VARIABLE) else None)
    try:
        return (told or user_folder("XDG_DATA_HOME", ".local/share", environ)).expanduser().absolute()
    except RuntimeError:
        raise NoPlace(f"there is no home folder for {told}; name a data directory with --data-dir") from None
    except FileNotFoundError:
        raise NoPlace(f"{told} is told from the current folder, which is gone; go to another one") from None


def user_folder(variable: str, below_home: str, environ: Mapping[str, str]) -> Path:
    """Gridsched's folder among a user's folders of a kind. Raises NoPlace."""
    told = Path(environ.get(variable, ""))
    if told.is_absolute():
        return told / "gridsched"
    home = Path(environ.get("HOME", ""))
    with suppress(KeyError):
        home = home if home.is_absolute() else Path(pwd.getpwuid(os.getuid()).pw_dir)
    if not home.is_absolute():
        raise NoPlace(f"this user has no home folder; set {variable}, or name the place")
    return home / below_home / "gridsched"
