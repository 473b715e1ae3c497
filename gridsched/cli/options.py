"""What `serve`, `check` and `plan` share: what is found where their options say it is."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
from gridsched.cli.show import say
from gridsched.runtime.runtime import Parts
from gridsched.settings.faults import SettingsError
from gridsched.settings.schema import Settings
from gridsched.store.memory import MemoryStore


@contextmanager
def machine(args: argparse.Namespace, settings: Settings, *, or_visit: bool = False) -> Iterator[Machine]:
    """What there is to run on, real or simulated; owns the data directory meanwhile. Raises StartError.

    `or_visit`: where another server owns the directory, look around beside it. A simulated machine owns one that was
    named, so that whoever watches servers finds it, and keeps nothing there.
    """
    if args.sim and args.data_dir is None:
        yield simulated_machine(settings, args.sim)
        return
    with take_data_dir(args.data_dir, os.environ, or_visit=or_visit) as data_dir:
        if args.sim:
            say_port, beat = told_in(data_dir)
            yield replace(
                simulated_machine(settings, args.sim),
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


def simulated_machine(settings: Settings, scenario: str | bool = True) -> Machine:
    """A card and an engine that are made up, behind the real ports; those of a scenario, where one is named. Nothing
    is kept on disk. Raises StartError for what is no scenario."""
    import sim  # noqa: PLC0415 - only who asks for simulated hardware needs it installed
    from gridsched.cli import scenario as files  # noqa: PLC0415 - it imports the simulator

    virtuals = settings.virtual_entries()
    try:
        world = (
            sim.build(virtuals=virtuals)
            if isinstance(scenario, bool)
            else sim.build_scenario(files.load(files.found(Path(scenario))), virtuals=virtuals)
        )
    except SettingsError as error:
        raise StartError(str(error)) from None
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
