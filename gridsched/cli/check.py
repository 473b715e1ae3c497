"""`gridsched check`: the configuration, the engine, the devices and every model's fit, without serving anything."""

import argparse

from gridsched import app
from gridsched.cli import table
from gridsched.cli.options import add_machine_arguments, machine, refuse, settings_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_machine_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print what was found. 0 when all of it can serve, 2 when something cannot."""
    try:
        settings, source = settings_of(args)
        with machine(args, settings) as found:
            for row in table.rows(found.parts, found.notes, source):
                print(row)
            devices = found.parts.monitor.devices()
            bad = [model.name for model in found.parts.catalog.models() if table.best_option(model, devices) is None]
    except app.StartError as error:
        return refuse(error)
    if bad:
        print(f"problem    {len(bad)} model(s) cannot be served: {', '.join(bad)}")
        return app.CONFIGURATION
    print("ok         everything can be served")
    return 0
