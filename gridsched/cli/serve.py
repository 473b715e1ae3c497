"""`gridsched serve`: find everything, say what was found, serve until told to stop."""

import argparse
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gridsched import __version__, app
from gridsched.cli import table
from gridsched.cli.arguments import a_path, add_address_arguments, add_machine_arguments
from gridsched.cli.options import machine, refuse, settings_of, source_of
from gridsched.cli.show import say
from gridsched.cli.streams import tell
from gridsched.control.ending import RESTART
from gridsched.library.names import printable
from gridsched.runtime.tape import Recorder
from gridsched.service.notify import Manager
from gridsched.settings.schema import Settings

BROKEN = 1
"""The contract's "failed": a service manager starts it again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_machine_arguments(parser, of_scenarios=True)
    add_address_arguments(parser)
    parser.add_argument(
        "--record", type=a_path, metavar="FILE", help="write what is decided for: gridsched replay FILE"
    )


def main(args: argparse.Namespace) -> int:
    """Serve. 0 when told to stop, or the code that it was asked to end with; 1 at a bug of the scheduler's, else the
    code of what is in the way."""
    logging.basicConfig(format="gridsched: %(message)s", level=logging.WARNING, stream=sys.stderr)
    with Manager.taken_from(os.environ) as manager:
        try:
            return _serve(args, manager)
        except app.StartError as error:
            manager.status(str(error))
            return refuse(error)
        except app.Broken as bug:
            say(f"the scheduler has met a bug and ends, its processes with it:\n{bug}")
            return BROKEN


def _keep_what_is_there() -> None:
    """What a start leaves stays as long as the process: a full collection that looks through it all again would have
    every stream stand still for a sixth of a second, so none does. From here on there are collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _serve(args: argparse.Namespace, manager: Manager) -> int:
    settings, source = settings_of(args)
    scheme = "https" if app.certificate_of(settings) is not None else "http"
    with (
        app.open_ports(settings) as listeners,
        machine(args, settings) as found,
        recording(args, settings) as tape,
    ):
        tell(f"gridsched {__version__}")
        for row in table.rows(found, source):
            tell(row)
        for problem in table.unservable(found):
            tell(f"problem    {printable(problem)}")
        (host, port), *others = (each.getsockname()[:2] for each in listeners)
        where = f"[{host}]" if ":" in host else host
        found.say_port(port, host)
        access = app.access_in(found.data_dir, say, insecure=args.insecure)
        app.refuse_exposure(access[0], host, insecure=args.insecure)
        for row in table.who_may(access[0], host):
            tell(row)

        def ready() -> None:
            tell(f"listening  {scheme}://{where}:{port}")
            for _, second in others:
                tell(f"panel      {scheme}://{where}:{second}")
            manager.ready()

        again = app.Again(source_of(args), lambda line: tell(printable(line)))
        configuration = app.configuration_in(again.source)
        with app.beside_of(found, access, tape, again, configuration, say) as beside:
            _keep_what_is_there()
            code = app.serve(found, settings, listeners, access, ready, manager, beside)
    if code == RESTART:
        tell(f"ended      a restart was asked for: whoever runs this starts it again ({code})")
    return code


@contextmanager
def recording(args: argparse.Namespace, settings: Settings) -> Iterator[Recorder | None]:
    """The tape that `--record` asks for, whole when the server has ended. Raises StartError."""
    if args.record is None:
        yield None
        return
    tape = app.open_tape(args.record, settings, say)
    try:
        yield tape
    finally:
        tape.close()
