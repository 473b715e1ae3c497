"""What `serve`, `check` and `plan` share: the options that say where everything is, and what is found with them."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from gridsched.app import (
    Machine,
    Source,
    StartError,
    SystemClock,
    find_machine,
    read_settings,
    take_data_dir,
    told_in,
)
from gridsched.library.names import printable
from gridsched.runtime.runtime import Parts
from gridsched.settings.schema import Settings
from gridsched.store.memory import MemoryStore


def add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--config", type=a_path, metavar="FILE", help="the configuration (GRIDSCHED_CONFIG)")
    parser.add_argument("--models-dir", type=a_path, metavar="DIR", help="look for GGUF files here and nowhere else")
    parser.add_argument("--data-dir", type=a_path, metavar="DIR", help="for measurements and logs (GRIDSCHED_DATA_DIR)")
    parser.add_argument("--sim", action="store_true", help="simulated hardware and models: no engine, no files")


def add_address_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where a server listens, whatever its configuration says."""
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="port to listen on (1234); 0 takes a free one")


def a_path(text: str) -> Path:
    """What was named on the command line. An empty word is a variable that was not set, not the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)


def say(sentence: str) -> None:
    """A sentence, or one a line, for whoever runs the server."""
    lines = (f"gridsched: {printable(line)}" for line in sentence.split("\n"))
    with suppress(OSError):
        print("\n".join(lines), file=sys.stderr, flush=True)


@contextmanager
def machine(args: argparse.Namespace, settings: Settings, *, or_visit: bool = False) -> Iterator[Machine]:
    """What there is to run on, real or simulated; owns the data directory meanwhile. Raises StartError.

    `or_visit`: where another server owns the directory, look around beside it. A simulated machine owns one that was
    named, so that whoever watches servers finds it, and keeps nothing there.
    """
    if args.sim and args.data_dir is None:
        yield simulated_machine(settings)
        return
    with take_data_dir(args.data_dir, os.environ, or_visit=or_visit) as data_dir:
        if args.sim:
            say_port, beat = told_in(data_dir)
            yield replace(
                simulated_machine(settings),
                holder=data_dir.holder,
                say_port=say_port,
                beat=beat,
                data_dir=data_dir.path,
            )
        else:
            yield find_machine(settings, data_dir, say, os.environ, _home())


def _home() -> Path:
    """The user's home folder; the root for a user who has none, as login programs take it."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def simulated_machine(settings: Settings) -> Machine:
    """A card and an engine that are made up, behind the real ports. Nothing is kept on disk."""
    import sim  # noqa: PLC0415 - only who asks for simulated hardware needs it installed

    world = sim.build(virtuals=settings.virtual_entries())
    parts = Parts(world.catalog, world.engine, world.upstream, world.monitor, MemoryStore(), SystemClock())
    notes = ["Everything is simulated: answers mean nothing, only their timing does."]
    if settings.entries() or len(world.catalog.virtuals()) < len(settings.virtual_entries()):
        notes.append(
            "The models and families of the configuration are left out, and names over them: the simulation has its"
            " own."
        )
    return Machine(parts, tuple(notes))


def settings_of(args: argparse.Namespace) -> tuple[Settings, str]:
    """The settings, and where they come from. Raises StartError."""
    host, port = getattr(args, "host", None), getattr(args, "port", None)
    return read_settings(args.config, os.environ, host, port, args.models_dir)


def source_of(args: argparse.Namespace) -> Source:
    """The same, to be read again."""
    host, port = getattr(args, "host", None), getattr(args, "port", None)
    return Source(args.config, os.environ, host, port, args.models_dir)


def refuse(error: StartError) -> int:
    """Say why there is no start; the exit code."""
    say(str(error))
    return error.code
