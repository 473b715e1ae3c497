"""`gridsched doctor`: what is wrong with this set-up, all of it at once, and what to do about each.

Owns the list of what is looked at, and that one fault does not hide the next. Finds nothing itself: each look is what
`serve` and `check` do. Must never change anything, nor show a secret.
"""

import argparse
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from gridsched import app
from gridsched.cli import known, table
from gridsched.cli.arguments import add_address_arguments, add_machine_arguments
from gridsched.cli.options import machine, settings_of
from gridsched.cli.streams import tell
from gridsched.control import findings
from gridsched.control.authority import Authority
from gridsched.control.findings import Finding
from gridsched.control.verb import as_builtins
from gridsched.credentials import ApiKey
from gridsched.library.names import printable
from gridsched.service.systemd import Systemd
from gridsched.service.units import GATEWAY, WATCHDOG
from gridsched.settings.admin_token import FILE, read_admin_token
from gridsched.settings.api_keys import KeysError, read_keys
from gridsched.settings.paths import DataDirError, Holder, data_dir_path, owner_of
from gridsched.settings.schema import Settings

FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_machine_arguments(parser)
    add_address_arguments(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON document")


def main(args: argparse.Namespace) -> int:
    """Print what was found. 0 when nothing is wrong, 1 when something is."""
    found = list(looked_at(args))
    is_well = not any(each.state == "problem" for each in found)
    if args.json:
        tell(json.dumps({"ok": is_well, "findings": list(map(as_builtins, found))}))
        return 0 if is_well else FAILED
    width = max(len(each.about) for each in found)
    for each in found:
        first, *more = each.text.split("\n")
        tell(printable(f"{each.state:<8} {each.about:<{width}}  {first}"))
        for line in [*more, *([f"do: {each.do}"] if each.do else [])]:
            tell(printable(f"{'':<8} {'':<{width}}  {line}"))
    return 0 if is_well else FAILED


def looked_at(args: argparse.Namespace) -> Iterator[Finding]:
    """All of it, the simplest first: what comes later may be the consequence of what comes before."""
    holder: Holder | None = None
    keys: tuple[ApiKey, ...] = ()
    try:
        data_dir = data_dir_path(args.data_dir, os.environ)
        holder = owner_of(data_dir)
        yield from _data_dir(data_dir)
        keys = yield from _keys(data_dir, holder)
    except DataDirError as error:
        yield findings.problem("data directory", str(error), "name another one with --data-dir")
    yield from _named_servers()
    yield from _services()
    try:
        settings, source = settings_of(args)
        app.certificate_of(settings)
    except app.StartError as error:
        yield findings.problem("configuration", str(error), findings.MEND)
        return
    yield findings.ok("configuration", source)
    yield _port(settings, holder)
    access, host = (Authority(keys=keys), None), settings.server.host
    yield _tried("exposure", host, lambda: app.refuse_exposure(access[0], host, insecure=False))
    yield from _machine(args, settings)


def _data_dir(path: Path) -> Iterator[Finding]:
    above = next(each for each in (path, *path.parents) if each.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        yield findings.problem("data directory", f"{above} cannot be written", f"chown it to this user: {above}")
        return
    yield findings.ok("data directory", str(path) if path == above else f"{path}, which a first start makes")
    yield findings.disk(shutil.disk_usage(above).free, str(path))


def _keys(data_dir: Path, holder: Holder | None) -> Generator[Finding, None, tuple[ApiKey, ...]]:
    keys: tuple[ApiKey, ...] = ()
    try:
        keys = read_keys(data_dir) if data_dir.exists() else ()
    except KeysError as error:
        yield findings.problem("keys", str(error), "mend the file, or move it away and make keys anew")
    else:
        yield findings.keys(len(keys))
    if holder is not None and holder.port and read_admin_token(data_dir) is None:
        text = f"there is no {data_dir / FILE} that this user, and nobody else, can read"
        yield findings.problem("admin token", text, "chmod 600 it; the server writes a new one when it starts")
    return keys


def _named_servers() -> Iterator[Finding]:
    try:
        names = known.read().servers
    except known.KnownError as error:
        yield findings.problem("named servers", str(error), "gridsched servers list reads it once it is mended")
    else:
        yield findings.ok("named servers", ", ".join(names) or "none")


def _services() -> Iterator[Finding]:
    """Of the user's services, those that have failed; nothing where there are none."""
    systemd = Systemd(os.environ)
    for unit in (GATEWAY, WATCHDOG):
        state = systemd.systemctl("show", unit, "--property=LoadState,ActiveState", "--value")
        if state.well and state.said.startswith("loaded"):
            is_well = state.said.endswith(" active")
            do = "" if is_well else f"journalctl --user -u {unit} says why; then: systemctl --user restart {unit}"
            yield Finding(about=unit, state="ok" if is_well else "problem", text=state.said.partition(" ")[2], do=do)


def _port(settings: Settings, holder: Holder | None) -> Finding:
    if holder is not None and holder.port == settings.server.port:
        return findings.ok("port", f"{holder} has it: the server of this data directory")
    ports = [str(each) for each in (settings.server.port, settings.panel.port) if each is not None]

    def try_both() -> None:
        with app.open_ports(settings):
            pass

    return _tried("port", f"{' and '.join(ports)} {'is' if len(ports) == 1 else 'are'} free", try_both)


def _tried(about: str, text: str, what: Callable[[], None], do: str = "") -> Finding:
    try:
        what()
    except app.StartError as error:
        return findings.problem(about, str(error), do)
    return findings.ok(about, text)


def _machine(args: argparse.Namespace, settings: Settings) -> Iterator[Finding]:
    """Engine, devices and models, as a start finds them."""
    try:
        with machine(args, settings, or_visit=True) as found:
            yield findings.engine(found.parts.engine.info())
            yield findings.devices([f"{each.spec.name} ({each.label})" for each in found.parts.monitor.devices()])
            yield from (findings.note("machine", each) for each in found.notes)
            bad = list(table.unservable(found))
            yield from (findings.problem("models", each, findings.MODELS) for each in (*found.problems, *bad))
            count = len(found.parts.catalog.models())
            if count and not bad and not found.problems:
                yield findings.models(count)
    except app.StartError as error:
        yield findings.problem("machine", str(error), "gridsched check tells more, once that is mended")
