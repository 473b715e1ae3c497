"""`gridsched install-service`: the gateway and its watchdog as services of this user, at log-in or at boot.

Says of each step what was done, and what was not: a service that dies at log-out is not one that was installed.
"""

import argparse
import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridsched.app import StartError, read_settings
from gridsched.cli.arguments import a_path
from gridsched.cli.options import refuse
from gridsched.cli.show import say
from gridsched.cli.streams import tell
from gridsched.files import atomic_write
from gridsched.library.names import printable
from gridsched.service.systemd import START_SECONDS, Systemd, user_name
from gridsched.service.units import GATEWAY, KEPT, WATCHDOG, UnitError, Words, is_untouched, kept, rendered
from gridsched.settings.load import find, place
from gridsched.settings.paths import DataDirError, data_dir_path

UNITS = (GATEWAY, WATCHDOG)
FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--config", type=a_path, metavar="FILE", help="the configuration (GRIDSCHED_CONFIG)")
    parser.add_argument("--data-dir", type=a_path, metavar="DIR", help="for measurements and logs (GRIDSCHED_DATA_DIR)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be written and run, and do nothing")
    parser.add_argument("--uninstall", action="store_true", help="stop and remove both services; data stays")
    parser.add_argument("--force", action="store_true", help="also where somebody has edited the units")


def main(args: argparse.Namespace) -> int:
    """Install, or remove. 0 when all of it is done, 1 when something is not, 2 for a configuration that is wrong."""
    try:
        installer = Installer(_unit_folder(os.environ), Systemd(os.environ), force=args.force)
        if args.uninstall:
            return _uninstall(installer, dry=args.dry_run)
        words = _words(args)
        texts = {name: rendered(name, words) for name in UNITS}
    except StartError as error:
        return refuse(error)
    except (DataDirError, UnitError) as error:
        return refuse(StartError(str(error)))
    if args.dry_run:
        for name, text in texts.items():
            tell(f"# {printable(str(installer.folder / name))}\n{text}")
        for command in ("daemon-reload", *(f"{verb} {name}" for name in UNITS for verb in ("enable", "start"))):
            tell(f"# then: systemctl --user {command}")
        return 0
    return _install(installer, texts, (words.data_dir, *words.config_folders))


def _words(args: argparse.Namespace) -> Words:
    """What the units are filled with. The configuration is read as it is, and as the service will read it: with no more
    of this environment than it will have. Raises StartError, DataDirError."""
    config = find(args.config, os.environ, Path())
    environment = kept(os.environ)
    home = {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    settings, _ = read_settings(config, os.environ, None, None, None)
    port = settings.watchdog.port
    if port == settings.server.port:
        raise StartError(settings.told(("watchdog", "port"), f"{port} is the port of the gateway (server.port) too"))
    try:
        read_settings(config, {**environment, **home}, None, None, None)
    except StartError as error:
        raise StartError(f"{error}\nA service has only these variables of yours: {', '.join(KEPT)}.") from None
    data_dir = data_dir_path(args.data_dir, os.environ)
    found = config.absolute() if config is not None else None
    return Words(Path(sys.executable), data_dir, found, environment, port, _config_folders(found))


def _config_folders(config: Path | None) -> tuple[Path, ...]:
    """Where the file's changes are written: beside it, or beside what it is a link to. A whole home folder is not
    opened for that."""
    file = config or place(None, {}, Path("/nowhere"))
    if file is None:
        return ()
    folder = Path(os.path.realpath(file)).parent
    return () if Path(os.environ.get("HOME", "/")).is_relative_to(folder) else (folder,)


def _unit_folder(environ: Mapping[str, str]) -> Path:
    """Where systemd looks for the units of this user: as it does, no path that is not whole is believed. Raises
    StartError."""
    told, home = environ.get("XDG_CONFIG_HOME", ""), environ.get("HOME", "")
    try:
        home = home if home.startswith("/") else pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise StartError("this user has no home folder, and so no services of its own") from None
    return (Path(told) if told.startswith("/") else Path(home) / ".config") / "systemd" / "user"


@dataclass(frozen=True, slots=True)
class Installer:
    """Where the units lie, and who runs them. `force`: somebody's own changes are no obstacle."""

    folder: Path
    systemd: Systemd
    force: bool

    def edited(self, name: str) -> bool:
        """Whether there is a unit that is not as we wrote it, and that may not be touched."""
        path = self.folder / name
        if self.force or not (path.is_symlink() or path.exists()):
            return False
        return path.is_symlink() or not is_untouched(_text_of(path))

    def refuse_edited(self) -> bool:
        """Say which units somebody has edited; whether there is any."""
        edited = [name for name in UNITS if self.edited(name)]
        for name in edited:
            say(
                f"{self.folder / name} was not written by this command, or has been edited since: it is left alone, and"
                f" nothing is done. Changes of your own are kept apart by: systemctl --user edit {name}."
                " --force does away with what is there"
            )
        return bool(edited)

    def has_manager(self) -> bool:
        """Whether there is a service manager to ask; says what to do where there is none."""
        answer = self.systemd.systemctl("show-environment")
        if not answer.well:
            say(
                f"no service manager of this user answers ({answer.said or answer.code}): nothing is done. Have"
                " whatever starts programs on this machine run: gridsched watchdog --run. It starts the gateway, and"
                " starts it again"
            )
        return answer.well


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _install(installer: Installer, texts: Mapping[str, str], own_folders: Sequence[Path]) -> int:
    if not installer.has_manager() or installer.refuse_edited():
        return FAILED
    changed = set()
    try:
        for path in own_folders:  # systemd opens to the service what is there when it starts
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        installer.folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            if _text_of(installer.folder / name) != text:
                atomic_write(installer.folder / name, text.encode(), 0o644)
                changed.add(name)
    except OSError as error:
        say(f"{error.filename}: {error.strerror}; nothing was started")
        return FAILED
    for name in UNITS:
        tell(f"unit       {printable(str(installer.folder / name))}{'' if name in changed else ' (as it was)'}")
    reload = installer.systemd.systemctl("daemon-reload")
    if not reload.well:
        say(f"systemd does not read its units anew: {reload.said}")
    begun = [_begin(installer.systemd, name, changed=name in changed) for name in UNITS]
    lingers = _tell_lingering(installer.systemd)
    return 0 if reload.well and all(begun) and lingers else FAILED


def _begin(systemd: Systemd, name: str, *, changed: bool) -> bool:
    """Enable and start one service, and say what became of it."""
    enabled = systemd.systemctl("enable", name)
    if not enabled.well:
        say(f"{name} is not enabled: {enabled.said}")
        return False
    was_active = systemd.systemctl("is-active", "--quiet", name).well
    started = systemd.systemctl("start", name, within_seconds=START_SECONDS)
    if not started.well:
        why = systemd.status_of(name) or started.said
        say(f"{name} is enabled, and has not started: {why}. More: journalctl --user --unit {name} --lines 50")
        return False
    old = "; with its old unit until: systemctl --user restart " + name if was_active and changed else ""
    tell(f"service    {name} is enabled and runs{old}")
    return True


def _tell_lingering(systemd: Systemd) -> bool:
    """Whether the services start at boot; says what to do where they do not."""
    lingers = systemd.lingers()
    if lingers.well:
        tell("boot       both start with the machine, and stay when you log out")
        return True
    doubt = f" (not known: {lingers.said})" if lingers.said else ""
    say(
        f"lingering is off for {user_name()}{doubt}: both services stop when you log out, and do not start with the"
        f" machine. To change that: loginctl enable-linger {user_name()}"
    )
    return False


def _uninstall(installer: Installer, *, dry: bool) -> int:
    there = [name for name in UNITS if (installer.folder / name).is_symlink() or (installer.folder / name).exists()]
    if not there:
        tell(f"there is no service of gridsched in {printable(str(installer.folder))}")
        return 0
    if dry:
        tell(
            "\n".join(f"# would stop, disable and remove: {printable(str(installer.folder / name))}" for name in there)
        )
        return 0
    if installer.refuse_edited():
        return FAILED
    disabled = installer.systemd.systemctl("disable", "--now", *there, within_seconds=START_SECONDS)
    if not disabled.well:
        say(f"the services are not stopped: {disabled.said}; their units are removed all the same")
    try:
        for name in there:
            (installer.folder / name).unlink()
            tell(f"removed    {printable(str(installer.folder / name))}")
    except OSError as error:
        say(f"{error.filename}: {error.strerror}")
        return FAILED
    installer.systemd.systemctl("daemon-reload")
    tell("The data directory and the configuration stay as they are.")
    return 0 if disabled.well else FAILED
