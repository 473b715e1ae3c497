"""`gridsched check`: the configuration, the engine, the devices and every model's fit, without serving anything."""

import argparse
from pathlib import Path

from gridsched import app
from gridsched.cli import table
from gridsched.cli.arguments import add_address_arguments, add_machine_arguments
from gridsched.cli.options import machine, refuse, settings_of
from gridsched.control.authority import Authority
from gridsched.library.names import printable
from gridsched.settings.api_keys import KeysError, read_keys
from gridsched.settings.schema import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_machine_arguments(parser)
    add_address_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print what was found. 0 when all of it can serve, 2 when something cannot.

    A server that runs with this data directory is no problem: it is looked around beside it.
    """
    try:
        settings, source = settings_of(args)
        app.certificate_of(settings)
        host, taken = _listened(settings)  # looked at first: a server that starts meanwhile has it, and waits for us
        with machine(args, settings, or_visit=True) as found:
            for row in table.rows(found, source):
                print(row)
            problems = [*table.unservable(found), *_keys_problem(found.data_dir, host, insecure=args.insecure)]
            if found.holder is not None and not found.holder.briefly:  # else it is a command that looks around, too
                print(f"running    the data directory is in use by {found.holder}: its server goes on as it is")
                if found.holder.port in {0, settings.server.port}:  # its own; 0 is that of one that only starts
                    taken = ()
            problems += taken
    except app.StartError as error:
        return refuse(error)
    for problem in problems:
        print(f"problem    {printable(problem)}")
    if problems or found.problems:
        return app.CONFIGURATION
    print("ok         everything can be served")
    return 0


def _keys_problem(data_dir: Path | None, host: str, *, insecure: bool) -> tuple[str, ...]:
    """Why a server could take no API key, or would not start without one (H6)."""
    try:
        keys = read_keys(data_dir) if data_dir is not None else ()
        app.refuse_exposure(Authority("", keys), host, insecure=insecure)
    except (KeysError, app.StartError) as error:
        return (str(error),)
    return ()


def _listened(settings: Settings) -> tuple[str, tuple[str, ...]]:
    """The address that a server would have, and why it could not listen now."""
    try:
        with app.open_ports(settings) as (listener, *_):
            return str(listener.getsockname()[0]), ()
    except app.StartError as error:
        return settings.server.host, (str(error),)
